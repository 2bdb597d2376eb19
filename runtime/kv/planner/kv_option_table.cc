#include "runtime/kv/planner/kv_option_table.h"

#include <fmt/format.h>

#include <array>
#include <limits>

#include "runtime/kv/math/slot_cache.h"
#include "runtime/kv/plan/kv_method.h"
#include "runtime/kv/plan/kv_names.h"
#include "runtime/kv/planner/kv_option_values.h"

namespace kvrun {
namespace {

using namespace option_values;  // NOLINT: this file is the table of those
using enum KvOptionAudience;

constexpr uint32_t kLargestGroup = 256;
constexpr uint32_t kMaxRank = 8192;
constexpr uint32_t kMaxSeed = std::numeric_limits<uint32_t>::max();

constexpr std::array kIndexTypes = {KvType::kF16, KvType::kInt8, KvType::kInt4};
constexpr std::array kHeads = {HeadReduction::kSum, HeadReduction::kSoftmax, HeadReduction::kGqa,
                               HeadReduction::kPerKvHead};
constexpr std::array<Named<DirectIo>, 3> kDirect = {
    {{"auto", DirectIo::kAuto}, {"on", DirectIo::kOn}, {"off", DirectIo::kOff}}};
constexpr std::array<Named<LaterPrompts>, 3> kLaterPrompts = {
    {{"auto", LaterPrompts::kAuto}, {"exact", LaterPrompts::kExact}, {"selected", LaterPrompts::kSelected}}};
constexpr std::array kLayouts = {ClusterLayout::kDualHead, ClusterLayout::kCluster, ClusterLayout::kSequence};
constexpr std::array kUpdates = {ClusterUpdate::kAdaptive, ClusterUpdate::kStatic, ClusterUpdate::kLocal};
constexpr std::array kShares = {KeptShares::kEven, KeptShares::kHeads, KeptShares::kLayers};
constexpr std::array kPrecisions = {KeptPrecisions::kBytes, KeptPrecisions::kEntries,
                                    KeptPrecisions::kOriginal, KeptPrecisions::kQuantised};
constexpr std::array kMoments = {AttentionMoments::kKeys, AttentionMoments::kRows};
constexpr std::array<Named<bool>, 2> kSwitch = {{{"on", true}, {"off", false}}};
constexpr std::array<Named<bool>, 2> kRepresentatives = {{{"memory", false}, {"flash", true}}};
constexpr std::array kAdapterKinds = {AdapterKind::kPlain, AdapterKind::kCentred,
                                      AdapterKind::kQuery, AdapterKind::kQueryCentred,
                                      AdapterKind::kHeads, AdapterKind::kSkewed};

using Options = const KvOptions&;
using Given = const GivenKvOption&;
// A field that is a std::optional, and what it needs of a method.
template <auto kField>
constexpr KvOptionField Field(KvNeed need, KvNeed another = {}) {
  return {.is_given = [](Options options) { return (options.*kField).has_value(); },
          .leave_out = [](KvOptions* options) { (options->*kField).reset(); },
          .needs = {need, another}};
}

// The same, where it is needed only sometimes.
template <auto kField>
constexpr KvOptionField FieldIf(bool (*is_needed)(Options options), KvNeed need) {
  KvOptionField field = Field<kField>(need);
  field.is_needed = is_needed;
  return field;
}

constexpr KvNeed kClusters = {kFeatureClusters, "clusters"};
constexpr KvNeed kStatics = {kFeatureStaticSet, "selected groups"};
constexpr KvNeed kIndex = {kFeatureIndex, "index"};
constexpr KvNeed kMadeIndex = {kFeatureAdapters, "choice of index"};
constexpr KvNeed kHide = {kFeatureFlashSpeed, "selection that follows the speed of flash"};

template <auto kField>
Status Count(Given given, KvSettings* settings) {
  return SetCount(given, &(settings->kv.*kField));
}

std::vector<std::string> SwitchNames() { return NameList(kSwitch); }

template <auto kField>
Status Switch(Given given, KvSettings* settings) {
  return SetChoice(given, kSwitch, &(settings->kv.*kField));
}

std::vector<std::string> ComparisonMethods() {
  std::vector<std::string> names;
  for (const KvMethod& method : KvMethods()) {
    if (method.is_for_comparison) names.emplace_back(method.name);
  }
  return names;
}

// A method without records attends to all of f16 and f32 planes; other types make records of them.
bool IsOfPlanes(Options options) { return !KeepsRecordsInMemory(options); }

constexpr KvOptionRow kRows[] = {
    {.name = "method",
     .value = "METHOD",
     .audience = kEverybody,
     .set = [](Given g, KvSettings* s) { return SetRow(g, KvMethods(), &s->kv.method); },
     .words = [] { return NameList(KvMethods()); },
     .words_of_comparisons = ComparisonMethods,
     .help =
         "full: all KV is in memory; kvswap: all is on flash, and only what is predicted to matter is read "
         "(default: full; with --kv-budget, kvswap where not all KV fits into it); dynakv: the same, in "
         "clusters that follow the text; prkv: in pages of each KV head, beside a static set; arkv-flash: "
         "kvswap beside a static set in two precisions; flexgen: all is on flash and read for each token. "
         "Methods that forget what gets little attention: arkv, h2o, snapkv, defensivekv, lazyeviction"},
    {.name = "budget",
     .value = "BYTES|A/B|P%",
     .audience = kEverybody,
     .set = [](Given g, KvSettings* s) { return SetBudget(g, &s->kv); },
     .help =
         "memory for all that grows with the context: 14155776, 13.5M (K, M and G are of 1,024), or a share "
         "of the f16 KV of the whole context, such as 1/13 or 8% (bytes are never exceeded; a share that is "
         "too small to work with is raised)"},
    {.name = "type",
     .value = "TYPE|K,V",
     .set = [](Given g, KvSettings* s) { return SetTypes(g, &s->kv); },
     .words = TypeNames,
     .config = {false, "of both, or \"K,V\": f32, f16, fp8, int8, int4"},
     .help = "f32, f16, fp8, int8 or int4: one for both, or one each for K,V (default f16)"},
    {.name = "group",
     .value = "N",
     .set = Count<&KvOptions::group_tokens>,
     .least = 1,
     .most = kLargestGroup,
     .field = Field<&KvOptions::group_tokens>({kFeatureGroups, "groups"}),
     .config = {true, "consecutive entries that are read as one"},
     .help = "how many consecutive entries are read as one"},
    {.name = "select",
     .value = "N",
     .set = Count<&KvOptions::select_entries>,
     .most = kMaxEntries,
     .field = Field<&KvOptions::select_entries>({kFeatureCounts | kFeatureEviction, "selected entries"}),
     .config = {true, "entries that a token reads besides sinks and window"},
     .help =
         "how many entries a token reads besides sinks and window; of methods that forget: how many of each "
         "KV head are kept besides the window"},
    {.name = "hide",
     .value = "SHARE",
     .set = [](Given g, KvSettings* s) { return SetShare(g, &s->kv.hide); },
     .field = Field<&KvOptions::hide>(kHide),
     .config = {false, "a share: how much of the reading passes while the device computes; not with select"},
     .help =
         "select as much as flash has time for: so that this share of the reading passes while the device "
         "computes (default: 0.9, where --kv-budget alone says how much is selected); 0: as much as the "
         "budget has room for"},
    {.name = "reads",
     .value = "N",
     .set = [](Given g, KvSettings* s) { return SetReads(g, &s->kv.reads_per_layer); },
     .field = Field<&KvOptions::reads_per_layer>({kFeatureSamples, "groups that others can stand in for"}),
     .config = {false, "groups that a layer reads for a token on average; 0: all that is selected"},
     .help = "of the groups that a token selects and that are not in memory, read so many of a layer, on "
             "average, those that matter most; others that are in memory stand in for the rest (default: as "
             "many as flash has time for, where --kv-budget alone says how much is selected); 0: all"},
    {.name = "adapt",
     .value = "WHEN",
     .set = Switch<&KvOptions::adapt>,
     .words = SwitchNames,
     .field = FieldIf<&KvOptions::adapt>([](Options o) { return o.adapt.value_or(true); }, kHide),
     .config = {false, "on, off: whether select follows how late reads are"},
     .help =
         "while decoding, select fewer entries where reads are late, and more where they are early, within "
         "the budget: on or off (default: off; with on, results depend on the machine's load)"},
    {.name = "sample",
     .value = "N",
     .set = Count<&KvOptions::sample_entries>,
     .most = kMaxEntries,
     .field = Field<&KvOptions::sample_entries>({kFeatureSamples, "masses to sample groups by"}),
     .config = {true, "entries that are drawn at random from those that are not selected"},
     .help =
         "attend to N more entries, drawn at random from those that are not selected, each in place of many "
         "(default: 0)"},
    {.name = "seed",
     .value = "N",
     .set = Count<&KvOptions::sample_seed>,
     .most = kMaxSeed,
     .field = Field<&KvOptions::sample_seed>({kFeatureSamples, "sampling"}),
     .config = {true, "what sample draws by"},
     .help =
         "what --kv-sample draws by: the same number draws the same (default: --seed, where there is one, "
         "else 0)"},
    {.name = "mass",
     .value = "SHARE",
     .set = [](Given g, KvSettings* s) { return SetMass(g, &s->kv.mass_share); },
     .field = Field<&KvOptions::mass_share>({kFeatureMassEnd, "selection that ends by mass"},
                                            {kFeatureIndex, "scores of an index"}),
     .config = {false, "a share at whose predicted mass a selection ends; select is the most then"},
     .help =
         "end a selection where its predicted share of the attention is reached, such as 0.95; --kv-select "
         "is the most then"},
    {.name = "window",
     .value = "N",
     .set = Count<&KvOptions::window_entries>,
     .most = kMaxEntries,
     .field =
         FieldIf<&KvOptions::window_entries>(IsOfPlanes, {kFeatureRecords, "recent window in f16 and f32"}),
     .config = {true, "newest entries, kept in memory"},
     .help = "how many of the newest entries stay in memory"},
    {.name = "sinks",
     .value = "N",
     .set = Count<&KvOptions::sink_entries>,
     .most = kMaxEntries,
     .field = Field<&KvOptions::sink_entries>({kFeatureSelection, "pinned sinks"}),
     .config = {true, "first entries, always attended to"},
     .help = "how many of the first entries are always attended to"},
    {.name = "reuse",
     .value = "N",
     .set = Count<&KvOptions::reuse_groups>,
     .most = kMaxEntries,
     .field = Field<&KvOptions::reuse_groups>({kFeatureCounts, "reuse buffer"}),
     .config = {true, "groups per layer that stay in memory in case they are chosen again"},
     .help = "how many groups per layer stay in memory in case they are chosen again; if fewer than are "
             "selected, the rest is read for every token"},
    {.name = "rank",
     .value = "N",
     .set = Count<&KvOptions::rank>,
     .least = 1,
     .most = kMaxRank,
     .field = Field<&KvOptions::rank>(kIndex, kMadeIndex),
     .config = {true, "columns of the index that groups are scored with"},
     .help = "how many columns of the index groups are scored with"},
    {.name = "index",
     .value = "TYPE",
     .set = [](Given g,
               KvSettings* s) { return SetChoice(g, NameAll(kIndexTypes, KvTypeName), &s->kv.index_type); },
     .words = [] { return NameList(NameAll(kIndexTypes, KvTypeName)); },
     .field = Field<&KvOptions::index_type>(kIndex, kMadeIndex),
     .config = {false, "the index's type: f16, int8, int4"},
     .help = "the index's type: f16, int8 or int4"},
    {.name = "heads",
     .value = "HOW",
     .set = [](Given g,
               KvSettings* s) { return SetChoice(g, NameAll(kHeads, HeadReductionName), &s->kv.heads); },
     .words = [] { return NameList(NameAll(kHeads, HeadReductionName)); },
     .field = Field<&KvOptions::heads>({kFeatureIndex, "reduction of heads"}),
     .config = {false, "how the heads' scores become one: sum, softmax, gqa, per-kv-head"},
     .help = "how the heads' scores become one: sum, softmax, gqa or per-kv-head"},
    {.name = "cluster",
     .value = "N",
     .set = Count<&KvOptions::cluster_entries>,
     .least = 1,
     .most = kMaxEntries,
     .field = Field<&KvOptions::cluster_entries>(kClusters),
     .help = "dynakv: how many entries a cluster has on average"},
    {.name = "cluster-max",
     .value = "N",
     .set = Count<&KvOptions::max_cluster_entries>,
     .least = 2,
     .most = kMaxEntries,
     .field = Field<&KvOptions::max_cluster_entries>(kClusters),
     .help = "dynakv: how many entries a cluster has at most (default: four times --kv-cluster)"},
    {.name = "cluster-room",
     .value = "N",
     .set = Count<&KvOptions::cluster_room>,
     .least = 1,
     .most = kMaxEntries,
     .field = Field<&KvOptions::cluster_room>(kClusters),
     .help = "dynakv: for how many clusters of a KV head the index has room (default: a quarter more than a "
             "context of clusters of --kv-cluster takes)"},
    {.name = "pending",
     .value = "N",
     .set = Count<&KvOptions::pending_entries>,
     .least = 1,
     .most = kMaxEntries,
     .field = Field<&KvOptions::pending_entries>(kClusters),
     .help = "dynakv: how many entries may wait for their cluster to be read, in each KV head"},
    {.name = "upkeep",
     .value = "N",
     .set = Count<&KvOptions::upkeep_clusters>,
     .least = 1,
     .most = kMaxEntries,
     .field = Field<&KvOptions::upkeep_clusters>(kClusters),
     .help =
         "dynakv: how many clusters a token changes at most, besides those that must be; what is left waits "
         "for a later one (default: two thirds as many as there are KV heads in all layers)"},
    {.name = "split",
     .value = "FACTOR",
     .set = [](Given g, KvSettings* s) { return SetFactor(g, &s->kv.split_factor); },
     .field = Field<&KvOptions::split_factor>(kClusters),
     .help = "dynakv: divide a cluster whose variance is so many times that of the first ones"},
    {.name = "update",
     .value = "HOW",
     .audience = kComparisons,
     .set =
         [](Given g, KvSettings* s) {
           return SetChoice(g, NameAll(kUpdates, ClusterUpdateName), &s->kv.cluster_update);
         },
     .words = [] { return NameList(NameAll(kUpdates, ClusterUpdateName)); },
     .field = Field<&KvOptions::cluster_update>(kClusters),
     .help = "dynakv: how clusters follow the text: adaptive, static (divided by size alone) or local (what "
             "waits together becomes clusters of its own)"},
    {.name = "layout",
     .value = "HOW",
     .audience = kComparisons,
     .set =
         [](Given g, KvSettings* s) {
           return SetChoice(g, NameAll(kLayouts, ClusterLayoutName), &s->kv.cluster_layout);
         },
     .words = [] { return NameList(NameAll(kLayouts, ClusterLayoutName)); },
     .field = Field<&KvOptions::cluster_layout>(kClusters),
     .help = "dynakv: how clusters lie on flash: dual-head (two grow towards each other, so that neighbours "
             "adjoin), cluster (each by itself) or sequence (entries in the order of the text)"},
    {.name = "representatives",
     .value = "WHERE",
     .audience = kComparisons,
     .set = [](Given g, KvSettings* s) { return SetChoice(g, kRepresentatives, &s->kv.rows_on_flash); },
     .words = [] { return NameList(kRepresentatives); },
     .field = Field<&KvOptions::rows_on_flash>(kClusters),
     .help =
         "dynakv: where the index of clusters lies: memory (default) or flash, read again for each token, a "
         "layer ahead"},
    {.name = "shares",
     .value = "HOW",
     .set = [](Given g,
               KvSettings* s) { return SetChoice(g, NameAll(kShares, KeptSharesName), &s->kv.kept_shares); },
     .words = [] { return NameList(NameAll(kShares, KeptSharesName)); },
     .field = Field<&KvOptions::kept_shares>({kFeatureLayerShares, "shares of what is kept"}),
     .help =
         "methods that forget: who has how much of what is kept: even (default), heads (a layer's KV heads "
         "by their attention) or layers (layers, too); kvswap with an adapter's file that says so: layers "
         "(default) gives slots to layers by what their cut costs, even does not (nor does --kv-adapt on)"},
    {.name = "precisions",
     .value = "HOW",
     .set =
         [](Given g, KvSettings* s) {
           return SetChoice(g, NameAll(kPrecisions, KeptPrecisionsName), &s->kv.kept_precisions);
         },
     .words = [] { return NameList(NameAll(kPrecisions, KeptPrecisionsName)); },
     .field = Field<&KvOptions::kept_precisions>({kFeaturePrecisions, "choice of precisions"}),
     .help =
         "arkv, arkv-flash: which of what is kept is exact, and which has 8 bits: bytes (default: a part of "
         "the memory is exact, as many of 8 bits as fit into the rest), entries (a part of the entries is "
         "exact), original (all exact) or quantised (all of 8 bits)"},
    {.name = "moments",
     .value = "HOW",
     .audience = kComparisons,
     .set =
         [](Given g, KvSettings* s) {
           return SetChoice(g, NameAll(kMoments, AttentionMomentsName), &s->kv.attention_moments);
         },
     .words = [] { return NameList(NameAll(kMoments, AttentionMomentsName)); },
     .field = Field<&KvOptions::attention_moments>({kFeaturePrecisions, "moments of attention"}),
     .help =
         "arkv, arkv-flash: what a layer's attention is measured over: keys (default, as the paper says) or "
         "rows (as its authors' code does)"},
    {.name = "static",
     .value = "SHARE|prompt",
     .set = [](Given g, KvSettings* s) { return SetStaticShare(g, &s->kv.static_share); },
     .field = Field<&KvOptions::static_share>(kStatics),
     .config = {false, "the share of select that stays in memory as a static set, or prompt"},
     .help =
         "of what is selected, the share that is a static set: entries that a prompt's end attends to most, "
         "which stay in memory (default: prkv: 0.25; arkv-flash: 0.5; kvswap: 0.25 where the budget says "
         "how much is selected; else 0); prompt: as the first prompt asks for"},
    {.name = "static-steps",
     .value = "N",
     .set = Count<&KvOptions::static_steps>,
     .most = kMaxEntries,
     .field = Field<&KvOptions::static_steps>(kStatics),
     .help = "choose the static set again after so many tokens, 0: only with a prompt (default: 0; prkv and "
             "arkv-flash: 128)"},
    {.name = "later-prompts",
     .value = "WAY",
     .set = [](Given g, KvSettings* s) { return SetChoice(g, kLaterPrompts, &s->kv.later_prompts); },
     .words = [] { return NameList(kLaterPrompts); },
     .field = Field<&KvOptions::later_prompts>(kStatics, kIndex),
     .help =
         "what a short prompt after a long text, such as a question, attends to: exact: to all of the text, "
         "which is read; selected: to what its tokens choose together; auto (default): to what they choose, "
         "where that takes clearly less time"},
    {.name = "repage",
     .value = "WHEN",
     .audience = kComparisons,
     .set = Switch<&KvOptions::static_repage>,
     .words = SwitchNames,
     .field = Field<&KvOptions::static_repage>({kFeaturePages, "bounds of pages"}),
     .help = "prkv and other methods with pages: whenever the static set is chosen, write the other entries "
             "again, in pages of their own, as PRKV does: off (default) or on"},
    {.name = "rotate",
     .value = "WHEN",
     .set = Switch<&KvOptions::rotate>,
     .words = SwitchNames,
     .field = FieldIf<&KvOptions::rotate>(IsOfPlanes, {kFeatureRecords, "records in f16 and f32"}),
     .help =
         "store K and V rotated and centred, where few bits cost less: on or off (default: on where K or V "
         "is int4)"},
    {.name = "policy",
     .value = "POLICY",
     .set = [](Given g, KvSettings* s) { return SetRow(g, ReplacementPolicies(), &s->kv.policy); },
     .words = [] { return NameList(ReplacementPolicies()); },
     .field = {.is_given = [](Options options) { return !options.policy.empty(); },
               .leave_out = [](KvOptions* options) { options->policy.clear(); },
               .needs = {{{kFeatureCounts, "replacement policy"}}}},
     .config = {false, "which group gives way to another: fifo, lru, non-hit, lfu, cluster"},
     .help = "which group gives way to another: fifo, lru, non-hit, lfu or cluster"},
    {.name = "adapter",
     .value = "FILE",
     .audience = kEverybody,
     .set =
         [](Given g, KvSettings* s) {
           KVRUN_RETURN_IF_ERROR(SetPath(g, &s->storage.adapter_path));
           s->kv.adapter_from_file = true;
           return Status::Ok();
         },
     .field = {.is_given = [](Options options) { return options.adapter_from_file; },
               .leave_out = [](KvOptions* options) { options->adapter_from_file = false; },
               // Of clusters, an adapter's file has the thresholds.
               .needs = {{{kFeatureAdapters | kFeatureClusters, "adapter"}}}},
     .config = {false, "of kvadapt calibrate: a file, relative to this one's folder"},
     .help = "a file of adapters for the index, from kvadapt calibrate (default: computed from the first "
             "prompt); dynakv: its thresholds of clusters, in place of --kv-split"},
    {.name = "adapter-kind",
     .value = "KIND",
     .set =
         [](Given g, KvSettings* s) {
           return SetChoice(g, NameAll(kAdapterKinds, AdapterKindName), &s->kv.adapter_kind);
         },
     .words = [] { return NameList(NameAll(kAdapterKinds, AdapterKindName)); },
     .field = Field<&KvOptions::adapter_kind>({kFeatureAdapters, "adapter"}),
     .config = {false, "plain, centred, query, query-centred, heads, skewed"},
     .help = "the adapters' kind: plain, centred, query, query-centred, heads or skewed"},
    {.name = "dir",
     .value = "FOLDER",
     .audience = kEverybody,
     .set = [](Given g, KvSettings* s) { return SetPath(g, &s->storage.folder); },
     .help = "a folder on flash (default: in the user's cache folder)"},
    {.name = "io",
     .value = "HOW",
     .set = [](Given g, KvSettings* s) { return SetBackend(g, &s->storage); },
     .words = BackendNames,
     .help = "how flash is read: auto (default), io_uring, aio or threads"},
    {.name = "direct",
     .value = "WHEN",
     .set = [](Given g, KvSettings* s) { return SetChoice(g, kDirect, &s->storage.direct); },
     .words = [] { return NameList(kDirect); },
     .help = "bypass the page cache: auto (default: if possible), on or off"},
    {.name = "encrypt",
     .value = "",
     .set = [](Given g, KvSettings* s) { return SetChoice(g, kSwitch, &s->storage.encrypts); },
     .words = SwitchNames,
     .help = "encrypt what lies on flash, with a key that ends with the process (--session-key: of a session "
             "that is kept)"},
    {.name = "write-limit",
     .value = "BYTES/day",
     .set = [](Given g, KvSettings* s) { return SetDailyBytes(g, &s->storage.write_limit_bytes); },
     .help =
         "read no prompt that would make all kvrun processes of this user write more than this to flash in "
         "a day (of UTC), such as 20GiB/day; an answer that has begun goes on (default: no limit)"},
    {.name = "tmpfs",
     .value = "",
     .set = [](Given g, KvSettings* s) { return SetChoice(g, kSwitch, &s->storage.allow_tmpfs); },
     .words = SwitchNames,
     .help = "allow --kv-dir to be in memory, for tests"},
};

}  // namespace

std::string_view KvOptionAudienceName(KvOptionAudience audience) {
  switch (audience) {
    case kEverybody: return "everybody";
    case kExperts: return "experts";
    case kComparisons: return "comparisons";
  }
  return "unknown";
}

Status GivenKvOption::Refuse(std::string_view why) const {
  return {StatusCode::kInvalidArgument, fmt::format("KV option {}: \"{}\" {}", row.name, value, why)};
}

std::string_view KvOptionField::WhatLacks(const KvMethod& method, const KvOptions& options) const {
  if (is_needed != nullptr && !is_needed(options)) return "";
  const uint32_t has = method.features();
  for (const KvNeed& need : needs) {
    if (need.any_of != 0 && (has & need.any_of) == 0) return need.what;
  }
  return "";
}

std::span<const KvOptionRow> KvOptionRows() { return kRows; }

const KvOptionRow* FindKvOption(std::string_view name) {
  for (const KvOptionRow& row : kRows) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

}  // namespace kvrun
