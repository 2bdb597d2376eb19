#include "runtime/engine/offloaded_prefill.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "platform/base/check.h"
#include "platform/base/units.h"
#include "runtime/kv/index_rows.h"
#include "runtime/kv/kv_plan_sizes.h"
#include "shaders/shared/step_params.h"

namespace kvrun {
namespace {

// Groups that are encoded, or decoded, at once.
constexpr uint32_t kRecordsAtOnce = 64;

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

std::span<float> Floats(Buffer& buffer) {
  const std::span<std::byte> bytes = buffer.host();
  return {reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float)};
}

}  // namespace

uint64_t OffloadedPrefill::SpillBytes(const KvPlan& plan, const ModelConfig& config) {
  const KvShape tile = TileShape(plan, config);
  const uint64_t n_tiles = CeilDiv(plan.n_ctx, tile.n_ctx);
  return HiddenSpillBytes(plan, config) + (n_tiles > 1 ? n_tiles * SpillAligned(tile.size_bytes()) : 0);
}

Result<std::unique_ptr<OffloadedPrefill>> OffloadedPrefill::Create(Device& device, StepCommands& commands,
                                                                   OffloadedCache& cache, SpillFile* spill) {
  std::unique_ptr<OffloadedPrefill> prefill(new OffloadedPrefill(device, commands, cache, spill));
  KVRUN_RETURN_IF_ERROR(prefill->CreateBuffers());
  KVRUN_RETURN_IF_ERROR(prefill->CreateTile());
  return prefill;
}

Result<std::unique_ptr<OffloadedPrefill>> OffloadedPrefill::CreateImport(Device& device,
                                                                         StepCommands& commands,
                                                                         OffloadedCache& cache) {
  std::unique_ptr<OffloadedPrefill> prefill(new OffloadedPrefill(device, commands, cache, nullptr));
  KVRUN_RETURN_IF_ERROR(prefill->CreateBuffers());
  return prefill;
}

OffloadedPrefill::OffloadedPrefill(Device& device, StepCommands& commands, OffloadedCache& cache,
                                   SpillFile* spill)
    : device_(device),
      commands_(commands),
      cache_(cache),
      spill_(spill),
      tile_shape_(TileShape(cache.plan(), commands.config())) {}

Status OffloadedPrefill::MakeBuffer(std::unique_ptr<Buffer>* buffer, uint64_t size_bytes, BufferUse use) {
  KVRUN_ASSIGN_OR_RETURN(*buffer, device_.CreateBuffer(size_bytes, use, "kv"));
  return Status::Ok();
}

Status OffloadedPrefill::CreateBuffers() {
  const ModelConfig& config = commands_.config();
  const KvPlan& plan = cache_.plan();
  KVRUN_RETURN_IF_ERROR(MakeBuffer(
      &records_,
      kRecordsAtOnce * heads() * std::max(plan.record.size_bytes(), plan.window_record.size_bytes()),
      BufferUse::kShared));
  if (plan.method.has_index()) {
    KVRUN_RETURN_IF_ERROR(
        MakeBuffer(&projected_, uint64_t{kChunkRows} * plan.index.rank * sizeof(float), BufferUse::kShared));
  }
  if (!makes_adapter()) return Status::Ok();
  KVRUN_ASSIGN_OR_RETURN(sums_, LayerSumBuffers::Create(device_, config, "kv"));
  return Status::Ok();
}

Status OffloadedPrefill::CreateTile() {
  KVRUN_RETURN_IF_ERROR(
      MakeBuffer(&tile_, tile_shape_.size_bytes(), is_tiled() ? BufferUse::kShared : BufferUse::kDevice));
  source_ = tile_.get();
  return Status::Ok();
}

