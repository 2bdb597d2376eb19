// A short prompt after a long text, such as a question about a document: its rows choose together which
// groups of what was there before they attend to, by the index, and only those are read. Their own entries
// and the window they attend to as any prompt does. Rows of the prompt see the choice of all: more than each
// alone.
//
// What is selected of a layer lies in one tile, side by side: entries have *places* there. Say that groups 3
// and 7 are selected, of 4 entries each, and that the window begins with entry 100: places 0 to 7 hold
// entries 12 to 15 and 28 to 31, place 8 holds entry 100, and 92 entries are left out.
//
// What is chosen is read by another thread. Where the method looks a layer ahead, a layer is chosen for
// before the one in front of it is computed, and read meanwhile; else it is read while that one's entries are
// indexed.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/engine/offloaded/layer_tiles.h"
#include "runtime/engine/offloaded/prompt_store.h"
#include "runtime/engine/pass/forward_pass.h"
#include "runtime/engine/pass/layer_states.h"
#include "runtime/engine/pass/step_commands.h"
#include "runtime/kv/serve/prompt_records.h"

namespace kvrun {

// Whether a prompt selects: its method, its length and the plan's times (KvPlan::flash_times) say so. `cache`
// has what is there before it.
bool SelectsEarlier(const PromptRecords& cache, const KvRange& prompt);

class SelectedPrefill final : public LayerTiles {
 public:
  // For one prompt, while `cache` is in its prefill phase; all must outlive it. Null: the plan has no memory
  // for what would have to be selected.
  static Result<std::unique_ptr<SelectedPrefill>> Create(Device& device, StepCommands& commands,
                                                         PromptRecords& cache, const LayerStates& states,
                                                         const KvRange& prompt);

  // `store` has begun with this prompt and these tiles. Hidden states stay in the commands' own buffer.
  Status Run(std::span<const StepRow> rows, const StepProgress& progress, PromptStore& store);
  // The share that was selected of what lay before the window, of all layers.
  double selected_share() const;

  const KvTiling& tiling() const override { return tiling_; }
  Buffer* kv(uint32_t /*tile*/) const override { return tile_.get(); }
  std::span<const uint32_t> selected() const override { return selected_; }
  Result<bool> Show(uint32_t /*tile*/, const TilePlanes& /*planes*/) override { return true; }

 private:
  SelectedPrefill(Device& device, StepCommands& commands, PromptRecords& cache, const LayerStates& states,
                  const KvRange& prompt);

  // What attention to the tile and the choice take.
  struct Sizes {
    uint64_t attention = 0;
    uint64_t scores = 0;
    uint64_t chosen = 0;
    uint64_t records = 0;
  };
  Sizes BufferSizes() const;
  // Whether there is room for the tile and so many rows that choose.
  bool SettleTile(Sizes* sizes);
  Status CreateBuffers(const Sizes& sizes);
  StepPlace choosing_place() const;
  ScoreArgs Score(uint32_t layer) const;
  void WriteChoosingRows(std::span<const StepRow> rows);
  Status RunKvLayer(uint32_t model_layer, std::span<const StepRow> rows, PromptStore& store);
  Status RunStateLayer(uint32_t model_layer, std::span<const StepRow> rows, PromptStore& store);
  // The choice of a layer, where that keeps KV, by what goes into the layer that is to be computed next.
  Status RecordChoice(CommandList& list, uint32_t model_layer);
  // Executes a layer's list, with what comes after it.
  Status Execute(CommandList& list);
  Status RunLayers(std::span<const StepRow> rows, const StepProgress& progress, PromptStore& store);
  // The choice of a layer was computed: what it has chosen is read by another thread, until EndReading.
  Status BeginReading(uint32_t layer, PromptStore& store);
  // It was read, and is what is selected.
  Status EndReading(uint32_t layer, PromptStore& store);
  // A layer's entries go to the store and the index.
  Status KeepLayer(uint32_t model_layer, PromptStore& store);
  // Of the layer whose choice was computed, ascending.
  Result<std::vector<uint32_t>> Selected(uint32_t layer) const;
  // Groups that rows have chosen, those with the largest sums of scores, in any order; at most so many.
  Result<std::vector<uint32_t>> BestChosen(uint32_t layer, size_t most) const;
  bool looks_ahead() const { return cache_.plan().method.lookahead > 0; }
  uint32_t KvLayerOf(uint32_t model_layer) const;    // the first one from there on
  bool KeepsGrowingKv(uint32_t model_layer) const {  // false behind the last one
    const ModelConfig& config = commands_.config();
    return model_layer < config.n_layers && config.layers[model_layer].keeps_growing_kv();
  }
  uint32_t window_begin() const {
    return cache_.FirstWindowGroup(prompt_.begin) * cache_.plan().record.group_tokens;
  }
  uint32_t n_rows() const { return prompt_.end - prompt_.begin; }

  Device& device_;
  StepCommands& commands_;
  PromptRecords& cache_;
  const LayerStates& states_;
  KvRange prompt_;
  uint32_t n_choosing_;       // rows that ask the index: some of the prompt's, evenly spaced, and the last
  uint32_t most_groups_ = 0;  // of before the window, in a layer
  std::vector<LayerStates::Saving> savings_;
  KvTiling tiling_;
  std::vector<uint32_t> selected_;  // of the layer
  uint64_t n_selected_ = 0;
  std::unique_ptr<Buffer> tile_;     // K and V of one layer
  std::unique_ptr<Buffer> records_;  // kShared, of the next one (PromptStore::ReadAhead); null: no room
  std::unique_ptr<Buffer> scratch_;  // of attention
  // Of the rows that choose.
  StepInputs inputs_;
  std::unique_ptr<Buffer> hidden_;  // float [n_choosing_, n_embd]
  std::unique_ptr<Buffer> normed_;  // the same
  std::unique_ptr<Buffer> query_;   // float [n_choosing_, q_dim]
  std::unique_ptr<Buffer> score_scratch_;
  std::unique_ptr<Buffer> chosen_;  // kShared, [n_choosing_] lists
  std::vector<StepRow> tile_rows_;
  std::vector<uint32_t> next_selected_;  // of the layer that is read
  std::future<Status> reading_;
};

}  // namespace kvrun
