// A device that hands everything on to another, but for one allocation, which fails as where memory is short.
// For models, and passes of them, of its own.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/device/device.h"

namespace kvrun::testing {

class FailingDevice final : public Device {
 public:
  static constexpr std::string_view kMessage = "there is no memory left for a test";

  // It must outlive this one.
  explicit FailingDevice(Device& device) : device_(device) {}

  // The n-th allocation from now on, counted from 0: a buffer, constants, a matrix or a command list.
  void FailAt(uint64_t n) {
    has_failed_ = false;
    left_ = static_cast<int64_t>(n);
  }
  void FailNever() { left_ = -1; }
  bool has_failed() const { return has_failed_; }

  const DeviceInfo& info() const override { return device_.info(); }
  bool FitsKv(const KvShape& shape) const override { return device_.FitsKv(shape); }
  Result<std::unique_ptr<Buffer>> CreateBuffer(uint64_t size_bytes, BufferUse use,
                                               std::string_view part) override {
    KVRUN_RETURN_IF_ERROR(Allocate());
    return device_.CreateBuffer(size_bytes, use, part);
  }
  Result<std::unique_ptr<Buffer>> CreateConstants(std::span<const std::byte> bytes,
                                                  std::string_view part) override {
    KVRUN_RETURN_IF_ERROR(Allocate());
    return device_.CreateConstants(bytes, part);
  }
  Result<std::unique_ptr<Matrix>> CreateMatrix(TensorType type, uint32_t n_cols,
                                               std::span<const MatrixSource> sources) override {
    KVRUN_RETURN_IF_ERROR(Allocate());
    return device_.CreateMatrix(type, n_cols, sources);
  }
  Result<std::unique_ptr<CommandList>> CreateCommandList() override {
    KVRUN_RETURN_IF_ERROR(Allocate());
    return device_.CreateCommandList();
  }
  uint64_t AttendScratchBytes(const AttentionArgs& args) const override {
    return device_.AttendScratchBytes(args);
  }
  uint64_t AttendSlotsScratchBytes(const SlotAttentionArgs& args) const override {
    return device_.AttendSlotsScratchBytes(args);
  }
  uint64_t ScoreScratchBytes(const ScoreArgs& args) const override { return device_.ScoreScratchBytes(args); }
  Result<uint64_t> Submit(CommandList& list, uint64_t wait_host) override {
    return device_.Submit(list, wait_host);
  }
  uint64_t ReserveHostValues(uint32_t count) override { return device_.ReserveHostValues(count); }
  Status SignalHost(uint64_t value) override { return device_.SignalHost(value); }
  Status Wait(uint64_t value) override { return device_.Wait(value); }
  Result<uint64_t> Completed() override { return device_.Completed(); }
  Status DropUnusedKernels() override { return device_.DropUnusedKernels(); }
  std::vector<MemoryPart> MemoryInUse() const override { return device_.MemoryInUse(); }
  Status Download(const Buffer& from, uint64_t offset_bytes, std::span<std::byte> to) override {
    return device_.Download(from, offset_bytes, to);
  }
  Status Upload(std::span<const std::byte> from, Buffer* to, uint64_t offset_bytes) override {
    return device_.Upload(from, to, offset_bytes);
  }
  std::vector<OperationTime> TakeOperationTimes() override { return device_.TakeOperationTimes(); }

 private:
  Status Allocate() {
    if (left_ < 0 || left_-- > 0) return Status::Ok();
    has_failed_ = true;
    return {StatusCode::kOutOfMemory, std::string(kMessage)};
  }

  Device& device_;
  std::atomic<int64_t> left_ = -1;  // good ones before the one that fails; negative: none does
  std::atomic<bool> has_failed_ = false;
};

}  // namespace kvrun::testing