Status OffloadedPrefill::CreateAttentionBuffers() {
  if (scratch_ != nullptr) return Status::Ok();
  const uint32_t chunk_rows = ChunkRows(cache_.plan(), commands_.config());
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
void OffloadedPrefill::DropAttentionBuffers() {
  if (!is_tiled()) return;
  lists_.clear();
  earlier_lists_.clear();
  earlier_.reset();
  for (auto& parts : parts_) parts.reset();
  whole_tile_.reset();
  scratch_.reset();
}

AttentionArgs OffloadedPrefill::TileAttention(uint32_t layer, uint32_t n_rows) const {
  AttentionArgs attention = commands_.Attention(layer, n_rows, n_rows > 1, /*is_prompt=*/true);
  attention.kv = tile_.get();
  attention.kv_shape = tile_shape_;
  attention.scratch = scratch_.get();
  return attention;
}

Status OffloadedPrefill::Execute(CommandList& list) {
  KVRUN_ASSIGN_OR_RETURN(const uint64_t value, device_.Submit(list));
  return device_.Wait(value);
}

void OffloadedPrefill::PlanChunks() {
  chunks_.clear();
  const uint32_t chunk_rows = ChunkRows(cache_.plan(), commands_.config());
  for (uint32_t position = begin_; position < end_;) {
    const uint32_t tile = position / tile_tokens();
    const uint32_t n = std::min({chunk_rows, end_ - position, (tile + 1) * tile_tokens() - position});
    chunks_.push_back({.first_row = position - begin_,
                       .n_rows = n,
                       .tile = tile,
                       .position_in_tile = position - tile * tile_tokens(),
                       .skip_rows = position < n_sinks() ? std::min(n, n_sinks() - position) : 0});
    position += n;
  }
}

Status OffloadedPrefill::Run(std::span<const StepRow> rows, const StepProgress& progress) {
  sequence_ = rows[0].sequence;
  begin_ = rows[0].position;
  end_ = static_cast<uint32_t>(begin_ + rows.size());
  PlanChunks();
  if (!cache_.plan().spills_hidden) hidden_.resize(rows.size() * commands_.config().n_embd);
  KVRUN_RETURN_IF_ERROR(Embed(rows));
  for (uint32_t layer = 0; layer < commands_.config().n_layers; ++layer) {
    KVRUN_RETURN_IF_ERROR(RunLayer(layer, rows, progress));
    if (!cache_.plan().method.has_index()) continue;
    if (makes_adapter()) KVRUN_RETURN_IF_ERROR(MakeAdapter(layer));
    KVRUN_RETURN_IF_ERROR(StoreIndex(layer));
  }
  lists_.clear();
  earlier_lists_.clear();
  KVRUN_RETURN_IF_ERROR(cache_.EndPrefill(sequence_, end_));
  // Not before: after an error the next prompt makes its own.
  if (makes_adapter() && HasEnoughKeys()) cache_.NoteAdapterComplete();
  return Status::Ok();
}

Status OffloadedPrefill::Embed(std::span<const StepRow> rows) {
  for (const Chunk& chunk : chunks_) {
    KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<CommandList> list, device_.CreateCommandList());
    KVRUN_RETURN_IF_ERROR(commands_.Embed(*list, chunk.n_rows));
    KVRUN_RETURN_IF_ERROR(list->Finish());
    commands_.WriteRows(rows.subspan(chunk.first_row, chunk.n_rows));
    KVRUN_RETURN_IF_ERROR(Execute(*list));
    KVRUN_RETURN_IF_ERROR(SaveHidden(chunk));
  }
  return Status::Ok();
}

Status OffloadedPrefill::SaveHidden(const Chunk& chunk) {
  Buffer& hidden = *commands_.hidden();
  const uint64_t row_bytes = commands_.config().n_embd * sizeof(float);
  KVRUN_RETURN_IF_ERROR(hidden.Invalidate(0, chunk.n_rows * row_bytes));
  const std::span<const std::byte> bytes = hidden.host().first(chunk.n_rows * row_bytes);
  if (!hidden_.empty()) {
    std::memcpy(hidden_.data() + uint64_t{chunk.first_row} * commands_.config().n_embd, bytes.data(),
                bytes.size());
    return Status::Ok();
  }
  return spill_->Write(HiddenOffset(chunk), bytes);
}

