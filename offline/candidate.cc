#include "offline/candidate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "runtime/kv/plan/kv_names.h"
#include "runtime/kv/planner/kv_plan_layers.h"
#include "runtime/kv/planner/plan_kv.h"

namespace kvrun::offline {
namespace {

constexpr uint32_t kSinkEntries = 4;  // what kvswap takes by itself
constexpr uint32_t kFewestEntries = 64;
constexpr uint32_t kMostColumns = 256;

// The window and the types beside which more is selected than has slots.
constexpr std::array kPoolWindows = {32U, 64U};
constexpr std::array kPoolTypes = {KvType::kInt4, KvType::kInt8};  // of K; V's is int4

// Of reads that are limited: neighbours of what is measured have others.
constexpr uint32_t kUsualReads = 7;

// In whole groups.
uint32_t SampledEntries(const Candidate& candidate) {
  const auto entries = static_cast<uint32_t>(candidate.sampled_share * candidate.pool_entries);
  return entries / candidate.group_tokens * candidate.group_tokens;
}

KvOptions OptionsOf(const Candidate& candidate, const SearchSetting& setting) {
  KvOptions options;
  options.method = "kvswap";
  options.budget_bytes = setting.budget_bytes;
  options.k_type = candidate.k_type;
  options.v_type = candidate.v_type;
  options.group_tokens = candidate.group_tokens;
  options.rank = candidate.rank;
  options.index_type = candidate.index_type;
  options.heads = candidate.heads;
  options.window_entries = candidate.window_entries;
  options.policy = candidate.policy;
  options.static_share = StaticShare{.share = candidate.static_share};
  if (candidate.pool_entries > 0) {
    const uint32_t sampled = SampledEntries(candidate);
    options.select_entries = candidate.pool_entries - sampled;
    if (sampled > 0) options.sample_entries = sampled;
    if (candidate.adapts) options.adapt = true;
  }
  options.adapter_from_file = !candidate.adapter.empty();
  if (options.adapter_from_file) options.layer_shares = setting.layer_shares;
  return options;
}

std::string TypesText(KvType k_type, KvType v_type) {
  if (k_type == v_type) return std::string(KvTypeName(k_type));
  return fmt::format("{},{}", KvTypeName(k_type), KvTypeName(v_type));
}

NamedKvOptions NamesOf(const Candidate& candidate, const KvPlan& plan) {
  NamedKvOptions options = {{"type", TypesText(candidate.k_type, candidate.v_type)},
                            {"sinks", std::to_string(kSinkEntries)},
                            {"group", std::to_string(candidate.group_tokens)},
                            {"select", std::to_string(plan.selected_entries())},
                            {"reuse", std::to_string(plan.slots.n_cache_slots)},
                            {"static", fmt::format("{}", plan.has_statics() ? candidate.static_share : 0.0)},
                            {"window", std::to_string(candidate.window_entries)},
                            {"rank", std::to_string(candidate.rank)},
                            {"index", std::string(KvTypeName(candidate.index_type))},
                            {"heads", std::string(HeadReductionName(candidate.heads))},
                            {"policy", candidate.policy}};
  if (plan.choice.n_sampled > 0) {
    options.emplace_back("sample", std::to_string(plan.choice.n_sampled * plan.record.group_tokens));
  }
  // Said in any case: what reads by itself depends on the machine.
  options.emplace_back("reads", fmt::format("{:.4g}", plan.slots.reads_per_layer));
  if (candidate.adapts) options.emplace_back("adapt", "on");
  if (!candidate.adapter.empty()) options.emplace_back("adapter", candidate.adapter);
  return options;
}

// The same plan, with reads of a share of what it selects.
Result<KvPlan> LimitReads(const KvPlan& plan, const Candidate& candidate, KvOptions options,
                          const SearchSetting& setting) {
  if (candidate.reads_percent >= 100 || candidate.pool_entries > 0) return plan;
  options.reads_per_layer = std::max(FreeGroups(plan) * candidate.reads_percent / 100.0, 1.0);
  return PlanKv(options, setting.model, setting.ctx, setting.batch, setting.io_alignment_bytes);
}

// The values beside `value` in an ascending list; those at the ends where it is not in the list.
template <typename T>
std::vector<T> Beside(const std::vector<T>& values, const T& value) {
  std::vector<T> beside;
  const auto above = std::upper_bound(values.begin(), values.end(), value);
  const auto at_least = std::lower_bound(values.begin(), values.end(), value);
  if (at_least != values.begin()) beside.push_back(*(at_least - 1));
  if (above != values.end()) beside.push_back(*above);
  return beside;
}

// What a part of the cache's groups takes is what all of them take: only M changes.
KvPlan ChoosingLess(KvPlan plan, uint32_t percent, const SearchSetting& setting) {
  const uint32_t n_free = plan.choice.n_chosen - plan.choice.n_pinned;
  if (percent >= 100) return plan;
  const bool has_layer_shares = plan.has_layer_shares;
  plan.SetCounts(plan.choice.n_pinned + std::max(n_free * percent / 100, 1U), plan.slots.n_cache_slots);
  if (has_layer_shares) ShareAmongLayers(setting.layer_shares, plan);
  return plan;
}

template <typename Values, typename T>
bool Contains(const Values& values, const T& value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

// Static set and samples, which do not go together, beside each number of entries.
template <typename Keep>
void AddPools(const SearchSetting& setting, Candidate candidate, const Keep& keep) {
  candidate.chosen_percent = 100;
  for (const uint32_t entries : PoolEntries(setting)) {
    candidate.pool_entries = entries;
    for (const double statics : StaticShares()) {
      candidate.static_share = statics;
      for (const double sampled : SampledShares()) {
        candidate.sampled_share = sampled;
        if (statics > 0.0 && sampled > 0.0) continue;
        Result<SizedCandidate> sized = SizeCandidate(candidate, setting);
        if (sized.ok()) keep(*std::move(sized));
      }
    }
  }
}

// What an index of a rank can be, and the window beside it.
template <typename Add>
void AddIndexes(const SearchSetting& setting, Candidate* candidate, const Add& add) {
  for (const KvType index_type : IndexTypes()) {
    candidate->index_type = index_type;
    for (const HeadReduction heads : HeadReductions(setting)) {
      candidate->heads = heads;
      for (const uint32_t window : Windows()) {
        candidate->window_entries = window;
        add();
      }
    }
  }
}

}  // namespace

Result<SizedCandidate> SizeCandidate(const Candidate& candidate, const SearchSetting& setting) {
  const KvOptions options = OptionsOf(candidate, setting);
  KVRUN_ASSIGN_OR_RETURN(
      KvPlan plan, PlanKv(options, setting.model, setting.ctx, setting.batch, setting.io_alignment_bytes));
  if (candidate.static_share > 0.0 && !plan.has_statics()) {
    return Status(StatusCode::kOutOfMemory, "the budget leaves no room for a static set");
  }
  if (candidate.pool_entries > 0 && plan.slots.n_pool_slots == 0) {
    return Status(StatusCode::kInvalidArgument, "all that is selected has slots");
  }
  KVRUN_ASSIGN_OR_RETURN(plan, LimitReads(plan, candidate, options, setting));
  plan = ChoosingLess(std::move(plan), candidate.chosen_percent, setting);
  SizedCandidate sized{candidate, std::move(plan), {}};
  sized.options = NamesOf(candidate, sized.plan);
  return sized;
}

Result<SizedCandidate> BudgetsOwnChoice(const SearchSetting& setting) {
  KvOptions options;
  options.method = "kvswap";
  options.default_group_tokens = setting.default_group_tokens;
  options.flash_times = setting.flash_times;
  options.budget_bytes = setting.budget_bytes;
  KVRUN_ASSIGN_OR_RETURN(
      KvPlan plan, PlanKv(options, setting.model, setting.ctx, setting.batch, setting.io_alignment_bytes));
  Candidate candidate;
  candidate.group_tokens = plan.record.group_tokens;
  candidate.k_type = plan.record.k_type;
  candidate.v_type = plan.record.v_type;
  candidate.rank = plan.index.rank;
  candidate.index_type = plan.index.type;
  candidate.heads = plan.choice.heads;
  candidate.window_entries = plan.window.n_entries;
  candidate.policy = plan.slots.policy;
  candidate.static_share = plan.has_statics() ? plan.static_share().share : 0.0;
  if (plan.slots.n_pool_slots > 0) candidate.pool_entries = plan.selected_entries();
  if (plan.limits_reads() && FreeGroups(plan) > 0) {
    candidate.reads_percent =
        static_cast<uint32_t>(std::lround(100.0 * plan.slots.reads_per_layer / FreeGroups(plan)));
  }
  SizedCandidate own{candidate, std::move(plan), {}};
  own.options = NamesOf(candidate, own.plan);
  return own;
}

std::vector<uint32_t> GroupSizes() { return {1, 2, 4, 8, 16, 32}; }

std::vector<uint32_t> Ranks(const SearchSetting& setting, bool from_file) {
  const uint32_t key_dim = setting.model.n_kv_heads * setting.model.head_dim;
  const uint32_t most = std::min(kMostColumns, from_file ? setting.max_rank : key_dim);
  std::vector<uint32_t> ranks;
  for (const uint32_t rank : {4, 8, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128, 192, 256}) {
    if (rank <= most && rank * 2 <= key_dim) ranks.push_back(rank);
  }
  if (ranks.empty()) ranks.push_back(std::max(std::min(most, key_dim / 2), 1U));
  return ranks;
}

// By falling size; those that were dominated wherever they were tried are left out (fp8 beside int8, which
// takes the same bytes, has a tenth of the error and is cheaper to decode;
// docs/measurements/kvswap-settings.md).
std::vector<EntryTypes> EntryTypePairs() {
  return {{KvType::kInt4, KvType::kInt4}, {KvType::kInt8, KvType::kInt4}, {KvType::kFp8, KvType::kInt4},
          {KvType::kInt8, KvType::kInt8}, {KvType::kFp8, KvType::kFp8},   {KvType::kF16, KvType::kF16}};
}

std::vector<KvType> IndexTypes() { return {KvType::kInt4, KvType::kInt8, KvType::kF16}; }

std::vector<HeadReduction> HeadReductions(const SearchSetting& setting) {
  if (setting.model.n_kv_heads == 1) return {HeadReduction::kSoftmax};
  return {HeadReduction::kSoftmax, HeadReduction::kPerKvHead};
}

std::vector<uint32_t> Windows() { return {16, 32, 48, 64, 96}; }

std::vector<uint32_t> ChosenPercents() { return {25, 35, 50, 65, 80, 100}; }

// By doublings, and all of the context.
std::vector<uint32_t> PoolEntries(const SearchSetting& setting) {
  std::vector<uint32_t> entries;
  for (uint32_t n = 512; n < setting.ctx; n *= 2) entries.push_back(n);
  entries.push_back(setting.ctx);
  return entries;
}

std::vector<double> SampledShares() { return {0.0, 0.4}; }

std::vector<double> StaticShares() { return {0.0, 0.25}; }

// What is read without a limit is about a fifth.
std::vector<uint32_t> ReadsPercents() { return {4, 7, 12, 100}; }

std::vector<std::string> Adapters(const SearchSetting& setting) {
  if (setting.adapter_path.empty()) return {""};
  return {"", setting.adapter_path};
}

std::vector<SizedCandidate> AllCandidates(const SearchSetting& setting) {
  std::vector<SizedCandidate> all;
  std::vector<SizedCandidate> small;
  Candidate candidate;
  const auto keep = [&](SizedCandidate sized) {
    const bool has_all = sized.plan.choice.n_chosen == sized.plan.n_groups();
    const bool is_enough = sized.plan.selected_entries() >= kFewestEntries || has_all;
    (is_enough ? all : small).push_back(std::move(sized));
  };
  const auto add = [&] {
    candidate.chosen_percent = 100;
    for (const double share : StaticShares()) {
      candidate.static_share = share;
      const Result<SizedCandidate> most = SizeCandidate(candidate, setting);
      if (!most.ok()) continue;
      if (share > 0.0) {
        keep(*most);
        candidate.reads_percent = kUsualReads;
        if (Result<SizedCandidate> limited = SizeCandidate(candidate, setting); limited.ok()) {
          keep(*std::move(limited));
        }
        candidate.reads_percent = 100;
        continue;
      }
      for (const uint32_t percent : ChosenPercents()) {
        SizedCandidate sized{candidate, ChoosingLess(most->plan, percent, setting), {}};
        sized.candidate.chosen_percent = percent;
        sized.options = NamesOf(sized.candidate, sized.plan);
        keep(std::move(sized));
      }
    }
  };
  const auto add_pools = [&] {
    candidate.index_type = KvType::kInt4;
    for (const HeadReduction heads : HeadReductions(setting)) {
      candidate.heads = heads;
      for (const uint32_t window : kPoolWindows) {
        candidate.window_entries = window;
        AddPools(setting, candidate, keep);
      }
    }
  };
  for (const uint32_t group : GroupSizes()) {
    candidate.group_tokens = group;
    for (const EntryTypes& types : EntryTypePairs()) {
      candidate.k_type = types.k_type;
      candidate.v_type = types.v_type;
      for (const std::string& adapter : Adapters(setting)) {
        candidate.adapter = adapter;
        for (const uint32_t rank : Ranks(setting, !adapter.empty())) {
          candidate.rank = rank;
          AddIndexes(setting, &candidate, add);
          if (types.v_type == KvType::kInt4 && Contains(kPoolTypes, types.k_type)) add_pools();
        }
      }
    }
  }
  return all.empty() ? small : all;
}

namespace {

// The next number above what has slots, or those beside what is read now.
std::vector<uint32_t> PoolsBeside(const Candidate& from, const SearchSetting& setting) {
  std::vector<uint32_t> known = PoolEntries(setting);
  Candidate without = from;
  without.pool_entries = 0;
  without.sampled_share = 0.0;
  without.adapts = false;
  const Result<SizedCandidate> in_slots = SizeCandidate(without, setting);
  const uint32_t n_slots = in_slots.ok() ? in_slots->plan.selected_entries() : 0;
  // A quarter more, or it is much the same.
  std::erase_if(known, [n_slots](uint32_t entries) { return entries < n_slots + n_slots / 4; });
  std::vector<uint32_t> beside = Beside(known, std::max(from.pool_entries, n_slots));
  const bool is_fewest = known.empty() || from.pool_entries <= known.front();
  if (from.pool_entries > 0 && is_fewest && in_slots.ok()) beside.push_back(0);
  return beside;
}

template <typename Add>
void AddPoolNeighbours(const Candidate& from, const SearchSetting& setting, const Add& add) {
  for (const uint32_t entries : PoolsBeside(from, setting)) {
    add(entries == 0 ? std::string("what has slots") : fmt::format("{} entries read", entries),
        [&](Candidate& c) {
          c.pool_entries = entries;
          c.reads_percent = 100;
          if (entries > 0) return;
          c.sampled_share = 0.0;
          c.adapts = false;
        });
  }
  if (from.pool_entries == 0) {
    for (const uint32_t percent : Beside(ReadsPercents(), from.reads_percent)) {
      add(percent == 100 ? std::string("all is read") : fmt::format("{} % of it read", percent),
          [&](Candidate& c) { c.reads_percent = percent; });
    }
    return;
  }
  for (const double share : SampledShares()) {
    if (share == from.sampled_share || from.static_share > 0.0) continue;
    add(fmt::format("a sampled share of {}", share), [&](Candidate& c) { c.sampled_share = share; });
  }
  add(fmt::format("adapt {}", from.adapts ? "off" : "on"), [&](Candidate& c) { c.adapts = !from.adapts; });
}

}  // namespace

std::vector<Neighbour> Neighbours(const Candidate& from, const SearchSetting& setting) {
  std::vector<Neighbour> neighbours;
  const auto add = [&](std::string change, auto set) {
    Candidate candidate = from;
    set(candidate);
    neighbours.push_back({candidate, std::move(change)});
  };
  for (const uint32_t group : Beside(GroupSizes(), from.group_tokens))
    add(fmt::format("group {}", group), [&](Candidate& c) { c.group_tokens = group; });
  for (const EntryTypes& types : EntryTypePairs()) {
    if (types.k_type == from.k_type && types.v_type == from.v_type) continue;
    add("type " + TypesText(types.k_type, types.v_type), [&](Candidate& c) {
      c.k_type = types.k_type;
      c.v_type = types.v_type;
    });
  }
  for (const uint32_t rank : Beside(Ranks(setting, !from.adapter.empty()), from.rank))
    add(fmt::format("rank {}", rank), [&](Candidate& c) { c.rank = rank; });
  for (const KvType type : IndexTypes()) {
    if (type == from.index_type) continue;
    add(fmt::format("index {}", KvTypeName(type)), [&](Candidate& c) { c.index_type = type; });
  }
  for (const HeadReduction heads : HeadReductions(setting)) {
    if (heads == from.heads) continue;
    add(fmt::format("heads {}", HeadReductionName(heads)), [&](Candidate& c) { c.heads = heads; });
  }
  for (const uint32_t window : Beside(Windows(), from.window_entries))
    add(fmt::format("window {}", window), [&](Candidate& c) { c.window_entries = window; });
  if (from.static_share == 0.0 && from.pool_entries == 0) {
    for (const uint32_t percent : Beside(ChosenPercents(), from.chosen_percent))
      add(fmt::format("{} % of the cache chosen", percent),
          [&](Candidate& c) { c.chosen_percent = percent; });
  }
  if (from.chosen_percent == 100) AddPoolNeighbours(from, setting, add);
  for (const double share : StaticShares()) {
    if (share == from.static_share || from.chosen_percent != 100 || from.sampled_share > 0.0) continue;
    add(fmt::format("a static share of {}", share), [&](Candidate& c) { c.static_share = share; });
  }
  for (const std::string& adapter : Adapters(setting)) {
    if (adapter == from.adapter) continue;
    add(adapter.empty() ? "adapters of the prompt" : "adapters of the file", [&](Candidate& c) {
      c.adapter = adapter;
      // A file's adapters may have fewer columns than those that kvrun would compute.
      if (!adapter.empty()) c.rank = std::min(c.rank, setting.max_rank);
    });
  }
  return neighbours;
}

void SetPolicy(const std::string& policy, SizedCandidate* sized) {
  sized->candidate.policy = policy;
  for (auto& [name, value] : sized->options) {
    if (name == "policy") value = policy;
  }
}

std::string TypeName(KvType type) { return std::string(KvTypeName(type)); }

std::string OptionLine(const NamedKvOptions& options) {
  std::string line;
  for (const auto& [name, value] : options)
    line += fmt::format("{}--kv-{} {}", line.empty() ? "" : " ", name, value);
  return line;
}

}  // namespace kvrun::offline
