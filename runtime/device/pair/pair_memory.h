// Buffers and matrices of a pair of devices.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/device/host/host_device.h"

namespace kvrun::pair {

enum class Side : uint8_t { kPrefill, kDecode };

// A buffer of the prefill device, and its memory as the host sees it, whatever the use: aligned and with
// slack as the CPU's operations expect of theirs (runtime/device/host/host_device.h).
struct SharedBuffer {
  std::unique_ptr<Buffer> buffer;
  std::byte* bytes = nullptr;
};

class PairBuffer;

// What was written since work last went from one device to the other. Where memory is not coherent, the CPU's
// writes have to be flushed before the other device reads, and its writes invalidated before the CPU does.
// Thread-safe.
class Coherence {
 public:
  // The device that may write: the other has completed what it was given.
  Side side() const { return side_; }
  // A list that writes these starts.
  void NoteWritten(std::span<PairBuffer* const> buffers);
  // Everything that was submitted is complete.
  Status HandOver(Side to);
  // The buffer goes.
  void Forget(PairBuffer* buffer);

 private:
  std::atomic<Side> side_ = Side::kPrefill;
  std::mutex mutex_;
  std::vector<PairBuffer*> written_;  // by the device of side_
};

// One memory for both. The prefill device's buffer does what its use needs at that device's lists; Coherence
// does the rest.
class PairBuffer : public Buffer {
 public:
  PairBuffer(std::shared_ptr<Coherence> coherence, SharedBuffer shared, uint64_t size_bytes, BufferUse use);
  ~PairBuffer() override;
  PairBuffer(const PairBuffer&) = delete;
  PairBuffer& operator=(const PairBuffer&) = delete;

  std::span<std::byte> host() override { return IsOfDevice(use_) ? std::span<std::byte>{} : view_.host(); }
  Status Flush(uint64_t offset_bytes, uint64_t length_bytes) override;
  Status Invalidate(uint64_t offset_bytes, uint64_t length_bytes) override;

  Buffer* On(Side side) { return side == Side::kPrefill ? buffer_.get() : &view_; }
  const Buffer* On(Side side) const { return side == Side::kPrefill ? buffer_.get() : &view_; }

 private:
  friend class Coherence;

  std::shared_ptr<Coherence> coherence_;
  std::unique_ptr<Buffer> buffer_;
  host::HostBuffer view_;
  BufferUse use_;
  bool is_written_ = false;  // among the coherence's; under its mutex
};

// Each device packs weights in its own way: they are held twice.
class PairMatrix : public Matrix {
 public:
  PairMatrix(std::unique_ptr<Matrix> prefill, std::unique_ptr<Matrix> decode);

  uint64_t size_bytes() const override { return prefill_->size_bytes() + decode_->size_bytes(); }
  uint64_t row_product_bytes() const override { return decode_->row_product_bytes(); }
  const Matrix* On(Side side) const { return side == Side::kPrefill ? prefill_.get() : decode_.get(); }

 private:
  std::unique_ptr<Matrix> prefill_;
  std::unique_ptr<Matrix> decode_;
};

// Operands of the pair become one device's: its own buffers and matrices in place of the pair's; null stays
// null. `written`, if any, gets each buffer once that an operation may write.
class Translator : public OperandVisitor {
 public:
  explicit Translator(Side side, std::vector<PairBuffer*>* written = nullptr)
      : side_(side), written_(written) {}

  void Reads(const Buffer*& buffer) override;
  void Writes(Buffer*& buffer) override;
  void Multiplies(const Matrix*& matrix) override;

 private:
  Side side_;
  std::vector<PairBuffer*>* written_;
};

}  // namespace kvrun::pair
