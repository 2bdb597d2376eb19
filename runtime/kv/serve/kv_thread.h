// The second of the two threads that carry a decoded token: for each layer it waits until the device has
// chosen, brings the groups in, and tells the device to go on. What it shares with the engine's thread is the
// timeline, and which value each layer's choice completes with. A step may be of several caches: a layer is
// ready when all of them have theirs.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/kv/serve/step_records.h"

namespace kvrun {

class KvThread {
 public:
  // `lookahead`: KvMethod::lookahead, of all caches. The device must outlive the thread.
  KvThread(Device& device, uint32_t n_layers, uint32_t lookahead);
  KvThread(const KvThread&) = delete;
  KvThread& operator=(const KvThread&) = delete;
  ~KvThread();

  // The engine's thread: begins to serve a step of these caches (after StepRecords::BeginStep of each), whose
  // layers are signalled with the host's timeline values from `first_ready` on. They must outlive the step.
  void Begin(uint64_t first_ready, std::span<StepRecords* const> caches);
  // The host's timeline value that says that a layer's groups are there.
  uint64_t ReadyValue(uint32_t layer) const { return first_ready_ + layer; }
  // The device's timeline values of the step's lists, in their order: list i ends with the choice of layer i.
  // The first 1 + L, where L is the method's lookahead, choose alone; list 1 + L + i carries out layer i,
  // once that is ready.
  void Post(uint32_t list, uint64_t device_value);
  // No more will be posted: layers whose choice was not posted are given up.
  void Abandon();
  // Waits for the end of the step. After an error, all ReadyValues were signalled nevertheless.
  Status End();

  // From the completion of a layer's wait until it was served, less than what the device needed anyway: how
  // long the engine's step waited is the engine's to measure.

 private:
  using Clock = std::chrono::steady_clock;

  void Main();
  Status ServeStep();
  Status WriteLeavingGroups();
  Status ServeLayer(uint32_t layer);
  Status Maintain();
  Status WaitForList(uint32_t list);
  uint32_t ListOf(uint32_t layer) const { return 1 + lookahead_ + layer; }
  void NoteStall(uint32_t layer, Clock::time_point chosen, Clock::time_point ready);
  void AddStall(double milliseconds);

  Device& device_;
  const uint32_t n_layers_;
  const uint32_t lookahead_;
  // Of the step that is served.
  struct Cache {
    StepRecords* records = nullptr;
    Clock::duration served{};  // how long the last layer took
  };
  std::vector<Cache> caches_;
  uint64_t first_ready_ = 1;
  std::vector<uint64_t> values_;  // of each list
  std::atomic<uint32_t> n_posted_{0};
  std::atomic<bool> abandoned_{false};

  // How long a layer takes the device, from layers that it did not have to wait in.
  double layer_ms_ = 0.0;
  Clock::time_point previous_began_;  // when the device began what ran while the last layer was served
  Clock::time_point previous_ready_;  // when the last layer was ready
  bool previous_stalled_ = true;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool working_ = false;
  bool stopping_ = false;
  Status status_;
  std::thread thread_;
};

}  // namespace kvrun
