// What a budget buys: every size of the KV cache, decided before anything is loaded (planner/plan_kv.h says
// by which rules). Plain data: a core that all methods have, and what the method's family alone has
// (groups_plan.h, clusters_plan.h, kept_plan.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "platform/base/check.h"
#include "runtime/device/device.h"
#include "runtime/kv/math/adapter.h"
#include "runtime/kv/math/slot_cache.h"
#include "runtime/kv/plan/clusters_plan.h"
#include "runtime/kv/plan/flash_times.h"
#include "runtime/kv/plan/groups_plan.h"
#include "runtime/kv/plan/kept_plan.h"
#include "runtime/kv/plan/kv_method.h"
#include "runtime/kv/plan/resident_plan.h"
#include "runtime/kv/plan/states_plan.h"

namespace kvrun {

// The newest entries, which are not rounded to the types of flash and slots, where the window is that long.
// Measured on SmolLM2-135M, all entries attended to, K and V in fp8: KL 0.0116 where none is exact, 0.0047
// with 16, 0.0025 with 32, as with all that are decoded.
inline constexpr uint32_t kExactEntries = 64;

struct KvBudgetPlan {
  uint64_t full_bytes = 0;  // f16 KV of n_ctx tokens, over all sequences
  uint64_t bytes = 0;       // UINT64_MAX: none
  bool is_raised = false;   // a share was given that is less
};

struct KvWindowPlan {
  uint32_t n_entries = 0;  // W
  uint32_t n_slots = 0;    // of the ring
  KvRecordShape record;
  // Of a stream: so many of its first groups lie in the window's records for good, exact, and are attended to
  // there: where records are rotated, the sinks, which lose most by few bits. They are pinned, where groups
  // are selected, and have no slots.
  uint32_t n_exact_groups = 0;
  uint32_t n_exact_chosen = 0;  // of them, those that a choice counts
  // Of their entries, the first so many are exact, and the others as they are stored: results depend neither
  // on the group's size nor on the method.
  uint32_t n_exact_entries = 0;

  // Of a stream: of the exact groups, then the ring.
  uint32_t n_records() const { return n_exact_groups + n_slots; }
  // Of the newest entries, those that are not rounded to KvPlan::record's types.
  uint32_t exact_entries() const { return std::min(n_entries, kExactEntries); }
};

// What a stream attends to in a step, before its window.
struct KvChoicePlan {
  uint32_t n_pinned = 0;  // groups
  uint32_t n_chosen = 0;  // M: groups, pinned ones included; where layers differ, on average
  // Of the other groups, so many are drawn at random in each step, or one more (ChooseAndSample). They are
  // read into the pool, unless an own slot has them.
  uint32_t n_sampled = 0;
  uint32_t sample_seed = 0;
  HeadReduction heads = HeadReduction::kSoftmax;
  GroupScore group_score = GroupScore::kLargest;
  float mass_share = 0.0F;  // 0: M groups, whatever their mass
  // How many are chosen follows, while decoding, how late reads are: at first so many, at most n_chosen.
  // 0: it does not.
  uint32_t n_usual = 0;
  double hide = 0.0;                     // KvOptions::hide
  bool is_limited_by_attention = false;  // more would fit: attending to them would take too long
  bool is_limited_by_reuse = false;      // select_entries was open: more might fit, but C was given
};

// Where what is chosen lies.
struct KvSlotPlan {
  KvRecordShape record;        // what a slot holds: KvPlan::record, or so many entries of a cluster
  uint32_t n_cache_slots = 0;  // C: own slots of a stream of a layer, pinned groups included; as n_chosen
  // Of a stream, in each part of the pool that layers share: room for what finds no own slot. 0: no pool.
  uint32_t n_pool_slots = 0;
  std::string policy;
  // Above 0: of chosen groups that no slot has, a stream reads so many of a layer in a step, on average over
  // layers and steps: those of the highest scores (ReadLimit). Others that lie in slots stand in for the
  // rest. Only without a pool.
  double reads_per_layer = 0.0;
};

// KvChoicePlan::n_chosen and KvSlotPlan::n_cache_slots of one layer.
struct KvLayerPlan {
  uint32_t n_chosen = 0;
  uint32_t n_cache_slots = 0;

