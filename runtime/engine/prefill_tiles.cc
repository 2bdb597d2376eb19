#include "runtime/engine/prefill_tiles.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "platform/base/check.h"
#include "platform/base/units.h"
#include "runtime/kv/kv_plan_sizes.h"
#include "shaders/shared/step_params.h"

namespace kvrun {
namespace {

uint64_t SpillAligned(uint64_t bytes) { return RoundUp(bytes, SpillFile::kOffsetAlignment); }

uint64_t ChunkHiddenBytes(const ModelConfig& config) {
  return uint64_t{kChunkRows} * config.n_embd * sizeof(float);
}

// The tile of a plan, in whole groups.
KvShape TileShape(const KvPlan& plan, const ModelConfig& config) {
  const bool is_f32 = plan.record.k_type == KvType::kF32 || plan.record.v_type == KvType::kF32;
  const uint32_t group = plan.record.group_tokens;
  const bool is_whole = plan.prefill_tile_tokens >= plan.n_ctx;
  return {.type = is_f32 ? KvType::kF32 : KvType::kF16,
          .n_sequences = 1,
          .n_kv_heads = config.n_kv_heads,
          .head_dim = config.head_dim,
          .n_ctx = is_whole ? RoundUp(plan.n_ctx, group) : plan.prefill_tile_tokens / group * group};
}

uint32_t ChunkRows(const KvPlan& plan, const ModelConfig& config) {
  return TileShape(plan, config).n_ctx < plan.n_ctx ? kTiledChunkTokens : kChunkRows;
}

uint64_t HiddenSpillBytes(const KvPlan& plan, const ModelConfig& config) {
  if (!plan.spills_hidden) return 0;
  const uint64_t n_tiles = CeilDiv(plan.n_ctx, TileShape(plan, config).n_ctx);
  // A tile's end cuts a chunk short.
  return (CeilDiv(plan.n_ctx, ChunkRows(plan, config)) + n_tiles + 1) *
         SpillAligned(ChunkHiddenBytes(config));
}

}  // namespace

uint64_t PrefillTiles::SpillBytes(const KvPlan& plan, const ModelConfig& config) {
  const KvShape tile = TileShape(plan, config);
  const uint64_t n_tiles = CeilDiv(plan.n_ctx, tile.n_ctx);
  return HiddenSpillBytes(plan, config) + (n_tiles > 1 ? n_tiles * SpillAligned(tile.size_bytes()) : 0);
}

Result<std::unique_ptr<PrefillTiles>> PrefillTiles::Create(Device& device, StepCommands& commands,
                                                           const KvPlan& plan, SpillFile* spill) {
  std::unique_ptr<PrefillTiles> tiles(new PrefillTiles(device, commands, plan, spill));
  KVRUN_RETURN_IF_ERROR(tiles->CreateTile());
  return tiles;
}

PrefillTiles::PrefillTiles(Device& device, StepCommands& commands, const KvPlan& plan, SpillFile* spill)
    : device_(device),
      commands_(commands),
      plan_(plan),
      spill_(spill),
      tile_shape_(TileShape(plan, commands.config())) {
  hidden_buffers_[0] = hidden_buffers_[1] = commands.hidden();
  if (commands.logits_buffer()->size_bytes() >= ChunkHiddenBytes(commands.config()))
    hidden_buffers_[1] = commands.logits_buffer();
}

Status PrefillTiles::MakeBuffer(std::unique_ptr<Buffer>* buffer, uint64_t size_bytes, BufferUse use) {
  KVRUN_ASSIGN_OR_RETURN(*buffer, device_.CreateBuffer(size_bytes, use, "kv"));
  return Status::Ok();
}

Status PrefillTiles::Begin(std::span<const StepRow> rows) {
  prompt_ = {rows[0].sequence, rows[0].position, static_cast<uint32_t>(rows[0].position + rows.size())};
  PlanChunks();
  ahead_ = behind_ = nullptr;
  turn_ = 0;
  if (!plan_.spills_hidden) hidden_.resize(rows.size() * commands_.config().n_embd);
  return Embed(rows);
}

Status PrefillTiles::End() {
  lists_.clear();
  earlier_lists_.clear();
  return WriteBehind();
}

// In whole pieces of the file.
Status PrefillTiles::Show(uint32_t tile, uint32_t first_plane, uint32_t n_planes, PrefillSink& sink) {
  if (n_tiles() == 1) return Status::Ok();
  if (is_left_stored(tile)) return sink.LoadEarlier(layer_, tile, tile_.get());
  const uint64_t plane_bytes = tile_shape_.size_bytes() / (2 * tile_shape_.n_kv_heads);
  const uint64_t begin =
      first_plane * plane_bytes / SpillFile::kOffsetAlignment * SpillFile::kOffsetAlignment;
  const uint64_t end = std::min(SpillAligned((first_plane + n_planes) * plane_bytes), tile_->size_bytes());
  KVRUN_RETURN_IF_ERROR(spill_->Read(TileOffset(tile) + begin, tile_->host().subspan(begin, end - begin)));
  return tile_->Flush(begin, end - begin);
}

Status PrefillTiles::CreateTile() {
  KVRUN_RETURN_IF_ERROR(
      MakeBuffer(&tile_, tile_shape_.size_bytes(), is_tiled() ? BufferUse::kShared : BufferUse::kDevice));
  return Status::Ok();
}

Status PrefillTiles::CreateAttentionBuffers() {
  if (scratch_ != nullptr) return Status::Ok();
  const uint32_t chunk_rows = ChunkRows(plan_, commands_.config());
  AttentionArgs attention = TileAttention(0, chunk_rows);
  if (is_tiled()) {
    KVRUN_RETURN_IF_ERROR(MakeBuffer(&earlier_, tile_shape_.size_bytes(), BufferUse::kShared));
    for (auto& parts : parts_)
      KVRUN_RETURN_IF_ERROR(MakeBuffer(&parts, attention.parts_bytes(), BufferUse::kDevice));
    KVRUN_RETURN_IF_ERROR(MakeBuffer(&whole_tile_, sizeof(StepParams), BufferUse::kUpload));
    auto* step = reinterpret_cast<StepParams*>(whole_tile_->host().data());
    for (StepToken& token : step->tokens) token.position = tile_shape_.n_ctx - 1;
  }
  uint64_t scratch_bytes = 0;
  for (uint32_t n = 1; n <= chunk_rows; ++n) {
    attention.n_tokens = n;
    attention.one_sequence = n > 1;
    attention.parts_after = parts_[0].get();
    scratch_bytes = std::max(scratch_bytes, device_.AttendScratchBytes(attention));
  }
  return MakeBuffer(&scratch_, scratch_bytes, BufferUse::kDevice);
}

// Between layers of tiles: the adapter's work takes their room.
void PrefillTiles::DropAttentionBuffers() {
  if (!is_tiled()) return;
  lists_.clear();
  earlier_lists_.clear();
  earlier_.reset();
  for (auto& parts : parts_) parts.reset();
  whole_tile_.reset();
  scratch_.reset();
}

AttentionArgs PrefillTiles::TileAttention(uint32_t layer, uint32_t n_rows) const {
  AttentionArgs attention = commands_.Attention(layer, n_rows, n_rows > 1, /*is_prompt=*/true);
  attention.kv = tile_.get();
  attention.kv_shape = tile_shape_;
  attention.scratch = scratch_.get();
  return attention;
}

void PrefillTiles::PlanChunks() {
  chunks_.clear();
  const uint32_t chunk_rows = ChunkRows(plan_, commands_.config());
  for (uint32_t position = prompt_.begin; position < prompt_.end;) {
    const uint32_t tile = position / tile_tokens();
    const uint32_t n = std::min({chunk_rows, prompt_.end - position, (tile + 1) * tile_tokens() - position});
    chunks_.push_back({.first_row = position - prompt_.begin,
                       .n_rows = n,
                       .tile = tile,
                       .skip_rows = position < n_sinks() ? std::min(n, n_sinks() - position) : 0});
    position += n;
  }
}

Status PrefillTiles::Embed(std::span<const StepRow> rows) {
  for (const Chunk& chunk : chunks_) {
    KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<CommandList> list, device_.CreateCommandList());
    KVRUN_RETURN_IF_ERROR(commands_.Embed(*list, chunk.n_rows, hidden()));
    KVRUN_RETURN_IF_ERROR(list->Finish());
    commands_.WriteRows(rows.subspan(chunk.first_row, chunk.n_rows));
    KVRUN_ASSIGN_OR_RETURN(const uint64_t value, device_.Submit(*list));
    const bool is_last = &chunk == &chunks_.back();
    KVRUN_RETURN_IF_ERROR(EndChunk(chunk, is_last ? &chunks_.front() : nullptr, value));
  }
  return Status::Ok();
}