uint64_t OffloadedPrefill::HiddenOffset(const Chunk& chunk) const {
  return static_cast<uint64_t>(&chunk - chunks_.data()) * SpillAligned(ChunkHiddenBytes(commands_.config()));
}

uint64_t OffloadedPrefill::TileOffset(uint32_t tile) const {
  return HiddenSpillBytes(cache_.plan(), commands_.config()) + tile * SpillAligned(tile_shape_.size_bytes());
}

Status OffloadedPrefill::LoadChunk(const Chunk& chunk) {
  Buffer& hidden = *commands_.hidden();
  const uint64_t bytes = uint64_t{chunk.n_rows} * commands_.config().n_embd * sizeof(float);
  if (!hidden_.empty()) {
    std::memcpy(hidden.host().data(), hidden_.data() + uint64_t{chunk.first_row} * commands_.config().n_embd,
                bytes);
  } else {
    KVRUN_RETURN_IF_ERROR(spill_->Read(HiddenOffset(chunk), hidden.host().first(bytes)));
  }
  return hidden.Flush(0, bytes);
}

Result<OffloadedPrefill::Rows> OffloadedPrefill::LoadHidden(uint32_t row) {
  const auto chunk = std::find_if(chunks_.begin(), chunks_.end(),
                                  [row](const Chunk& c) { return row < c.first_row + c.n_rows; });
  KVRUN_CHECK(chunk != chunks_.end());
  KVRUN_RETURN_IF_ERROR(LoadChunk(*chunk));
  return Rows{chunk->first_row, chunk->n_rows};
}

Status OffloadedPrefill::RunLayer(uint32_t layer, std::span<const StepRow> rows,
                                  const StepProgress& progress) {
  lists_.clear();
  KVRUN_RETURN_IF_ERROR(CreateAttentionBuffers());
  if (makes_adapter()) KVRUN_RETURN_IF_ERROR(sums_->Clear());
  auto chunk = chunks_.begin();
  for (uint32_t tile = 0; tile < n_tiles(); ++tile) {
    KVRUN_RETURN_IF_ERROR(LoadStoredEntries(layer, tile));
    for (; chunk != chunks_.end() && chunk->tile == tile; ++chunk) {
      const uint64_t n_layers = commands_.config().n_layers;
      const uint64_t done = (uint64_t{layer} * rows.size() + chunk->first_row) / n_layers;
      if (progress && progress(done, rows.size())) {
        return {StatusCode::kCancelled,
                fmt::format("cancelled after {} of {} tokens of the prompt", done, rows.size())};
      }
      KVRUN_RETURN_IF_ERROR(ComputeChunk(layer, *chunk, rows));
    }
    KVRUN_RETURN_IF_ERROR(StoreRecords(layer, tile));
    if (n_tiles() == 1) continue;
    KVRUN_RETURN_IF_ERROR(tile_->Invalidate(0, tile_->size_bytes()));
    KVRUN_RETURN_IF_ERROR(spill_->Write(TileOffset(tile), tile_->host()));
  }
  return Status::Ok();
}

Status OffloadedPrefill::ComputeChunk(uint32_t layer, const Chunk& chunk, std::span<const StepRow> rows) {
  // The tile holds one sequence, number 0 to its kernels.
  const std::span<const StepRow> given = rows.subspan(chunk.first_row, chunk.n_rows);
  tile_rows_.assign(given.begin(), given.end());
  for (StepRow& row : tile_rows_) row.sequence = 0;
  commands_.WriteRows(tile_rows_, chunk.tile * tile_tokens());
  KVRUN_RETURN_IF_ERROR(LoadChunk(chunk));
  KVRUN_ASSIGN_OR_RETURN(ChunkLists * lists, ListsFor(layer, chunk));
  KVRUN_RETURN_IF_ERROR(Execute(*lists->before));
  for (uint32_t tile = 0; tile < chunk.tile; ++tile) KVRUN_RETURN_IF_ERROR(AttendEarlierTile(chunk, tile));
  KVRUN_RETURN_IF_ERROR(Execute(*lists->after));
  return SaveHidden(chunk);
}

