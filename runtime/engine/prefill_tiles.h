// Computes a prompt layer by layer, chunk after chunk: one layer's K and V are in memory at a time, as they
// were computed, in tiles. While the device computes a chunk, the host prepares and submits the next one.
// Tiles that a later chunk attends to again, and hidden states between layers, lie in a spill file where the
// plan has no memory for them. What becomes of a layer's K and V is its sink's business. Source:
// design/methods.md, section 1, Prefill.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/engine/forward_pass.h"
#include "runtime/engine/step_commands.h"
#include "runtime/kv/kv_index.h"
#include "runtime/kv/kv_plan.h"
#include "runtime/store/spill_file.h"

namespace kvrun {

// The calls of one layer come in this order; LoadEarlier, Tap and StoreTile for each tile in turn. Later,
// too, LoadEarlier may be called for a tile that ends before the window that the prompt begins with.
class PrefillSink {
 public:
  virtual ~PrefillSink() = default;
  virtual Status BeginLayer(uint32_t layer) = 0;
  // The tile's entries before the prompt come into a buffer.
  virtual Status LoadEarlier(uint32_t layer, uint32_t tile, Buffer* to) = 0;
  // Which rows of a chunk GatherRows gathers, in ascending order; `first` is the position of the chunk's
  // first row. Where there are none, the next chunk need not wait for what was gathered before.
  virtual void ChooseTapped(uint32_t first, uint32_t n_rows, std::vector<uint32_t>* tapped) = 0;
  struct TappedChunk {
    const Buffer* step = nullptr;  // names the rows that were chosen
    uint32_t n_tapped = 0;
    uint32_t n_rows = 0;
    uint32_t skip_rows = 0;  // the first rows are sinks
  };
  // Records what is to be done with a chunk's Q, K and V, which RopeAndStore has left in the commands'
  // buffers.
  virtual Status Tap(CommandList& list, const TappedChunk& chunk) = 0;
  // What Tap adds up over the layer's chunks is there, while the device still computes the last of them:
  // before its EndTap. Not where the plan has several tiles, whose attention takes the room of what follows a
  // layer.
  virtual Status NoteSums(uint32_t /*layer*/) { return Status::Ok(); }
  // What Tap has recorded was carried out for one more chunk: which rows ChooseTapped had chosen.
  virtual Status EndTap(uint32_t first, std::span<const uint32_t> tapped) = 0;
  // The tile's entries up to the prompt's end are there.
  virtual Status StoreTile(uint32_t layer, uint32_t tile) = 0;
};

class PrefillTiles {
 public:
  // For one prompt. `spill` may be null where nothing has to be put aside. The plan must outlive it.
  static Result<std::unique_ptr<PrefillTiles>> Create(Device& device, StepCommands& commands,
                                                      const KvPlan& plan, SpillFile* spill);
  // What a spill file must hold for prompts of up to n_ctx tokens; 0: none is needed.
  static uint64_t SpillBytes(const KvPlan& plan, const ModelConfig& config);

  // The prompt: consecutive positions of one sequence. Computes its embedding.
  Status Begin(std::span<const StepRow> rows);
  Status RunLayer(uint32_t layer, std::span<const StepRow> rows, const StepProgress& progress,
                  PrefillSink& sink);
  // After the last layer. Hidden states stay.
  Status End();
  // Between layers: gives up what attention takes, for other work.
  void DropAttentionBuffers();

  // Entries [tile * tile_tokens, ...) of the layer that was computed last.
  const KvShape& tile_shape() const { return tile_shape_; }
  Buffer* tile() const { return tile_.get(); }
  // Between layers: the tile's buffer holds that tile's planes, of [n_kv_heads, 2].
  Status Show(uint32_t tile, uint32_t first_plane, uint32_t n_planes, PrefillSink& sink);

  // Puts the last layer's hidden states of the chunk that holds `row`, an index into the prompt's rows, into
  // the commands' hidden buffer; answers which rows these are.
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
    uint32_t skip_rows = 0;  // sinks
  };
  // Commands of one kind of chunk; those before attention, those over one earlier tile, and the rest.
  struct ChunkLists {
    uint32_t n_rows = 0;
    uint32_t skip_rows = 0;
    uint32_t n_tapped = 0;
    bool has_earlier = false;
    uint32_t parity = 0;             // of the number of earlier tiles
    const Buffer* hidden = nullptr;  // of the turn
    std::unique_ptr<CommandList> before;
    std::unique_ptr<CommandList> after;
  };
  struct EarlierList {
    uint32_t n_rows = 0;
    bool is_first = false;
    uint32_t parity = 0;
    std::unique_ptr<CommandList> list;
  };

