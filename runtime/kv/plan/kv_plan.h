// What a budget buys: every size of the KV cache, decided before anything is loaded. Pure functions over
// plain data. The budget covers everything that grows with the context or exists because of offloading: index
// and its scales, slots, recent window, tables, checksums, score buffers, staging, prefill tiles.
//
// kvswap. What is open is taken from the first row of this table that suits the budget, as a share of the f16
// KV; by measurement (simulated on SmolLM2-135M, 8192 tokens) at 1/13 and 1/34, between and beyond by
// interpolation. Sigma: n_kv_heads * head_dim / rank; ranks are rounded up to a multiple of 4.
//
//   share >=  K     V     sigma  index  window
//   3/4       f16   f16     4    int8     64     fp8 alone costs KL 0.0008, int8 0.0001
//   1/4       int8  int8    4    int8     64
//   1/8       fp8   fp8     4    int4     64
//   1/16      int8  int4    8    int4     64     1/13: KL 0.011
//   1/26      int8  int4   12    int4     48
//   1/48      int4  int4   16    int4     32     1/34: KL 0.095
//   0         int4  int4   32    int4     16
//
// Groups of default_group_tokens, 4 sinks pinned, query-centred adapter (query where sinks are 0: centring
// loses them), softmaxes summed, lru; as many entries selected as fit, and C = M. Bytes must have room for
// 256 entries; a share for 512, of more than 2,048 tokens for 512 * sqrt(2048 / tokens), but for 320 at
// least; both for no more than a third of a short context. Where a row would leave fewer, the next is tried,
// and where all would, bytes are refused, and a share is raised until there are as many
// (docs/measurements/quality.md, "Small contexts"). No more are selected than take an eighth of the
// multiplications that a layer's weights take, or 1,280; slots take the rest of the budget then (C > M), and
// less is read. They also take what decoding has where prefill is what limits M. Where select_entries or
// reuse_groups is given, or there is no budget, the first row of all that fits is taken. Without a budget 400
// entries are selected, as in the paper; with one, and reuse_groups alone, M = C, which DescribePlan says
// (where C has room for pinned groups alone, one more).
//
// C < M: what finds no slot of its layer's own is read into a pool that layers share. Where select_entries is
// given and reuse_groups is not, C = M where a row leaves room for that; of rows whose share the budget
// reaches, the first is taken that has room for the pool, and C is as large as fits beside it (0 at least).
//
// Where neither is given, and it is known how fast flash is read and a layer computed (or `hide` is 0), more
// is selected than has slots: as much as is read while a layer computes (ReadingPlan), never less than with
// C = M. C is then as large as fits. Where even what has slots takes longer to read, reads are limited to
// what does not (KvPlan::reads_per_layer), but to no less than 4 % of M.
//
// Samples (sample_entries) lie in the pool. With them there is no static set unless it is asked for.
//
// The window's records are f16 (f32 where K or V is): of what is recent, all but the last exact_entries() are
// rounded to the types above, so that results do not depend on the group, nor on windows from kExactEntries
// on.
//
// flexgen. Everything lies on flash and is read again for each layer of each step: n_chosen = n_groups, no
// index, no pinned groups, no own slots, and a pool of one part. Groups of 16; types from the same rows.
//
// Where no method is said: without a budget full; with one, full where the budget holds all KV of the
// context, else kvswap. A note says that full was taken, and which options have no use then.
//
// A budget in bytes is never exceeded: one that is too small is refused. A share that is too small for kvswap
// or flexgen is raised to the least with which the method works (or full, where no method is said and full
// needs no more), and a note says so.
//
// full. Nothing lies on flash, and the parts are {"kv"}. In types other than f16 and f32 there are slots for
// all groups and a window, as on flash; its length is an option for these types alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/kv/math/adapter.h"
#include "runtime/kv/math/cluster_map.h"
#include "runtime/kv/math/slot_cache.h"
#include "runtime/kv/plan/kv_method.h"
#include "runtime/store/cluster_store.h"

