#include "runtime/engine/offloaded/prefill_tiles.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "platform/base/check.h"
#include "platform/base/units.h"
#include "runtime/kv/planner/kv_plan_sizes.h"
#include "shaders/shared/step_params.h"

namespace kvrun {
Result<std::unique_ptr<PrefillTiles>> PrefillTiles::Create(Device& device, StepCommands& commands,
                                                           const KvPlan& plan, SpillFile* spill) {
  std::unique_ptr<PrefillTiles> tiles(new PrefillTiles(device, commands, plan, spill));
  KVRUN_RETURN_IF_ERROR(tiles->CreateTiles());
  KVRUN_RETURN_IF_ERROR(tiles->is_tiled() ? tiles->CreateBlockBuffers() : tiles->turns_.AddInLogits());
  return tiles;
}

PrefillTiles::PrefillTiles(Device& device, StepCommands& commands, const KvPlan& plan, SpillFile* spill)
    : device_(device),
      commands_(commands),
      plan_(plan),
      spill_(plan, commands.config(), spill),
      tiling_(KvTiling::Of(plan, commands.config())),
      turns_(device, commands, plan, spill_),
      block_room_(device, commands) {}

Status PrefillTiles::MakeBuffer(std::unique_ptr<Buffer>* buffer, uint64_t size_bytes, BufferUse use) {
  KVRUN_ASSIGN_OR_RETURN(*buffer, device_.CreateBuffer(size_bytes, use, "kv"));
  return Status::Ok();
}

Status PrefillTiles::Begin(std::span<const StepRow> rows) {
  prompt_ = {rows[0].sequence, rows[0].position, static_cast<uint32_t>(rows[0].position + rows.size())};
  PlanChunks();
  return turns_.Begin(chunks_, rows);
}

Status PrefillTiles::End() {
  lists_.clear();
  KVRUN_RETURN_IF_ERROR(turns_.LeaveAll());
  if (!is_tiled()) return Status::Ok();
  // The logits' memory is theirs again.
  turns_.DropAdded();
  block_room_.Drop();
  scratch_.reset();
  return commands_.MakeGivenUp(device_);
}

Result<bool> PrefillTiles::Show(uint32_t tile, const TilePlanes& planes) {
  if (is_left_stored(tile)) return false;
  KVRUN_RETURN_IF_ERROR(spill_.ReadTile(tile, planes, 0, 1, later_->host()));
  const uint64_t head_bytes = later_->size_bytes() / tiling_.later.n_kv_heads;
  KVRUN_RETURN_IF_ERROR(later_->Flush(planes.first_head * head_bytes, planes.n_heads * head_bytes));
  return true;
}

Status PrefillTiles::CreateTiles() {
  KVRUN_RETURN_IF_ERROR(MakeBuffer(&first_, tiling_.first.size_bytes(), BufferUse::kDevice));
  if (!is_tiled()) return Status::Ok();
  return MakeBuffer(&later_, tiling_.later.size_bytes(), BufferUse::kShared);
}

// What a block takes but its tiles.
Status PrefillTiles::CreateBlockBuffers() {
  const uint64_t room_bytes = commands_.logits_buffer()->size_bytes();
  commands_.GiveUpLogits();
  const uint32_t chunk_rows = tiling_.later.n_ctx;
  AttentionArgs attention = TileAttention(0, chunk_rows, commands_.own(), 1);
  const uint64_t parts_bytes = attention.parts_bytes();
  attention.parts_after.buffer = commands_.feed_forward()[0];  // that there are some
  uint64_t scratch_bytes = MostScratchBytes(attention, chunk_rows);
  for (const KvShape& shape : {tiling_.first, tiling_.several()}) {
    attention.kv_shape = shape;
    scratch_bytes = std::max(scratch_bytes, MostScratchBytes(attention, chunk_rows));
  }
  attention.kv_shape = tiling_.first;
  attention.parts_after = {};
  scratch_bytes = std::max(scratch_bytes, MostScratchBytes(attention, kChunkRows));
  KVRUN_ASSIGN_OR_RETURN(scratch_, device_.CreateBuffer(scratch_bytes, BufferUse::kDevice, "activations"));
  const size_t n_chunks = CeilDiv(plan_.n_ctx - tiling_.first.n_ctx, chunk_rows);
  return block_room_.Make({chunk_rows, parts_bytes, n_chunks},
                          room_bytes - std::min(scratch_bytes, room_bytes), spill_, turns_);
}

// For any number of rows.
uint64_t PrefillTiles::MostScratchBytes(AttentionArgs attention, uint32_t most_rows) const {
  uint64_t most_bytes = 0;
  for (uint32_t n = 1; n <= most_rows; ++n) {
    attention.n_tokens = n;
    most_bytes = std::max(most_bytes, device_.AttendScratchBytes(attention));
  }
  return most_bytes;
}

Status PrefillTiles::CreateAttentionBuffers() {
  if (is_tiled()) {
    if (earlier_ != nullptr) return Status::Ok();
    KVRUN_RETURN_IF_ERROR(commands_.MakeFeedForward(device_));
    block_room_.FindParts();
    KVRUN_RETURN_IF_ERROR(MakeBuffer(&earlier_, tiling_.several().size_bytes(), BufferUse::kShared));
    return MakeBuffer(&earlier_step_, sizeof(StepParams), BufferUse::kUpload);
  }
  if (scratch_ != nullptr) return Status::Ok();
  const AttentionArgs attention = TileAttention(0, kChunkRows, commands_.own(), 0);
  return MakeBuffer(&scratch_, MostScratchBytes(attention, kChunkRows), BufferUse::kDevice);
}

// Between layers of tiles: the adapter's work takes their room, and that of activations.
void PrefillTiles::DropAttentionBuffers() {
  if (!is_tiled()) return;
  lists_.clear();
  block_room_.ForgetParts();
  commands_.GiveUpFeedForward();
  earlier_.reset();
  earlier_step_.reset();
}

AttentionArgs PrefillTiles::TileAttention(uint32_t layer, uint32_t n_rows, const StepPlace& place,
                                          uint32_t tile) const {
  AttentionArgs attention = commands_.Attention(ModelLayer(layer), n_rows, /*of_prompt=*/true, place);
  attention.qkv = place.qkv;
  attention.step = place.step;
  attention.angles = place.angles;
  attention.kv = kv(tile);
  attention.kv_shape = tiling_.shape(tile);
  attention.output = place.attended;
  attention.scratch = scratch_.get();
  return attention;
}

void PrefillTiles::PlanChunks() {
  chunks_.clear();
  for (uint32_t position = prompt_.begin; position < prompt_.end;) {
    const uint32_t tile = tiling_.tile_of(position);
    const uint32_t n = std::min({kChunkRows, prompt_.end - position, tiling_.end(tile) - position});
    chunks_.push_back({.first_row = position - prompt_.begin,
                       .n_rows = n,
                       .tile = tile,
                       .skip_rows = position < n_sinks() ? std::min(n, n_sinks() - position) : 0});
    position += n;
  }
}

// In the commands' own buffer: the other one is the logits' again.
Result<PrefillTiles::Rows> PrefillTiles::LoadHidden(uint32_t row) {
  const auto chunk = std::find_if(chunks_.begin(), chunks_.end(),
                                  [row](const Chunk& c) { return row < c.first_row + c.n_rows; });
  KVRUN_CHECK(chunk != chunks_.end());
  KVRUN_RETURN_IF_ERROR(turns_.Come(*chunk, *commands_.hidden()));
  return Rows{chunk->first_row, chunk->n_rows};
}

Status PrefillTiles::RunLayer(uint32_t layer, std::span<const StepRow> rows, const StepProgress& progress,
                              PrefillSink& sink) {
  lists_.clear();
  held_first_ = 0;
  KVRUN_RETURN_IF_ERROR(CreateAttentionBuffers());
  KVRUN_RETURN_IF_ERROR(sink.BeginLayer(layer));
  const Status ran = RunTiles(layer, rows, progress, sink);
  if (!ran.ok()) static_cast<void>(turns_.FinishAll(nullptr));  // lists must outlive what runs
  return ran;
}

Status PrefillTiles::AskProgress(uint32_t model_layer, const Chunk& chunk,
                                 const StepProgress& progress) const {
  const uint64_t total = prompt_.end - prompt_.begin;
  const uint64_t done = (model_layer * total + chunk.first_row) / commands_.config().n_layers;
  if (!progress || !progress(done, total)) return Status::Ok();
  return {StatusCode::kCancelled, fmt::format("cancelled after {} of {} tokens of the prompt", done, total)};
}

Status PrefillTiles::RunTiles(uint32_t layer, std::span<const StepRow> rows, const StepProgress& progress,
                              PrefillSink& sink) {
  KVRUN_RETURN_IF_ERROR(RunFirstTile(layer, rows, progress, sink));
  if (n_tiles() == 1) return Status::Ok();
  KVRUN_RETURN_IF_ERROR(SpillStored(layer, sink));
  const auto later = std::find_if(chunks_.begin(), chunks_.end(), [](const Chunk& c) { return c.tile > 0; });
  for (std::span<const Chunk> left(later, chunks_.end()); !left.empty();) {
    const size_t n = std::min(left.size(), block_room_.n_chunks());
    KVRUN_RETURN_IF_ERROR(RunBlock(layer, left.first(n), rows, progress, sink));
    left = left.subspan(n);
  }
  return Status::Ok();
}

Status PrefillTiles::RunFirstTile(uint32_t layer, std::span<const StepRow> rows, const StepProgress& progress,
                                  PrefillSink& sink) {
  KVRUN_RETURN_IF_ERROR(sink.LoadEarlier(layer, 0, first_.get()));
  auto chunk = chunks_.begin();
  for (; chunk != chunks_.end() && chunk->tile == 0; ++chunk) {
    KVRUN_RETURN_IF_ERROR(AskProgress(ModelLayer(layer), *chunk, progress));
    KVRUN_RETURN_IF_ERROR(ComputeChunk(layer, *chunk, rows, sink));
  }
  // After a layer's last chunk comes the next layer's first.
  if (chunk == chunks_.end() && !IsLast(ModelLayer(layer))) {
    KVRUN_RETURN_IF_ERROR(turns_.Bring(chunks_.front(), turns_.Of(chunks_.front()), &sink));
  }
  KVRUN_RETURN_IF_ERROR(turns_.FinishAll(&sink));
  if (chunk != chunks_.begin()) {
    KVRUN_RETURN_IF_ERROR(AskProgress(ModelLayer(layer), chunk[-1], progress));
  }
  return sink.StoreTile(layer, 0);
}

Status PrefillTiles::SpillStored(uint32_t layer, PrefillSink& sink) {
  for (uint32_t tile = 1; tile < chunks_.front().tile; ++tile) {
    if (is_left_stored(tile)) continue;
    KVRUN_RETURN_IF_ERROR(sink.LoadEarlier(layer, tile, later_.get()));
    KVRUN_RETURN_IF_ERROR(sink.StoreTile(layer, tile));
    KVRUN_RETURN_IF_ERROR(SpillLater(tile));
  }
  return Status::Ok();
}

Status PrefillTiles::SpillLater(uint32_t tile) {
  KVRUN_RETURN_IF_ERROR(later_->Invalidate(0, later_->size_bytes()));
  return spill_.WriteTile(tile, later_->host());
}

void PrefillTiles::WriteChunk(const Chunk& chunk, std::span<const StepRow> rows, const StepPlace& place,
                              std::span<const uint32_t> tapped) {
  const std::span<const StepRow> given = rows.subspan(chunk.first_row, chunk.n_rows);
  tile_rows_.assign(given.begin(), given.end());
  for (StepRow& row : tile_rows_) row.sequence = 0;
  commands_.WriteRows(place, tile_rows_, tiling_.begin(chunk.tile));
  commands_.WriteOutputs(place, tapped);
}

Status PrefillTiles::ComputeChunk(uint32_t layer, const Chunk& chunk, std::span<const StepRow> rows,
                                  PrefillSink& sink) {
  Turn& turn = turns_.Of(chunk);
  KVRUN_RETURN_IF_ERROR(turns_.Bring(chunk, turn, &sink));
  turn.tapped.clear();
  sink.ChooseTapped(prompt_.begin + chunk.first_row, chunk.n_rows, &turn.tapped);
  KVRUN_RETURN_IF_ERROR(turns_.FreeInputs(turn, turn.tapped.size(), &sink));
  WriteChunk(chunk, rows, turn.place, turn.tapped);
  KVRUN_ASSIGN_OR_RETURN(ChunkLists * lists, ListsFor(layer, chunk, turn, sink));
  turn.is_newer = true;
  KVRUN_ASSIGN_OR_RETURN(turn.value, device_.Submit(*lists->before));
  turn.is_running = true;
  const uint64_t before = turn.value;
  KVRUN_ASSIGN_OR_RETURN(turn.value, device_.Submit(*lists->after));
  if (is_tiled() || &chunk != &chunks_.back()) return Status::Ok();
  KVRUN_RETURN_IF_ERROR(device_.Wait(before));
  return sink.NoteSums(layer);
}

// The list is over when this returns, whatever has failed.
template <class Work>
Status PrefillTiles::Beside(CommandList& list, const Work& work) {
  KVRUN_ASSIGN_OR_RETURN(const uint64_t value, device_.Submit(list));
  const Status worked = work();
  const Status waited = device_.Wait(value);
  KVRUN_RETURN_IF_ERROR(worked);
  return waited;
}

Result<PrefillTiles::ChunkLists*> PrefillTiles::ListsFor(uint32_t layer, const Chunk& chunk, const Turn& turn,
                                                         PrefillSink& sink) {
  for (ChunkLists& entry : lists_) {
    if (entry.n_rows == chunk.n_rows && entry.skip_rows == chunk.skip_rows &&
        entry.n_tapped == turn.tapped.size() && entry.hidden == turn.place.hidden) {
      return &entry;
    }
  }
  const StepPlace& place = turn.place;
  const auto n_tapped = static_cast<uint32_t>(turn.tapped.size());
  const AttentionArgs attention = TileAttention(layer, chunk.n_rows, place, 0);
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<CommandList> before, device_.CreateCommandList());
  KVRUN_RETURN_IF_ERROR(commands_.Qkv(*before, ModelLayer(layer), chunk.n_rows, place));
  KVRUN_RETURN_IF_ERROR(before->RopeAndStore(attention));
  KVRUN_RETURN_IF_ERROR(sink.Tap(*before, {place.step, place.qkv, n_tapped, chunk.n_rows, chunk.skip_rows}));
  KVRUN_RETURN_IF_ERROR(before->Finish());
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<CommandList> after, device_.CreateCommandList());
  KVRUN_RETURN_IF_ERROR(after->Attend(attention));
  KVRUN_RETURN_IF_ERROR(commands_.AfterAttention(*after, ModelLayer(layer), chunk.n_rows, place));
  KVRUN_RETURN_IF_ERROR(after->Finish());
  lists_.push_back(
      {chunk.n_rows, chunk.skip_rows, n_tapped, place.hidden, std::move(before), std::move(after)});
  return &lists_.back();
}

