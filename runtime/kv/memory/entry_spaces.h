// The spaces in which a cache's records hold entries (runtime/device/entry_space.h): of each layer, for each
// sequence, its mean keys and values. Until they are set, those of an adapter's file (Adapter::entry_means),
// or zeros; then fixed while the sequence has entries: all its records are in one space, so entries that were
// there before are shifted (RecordParts::SetMeans). Indexes and clusters see keys as they are: DecodeKeys.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/kv/plan/kv_plan.h"

namespace kvrun {

class EntrySpaces {
 public:
  // The first entries, whose keys are like no others, are in no mean.
  static constexpr uint32_t kLeftOut = 4;
  // Of fewer others no means are taken: these would say too little of those to come.
  static constexpr uint32_t kFewestEntries = 256;
  // More add nothing.
  static constexpr uint32_t kMostEntries = 2048;

  // Where records hold entries as they are: DecodeKeys does no more than decode.
  EntrySpaces() = default;
  static const EntrySpaces& None();
  // As the plan asks for, which must outlive it. `file_means`: Adapter::entry_means, or empty.
  static Result<EntrySpaces> Create(Device& device, const KvPlan& plan, uint32_t n_layers,
                                    std::span<const float> file_means = {});
  // Of all layers; where the plan has an adapter's file, its means too.
  static uint64_t MemoryBytes(const KvPlan& plan, uint32_t n_kv_heads, uint32_t n_layers);

  bool are_used() const { return !layers_.empty(); }
  // A layer's AttentionArgs::norms, float [2, head_dim].
  Status SetNorms(uint32_t layer, std::span<const float> norms);

  // Of SlotAttentionArgs.
  EntrySpace space(uint32_t layer) const;
  // Of EncodeRecords and DecodeRecords.
  EntrySpace space(uint32_t layer, uint32_t sequence) const;

  bool has_means(uint32_t layer, uint32_t sequence) const {
    return has_means_[size_t{layer} * n_sequences_ + sequence];
  }
  // What entries in records lose when the means become these, float [n_kv_heads, 2, head_dim]: H D times the
  // difference.
  std::vector<float> ShiftsTo(uint32_t layer, uint32_t sequence, std::span<const float> means) const;
  // What an average of rows in records is the average of, in place: [n_kv_heads, 2, head_dim].
  void TakeBack(uint32_t layer, uint32_t sequence, std::span<float> rows) const;
  // float [n_kv_heads, 2 (K, V), head_dim].
  Status SetMeans(uint32_t layer, uint32_t sequence, std::span<const float> means);
  Status VisitState(StateVisitor& visitor);
  // The sequence has no entries any more.
  Status Forget(uint32_t sequence);

  // The mean key of a stream of one KV head; empty where records hold entries as they are.
  std::span<const float> MeanKey(uint32_t layer, uint32_t stream) const;
  // As kvrun::DecodeKeys, of a record of a stream: keys as they were before they were stored.
  void DecodeKeys(uint32_t layer, uint32_t stream, const KvRecordShape& shape,
                  std::span<const std::byte> record, uint32_t row_stride, std::span<float> keys) const;

 private:
  struct Layer {
    std::unique_ptr<Buffer> constants;  // kShared: EntrySpace::constants
  };

  std::span<float> MeansOf(uint32_t layer, uint32_t sequence) const;
  Status SetUsual(uint32_t layer, uint32_t sequence);
  Status FlushMeans(uint32_t layer, uint32_t sequence) const;

  std::vector<Layer> layers_;
  std::vector<uint16_t> file_means_;  // f16 [n_layers, n_kv_heads, 2, head_dim], or empty
  std::vector<bool> has_means_;       // [n_layers, n_sequences]
  uint32_t n_sequences_ = 0;
  uint32_t n_kv_heads_ = 0;
  uint32_t head_dim_ = 0;
};

// Mean keys and values of entries, from records that hold them as they are.
class EntryMeans {
 public:
  EntryMeans(uint32_t n_kv_heads, uint32_t head_dim)
      : head_dim_(head_dim), sums_(size_t{2} * n_kv_heads * head_dim) {}

  // Of all heads: f16 or f32 records of shape.n_heads of them each, [n_kv_heads / shape.n_heads, n records].
  void Add(const KvRecordShape& shape, std::span<const std::byte> records);
  uint32_t n_entries() const { return n_entries_; }
  // [n_kv_heads, 2, head_dim].
  std::vector<float> Means() const;

 private:
  uint32_t head_dim_;
  uint32_t n_entries_ = 0;
  std::vector<double> sums_;
  std::vector<float> rows_;
};

}  // namespace kvrun
