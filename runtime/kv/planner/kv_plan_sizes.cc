#include "runtime/kv/planner/kv_plan_sizes.h"

#include <algorithm>
#include <optional>
#include <string>

#include "platform/base/units.h"
#include "platform/io/block_file.h"
#include "runtime/kv/math/slot_cache.h"
#include "runtime/kv/memory/entry_spaces.h"
#include "runtime/kv/planner/kv_family.h"
#include "runtime/store/overlay_file.h"
#include "runtime/store/record_store.h"
#include "runtime/store/sealed_file.h"
#include "runtime/store/spill_file.h"
#include "shaders/shared/step_params.h"

namespace kvrun {
namespace {

constexpr uint64_t kMinStagingBytes = 64 * kKiB;
constexpr uint64_t kMaxStagingBytes = 256 * kKiB;

uint64_t KvDim(const KvModelShape& model) { return uint64_t{model.n_kv_heads} * model.head_dim; }

// Enough for as many reads as are in flight, within what one transfer is efficient at; twice, so that writes
// are filled while others are under way.
uint64_t StagingBytes(uint64_t read_bytes, uint64_t n_reads, uint32_t alignment_bytes) {
  const uint64_t padded = RoundUp(read_bytes, uint64_t{alignment_bytes});
  const uint64_t ring = std::clamp(n_reads * padded, kMinStagingBytes, kMaxStagingBytes);
  return 2 * std::max(RoundUp(ring, uint64_t{alignment_bytes}), padded);
}

uint64_t SlotBytes(const KvPlan& plan, uint32_t n_slots) {
  return plan.n_streams * plan.slots.record.size_bytes() * n_slots;
}

uint64_t MappingBytes(const KvPlan& plan, uint32_t table_slots, bool has_biases = false) {
  SlotShape shape;
  shape.n_streams = plan.n_streams;
  shape.table_slots = table_slots;
  shape.has_biases = has_biases;
  return table_slots == 0 ? 0 : shape.table_bytes();
}

// The sum of what each layer takes.
template <typename BytesOf>
uint64_t OfLayers(const KvPlan& plan, const BytesOf& bytes_of) {
  const auto n_layers = static_cast<uint32_t>(plan.layers.size());
  if (!plan.has_layer_shares) return n_layers * bytes_of(0);
  uint64_t bytes = 0;
  for (uint32_t layer = 0; layer < n_layers; ++layer) bytes += bytes_of(layer);
  return bytes;
}

uint64_t OwnSlotBytes(const KvPlan& plan) {
  return OfLayers(plan, [&](uint32_t layer) { return SlotBytes(plan, plan.n_own_slots(layer)); });
}

// What the caches of a layer's own slots know.
uint64_t SlotCacheBytes(const KvPlan& plan, uint32_t layer) {
  if (plan.method.residency != KvResidencyKind::kOwnSlots || plan.n_own_slots(layer) == 0) return 0;
  return plan.n_streams *
         SlotCache::MemoryBytes(plan.slot_cache_shape(layer), **FindReplacementPolicy(plan.slots.policy));
}

// What names slots and pool, and what is known of them.
uint64_t SlotTableBytes(const KvPlan& plan) {
  const bool counts = plan.has_slot_biases();
  const uint64_t own = OfLayers(plan, [&](uint32_t layer) {
    const uint32_t n_named = std::min(plan.n_own_slots(layer), plan.n_needed_in_slots(layer));
    return MappingBytes(plan, n_named, counts) + SlotCacheBytes(plan, layer);
  });
  return own + plan.pool_parts() * MappingBytes(plan, plan.slots.n_pool_slots, counts);
}

uint64_t WindowTableBytes(const KvSizeInput& input, const KvPlan& plan) {
  return input.model.n_layers * MappingBytes(plan, plan.window.n_records());
}

uint64_t WindowBytes(const KvSizeInput& input, const KvPlan& plan) {
  return input.model.n_layers * uint64_t{plan.n_streams} * plan.window.record.size_bytes() *
         plan.window.n_records();
}

}  // namespace

void AddPart(const char* name, uint64_t bytes, KvPlan& plan, bool in_prefill) {
  if (bytes != 0) plan.parts.push_back({name, bytes, in_prefill, true});
}

uint64_t ScaleBytes(const KvSizeInput& input, const KvPlan& plan) {
  return input.model.n_layers * uint64_t{plan.index.n_sequences} * plan.index.rank * sizeof(float);
}

// Slots and pool are made when prefill is over.
void AddSlotParts(const KvSizeInput& input, KvPlan& plan) {
  AddPart("slots", OwnSlotBytes(plan), plan, false);
  AddPart("pool", plan.pool_parts() * SlotBytes(plan, plan.slots.n_pool_slots), plan, false);
  AddPart("slot tables", SlotTableBytes(plan), plan, false);
  AddPart("window", WindowBytes(input, plan), plan);
  AddPart("means", MeanBytes(input, plan), plan);
}

void AddTails(const KvSizeInput& input, uint32_t n_records, KvPlan& plan) {
  plan.parts.push_back({"tails",
                        WindowBytes(input, plan) / plan.n_sequences / plan.window.n_records() * n_records,
                        true, false});
}

void AddTables(const KvSizeInput& input, uint64_t list_bytes, KvPlan& plan) {
  const uint64_t reads = uint64_t{plan.n_streams} * plan.n_needed() * sizeof(GroupFetch);
  AddPart("tables", WindowTableBytes(input, plan) + reads + list_bytes, plan);
}

uint64_t ChoiceListBytes(const KvPlan& plan) {
  return OfLayers(
      plan, [&](uint32_t layer) { return plan.n_streams * uint64_t{plan.choice_list(layer).words()} * 4; });
}

// Of queries whose scores of every row wait for their softmax's sum.
uint64_t RowScoreBytes(const KvSizeInput& input, const KvPlan& plan, uint64_t n_rows) {
  uint64_t n_queries = 0;
  if (plan.choice.heads == HeadReduction::kGqa) n_queries = input.model.n_kv_heads;
  if (plan.choice.heads == HeadReduction::kSoftmax || plan.choice.heads == HeadReduction::kPerKvHead) {
    n_queries = input.model.n_heads;
  }
  return plan.n_sequences * n_queries * n_rows * 2;
}

void AddStaging(const KvSizeInput& input, uint64_t read_bytes, uint64_t n_reads, KvPlan& plan,
                uint64_t more_bytes) {
  plan.staging_bytes = StagingBytes(read_bytes, n_reads, input.io_alignment_bytes);
  AddPart("staging", plan.staging_bytes + more_bytes, plan);
}

namespace {

uint64_t SealBytes(const KvSizeInput& input, uint64_t n_pieces, uint64_t piece_bytes, uint32_t n_helpers) {
  if (!input.is_sealed) return 0;
  const uint64_t unit_bytes = RoundUp(piece_bytes, uint64_t{input.io_alignment_bytes});
  return SealedFile::MemoryBytes({.size_bytes = n_pieces * unit_bytes,
                                  .unit_bytes = static_cast<uint32_t>(unit_bytes),
                                  .used_bytes = static_cast<uint32_t>(piece_bytes)},
                                 BlockFileOptions().queue_depth, n_helpers);
}

uint64_t PageSealBytes(const KvSizeInput& input, uint64_t file_bytes) {
  const uint32_t page_bytes = std::max(input.io_alignment_bytes, SealedFile::kPageBytes);
  return SealBytes(input, CeilDiv<uint64_t>(file_bytes, page_bytes), page_bytes, 0);
}

// What is written over a file is sealed for itself.
void AddFileParts(const KvSizeInput& input, uint64_t n_pieces, uint64_t n_of_file, uint64_t piece_bytes,
                  uint32_t n_helpers, KvPlan& plan) {
  const bool is_overlaid = input.overlaid_tokens > 0;
  AddPart("seals", (is_overlaid ? 2 : 1) * SealBytes(input, n_pieces, piece_bytes, n_helpers), plan);
  if (!is_overlaid) return;
  const uint64_t unit_bytes = RoundUp(piece_bytes, uint64_t{input.io_alignment_bytes});
  AddPart("overlay",
          OverlayFile::MemoryBytes(n_of_file * unit_bytes, static_cast<uint32_t>(unit_bytes),
                                   BlockFileOptions().queue_depth),
          plan);
}

}  // namespace

void AddSeals(const KvSizeInput& input, uint64_t n_pieces, uint64_t piece_bytes, KvPlan& plan,
              uint64_t n_of_file) {
  if (input.is_sealed && plan.flash_times)
    plan.n_seal_helpers = plan.flash_times->HelpersFor(piece_bytes, input.spare_cores);
  AddFileParts(input, n_pieces, std::max(n_pieces, n_of_file), piece_bytes, plan.n_seal_helpers, plan);
}

void AddPageSeals(const KvSizeInput& input, uint64_t file_bytes, KvPlan& plan) {
  const uint32_t page_bytes = std::max(input.io_alignment_bytes, SealedFile::kPageBytes);
  const uint64_t n_pages = CeilDiv<uint64_t>(file_bytes, page_bytes);
  AddFileParts(input, n_pages, n_pages, page_bytes, 0, plan);
}

uint32_t ProjectedRows(const KvPlan& plan) {
  const bool is_tiled = plan.prefill.tile_tokens < plan.n_ctx;
  return plan.prefill.has_inputs_ahead && !is_tiled ? kPrefillChunkTokens : kLeastProjectedRows;
}

uint32_t RecordsAtOnce(const KvPlan& plan) {
  constexpr uint32_t kMostGroups = 32;
  const uint32_t of_chunk = kPrefillChunkTokens / kRecordTurns / plan.record.group_tokens;
  return std::clamp(of_chunk, 1U, std::min(kMostGroups, CeilDiv(plan.n_groups(), kRecordTurns)));
}

namespace {

// Of keys that are projected, so many of each turn.
uint64_t ProjectedBytes(const KvPlan& plan, uint64_t rows_of_turn) {
  return kProjectTurns * rows_of_turn * FamilyOf(plan.method).projected_columns(plan) * sizeof(float);
}

// In prefill, of one sequence, beside tile and hidden states: all the time, and in plans of several tiles.
uint64_t PrefillWorkBytes(const KvSizeInput& input, const KvPlan& plan) {
  const uint64_t chunk_groups = kRecordTurns * RecordsAtOnce(plan);
  const uint64_t records_per_group = input.model.n_kv_heads / plan.record.n_heads;
  const uint64_t encoded =
      chunk_groups * records_per_group * std::max(plan.record.size_bytes(), plan.window.record.size_bytes());
  return encoded + ProjectedBytes(plan, kLeastProjectedRows) + FamilyOf(plan.method).PromptBytes(input, plan);
}

// Of what a spill file holds, a checksum for each piece (and what opens it, where it is encrypted): at most
// as much as where all tiles are the smallest, each of which begins a chunk, and whose keys and values end in
// pieces of their own, and hidden states are as they are.
uint64_t SpillChecksumBytes(const KvSizeInput& input, const KvPlan& plan, uint64_t layer_bytes) {
  const uint64_t n_tiles = CeilDiv(plan.n_ctx, kPrefillChunkTokens);
  const uint64_t n_chunks = n_tiles + 2;
  const uint64_t chunk_bytes = uint64_t{kPrefillChunkTokens} * input.model.n_embd * sizeof(float);
  const uint64_t pieces = n_chunks * 2 * CeilDiv(chunk_bytes / 2, SpillFile::kOffsetAlignment) +
                          layer_bytes / SpillFile::kOffsetAlignment + 2 * n_tiles;
  return pieces * kChecksumBytes + PageSealBytes(input, pieces * SpillFile::kOffsetAlignment);
}

}  // namespace

uint64_t MeanBytes(const KvSizeInput& input, const KvPlan& plan) {
  return plan.rotates ? EntrySpaces::MemoryBytes(plan, input.model.n_kv_heads, input.model.n_layers) : 0;
}

uint32_t WindowSlots(uint32_t window_entries, uint32_t group_tokens, uint32_t n_groups) {
  const uint64_t entries = std::max<uint64_t>(window_entries, 1);  // the token that is being computed
  // `entries` consecutive ones begin, at worst, at the end of a group.
  const uint64_t touched = (entries + group_tokens - 2) / group_tokens + 1;
  return static_cast<uint32_t>(std::min<uint64_t>(touched + 1, n_groups));
}

void SizeResident(const KvSizeInput& input, KvPlan& plan) {
  const uint64_t slots = OwnSlotBytes(plan);
  const uint64_t tables = SlotTableBytes(plan) + WindowTableBytes(input, plan);
  plan.parts = {{"kv", slots + WindowBytes(input, plan) + MeanBytes(input, plan) + tables, true, true}};
  AddTails(input, 1, plan);
}

namespace {

// Of KvPrefillPlan::has_inputs_ahead: a chunk's rows, at most as many angles, and projected rows.
uint64_t InputsAheadBytes(const KvSizeInput& input, const KvPlan& plan) {
  return sizeof(StepParams) + uint64_t{kPrefillChunkTokens} * input.model.head_dim * sizeof(float) +
         ProjectedBytes(plan, kPrefillChunkTokens - kLeastProjectedRows);
}

// Earlier tiles are read and attended to several at a time, as each time queries and what was added up come
// from memory and go there: so many, if they take no more than this part of what prefill has. More where
// there is room that nothing else takes.
constexpr uint64_t kReadTiles = 4;
constexpr uint64_t kReadTilesShare = 6;
constexpr uint64_t kMostReadTiles = 16;

// What the part "prefill" is made of, but PrefillWorkBytes.
struct PrefillSizer {
  const KvSizeInput& input;
  uint64_t left;         // of the budget
  uint64_t token_bytes;  // of a layer's K and V
  uint64_t whole;        // of all tokens
  uint64_t adapter;
  uint64_t image;
  uint64_t spill;
  uint64_t with_hidden;  // of one tile and hidden states
  uint64_t without_hidden;

