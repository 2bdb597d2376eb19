#include "runtime/engine/offloaded/prefill_tiles.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "platform/base/check.h"
#include "platform/base/units.h"
#include "runtime/kv/planner/kv_plan_sizes.h"
#include "shaders/shared/step_params.h"

namespace kvrun {
namespace {

uint64_t ChunkHiddenBytes(const ModelConfig& config) {
  return uint64_t{kChunkRows} * config.n_embd * sizeof(float);
}

// Chunks of a block, however much room there is: more read little less. And however little: with fewer, a
// prompt of 16 tiles reads its KV four times.
constexpr size_t kMostBlockChunks = 16;
constexpr size_t kLeastBlockChunks = 3;

}  // namespace

Result<std::unique_ptr<PrefillTiles>> PrefillTiles::Create(Device& device, StepCommands& commands,
                                                           const KvPlan& plan, SpillFile* spill) {
  std::unique_ptr<PrefillTiles> tiles(new PrefillTiles(device, commands, plan, spill));
  KVRUN_RETURN_IF_ERROR(tiles->CreateTiles());
  KVRUN_RETURN_IF_ERROR(tiles->is_tiled() ? tiles->CreateBlockBuffers() : tiles->CreateTurns());
  return tiles;
}

PrefillTiles::PrefillTiles(Device& device, StepCommands& commands, const KvPlan& plan, SpillFile* spill)
    : device_(device),
      commands_(commands),
      plan_(plan),
      spill_(plan, commands.config(), spill),
      tiling_(KvTiling::Of(plan, commands.config())) {}

Status PrefillTiles::CreateTurns() {
  turns_.resize(1);
  turns_[0].place = commands_.own();
  if (commands_.logits_buffer()->size_bytes() < ChunkHiddenBytes(commands_.config())) return Status::Ok();
  turns_.resize(2);
  turns_[1].place = commands_.own();
  turns_[1].place.hidden = commands_.logits_buffer();
  if (!plan_.has_inputs_ahead) return Status::Ok();
  KVRUN_ASSIGN_OR_RETURN(other_inputs_, StepInputs::Create(commands_.config(), device_, "kv"));
  turns_[1].place.step = other_inputs_.step.get();
  turns_[1].place.angles = other_inputs_.angles.get();
  return Status::Ok();
}

Status PrefillTiles::MakeBuffer(std::unique_ptr<Buffer>* buffer, uint64_t size_bytes, BufferUse use) {
  KVRUN_ASSIGN_OR_RETURN(*buffer, device_.CreateBuffer(size_bytes, use, "kv"));
  return Status::Ok();
}

Status PrefillTiles::Begin(std::span<const StepRow> rows) {
  prompt_ = {rows[0].sequence, rows[0].position, static_cast<uint32_t>(rows[0].position + rows.size())};
  PlanChunks();
  for (Turn& turn : turns_) {
    turn.held = nullptr;
    turn.is_newer = false;
  }
  last_turn_ = turns_.size() - 1;
  if (!plan_.spills_hidden) hidden_.resize(rows.size() * commands_.config().n_embd);
  return Embed(rows);
}

Status PrefillTiles::End() {
  lists_.clear();
  for (Turn& turn : turns_) KVRUN_RETURN_IF_ERROR(LeaveNewer(turn));
  if (!is_tiled()) return Status::Ok();
  // The logits' memory is theirs again.
  turns_.resize(1);
  block_qkv_.clear();
  free_parts_.clear();
  block_memory_.clear();
  parts_memory_.clear();
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

// What a block takes but its tiles: in the place of the logits, and of what the feed-forward network leaves
// idle. Where a chunk needs more than that, it gets it, as activations do.
Status PrefillTiles::CreateBlockBuffers() {
  uint64_t room = commands_.logits_buffer()->size_bytes();
  commands_.GiveUpLogits();
  const auto take = [&room](uint64_t bytes) {
    const bool is_there = bytes <= room;
    room -= std::min(bytes, room);
    return is_there;
  };
  const auto make = [this](uint64_t bytes, BufferUse use) {
    return device_.CreateBuffer(bytes, use, "activations");
  };
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
  take(scratch_bytes);
  KVRUN_ASSIGN_OR_RETURN(scratch_, make(scratch_bytes, BufferUse::kDevice));
  take(spill_.room_bytes());
  KVRUN_ASSIGN_OR_RETURN(spill_room_, make(spill_.room_bytes(), BufferUse::kShared));
  spill_.UseRoom(spill_room_->host());
  const uint64_t hidden_bytes = ChunkHiddenBytes(commands_.config());
  turns_.resize(1);
  turns_[0].place = commands_.own();
  const auto add_turn = [&]() -> Status {
    KVRUN_ASSIGN_OR_RETURN(block_memory_.emplace_back(), make(hidden_bytes, BufferUse::kShared));
    turns_.emplace_back().place = commands_.own();
    turns_.back().place.hidden = block_memory_.back().get();
    return Status::Ok();
  };
  if (take(hidden_bytes)) KVRUN_RETURN_IF_ERROR(add_turn());
  FindParts();
  const auto add_parts = [&]() -> Status {
    KVRUN_ASSIGN_OR_RETURN(parts_memory_.emplace_back(), make(parts_bytes, BufferUse::kDevice));
    free_parts_.push_back({parts_memory_.back().get(), 0});
    return Status::Ok();
  };
  block_qkv_.push_back(commands_.qkv());
  const uint64_t qkv_bytes = uint64_t{chunk_rows} * commands_.qkv_dim() * sizeof(float);
  // Each chunk of a block has a turn, so that its hidden states come once.
  const size_t n_later = CeilDiv(plan_.n_ctx - tiling_.first.n_ctx, chunk_rows);
  while (block_qkv_.size() < std::min(kMostBlockChunks, n_later)) {
    const bool needs_turn = turns_.size() == block_qkv_.size();
    const bool needs_parts = free_parts_.size() < block_qkv_.size() + 2;
    const bool has_room = take(qkv_bytes + (needs_parts ? parts_bytes : 0) + (needs_turn ? hidden_bytes : 0));
    if (!has_room && block_qkv_.size() >= kLeastBlockChunks) break;
    if (needs_turn) KVRUN_RETURN_IF_ERROR(add_turn());
    KVRUN_ASSIGN_OR_RETURN(block_memory_.emplace_back(), make(qkv_bytes, BufferUse::kDevice));
    block_qkv_.push_back(block_memory_.back().get());
    if (needs_parts) KVRUN_RETURN_IF_ERROR(add_parts());
  }
  while (free_parts_.size() < block_qkv_.size() + 1) KVRUN_RETURN_IF_ERROR(add_parts());
  return Status::Ok();
}

// In the feed-forward network's activations, and in memory of their own.
void PrefillTiles::FindParts() {
  const uint32_t chunk_rows = tiling_.later.n_ctx;
  const uint64_t parts_bytes = TileAttention(0, chunk_rows, commands_.own(), 1).parts_bytes();
  free_parts_.clear();
  for (Buffer* idle : commands_.feed_forward()) {
    const auto n = static_cast<uint32_t>(idle->size_bytes() / parts_bytes);
    for (uint32_t i = 0; i < n; ++i)
      free_parts_.push_back({idle, i * chunk_rows * commands_.config().n_heads});
  }
  for (const std::unique_ptr<Buffer>& own : parts_memory_) free_parts_.push_back({own.get(), 0});
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
    FindParts();
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
  free_parts_.clear();
  commands_.GiveUpFeedForward();
  earlier_.reset();
  earlier_step_.reset();
}

AttentionArgs PrefillTiles::TileAttention(uint32_t layer, uint32_t n_rows, const StepPlace& place,
                                          uint32_t tile) const {
  AttentionArgs attention = commands_.Attention(layer, n_rows, /*of_prompt=*/true);
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

Status PrefillTiles::Embed(std::span<const StepRow> rows) {
  const auto embed = [&](const Chunk& chunk) -> Status {
    Turn& turn = TurnOf(chunk);
    KVRUN_RETURN_IF_ERROR(Finish(turn, nullptr));
    KVRUN_RETURN_IF_ERROR(LeaveNewer(turn));
    KVRUN_RETURN_IF_ERROR(FreeInputs(turn, 0, nullptr));
    KVRUN_ASSIGN_OR_RETURN(turn.embedding, device_.CreateCommandList());
    KVRUN_RETURN_IF_ERROR(commands_.Embed(*turn.embedding, chunk.n_rows, turn.place));
    KVRUN_RETURN_IF_ERROR(turn.embedding->Finish());
    commands_.WriteRows(turn.place, rows.subspan(chunk.first_row, chunk.n_rows), 0);
    KVRUN_ASSIGN_OR_RETURN(turn.value, device_.Submit(*turn.embedding));
    turn.held = &chunk;
    turn.is_running = turn.is_newer = true;
    return Status::Ok();
  };
  Status embedded;
  for (auto chunk = chunks_.begin(); embedded.ok() && chunk != chunks_.end(); ++chunk)
    embedded = embed(*chunk);
  const Status finished = FinishAll(nullptr);
  KVRUN_RETURN_IF_ERROR(embedded);
  return finished;
}

Status PrefillTiles::Leave(const Chunk& chunk, Buffer& from) {
  KVRUN_RETURN_IF_ERROR(from.Invalidate(0, HiddenBytes(chunk)));
  const std::span<const std::byte> bytes = from.host().first(HiddenBytes(chunk));
  if (hidden_.empty()) return spill_.WriteHidden(Number(chunk), bytes);
  std::memcpy(hidden_.data() + uint64_t{chunk.first_row} * commands_.config().n_embd, bytes.data(),
              bytes.size());
  return Status::Ok();
}

Status PrefillTiles::Come(const Chunk& chunk, Buffer& to) {
  const std::span<std::byte> bytes = to.host().first(HiddenBytes(chunk));
  if (hidden_.empty()) {
    KVRUN_RETURN_IF_ERROR(spill_.ReadHidden(Number(chunk), bytes));
  } else {
    std::memcpy(bytes.data(), hidden_.data() + uint64_t{chunk.first_row} * commands_.config().n_embd,
                bytes.size());
  }
  return to.Flush(0, bytes.size());
}

Status PrefillTiles::LeaveNewer(Turn& turn) {
  if (!std::exchange(turn.is_newer, false)) return Status::Ok();
  return Leave(*turn.held, *turn.place.hidden);
}

PrefillTiles::Turn& PrefillTiles::TurnOf(const Chunk& chunk) {
  for (size_t i = 0; i < turns_.size(); ++i) {
    if (turns_[i].held != &chunk) continue;
    last_turn_ = i;
    return turns_[i];
  }
  last_turn_ = (last_turn_ + 1) % turns_.size();
  return turns_[last_turn_];
}

Status PrefillTiles::Bring(const Chunk& chunk, Turn& turn, PrefillSink* sink) {
  KVRUN_RETURN_IF_ERROR(Finish(turn, sink));
  if (turn.held == &chunk) return Status::Ok();
  KVRUN_RETURN_IF_ERROR(LeaveNewer(turn));
  turn.held = nullptr;  // should it not come
  KVRUN_RETURN_IF_ERROR(Come(chunk, *turn.place.hidden));
  turn.held = &chunk;
  return Status::Ok();
}

// There is one buffer of gathered rows.
Status PrefillTiles::FreeInputs(const Turn& turn, size_t n_tapped, PrefillSink* sink) {
  for (Turn& other : turns_) {
    const bool is_shared = other.place.step == turn.place.step;
    if (is_shared || (n_tapped > 0 && !other.tapped.empty())) KVRUN_RETURN_IF_ERROR(Finish(other, sink));
  }
  return Status::Ok();
}

Status PrefillTiles::Finish(Turn& turn, PrefillSink* sink) {
  if (!turn.is_running) return Status::Ok();
  const Status waited = device_.Wait(turn.value);
  turn.is_running = false;
  turn.embedding.reset();
  const std::vector<uint32_t> tapped = std::exchange(turn.tapped, {});
  KVRUN_RETURN_IF_ERROR(waited);
  return sink != nullptr ? sink->EndTap(prompt_.begin + turn.held->first_row, tapped) : Status::Ok();
}

// In the order in which they were submitted.
Status PrefillTiles::FinishAll(PrefillSink* sink) {
  Status finished;
  for (size_t i = 1; i <= turns_.size(); ++i) {
    const Status of_turn = Finish(turns_[(last_turn_ + i) % turns_.size()], sink);
    if (finished.ok()) finished = of_turn;
  }
  return finished;
}

uint64_t PrefillTiles::HiddenBytes(const Chunk& chunk) const {
  return uint64_t{chunk.n_rows} * commands_.config().n_embd * sizeof(float);
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
  lists_.clear();
  held_first_ = 0;
  KVRUN_RETURN_IF_ERROR(CreateAttentionBuffers());
  KVRUN_RETURN_IF_ERROR(sink.BeginLayer(layer));
  const Status ran = RunTiles(layer, rows, progress, sink);
  if (!ran.ok()) static_cast<void>(FinishAll(nullptr));  // lists must outlive what runs
  return ran;
}

Status PrefillTiles::AskProgress(uint32_t layer, const Chunk& chunk, const StepProgress& progress) const {
  const uint64_t total = prompt_.end - prompt_.begin;
  const uint64_t done = (layer * total + chunk.first_row) / commands_.config().n_layers;
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
    const size_t n = std::min(left.size(), block_qkv_.size());
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
    KVRUN_RETURN_IF_ERROR(AskProgress(layer, *chunk, progress));
    KVRUN_RETURN_IF_ERROR(ComputeChunk(layer, *chunk, rows, sink));
  }
  // After a layer's last chunk comes the next layer's first.
  if (chunk == chunks_.end() && layer + 1 < commands_.config().n_layers) {
    KVRUN_RETURN_IF_ERROR(Bring(chunks_.front(), TurnOf(chunks_.front()), &sink));
  }
  KVRUN_RETURN_IF_ERROR(FinishAll(&sink));
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
  Turn& turn = TurnOf(chunk);
  KVRUN_RETURN_IF_ERROR(Bring(chunk, turn, &sink));
  turn.tapped.clear();
  sink.ChooseTapped(prompt_.begin + chunk.first_row, chunk.n_rows, &turn.tapped);
  KVRUN_RETURN_IF_ERROR(FreeInputs(turn, turn.tapped.size(), &sink));
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
  KVRUN_RETURN_IF_ERROR(commands_.BeforeAttention(*before, layer, chunk.n_rows, place));
  KVRUN_RETURN_IF_ERROR(before->RopeAndStore(attention));
  KVRUN_RETURN_IF_ERROR(sink.Tap(*before, {place.step, place.qkv, n_tapped, chunk.n_rows, chunk.skip_rows}));
  KVRUN_RETURN_IF_ERROR(before->Finish());
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<CommandList> after, device_.CreateCommandList());
  KVRUN_RETURN_IF_ERROR(after->Attend(attention));
  KVRUN_RETURN_IF_ERROR(commands_.AfterAttention(*after, layer, chunk.n_rows, place));
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
      KVRUN_RETURN_IF_ERROR(AskProgress(layer, chunk, progress));
      const uint32_t tile_before = block.empty() ? 0 : block.back().chunk->tile;
      const Chunk* const next = &chunk != &chunks.back() ? &chunk + 1 : nullptr;
      block.push_back({&chunk, block_qkv_[block.size()], free_parts_.back()});
      free_parts_.pop_back();
      KVRUN_RETURN_IF_ERROR(BeginChunk(layer, block.back(), tile_before, next, rows, sink));
    }
    KVRUN_RETURN_IF_ERROR(SpillLater(chunks.back().tile));
    KVRUN_RETURN_IF_ERROR(AttendEarlier(layer, 0, 1, block));
    // Then as many at a time as are read together: first those that the block before has read last.
    const uint32_t held = held_first_;
    if (held > 0) KVRUN_RETURN_IF_ERROR(AttendRead(layer, held, progress, block, sink));
    for (uint32_t tile = 1; tile < chunks.back().tile; tile += tiling_.read_tiles) {
      if (tile != held) KVRUN_RETURN_IF_ERROR(AttendRead(layer, tile, progress, block, sink));
    }
    return FinishAttention(layer, block);
  };
  const Status attended = attend_all();
  for (const BlockChunk& in_block : block) free_parts_.push_back(in_block.parts);
  KVRUN_RETURN_IF_ERROR(attended);
  const Chunk* next = nullptr;
  if (&chunks.back() != &chunks_.back()) {
    next = &chunks.back() + 1;
  } else if (layer + 1 < commands_.config().n_layers) {
    next = &chunks_.front();
  }
  return FinishBlock(layer, block, next);
}

