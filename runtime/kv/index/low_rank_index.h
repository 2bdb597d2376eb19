// An index of keys projected by adapters: a row of `rank` columns for every entry.
// Source: KVSwap, section 3.2; docs/methods/kvswap.md says when adapters are made.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "runtime/kv/contracts/kv_index.h"
#include "runtime/kv/index/index_rows.h"
#include "runtime/kv/plan/kv_plan.h"

namespace kvrun {

class LowRankIndex final : public KvIndex {
 public:
  // The plan must outlive it.
  static Result<std::unique_ptr<LowRankIndex>> Create(Device& device, const KvPlan& plan, uint32_t n_layers);

  void FillScore(uint32_t layer, ScoreArgs* args) const override;
  bool takes_keys() const override { return true; }
  Status NoteKeys(uint32_t layer, uint32_t sequence, uint32_t group, std::span<const float> keys) override;

  // Their rows are those of a mean key: 0. Where adapters take no mean off that would be a key like no other,
  // and where each KV head of a sequence selects a row is of them all: these stay.
  Status TakeOut(uint32_t layer, uint32_t stream, uint32_t group, std::span<const std::byte> record,
                 std::span<const uint32_t> entries) override;

  bool is_ready() const override { return is_ready_; }
  uint32_t min_entries_to_learn() const override { return n_sinks() + 2 * plan_.index.rank; }
  Status Learn(uint32_t layer, const LayerSums& sums) override;
  void ForgetLearned() override {
    learned_.reset();
    learned_scales_.reset();
  }
  void NoteReady() override { is_ready_ = true; }
  Status PrepareBlank(uint32_t layer) override;
  Status LearnFromStored(uint32_t sequence, StoredKeys& stored) override;
  Status IndexPrompt(uint32_t layer, const KvRange& prompt, PromptKeys& keys, StoredKeys& stored) override;
  Status VisitState(StateVisitor& visitor, std::span<const uint32_t> lengths) override;
  Status FillAtRandom(uint32_t layer, uint32_t sequence, uint32_t n, Random& random) override;

  // Takes a layer's adapter, for instance from a file.
  Status SetAdapter(uint32_t layer, const LayerAdapter& adapter);
  // One for all layers.
  Status SetCommonAdapter(const LayerAdapter& adapter);
  const IndexSides& sides(uint32_t layer) const { return layers_[layer].sides; }
  Buffer* rows(uint32_t layer) const { return layers_[layer].rows.get(); }

 private:
  // What rows were before they were taken out.
  struct TakenOut {
    std::vector<uint32_t> positions;
    std::vector<uint16_t> rows;  // [positions, rank]
  };
  struct Layer {
    std::unique_ptr<Buffer> rows;      // kShared, IndexShape
    std::unique_ptr<Buffer> scales;    // kShared, float [n_sequences, rank]
    std::unique_ptr<Buffer> key_side;  // kShared, as NoteKeys reads it
    std::unique_ptr<Buffer> query_side;
    std::unique_ptr<Buffer> bias;  // kShared
    IndexSides sides;
    std::span<const uint16_t> key_side_values;  // f16 [key_dim, rank]: the layer's own, or what all share
    std::span<const float> bias_values;         // float [rank]
    std::vector<TakenOut> taken_out;            // of each sequence
  };

  LowRankIndex(Device& device, const KvPlan& plan, uint32_t n_layers)
      : device_(device),
        plan_(plan),
        layers_(n_layers),
        projected_(size_t{plan.record.group_tokens} * plan.index.rank),
        side_row_(plan.index.rank) {}

  Status CreateBuffers();
  Status SetSides(uint32_t layer, std::span<const uint16_t> key_side, std::span<const uint16_t> query_side,
                  std::span<const float> bias);
  Status VisitSides(StateVisitor& visitor, uint32_t layer);
  Status VisitRows(StateVisitor& visitor, uint32_t layer, uint32_t sequence, uint32_t length);
  // From projected keys of a sequence: the index's column scales, sinks left out. Only where rows are
  // quantised.
  Status SetScales(uint32_t layer, uint32_t sequence, std::span<const float> column_scales);
  // Quantises projected keys of entries `begin` on.
  Status WriteRows(uint32_t layer, uint32_t sequence, uint32_t begin, std::span<const float> projected);
  Result<LayerAdapter> ComputeFromStored(uint32_t layer, uint32_t sequence, StoredKeys& stored) const;
  // All entries of the sequence, with scales that suit them. `smallest_scales`: float [rank], or empty where
  // there are more entries than sinks.
  Status IndexStored(uint32_t layer, uint32_t sequence, const LayerAdapter& adapter,
                     std::span<const float> smallest_scales, StoredKeys& stored);
  // `adapter` is new, of `sequence`, whose scales are set: the rows of all other sequences' entries.
  Status IndexOthers(uint32_t layer, uint32_t sequence, const LayerAdapter& adapter, StoredKeys& stored);

  std::span<uint32_t> WordsOf(const Layer& layer, uint32_t sequence) const;
  std::span<const float> ScalesOf(const Layer& layer, uint32_t sequence) const;
  void PutBack(uint32_t group, std::span<uint32_t> words, TakenOut& taken_out) const;
  Status PutAllBack(uint32_t layer_index, uint32_t sequence);
  // Rows are written anew.
  void ForgetTakenOut(uint32_t layer, uint32_t sequence) { layers_[layer].taken_out[sequence] = {}; }

  uint32_t key_dim() const { return plan_.key_dim(); }
  uint32_t n_sinks() const { return plan_.choice.n_pinned * plan_.record.group_tokens; }

  Device& device_;
  const KvPlan& plan_;
  std::vector<Layer> layers_;
  std::vector<float> projected_;  // of NoteKeys
  std::vector<float> side_row_;   // of NoteKeys: [rank]
  // Of the layer that is prefilled, until its rows are there: the adapter, and what the prompt's keys say of
  // int4 rows' scales.
  std::optional<LayerAdapter> learned_;
  std::optional<ColumnScales> learned_scales_;
  bool is_ready_ = false;
  bool is_common_ = false;  // SetCommonAdapter
};

}  // namespace kvrun