Status PrefillTiles::RunBlock(uint32_t layer, std::span<const Chunk> chunks, std::span<const StepRow> rows,
                              const StepProgress& progress, PrefillSink& sink) {
  std::vector<BlockChunk> block;
  const auto attend_all = [&]() -> Status {
    for (const Chunk& chunk : chunks) {
      KVRUN_RETURN_IF_ERROR(AskProgress(ModelLayer(layer), chunk, progress));
      const uint32_t tile_before = block.empty() ? 0 : block.back().chunk->tile;
      const Chunk* const next = &chunk != &chunks.back() ? &chunk + 1 : nullptr;
      block.push_back({&chunk, block_room_.qkv(block.size()), block_room_.TakeParts()});
      KVRUN_RETURN_IF_ERROR(BeginChunk(layer, block.back(), tile_before, next, rows, sink));
    }
    KVRUN_RETURN_IF_ERROR(SpillLater(chunks.back().tile));
    KVRUN_RETURN_IF_ERROR(AttendEarlier(layer, 0, 1, progress, block));
    // Then as many at a time as are read together: first those that the block before has read last.
    const uint32_t held = held_first_;
    if (held > 0) KVRUN_RETURN_IF_ERROR(AttendRead(layer, held, progress, block, sink));
    for (uint32_t tile = 1; tile < chunks.back().tile; tile += tiling_.read_tiles) {
      if (tile != held) KVRUN_RETURN_IF_ERROR(AttendRead(layer, tile, progress, block, sink));
    }
    KVRUN_RETURN_IF_ERROR(AskProgress(ModelLayer(layer), chunks.back(), progress));
    return FinishAttention(layer, block);
  };
  const Status attended = attend_all();
  for (const BlockChunk& in_block : block) block_room_.GiveParts(in_block.parts);
  KVRUN_RETURN_IF_ERROR(attended);
  const Chunk* next = nullptr;
  if (&chunks.back() != &chunks_.back()) {
    next = &chunks.back() + 1;
  } else if (!IsLast(ModelLayer(layer))) {
    next = &chunks_.front();
  }
  return FinishBlock(layer, block, next, progress);
}