Status PrefillTiles::FinishBlock(uint32_t layer, std::span<const BlockChunk> block, const Chunk* next) {
  std::vector<std::unique_ptr<CommandList>> lists;
  const auto finish = [&]() -> Status {
    Turn* before = nullptr;
    for (const BlockChunk& in_block : block) {
      const Chunk& chunk = *in_block.chunk;
      Turn& turn = TurnOf(chunk);
      KVRUN_RETURN_IF_ERROR(Bring(chunk, turn, nullptr));
      StepPlace place = turn.place;
      place.attended = in_block.qkv;
      KVRUN_ASSIGN_OR_RETURN(lists.emplace_back(), device_.CreateCommandList());
      KVRUN_RETURN_IF_ERROR(commands_.AfterAttention(*lists.back(), layer, chunk.n_rows, place));
      KVRUN_RETURN_IF_ERROR(lists.back()->Finish());
      KVRUN_ASSIGN_OR_RETURN(turn.value, device_.Submit(*lists.back()));
      turn.is_running = turn.is_newer = true;
      if (before != nullptr) {
        KVRUN_RETURN_IF_ERROR(Finish(*before, nullptr));
        KVRUN_RETURN_IF_ERROR(LeaveNewer(*before));
      }
      before = &turn;
    }
    return next != nullptr ? Bring(*next, TurnOf(*next), nullptr) : Status::Ok();
  };
  const Status finished = finish();
  const Status waited = FinishAll(nullptr);  // lists must outlive what runs
  KVRUN_RETURN_IF_ERROR(finished);
  return waited;
}

