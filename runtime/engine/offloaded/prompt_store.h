// Where a prompt's entries go: whole groups to the store as records, the newest to the window, and what the
// index makes of them. Also brings entries of earlier turns back to where a prompt attends to them.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/engine/offloaded/layer_tiles.h"
#include "runtime/engine/offloaded/prefill_sink.h"
#include "runtime/engine/pass/layer_sums.h"
#include "runtime/engine/pass/row_mass.h"
#include "runtime/engine/pass/step_commands.h"
#include "runtime/kv/contracts/kv_index.h"
#include "runtime/kv/planner/kv_plan_sizes.h"
#include "runtime/kv/serve/prompt_records.h"

namespace kvrun {

class PromptStore final : public PrefillSink, public PromptKeys, public PromptEntries {
 public:
  // For one prompt: `cache` is in its prefill phase. Both must outlive it.
  static Result<std::unique_ptr<PromptStore>> Create(Device& device, const StepCommands& commands,
                                                     PromptRecords& cache);

  // What follows is about these entries, which lie in `tiles`: it must outlive all calls about layers.
  void Begin(const KvRange& prompt, LayerTiles& tiles);

  Status BeginLayer(uint32_t layer) override;
  Status LoadEarlier(uint32_t layer, uint32_t tile, Buffer* to) override;
  // For LoadSelected: of selected groups (ascending), as many of those that lie on flash as there is room
  // for, from the first on. `records`: kShared, [streams of the sequence, groups]; null: there is room for
  // none. Another thread may do it while Index runs, but nothing else of this.
  Status ReadAhead(uint32_t layer, std::span<const uint32_t> selected, Buffer* records);
  // The layer's tile, of which selected groups (LayerTiles::selected) are the first, then comes what the
  // window holds of before the prompt. What ReadAhead has read is not read again.
  Status LoadSelected(uint32_t layer, std::span<const uint32_t> selected, const Buffer* records, Buffer* to);
  void ChooseTapped(uint32_t first, uint32_t n_rows, std::vector<uint32_t>* tapped) override;
  Status Tap(CommandList& list, const TappedChunk& chunk) override;
  Status EndTap(uint32_t first, std::span<const uint32_t> tapped) override;
  Status NoteSums(uint32_t layer) override { return learns() ? Learn(layer) : Status::Ok(); }
  Status StoreTile(uint32_t layer, uint32_t tile) override;
  Status Project(uint32_t begin, const IndexSides& sides, uint32_t rank, const ProjectedFn& visit) override;

  Status VisitRecords(uint32_t head, uint32_t begin, uint32_t end, Want want,
                      const RecordsFn& visit) override;
  uint32_t n_queries() const override {
    return static_cast<uint32_t>(queries_.size() / commands_.config().q_dim());
  }
  std::span<const float> queries() const override { return queries_; }
  Status Mass(const MassForm& form, uint32_t end, Rows rows, std::span<float> mass) override;
  Observed observed() const override { return {n_queries(), observed_stride_}; }

  // The index is to learn from this prompt: it has enough entries.
  bool learns() const {
    return takes_sums() && prompt_.end - prompt_.begin >= index()->min_entries_to_learn();
  }
  // The layer's tiles are stored: the index learns from what Tap summed up, and takes the entries in.
  Status Index(uint32_t layer);
  // The same with sums from elsewhere.
  Status LearnAndIndex(uint32_t layer, const LayerSums& sums);
  Status IndexOnly(uint32_t layer);
  // All layers are there.
  Status End();

  // A layer's entries are divided into clusters when all of it is there.
  bool divides() const { return cache_.stores_layers(); }
  // What attention its last rows give to each entry is of use when a layer is there.
  bool observes() const { return cache_.observes(); }
  // Whether sums over the prompt are of use.
  bool takes_sums() const { return index() != nullptr && !index()->is_ready(); }

 private:
  PromptStore(Device& device, const StepCommands& commands, PromptRecords& cache)
      : device_(device), commands_(commands), cache_(cache) {}