Status PrefillTiles::Leave(const Chunk& chunk, Buffer& from) {
  KVRUN_RETURN_IF_ERROR(from.Invalidate(0, HiddenBytes(chunk)));
  const std::span<const std::byte> bytes = from.host().first(HiddenBytes(chunk));
  if (hidden_.empty()) return spill_->Write(HiddenOffset(chunk), bytes);
  std::memcpy(hidden_.data() + uint64_t{chunk.first_row} * commands_.config().n_embd, bytes.data(),
              bytes.size());
  return Status::Ok();
}

Status PrefillTiles::Come(const Chunk& chunk, Buffer& to) {
  const std::span<std::byte> bytes = to.host().first(HiddenBytes(chunk));
  if (hidden_.empty()) {
    KVRUN_RETURN_IF_ERROR(spill_->Read(HiddenOffset(chunk), bytes));
  } else {
    std::memcpy(bytes.data(), hidden_.data() + uint64_t{chunk.first_row} * commands_.config().n_embd,
                bytes.size());
  }
  return to.Flush(0, bytes.size());
}

Status PrefillTiles::WriteBehind() {
  if (behind_ == nullptr) return Status::Ok();
  return Leave(*std::exchange(behind_, nullptr), *other_hidden());
}

Status PrefillTiles::BeginChunk(const Chunk& chunk) {
  const bool is_there = std::exchange(ahead_, nullptr) == &chunk;
  if (is_there) return Status::Ok();
  KVRUN_RETURN_IF_ERROR(WriteBehind());  // it may be that one
  return Come(chunk, *hidden());
}