Status OffloadedPrefill::AttendEarlierTile(const Chunk& chunk, uint32_t tile) {
  KVRUN_RETURN_IF_ERROR(spill_->Read(TileOffset(tile), earlier_->host()));
  KVRUN_RETURN_IF_ERROR(earlier_->Flush(0, earlier_->size_bytes()));
  const uint32_t parity = tile % 2;
  for (const EarlierList& entry : earlier_lists_) {
    if (entry.n_rows == chunk.n_rows && entry.is_first == (tile == 0) && entry.parity == parity) {
      return Execute(*entry.list);
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
  return Execute(*earlier_lists_.back().list);
}

Result<OffloadedPrefill::ChunkLists*> OffloadedPrefill::ListsFor(uint32_t layer, const Chunk& chunk) {
  const bool has_earlier = chunk.tile > 0;
  const uint32_t parity = chunk.tile % 2;
  for (ChunkLists& entry : lists_) {
    if (entry.n_rows == chunk.n_rows && entry.skip_rows == chunk.skip_rows &&
        entry.has_earlier == has_earlier && entry.parity == parity) {
      return &entry;
    }
  }
  AttentionArgs attention = TileAttention(layer, chunk.n_rows);
  if (has_earlier) {
    attention.parts_before = parts_[1 - parity].get();
    attention.parts_after = parts_[parity].get();
  }
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<CommandList> before, device_.CreateCommandList());
  KVRUN_RETURN_IF_ERROR(commands_.BeforeAttention(*before, layer, chunk.n_rows));
  KVRUN_RETURN_IF_ERROR(before->RopeAndStore(attention));
  if (makes_adapter()) {
    KVRUN_RETURN_IF_ERROR(sums_->Record(*before, commands_, chunk.n_rows, chunk.skip_rows));
  }
  KVRUN_RETURN_IF_ERROR(before->Finish());
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<CommandList> after, device_.CreateCommandList());
  KVRUN_RETURN_IF_ERROR(after->Attend(attention));
  if (has_earlier) KVRUN_RETURN_IF_ERROR(after->FinishAttention(attention));
  KVRUN_RETURN_IF_ERROR(commands_.AfterAttention(*after, layer, chunk.n_rows));
  KVRUN_RETURN_IF_ERROR(after->Finish());
  lists_.push_back({chunk.n_rows, chunk.skip_rows, has_earlier, parity, std::move(before), std::move(after)});
  return &lists_.back();
}

Status OffloadedPrefill::MakeAdapter(uint32_t layer) {
  if (!HasEnoughKeys()) return cache_.SetBlankAdapter(layer);
  DropAttentionBuffers();
  const uint32_t n_rows = end_ - begin_;
  const uint32_t n_skipped = begin_ < n_sinks() ? std::min(n_rows, n_sinks() - begin_) : 0;
  KVRUN_ASSIGN_OR_RETURN(const LayerSums sums, sums_->Read(commands_.config(), n_rows, n_skipped));
  return SetAdapter(layer, sums);
}

Status OffloadedPrefill::SetAdapter(uint32_t layer, const LayerSums& sums) {
  KVRUN_ASSIGN_OR_RETURN(made_, ComputeAdapter(cache_.plan().adapter_kind, sums, cache_.plan().index.rank));
  return cache_.SetAdapter(layer, *made_);
}