// Up to its own tile, and that is stored. While the device computes the queries, the tile before goes to the
// spill file; while it attends, the hidden states of `next` come.
Status PrefillTiles::BeginChunk(uint32_t layer, BlockChunk& in_block, uint32_t tile_before, const Chunk* next,
                                std::span<const StepRow> rows, PrefillSink& sink) {
  const Chunk& chunk = *in_block.chunk;
  Turn& turn = TurnOf(chunk);
  KVRUN_RETURN_IF_ERROR(Bring(chunk, turn, &sink));
  StepPlace place = turn.place;
  place.qkv = in_block.qkv;
  std::vector<uint32_t> tapped;
  const uint32_t first = prompt_.begin + chunk.first_row;
  sink.ChooseTapped(first, chunk.n_rows, &tapped);
  WriteChunk(chunk, rows, place, tapped);
  AttentionArgs attention = TileAttention(layer, chunk.n_rows, place, chunk.tile);
  attention.parts_after = in_block.parts;
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<CommandList> queries, device_.CreateCommandList());
  KVRUN_RETURN_IF_ERROR(commands_.BeforeAttention(*queries, layer, chunk.n_rows, place));
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
    return next != nullptr ? Bring(*next, TurnOf(*next), &sink) : Status::Ok();
  }));
  KVRUN_RETURN_IF_ERROR(sink.EndTap(first, tapped));
  return sink.StoreTile(layer, chunk.tile);
}

// From this tile on as many as are read together, or as there are before the block's last chunk.
Status PrefillTiles::AttendRead(uint32_t layer, uint32_t first, const StepProgress& progress,
                                std::span<BlockChunk> block, PrefillSink& sink) {
  const uint32_t n = std::min(tiling_.read_tiles, block.back().chunk->tile - first);
  KVRUN_RETURN_IF_ERROR(AskProgress(layer, *block.back().chunk, progress));
  KVRUN_RETURN_IF_ERROR(ReadEarlier(layer, first, n, sink));
  return AttendEarlier(layer, first, n, block);
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
Status PrefillTiles::AttendEarlier(uint32_t layer, uint32_t first, uint32_t n, std::span<BlockChunk> block) {
  const auto seen = [&](const BlockChunk& of) { return std::min(n, of.chunk->tile - first); };
  auto begin = std::find_if(block.begin(), block.end(), [&](const auto& c) { return c.chunk->tile > first; });
  while (begin != block.end()) {
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
      attention.parts_after = std::exchange(free_parts_.back(), begin->parts);
      begin->parts = attention.parts_after;
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
