// Two devices as one: one computes prompts (the prefill device: a GPU), the CPU decodes (the decode device),
// both in the same memory.
//
// Which of them carries a list out is decided by its first operation: with at most kMaxDecodeRows rows
// (tokens, entries, rows of logits) it is the decode device, else the prefill device. A batch's decoding step
// has one row for each sequence, a prompt's chunk up to 256. The whole list runs there.
//
// Buffers are the prefill device's, in memory that the CPU caches, and the decode device's by a view. When a
// list goes to another device than the one before it, Submit first waits for all that was submitted, and has
// the caches flushed or invalidated of what was written, where memory is not coherent. So whoever signals
// what the earlier lists wait for must be another thread, and must not wait for the list that is being
// submitted. Otherwise nothing is copied, and nothing waited for.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/device/host/host_device.h"
#include "runtime/device/pair/pair_memory.h"

namespace kvrun::pair {

// As many as sequences can be decoded together.
inline constexpr uint32_t kMaxDecodeRows = 16;

struct PairParts {
  std::unique_ptr<Device> prefill;
  std::unique_ptr<host::HostDevice> decode;
  // Of the prefill device.
  std::function<Result<SharedBuffer>(uint64_t size_bytes, BufferUse use, std::string_view part)> make_shared;
  std::vector<std::string> notes;  // for DeviceInfo::notes
  uint32_t max_decode_rows = kMaxDecodeRows;
};

class PairDevice : public Device {
 public:
  explicit PairDevice(PairParts parts);

  const DeviceInfo& info() const override { return info_; }
  Result<std::unique_ptr<Buffer>> CreateBuffer(uint64_t size_bytes, BufferUse use,
                                               std::string_view part) override;
  Result<std::unique_ptr<Buffer>> CreateConstants(std::span<const std::byte> bytes,
                                                  std::string_view part) override;
  Result<std::unique_ptr<Matrix>> CreateMatrix(TensorType type, uint32_t n_cols,
                                               std::span<const MatrixSource> sources) override;
  uint64_t AttendScratchBytes(const AttentionArgs& args) const override;
  uint64_t AttendSlotsScratchBytes(const SlotAttentionArgs& args) const override;
  uint64_t ScoreScratchBytes(const ScoreArgs& args) const override;
  Result<std::unique_ptr<CommandList>> CreateCommandList() override;
  Result<uint64_t> Submit(CommandList& list, uint64_t wait_host = 0) override;
  uint64_t ReserveHostValues(uint32_t count) override;
  Status SignalHost(uint64_t value) override;
  Status Wait(uint64_t value) override;
  Result<uint64_t> Completed() override;
  Status DropUnusedKernels() override;
  std::vector<MemoryPart> MemoryInUse() const override;
  std::vector<OperationTime> TakeOperationTimes() override;
  using Device::Download;
  Status Download(const Buffer& from, uint64_t offset_bytes, std::span<std::byte> to) override;
  Status Upload(std::span<const std::byte> from, Buffer* to, uint64_t offset_bytes) override;

  uint32_t max_decode_rows() const { return parts_.max_decode_rows; }
  Device& On(Side side) { return side == Side::kPrefill ? *parts_.prefill : *parts_.decode; }

 private:
  struct Submitted {
    uint64_t value;  // the pair's
    Side side;
    uint64_t side_value;
  };

  Result<std::unique_ptr<PairBuffer>> NewBuffer(uint64_t size_bytes, BufferUse use, std::string_view part);
  Status SwitchTo(Side side);

  PairParts parts_;
  DeviceInfo info_;
  std::shared_ptr<Coherence> coherence_ = std::make_shared<Coherence>();
  std::mutex submit_mutex_;  // held while a list is submitted, which may wait

  std::mutex mutex_;  // guards what follows; never held while waiting
  uint64_t last_value_ = 0;
  uint64_t waited_ = 0;
  // Ascending, after waited_. Of the side that comes last, all before the first of it are complete.
  std::vector<Submitted> submitted_;
};

}  // namespace kvrun::pair
