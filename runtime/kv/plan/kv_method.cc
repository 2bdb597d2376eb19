#include "runtime/kv/plan/kv_method.h"

#include <fmt/format.h>

#include <array>
#include <string>

namespace kvrun {
namespace {

constexpr KvMethod kFull{.name = "full"};
constexpr KvMethod kFlexgen{
    .name = "flexgen", .store = KvStoreKind::kGroups, .residency = KvResidencyKind::kPool, .lookahead = 0};

// Methods that select: they differ in how they choose.
constexpr KvMethod Selecting(std::string_view name, KvIndexKind index, KvSelectorKind selector) {
  return {.name = name,
          .index = index,
          .selector = selector,
          .store = KvStoreKind::kGroups,
          .residency = KvResidencyKind::kOwnSlots,
          .policy = KvPolicyKind::kByName};
}

// KVSwap's selection; what a budget chooses has a static set beside it (measured:
// docs/methods/static-set.md).
constexpr KvMethod KvswapMethod() {
  KvMethod method = Selecting("kvswap", KvIndexKind::kLowRank, KvSelectorKind::kTopGroups);
  method.defaults.goes_by_mass = true;
  method.defaults.static_share_of_budget = 0.25;
  method.defaults.may_select_more_than_slots = true;
  method.defaults.follows_layer_shares = true;
  return method;
}

constexpr KvMethod kKvswap = KvswapMethod();

// DynaKV: clusters of each KV head, which follow the text as it is generated.
constexpr KvMethod DynaKvMethod() {
  KvMethod method = Selecting("dynakv", KvIndexKind::kCentroids, KvSelectorKind::kTopClusters);
  method.store = KvStoreKind::kClusters;
  method.group_score = GroupScore::kMass;
  method.defaults.group_tokens = 4;
  method.defaults.heads = HeadReduction::kPerKvHead;
  return method;
}

// PRKV (docs/methods/static-set.md): pages of each KV head chosen by bounds of their keys, beside a static
// set.
constexpr KvMethod PrkvMethod() {
  KvMethod method = Selecting("prkv", KvIndexKind::kPageBounds, KvSelectorKind::kTopGroups);
  method.lookahead = 0;
  method.defaults.group_tokens = 32;
  method.defaults.most_group_tokens = 128;
  method.defaults.heads = HeadReduction::kPerKvHead;
  method.defaults.sink_entries = 0;  // the static set finds them
  method.defaults.static_share = 0.25;
  method.defaults.static_steps = 128;
  return method;
}

// What ARKV would evict lies on flash, and is chosen by kvswap's index (docs/methods/static-set.md).
constexpr KvMethod ArkvFlashMethod() {
  KvMethod method = kKvswap;
  method.name = "arkv-flash";
  method.defaults.static_share_of_budget = {};
  method.defaults.may_select_more_than_slots = false;
  method.defaults.follows_layer_shares = false;
  method.precision = KvPrecisionKind::kByScore;
  method.defaults.static_share = 0.5;
  method.defaults.static_steps = 128;
  return method;
}

// --- Comparators (docs/methods/comparators.md says how close each is to its source).

constexpr KvMethod RandomMethod() { return Selecting("random", KvIndexKind::kNone, KvSelectorKind::kRandom); }

// StreamingLLM (arXiv 2309.17453): 4 sinks and 1,020 recent entries.
constexpr KvMethod StreamingMethod() {
  KvMethod method = Selecting("streaming", KvIndexKind::kNone, KvSelectorKind::kPinned);
  method.defaults.window_entries = 1020;
  return method;
}

// What no selection of as many groups beats by much: exact keys, the layer's own query, mass.
constexpr KvMethod OracleMethod() {
  KvMethod method = Selecting("oracle", KvIndexKind::kExactKeys, KvSelectorKind::kTopGroups);
  method.lookahead = 0;
  method.group_score = GroupScore::kMass;
  return method;
}

// Quest (arXiv 2406.10774): pages of 16.
constexpr KvMethod QuestMethod() {
  KvMethod method = Selecting("quest", KvIndexKind::kPageBounds, KvSelectorKind::kTopGroups);
  method.lookahead = 0;
  method.defaults.group_tokens = 16;
  method.defaults.heads = HeadReduction::kPerKvHead;
  return method;
}

// As quest, with the mean less and plus the standard deviation as bounds (arXiv 2605.27740).
constexpr KvMethod MeanStdMethod() {
  KvMethod method = QuestMethod();
  method.name = "meanstd";
  method.index = KvIndexKind::kPageSpread;
  return method;
}

// Loki (arXiv 2406.02542): a quarter of each head's principal components, the layer's own query, single
// entries.
constexpr KvMethod LokiMethod() {
  KvMethod method = Selecting("loki", KvIndexKind::kLowRank, KvSelectorKind::kTopGroups);
  method.lookahead = 0;
  method.defaults = {.group_tokens = 1,
                     .heads = HeadReduction::kPerKvHead,
                     .index_type = KvType::kF16,
                     .adapter_kind = AdapterKind::kHeads,
                     .rank_share = 0.25};
  return method;
}

// InfiniGen (arXiv 2406.19707): 0.3 of each head's skewed columns, by the input of the layer before.
constexpr KvMethod InfiniGenMethod() {
  KvMethod method = Selecting("infinigen", KvIndexKind::kLowRank, KvSelectorKind::kTopGroups);
  method.defaults = {.group_tokens = 1,
                     .heads = HeadReduction::kPerKvHead,
                     .index_type = KvType::kF16,
                     .adapter_kind = AdapterKind::kSkewed,
                     .rank_share = 0.3};
  return method;
}

// As KVSwap compares with it (section 4.1): heads summed.
constexpr KvMethod InfiniGenOfSumsMethod() {
  KvMethod method = InfiniGenMethod();
  method.name = "infinigen*";
  method.defaults.heads = HeadReduction::kSum;
  return method;
}

// --- Methods that keep what attention goes to, and forget the rest.

constexpr KvMethod Keeping(std::string_view name) {
  return {.name = name, .store = KvStoreKind::kKept, .keep_rule = name};
}

// ARKV: original, 8 bits, or evicted.
constexpr KvMethod ArkvMethod() {
  KvMethod method = Keeping("arkv");
  method.precision = KvPrecisionKind::kByScore;
  return method;
}

constexpr KvMethod ToCompare(KvMethod method) {
  method.is_for_comparison = true;
  return method;
}

constexpr std::array kMethods = {kFull,
                                 kFlexgen,
                                 kKvswap,
                                 DynaKvMethod(),
                                 PrkvMethod(),
                                 ArkvFlashMethod(),
                                 ToCompare(StreamingMethod()),
                                 ToCompare(RandomMethod()),
                                 ToCompare(OracleMethod()),
                                 ToCompare(QuestMethod()),
                                 ToCompare(MeanStdMethod()),
                                 ToCompare(LokiMethod()),
                                 ToCompare(InfiniGenMethod()),
                                 ToCompare(InfiniGenOfSumsMethod()),
                                 ArkvMethod(),
                                 Keeping("h2o"),
                                 Keeping("snapkv"),
                                 Keeping("defensivekv"),
                                 Keeping("lazyeviction")};

}  // namespace

uint32_t KvMethod::features() const {
  const bool samples = has_adapters() && counts_groups() && !goes_by_score();
  uint32_t all = 0;
  const auto add = [&all](bool has, KvFeature feature) { all |= has ? uint32_t{feature} : 0; };
  add(selects() || is_on_flash(), kFeatureGroups);
  add(selects() || needs_file(), kFeatureRecords);
  add(selects(), kFeatureSelection);
  add(counts_groups(), kFeatureCounts);
  add(evicts(), kFeatureEviction);
  add(has_index(), kFeatureIndex);
  add(has_adapters(), kFeatureAdapters);
  add(has_pages() && may_have_statics(), kFeaturePages);
  add(may_have_statics(), kFeatureStaticSet);
  add(has_clusters(), kFeatureClusters);
  add(!has_clusters(), kFeatureMassEnd);
  add(samples, kFeatureSamples);
  add(goes_by_score(), kFeaturePrecisions);
  add(defaults.may_select_more_than_slots, kFeatureFlashSpeed);
  add(evicts() || defaults.follows_layer_shares, kFeatureLayerShares);
  return all;
}

std::span<const KvMethod> KvMethods() { return kMethods; }

const KvMethod& MethodWithoutBudget() { return kFull; }

const KvMethod& MethodOfBudget() { return kKvswap; }

Result<KvMethod> FindKvMethod(std::string_view name) {
  std::string known;
  for (const KvMethod& method : kMethods) {
    if (method.name == name) return method;
    if (!known.empty()) known += ", ";
    known += method.name;
  }
  return Status(StatusCode::kInvalidArgument, fmt::format("unknown KV method '{}'; known: {}", name, known));
}

}  // namespace kvrun
