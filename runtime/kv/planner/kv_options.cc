#include "runtime/kv/planner/kv_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "platform/base/real_number.h"
#include "platform/base/units.h"
#include "runtime/kv/math/slot_cache.h"
#include "runtime/kv/plan/kv_method.h"

namespace kvrun {
namespace {

// Far above any use: what is larger was mistyped.
constexpr uint32_t kMaxEntries = 1U << 24;
constexpr uint32_t kMaxGroupTokens = 256;
constexpr uint32_t kMaxRank = 8192;
constexpr uint32_t kMaxStrokeNumber = 1'000'000;

template <typename T>
struct Named {
  std::string_view name;
  T value;
};

constexpr std::array kTypes = {KvType::kF32, KvType::kF16, KvType::kFp8, KvType::kInt8, KvType::kInt4};
constexpr std::array kIndexTypes = {KvType::kF16, KvType::kInt8, KvType::kInt4};
constexpr std::array kHeads = {HeadReduction::kSum, HeadReduction::kSoftmax, HeadReduction::kGqa,
                               HeadReduction::kPerKvHead};
constexpr std::array<Named<DirectIo>, 3> kDirect = {
    {{"auto", DirectIo::kAuto}, {"on", DirectIo::kOn}, {"off", DirectIo::kOff}}};
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
constexpr std::array kBackends = {IoBackend::kIoUring, IoBackend::kAio, IoBackend::kThreads};

// An option and the value that is being set.
struct Given {
  std::string_view name;
  std::string_view value;

