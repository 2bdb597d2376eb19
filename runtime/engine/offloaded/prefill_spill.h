// What a prompt's computation puts aside in a spill file: hidden states between layers, and tiles of a
// layer's K and V while others are computed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/kv/plan/kv_plan.h"
#include "runtime/model/model_config.h"
#include "runtime/store/spill_file.h"

namespace kvrun {

// How a layer's entries are cut into tiles: `first`, then any number of `later`.
struct KvTiling {
  KvShape first;
  KvShape later;            // of no entries where there is one tile
  uint32_t read_tiles = 1;  // later ones that are read together
  // Entries before the window that are in no tile, as groups were selected (LayerTiles::selected). The first
  // tile begins so much later then; there is no other.
  uint32_t n_left_out = 0;

  // In whole groups.
  static KvTiling Of(const KvPlan& plan, const ModelConfig& config);

  bool has_later() const { return later.n_ctx > 0; }
  const KvShape& shape(uint32_t tile) const { return tile == 0 ? first : later; }
  // Of those, side by side.
  KvShape several() const {
    KvShape all = later;
    all.n_ctx *= read_tiles;
    return all;
  }
  uint32_t begin(uint32_t tile) const {
    return n_left_out + (tile == 0 ? 0 : first.n_ctx + (tile - 1) * later.n_ctx);
  }
  uint32_t end(uint32_t tile) const { return begin(tile + 1); }
  uint32_t tile_of(uint32_t position) const {
    return later.n_ctx == 0 || position < first.n_ctx ? 0 : 1 + (position - first.n_ctx) / later.n_ctx;
  }
};

// Of a tile's planes, [n_kv_heads, 2 (K, V)]: those of some heads.
struct TilePlanes {
  uint32_t first_head = 0;
  uint32_t n_heads = 0;
  bool keys_only = false;

  friend bool operator==(const TilePlanes&, const TilePlanes&) = default;
};

// n planes, each of which begins so many bytes after the one before.
void CopyPlanes(uint64_t n, uint64_t plane_bytes, const std::byte* from, uint64_t from_stride, std::byte* to,
                uint64_t to_stride);

// A plan of several tiles reads and writes more than one of a single tile: it has hidden states in 16 bits.
// The other has them as they are, so that a prompt has the logits that it has in memory.
//
// Threads: one at a time.
class PrefillSpill {
 public:
  // What the file must hold for any prompt of the plan's context; 0: none is needed.
  static uint64_t SizeBytes(const KvPlan& plan, const ModelConfig& config);
  // About what a prompt at positions [begin, end) writes there, where requests are of whole blocks.
  static uint64_t WrittenBytes(const KvPlan& plan, const ModelConfig& config, uint32_t begin, uint32_t end,
                               uint32_t block_bytes);

  // `file` may be null where SizeBytes is 0.
  PrefillSpill(const KvPlan& plan, const ModelConfig& config, SpillFile* file);

  // Plans of several tiles need so much memory for what is on its way: nothing of it stays there between
  // calls.
  uint64_t room_bytes() const;
  void UseRoom(std::span<std::byte> room) { room_ = room; }

  // Of a prompt's chunk, counted from 0: float [rows, n_embd].
  Status WriteHidden(size_t chunk, std::span<const std::byte> rows);
  Status ReadHidden(size_t chunk, std::span<std::byte> rows);

  // Of a later tile: planes [n_kv_heads, 2].
  Status WriteTile(uint32_t tile, std::span<const std::byte> kv);
  // Into [n_kv_heads, 2, several] planes, the tile's being the nth of several; the other planes stay as they
  // are.
  Status ReadTile(uint32_t tile, const TilePlanes& planes, uint32_t nth, uint32_t several,
                  std::span<std::byte> to);

 private:
  // Some rows of a chunk, in its hidden states, in the file, and on their way.
  struct PackedRows {
    uint32_t n_rows;
    uint64_t begin_byte;
    uint64_t n_bytes;
    uint64_t offset;
    std::span<std::byte> packed;
  };
  template <class Visit>
  Status VisitPacked(size_t chunk, uint64_t n_bytes, const Visit& visit);
  uint64_t HiddenOffset(size_t chunk) const;
  // Of its keys, or of its values.
  uint64_t TileOffset(uint32_t tile, bool of_values) const;

  KvTiling tiling_;
  uint32_t n_embd_;
  uint64_t chunk_bytes_;  // in the file
  uint64_t tiles_begin_;  // in the file
  SpillFile* file_;
  std::span<std::byte> room_;  // of several tiles: a chunk's hidden states; or a tile's keys, or its values
};

}  // namespace kvrun