Status PrefillTiles::FinishBlock(uint32_t layer, std::span<const BlockChunk> block, const Chunk* next,
                                 const StepProgress& progress) {
  std::vector<std::unique_ptr<CommandList>> lists;
  const auto finish = [&]() -> Status {
    Turn* before = nullptr;
    for (const BlockChunk& in_block : block) {
      const Chunk& chunk = *in_block.chunk;
      KVRUN_RETURN_IF_ERROR(AskProgress(ModelLayer(layer), *block.back().chunk, progress));
      Turn& turn = turns_.Of(chunk);
      KVRUN_RETURN_IF_ERROR(turns_.Bring(chunk, turn, nullptr));
      StepPlace place = turn.place;
      place.attended = in_block.qkv;
      KVRUN_ASSIGN_OR_RETURN(lists.emplace_back(), device_.CreateCommandList());
      // Its gate went with the queries of a later chunk.
      KVRUN_RETURN_IF_ERROR(commands_.QueryGate(*lists.back(), ModelLayer(layer), chunk.n_rows, place));
      KVRUN_RETURN_IF_ERROR(commands_.AfterAttention(*lists.back(), ModelLayer(layer), chunk.n_rows, place));
      KVRUN_RETURN_IF_ERROR(lists.back()->Finish());
      KVRUN_ASSIGN_OR_RETURN(turn.value, device_.Submit(*lists.back()));
      turn.is_running = turn.is_newer = true;
      if (before != nullptr) {
        KVRUN_RETURN_IF_ERROR(turns_.Finish(*before, nullptr));
        KVRUN_RETURN_IF_ERROR(turns_.LeaveNewer(*before));
      }
      before = &turn;
    }
    return next != nullptr ? turns_.Bring(*next, turns_.Of(*next), nullptr) : Status::Ok();
  };
  const Status finished = finish();
  const Status waited = turns_.FinishAll(nullptr);  // lists must outlive what runs
  KVRUN_RETURN_IF_ERROR(finished);
  return waited;
}

