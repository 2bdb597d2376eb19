#include "runtime/kv/memory/entry_spaces.h"

#include <algorithm>

#include "platform/base/check.h"
#include "runtime/device/entry_space.h"
#include "runtime/device/record_codec.h"
#include "runtime/kv/memory/host_buffer.h"
#include "runtime/model/half_float.h"

namespace kvrun {
namespace {

uint64_t ConstantsBytes(uint32_t n_sequences, uint32_t n_kv_heads, uint32_t head_dim) {
  return (uint64_t{n_sequences} * n_kv_heads + 1) * 2 * head_dim * sizeof(float);
}

}  // namespace

const EntrySpaces& EntrySpaces::None() {
  static const EntrySpaces none;
  return none;
}

uint64_t EntrySpaces::MemoryBytes(const KvPlan& plan, uint32_t n_kv_heads, uint32_t n_layers) {
  const uint64_t file_bytes =
      plan.adapter.is_from_file ? uint64_t{n_kv_heads} * 2 * plan.record.head_dim * sizeof(uint16_t) : 0;
  return n_layers * (ConstantsBytes(plan.n_sequences, n_kv_heads, plan.record.head_dim) + file_bytes);
}

Result<EntrySpaces> EntrySpaces::Create(Device& device, const KvPlan& plan, uint32_t n_layers,
                                        std::span<const float> file_means) {
  EntrySpaces spaces;
  if (!plan.rotates) return spaces;
  spaces.n_sequences_ = plan.n_sequences;
  spaces.head_dim_ = plan.record.head_dim;
  spaces.n_kv_heads_ = plan.key_dim() / plan.record.head_dim;
  spaces.has_means_.resize(size_t{n_layers} * plan.n_sequences);
  const uint64_t bytes = ConstantsBytes(plan.n_sequences, spaces.n_kv_heads_, spaces.head_dim_);
  for (uint32_t i = 0; i < n_layers; ++i) {
    Layer layer;
    KVRUN_ASSIGN_OR_RETURN(layer.constants, device.CreateBuffer(bytes, BufferUse::kShared, "kv"));
    spaces.layers_.push_back(std::move(layer));
  }
  spaces.file_means_.resize(file_means.size());
  std::transform(file_means.begin(), file_means.end(), spaces.file_means_.begin(), FloatToHalf);
  for (uint32_t i = 0; !file_means.empty() && i < n_layers * plan.n_sequences; ++i) {
    KVRUN_RETURN_IF_ERROR(spaces.SetUsual(i / plan.n_sequences, i % plan.n_sequences));
  }
  return spaces;
}

Status EntrySpaces::SetNorms(uint32_t layer, std::span<const float> norms) {
  KVRUN_CHECK(norms.size() == size_t{2} * head_dim_);
  Buffer& constants = *layers_[layer].constants;
  std::copy(norms.begin(), norms.end(), Floats(constants).begin());
  return constants.Flush(0, norms.size_bytes());
}

EntrySpace EntrySpaces::space(uint32_t layer) const {
  return are_used() ? EntrySpace::OfSequences(layers_[layer].constants.get(), head_dim_) : EntrySpace();
}

EntrySpace EntrySpaces::space(uint32_t layer, uint32_t sequence) const {
  return are_used() ? space(layer).OfSequence(sequence, n_kv_heads_, head_dim_) : EntrySpace();
}

std::span<float> EntrySpaces::MeansOf(uint32_t layer, uint32_t sequence) const {
  const size_t of_sequence = size_t{n_kv_heads_} * 2 * head_dim_;
  return Floats(*layers_[layer].constants).subspan(space(layer, sequence).means_begin, of_sequence);
}

Status EntrySpaces::FlushMeans(uint32_t layer, uint32_t sequence) const {
  return layers_[layer].constants->Flush(space(layer, sequence).means_begin * sizeof(float),
                                         MeansOf(layer, sequence).size_bytes());
}

std::vector<float> EntrySpaces::ShiftsTo(uint32_t layer, uint32_t sequence,
                                         std::span<const float> means) const {
  std::vector<float> shifts(means.begin(), means.end());
  const std::span<const float> before = MeansOf(layer, sequence);
  for (size_t at = 0; at < shifts.size(); at += head_dim_) {
    IntoSpace(before.subspan(at, head_dim_), std::span(shifts).subspan(at, head_dim_));
  }
  return shifts;
}

void EntrySpaces::TakeBack(uint32_t layer, uint32_t sequence, std::span<float> rows) const {
  const std::span<const float> means = MeansOf(layer, sequence);
  for (size_t at = 0; at < rows.size(); at += head_dim_) {
    OutOfSpace(means.subspan(at, head_dim_), rows.subspan(at, head_dim_));
  }
}

Status EntrySpaces::SetMeans(uint32_t layer, uint32_t sequence, std::span<const float> means) {
  KVRUN_CHECK(means.size() == MeansOf(layer, sequence).size());
  std::copy(means.begin(), means.end(), MeansOf(layer, sequence).begin());
  has_means_[size_t{layer} * n_sequences_ + sequence] = true;
  return FlushMeans(layer, sequence);
}

Status EntrySpaces::VisitState(StateVisitor& visitor) {
  enum Item : uint16_t { kHasMeans, kMeans };
  if (!are_used()) return Status::Ok();
  KVRUN_RETURN_IF_ERROR(visitor.Flags({StatePart::kSpaces, kHasMeans}, &has_means_));
  for (uint32_t layer = 0; layer < layers_.size(); ++layer) {
    for (uint32_t sequence = 0; sequence < n_sequences_; ++sequence) {
      KVRUN_RETURN_IF_ERROR(
          visitor.Array({StatePart::kSpaces, kMeans, layer, sequence}, MeansOf(layer, sequence)));
      if (visitor.is_loading()) KVRUN_RETURN_IF_ERROR(FlushMeans(layer, sequence));
    }
  }
  return Status::Ok();
}

Status EntrySpaces::Forget(uint32_t sequence) {
  for (uint32_t layer = 0; layer < layers_.size(); ++layer) {
    if (has_means(layer, sequence)) KVRUN_RETURN_IF_ERROR(SetUsual(layer, sequence));
  }
  return Status::Ok();
}

// Before a sequence has its own.
Status EntrySpaces::SetUsual(uint32_t layer, uint32_t sequence) {
  const std::span<float> means = MeansOf(layer, sequence);
  if (file_means_.empty()) {
    std::fill(means.begin(), means.end(), 0.0F);
  } else {
    const auto first = file_means_.begin() + static_cast<std::ptrdiff_t>(layer * means.size());
    std::transform(first, first + static_cast<std::ptrdiff_t>(means.size()), means.begin(), HalfToFloat);
  }
  has_means_[size_t{layer} * n_sequences_ + sequence] = false;
  return FlushMeans(layer, sequence);
}

std::span<const float> EntrySpaces::MeanKey(uint32_t layer, uint32_t stream) const {
  if (!are_used()) return {};
  return MeansOf(layer, stream / n_kv_heads_)
      .subspan(size_t{stream} % n_kv_heads_ * 2 * head_dim_, head_dim_);
}

void EntrySpaces::DecodeKeys(uint32_t layer, uint32_t stream, const KvRecordShape& shape,
                             std::span<const std::byte> record, uint32_t row_stride,
                             std::span<float> keys) const {
  kvrun::DecodeKeys(shape, record, row_stride, keys);
  if (!are_used()) return;
  const uint32_t streams = n_kv_heads_ / shape.n_heads;  // of a sequence
  const std::span<const float> means = MeansOf(layer, stream / streams);
  for (uint32_t head = 0; head < shape.n_heads; ++head) {
    const size_t plane = (size_t{stream % streams} * shape.n_heads + head) * 2;
    for (uint32_t entry = 0; entry < shape.group_tokens; ++entry) {
      OutOfSpace(means.subspan(plane * head_dim_, head_dim_),
                 keys.subspan(size_t{entry} * row_stride + size_t{head} * head_dim_, head_dim_));
    }
  }
}

void EntryMeans::Add(const KvRecordShape& shape, std::span<const std::byte> records) {
  const auto n_kv_heads = static_cast<uint32_t>(sums_.size() / 2 / head_dim_);
  const uint64_t streams = n_kv_heads / shape.n_heads;
  const uint64_t n = records.size() / shape.size_bytes() / streams;
  const uint32_t row = shape.n_heads * head_dim_;
  rows_.resize(size_t{shape.group_tokens} * row);
  for (uint64_t i = 0; i < streams * n; ++i) {
    const std::span<const std::byte> record = records.subspan(i * shape.size_bytes(), shape.size_bytes());
    for (const bool is_value : {false, true}) {
      (is_value ? DecodeValues : kvrun::DecodeKeys)(shape, record, row, rows_);
      for (uint32_t head = 0; head < shape.n_heads; ++head) {
        const size_t plane = 2 * (i / n * shape.n_heads + head) + (is_value ? 1 : 0);
        double* const sums = sums_.data() + plane * head_dim_;
        for (uint32_t entry = 0; entry < shape.group_tokens; ++entry) {
          const float* const values = rows_.data() + size_t{entry} * row + size_t{head} * head_dim_;
          for (uint32_t d = 0; d < head_dim_; ++d) sums[d] += values[d];
        }
      }
    }
  }
  n_entries_ += static_cast<uint32_t>(n * shape.group_tokens);
}

std::vector<float> EntryMeans::Means() const {
  std::vector<float> means(sums_.size());
  std::transform(sums_.begin(), sums_.end(), means.begin(),
                 [this](double sum) { return static_cast<float>(sum / n_entries_); });
  return means;
}

}  // namespace kvrun
