#include "runtime/device/pair/pair_memory.h"

#include <algorithm>
#include <utility>

namespace kvrun::pair {

void Coherence::NoteWritten(std::span<PairBuffer* const> buffers) {
  const std::lock_guard lock(mutex_);
  for (PairBuffer* buffer : buffers) {
    if (std::exchange(buffer->is_written_, true)) continue;
    written_.push_back(buffer);
  }
}

Status Coherence::HandOver(Side to) {
  const std::lock_guard lock(mutex_);
  for (PairBuffer* buffer : written_) {
    Buffer& memory = *buffer->buffer_;
    KVRUN_RETURN_IF_ERROR(to == Side::kPrefill ? memory.Flush(0, memory.size_bytes())
                                               : memory.Invalidate(0, memory.size_bytes()));
  }
  for (PairBuffer* buffer : written_) buffer->is_written_ = false;
  written_.clear();
  side_ = to;
  return Status::Ok();
}

void Coherence::Forget(PairBuffer* buffer) {
  const std::lock_guard lock(mutex_);
  if (buffer->is_written_) std::erase(written_, buffer);
}

PairBuffer::PairBuffer(std::shared_ptr<Coherence> coherence, SharedBuffer shared, uint64_t size_bytes,
                       BufferUse use)
    : Buffer(size_bytes),
      coherence_(std::move(coherence)),
      buffer_(std::move(shared.buffer)),
      view_(std::span(shared.bytes, size_bytes)),
      use_(use) {}

PairBuffer::~PairBuffer() { coherence_->Forget(this); }

Status PairBuffer::Flush(uint64_t offset_bytes, uint64_t length_bytes) {
  return buffer_->Flush(offset_bytes, length_bytes);
}

// While the CPU computes, what it wrote is not in memory yet: taking memory's content would lose it.
Status PairBuffer::Invalidate(uint64_t offset_bytes, uint64_t length_bytes) {
  if (coherence_->side() == Side::kDecode) return Status::Ok();
  return buffer_->Invalidate(offset_bytes, length_bytes);
}

PairMatrix::PairMatrix(std::unique_ptr<Matrix> prefill, std::unique_ptr<Matrix> decode)
    : Matrix(prefill->type(), prefill->n_rows(), prefill->n_cols()),
      prefill_(std::move(prefill)),
      decode_(std::move(decode)) {}

void Translator::Reads(const Buffer*& buffer) {
  if (buffer != nullptr) buffer = static_cast<const PairBuffer*>(buffer)->On(side_);
}

void Translator::Writes(Buffer*& buffer) {
  if (buffer == nullptr) return;
  auto* pair = static_cast<PairBuffer*>(buffer);
  if (written_ != nullptr && std::find(written_->begin(), written_->end(), pair) == written_->end()) {
    written_->push_back(pair);
  }
  buffer = pair->On(side_);
}

void Translator::Multiplies(const Matrix*& matrix) {
  if (matrix != nullptr) matrix = static_cast<const PairMatrix*>(matrix)->On(side_);
}

}  // namespace kvrun::pair