// Up to its own tile, and that is stored. While the device computes the queries, the tile before goes to the
// spill file; while it attends, the hidden states of `next` come.
Status PrefillTiles::BeginChunk(uint32_t layer, BlockChunk& in_block, uint32_t tile_before, const Chunk* next,
                                std::span<const StepRow> rows, PrefillSink& sink) {
  const Chunk& chunk = *in_block.chunk;
  Turn& turn = turns_.Of(chunk);
  KVRUN_RETURN_IF_ERROR(turns_.Bring(chunk, turn, &sink));
  StepPlace place = turn.place;
  place.qkv = in_block.qkv;
  std::vector<uint32_t> tapped;
  const uint32_t first = prompt_.begin + chunk.first_row;
  sink.ChooseTapped(first, chunk.n_rows, &tapped);
  WriteChunk(chunk, rows, place, tapped);
  AttentionArgs attention = TileAttention(layer, chunk.n_rows, place, chunk.tile);
  attention.parts_after = in_block.parts;
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<CommandList> queries, device_.CreateCommandList());
  KVRUN_RETURN_IF_ERROR(commands_.Qkv(*queries, ModelLayer(layer), chunk.n_rows, place));
  KVRUN_RETURN_IF_ERROR(queries->Finish());
  Status spilled_and_loaded = Beside(*queries, [&]() -> Status {
    if (tile_before > 0) KVRUN_RETURN_IF_ERROR(SpillLater(tile_before));
    return sink.LoadEarlier(layer, chunk.tile, later_.get());
  });
  KVRUN_RETURN_IF_ERROR(spilled_and_loaded);
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<CommandList> list, device_.CreateCommandList());
  KVRUN_RETURN_IF_ERROR(list->RopeAndStore(attention));
  KVRUN_RETURN_IF_ERROR(sink.Tap(
      *list, {place.step, place.qkv, static_cast<uint32_t>(tapped.size()), chunk.n_rows, chunk.skip_rows}));
  KVRUN_RETURN_IF_ERROR(list->Attend(attention));
  KVRUN_RETURN_IF_ERROR(list->Finish());
  KVRUN_RETURN_IF_ERROR(Beside(*list, [&]() -> Status {
    return next != nullptr ? turns_.Bring(*next, turns_.Of(*next), &sink) : Status::Ok();
  }));
  KVRUN_RETURN_IF_ERROR(sink.EndTap(first, tapped));
  return sink.StoreTile(layer, chunk.tile);
}