// The entries of one sequence that are all in memory, as if they had been prefilled here.
Status OffloadedPrefill::Import(uint32_t sequence, uint32_t n_entries, ResidentForwardPass& from) {
  sequence_ = sequence;
  begin_ = 0;
  end_ = n_entries;
  tile_shape_ = from.kv_shape();
  for (uint32_t layer = 0; layer < commands_.config().n_layers; ++layer) {
    source_ = from.kv(layer);
    KVRUN_RETURN_IF_ERROR(StoreRecords(layer, 0));
    if (!cache_.plan().method.has_index()) continue;
    if (makes_adapter()) {
      KVRUN_ASSIGN_OR_RETURN(const LayerSums sums, from.Sums(layer));
      KVRUN_RETURN_IF_ERROR(SetAdapter(layer, sums));
    }
    KVRUN_RETURN_IF_ERROR(StoreIndex(layer));
  }
  if (makes_adapter()) cache_.NoteAdapterComplete();
  return cache_.EndPrefill(sequence_, end_);
}

// Entries before the prompt come back into their tile: from the window, or as they were stored.
Status OffloadedPrefill::LoadStoredEntries(uint32_t layer, uint32_t tile) {
  const uint32_t group_tokens = cache_.plan().record.group_tokens;
  const uint32_t first_group = tile * tile_tokens() / group_tokens;
  const uint32_t end_group = CeilDiv(std::min(begin_, (tile + 1) * tile_tokens()), group_tokens);
  const uint32_t window_group = cache_.FirstWindowGroup(begin_);
  for (uint32_t group = first_group; group < end_group;) {
    const bool in_window = group >= window_group;
    const KvRecordShape& record = in_window ? cache_.plan().window_record : cache_.plan().record;
    const uint32_t n =
        std::min(kRecordsAtOnce, (in_window ? end_group : std::min(end_group, window_group)) - group);
    const uint64_t stream_bytes = n * record.size_bytes();
    for (uint32_t head = 0; head < heads(); ++head) {
      const uint32_t stream = sequence_ * heads() + head;
      const std::span<std::byte> records = records_->host().subspan(head * stream_bytes, stream_bytes);
      KVRUN_RETURN_IF_ERROR(in_window ? cache_.ReadWindow(layer, stream, group, n, records)
                                      : cache_.ReadGroups(layer, stream, group, n, records));
    }
    KVRUN_RETURN_IF_ERROR(records_->Flush(0, heads() * stream_bytes));
    KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<CommandList> list, device_.CreateCommandList());
    KVRUN_RETURN_IF_ERROR(list->DecodeRecords(*records_, record, n, (group - first_group) * group_tokens,
                                              tile_shape_, tile_.get()));
    KVRUN_RETURN_IF_ERROR(list->Finish());
    KVRUN_RETURN_IF_ERROR(Execute(*list));
    group += n;
  }
  return Status::Ok();
}

// Groups of the tile as records of `shape`, [streams of the sequence, n]; valid until the next call.
Result<std::span<const std::byte>> OffloadedPrefill::Encode(uint32_t tile, uint32_t group, uint32_t n,
                                                            const KvRecordShape& shape) {
  const uint32_t token = group * shape.group_tokens - tile * tile_tokens();
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<CommandList> list, device_.CreateCommandList());
  KVRUN_RETURN_IF_ERROR(list->EncodeRecords(*source_, tile_shape_, token, n, shape, records_.get()));
  KVRUN_RETURN_IF_ERROR(list->Finish());
  KVRUN_RETURN_IF_ERROR(Execute(*list));
  const uint64_t bytes = n * heads() * shape.size_bytes();
  KVRUN_RETURN_IF_ERROR(records_->Invalidate(0, bytes));
  return std::span<const std::byte>(records_->host().first(bytes));
}

