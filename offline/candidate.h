// A point of the search space: what `kvadapt tune` decides about the KV cache of kvswap, and what a budget
// makes of it. Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "platform/base/status.h"
#include "runtime/engine/config/config_file.h"
#include "runtime/kv/plan/kv_plan.h"
#include "runtime/kv/plan/kv_plan_input.h"

namespace kvrun::offline {

struct Candidate {
  uint32_t group_tokens = 4;  // G
  KvType k_type = KvType::kFp8;
  KvType v_type = KvType::kFp8;
  uint32_t rank = 24;
  KvType index_type = KvType::kInt4;
  HeadReduction heads = HeadReduction::kSoftmax;
  uint32_t window_entries = 64;  // W
  // M in percent of C, what is pinned not counted. C is always what the budget holds.
  uint32_t chosen_percent = 100;
  // Above 0: so many entries are attended to (KvPlan::selected_entries), more than have slots, what is drawn
  // at random among them. The others are read into the pool that layers share. chosen_percent is 100 then.
  uint32_t pool_entries = 0;
  double sampled_share = 0.0;  // of pool_entries, drawn at random; not with a static set
  bool adapts = false;         // KvOptions::adapt; with pool_entries
  double static_share = 0.0;   // StaticPlan; not where M is less than C
  // Below 100: of M, what is not pinned, a layer reads so much in a step on average
  // (KvSlotPlan::reads_per_layer). Only where all of M has slots.
  uint32_t reads_percent = 100;
  std::string policy = "lru";
  std::string adapter;  // its file; empty: computed from each prompt

  bool operator==(const Candidate&) const = default;
};

// What does not change between candidates of one search.
struct SearchSetting {
  KvModelShape model;
  uint32_t batch = 1;
  uint32_t ctx = 0;           // tokens of each sequence
  uint64_t budget_bytes = 0;  // of all sequences
  uint32_t io_alignment_bytes = 1;
  std::string adapter_path;                             // of kvadapt calibrate; empty: there is none
  uint32_t max_rank = 0;                                // of that file
  uint32_t default_group_tokens = kDefaultGroupTokens;  // what kvrun takes on this storage
  std::vector<float> layer_shares;                      // of that file: Adapter::layer_shares
  std::optional<FlashTimes> flash_times;                // by which kvrun selects more than has slots
};

// Of a stream of a layer: groups that a step needs and that are not pinned, chosen or drawn; and own slots
// for such.
inline uint32_t FreeGroups(const KvPlan& plan) {
  return plan.choice.n_chosen - plan.choice.n_pinned + plan.choice.n_sampled;
}
inline uint32_t FreeSlots(const KvPlan& plan) {
  return plan.slots.n_cache_slots - std::min(plan.slots.n_cache_slots, plan.choice.n_pinned);
}

struct SizedCandidate {
  Candidate candidate;
  KvPlan plan;
  // As a session takes them, M and C among them; without method and budget.
  NamedKvOptions options;

  uint32_t grouped_entries() const { return FreeGroups(plan) * plan.record.group_tokens; }
  uint32_t reuse_groups() const { return plan.slots.n_cache_slots; }
};

// kOutOfMemory where the budget does not hold it, or not its static set; kInvalidArgument where pool_entries
// all have slots.
Result<SizedCandidate> SizeCandidate(const Candidate& candidate, const SearchSetting& setting);

// What kvrun itself chooses from the budget: the search begins there, and where no limit is
// given no answer may have a higher KL.
Result<SizedCandidate> BudgetsOwnChoice(const SearchSetting& setting);
// The values of each dimension that a search looks at: those that the model allows.
std::vector<uint32_t> GroupSizes();
// `from_file`: those that the adapter's file has.
std::vector<uint32_t> Ranks(const SearchSetting& setting, bool from_file);
struct EntryTypes {
  KvType k_type;
  KvType v_type;
};
std::vector<EntryTypes> EntryTypePairs();
std::vector<KvType> IndexTypes();
std::vector<HeadReduction> HeadReductions(const SearchSetting& setting);
std::vector<uint32_t> Windows();
std::vector<uint32_t> ChosenPercents();
std::vector<uint32_t> PoolEntries(const SearchSetting& setting);
std::vector<double> SampledShares();
std::vector<double> StaticShares();
std::vector<uint32_t> ReadsPercents();
std::vector<std::string> Adapters(const SearchSetting& setting);

// Every combination that fits the budget and has at least 64 entries to choose, or all that there are; where
// there is none, those with fewer. Those that read into the pool are a coarser grid: what is decided besides
// is taken as it mostly is best.
std::vector<SizedCandidate> AllCandidates(const SearchSetting& setting);
// What differs from `from` in one dimension: by a step where its values are numbers, by any other value where
// they are names. They need not fit the budget.
struct Neighbour {
  Candidate candidate;
  std::string change;
};
std::vector<Neighbour> Neighbours(const Candidate& from, const SearchSetting& setting);

// In its options too.
void SetPolicy(const std::string& policy, SizedCandidate* sized);

std::string TypeName(KvType type);
// "--kv-group 4 --kv-type fp8 ..."
std::string OptionLine(const NamedKvOptions& options);

}  // namespace kvrun::offline
