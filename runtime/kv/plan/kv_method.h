// A method says where the KV lies and which of it each token attends to. It is a row of a table that names
// index, selector, store, residency, replacement policy and precision; the engine wires what the row names.
// No other code compares a method's name: what it needs to know is one of the row's traits.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/kv/math/adapter.h"

namespace kvrun {

// kLowRank: keys projected by an adapter, which is learned or comes from a file. kExactKeys: the keys, in
// f16. kPageBounds: smallest and largest of each page's columns. kPageSpread: their mean less and plus the
// standard deviation. kCentroids: the mean key of each cluster, and its size.
enum class KvIndexKind : uint8_t { kNone, kLowRank, kExactKeys, kPageBounds, kPageSpread, kCentroids };
// kTopGroups: the M best by score, sinks pinned. kPinned: sinks alone. kRandom: M by chance, sinks pinned.
// kTopClusters: the best by mass for each slot that they take, until M slots are spent.
enum class KvSelectorKind : uint8_t { kAll, kTopGroups, kPinned, kRandom, kTopClusters };
// On flash: kGroups: records of consecutive entries. kClusters: records of entries whose keys are alike. In
// memory: kResident: all entries. kKept: as many as there is room for; the others are gone.
enum class KvStoreKind : uint8_t { kResident, kGroups, kClusters, kKept };
// Where what was chosen lies while it is attended to. kWhole: all of it in memory. kOwnSlots: each layer has
// slots of its own, and what finds none is read into a pool that layers share. kPool: there is the pool
// alone.
enum class KvResidencyKind : uint8_t { kWhole, kOwnSlots, kPool };
enum class KvPolicyKind : uint8_t { kNone, kByName };  // kByName: of the table of replacement policies
// kUniform: one type for all. kByScore: the best of what is kept as it is stored elsewhere, the rest in 8
// bits.
enum class KvPrecisionKind : uint8_t { kUniform, kByScore };

// What is taken where an option is not given; without a value: what other methods take.
struct KvDefaults {
  std::optional<uint32_t> group_tokens = {};
  std::optional<HeadReduction> heads = {};
  std::optional<KvType> index_type = {};
  std::optional<AdapterKind> adapter_kind = {};
  std::optional<double> rank_share = {};        // of the keys' columns
  std::optional<uint32_t> window_entries = {};  // without a budget
  std::optional<uint32_t> sink_entries = {};
  // Where a budget is too small for groups of group_tokens, they may be twice as large, and twice again, up
  // to this. 0: they may not.
  uint32_t most_group_tokens = 0;
  double static_share = 0.0;  // StaticPlan
  // The same where a budget alone says how much is selected; empty: as usual.
  std::optional<double> static_share_of_budget = {};
  uint32_t static_steps = 0;
  // Where a budget alone says how much is selected, it may be more than has slots (KvOptions::hide).
  bool may_select_more_than_slots = false;
  bool follows_layer_shares = false;  // KvPlan::layers, where an adapter's file has shares
  // Groups are chosen by their mass, where heads' scores are made softmaxes.
  bool goes_by_mass = false;
};

// What a method has that an option is about: a set of bits.
enum KvFeature : uint32_t {
  kFeatureGroups = 1U << 0,     // records of several entries, which are read as one
  kFeatureRecords = 1U << 1,    // what is attended to lies in records, on flash or kept
  kFeatureSelection = 1U << 2,  // a part is attended to
  kFeatureCounts = 1U << 3,     // of which the number can be said
  kFeatureEviction = 1U << 4,   // what finds no room is forgotten
  kFeatureIndex = 1U << 5,
  kFeatureAdapters = 1U << 6,
  kFeaturePages = 1U << 7,  // a row of the index is of a whole group, and there may be a static set
  kFeatureStaticSet = 1U << 8,
  kFeatureClusters = 1U << 9,
  kFeatureMassEnd = 1U << 10,     // a selection may end by its mass
  kFeatureSamples = 1U << 11,     // others may stand in for what is not read
  kFeaturePrecisions = 1U << 12,  // of what is kept, by its score
  kFeatureFlashSpeed = 1U << 13,  // how much is selected may follow it
  kFeatureLayerShares = 1U << 14,
};

struct KvMethod {
  std::string_view name;
  KvIndexKind index = KvIndexKind::kNone;
  KvSelectorKind selector = KvSelectorKind::kAll;
  KvStoreKind store = KvStoreKind::kResident;
  KvResidencyKind residency = KvResidencyKind::kWhole;
  KvPolicyKind policy = KvPolicyKind::kNone;
  KvPrecisionKind precision = KvPrecisionKind::kUniform;
  // A layer's choice is made so many layers before it. 1: by the input of the layer before, and read while
  // that layer is computed. 0: by the layer's own query; reading waits for it.
  uint32_t lookahead = 1;
  GroupScore group_score = GroupScore::kLargest;
  KvDefaults defaults = {};
  std::string_view keep_rule = {};  // of the table of KeepRules, with kKept
  bool is_for_comparison = false;   // nobody chooses it but to compare others with it

  // A step attends to a part of what lies before its window.
  bool selects() const { return selector != KvSelectorKind::kAll; }
  // How many groups are selected can be said.
  bool counts_groups() const {
    return selector == KvSelectorKind::kTopGroups || selector == KvSelectorKind::kRandom ||
           selector == KvSelectorKind::kTopClusters;
  }
  bool has_index() const { return index != KvIndexKind::kNone; }
  // The index is made by adapters, whose rank and kind can be said.
  bool has_adapters() const { return index == KvIndexKind::kLowRank; }
  // A row of the index is of a whole group.
  bool has_pages() const { return index == KvIndexKind::kPageBounds || index == KvIndexKind::kPageSpread; }
  // A part of what is selected may lie in memory all the time (StaticPlan).
  bool may_have_statics() const { return store == KvStoreKind::kGroups && counts_groups(); }
  bool has_clusters() const { return store == KvStoreKind::kClusters; }
  bool is_on_flash() const { return store == KvStoreKind::kGroups || store == KvStoreKind::kClusters; }
  // What finds no room is forgotten.
  bool evicts() const { return store == KvStoreKind::kKept; }
  // What of it keeps its precision depends on the attention that it gets.
  bool goes_by_score() const { return precision == KvPrecisionKind::kByScore; }
  // There is a file: for what is on flash, or for what prompts put aside.
  bool needs_file() const { return is_on_flash() || evicts(); }
  // KvFeature, all that it has.
  uint32_t features() const;
};

std::span<const KvMethod> KvMethods();
// What is taken where no method is named: without a budget, or where it holds all KV; and where it does not.
const KvMethod& MethodWithoutBudget();
const KvMethod& MethodOfBudget();
// An unknown name is answered with the known ones.
Result<KvMethod> FindKvMethod(std::string_view name);

}  // namespace kvrun