  PrefillSizer(const KvSizeInput& sizes, const KvPlan& plan) : input(sizes) {
    const bool has_f32 = plan.record.k_type == KvType::kF32 || plan.record.v_type == KvType::kF32;
    const uint64_t others = plan.prefill_bytes() + PrefillWorkBytes(input, plan);
    left = plan.budget.bytes > others ? plan.budget.bytes - others : 0;
    token_bytes = 2 * KvDim(input.model) * (has_f32 ? 4 : 2);
    whole = RoundUp(plan.n_ctx, plan.record.group_tokens) * token_bytes;
    adapter = FamilyOf(plan.method).LayerEndBytes(input, plan);
    image = FamilyOf(plan.method).ImageBytes(plan);
    spill = SpillFile::kBufferBytes + SpillChecksumBytes(input, plan, whole);
    const uint64_t tile = whole + std::max(image, adapter);
    with_hidden = tile + uint64_t{plan.n_ctx} * input.model.n_embd * sizeof(float);
    without_hidden = tile + spill;
  }

  // Returns what it takes.
  uint64_t MakeOneTile(bool spills_hidden, KvPlan& plan) const {
    plan.prefill.tile_tokens = plan.n_ctx;
    plan.prefill.read_tiles = 0;
    plan.prefill.spills_hidden = spills_hidden;
    return spills_hidden ? without_hidden : with_hidden;
  }

