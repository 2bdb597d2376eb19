#include "runtime/kv/serve/kv_thread.h"

#include <algorithm>
#include <utility>

namespace kvrun {

KvThread::KvThread(Device& device, uint32_t n_layers, uint32_t lookahead)
    : device_(device), n_layers_(n_layers), lookahead_(lookahead), values_(1 + lookahead + n_layers) {
  thread_ = std::thread([this] { Main(); });
}

KvThread::~KvThread() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void KvThread::Begin(uint64_t first_ready, std::span<StepRecords* const> caches) {
  n_posted_.store(0);
  abandoned_.store(false);
  {
    const std::lock_guard lock(mutex_);
    first_ready_ = first_ready;
    caches_.clear();
    for (StepRecords* records : caches) caches_.push_back({.records = records});
    working_ = true;
  }
  changed_.notify_all();
}

// Exchanged, as notify_one looks for who waits (ThreadPool::AwaitWork says why).
void KvThread::Post(uint32_t list, uint64_t device_value) {
  values_[list] = device_value;
  n_posted_.exchange(list + 1);
  n_posted_.notify_one();
}

void KvThread::Abandon() {
  abandoned_.store(true);
  n_posted_.exchange(static_cast<uint32_t>(values_.size()));
  n_posted_.notify_one();
}

Status KvThread::End() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !working_; });
  return std::exchange(status_, Status::Ok());
}

void KvThread::Main() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return working_ || stopping_; });
    if (!working_) return;
    lock.unlock();
    Status status = ServeStep();
    lock.lock();
    status_ = std::move(status);
    working_ = false;
    changed_.notify_all();
  }
}

// What may be written later is, when the device has all that it waits for.
Status KvThread::ServeStep() {
  Status status = WriteLeavingGroups();
  for (uint32_t layer = 0; layer < n_layers_; ++layer) {
    if (status.ok()) status = ServeLayer(layer);
    // The device must not wait for ever, whatever has failed.
    const Status signalled = device_.SignalHost(ReadyValue(layer));
    if (status.ok()) status = signalled;
  }
  for (const Cache& cache : caches_) {
    if (status.ok()) status = cache.records->WriteCompletedGroups();
  }
  return status.ok() ? Maintain() : status;
}

Status KvThread::WriteLeavingGroups() {
  for (const Cache& cache : caches_) KVRUN_RETURN_IF_ERROR(cache.records->WriteLeavingGroups());
  return Status::Ok();
}

// When all layers are served, so that a step that fails before has changed nothing; while the device computes
// the last layers and the logits.
Status KvThread::Maintain() {
  const auto maintains = [](const Cache& cache) { return cache.records->maintains(); };
  if (std::none_of(caches_.begin(), caches_.end(), maintains)) return Status::Ok();
  for (uint32_t layer = 0; layer < n_layers_; ++layer) {
    KVRUN_RETURN_IF_ERROR(WaitForList(ListOf(layer)));
    for (const Cache& cache : caches_) {
      if (maintains(cache)) KVRUN_RETURN_IF_ERROR(cache.records->MaintainLayer(layer));
    }
  }
  for (const Cache& cache : caches_) {
    if (maintains(cache)) KVRUN_RETURN_IF_ERROR(cache.records->PrepareStep());
  }
  return Status::Ok();
}

Status KvThread::WaitForList(uint32_t list) {
  for (uint32_t posted = n_posted_.load(); posted <= list; posted = n_posted_.load()) n_posted_.wait(posted);
  if (abandoned_.load()) return {StatusCode::kDevice, "the step was given up"};
  return device_.Wait(values_[list]);
}

// When the layer's choice is known, whatever attended to its part of the pool has done so (pool_parts): the
// list that chooses carries out the layer that had it before.
Status KvThread::ServeLayer(uint32_t layer) {
  KVRUN_RETURN_IF_ERROR(WaitForList(layer));
  const Clock::time_point chosen = Clock::now();
  Clock::time_point begun = chosen;
  for (Cache& cache : caches_) {
    KVRUN_RETURN_IF_ERROR(cache.records->FetchLayer(layer));
    const Clock::time_point now = Clock::now();
    cache.served = now - begun;
    begun = now;
  }
  NoteStall(layer, chosen, begun);
  return Status::Ok();
}

// To each what it took of the time that all were served in.
void KvThread::AddStall(double milliseconds) {
  Clock::duration all{};
  for (const Cache& cache : caches_) all += cache.served;
  for (const Cache& cache : caches_) {
    const double share = all.count() > 0 ? std::chrono::duration<double>(cache.served) / all : 1.0;
    cache.records->AddStall(milliseconds * share);
  }
}

// The device waits from the end of the layer before until this one is ready. That end is seen only when the
// device is late; where it was early, it is reckoned from what a layer takes otherwise.
void KvThread::NoteStall(uint32_t layer, Clock::time_point chosen, Clock::time_point ready) {
  const auto milliseconds = [](Clock::duration d) {
    return std::chrono::duration<double, std::milli>(d).count();
  };
  if (layer == 0 || lookahead_ == 0) {
    AddStall(milliseconds(ready - chosen));  // nothing else is to be computed
    previous_ready_ = ready;
    previous_stalled_ = true;
    return;
  }
  // The choice of this layer came with the end of the layer before the previous one.
  if (layer >= 2 && !previous_stalled_) {
    const double took = milliseconds(chosen - previous_began_);
    layer_ms_ = layer_ms_ == 0.0 ? took : 0.9 * layer_ms_ + 0.1 * took;
  }
  const Clock::time_point began = std::max(chosen, previous_ready_);
  const Result<uint64_t> completed = device_.Completed();
  const uint32_t before = ListOf(layer - 1);
  const bool is_posted = n_posted_.load() > before;
  previous_stalled_ = is_posted && completed.ok() && *completed >= values_[before];
  if (previous_stalled_) AddStall(std::max(0.0, milliseconds(ready - began) - layer_ms_));
  previous_began_ = began;
  previous_ready_ = ready;
}

}  // namespace kvrun