  Status CreateBuffers();
  // From what Tap summed up.
  Status Learn(uint32_t layer);
  Status ChooseStatics(uint32_t layer);
  uint32_t most_queries() const;
  // Groups of a tile that are to be encoded, of the first n_heads KV heads.
  struct Groups {
    uint32_t tile = 0;
    uint32_t first = 0;
    uint32_t n = 0;
    uint32_t n_heads = 0;
  };
  Groups AllHeads(uint32_t tile, uint32_t first, uint32_t n) const { return {tile, first, n, n_kv_heads()}; }
  // Records that the device makes in the buffer of a turn. The list runs until EndEncoding, or a wait for its
  // value: it must not go before.
  struct Encoding {
    Groups groups;
    std::unique_ptr<CommandList> list;
    uint64_t value = 0;  // of the device
  };
  Result<Encoding> BeginEncoding(const Groups& groups, const KvRecordShape& shape, const EntrySpace& space,
                                 uint32_t turn);
  Result<std::span<const std::byte>> EndEncoding(const Encoding& encoding, const KvRecordShape& shape,
                                                 uint32_t turn);
  Result<std::span<const std::byte>> Encode(const Groups& groups, const KvRecordShape& shape,
                                            const EntrySpace& space);
  // Of pieces of groups, in order, their records: [streams of these heads, n], valid until it returns.
  using EncodedFn = std::function<Status(const Groups& piece, std::span<const std::byte> records)>;
  Status VisitEncoded(const Groups& groups, const KvRecordShape& shape, const EntrySpace& space,
                      const EncodedFn& visit);
  // The first of groups, as many as a turn has.
  Groups FirstOf(const Groups& groups) const;
  Status ProjectTile(uint32_t tile, uint32_t begin, uint32_t end, const IndexSides& sides, uint32_t rank,
                     const ProjectedFn& visit);
  EntrySpace SpaceOf(uint32_t layer) const { return cache_.spaces().space(layer, prompt_.sequence); }
  Status SetMeans(uint32_t layer, uint32_t tile);
  Status KeepExact(uint32_t layer, uint32_t tile, uint32_t first, uint32_t end);

  // Of selected groups those that ReadAhead reads.
  std::span<const uint32_t> ReadAheadOf(std::span<const uint32_t> selected, const Buffer* records) const;
  uint32_t n_exact_groups() const {
    return std::min(plan().window.n_exact_groups, cache_.FirstWindowGroup(prompt_.begin));
  }
  // The first group has the place `first`.
  Status LoadGroups(uint32_t layer, std::span<const uint32_t> groups, uint32_t first, const KvShape& shape,
                    Buffer* to);
  Status ReadRecords(uint32_t layer, std::span<const uint32_t> groups, bool of_window, Buffer& to);
  Status Show(uint32_t tile, const TilePlanes& planes);
  // Mass, where entries are counted as they lie in tiles.
  Status MassOfPlaces(const MassForm& form, uint32_t end, Rows rows, std::span<float> mass);
  uint32_t PositionOf(uint32_t place) const;
  // Of all heads, while nothing else is shown.
  Result<RowMass::Keys> KeysOf(uint32_t tile);
  uint32_t n_tiles() const { return tiling().tile_of(prompt_.end - 1) + 1; }
  const KvTiling& tiling() const { return tiles_->tiling(); }
  KvIndex* index() const { return cache_.index(); }
  const KvPlan& plan() const { return cache_.plan(); }
  uint32_t heads() const { return plan().heads_per_sequence(); }
  uint32_t n_sinks() const { return plan().choice.n_pinned * plan().record.group_tokens; }
  uint32_t n_kv_heads() const { return tiling().first.n_kv_heads; }

  Device& device_;
  const StepCommands& commands_;
  PromptRecords& cache_;
  KvRange prompt_;
  uint32_t layer_ = 0;
  LayerTiles* tiles_ = nullptr;
  uint32_t shown_tile_ = 0;  // of the layer, whose buffer holds shown_; 0: none's
  TilePlanes shown_;
  std::array<std::unique_ptr<Buffer>, kRecordTurns> records_;     // kShared, [RecordsAtOnce] of all heads
  std::array<std::unique_ptr<Buffer>, kProjectTurns> projected_;  // kShared, float [ProjectedRows, rank]
  std::optional<LayerSumBuffers> sums_;
  bool has_learned_ = false;        // the layer, from its sums
  std::unique_ptr<Buffer> tapped_;  // kReadback, float [tapped rows, qkv_dim]; null: queries are of no use
  std::vector<float> queries_;      // of the layer: PromptEntries::queries
  uint32_t next_query_ = 0;         // the place of the next one, once there are as many as there may be
  // Where rows are observed: the position of each query; and every how many-th row is one, or 0: the prompt's
  // last rows are.
  std::vector<uint32_t> query_positions_;
  uint32_t observed_stride_ = 0;
  std::optional<RowMass> row_mass_;
};

}  // namespace kvrun