Status PrefillTiles::EndChunk(const Chunk& chunk, const Chunk* next, uint64_t value) {
  const auto move = [&]() -> Status {
    if (!takes_turns()) return Status::Ok();
    // A chunk that comes again at once stays where it is.
    if (next != nullptr && next == behind_) {
      behind_ = nullptr;
      ahead_ = next;
      return Status::Ok();
    }
    KVRUN_RETURN_IF_ERROR(WriteBehind());
    if (next == nullptr || next == &chunk) return Status::Ok();
    KVRUN_RETURN_IF_ERROR(Come(*next, *other_hidden()));
    ahead_ = next;
    return Status::Ok();
  };
  const Status moved = move();
  KVRUN_RETURN_IF_ERROR(device_.Wait(value));
  KVRUN_RETURN_IF_ERROR(moved);
  if (next == &chunk) {
    ahead_ = next;
  } else if (takes_turns()) {
    behind_ = &chunk;
    turn_ = 1 - turn_;
  } else {
    return Leave(chunk, *hidden());
  }
  return Status::Ok();
}

uint64_t PrefillTiles::HiddenBytes(const Chunk& chunk) const {
  return uint64_t{chunk.n_rows} * commands_.config().n_embd * sizeof(float);
}

uint64_t PrefillTiles::HiddenOffset(const Chunk& chunk) const {
  return static_cast<uint64_t>(&chunk - chunks_.data()) * SpillAligned(ChunkHiddenBytes(commands_.config()));
}

