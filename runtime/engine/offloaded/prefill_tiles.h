// Computes a prompt layer by layer, chunk after chunk: one layer's K and V are in memory at a time, as they
// were computed. While the device computes a chunk, the host prepares and submits the next one. Hidden states
// between layers lie in a spill file where the plan has no memory for them. What becomes of a layer's K and V
// is its sink's business. docs/methods/kvswap.md follows a prompt through it.
//
// Where K and V do not fit in memory, they are cut into tiles. The first, which is as large as the plan has
// memory for, stays there until the next layer. The others are a chunk each and lie in the spill file. Chunks
// of theirs are computed in blocks, of as many as there is room for queries and for what attention has added
// up: the keys of all, then attention of all to earlier tiles, some at a time, then the rest of the layer. So
// each earlier tile is read once for a block. With x of the context's N entries outside of the first tile and
// B rows to a block, attention reads x^2 N / 2B + x / 2 times what a layer's KV takes, and the index x / 2
// times: keys alone.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/engine/offloaded/block_room.h"
#include "runtime/engine/offloaded/layer_tiles.h"
#include "runtime/engine/offloaded/prefill_sink.h"
#include "runtime/engine/offloaded/prefill_spill.h"
#include "runtime/engine/offloaded/prefill_turns.h"
#include "runtime/engine/pass/forward_pass.h"
#include "runtime/engine/pass/layer_states.h"
#include "runtime/engine/pass/step_commands.h"
#include "runtime/kv/contracts/kv_index.h"
#include "runtime/kv/plan/kv_plan.h"
#include "runtime/store/spill_file.h"

namespace kvrun {

class PrefillTiles final : public LayerTiles {
 public:
  // For one prompt. `spill` is of PrefillSpill::SizeBytes, or null where nothing has to be put aside. The
  // plan must outlive it.
  static Result<std::unique_ptr<PrefillTiles>> Create(Device& device, StepCommands& commands,
                                                      const KvPlan& plan, SpillFile* spill);
  // The prompt: consecutive positions of one sequence. Computes its embedding.
  Status Begin(std::span<const StepRow> rows);
  // `layer`: of those that keep growing KV, here and below.
  Status RunLayer(uint32_t layer, std::span<const StepRow> rows, const StepProgress& progress,
                  PrefillSink& sink);
  // The positions after each chunk's last token.
  std::vector<uint32_t> ChunkEnds() const;
  // A layer of another kind, of the model's. `savings`: at some of the chunks' ends, ascending.
  Status RunStateLayer(uint32_t model_layer, std::span<const StepRow> rows, const StepProgress& progress,
                       const LayerStates& states, std::span<const LayerStates::Saving> savings);
  // After the last layer. Hidden states stay.
  Status End();
  // Between layers: gives up what attention takes, and in plans of several tiles what feed-forward networks
  // do, for other work.
  void DropAttentionBuffers();

  // Of the layer that was computed last.
  const KvTiling& tiling() const override { return tiling_; }
  Buffer* kv(uint32_t tile) const override { return tile == 0 ? first_.get() : later_.get(); }
  Result<bool> Show(uint32_t tile, const TilePlanes& planes) override;

  // Puts the last layer's hidden states of the chunk that holds `row`, an index into the prompt's rows, into
  // the commands' hidden buffer; answers which rows these are.
  struct Rows {
    uint32_t first = 0;
    uint32_t count = 0;
  };
  Result<Rows> LoadHidden(uint32_t row);

 private:
  using Chunk = PromptChunk;
  using Turn = PrefillTurn;
  // Commands of one kind of chunk of the first tile; those before attention, and the rest.
  struct ChunkLists {
    uint32_t n_rows = 0;
    uint32_t skip_rows = 0;
    uint32_t n_tapped = 0;
    const Buffer* hidden = nullptr;  // of the turn
    std::unique_ptr<CommandList> before;
    std::unique_ptr<CommandList> after;
  };
  // A chunk of a block.
  struct BlockChunk {
    const Chunk* chunk = nullptr;
    Buffer* qkv = nullptr;  // its queries; when it has attended to all, the result
    AttentionParts parts;   // of what it has attended to
  };

  PrefillTiles(Device& device, StepCommands& commands, const KvPlan& plan, SpillFile* spill);

