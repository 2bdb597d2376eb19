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

const Buffer* Translator::operator()(const Buffer* buffer) const {
  return buffer == nullptr ? nullptr : static_cast<const PairBuffer*>(buffer)->On(side_);
}

Buffer* Translator::operator()(Buffer* buffer) const {
  if (buffer == nullptr) return nullptr;
  auto* pair = static_cast<PairBuffer*>(buffer);
  if (written_ != nullptr && std::find(written_->begin(), written_->end(), pair) == written_->end()) {
    written_->push_back(pair);
  }
  return pair->On(side_);
}

const Matrix* Translator::operator()(const Matrix* matrix) const {
  return matrix == nullptr ? nullptr : static_cast<const PairMatrix*>(matrix)->On(side_);
}

MatMulArgs Translator::operator()(const MatMulArgs& args) const {
  MatMulArgs own = args;
  own.weight = (*this)(args.weight);
  own.input = (*this)(args.input);
  own.output = (*this)(args.output);
  own.bias = (*this)(args.bias);
  return own;
}

AttentionArgs Translator::operator()(const AttentionArgs& args) const {
  AttentionArgs own = args;
  own.qkv = (*this)(args.qkv);
  own.step = (*this)(args.step);
  own.kv = (*this)(args.kv);
  own.angles = (*this)(args.angles);
  own.norms = (*this)(args.norms);
  own.output = (*this)(args.output);
  own.scratch = (*this)(args.scratch);
  own.parts_after.buffer = (*this)(args.parts_after.buffer);
  const Buffer* before = args.parts_before.buffer;  // read alone
  own.parts_before.buffer = const_cast<Buffer*>((*this)(before));
  return own;
}

EntrySpace Translator::operator()(const EntrySpace& space) const {
  return {(*this)(space.constants), space.means_begin};
}

SlotAttentionArgs Translator::operator()(const SlotAttentionArgs& args) const {
  SlotAttentionArgs own = args;
  own.attention = (*this)(args.attention);
  own.space = (*this)(args.space);
  for (SlotSource& source : std::span(own.sources).first(own.n_sources)) {
    source.slots = (*this)(source.slots);
    source.table = (*this)(source.table);
    source.mass = (*this)(source.mass);
  }
  return own;
}

IndexSides Translator::operator()(const IndexSides& sides) const {
  return {.are_halves = sides.are_halves,
          .query_side = (*this)(sides.query_side),
          .key_side = (*this)(sides.key_side),
          .bias = (*this)(sides.bias),
          .scales = (*this)(sides.scales)};
}

ScoreArgs Translator::operator()(const ScoreArgs& args) const {
  ScoreArgs own = args;
  own.query = (*this)(args.query);
  own.attention = (*this)(args.attention);
  own.sides = (*this)(args.sides);
  own.index = (*this)(args.index);
  own.weights = (*this)(args.weights);
  own.scratch = (*this)(args.scratch);
  own.chosen = (*this)(args.chosen);
  return own;
}

GramArgs Translator::operator()(const GramArgs& args) const {
  GramArgs own = args;
  own.rows = (*this)(args.rows);
  own.sums = (*this)(args.sums);
  return own;
}

RowMassArgs Translator::operator()(const RowMassArgs& args) const {
  RowMassArgs own = args;
  own.queries = (*this)(args.queries);
  own.step = (*this)(args.step);
  own.kv = (*this)(args.kv);
  own.sums = (*this)(args.sums);
  own.mass = (*this)(args.mass);
  return own;
}

}  // namespace kvrun::pair