uint64_t PrefillTiles::TileOffset(uint32_t tile) const {
  return HiddenSpillBytes(plan_, commands_.config()) + tile * SpillAligned(tile_shape_.size_bytes());
}

// In the commands' own buffer: the other one is the logits' again.
Result<PrefillTiles::Rows> PrefillTiles::LoadHidden(uint32_t row) {
  const auto chunk = std::find_if(chunks_.begin(), chunks_.end(),
                                  [row](const Chunk& c) { return row < c.first_row + c.n_rows; });
  KVRUN_CHECK(chunk != chunks_.end());
  KVRUN_RETURN_IF_ERROR(Come(*chunk, *commands_.hidden()));
  return Rows{chunk->first_row, chunk->n_rows};
}

Status PrefillTiles::RunLayer(uint32_t layer, std::span<const StepRow> rows, const StepProgress& progress,
                              PrefillSink& sink) {
  layer_ = layer;
  lists_.clear();
  KVRUN_RETURN_IF_ERROR(CreateAttentionBuffers());
  KVRUN_RETURN_IF_ERROR(sink.BeginLayer(layer));
  auto chunk = chunks_.begin();
  for (uint32_t tile = 0; tile < n_tiles(); ++tile) {
    if (is_left_stored(tile)) continue;
    KVRUN_RETURN_IF_ERROR(sink.LoadEarlier(layer, tile, tile_.get()));
    for (; chunk != chunks_.end() && chunk->tile == tile; ++chunk) {
      const uint64_t n_layers = commands_.config().n_layers;
      const uint64_t done = (uint64_t{layer} * rows.size() + chunk->first_row) / n_layers;
      if (progress && progress(done, rows.size())) {
        return {StatusCode::kCancelled,
                fmt::format("cancelled after {} of {} tokens of the prompt", done, rows.size())};
      }
      KVRUN_RETURN_IF_ERROR(ComputeChunk(layer, *chunk, rows, sink));
    }
    KVRUN_RETURN_IF_ERROR(sink.StoreTile(layer, tile));
    if (n_tiles() == 1) continue;
    KVRUN_RETURN_IF_ERROR(tile_->Invalidate(0, tile_->size_bytes()));
    KVRUN_RETURN_IF_ERROR(spill_->Write(TileOffset(tile), tile_->host()));
  }
  return Status::Ok();
}

Status PrefillTiles::ComputeChunk(uint32_t layer, const Chunk& chunk, std::span<const StepRow> rows,
                                  PrefillSink& sink) {
  // The tile holds one sequence, number 0 to its kernels.
  const std::span<const StepRow> given = rows.subspan(chunk.first_row, chunk.n_rows);
  tile_rows_.assign(given.begin(), given.end());
  for (StepRow& row : tile_rows_) row.sequence = 0;
  commands_.WriteRows(tile_rows_, chunk.tile * tile_tokens());
  tapped_.clear();
  sink.ChooseTapped(given[0].position, chunk.n_rows, &tapped_);
  commands_.WriteOutputs(tapped_);
  KVRUN_RETURN_IF_ERROR(BeginChunk(chunk));
  KVRUN_ASSIGN_OR_RETURN(ChunkLists * lists, ListsFor(layer, chunk, sink));
  KVRUN_ASSIGN_OR_RETURN(const uint64_t before, device_.Submit(*lists->before));
  if (chunk.tile > 0) KVRUN_RETURN_IF_ERROR(device_.Wait(before));
  for (uint32_t tile = 0; tile < chunk.tile; ++tile) {
    KVRUN_RETURN_IF_ERROR(AttendEarlierTile(layer, chunk, tile, sink));
  }
  const Result<uint64_t> after = device_.Submit(*lists->after);
  if (!after.ok()) {
    static_cast<void>(device_.Wait(before));  // lists must outlive what runs
    return after.status();
  }
  if (!is_tiled() && &chunk == &chunks_.back()) {
    Status ended = device_.Wait(before);
    if (ended.ok()) ended = sink.NoteSums(layer);
    if (!ended.ok()) static_cast<void>(device_.Wait(*after));
    KVRUN_RETURN_IF_ERROR(ended);
  }
  KVRUN_RETURN_IF_ERROR(EndChunk(chunk, NextOf(layer, chunk), *after));
  return sink.EndTap(chunk.n_rows);
}