  Status MakeBuffer(std::unique_ptr<Buffer>* buffer, uint64_t size_bytes, BufferUse use);
  Status CreateTiles();
  Status CreateBlockBuffers();
  Status CreateAttentionBuffers();
  uint64_t MostScratchBytes(AttentionArgs attention, uint32_t most_rows) const;
  void PlanChunks();
  Status RunTiles(uint32_t layer, std::span<const StepRow> rows, const StepProgress& progress,
                  PrefillSink& sink);
  Status AskProgress(uint32_t model_layer, const Chunk& chunk, const StepProgress& progress) const;
  Status RunStateChunks(uint32_t model_layer, std::span<const StepRow> rows, const StepProgress& progress,
                        const LayerStates& states, std::span<const LayerStates::Saving> savings);
  uint32_t ModelLayer(uint32_t layer) const { return commands_.config().kv_layers[layer]; }
  bool IsLast(uint32_t model_layer) const { return model_layer + 1 == commands_.config().n_layers; }
  // The first tile, from its first chunk on.
  Status RunFirstTile(uint32_t layer, std::span<const StepRow> rows, const StepProgress& progress,
                      PrefillSink& sink);
  Status ComputeChunk(uint32_t layer, const Chunk& chunk, std::span<const StepRow> rows, PrefillSink& sink);
  // Tiles before the prompt, so that they can be read again.
  Status SpillStored(uint32_t layer, PrefillSink& sink);
  Status SpillLater(uint32_t tile);
  // Chunks of later tiles.
  Status RunBlock(uint32_t layer, std::span<const Chunk> chunks, std::span<const StepRow> rows,
                  const StepProgress& progress, PrefillSink& sink);
  // tile_before: of the block, what has not been spilled yet; 0: nothing. next: of the block; or null.
  Status BeginChunk(uint32_t layer, BlockChunk& in_block, uint32_t tile_before, const Chunk* next,
                    std::span<const StepRow> rows, PrefillSink& sink);
  // Carries out the list, and work of the host meanwhile.
  template <class Work>
  Status Beside(CommandList& list, const Work& work);
  // So many tiles from this one on, which is the first of all or has been read with them.
  Status AttendEarlier(uint32_t layer, uint32_t first, uint32_t n, const StepProgress& progress,
                       std::span<BlockChunk> block);
  Status AttendRead(uint32_t layer, uint32_t first, const StepProgress& progress, std::span<BlockChunk> block,
                    PrefillSink& sink);
  Status ReadEarlier(uint32_t layer, uint32_t first, uint32_t n, PrefillSink& sink);
  // The nth of those that are read together.
  Status CopyStored(uint32_t layer, uint32_t tile, uint32_t nth, PrefillSink& sink);
  Status FinishAttention(uint32_t layer, std::span<const BlockChunk> block);
  // The rest of the layer; meanwhile hidden states go and come, at last those of `next` (null: none).
  Status FinishBlock(uint32_t layer, std::span<const BlockChunk> block, const Chunk* next,
                     const StepProgress& progress);
  // The tile is read from where it is stored: a prompt of one chunk needs it a few times at most, and is not
  // worth a copy. What the window holds may be overwritten when the layer is computed.
  bool is_left_stored(uint32_t tile) const {
    const uint32_t end = plan_.FirstWindowGroup(prompt_.begin) * plan_.record.group_tokens;
    return chunks_.size() == 1 && tiling_.end(tile) <= end;
  }
  // The tile of the host's rows holds one sequence, number 0 to its kernels.
  void WriteChunk(const Chunk& chunk, std::span<const StepRow> rows, const StepPlace& place,
                  std::span<const uint32_t> tapped);
  Result<ChunkLists*> ListsFor(uint32_t layer, const Chunk& chunk, const Turn& turn, PrefillSink& sink);
  AttentionArgs TileAttention(uint32_t layer, uint32_t n_rows, const StepPlace& place, uint32_t tile) const;
  TilePlanes AllPlanes() const { return {0, tiling_.later.n_kv_heads, false}; }

  uint32_t n_sinks() const { return plan_.choice.n_pinned * plan_.record.group_tokens; }
  bool is_tiled() const { return tiling_.has_later(); }
  uint32_t n_tiles() const { return tiling_.tile_of(prompt_.end - 1) + 1; }

  Device& device_;
  StepCommands& commands_;
  const KvPlan& plan_;
  PrefillSpill spill_;
  KvRange prompt_;
  std::vector<Chunk> chunks_;
  KvTiling tiling_;
  std::unique_ptr<Buffer> first_;    // K and V of one layer, KvShape
  std::unique_ptr<Buffer> later_;    // the later tile that is computed, or shown
  std::unique_ptr<Buffer> earlier_;  // later tiles that are attended to, KvTiling::several
  uint32_t held_first_ = 0;          // of the tiles that lie there; 0: none do
  uint32_t held_tiles_ = 0;
  std::unique_ptr<Buffer> earlier_step_;  // StepParams whose positions see all of what is attended to
  std::unique_ptr<Buffer> scratch_;       // of attention
  PrefillTurns turns_;                    // one or two, or as many as a block has chunks
  BlockRoom block_room_;                  // of plans of several tiles
  std::vector<StepRow> tile_rows_;
  std::vector<ChunkLists> lists_;  // of the layer that is computed
  std::vector<std::unique_ptr<CommandList>> saving_lists_;
};

}  // namespace kvrun