namespace kvrun {

// The newest entries, which are not rounded to the types of flash and slots, where the window is that long.
// Measured on SmolLM2-135M, all entries attended to, K and V in fp8: KL 0.0116 where none is exact, 0.0047
// with 16, 0.0025 with 32, as with all that are decoded.
inline constexpr uint32_t kExactEntries = 64;

std::string_view KvTypeName(KvType type);                     // "f16", "f32", "fp8", "int8", "int4"
std::string_view HeadReductionName(HeadReduction reduction);  // "sum", "softmax", "gqa", "per-kv-head"
std::string_view ClusterLayoutName(ClusterLayout layout);     // "dual-head", "cluster"
std::string_view ClusterUpdateName(ClusterUpdate update);     // "adaptive", "static", "local"

// A group of kvswap where nothing is known of the flash.
inline constexpr uint32_t kDefaultGroupTokens = 4;

// How methods that evict share their entries out. kEven: each list has as many. kHeads: a layer's KV heads
// share by their scores (Ada-KV). kLayers: layers share by the entropy of their scores, and heads as before
// (LAVa).
enum class KeptShares : uint8_t { kEven, kHeads, kLayers };
// Of ARKV: what of a layer's entries keeps its precision. kBytes: a share of the layer's memory, as the
// layer's attention says, and as many of 8 bits as fit into the rest. kEntries: a share of the entries, as
// the paper counts. kOriginal, kQuantised: all or none, to compare with (with kQuantised the window alone is
// exact).
enum class KeptPrecisions : uint8_t { kBytes, kEntries, kOriginal, kQuantised };
// How ARKV reads its Eq. 4 and 5: moments over keys (the paper), or over rows (the authors' code).
enum class AttentionMoments : uint8_t { kKeys, kRows };
std::string_view KeptSharesName(KeptShares shares);  // "even", "heads", "layers"
std::string_view KeptPrecisionsName(
    KeptPrecisions precisions);  // "bytes", "entries", "original", "quantised"
std::string_view AttentionMomentsName(AttentionMoments moments);  // "keys", "rows"

// How much of what a step attends to, before its window, is the static set: a share from 0 to 1; or the first
// prompt says it (PRKV's Eq. 4 and 5).
struct StaticShare {
  double share = 0.0;
  bool by_prompt = false;

  bool operator==(const StaticShare&) const = default;
};

// How fast flash is read, and a layer computed.
struct FlashTimes {
  double reads_per_s = 0.0;  // of 4 KiB at random, many in flight
  double bytes_per_s = 0.0;  // of longer ones; 0: as many bytes as those of 4 KiB
  double layer_us = 0.0;     // of one token
  // The device computes on the cores that read: reads take its time, however well they are hidden.
  bool share_cores = false;