  Status Refuse(std::string_view why) const {
    return {StatusCode::kInvalidArgument, fmt::format("KV option {}: \"{}\" {}", name, value, why)};
  }
};

template <typename T, size_t N>
std::array<Named<T>, N> NameAll(const std::array<T, N>& values, std::string_view (*name_of)(T)) {
  std::array<Named<T>, N> named;
  std::transform(values.begin(), values.end(), named.begin(), [name_of](T value) {
    return Named<T>{name_of(value), value};
  });
  return named;
}

template <typename Rows>
std::string Names(const Rows& rows) {
  std::string names;
  for (const auto& row : rows) names += fmt::format("{}{}", names.empty() ? "" : ", ", row.name);
  return names;
}

template <typename T>
Result<T> Choose(const Given& given, std::string_view name, std::span<const Named<T>> rows) {
  for (const Named<T>& row : rows) {
    if (row.name == name) return row.value;
  }
  return given.Refuse("is not one of " + Names(rows));
}

template <typename T, size_t N, typename Target>
Status SetChoice(const Given& given, const std::array<Named<T>, N>& rows, Target* target) {
  KVRUN_ASSIGN_OR_RETURN(const T value, Choose<T>(given, given.value, rows));
  *target = value;
  return Status::Ok();
}

// Of a table whose rows have names, such as the methods.
template <typename Rows>
Status SetRow(const Given& given, const Rows& rows, std::string* target) {
  const auto has_name = [&given](const auto& row) { return row.name == given.value; };
  if (std::none_of(rows.begin(), rows.end(), has_name)) {
    return given.Refuse("is not one of " + Names(rows));
  }
  *target = given.value;
  return Status::Ok();
}

// All of `text`, or nothing.
template <typename T>
std::optional<T> ParseNumber(std::string_view text) {
  T value{};
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || rest != end) return std::nullopt;
  return value;
}

Status SetCount(const Given& given, uint32_t least, uint32_t most, std::optional<uint32_t>* target) {
  const std::optional<uint32_t> value = ParseNumber<uint32_t>(given.value);
  if (!value || *value < least || *value > most) {
    return given.Refuse(fmt::format("is not a number from {} to {}", least, most));
  }
  *target = value;
  return Status::Ok();
}

Status SetMass(const Given& given, std::optional<double>* target) {
  const std::optional<double> value = ParseReal(given.value);
  // Written so that NaN fails it.
  if (!value || !(*value > 0.0 && *value <= 1.0)) {
    return given.Refuse("is not a share above 0 and at most 1, such as 0.95");
  }
  *target = value;
  return Status::Ok();
}

Status SetStaticShare(const Given& given, std::optional<StaticShare>* target) {
  if (given.value == "prompt") {
    *target = StaticShare{.by_prompt = true};
    return Status::Ok();
  }
  const std::optional<double> value = ParseReal(given.value);
  // Written so that NaN fails it.
  if (!value || !(*value >= 0.0 && *value <= 1.0)) {
    return given.Refuse("is neither a share from 0 to 1, such as 0.25, nor \"prompt\"");
  }
  *target = StaticShare{.share = *value};
  return Status::Ok();
}

Status SetHide(const Given& given, std::optional<double>* target) {
  const std::optional<double> value = ParseReal(given.value);
  // Written so that NaN fails it.
  if (!value || !(*value >= 0.0 && *value <= 1.0)) {
    return given.Refuse("is not a share from 0 to 1, such as 0.9");
  }
  *target = value;
  return Status::Ok();
}

Status SetReads(const Given& given, std::optional<double>* target) {
  const std::optional<double> value = ParseReal(given.value);
  // Written so that NaN fails it.
  if (!value || !(*value >= 0.0 && *value <= kMaxEntries)) {
    return given.Refuse("is not a number of groups, such as 12, nor 0 for all");
  }
  *target = value;
  return Status::Ok();
}

Status SetFactor(const Given& given, std::optional<double>* target) {
  const std::optional<double> value = ParseReal(given.value);
  // Written so that NaN fails it.
  if (!value || !(*value > 0.0 && *value <= 1e6)) return given.Refuse("is not a number above 0, such as 1.5");
  *target = value;
  return Status::Ok();
}

Status SetPath(const Given& given, std::string* target) {
  if (given.value.empty() || given.value.find('\0') != std::string_view::npos) {
    return given.Refuse("is not a path");
  }
  *target = given.value;
  return Status::Ok();
}

Status SetTypes(const Given& given, KvOptions* kv) {
  const size_t comma = std::min(given.value.find(','), given.value.size());
  const bool is_pair = comma < given.value.size();
  const auto types = NameAll(kTypes, KvTypeName);
  KVRUN_ASSIGN_OR_RETURN(const KvType k_type, Choose<KvType>(given, given.value.substr(0, comma), types));
  KvType v_type = k_type;
  if (is_pair) {
    KVRUN_ASSIGN_OR_RETURN(v_type, Choose<KvType>(given, given.value.substr(comma + 1), types));
  }
  kv->k_type = k_type;
  kv->v_type = v_type;
  return Status::Ok();
}

Status SetShare(const Given& given, size_t stroke, KvOptions* kv) {
  const auto part = ParseNumber<uint32_t>(given.value.substr(0, stroke));
  const auto whole = ParseNumber<uint32_t>(given.value.substr(stroke + 1));
  if (!part || !whole || *part == 0 || *part > *whole || *whole > kMaxStrokeNumber) {
    return given.Refuse("is not a share of the whole KV cache, such as 1/13 (at most 1/1)");
  }
  kv->budget_fraction = static_cast<double>(*part) / *whole;
  kv->budget_bytes.reset();
  return Status::Ok();
}

// Bytes without a unit are a whole number; with one they may have decimals. All units are of 1024.
std::optional<double> ParseBytes(std::string_view text) {
  static constexpr std::array<Named<uint64_t>, 12> kUnits = {{{"KiB", kKiB},
                                                              {"MiB", kMiB},
                                                              {"GiB", kGiB},
                                                              {"KB", kKiB},
                                                              {"MB", kMiB},
                                                              {"GB", kGiB},
                                                              {"K", kKiB},
                                                              {"M", kMiB},
                                                              {"G", kGiB},
                                                              {"k", kKiB},
                                                              {"m", kMiB},
                                                              {"g", kGiB}}};
  for (const Named<uint64_t>& unit : kUnits) {
    if (!text.ends_with(unit.name)) continue;
    const auto value = ParseReal(text.substr(0, text.size() - unit.name.size()));
    if (!value) return std::nullopt;
    return *value * static_cast<double>(unit.value);
  }
  const auto value = ParseNumber<uint64_t>(text);
  if (!value) return std::nullopt;
  return static_cast<double>(*value);
}

Status SetPercent(const Given& given, KvOptions* kv) {
  const auto percent = ParseReal(given.value.substr(0, given.value.size() - 1));
  // Written so that NaN fails it.
  if (!percent || !(*percent * kMaxStrokeNumber >= 100.0 && *percent <= 100.0)) {
    return given.Refuse("is not a share of the whole KV cache, such as 50% (at most 100%)");
  }
  kv->budget_fraction = *percent / 100.0;
  kv->budget_bytes.reset();
  return Status::Ok();
}

Status SetBudget(const Given& given, KvOptions* kv) {
  if (const size_t stroke = given.value.find('/'); stroke != std::string_view::npos) {
    return SetShare(given, stroke, kv);
  }
  if (given.value.ends_with('%')) return SetPercent(given, kv);
  const std::optional<double> bytes = ParseBytes(given.value);
  if (!bytes) {
    return given.Refuse(
        "is neither bytes (14155776, 13.5M; the units K, M and G are of 1024) nor a share of the whole KV "
        "cache (1/13, 8%)");
  }
  // Written so that NaN fails it.
  if (!(*bytes >= 1.0 && *bytes <= static_cast<double>(kMaxBudgetBytes))) {
    return given.Refuse(fmt::format("is not from 1 byte to {}", FormatBytes(kMaxBudgetBytes)));
  }
  kv->budget_bytes = static_cast<uint64_t>(std::floor(*bytes));
  kv->budget_fraction.reset();
  return Status::Ok();
}

Status SetBackend(const Given& given, KvStorageOptions* storage) {
  if (given.value == "auto") {
    storage->auto_backend = true;
    return Status::Ok();
  }
  const auto backends = NameAll(kBackends, IoBackendName);
  for (const Named<IoBackend>& row : backends) {
    if (row.name != given.value) continue;
    storage->auto_backend = false;
    storage->backend = row.value;
    return Status::Ok();
  }
  return given.Refuse("is not one of auto, " + Names(backends));
}

Status SetAdapter(const Given& given, KvSettings* settings) {
  KVRUN_RETURN_IF_ERROR(SetPath(given, &settings->storage.adapter_path));
  settings->kv.adapter_from_file = true;
  return Status::Ok();
}

using Setter = Status (*)(const Given& given, KvSettings* settings);

constexpr Named<Setter> kSetters[] = {
    {"method", [](const Given& g, KvSettings* s) { return SetRow(g, KvMethods(), &s->kv.method); }},
    {"budget", [](const Given& g, KvSettings* s) { return SetBudget(g, &s->kv); }},
    {"type", [](const Given& g, KvSettings* s) { return SetTypes(g, &s->kv); }},
    {"group",
     [](const Given& g, KvSettings* s) { return SetCount(g, 1, kMaxGroupTokens, &s->kv.group_tokens); }},
    {"select",
     [](const Given& g, KvSettings* s) { return SetCount(g, 0, kMaxEntries, &s->kv.select_entries); }},
    {"hide", [](const Given& g, KvSettings* s) { return SetHide(g, &s->kv.hide); }},
    {"reads", [](const Given& g, KvSettings* s) { return SetReads(g, &s->kv.reads_per_layer); }},
    {"adapt", [](const Given& g, KvSettings* s) { return SetChoice(g, kSwitch, &s->kv.adapt); }},
    {"sample",
     [](const Given& g, KvSettings* s) { return SetCount(g, 0, kMaxEntries, &s->kv.sample_entries); }},
    {"seed", [](const Given& g, KvSettings* s) { return SetCount(g, 0, UINT32_MAX, &s->kv.sample_seed); }},
    {"mass", [](const Given& g, KvSettings* s) { return SetMass(g, &s->kv.mass_share); }},
    {"window",
     [](const Given& g, KvSettings* s) { return SetCount(g, 0, kMaxEntries, &s->kv.window_entries); }},
    {"sinks", [](const Given& g, KvSettings* s) { return SetCount(g, 0, kMaxEntries, &s->kv.sink_entries); }},
    {"reuse", [](const Given& g, KvSettings* s) { return SetCount(g, 0, kMaxEntries, &s->kv.reuse_groups); }},
    {"rank", [](const Given& g, KvSettings* s) { return SetCount(g, 1, kMaxRank, &s->kv.rank); }},
    {"index",
     [](const Given& g, KvSettings* s) {
       return SetChoice(g, NameAll(kIndexTypes, KvTypeName), &s->kv.index_type);
     }},
    {"heads", [](const Given& g,
                 KvSettings* s) { return SetChoice(g, NameAll(kHeads, HeadReductionName), &s->kv.heads); }},
    {"cluster",
     [](const Given& g, KvSettings* s) { return SetCount(g, 1, kMaxEntries, &s->kv.cluster_entries); }},
    {"cluster-max",
     [](const Given& g, KvSettings* s) { return SetCount(g, 2, kMaxEntries, &s->kv.max_cluster_entries); }},
    {"cluster-room",
     [](const Given& g, KvSettings* s) { return SetCount(g, 1, kMaxEntries, &s->kv.cluster_room); }},
    {"pending",
     [](const Given& g, KvSettings* s) { return SetCount(g, 1, kMaxEntries, &s->kv.pending_entries); }},
    {"upkeep",
     [](const Given& g, KvSettings* s) { return SetCount(g, 1, kMaxEntries, &s->kv.upkeep_clusters); }},
    {"split", [](const Given& g, KvSettings* s) { return SetFactor(g, &s->kv.split_factor); }},
    {"update",
     [](const Given& g, KvSettings* s) {
       return SetChoice(g, NameAll(kUpdates, ClusterUpdateName), &s->kv.cluster_update);
     }},
    {"layout",
     [](const Given& g, KvSettings* s) {
       return SetChoice(g, NameAll(kLayouts, ClusterLayoutName), &s->kv.cluster_layout);
     }},
    {"representatives",
     [](const Given& g, KvSettings* s) { return SetChoice(g, kRepresentatives, &s->kv.rows_on_flash); }},
    {"shares",
     [](const Given& g, KvSettings* s) {
       return SetChoice(g, NameAll(kShares, KeptSharesName), &s->kv.kept_shares);
     }},
    {"precisions",
     [](const Given& g, KvSettings* s) {
       return SetChoice(g, NameAll(kPrecisions, KeptPrecisionsName), &s->kv.kept_precisions);
     }},
    {"moments",
     [](const Given& g, KvSettings* s) {
       return SetChoice(g, NameAll(kMoments, AttentionMomentsName), &s->kv.attention_moments);
     }},
    {"static", [](const Given& g, KvSettings* s) { return SetStaticShare(g, &s->kv.static_share); }},
    {"static-steps",
     [](const Given& g, KvSettings* s) { return SetCount(g, 0, kMaxEntries, &s->kv.static_steps); }},
    {"repage", [](const Given& g, KvSettings* s) { return SetChoice(g, kSwitch, &s->kv.static_repage); }},
    {"rotate", [](const Given& g, KvSettings* s) { return SetChoice(g, kSwitch, &s->kv.rotate); }},
    {"policy", [](const Given& g, KvSettings* s) { return SetRow(g, ReplacementPolicies(), &s->kv.policy); }},
    {"adapter", SetAdapter},
    {"adapter-kind",
     [](const Given& g, KvSettings* s) {
       return SetChoice(g, NameAll(kAdapterKinds, AdapterKindName), &s->kv.adapter_kind);
     }},
    {"dir", [](const Given& g, KvSettings* s) { return SetPath(g, &s->storage.folder); }},
    {"io", [](const Given& g, KvSettings* s) { return SetBackend(g, &s->storage); }},
    {"direct", [](const Given& g, KvSettings* s) { return SetChoice(g, kDirect, &s->storage.direct); }},
    {"tmpfs", [](const Given& g, KvSettings* s) { return SetChoice(g, kSwitch, &s->storage.allow_tmpfs); }},
};

template <typename Rows>
std::vector<std::string> NameList(const Rows& rows) {
  std::vector<std::string> names;
  for (const auto& row : rows) names.emplace_back(row.name);
  return names;
}

std::vector<std::string> BackendChoices() {
  std::vector<std::string> names = NameList(NameAll(kBackends, IoBackendName));
  names.insert(names.begin(), "auto");
  return names;
}

using Choices = std::vector<std::string> (*)();

// The options of kSetters that take one of a few words.
constexpr Named<Choices> kChoices[] = {
    {"method", [] { return NameList(KvMethods()); }},
    {"type", [] { return NameList(NameAll(kTypes, KvTypeName)); }},
    {"index", [] { return NameList(NameAll(kIndexTypes, KvTypeName)); }},
    {"heads", [] { return NameList(NameAll(kHeads, HeadReductionName)); }},
    {"update", [] { return NameList(NameAll(kUpdates, ClusterUpdateName)); }},
    {"layout", [] { return NameList(NameAll(kLayouts, ClusterLayoutName)); }},
    {"representatives", [] { return NameList(kRepresentatives); }},
    {"shares", [] { return NameList(NameAll(kShares, KeptSharesName)); }},
    {"precisions", [] { return NameList(NameAll(kPrecisions, KeptPrecisionsName)); }},
    {"moments", [] { return NameList(NameAll(kMoments, AttentionMomentsName)); }},
    {"adapt", [] { return NameList(kSwitch); }},
    {"repage", [] { return NameList(kSwitch); }},
    {"rotate", [] { return NameList(kSwitch); }},
    {"policy", [] { return NameList(ReplacementPolicies()); }},
    {"adapter-kind", [] { return NameList(NameAll(kAdapterKinds, AdapterKindName)); }},
    {"io", BackendChoices},
    {"direct", [] { return NameList(kDirect); }},
    {"tmpfs", [] { return NameList(kSwitch); }},
};

// Separated by blanks; what stands between double quotes is as it is, but for \" and \\.
Result<std::vector<std::string>> Words(std::string_view line) {
  constexpr std::string_view kBlanks = " \t\r\n";
  std::vector<std::string> words;
  bool is_in_word = false;
  bool is_quoted = false;
  for (size_t i = 0; i < line.size(); ++i) {
    char c = line[i];
    if (!is_quoted && kBlanks.find(c) != kBlanks.npos) {
      is_in_word = false;
      continue;
    }
    if (!is_in_word) words.emplace_back();
    is_in_word = true;
    if (c == '"') {
      is_quoted = !is_quoted;
      continue;
    }
    const bool is_escape = is_quoted && c == '\\' && i + 1 < line.size();
    if (is_escape && (line[i + 1] == '"' || line[i + 1] == '\\')) c = line[++i];
    words.back() += c;
  }
  if (!is_quoted) return words;
  return Status(StatusCode::kInvalidArgument,
                fmt::format("a quote is not closed in the KV options {}", line));
}

}  // namespace