  bool operator==(const KvLayerPlan&) const = default;
};

struct KvAdapterPlan {
  AdapterKind kind = AdapterKind::kQueryCentred;
  bool is_from_file = false;  // KvOptions::adapter_from_file
};

struct KvPrefillPlan {
  // Of one layer's entries, the first so many are in memory until the next: the whole context, else a
  // multiple of 256; then the others are in tiles of 256, or as many as the first has where these are fewer.
  uint32_t tile_tokens = 0;
  uint32_t read_tiles = 0;     // so many of these are read and attended to at a time
  bool spills_hidden = false;  // hidden states between layers lie on flash; two chunks of 256 rows in memory
  // Of plans of one tile, where memory is left for it: while the device computes a chunk, the next one's
  // inputs are written into their own buffers, and more keys are projected at a time.
  bool has_inputs_ahead = false;
};

// A part of the budget, as statistics name it.
struct KvPart {
  std::string name;  // "index", "slots", "slot tables", "window", "tables", "checksums", "scores", "staging",
                     // "prefill", ..
  uint64_t bytes = 0;
  bool in_prefill = true;
  bool in_decode = true;
};

struct KvNotes {
  std::vector<std::string> for_people;   // a method that was chosen, a budget that was raised
  std::vector<std::string> for_experts;  // how much is selected, and why

  // Both, as commands for experts say them.
  std::vector<std::string> All() const;
};

using KvFamilyPlan = std::variant<ResidentPlan, GroupsPlan, ClustersPlan, KeptPlan>;

// Of the family that is asked for; it has to be of that.
template <typename Part, typename Family>
auto& PartOf(Family& family) {
  auto* const part = std::get_if<Part>(&family);
  KVRUN_CHECK(part != nullptr);
  return *part;
}

struct KvPlan {
  KvMethod method;
  uint32_t n_ctx = 0;
  uint32_t n_sequences = 1;
  uint32_t n_streams = 0;  // per layer
  KvBudgetPlan budget;
  // Of a group, on flash and in slots. With clusters: of one entry, whose slots hold more of them.
  KvRecordShape record;
  // Records hold entries rotated and centred (runtime/device/entry_space.h): where any are of int4.
  bool rotates = false;
  KvWindowPlan window;
  KvChoicePlan choice;
  KvSlotPlan slots;
  std::vector<KvLayerPlan> layers;
  bool has_layer_shares = false;  // of the slots, which may be equal; else all layers have as many
  IndexShape index;               // of rank 0: there is none
  KvAdapterPlan adapter;
  KvPrefillPlan prefill;
  StatesPlan states;  // of layers that are not among `layers`
  uint64_t staging_bytes = 0;
  std::optional<FlashTimes> flash_times;  // what the plan was made with
  uint32_t n_seal_helpers = 0;            // threads that open what is encrypted beside the one that reads
  std::vector<KvPart> parts;
  KvNotes notes;
  KvFamilyPlan family;

  // --- Of the family: null where the plan is of another one.
  const GroupsPlan* groups() const { return std::get_if<GroupsPlan>(&family); }
  const ClustersPlan* clusters() const { return std::get_if<ClustersPlan>(&family); }
  const KeptPlan* kept() const { return std::get_if<KeptPlan>(&family); }
  // For the family's own code, which meets no other plans.
  const GroupsPlan& of_groups() const { return PartOf<GroupsPlan>(family); }
  GroupsPlan& of_groups() { return PartOf<GroupsPlan>(family); }
  const ClustersPlan& of_clusters() const { return PartOf<ClustersPlan>(family); }
  ClustersPlan& of_clusters() { return PartOf<ClustersPlan>(family); }
  const KeptPlan& of_kept() const { return PartOf<KeptPlan>(family); }
  KeptPlan& of_kept() { return PartOf<KeptPlan>(family); }

  // --- Sequences and streams.
  // Of a sequence of `length` entries: the first group that the window holds, and how many lie before it.
  uint32_t FirstWindowGroup(uint32_t length) const {
    return length > window.n_entries ? (length - window.n_entries) / record.group_tokens : 0;
  }
  uint32_t heads_per_sequence() const { return n_streams / n_sequences; }  // streams
  uint32_t key_dim() const { return record.n_heads * heads_per_sequence() * record.head_dim; }
  // One entry of a stream, in the types of `record`.
  KvRecordShape entry_record() const {
    KvRecordShape entry = record;
    entry.group_tokens = 1;
    return entry;
  }
  uint32_t n_groups() const { return (n_ctx + record.group_tokens - 1) / record.group_tokens; }
  // Of a stream: places of groups on flash; behind the groups are those of pages that were laid anew.
  uint32_t n_stored_groups() const;
  // What the family says of what is stored.
  FamilyForm family_form() const;