  // Nothing where one tile of several would hold all. Beside the first tile, the one that is computed; and
  // earlier ones, of a chunk as that is, and entries that are read: these make room for the adapter's work,
  // and so do activations. What attention adds up between tiles is not among the KV's memory: it does not
  // grow with the context.
  std::optional<uint64_t> MakeSeveralTiles(KvPlan& plan) const {
    const uint64_t grain_bytes = kPrefillChunkTokens * token_bytes;
    const uint64_t after_layer = adapter - std::min(adapter, input.model.feed_forward_bytes);
    const uint64_t most_grains = std::max<uint64_t>(input.max_buffer_bytes / grain_bytes, 1);
    uint64_t n_read =
        std::clamp<uint64_t>(left / kReadTilesShare / grain_bytes, 1, std::min(kReadTiles, most_grains));
    const auto attending = [&] { return image + n_read * grain_bytes + sizeof(StepParams); };
    const auto tiled_bytes = [&](uint64_t grains) {
      return spill + (grains + 1) * grain_bytes + std::max(attending(), after_layer);
    };
    while (n_read > 1 && tiled_bytes(1) > left) --n_read;
    uint64_t grains = 1;
    while ((grains + 1) * kPrefillChunkTokens < plan.n_ctx && tiled_bytes(grains + 1) <= left &&
           grains < most_grains) {
      ++grains;
    }
    if (grains * kPrefillChunkTokens >= plan.n_ctx) return std::nullopt;
    plan.prefill.spills_hidden = true;
    plan.prefill.has_inputs_ahead = false;
    plan.prefill.tile_tokens = static_cast<uint32_t>(grains * kPrefillChunkTokens);
    // More in the room of the adapter's work, until that begins.
    const uint64_t idle = after_layer > attending() ? after_layer - attending() : 0;
    const uint64_t n_later = CeilDiv(plan.n_ctx, kPrefillChunkTokens) - grains;
    plan.prefill.read_tiles =
        static_cast<uint32_t>(std::min({n_read + idle / grain_bytes, n_later, kMostReadTiles, most_grains}));
    return tiled_bytes(grains);
  }
};

}  // namespace

void SizePrefill(const KvSizeInput& input, KvPlan& plan) {
  const PrefillSizer sizer(input, plan);
  const uint64_t left = sizer.left;
  const bool may_spill = FamilyOf(plan.method).has_file();
  uint64_t bytes = sizer.MakeOneTile(may_spill && sizer.with_hidden > left, plan);
  const uint64_t ahead = InputsAheadBytes(input, plan);
  plan.prefill.has_inputs_ahead = bytes + ahead <= left;
  if (plan.prefill.has_inputs_ahead) bytes += ahead;
  if (may_spill && (bytes > left || sizer.whole > input.max_buffer_bytes)) {
    bytes = sizer.MakeSeveralTiles(plan).value_or(bytes);
  }
  // Of a short context, tiles and what spills take more than hidden states in memory.
  if (may_spill && bytes > left && std::min(sizer.with_hidden, sizer.without_hidden) < bytes) {
    bytes = sizer.MakeOneTile(sizer.without_hidden < sizer.with_hidden, plan);
  }
  plan.parts.push_back({"prefill", bytes + PrefillWorkBytes(input, plan), true, false});
}

}  // namespace kvrun