  // Where a chunk is computed. Chunks take turns: while the device computes one, the chunk before it leaves
  // the other turn's buffer of hidden states, and the next one comes there and is submitted.
  struct Turn {
    StepPlace place;
    const Chunk* held = nullptr;  // whose hidden states lie there; null: none's
    bool is_newer = false;        // than what lies elsewhere
    bool is_running = false;      // until `value`
    uint64_t value = 0;
    std::vector<uint32_t> tapped;            // rows of what is running
    std::unique_ptr<CommandList> embedding;  // that is running
  };

  PrefillTiles(Device& device, StepCommands& commands, const KvPlan& plan, SpillFile* spill);

  Status MakeBuffer(std::unique_ptr<Buffer>* buffer, uint64_t size_bytes, BufferUse use);
  Status CreateTile();
  Status CreateTurns();
  Status CreateAttentionBuffers();
  void PlanChunks();
  Status Embed(std::span<const StepRow> rows);
  Status RunTiles(uint32_t layer, std::span<const StepRow> rows, const StepProgress& progress,
                  PrefillSink& sink);
  Status ComputeChunk(uint32_t layer, const Chunk& chunk, std::span<const StepRow> rows, PrefillSink& sink);
  Status AttendEarlierTile(uint32_t layer, const Chunk& chunk, uint32_t tile, PrefillSink& sink);
  // The tile is read from where it is stored: a prompt of one chunk needs it a few times at most, and is not
  // worth a copy. What the window holds may be overwritten when the layer is computed.
  bool is_left_stored(uint32_t tile) const {
    const uint32_t end = plan_.FirstWindowGroup(prompt_.begin) * plan_.record.group_tokens;
    return chunks_.size() == 1 && (tile + 1) * tile_tokens() <= end;
  }
  Result<ChunkLists*> ListsFor(uint32_t layer, const Chunk& chunk, const Turn& turn, PrefillSink& sink);
  AttentionArgs TileAttention(uint32_t layer, uint32_t n_rows, const StepPlace& place) const;
  // The chunk's, if it has one; else the one that was not taken last.
  Turn& TurnOf(const Chunk& chunk);
  // The chunk's hidden states are there, whatever was there before. `sink` as in Finish.
  Status Bring(const Chunk& chunk, Turn& turn, PrefillSink* sink);
  // So that the host may write the inputs of a chunk with so many tapped rows.
  Status FreeInputs(const Turn& turn, size_t n_tapped, PrefillSink* sink);
  // Waits for what runs; the sink, where there is one, gets what was tapped.
  Status Finish(Turn& turn, PrefillSink* sink);
  Status FinishAll(PrefillSink* sink);
  // Between a buffer and where hidden states lie between layers: memory, or the spill file.
  Status Leave(const Chunk& chunk, Buffer& from);
  Status Come(const Chunk& chunk, Buffer& to);
  // What is nowhere but in the turn's buffer.
  Status LeaveNewer(Turn& turn);
  uint64_t HiddenBytes(const Chunk& chunk) const;
  uint64_t HiddenOffset(const Chunk& chunk) const;  // in the spill file
  uint64_t TileOffset(uint32_t tile) const;

  uint32_t n_sinks() const { return plan_.n_pinned * plan_.record.group_tokens; }
  bool is_tiled() const { return tile_shape_.n_ctx < plan_.n_ctx; }
  uint32_t tile_tokens() const { return tile_shape_.n_ctx; }
  uint32_t n_tiles() const { return (prompt_.end + tile_tokens() - 1) / tile_tokens(); }

  Device& device_;
  StepCommands& commands_;
  const KvPlan& plan_;
  SpillFile* spill_;
  KvRange prompt_;
  uint32_t layer_ = 0;  // that was computed last
  std::vector<Chunk> chunks_;
  KvShape tile_shape_;
  std::unique_ptr<Buffer> tile_;        // K and V of one layer, KvShape: the tile that is computed
  std::unique_ptr<Buffer> earlier_;     // an earlier tile
  std::unique_ptr<Buffer> whole_tile_;  // StepParams whose positions see a whole tile
  std::unique_ptr<Buffer> parts_[2];    // of attention over earlier tiles
  std::unique_ptr<Buffer> scratch_;     // of attention
  std::vector<float> hidden_;           // [rows, n_embd]; empty where it is spilled
  StepInputs other_inputs_;             // of the second turn; none where the plan has no memory for them
  // The commands' own place, and one whose hidden states lie in the buffer of the logits, which nothing needs
  // before the last layer is computed; where that is too small, there is one turn.
  std::vector<Turn> turns_;
  size_t last_turn_ = 0;
  std::vector<StepRow> tile_rows_;
  std::vector<ChunkLists> lists_;  // of the layer that is computed
  std::vector<EarlierList> earlier_lists_;
};

}  // namespace kvrun
