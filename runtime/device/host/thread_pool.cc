#include "runtime/device/host/thread_pool.h"

#include <sched.h>
#include <system_error>
#include <time.h>

#include <algorithm>
#include <new>

#include "platform/base/units.h"

namespace kvrun::host {
namespace {

constexpr std::align_val_t kAlignment{64};
constexpr uint32_t kOneByOneBit = 1U << 31;
// A worker's wait for the next operation: longer than what lies between two of them.
constexpr int64_t kWorkerSpinNs = 50'000;
// The caller's wait for the others: longer than a piece of a decoded token's operation takes, and much
// shorter than a slice of the scheduler.
constexpr int64_t kCallerSpinNs = 20'000;

void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

int64_t ReadClock(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

int64_t Now() { return ReadClock(CLOCK_MONOTONIC); }

// Whether `condition` came true in time.
template <typename F>
bool SpinUntil(int64_t most_ns, const F& condition) {
  constexpr int kPausesPerClock = 16;
  int64_t end_ns = 0;
  while (true) {
    for (int i = 0; i < kPausesPerClock; ++i) {
      if (condition()) return true;
      Pause();
    }
    const int64_t now_ns = Now();
    if (end_ns == 0) end_ns = now_ns + most_ns;
    if (now_ns >= end_ns) return false;
  }
}

// The calling thread. A hint: where it is not allowed, the system chooses among all cores.
void StayOn(std::span<const uint32_t> cores) {
  if (cores.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const uint32_t core : cores) {
    if (core < CPU_SETSIZE) CPU_SET(core, &set);
  }
  (void)sched_setaffinity(0, sizeof(set), &set);
}

}  // namespace

void ThreadPool::FreeAligned::operator()(std::byte* bytes) const { ::operator delete[](bytes, kAlignment); }

ThreadPool::ThreadPool(uint32_t n_threads, std::span<const uint32_t> cores)
    : cores_(cores.begin(), cores.end()),
      attendance_(std::max(n_threads, 1U)),
      workers_(std::make_unique<Worker[]>(std::max(n_threads, 1U))) {
  threads_.reserve(n_threads);
  for (uint32_t worker = 1; worker < n_threads; ++worker) {
    try {
      threads_.emplace_back([this, worker] { Work(worker); });
    } catch (const std::system_error&) {
      break;
    }
    ++n_workers_;
  }
}

void ThreadPool::PlaceCaller() const {
  if (n_workers_ > 1) StayOn(cores_);
}

ThreadPool::~ThreadPool() {
  stopping_.exchange(true);
  for (uint32_t worker = 1; worker < n_workers_; ++worker) {
    workers_[worker].is_asleep.exchange(0);
    workers_[worker].is_asleep.notify_one();
  }
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::Work(uint32_t worker) {
  StayOn(cores_);
  while (true) {
    AwaitWork(workers_[worker]);
    if (stopping_.load()) return;
    NotifyLeft();
    const uint32_t done = TakePieces(worker);
    if (done == 0 || unfinished_.fetch_sub(done) != done) continue;
    if (caller_sleeps_.exchange(0) == 1) caller_sleeps_.notify_one();
  }
}

// Either the worker sees what is to be done after it has said that it sleeps, or the caller sees that it
// sleeps after it has said what is to be done. Here and wherever a load must see what another thread has
// written before its own load, what is written is exchanged: the same instruction as a store on x86, and on
// Arm one that qemu keeps in order (7.2 lets an `ldar` overtake an `stlr` on x86, which the architecture
// forbids).
void ThreadPool::AwaitWork(Worker& worker) {
  const auto is_over = [&] {
    return unclaimed_.load() != 0 || to_notify_.load() != nullptr ||
           stopping_.load(std::memory_order_relaxed);
  };
  while (true) {
    const bool takes_part = worker.takes_part.load(std::memory_order_relaxed);
    if (takes_part && SpinUntil(kWorkerSpinNs, is_over)) return;
    worker.is_asleep.exchange(1);
    if (stopping_.load() || (takes_part && is_over())) {
      worker.is_asleep.store(0);
      return;
    }
    worker.is_asleep.wait(1);
  }
}

uint32_t ThreadPool::TakePieces(uint32_t worker) {
  uint32_t done = 0;
  uint32_t left = unclaimed_.load();
  while (left != 0) {
    const uint32_t n_left = left & ~kOneByOneBit;
    const uint32_t n_taken = n_left == left ? std::max(1U, n_left / (2 * n_workers_)) : 1;
    if (!unclaimed_.compare_exchange_weak(left, n_left == n_taken ? 0 : left - n_taken)) continue;
    workers_[worker].holds_piece.store(true, std::memory_order_relaxed);
    const size_t begin = size_t{operation_.n_grains - n_left} * operation_.grain;
    const size_t end = std::min(begin + n_taken * operation_.grain, operation_.n);
    (*operation_.function)(begin, end, worker);
    done += n_taken;
    left = unclaimed_.load();
  }
  if (done != 0) workers_[worker].holds_piece.store(false, std::memory_order_relaxed);
  return done;
}

void ThreadPool::Share(size_t n, size_t grain, Pieces pieces, const PieceFunction& function) {
  if (attendance_.n_out() != 0) DecideAttendance(Now());
  if (attendance_.n_out() + 1 == n_workers_) {
    function(0, n, 0);
    return;
  }
  while ((n + grain - 1) / grain >= kOneByOneBit) grain *= 2;
  const auto n_grains = static_cast<uint32_t>((n + grain - 1) / grain);
  operation_ = {&function, n, grain, n_grains};
  unfinished_.store(n_grains, std::memory_order_relaxed);
  unclaimed_.exchange(n_grains | (pieces == Pieces::kOneByOne ? kOneByOneBit : 0));
  WakeWorkers(n_grains - 1);
  const uint32_t done = TakePieces(0);
  if (unfinished_.fetch_sub(done) != done) AwaitOthers();
}

bool ThreadPool::HasAwakeWorker() const {
  for (uint32_t i = 1; i < n_workers_; ++i) {
    if (attendance_.TakesPart(i) && workers_[i].is_asleep.load() == 0) return true;
  }
  return false;
}

// As with work: either a worker sees it after it has said that it sleeps, or the caller sees that all sleep.
void ThreadPool::Notify(std::condition_variable& condition) {
  if (std::condition_variable* const earlier = to_notify_.exchange(&condition)) earlier->notify_one();
  if (!HasAwakeWorker()) NotifyLeft();
}

void ThreadPool::NotifyLeft() {
  if (to_notify_.load(std::memory_order_relaxed) == nullptr) return;
  if (std::condition_variable* const condition = to_notify_.exchange(nullptr)) condition->notify_one();
}

void ThreadPool::WakeWorkers(uint32_t n_most) {
  for (uint32_t i = 1; i < n_workers_ && n_most > 0; ++i) {
    if (!attendance_.TakesPart(i)) continue;
    --n_most;
    Worker& worker = workers_[i];
    if (worker.is_asleep.load() == 0) continue;
    worker.is_asleep.exchange(0);
    worker.is_asleep.notify_one();
  }
}

void ThreadPool::AwaitOthers() {
  const auto are_done = [this] { return unfinished_.load() == 0; };
  if (SpinUntil(kCallerSpinNs, are_done)) return;
  const int64_t begin_ns = Now();
  for (uint32_t i = 1; i < n_workers_; ++i) {
    if (workers_[i].holds_piece.load(std::memory_order_relaxed)) attendance_.BeginWait(i);
  }
  while (true) {
    caller_sleeps_.exchange(1);
    if (are_done()) break;
    caller_sleeps_.wait(1);
  }
  caller_sleeps_.store(0);
  const int64_t end_ns = Now();
  slept_ns_ += end_ns - begin_ns;
  attendance_.EndWait(end_ns - begin_ns);
  DecideAttendance(end_ns);
}

void ThreadPool::DecideAttendance(int64_t now_ns) {
  if (!attendance_.IsDue(now_ns)) return;
  attendance_.Decide({.now_ns = now_ns, .ran_ns = ReadClock(CLOCK_THREAD_CPUTIME_ID), .slept_ns = slept_ns_});
  for (uint32_t i = 1; i < n_workers_; ++i) {
    workers_[i].takes_part.store(attendance_.TakesPart(i), std::memory_order_relaxed);
  }
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
