// Prefill layer by layer: one layer's K and V are in memory at a time, as they were computed, in tiles; what
// is kept of them goes to the cache as records and index rows. Tiles that a later chunk attends to again, and
// hidden states between layers, lie in a spill file where the plan has no memory for them. Source:
// design/methods.md, section 1, Prefill.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/engine/forward_pass.h"
#include "runtime/engine/layer_sums.h"
#include "runtime/engine/resident_pass.h"
#include "runtime/engine/step_commands.h"
#include "runtime/kv/offloaded_cache.h"
#include "runtime/store/spill_file.h"

namespace kvrun {

class OffloadedPrefill {
 public:
  // For one prompt: buffers live as long as this. `cache` is in its prefill phase. `spill` may be null where
  // nothing has to be put aside.
  static Result<std::unique_ptr<OffloadedPrefill>> Create(Device& device, StepCommands& commands,
                                                          OffloadedCache& cache, SpillFile* spill);
  // What a spill file must hold for prompts of up to n_ctx tokens; 0: none is needed.
  static uint64_t SpillBytes(const KvPlan& plan, const ModelConfig& config);

  // Rows: consecutive positions of one sequence, from the cache's length of it on. Afterwards the cache has
  // their entries.
  Status Run(std::span<const StepRow> rows, const StepProgress& progress);
  // In place of computing: entries that another pass has computed, for comparisons. Only Import may be called
  // then.
  static Result<std::unique_ptr<OffloadedPrefill>> CreateImport(Device& device, StepCommands& commands,
                                                                OffloadedCache& cache);
  Status Import(uint32_t sequence, uint32_t n_entries, ResidentForwardPass& from);

  // Puts the last layer's hidden states of the chunk that holds `row`, an index into Run's rows, into the
  // commands' hidden buffer; answers which rows these are.
  struct Rows {
    uint32_t first = 0;
    uint32_t count = 0;
  };
  Result<Rows> LoadHidden(uint32_t row);

 private:
  // Rows of one chunk: they lie in one tile.
  struct Chunk {
    uint32_t first_row = 0;
    uint32_t n_rows = 0;
    uint32_t tile = 0;
    uint32_t position_in_tile = 0;
    uint32_t skip_rows = 0;  // sinks
  };
  // Commands of one kind of chunk; those before attention, those over one earlier tile, and the rest.
  struct ChunkLists {
    uint32_t n_rows = 0;
    uint32_t skip_rows = 0;
    bool has_earlier = false;
    uint32_t parity = 0;  // of the number of earlier tiles
    std::unique_ptr<CommandList> before;
    std::unique_ptr<CommandList> after;
  };
  struct EarlierList {
    uint32_t n_rows = 0;
    bool is_first = false;
    uint32_t parity = 0;
    std::unique_ptr<CommandList> list;
  };

  OffloadedPrefill(Device& device, StepCommands& commands, OffloadedCache& cache, SpillFile* spill);

  Status MakeBuffer(std::unique_ptr<Buffer>* buffer, uint64_t size_bytes, BufferUse use);
  Status CreateBuffers();
  Status CreateTile();
  Status CreateAttentionBuffers();
  void DropAttentionBuffers();
  void PlanChunks();
  Status Embed(std::span<const StepRow> rows);
  Status RunLayer(uint32_t layer, std::span<const StepRow> rows, const StepProgress& progress);
  Status ComputeChunk(uint32_t layer, const Chunk& chunk, std::span<const StepRow> rows);
  Status AttendEarlierTile(const Chunk& chunk, uint32_t tile);
  Result<ChunkLists*> ListsFor(uint32_t layer, const Chunk& chunk);
  AttentionArgs TileAttention(uint32_t layer, uint32_t n_rows) const;
  Status LoadStoredEntries(uint32_t layer, uint32_t tile);
  Result<std::span<const std::byte>> Encode(uint32_t tile, uint32_t group, uint32_t n,
                                            const KvRecordShape& shape);
  Status StoreRecords(uint32_t layer, uint32_t tile);
  Status StoreIndex(uint32_t layer);
  using ProjectedFn = std::function<Status(uint32_t begin, std::span<const float> projected)>;
  Status ProjectAndVisit(uint32_t layer, uint32_t begin, const ProjectedFn& visit);
  // While there are too few, most entries are chosen anyway; decoding makes the adapter when they are not.
  bool HasEnoughKeys() const { return end_ - begin_ >= cache_.min_adapter_entries(); }
  Status MakeAdapter(uint32_t layer);
  Status SetAdapter(uint32_t layer, const LayerSums& sums);
  Status Execute(CommandList& list);
  Status SaveHidden(const Chunk& chunk);
  Status LoadChunk(const Chunk& chunk);
  uint64_t HiddenOffset(const Chunk& chunk) const;  // in the spill file
  uint64_t TileOffset(uint32_t tile) const;

  bool makes_adapter() const { return cache_.plan().method.has_index() && !cache_.has_adapter(); }
  uint32_t n_sinks() const { return cache_.plan().n_pinned * cache_.plan().record.group_tokens; }
  bool is_tiled() const { return tile_shape_.n_ctx < cache_.plan().n_ctx; }
  uint32_t tile_tokens() const { return tile_shape_.n_ctx; }
  uint32_t n_tiles() const { return (end_ + tile_tokens() - 1) / tile_tokens(); }
  uint32_t heads() const { return cache_.plan().n_streams / cache_.plan().n_sequences; }

  Device& device_;
  StepCommands& commands_;
  OffloadedCache& cache_;
  SpillFile* spill_;
  uint32_t sequence_ = 0;
  uint32_t begin_ = 0;  // positions of the prompt
  uint32_t end_ = 0;
  std::vector<Chunk> chunks_;
  KvShape tile_shape_;
  std::unique_ptr<Buffer> tile_;        // K and V of one layer, KvShape: the tile that is computed
  std::unique_ptr<Buffer> earlier_;     // an earlier tile
  std::unique_ptr<Buffer> whole_tile_;  // StepParams whose positions see a whole tile
  std::unique_ptr<Buffer> parts_[2];    // of attention over earlier tiles
  std::unique_ptr<Buffer> scratch_;     // of attention
  std::unique_ptr<Buffer> records_;     // kShared
  std::unique_ptr<Buffer> projected_;   // kShared, float [kChunkRows, rank]
  std::optional<LayerSumBuffers> sums_;
  std::optional<LayerAdapter> made_;  // of the layer, until its index is stored
  const Buffer* source_ = nullptr;    // what records and index are made from: tile_, or what is imported
  std::vector<float> hidden_;         // [rows, n_embd]; empty where it is spilled
  std::vector<StepRow> tile_rows_;
  std::vector<ChunkLists> lists_;  // of the layer that is computed
  std::vector<EarlierList> earlier_lists_;
};

}  // namespace kvrun
