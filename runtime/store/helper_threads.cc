#include "runtime/store/helper_threads.h"

#include <pthread.h>
#include <signal.h>
#include <system_error>

#include <utility>

#include "platform/base/check.h"

namespace kvrun {
namespace {

constexpr uint32_t kJobBits = 11;
constexpr uint32_t kJobMask = (1U << kJobBits) - 1;

uint32_t NumJobs(uint32_t state) { return state >> kJobBits & kJobMask; }
uint32_t NextJob(uint32_t state) { return state & kJobMask; }

}  // namespace

Result<std::unique_ptr<HelperThreads>> HelperThreads::Create(uint32_t n_threads, Work work) {
  std::unique_ptr<HelperThreads> helpers(new HelperThreads(std::move(work)));
  helpers->threads_.reserve(n_threads);
  // The program's signals are for its own threads; these inherit the mask.
  sigset_t all;
  sigset_t old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  Status status;
  try {
    for (uint32_t thread = 1; thread <= n_threads; ++thread)
      helpers->threads_.emplace_back([raw = helpers.get(), thread] { raw->Main(thread); });
  } catch (const std::system_error& error) {
    status = StatusFromErrno(error.code().value(), "cannot start a thread");
  }
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
  KVRUN_RETURN_IF_ERROR(status);
  return helpers;
}

HelperThreads::~HelperThreads() {
  ends_.store(true);
  state_.fetch_add(1U << (2 * kJobBits));
  state_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

bool HelperThreads::TakeJob(uint32_t* job) {
  uint32_t state = state_.load(std::memory_order_acquire);
  while (NextJob(state) < NumJobs(state)) {
    if (!state_.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel)) continue;
    *job = NextJob(state);
    return true;
  }
  return false;
}

void HelperThreads::Do(uint32_t job, uint32_t thread) {
  work_(job, thread);
  if (n_left_.fetch_sub(1, std::memory_order_acq_rel) == 1) n_left_.notify_one();
}

void HelperThreads::Main(uint32_t thread) {
  for (;;) {
    const uint32_t seen = state_.load(std::memory_order_acquire);
    if (ends_.load()) return;
    uint32_t job = 0;
    if (TakeJob(&job)) {
      Do(job, thread);
    } else if (NextJob(seen) == NumJobs(seen)) {
      state_.wait(seen);
    }
  }
}

void HelperThreads::Run(uint32_t n_jobs) {
  KVRUN_CHECK(n_jobs <= kMostJobs);
  n_left_.store(n_jobs, std::memory_order_relaxed);
  const uint32_t round = (state_.load(std::memory_order_relaxed) >> (2 * kJobBits)) + 1;
  state_.store(round << (2 * kJobBits) | n_jobs << kJobBits, std::memory_order_release);
  state_.notify_all();
  uint32_t job = 0;
  while (TakeJob(&job)) Do(job, 0);
  while (const uint32_t n_left = n_left_.load(std::memory_order_acquire)) n_left_.wait(n_left);
}

}  // namespace kvrun
