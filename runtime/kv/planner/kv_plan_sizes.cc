#include "runtime/kv/planner/kv_plan_sizes.h"

#include <algorithm>
#include <optional>

#include "platform/base/units.h"
#include "runtime/kv/clusters/sequence_clusters.h"
#include "runtime/kv/math/slot_cache.h"
#include "runtime/kv/memory/entry_spaces.h"
#include "runtime/kv/planner/kv_plan_clusters.h"
#include "runtime/kv/planner/kv_plan_kept.h"
#include "runtime/kv/planner/kv_plan_statics.h"
#include "runtime/store/group_store.h"
#include "runtime/store/row_store.h"
#include "runtime/store/spill_file.h"
#include "shaders/shared/step_params.h"

namespace kvrun {
namespace {

constexpr uint64_t kChecksumBytes = 4;
constexpr uint64_t kClusterChecksumBytes = 8;  // and how many records there are
constexpr uint64_t kMinStagingBytes = 64 * kKiB;
constexpr uint64_t kMaxStagingBytes = 256 * kKiB;
constexpr uint64_t kStagedRecords = 32;  // as many as are in flight
constexpr uint64_t kStagedClusters = 6;  // of the largest size: most are a quarter of it

uint64_t KvDim(const KvModelShape& model) { return uint64_t{model.n_kv_heads} * model.head_dim; }

// Enough for as many reads as are in flight, within what one transfer is efficient at; twice, so that writes
// are filled while others are under way.
uint64_t StagingBytes(uint64_t read_bytes, uint64_t n_reads, uint32_t alignment_bytes) {
  const uint64_t padded = RoundUp(read_bytes, uint64_t{alignment_bytes});
  const uint64_t ring = std::clamp(n_reads * padded, kMinStagingBytes, kMaxStagingBytes);
  return 2 * std::max(RoundUp(ring, uint64_t{alignment_bytes}), padded);
}

uint64_t IndexBytes(const KvSizeInput& input, const KvPlan& plan) {
  const uint64_t scales = uint64_t{plan.index.n_sequences} * plan.index.rank * sizeof(float);
  if (plan.method.has_clusters()) return input.model.n_layers * scales + CentroidIndexBytes(input, plan);
  return input.model.n_layers * (plan.index.size_bytes() + scales);
}

// Both sides of an adapter, in numbers of so many bytes.
uint64_t SideBytes(const KvSizeInput& input, const KvPlan& plan, uint64_t number_bytes) {
  return 2 * KvDim(input.model) * plan.index.rank * number_bytes;
}

// And the mean key's projection.
uint64_t AdapterBytes(const KvSizeInput& input, const KvPlan& plan) {
  return SideBytes(input, plan, sizeof(uint16_t)) + plan.index.rank * sizeof(float);
}

// Of each layer; or of one for all, where keys are taken as they are.
uint64_t AllAdapterBytes(const KvSizeInput& input, const KvPlan& plan) {
  if (plan.method.has_adapters()) return input.model.n_layers * AdapterBytes(input, plan);
  return plan.method.index == KvIndexKind::kExactKeys ? AdapterBytes(input, plan) : 0;
}

uint64_t SlotBytes(const KvPlan& plan, uint32_t n_slots) {
  return plan.n_streams * plan.slot_record.size_bytes() * n_slots;
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
uint64_t OfLayers(const KvSizeInput& input, const KvPlan& plan, const BytesOf& bytes_of) {
  if (plan.layer_extra.empty()) return input.model.n_layers * bytes_of(0);
  uint64_t bytes = 0;
  for (uint32_t layer = 0; layer < input.model.n_layers; ++layer) bytes += bytes_of(layer);
  return bytes;
}

uint64_t OwnSlotBytes(const KvSizeInput& input, const KvPlan& plan) {
  return OfLayers(input, plan, [&](uint32_t layer) { return SlotBytes(plan, plan.n_own_slots(layer)); });
}

// What the caches of a layer's own slots know.
uint64_t SlotCacheBytes(const KvPlan& plan, uint32_t layer) {
  if (plan.method.residency != KvResidencyKind::kOwnSlots || plan.n_own_slots(layer) == 0) return 0;
  return plan.n_streams *
         SlotCache::MemoryBytes(plan.slot_cache_shape(layer), **FindReplacementPolicy(plan.policy));
}

// What names slots and pool, and what is known of them.
uint64_t SlotTableBytes(const KvSizeInput& input, const KvPlan& plan) {
  const bool counts = plan.has_slot_biases();
  const uint64_t own = OfLayers(input, plan, [&](uint32_t layer) {
    const uint32_t n_named = std::min(plan.n_own_slots(layer), plan.n_needed_in_slots(layer));
    return MappingBytes(plan, n_named, counts) + SlotCacheBytes(plan, layer);
  });
  return own + plan.pool_parts() * MappingBytes(plan, plan.n_pool_slots, counts);
}

// The windows' mapping tables, a layer's list of reads, and of all groups where all are read.
uint64_t TableBytes(const KvSizeInput& input, const KvPlan& plan) {
  uint64_t of_a_layer = 0;
  if (plan.method.is_on_flash()) {
    of_a_layer = uint64_t{plan.n_streams} * plan.n_needed() * sizeof(GroupFetch);
    if (plan.method.has_clusters()) of_a_layer += ClusterListBytes(plan);
    if (!plan.method.selects()) of_a_layer += uint64_t{plan.n_groups()} * sizeof(uint32_t);
  }
  return input.model.n_layers * MappingBytes(plan, plan.n_window_records()) + of_a_layer;
}

// Of two stages: the first one's queries and scores, the candidates, and, on the CPU, a copy of their rows.
uint64_t CandidateBytes(const KvSizeInput& input, const KvPlan& plan) {
  const CandidatePlan& candidates = plan.candidates;
  if (candidates.n_groups == 0) return 0;
  const uint64_t queries = uint64_t{plan.n_sequences} * input.model.n_kv_heads * plan.index.rank * 4;
  const uint64_t lists = plan.n_sequences * (candidates.n_groups + uint64_t{1}) * 4;
  return queries + uint64_t{plan.n_groups()} * 4 + lists +
         uint64_t{candidates.n_groups} * plan.index.group_words() * 4;
}

// One layer's scores, which all layers share, and each layer's list of what was chosen.
uint64_t ScoreBytes(const KvSizeInput& input, const KvPlan& plan) {
  if (!plan.method.selects()) return 0;
  const uint64_t n_groups = plan.method.has_clusters() ? plan.clusters.n_clusters : plan.n_groups();
  const uint64_t chosen = OfLayers(input, plan, [&](uint32_t layer) {
    return plan.n_streams * uint64_t{plan.choice_list(layer).words()} * 4;
  });
  if (!plan.method.has_index()) return chosen;
  uint64_t n_queries = 0;  // whose scores of every row wait for their softmax's sum
  if (plan.heads == HeadReduction::kGqa) n_queries = input.model.n_kv_heads;
  if (plan.heads == HeadReduction::kSoftmax || plan.heads == HeadReduction::kPerKvHead) {
    n_queries = input.model.n_heads;
  }
  const uint64_t rows = plan.n_sequences * n_queries * n_groups * plan.index.rows() * 2;
  // With clusters, what they score for their weight, too.
  const uint64_t groups = plan.n_streams * n_groups * (plan.method.has_clusters() ? 8 : 4);
  return rows + groups + chosen + CandidateBytes(input, plan);
}

uint64_t WindowBytes(const KvSizeInput& input, const KvPlan& plan) {
  return input.model.n_layers * uint64_t{plan.n_streams} * plan.window_record.size_bytes() *
         plan.n_window_records();
}

// What a prompt that fails gives back: the incomplete group of its sequence; with clusters, its window, which
// lies nowhere else.
void AddTails(const KvSizeInput& input, KvPlan& plan) {
  const uint64_t n_records = plan.method.has_clusters() ? plan.n_window_slots : 1;
  plan.parts.push_back({"tails",
                        WindowBytes(input, plan) / plan.n_sequences / plan.n_window_records() * n_records,
                        true, false});
}

}  // namespace

uint32_t ProjectedRows(const KvPlan& plan) {
  const bool is_tiled = plan.prefill_tile_tokens < plan.n_ctx;
  return plan.has_inputs_ahead && !is_tiled ? kPrefillChunkTokens : kLeastProjectedRows;
}

uint32_t RecordsAtOnce(const KvPlan& plan) {
  constexpr uint32_t kMostGroups = 32;
  const uint32_t of_chunk = kPrefillChunkTokens / kRecordTurns / plan.record.group_tokens;
  return std::clamp(of_chunk, 1U, std::min(kMostGroups, CeilDiv(plan.n_groups(), kRecordTurns)));
}

namespace {

// Of keys that are projected, so many of each turn.
uint64_t ProjectedBytes(const KvPlan& plan, uint64_t rows_of_turn) {
  if (plan.method.has_clusters() || plan.method.evicts() || plan.method.has_pages()) return 0;
  return kProjectTurns * rows_of_turn * plan.index.rank * sizeof(float);
}

// In prefill, of one sequence, beside tile and hidden states: all the time, and in plans of several tiles.
uint64_t PrefillWorkBytes(const KvSizeInput& input, const KvPlan& plan) {
  const KvModelShape& model = input.model;
  const uint64_t chunk_groups = kRecordTurns * RecordsAtOnce(plan);
  const uint64_t records_per_group = model.n_kv_heads / plan.record.n_heads;
  const uint64_t encoded =
      chunk_groups * records_per_group * std::max(plan.record.size_bytes(), plan.window_record.size_bytes());
  if (plan.method.has_clusters()) return encoded + ClusterQueryBytes(input, plan);
  if (plan.method.evicts()) return encoded + ObservedRowBytes(input, plan);
  const uint64_t observed = plan.has_statics() ? ObservedRowBytes(input, plan) : 0;
  const uint64_t projected = observed + ProjectedBytes(plan, kLeastProjectedRows);
  if (!input.computes_adapter) return encoded + projected;
  const uint64_t dim = model.head_dim;
  uint64_t sums = (KvDim(model) + 1) * KvDim(model);
  if (WeighsByQueries(plan.adapter_kind)) sums += model.n_kv_heads * (dim + 1) * dim;
  return encoded + projected + sums * sizeof(float);
}

// While a layer's adapter is computed, its entries are divided into clusters, or those that stay in memory
// are chosen.
uint64_t PrefillAdapterBytes(const KvSizeInput& input, const KvPlan& plan) {
  if (plan.method.has_clusters()) return ClusterPromptBytes(plan);
  if (plan.method.evicts()) return KeptPromptBytes(input, plan);
  const uint64_t statics = StaticPromptBytes(input, plan);
  if (!input.computes_adapter) return statics;
  return std::max(statics, SideBytes(input, plan, sizeof(float)) +
                               AdapterWorkBytes(plan.adapter_kind, input.model.n_kv_heads,
                                                input.model.head_dim, plan.index.rank));
}

// While a layer is computed: earlier entries that are read for it. Gone when its adapter is computed.
uint64_t PrefillImageBytes(const KvPlan& plan) {
  return plan.method.has_clusters() ? ClusterImageBytes(plan) : 0;
}

// Of what a spill file holds, a checksum for each piece: at most as much as where all tiles are the smallest,
// each of which begins a chunk, and whose keys and values end in pieces of their own, and hidden states are
// as they are.
uint64_t SpillChecksumBytes(const KvSizeInput& input, const KvPlan& plan, uint64_t layer_bytes) {
  const uint64_t n_tiles = CeilDiv(plan.n_ctx, kPrefillChunkTokens);
  const uint64_t n_chunks = n_tiles + 2;
  const uint64_t chunk_bytes = uint64_t{kPrefillChunkTokens} * input.model.n_embd * sizeof(float);
  const uint64_t pieces = n_chunks * 2 * CeilDiv(chunk_bytes / 2, SpillFile::kOffsetAlignment) +
                          layer_bytes / SpillFile::kOffsetAlignment + 2 * n_tiles;
  return pieces * kChecksumBytes;
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

void SizeParts(const KvSizeInput& input, KvPlan& plan) {
  const uint64_t layers = input.model.n_layers;
  const bool has_clusters = plan.method.has_clusters();
  const uint64_t read_bytes = plan.slot_record.size_bytes() * (has_clusters ? plan.records_per_cluster() : 1);
  plan.staging_bytes =
      StagingBytes(read_bytes, has_clusters ? kStagedClusters : kStagedRecords, input.io_alignment_bytes);
  plan.parts.clear();
  const auto add = [&plan](const char* name, uint64_t bytes, bool in_prefill = true) {
    if (bytes != 0) plan.parts.push_back({name, bytes, in_prefill, true});
  };
  add("index", IndexBytes(input, plan));
  add("adapters", AllAdapterBytes(input, plan));
  // Slots and pool are made when prefill is over.
  add("slots", OwnSlotBytes(input, plan), false);
  add("pool", plan.pool_parts() * SlotBytes(plan, plan.n_pool_slots), false);
  add("slot tables", SlotTableBytes(input, plan), false);
  add("window", WindowBytes(input, plan));
  add("means", MeanBytes(input, plan));
  AddTails(input, plan);
  AddStaticParts(input, plan);
  add("tables", TableBytes(input, plan));
  if (has_clusters) {
    add("clusters", ClusterBytes(input, plan));
    add("kept", KeptBytes(input, plan));
  }
  const bool in_sequence = has_clusters && plan.clusters.layout == ClusterLayout::kSequence;
  const uint64_t of_a_stream = has_clusters && !in_sequence ? plan.clusters.n_clusters * kClusterChecksumBytes
                                                            : plan.n_stored_groups() * kChecksumBytes;
  const uint64_t of_rows = plan.clusters.rows_on_flash ? RowStore::kBytesOfList : 0;
  add("checksums", layers * plan.n_streams * (of_a_stream + of_rows));
  if (in_sequence) add("sequence", SequenceClusters::MapBytes(plan, input.model.n_layers));
  add("scores", ScoreBytes(input, plan));
  plan.row_staging_bytes = has_clusters ? RowStagingBytes(input, plan) : 0;
  add("staging", plan.staging_bytes + plan.row_staging_bytes);
}

void SizeResident(const KvSizeInput& input, KvPlan& plan) {
  const uint64_t slots = OwnSlotBytes(input, plan);
  const uint64_t tables = SlotTableBytes(input, plan) + TableBytes(input, plan);
  plan.parts = {{"kv", slots + WindowBytes(input, plan) + MeanBytes(input, plan) + tables, true, true}};
  AddTails(input, plan);
}

namespace {

// Of KvPlan::has_inputs_ahead: a chunk's rows, at most as many angles, and projected rows.
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
    left = plan.budget_bytes > others ? plan.budget_bytes - others : 0;
    token_bytes = 2 * KvDim(input.model) * (has_f32 ? 4 : 2);
    whole = RoundUp(plan.n_ctx, plan.record.group_tokens) * token_bytes;
    adapter = PrefillAdapterBytes(input, plan);
    image = PrefillImageBytes(plan);
    spill = SpillFile::kBufferBytes + SpillChecksumBytes(input, plan, whole);
    const uint64_t tile = whole + std::max(image, adapter);
    with_hidden = tile + uint64_t{plan.n_ctx} * input.model.n_embd * sizeof(float);
    without_hidden = tile + spill;
  }

  // Returns what it takes.
  uint64_t MakeOneTile(bool spills_hidden, KvPlan& plan) const {
    plan.prefill_tile_tokens = plan.n_ctx;
    plan.prefill_read_tiles = 0;
    plan.spills_hidden = spills_hidden;
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
    plan.spills_hidden = true;
    plan.has_inputs_ahead = false;
    plan.prefill_tile_tokens = static_cast<uint32_t>(grains * kPrefillChunkTokens);
    // More in the room of the adapter's work, until that begins.
    const uint64_t idle = after_layer > attending() ? after_layer - attending() : 0;
    const uint64_t n_later = CeilDiv(plan.n_ctx, kPrefillChunkTokens) - grains;
    plan.prefill_read_tiles =
        static_cast<uint32_t>(std::min({n_read + idle / grain_bytes, n_later, kMostReadTiles, most_grains}));
    return tiled_bytes(grains);
  }
};

}  // namespace

void SizePrefill(const KvSizeInput& input, KvPlan& plan) {
  const PrefillSizer sizer(input, plan);
  const uint64_t left = sizer.left;
  const bool may_spill = plan.method.needs_file();
  uint64_t bytes = sizer.MakeOneTile(may_spill && sizer.with_hidden > left, plan);
  const uint64_t ahead = InputsAheadBytes(input, plan);
  plan.has_inputs_ahead = bytes + ahead <= left;
  if (plan.has_inputs_ahead) bytes += ahead;
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