Status SetKvOption(std::string_view name, std::string_view value, KvSettings* settings) {
  for (const Named<Setter>& row : kSetters) {
    if (row.name == name) return row.value({name, value}, settings);
  }
  return {StatusCode::kInvalidArgument,
          fmt::format("there is no KV option \"{}\"; known: {}", name, Names(kSetters))};
}

std::vector<std::string> KvOptionChoices(std::string_view name) {
  for (const Named<Choices>& row : kChoices) {
    if (row.name == name) return row.value();
  }
  return {};
}

Status ParseKvOptions(std::string_view line, KvSettings* settings) {
  static constexpr std::string_view kPrefix = "--kv-";
  KVRUN_ASSIGN_OR_RETURN(const std::vector<std::string> words, Words(line));
  for (size_t i = 0; i < words.size(); ++i) {
    if (!words[i].starts_with(kPrefix)) {
      return {StatusCode::kInvalidArgument,
              fmt::format("\"{}\" is not a KV option: they begin with {} and have one value each", words[i],
                          kPrefix)};
    }
    const std::string_view option = std::string_view(words[i]).substr(kPrefix.size());
    const size_t equals = std::min(option.find('='), option.size());
    const std::string_view name = option.substr(0, equals);
    std::string_view value;
    if (equals < option.size()) {
      value = option.substr(equals + 1);
    } else if (i + 1 < words.size() && !words[i + 1].starts_with(kPrefix)) {
      value = words[++i];
    } else if (name == "tmpfs") {
      value = "on";  // the command line has it as a flag
    } else {
      return {StatusCode::kInvalidArgument, fmt::format("the option {} lacks its value", words[i])};
    }
    KVRUN_RETURN_IF_ERROR(SetKvOption(name, value, settings));
  }
  return Status::Ok();
}

}  // namespace kvrun