// From this tile on as many as are read together, or as there are before the block's last chunk.
Status PrefillTiles::AttendRead(uint32_t layer, uint32_t first, const StepProgress& progress,
                                std::span<BlockChunk> block, PrefillSink& sink) {
  const uint32_t n = std::min(tiling_.read_tiles, block.back().chunk->tile - first);
  KVRUN_RETURN_IF_ERROR(AskProgress(ModelLayer(layer), *block.back().chunk, progress));
  KVRUN_RETURN_IF_ERROR(ReadEarlier(layer, first, n, sink));
  return AttendEarlier(layer, first, n, progress, block);
}

// Tiles side by side, as one.
Status PrefillTiles::ReadEarlier(uint32_t layer, uint32_t first, uint32_t n, PrefillSink& sink) {
  const uint32_t n_held = std::exchange(held_first_, 0) == first ? held_tiles_ : 0;
  for (uint32_t i = n_held; i < n; ++i) {
    KVRUN_RETURN_IF_ERROR(is_left_stored(first + i) ? CopyStored(layer, first + i, i, sink)
                                                    : spill_.ReadTile(first + i, AllPlanes(), i,
                                                                      tiling_.read_tiles, earlier_->host()));
  }
  held_first_ = first;
  held_tiles_ = n;
  return n > n_held ? earlier_->Flush(0, earlier_->size_bytes()) : Status::Ok();
}