  // Of one record.
  double ReadMicroseconds(uint64_t bytes) const;
};

// How much of a layer is read in a step, where that has decided how much is selected.
struct ReadingPlan {
  double hide = 0.0;                // KvOptions::hide
  double reads = 0.0;               // expected: groups of a layer that no slot has
  double read_us = 0.0;             // they take; 0: not known
  double layer_us = 0.0;            // 0: not known
  double layer_share = 1.0;         // of it, what reads of more than has slots may take
  bool is_limited_by_time = false;  // else by the budget
};

// What the user may say; what is open (nullopt, empty) is chosen from the budget. An explicit value that
// breaks the budget is an error.
struct KvOptions {
  std::string method;                     // "full", "flexgen", "kvswap"; empty: chosen, as above
  std::optional<uint64_t> budget_bytes;   // one of these two, or none: as much as it takes
  std::optional<double> budget_fraction;  // of the f16 KV of n_ctx tokens, over all sequences
  std::optional<KvType> k_type;
  std::optional<KvType> v_type;
  std::optional<uint32_t> group_tokens;  // G
  std::optional<uint32_t>
      select_entries;  // M * G, pinned sinks and window not counted; rounded down to groups
  // Above 0, at most 1: a selection ends where its predicted mass is this share of that of all groups that
  // can be chosen; M is the most then.
  std::optional<double> mass_share;
  // Besides, of the others, drawn at random: rounded down to groups.
  std::optional<uint32_t> sample_entries;
  std::optional<uint32_t> sample_seed;
  std::optional<uint32_t> window_entries;  // W
  std::optional<uint32_t> sink_entries;    // pinned: every group that holds one
  std::optional<uint32_t> reuse_groups;    // C
  std::optional<uint32_t> rank;
  std::optional<KvType> index_type;  // kF16, kInt8, kInt4
  std::optional<HeadReduction> heads;
  std::optional<AdapterKind> adapter_kind;
  bool adapter_from_file = false;               // else computed in prefill, inside the budget
  std::string policy;                           // replacement; empty: chosen
  std::optional<uint32_t> cluster_entries;      // of clusters, on average, when a prompt is divided
  std::optional<uint32_t> max_cluster_entries;  // of a cluster
  std::optional<uint32_t> cluster_room;         // of a stream of a layer: clusters in the index
  std::optional<uint32_t> pending_entries;      // of a stream of a layer: may wait for their cluster
  std::optional<uint32_t> upkeep_clusters;      // ClusterPlan::upkeep_clusters
  std::optional<double> split_factor;           // ClusterPlan::threshold_factor
  std::optional<ClusterUpdate> cluster_update;
  std::optional<ClusterLayout> cluster_layout;
  std::optional<bool> rows_on_flash;  // ClusterPlan::rows_on_flash
  std::optional<KeptShares> kept_shares;
  std::optional<KeptPrecisions> kept_precisions;
  std::optional<AttentionMoments> attention_moments;
  std::optional<StaticShare> static_share;
  std::optional<uint32_t> static_steps;  // StaticPlan::steps
  std::optional<bool> static_repage;     // StaticPlan::lays_pages
  std::optional<bool> rotate;            // KvPlan::rotates
  // Of the time in which a step reads from flash, the share that passes while the device computes. 0: reading
  // takes as long as it takes.
  std::optional<double> hide;
  std::optional<bool> adapt;              // KvPlan::n_usual
  std::optional<double> reads_per_layer;  // KvPlan::reads_per_layer; 0: all that is chosen is read
  // Not the user's: Adapter::layer_shares of the file that is named (KvPlan::layer_extra), for methods with
  // adapters. kept_shares = kEven: they are not followed.
  std::vector<float> layer_shares;
  // Not the user's: every layer but this one chooses everything.
  std::optional<uint32_t> cut_layer;
  // Not the user's: what is known of the machine.
  std::optional<FlashTimes> flash_times;
  // Not the user's: what a buffer of the device that computes prompts may have.
  uint64_t max_buffer_bytes = UINT64_MAX;
  // Not the user's: kvswap's group where none is given, as the flash asks for (engine/storage_speed.h).
  uint32_t default_group_tokens = kDefaultGroupTokens;
};

// Of full: f16 and f32 planes do not hold such types.
bool KeepsRecordsInMemory(const KvOptions& options);

struct KvModelShape {
  uint32_t n_layers = 0;
  uint32_t n_heads = 0;
  uint32_t n_kv_heads = 0;
  uint32_t head_dim = 0;
  uint32_t n_embd = 0;
  uint64_t layer_products = 0;  // multiplications of one token with a layer's weights; 0: not known
  // A chunk's activations of the feed-forward network: prompts of several tiles give them up for what follows
  // a layer.
  uint64_t feed_forward_bytes = 0;
};

// A part of the budget, as statistics name it.
struct KvPart {
  std::string name;  // "index", "slots", "slot tables", "window", "tables", "checksums", "scores", "staging",
                     // "prefill", ..
  uint64_t bytes = 0;
  bool in_prefill = true;
  bool in_decode = true;
};

// Of methods whose extents are clusters: those of one stream of one layer.
struct ClusterPlan {
  uint32_t mean_entries = 0;  // of clusters that a prompt is divided into
  uint32_t max_entries = 0;   // of a cluster
  uint32_t n_clusters = 0;    // room
  uint32_t n_sinks = 0;       // the first entries, which are in no cluster, and always attended to
  uint32_t max_pending = 0;   // entries that wait for their cluster
  // Of all layers and heads: a token of a sequence changes so many at most, besides those that must be. What
  // could be changed and is not waits for a later token.
  uint32_t upkeep_clusters = 0;
  // A cluster is divided where its variance exceeds so many times the mean variance of the first clusters.
  float threshold_factor = 0.0F;
  ClusterUpdate update = ClusterUpdate::kAdaptive;
  ClusterLayout layout = ClusterLayout::kDualHead;
  bool rows_on_flash = false;  // of the index: in memory are those of a few layers (ClusterRows)

