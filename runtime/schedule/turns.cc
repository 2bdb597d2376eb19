#include "runtime/schedule/turns.h"

#include <utility>

namespace kvrun {

Turns::Turns() : thread_([this] { Loop(); }) {}

Turns::~Turns() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
    HandOver(Whose::kWorker);
  }
  thread_.join();
}

void Turns::Give(std::function<void()> work) {
  const std::lock_guard lock(mutex_);
  work_ = std::move(work);
  has_ended_ = false;
  is_under_way_ = true;
}

void Turns::Run(Duration slice) {
  std::unique_lock lock(mutex_);
  until_ = std::chrono::steady_clock::now() + slice;
  HandOver(Whose::kWorker);
  changed_.wait(lock, [this] { return whose_ == Whose::kGiver; });
  if (has_ended_) is_under_way_ = false;
}

bool Turns::Rest() {
  std::unique_lock lock(mutex_);
  if (ends_) return true;
  if (std::chrono::steady_clock::now() < until_) return false;
  HandOver(Whose::kGiver);
  changed_.wait(lock, [this] { return whose_ == Whose::kWorker; });
  return ends_;
}

void Turns::HandOver(Whose to) {
  whose_ = to;
  changed_.notify_all();
}

void Turns::Loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return whose_ == Whose::kWorker; });
    if (work_) {
      const std::function<void()> work = std::exchange(work_, nullptr);
      lock.unlock();
      work();
      lock.lock();
      has_ended_ = true;
    }
    if (ends_) return;
    HandOver(Whose::kGiver);
  }
}

}  // namespace kvrun