// Whole groups to flash, and the newest, with the one that is not complete, to the window.
Status OffloadedPrefill::StoreRecords(uint32_t layer, uint32_t tile) {
  const KvPlan& plan = cache_.plan();
  const uint32_t group_tokens = plan.record.group_tokens;
  const uint32_t first = std::max(begin_ / group_tokens, tile * tile_tokens() / group_tokens);
  const uint32_t end = std::min(end_, (tile + 1) * tile_tokens());
  const uint32_t end_whole = end / group_tokens;
  for (uint32_t group = first; group < end_whole;) {
    const uint32_t n = std::min(kRecordsAtOnce, end_whole - group);
    KVRUN_ASSIGN_OR_RETURN(const auto records, Encode(tile, group, n, plan.record));
    KVRUN_RETURN_IF_ERROR(cache_.AppendGroups(layer, sequence_, group, n, records));
    group += n;
  }
  const uint32_t end_group = CeilDiv(end, group_tokens);
  for (uint32_t group = std::max(first, cache_.FirstWindowGroup(end_)); group < end_group;) {
    const uint32_t n = std::min(kRecordsAtOnce, end_group - group);
    KVRUN_ASSIGN_OR_RETURN(const auto records, Encode(tile, group, n, plan.window_record));
    KVRUN_RETURN_IF_ERROR(cache_.PutWindow(layer, group, n, records));
    group += n;
  }
  return Status::Ok();
}

// Projects the keys of entries `begin` to the end.
Status OffloadedPrefill::ProjectAndVisit(uint32_t layer, uint32_t begin, const ProjectedFn& visit) {
  const uint32_t rank = cache_.plan().index.rank;
  for (uint32_t tile = begin / tile_tokens(); tile < n_tiles(); ++tile) {
    const uint32_t tile_begin = tile * tile_tokens();
    if (n_tiles() > 1) {
      KVRUN_RETURN_IF_ERROR(spill_->Read(TileOffset(tile), tile_->host()));
      KVRUN_RETURN_IF_ERROR(tile_->Flush(0, tile_->size_bytes()));
    }
    const uint32_t tile_end = std::min(end_, tile_begin + tile_tokens());
    for (uint32_t first = std::max(begin, tile_begin); first < tile_end; first += kChunkRows) {
      const uint32_t n = std::min(kChunkRows, tile_end - first);
      KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<CommandList> list, device_.CreateCommandList());
      KVRUN_RETURN_IF_ERROR(list->ProjectKeys(*source_, tile_shape_, first - tile_begin, n,
                                              cache_.sides(layer), rank, projected_.get()));
      KVRUN_RETURN_IF_ERROR(list->Finish());
      KVRUN_RETURN_IF_ERROR(Execute(*list));
      const uint64_t count = uint64_t{n} * rank;
      KVRUN_RETURN_IF_ERROR(projected_->Invalidate(0, count * sizeof(float)));
      KVRUN_RETURN_IF_ERROR(visit(first, Floats(*projected_).first(count)));
    }
  }
  return Status::Ok();
}

Status OffloadedPrefill::StoreIndex(uint32_t layer) {
  const IndexShape& index = cache_.plan().index;
  // What was there before the adapter has to be projected by it as well.
  const std::optional<LayerAdapter> made = std::exchange(made_, std::nullopt);
  const uint32_t begin = made ? 0 : begin_;
  // Scales are of the sequence's first prompt; later entries are clipped.
  if (index.type != KvType::kF16 && begin == 0) {
    ColumnScales scales(index.rank);
    KVRUN_RETURN_IF_ERROR(ProjectAndVisit(layer, std::min(n_sinks(), end_ - 1),
                                          [&](uint32_t, std::span<const float> projected) {
                                            scales.Add(projected);
                                            return Status::Ok();
                                          }));
    KVRUN_RETURN_IF_ERROR(cache_.SetScales(layer, sequence_, scales.Scales(index.type)));
  }
  KVRUN_RETURN_IF_ERROR(ProjectAndVisit(layer, begin, [&](uint32_t first, std::span<const float> projected) {
    return cache_.WriteIndex(layer, sequence_, first, projected);
  }));
  return made ? cache_.IndexOthers(layer, sequence_, *made) : Status::Ok();
}

}  // namespace kvrun