// After a layer's last chunk comes the next layer's first.
const PrefillTiles::Chunk* PrefillTiles::NextOf(uint32_t layer, const Chunk& chunk) const {
  if (&chunk != &chunks_.back()) return &chunk + 1;
  return layer + 1 < commands_.config().n_layers ? &chunks_.front() : nullptr;
}

Status PrefillTiles::AttendEarlierTile(uint32_t layer, const Chunk& chunk, uint32_t tile, PrefillSink& sink) {
  if (is_left_stored(tile)) {
    KVRUN_RETURN_IF_ERROR(sink.LoadEarlier(layer, tile, earlier_.get()));
  } else {
    KVRUN_RETURN_IF_ERROR(spill_->Read(TileOffset(tile), earlier_->host()));
    KVRUN_RETURN_IF_ERROR(earlier_->Flush(0, earlier_->size_bytes()));
  }
  const uint32_t parity = tile % 2;
  for (const EarlierList& entry : earlier_lists_) {
    if (entry.n_rows == chunk.n_rows && entry.is_first == (tile == 0) && entry.parity == parity) {
      return device_.Execute(*entry.list);
    }
  }
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<CommandList> list, device_.CreateCommandList());
  AttentionArgs attention = TileAttention(0, chunk.n_rows);
  attention.kv = earlier_.get();
  attention.step = whole_tile_.get();
  attention.parts_before = tile == 0 ? nullptr : parts_[1 - parity].get();
  attention.parts_after = parts_[parity].get();
  KVRUN_RETURN_IF_ERROR(list->Attend(attention));
  KVRUN_RETURN_IF_ERROR(list->Finish());
  earlier_lists_.push_back({chunk.n_rows, tile == 0, parity, std::move(list)});
  return device_.Execute(*earlier_lists_.back().list);
}

Result<PrefillTiles::ChunkLists*> PrefillTiles::ListsFor(uint32_t layer, const Chunk& chunk,
                                                         PrefillSink& sink) {
  const bool has_earlier = chunk.tile > 0;
  const uint32_t parity = chunk.tile % 2;
  for (ChunkLists& entry : lists_) {
    if (entry.n_rows == chunk.n_rows && entry.skip_rows == chunk.skip_rows &&
        entry.has_earlier == has_earlier && entry.parity == parity && entry.hidden == hidden()) {
      return &entry;
    }
  }
  AttentionArgs attention = TileAttention(layer, chunk.n_rows);
  if (has_earlier) {
    attention.parts_before = parts_[1 - parity].get();
    attention.parts_after = parts_[parity].get();
  }
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<CommandList> before, device_.CreateCommandList());
  KVRUN_RETURN_IF_ERROR(commands_.BeforeAttention(*before, layer, chunk.n_rows, hidden()));
  KVRUN_RETURN_IF_ERROR(before->RopeAndStore(attention));
  KVRUN_RETURN_IF_ERROR(sink.Tap(*before, chunk.n_rows, chunk.skip_rows));
  KVRUN_RETURN_IF_ERROR(before->Finish());
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<CommandList> after, device_.CreateCommandList());
  KVRUN_RETURN_IF_ERROR(after->Attend(attention));
  if (has_earlier) KVRUN_RETURN_IF_ERROR(after->FinishAttention(attention));
  KVRUN_RETURN_IF_ERROR(commands_.AfterAttention(*after, layer, chunk.n_rows, hidden()));
  KVRUN_RETURN_IF_ERROR(after->Finish());
  lists_.push_back(
      {chunk.n_rows, chunk.skip_rows, has_earlier, parity, hidden(), std::move(before), std::move(after)});
  return &lists_.back();
}

}  // namespace kvrun
