#include "runtime/device/host/thread_pool.h"

#include <pthread.h>
#include <sched.h>
#include <system_error>

#include <algorithm>
#include <new>

#include "platform/base/units.h"

namespace kvrun::host {
namespace {

constexpr std::align_val_t kAlignment{64};
// About 20 to 50 microseconds: longer than what lies between two operations, shorter than a read from flash.
constexpr int kSpins = 2000;

void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Returns once value is not `old`.
template <typename T>
void AwaitChange(const std::atomic<T>& value, T old) {
  for (int i = 0; i < kSpins; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    Pause();
  }
  value.wait(old, std::memory_order_acquire);
}

void Pin(pthread_t thread, uint32_t core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core % CPU_SETSIZE, &set);
#if !defined(__ANDROID__)
  // A hint: where it is not allowed, the system chooses.
  (void)pthread_setaffinity_np(thread, sizeof(set), &set);
#else
  (void)thread;
#endif
}

}  // namespace

void ThreadPool::FreeAligned::operator()(std::byte* bytes) const { ::operator delete[](bytes, kAlignment); }

ThreadPool::ThreadPool(uint32_t n_threads, std::span<const uint32_t> cores)
    : progress_(std::make_unique<Progress[]>(std::max(n_threads, 1U))) {
  threads_.reserve(n_threads);
  for (uint32_t worker = 1; worker < n_threads; ++worker) {
    try {
      threads_.emplace_back([this, worker] { Work(worker); });
    } catch (const std::system_error&) {
      break;
    }
    if (!cores.empty()) Pin(threads_.back().native_handle(), cores[worker % cores.size()]);
    ++n_workers_;
  }
  if (!cores.empty() && n_workers_ > 1) callers_core_ = cores[0];
}

void ThreadPool::PinCaller() const {
  if (callers_core_) Pin(pthread_self(), *callers_core_);
}

ThreadPool::~ThreadPool() {
  stopping_.store(true, std::memory_order_release);
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::Work(uint32_t worker) {
  uint64_t seen = 0;
  while (true) {
    AwaitChange(generation_, seen);
    ++seen;
    if (stopping_.load(std::memory_order_acquire)) return;
    (*function_)(worker);
    progress_[worker].done.store(seen, std::memory_order_release);
    progress_[worker].done.notify_one();
  }
}

void ThreadPool::Run(const WorkerFunction& function) {
  if (n_workers_ > 1) {
    function_ = &function;
    generation_.fetch_add(1, std::memory_order_release);
    generation_.notify_all();
  }
  function(0);
  const uint64_t generation = generation_.load(std::memory_order_relaxed);
  for (uint32_t worker = 1; worker < n_workers_; ++worker) {
    AwaitChange(progress_[worker].done, generation - 1);
  }
}

std::pair<size_t, size_t> ThreadPool::Part(size_t n, size_t grain, uint32_t worker) const {
  const size_t n_grains = (n + grain - 1) / grain;
  const size_t begin = n_grains * worker / n_workers_ * grain;
  const size_t end = n_grains * (worker + 1) / n_workers_ * grain;
  return {std::min(begin, n), std::min(end, n)};
}

void ThreadPool::ReserveScratch(size_t bytes_per_worker) {
  if (bytes_per_worker <= scratch_bytes_) return;
  const size_t bytes = RoundUp<size_t>(bytes_per_worker, static_cast<size_t>(kAlignment));
  scratch_.reset(static_cast<std::byte*>(::operator new[](bytes* n_workers_, kAlignment)));
  scratch_bytes_ = bytes;
}

std::byte* ThreadPool::Scratch(uint32_t worker, size_t bytes_per_worker) {
  ReserveScratch(bytes_per_worker);
  return scratch_.get() + worker * scratch_bytes_;
}

}  // namespace kvrun::host