// By way of `later_`, which none that is computed needs now.
Status PrefillTiles::CopyStored(uint32_t layer, uint32_t tile, uint32_t nth, PrefillSink& sink) {
  KVRUN_RETURN_IF_ERROR(sink.LoadEarlier(layer, tile, later_.get()));
  KVRUN_RETURN_IF_ERROR(later_->Invalidate(0, later_->size_bytes()));
  const uint64_t n_planes = uint64_t{2} * tiling_.later.n_kv_heads;
  const uint64_t plane_bytes = later_->size_bytes() / n_planes;
  CopyPlanes(n_planes, plane_bytes, later_->host().data(), plane_bytes,
             earlier_->host().data() + nth * plane_bytes, tiling_.read_tiles * plane_bytes);
  return Status::Ok();
}

// All chunks of the block that come after the first of these tiles; in one list those that see as many.
Status PrefillTiles::AttendEarlier(uint32_t layer, uint32_t first, uint32_t n, const StepProgress& progress,
                                   std::span<BlockChunk> block) {
  const auto seen = [&](const BlockChunk& of) { return std::min(n, of.chunk->tile - first); };
  auto begin = std::find_if(block.begin(), block.end(), [&](const auto& c) { return c.chunk->tile > first; });
  while (begin != block.end()) {
    KVRUN_RETURN_IF_ERROR(AskProgress(ModelLayer(layer), *block.back().chunk, progress));
    const uint32_t n_seen = seen(*begin);
    const auto end = std::find_if(begin, block.end(), [&](const auto& c) { return seen(c) != n_seen; });
    auto* step = reinterpret_cast<StepParams*>(earlier_step_->host().data());
    for (StepToken& token : step->tokens) token.position = n_seen * tiling_.shape(first).n_ctx - 1;
    KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<CommandList> list, device_.CreateCommandList());
    for (; begin != end; ++begin) {
      StepPlace place = commands_.own();
      place.step = earlier_step_.get();
      place.qkv = begin->qkv;
      AttentionArgs attention = TileAttention(layer, begin->chunk->n_rows, place, first);
      if (first > 0) {
        attention.kv = earlier_.get();
        attention.kv_shape = tiling_.several();
      }
      attention.parts_before = begin->parts;
      attention.parts_after = block_room_.TakeParts();
      block_room_.GiveParts(std::exchange(begin->parts, attention.parts_after));
      KVRUN_RETURN_IF_ERROR(list->Attend(attention));
    }
    KVRUN_RETURN_IF_ERROR(list->Finish());
    KVRUN_RETURN_IF_ERROR(device_.Execute(*list));
  }
  return Status::Ok();
}

// What all chunks have attended to, in the place of their queries: the rest of the layer takes that of the
// parts.
Status PrefillTiles::FinishAttention(uint32_t layer, std::span<const BlockChunk> block) {
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<CommandList> list, device_.CreateCommandList());
  for (const BlockChunk& in_block : block) {
    StepPlace place = commands_.own();
    place.attended = in_block.qkv;
    AttentionArgs attention = TileAttention(layer, in_block.chunk->n_rows, place, in_block.chunk->tile);
    attention.parts_after = in_block.parts;
    KVRUN_RETURN_IF_ERROR(list->FinishAttention(attention));
  }
  KVRUN_RETURN_IF_ERROR(list->Finish());
  return device_.Execute(*list);
}

}  // namespace kvrun