  // Entries that lie in memory, in no slot: sinks and those that wait.
  uint32_t n_kept() const { return n_sinks + max_pending; }
};

// Of methods that evict: what stays of one stream of one layer, beside the window.
struct KeptPlan {
  uint32_t n_entries = 0;     // as KvPlan::record: on average
  uint32_t most_entries = 0;  // of any list, however they are shared out and of whatever types
  KvRecordShape low_record;   // of entries with 8 bits, where the method has such
  KeptShares shares = KeptShares::kEven;
  KeptPrecisions precisions = KeptPrecisions::kBytes;
  AttentionMoments moments = AttentionMoments::kKeys;
  // Of a prompt, at most: those whose attention says what stays. The last ones, or some of all of them.
  uint32_t observed_rows = 0;
  bool samples_rows = false;
};

// The static set: entries of each stream of a layer that lie in memory one by one all the time, and are left
// out of the groups that they are in. They are those that the last rows of a prompt attend to most.
// Source: PRKV, section 4.1; docs/methods/static-set.md says what is different.
struct StaticPlan {
  uint32_t n_entries = 0;  // of a stream; 0: there is none
  // Of what is attended to before the window: this share is the static set's, groups are the rest.
  StaticShare share;
  uint32_t n_total = 0;  // both together, in groups, pinned ones among them
  // While decoding, the set is chosen anew after so many entries: the last ones are computed again, as a
  // prompt. 0: prompts alone choose it.
  uint32_t steps = 0;
  uint32_t observed_rows = 0;  // of a prompt, at most: the last ones
  // Whenever it is chosen, the other entries are written to flash again, in pages of their own (StaticPages).
  bool lays_pages = false;
  // Where precision goes by score: what of the set keeps its precision, as of what ARKV keeps; the others
  // have 8 bits, or 4 where 8 are stored. n_entries is how many there would be in the types of `record`.
  KeptPrecisions precisions = KeptPrecisions::kBytes;
  AttentionMoments moments = AttentionMoments::kKeys;
  KvRecordShape low_record;   // of one entry
  uint32_t most_entries = 0;  // of a stream, however its precisions are shared out
};

// Of the groups that are scored, so many are by all heads: the best by few products
// (ScoreArgs::n_candidates). Zeros: all are.
struct CandidatePlan {
  uint32_t n_groups = 0;
  uint32_t first_columns = 0;
};

struct KvPlan {
  KvMethod method;
  uint32_t n_ctx = 0;
  uint32_t n_sequences = 1;
  uint64_t full_bytes = 0;     // f16 KV of n_ctx tokens, over all sequences
  uint64_t budget_bytes = 0;   // UINT64_MAX: none
  bool raises_budget = false;  // a share was given that is less than budget_bytes
  // Of a group, on flash and in slots. With clusters: of one entry, whose slots hold more of them.
  KvRecordShape record;
  KvRecordShape slot_record;    // what a slot holds: `record`, or so many entries of a cluster
  KvRecordShape window_record;  // in the window
  // Records hold entries rotated and centred (runtime/device/entry_space.h): where any are of int4.
  bool rotates = false;
  bool adapter_from_file = false;  // KvOptions::adapter_from_file
  // Of a stream: so many of its first groups lie in the window's records for good, exact, and are attended to
  // there: where records are rotated, the sinks, which lose most by few bits. They are pinned, where groups
  // are selected, and have no slots.
  uint32_t n_exact_groups = 0;
  uint32_t n_exact_chosen = 0;  // of them, those that a choice counts
  // Of their entries, the first so many are exact, and the others as they are stored: results depend neither
  // on the group's size nor on the method.
  uint32_t n_exact_entries = 0;
  uint32_t n_streams = 0;       // per layer
  uint32_t window_entries = 0;  // W
  uint32_t n_window_slots = 0;  // of the ring
  uint32_t n_pinned = 0;        // groups
  uint32_t n_chosen = 0;        // M: groups per stream and step, pinned ones included
  // Of the other groups, so many are drawn at random in each step, or one more (ScoreArgs::n_sampled). They
  // are read into the pool, unless an own slot has them.
  uint32_t n_sampled = 0;
  uint32_t sample_seed = 0;
  uint32_t n_cache_slots = 0;  // C: own slots of a stream of a layer, pinned groups included
  // Above 0: of chosen groups that no slot has, a stream reads so many of a layer in a step, on average over
  // layers and steps: those of the highest scores (ReadLimit). Others that lie in slots stand in for the
  // rest. Only without a pool.
  double reads_per_layer = 0.0;
  // Where layers have different shares of the slots, n_chosen and n_cache_slots are means, and a layer has so
  // many more of both, or fewer. Empty: all have as many.
  std::vector<int32_t> layer_extra;
  // Of a stream, in each part of the pool that layers share: room for what finds no own slot. 0: no pool.
  uint32_t n_pool_slots = 0;
  GroupScore group_score = GroupScore::kLargest;
  float mass_share = 0.0F;  // 0: M groups, whatever their mass
  // How many are chosen follows, while decoding, how late reads are: at first so many, at most n_chosen.
  // 0: it does not.
  uint32_t n_usual = 0;
  double hide = 0.0;                      // KvOptions::hide
  std::optional<FlashTimes> flash_times;  // what the plan was made with
  std::optional<ReadingPlan> reading;     // where it has decided M and C
  bool is_limited_by_attention = false;   // more would fit: attending to them would take too long
  bool reuse_limits_selection = false;    // select_entries was open: more might fit, but C was given
  ClusterPlan clusters;
  KeptPlan kept;
  StaticPlan statics;
  IndexShape index;
  CandidatePlan candidates;
  HeadReduction heads = HeadReduction::kSoftmax;
  AdapterKind adapter_kind = AdapterKind::kQueryCentred;
  std::string policy;
  uint64_t staging_bytes = 0;
  uint64_t row_staging_bytes = 0;  // of the index's rows on flash
  // Of one layer's entries, the first so many are in memory until the next: the whole context, else a
  // multiple of 256; then the others are in tiles of 256, or as many as the first has where these are fewer.
  uint32_t prefill_tile_tokens = 0;
  // So many of these tiles are read and attended to at a time.
  uint32_t prefill_read_tiles = 0;
  bool spills_hidden = false;  // hidden states between layers lie on flash; two chunks of 256 rows in memory
  // Of plans of one tile, where memory is left for it: while the device computes a chunk, the next one's
  // inputs are written into their own buffers, and more keys are projected at a time.
  bool has_inputs_ahead = false;
  std::vector<KvPart> parts;
  std::vector<std::string> notes;    // for people: a method that was chosen, a budget that was raised
  std::vector<std::string> details;  // for experts: how much is selected, and why

