// A device that is only named and measured: for engines whose forward pass is a fake, too.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "runtime/device/device.h"

namespace kvrun::testing {

class FakeDevice : public Device {
 public:
  FakeDevice() {
    info_.name = "Fake device";
    info_.kind = "cpu";
    info_.driver = "fake 1.0 \xFF";  // not UTF-8, as a driver's string may be
    info_.plan = "all fake";
    info_.notes = {"a note"};
    info_.is_cpu = true;
  }

  const DeviceInfo& info() const override { return info_; }
  Result<std::unique_ptr<Buffer>> CreateBuffer(uint64_t, BufferUse, std::string_view) override {
    return None();
  }
  Result<std::unique_ptr<Buffer>> CreateConstants(std::span<const std::byte>, std::string_view) override {
    return None();
  }
  Result<std::unique_ptr<Matrix>> CreateMatrix(TensorType, uint32_t, std::span<const MatrixSource>) override {
    return None();
  }
  uint64_t AttendScratchBytes(const AttentionArgs&) const override { return 0; }
  Status DropUnusedKernels() override { return Status::Ok(); }
  uint64_t AttendSlotsScratchBytes(const SlotAttentionArgs&) const override { return 0; }
  uint64_t ScoreScratchBytes(const ScoreArgs&) const override { return 0; }
  Result<std::unique_ptr<CommandList>> CreateCommandList() override { return None(); }
  Result<uint64_t> Submit(CommandList&, uint64_t) override { return None(); }
  uint64_t ReserveHostValues(uint32_t) override { return 1; }
  Status SignalHost(uint64_t) override { return None(); }
  Status Wait(uint64_t) override { return None(); }
  Result<uint64_t> Completed() override { return None(); }
  Status Download(const Buffer&, uint64_t, std::span<std::byte>) override { return None(); }
  Status Upload(std::span<const std::byte>, Buffer*, uint64_t) override { return None(); }
  std::vector<MemoryPart> MemoryInUse() const override {
    return {{"weights", 1000}, {"kv", 200}, {"kv", 30}, {"pipelines", 4}};
  }
  std::vector<OperationTime> TakeOperationTimes() override {
    const std::lock_guard lock(mutex_);
    return std::exchange(operation_times, {});
  }

  std::vector<OperationTime> operation_times;  // what the next TakeOperationTimes answers

 private:
  static Status None() { return Status(StatusCode::kUnsupported, "the fake device computes nothing"); }
  DeviceInfo info_;
  std::mutex mutex_;
};

}  // namespace kvrun::testing
