#include "runtime/engine/offloaded/prefill_spill.h"

#include <algorithm>
#include <cstring>

#include "platform/base/units.h"
#include "runtime/engine/offloaded/packed_hidden.h"
#include "runtime/engine/pass/step_commands.h"

namespace kvrun {
namespace {

uint64_t Aligned(uint64_t bytes) { return RoundUp(bytes, SpillFile::kOffsetAlignment); }

// Of a chunk's hidden states that are packed at a time: what that takes is not there for a block's chunks.
constexpr uint32_t kPackedRows = kChunkRows / 2;

uint64_t RowBytes(uint64_t n_embd) { return n_embd * sizeof(float); }

uint64_t PackedBytes(uint64_t n_embd) { return Aligned(PackedHiddenBytes(kPackedRows, n_embd)); }

// Of a later tile, the keys of all heads; or the values.
uint64_t SideBytes(const KvTiling& tiling) { return tiling.later.size_bytes() / 2; }

uint64_t TileBytes(const KvTiling& tiling) { return 2 * Aligned(SideBytes(tiling)); }

uint64_t ChunkBytes(const KvTiling& tiling, const ModelConfig& config) {
  if (tiling.has_later()) return CeilDiv(kChunkRows, kPackedRows) * PackedBytes(config.n_embd);
  return Aligned(kChunkRows * RowBytes(config.n_embd));
}

uint64_t HiddenBytes(const KvPlan& plan, const KvTiling& tiling, const ModelConfig& config) {
  if (!plan.prefill.spills_hidden) return 0;
  // A chunk begins with each later tile, and one more where a prompt begins within a tile.
  uint64_t n_chunks = CeilDiv(plan.n_ctx, kChunkRows) + 1;
  if (tiling.has_later()) {
    n_chunks = CeilDiv(tiling.first.n_ctx, kChunkRows) + tiling.tile_of(plan.n_ctx - 1) + 1;
  }
  return n_chunks * ChunkBytes(tiling, config);
}

}  // namespace

KvTiling KvTiling::Of(const KvPlan& plan, const ModelConfig& config) {
  const bool is_f32 = plan.record.k_type == KvType::kF32 || plan.record.v_type == KvType::kF32;
  const uint32_t group = plan.record.group_tokens;
  KvShape first{.type = is_f32 ? KvType::kF32 : KvType::kF16,
                .n_sequences = 1,
                .n_kv_heads = config.n_kv_heads,
                .head_dim = config.head_dim,
                .n_ctx = RoundUp(plan.n_ctx, group)};
  if (plan.prefill.tile_tokens >= plan.n_ctx) return {first, {}};
  first.n_ctx = plan.prefill.tile_tokens / group * group;
  KvShape later = first;
  later.n_ctx = std::min(plan.prefill.tile_tokens, kChunkRows) / group * group;
  return {first, later, std::max(plan.prefill.read_tiles, 1U)};
}

void CopyPlanes(uint64_t n, uint64_t plane_bytes, const std::byte* from, uint64_t from_stride, std::byte* to,
                uint64_t to_stride) {
  for (uint64_t i = 0; i < n; ++i) std::memcpy(to + i * to_stride, from + i * from_stride, plane_bytes);
}

uint64_t PrefillSpill::SizeBytes(const KvPlan& plan, const ModelConfig& config) {
  const KvTiling tiling = KvTiling::Of(plan, config);
  const uint64_t n_later = tiling.has_later() ? tiling.tile_of(plan.n_ctx - 1) : 0;
  return HiddenBytes(plan, tiling, config) + n_later * TileBytes(tiling);
}

// As PrefillTiles does: all hidden states before the first layer and after each one, unless one chunk is all;
// and of each layer the later tiles, those before the prompt, too, where it is of more than one chunk.
uint64_t PrefillSpill::WrittenBytes(const KvPlan& plan, const ModelConfig& config, uint32_t begin,
                                    uint32_t end, uint32_t block_bytes) {
  if (plan.prefill.tile_tokens == 0) return 0;  // all KV is in memory
  const KvTiling tiling = KvTiling::Of(plan, config);
  uint64_t hidden_bytes = 0;
  uint32_t n_chunks = 0;
  for (uint32_t position = begin; position < end; ++n_chunks) {
    const uint32_t n =
        std::min({kChunkRows, end - position, tiling.end(tiling.tile_of(position)) - position});
    if (!tiling.has_later()) hidden_bytes += RoundUp<uint64_t>(n * RowBytes(config.n_embd), block_bytes);
    for (uint32_t row = 0; tiling.has_later() && row < n; row += kPackedRows)
      hidden_bytes += PackedHiddenBytes(std::min(kPackedRows, n - row), config.n_embd);
    position += n;
  }
  uint64_t bytes = 0;
  if (plan.prefill.spills_hidden) bytes = hidden_bytes * (n_chunks > 1 ? config.n_layers + 1 : 1);
  if (!tiling.has_later() || begin >= end) return bytes;
  const uint32_t first_tile = n_chunks > 1 ? 1 : std::max(tiling.tile_of(begin), 1U);
  const uint32_t end_tile = tiling.tile_of(end - 1) + 1;
  const uint64_t tile_bytes = 2 * RoundUp<uint64_t>(SideBytes(tiling), block_bytes);
  return bytes + uint64_t{config.n_kv_layers()} * (std::max(first_tile, end_tile) - first_tile) * tile_bytes;
}

PrefillSpill::PrefillSpill(const KvPlan& plan, const ModelConfig& config, SpillFile* file)
    : tiling_(KvTiling::Of(plan, config)),
      n_embd_(config.n_embd),
      chunk_bytes_(ChunkBytes(tiling_, config)),
      tiles_begin_(HiddenBytes(plan, tiling_, config)),
      file_(file) {}

uint64_t PrefillSpill::room_bytes() const {
  return tiling_.has_later() ? std::max(PackedHiddenBytes(kPackedRows, n_embd_), SideBytes(tiling_)) : 0;
}

Status PrefillSpill::WriteHidden(size_t chunk, std::span<const std::byte> rows) {
  if (!tiling_.has_later()) return file_->Write(HiddenOffset(chunk), rows);
  return VisitPacked(chunk, rows.size(), [&](const PackedRows& some) -> Status {
    PackHidden(rows.subspan(some.begin_byte, some.n_bytes), some.n_rows, some.packed);
    return file_->Write(some.offset, some.packed);
  });
}

Status PrefillSpill::ReadHidden(size_t chunk, std::span<std::byte> rows) {
  if (!tiling_.has_later()) return file_->Read(HiddenOffset(chunk), rows);
  return VisitPacked(chunk, rows.size(), [&](const PackedRows& some) -> Status {
    KVRUN_RETURN_IF_ERROR(file_->Read(some.offset, some.packed));
    UnpackHidden(some.packed, some.n_rows, rows.subspan(some.begin_byte, some.n_bytes));
    return Status::Ok();
  });
}

template <class Visit>
Status PrefillSpill::VisitPacked(size_t chunk, uint64_t n_bytes, const Visit& visit) {
  const uint64_t row_bytes = RowBytes(n_embd_);
  const auto n_rows = static_cast<uint32_t>(n_bytes / row_bytes);
  uint64_t offset = HiddenOffset(chunk);
  for (uint32_t begin = 0; begin < n_rows; begin += kPackedRows) {
    const uint32_t n = std::min(kPackedRows, n_rows - begin);
    KVRUN_RETURN_IF_ERROR(visit(
        PackedRows{n, begin * row_bytes, n * row_bytes, offset, room_.first(PackedHiddenBytes(n, n_embd_))}));
    offset += PackedBytes(n_embd_);
  }
  return Status::Ok();
}

// The keys of all heads, then the values: what needs keys alone reads half of a tile.
Status PrefillSpill::WriteTile(uint32_t tile, std::span<const std::byte> kv) {
  const uint64_t plane_bytes = SideBytes(tiling_) / tiling_.later.n_kv_heads;
  const std::span<std::byte> side = room_.first(SideBytes(tiling_));
  for (const bool of_values : {false, true}) {
    CopyPlanes(tiling_.later.n_kv_heads, plane_bytes, kv.data() + (of_values ? plane_bytes : 0),
               2 * plane_bytes, side.data(), plane_bytes);
    KVRUN_RETURN_IF_ERROR(file_->Write(TileOffset(tile, of_values), side));
  }
  return Status::Ok();
}

// Whole pieces of the file.
Status PrefillSpill::ReadTile(uint32_t tile, const TilePlanes& planes, uint32_t nth, uint32_t several,
                              std::span<std::byte> to) {
  const uint64_t plane_bytes = SideBytes(tiling_) / tiling_.later.n_kv_heads;
  const uint64_t first_byte = planes.first_head * plane_bytes;
  const uint64_t begin = first_byte / SpillFile::kOffsetAlignment * SpillFile::kOffsetAlignment;
  const uint64_t end = std::min(Aligned(first_byte + planes.n_heads * plane_bytes), SideBytes(tiling_));
  const std::span<std::byte> side = room_.first(end - begin);
  for (const bool of_values : {false, true}) {
    if (of_values && planes.keys_only) break;
    KVRUN_RETURN_IF_ERROR(file_->Read(TileOffset(tile, of_values) + begin, side));
    const uint64_t place = (uint64_t{2} * planes.first_head + (of_values ? 1 : 0)) * several + nth;
    CopyPlanes(planes.n_heads, plane_bytes, side.data() + (first_byte - begin), plane_bytes,
               to.data() + place * plane_bytes, 2 * several * plane_bytes);
  }
  return Status::Ok();
}

uint64_t PrefillSpill::HiddenOffset(size_t chunk) const { return chunk * chunk_bytes_; }

uint64_t PrefillSpill::TileOffset(uint32_t tile, bool of_values) const {
  return tiles_begin_ + (tile - 1) * TileBytes(tiling_) + (of_values ? Aligned(SideBytes(tiling_)) : 0);
}

}  // namespace kvrun