  // Of the newest entries, those that are not rounded to `record`'s types.
  uint32_t exact_entries() const { return window_entries < kExactEntries ? window_entries : kExactEntries; }
  // Of a sequence of `length` entries: the first group that the window holds, and how many lie before it.
  uint32_t FirstWindowGroup(uint32_t length) const {
    return length > window_entries ? (length - window_entries) / record.group_tokens : 0;
  }
  // When a layer's choice is known, the layer that had its part of the pool before is complete: that many
  // layers later (KvThread).
  uint32_t pool_parts() const { return n_pool_slots == 0 ? 0 : 1 + method.lookahead; }
  SlotCacheShape slot_cache_shape(uint32_t layer) const {
    return {n_own_slots(layer), n_needed_in_slots(layer), n_pool_slots, n_record_ids(), records_per_extent()};
  }
  // Of a layer, as n_chosen.
  uint32_t chosen_of(uint32_t layer) const { return n_chosen + extra_of(layer); }
  uint32_t least_chosen() const;  // of any layer
  uint32_t most_chosen() const;
  // The fewest that are chosen where reads are late: as many as have slots.
  uint32_t n_least() const {
    return std::min(n_usual, std::max(n_cache_slots, std::min(n_pinned + 1, n_groups())));
  }
  ChoiceList choice_list(uint32_t layer) const { return {chosen_of(layer), n_sampled, limits_reads()}; }
  // Notes and details, as commands for experts say them.
  std::vector<std::string> AllNotes() const;
  bool limits_reads() const { return reads_per_layer > 0.0; }
  // Groups that are drawn in a step, at most.
  uint32_t most_sampled() const { return ChoiceList{n_chosen, n_sampled}.most_sampled(); }
  // That a step needs of a stream of any layer at most: chosen or drawn.
  uint32_t n_needed() const { return most_chosen() + most_sampled(); }
  // Of a layer, groups that lie in slots or pool.
  uint32_t n_needed_in_slots(uint32_t layer) const {
    return chosen_of(layer) + most_sampled() - std::min(n_chosen, n_exact_chosen);
  }
  // Slots that a stream of a layer has of its own. Where all lie in memory, group i lies in slot i.
  uint32_t n_own_slots(uint32_t layer = 0) const {
    if (!method.is_on_flash()) return n_cache_slots;
    return n_cache_slots + extra_of(layer) - std::min(n_cache_slots, n_exact_chosen);
  }
  // The window's records of a stream: of the exact groups, then the ring.
  uint32_t n_window_records() const { return n_exact_groups + n_window_slots; }
  uint32_t heads_per_sequence() const { return n_streams / n_sequences; }  // streams
  uint32_t key_dim() const { return record.n_heads * heads_per_sequence() * record.head_dim; }
  bool has_statics() const { return statics.n_entries > 0; }
  // Mapping tables say of each slot how many of its entries count, and their bias (SlotShape::has_biases).
  bool has_slot_biases() const { return slot_record.has_positions || has_statics() || n_sampled > 0; }
  // Of a prompt, at most so many rows are observed: how much attention they give to each entry is asked for.
  uint32_t observed_rows() const { return std::max(kept.observed_rows, statics.observed_rows); }
  // One entry of a stream, in the types of `record`.
  KvRecordShape entry_record() const {
    KvRecordShape entry = record;
    entry.group_tokens = 1;
    return entry;
  }
  // In what a step's choice is told for statistics: entries, where such are told apart; else groups.
  uint32_t told_tokens() const { return has_statics() ? 1 : record.group_tokens; }
  uint32_t n_groups() const { return (n_ctx + record.group_tokens - 1) / record.group_tokens; }
  // Of a stream: places of groups on flash; behind the groups are those of pages that were laid anew.
  uint32_t n_stored_groups() const {
    return has_statics() && statics.lays_pages ? 2 * n_groups() : n_groups();
  }
  // Slots that a cluster takes at most.
  uint32_t records_per_cluster() const {
    return (clusters.max_entries + slot_record.group_tokens - 1) / slot_record.group_tokens;
  }
  bool extents_are_groups() const { return clusters.n_clusters == 0; }
  uint32_t records_per_extent() const { return extents_are_groups() ? 1 : records_per_cluster(); }
  // Ids of what slots hold: groups, or records of clusters (cluster * records_per_cluster() + i).
  uint32_t n_record_ids() const {
    return (extents_are_groups() ? n_groups() : clusters.n_clusters) * records_per_extent();
  }
  // Slots that all entries of a stream take at most.
  uint32_t n_choosable() const;
  // Entries that n slots hold, mostly: the last record of a cluster is filled in part.
  uint32_t EntriesOfSlots(uint32_t n_slots) const;
  // As --kv-select counts them: of slots and of the static set, without what is pinned.
  uint32_t selected_entries() const;
  ClusterMapShape cluster_map_shape() const {
    return {.dim = record.head_dim,
            .max_clusters = clusters.n_clusters,
            .max_entries = clusters.max_entries,
            .max_pending = clusters.max_pending,
            .update = clusters.update};
  }
  uint64_t prefill_bytes() const;
  uint64_t decode_bytes() const;

 private:
  // Modulo 2^32: it is added.
  uint32_t extra_of(uint32_t layer) const {
    return layer_extra.empty() ? 0 : static_cast<uint32_t>(layer_extra[layer]);
  }
};

}  // namespace kvrun