  // --- Layers.
  // M and C of all layers: none has a share of its own then.
  void SetCounts(uint32_t n_chosen, uint32_t n_cache_slots);
  uint32_t least_chosen() const;  // of any layer
  uint32_t most_chosen() const;
  ChoiceList choice_list(uint32_t layer) const {
    return {layers[layer].n_chosen, choice.n_sampled, limits_reads()};
  }
  // Groups that lie in slots or pool.
  uint32_t n_needed_in_slots(uint32_t layer) const {
    return layers[layer].n_chosen + most_sampled() - std::min(choice.n_chosen, window.n_exact_chosen);
  }
  // Slots that a stream of a layer has of its own.
  uint32_t n_own_slots(uint32_t layer) const;
  SlotCacheShape slot_cache_shape(uint32_t layer) const {
    return {n_own_slots(layer), n_needed_in_slots(layer), slots.n_pool_slots, n_record_ids(),
            records_per_extent()};
  }

  // --- A step of any layer.
  // The fewest that are chosen where reads are late: as many as have slots.
  uint32_t n_least() const {
    return std::min(choice.n_usual, std::max(slots.n_cache_slots, std::min(choice.n_pinned + 1, n_groups())));
  }
  bool limits_reads() const { return slots.reads_per_layer > 0.0; }
  // Groups that are drawn in a step, at most.
  uint32_t most_sampled() const { return ChoiceList{choice.n_chosen, choice.n_sampled}.most_sampled(); }
  // That a step needs of a stream at most: chosen or drawn.
  uint32_t n_needed() const { return most_chosen() + most_sampled(); }
  // Chosen groups, and the static set in place of groups: where prompts say its share, all may be chosen.
  uint32_t n_total() const;
  CandidatePlan candidates() const;
  const ReadingPlan* reading() const;  // null: it has not decided M and C
  void SetReading(const ReadingPlan& reading) { of_groups().reading = reading; }
  // When a layer's choice is known, the layer that had its part of the pool before is complete: that many
  // layers later (KvThread).
  uint32_t pool_parts() const { return slots.n_pool_slots == 0 ? 0 : 1 + method.lookahead; }
  // Mapping tables say of each slot how many of its entries count, and their bias (SlotShape::has_biases).
  bool has_slot_biases() const;
  // In what a step's choice is told for statistics: entries, where such are told apart; else groups.
  uint32_t told_tokens() const;

  // --- Extents.
  uint32_t records_per_extent() const;  // at most
  // Ids of what slots hold: groups, or records of clusters (cluster * records_per_extent() + i).
  uint32_t n_record_ids() const;
  // Slots that all entries of a stream take at most.
  uint32_t n_choosable() const;
  // Entries that n slots hold, mostly: the last record of a cluster is filled in part.
  uint32_t EntriesOfSlots(uint32_t n_slots) const;
  // As --kv-select counts them: of slots and of the static set, without what is pinned.
  uint32_t selected_entries() const;
  uint32_t sink_entries() const;  // of whole groups, where groups are pinned

  // --- The static set.
  bool has_statics() const { return n_statics() > 0; }
  StaticShare static_share() const;
  uint32_t n_statics() const;     // entries of a stream
  uint32_t most_statics() const;  // however its precisions are shared out
  LaterPrompts later_prompts() const;
  uint32_t static_steps() const;  // StaticPlan::steps, where there is a static set

  // --- Prompts.
  // At most so many rows are observed: how much attention they give to each entry is asked for.
  uint32_t observed_rows() const;
  bool samples_rows() const;   // some of all; else the last ones
  bool needs_queries() const;  // of prompts

  // --- Storage.
  bool has_int4() const;
  bool has_rows_file() const;  // rows of the index lie in a file of their own
  uint64_t prefill_bytes() const;
  uint64_t decode_bytes() const;
};

}  // namespace kvrun
