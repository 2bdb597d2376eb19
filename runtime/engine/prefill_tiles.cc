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
  KVRUN_RETURN_IF_ERROR(tiles->CreateTurns());
  return tiles;
}

PrefillTiles::PrefillTiles(Device& device, StepCommands& commands, const KvPlan& plan, SpillFile* spill)
    : device_(device),
      commands_(commands),
      plan_(plan),
      spill_(spill),
      tile_shape_(TileShape(plan, commands.config())) {}

Status PrefillTiles::CreateTurns() {
  turns_.resize(1);
  turns_[0].place = commands_.own();
  if (commands_.logits_buffer()->size_bytes() < ChunkHiddenBytes(commands_.config())) return Status::Ok();
  turns_.resize(2);
  turns_[1].place = commands_.own();
  turns_[1].place.hidden = commands_.logits_buffer();
  if (is_tiled() || !plan_.has_inputs_ahead) return Status::Ok();
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
  earlier_lists_.clear();
  for (Turn& turn : turns_) KVRUN_RETURN_IF_ERROR(LeaveNewer(turn));
  return Status::Ok();
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
  AttentionArgs attention = TileAttention(0, chunk_rows, commands_.own());
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

AttentionArgs PrefillTiles::TileAttention(uint32_t layer, uint32_t n_rows, const StepPlace& place) const {
  AttentionArgs attention = commands_.Attention(layer, n_rows, n_rows > 1, /*is_prompt=*/true);
  attention.step = place.step;
  attention.angles = place.angles;
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
  const Status ran = RunTiles(layer, rows, progress, sink);
  if (!ran.ok()) static_cast<void>(FinishAll(nullptr));  // lists must outlive what runs
  return ran;
}

Status PrefillTiles::RunTiles(uint32_t layer, std::span<const StepRow> rows, const StepProgress& progress,
                              PrefillSink& sink) {
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
    // After a layer's last chunk comes the next layer's first.
    if (chunk == chunks_.end() && layer + 1 < commands_.config().n_layers) {
      KVRUN_RETURN_IF_ERROR(Bring(chunks_.front(), TurnOf(chunks_.front()), &sink));
    }
    KVRUN_RETURN_IF_ERROR(FinishAll(&sink));
    KVRUN_RETURN_IF_ERROR(sink.StoreTile(layer, tile));
    if (n_tiles() == 1) continue;
    KVRUN_RETURN_IF_ERROR(tile_->Invalidate(0, tile_->size_bytes()));
    KVRUN_RETURN_IF_ERROR(spill_->Write(TileOffset(tile), tile_->host()));
  }
  return Status::Ok();
}

Status PrefillTiles::ComputeChunk(uint32_t layer, const Chunk& chunk, std::span<const StepRow> rows,
                                  PrefillSink& sink) {
  Turn& turn = TurnOf(chunk);
  KVRUN_RETURN_IF_ERROR(Bring(chunk, turn, &sink));
  // The tile holds one sequence, number 0 to its kernels.
  const std::span<const StepRow> given = rows.subspan(chunk.first_row, chunk.n_rows);
  tile_rows_.assign(given.begin(), given.end());
  for (StepRow& row : tile_rows_) row.sequence = 0;
  turn.tapped.clear();
  sink.ChooseTapped(given[0].position, chunk.n_rows, &turn.tapped);
  KVRUN_RETURN_IF_ERROR(FreeInputs(turn, turn.tapped.size(), &sink));
  commands_.WriteRows(turn.place, tile_rows_, chunk.tile * tile_tokens());
  commands_.WriteOutputs(turn.place, turn.tapped);
  KVRUN_ASSIGN_OR_RETURN(ChunkLists * lists, ListsFor(layer, chunk, turn, sink));
  turn.is_newer = true;
  KVRUN_ASSIGN_OR_RETURN(turn.value, device_.Submit(*lists->before));
  turn.is_running = true;
  const uint64_t before = turn.value;
  if (chunk.tile > 0) KVRUN_RETURN_IF_ERROR(device_.Wait(before));
  for (uint32_t tile = 0; tile < chunk.tile; ++tile) {
    KVRUN_RETURN_IF_ERROR(AttendEarlierTile(layer, chunk, tile, sink));
  }
  KVRUN_ASSIGN_OR_RETURN(turn.value, device_.Submit(*lists->after));
  if (is_tiled() || &chunk != &chunks_.back()) return Status::Ok();
  KVRUN_RETURN_IF_ERROR(device_.Wait(before));
  return sink.NoteSums(layer);
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
  AttentionArgs attention = TileAttention(0, chunk.n_rows, commands_.own());
  attention.kv = earlier_.get();
  attention.step = whole_tile_.get();
  attention.parts_before = tile == 0 ? nullptr : parts_[1 - parity].get();
  attention.parts_after = parts_[parity].get();
  KVRUN_RETURN_IF_ERROR(list->Attend(attention));
  KVRUN_RETURN_IF_ERROR(list->Finish());
  earlier_lists_.push_back({chunk.n_rows, tile == 0, parity, std::move(list)});
  return device_.Execute(*earlier_lists_.back().list);
}

Result<PrefillTiles::ChunkLists*> PrefillTiles::ListsFor(uint32_t layer, const Chunk& chunk, const Turn& turn,
                                                         PrefillSink& sink) {
  const bool has_earlier = chunk.tile > 0;
  const uint32_t parity = chunk.tile % 2;
  for (ChunkLists& entry : lists_) {
    if (entry.n_rows == chunk.n_rows && entry.skip_rows == chunk.skip_rows &&
        entry.n_tapped == turn.tapped.size() && entry.has_earlier == has_earlier && entry.parity == parity &&
        entry.hidden == turn.place.hidden) {
      return &entry;
    }
  }
  const auto n_tapped = static_cast<uint32_t>(turn.tapped.size());
  AttentionArgs attention = TileAttention(layer, chunk.n_rows, turn.place);
  if (has_earlier) {
    attention.parts_before = parts_[1 - parity].get();
    attention.parts_after = parts_[parity].get();
  }
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<CommandList> before, device_.CreateCommandList());
  KVRUN_RETURN_IF_ERROR(commands_.BeforeAttention(*before, layer, chunk.n_rows, turn.place));
  KVRUN_RETURN_IF_ERROR(before->RopeAndStore(attention));
  KVRUN_RETURN_IF_ERROR(sink.Tap(*before, {turn.place.step, n_tapped, chunk.n_rows, chunk.skip_rows}));
  KVRUN_RETURN_IF_ERROR(before->Finish());
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<CommandList> after, device_.CreateCommandList());
  KVRUN_RETURN_IF_ERROR(after->Attend(attention));
  if (has_earlier) KVRUN_RETURN_IF_ERROR(after->FinishAttention(attention));
  KVRUN_RETURN_IF_ERROR(commands_.AfterAttention(*after, layer, chunk.n_rows, turn.place));
  KVRUN_RETURN_IF_ERROR(after->Finish());
  lists_.push_back({chunk.n_rows, chunk.skip_rows, n_tapped, has_earlier, parity, turn.place.hidden,
                    std::move(before), std::move(after)});
  return &lists_.back();
}

}  // namespace kvrun
