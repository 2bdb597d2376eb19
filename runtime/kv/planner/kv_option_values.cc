#include "runtime/kv/planner/kv_option_values.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "platform/base/real_number.h"
#include "platform/base/units.h"
#include "runtime/kv/plan/kv_names.h"

namespace kvrun::option_values {
namespace {

constexpr uint32_t kMaxStrokeNumber = 1'000'000;

constexpr std::array kTypes = {KvType::kF32, KvType::kF16, KvType::kFp8, KvType::kInt8, KvType::kInt4};
constexpr std::array kBackends = {IoBackend::kIoUring, IoBackend::kAio, IoBackend::kThreads};

// All of `text`, or nothing.
template <typename T>
std::optional<T> ParseNumber(std::string_view text) {
  T value{};
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || rest != end) return std::nullopt;
  return value;
}

Status SetFraction(const GivenKvOption& given, size_t stroke, KvOptions* kv) {
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

Status SetPercent(const GivenKvOption& given, KvOptions* kv) {
  const auto percent = ParseReal(given.value.substr(0, given.value.size() - 1));
  // Written so that NaN fails it.
  if (!percent || !(*percent * kMaxStrokeNumber >= 100.0 && *percent <= 100.0)) {
    return given.Refuse("is not a share of the whole KV cache, such as 50% (at most 100%)");
  }
  kv->budget_fraction = *percent / 100.0;
  kv->budget_bytes.reset();
  return Status::Ok();
}

}  // namespace

Status SetCount(const GivenKvOption& given, std::optional<uint32_t>* target) {
  const std::optional<uint32_t> value = ParseNumber<uint32_t>(given.value);
  if (!value || *value < given.row.least || *value > given.row.most) {
    return given.Refuse(fmt::format("is not a number from {} to {}", given.row.least, given.row.most));
  }
  *target = value;
  return Status::Ok();
}

Status SetMass(const GivenKvOption& given, std::optional<double>* target) {
  const std::optional<double> value = ParseReal(given.value);
  // Written so that NaN fails it.
  if (!value || !(*value > 0.0 && *value <= 1.0)) {
    return given.Refuse("is not a share above 0 and at most 1, such as 0.95");
  }
  *target = value;
  return Status::Ok();
}

Status SetShare(const GivenKvOption& given, std::optional<double>* target) {
  const std::optional<double> value = ParseReal(given.value);
  // Written so that NaN fails it.
  if (!value || !(*value >= 0.0 && *value <= 1.0)) {
    return given.Refuse("is not a share from 0 to 1, such as 0.9");
  }
  *target = value;
  return Status::Ok();
}

Status SetStaticShare(const GivenKvOption& given, std::optional<StaticShare>* target) {
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

Status SetReads(const GivenKvOption& given, std::optional<double>* target) {
  const std::optional<double> value = ParseReal(given.value);
  // Written so that NaN fails it.
  if (!value || !(*value >= 0.0 && *value <= kMaxEntries)) {
    return given.Refuse("is not a number of groups, such as 12, nor 0 for all");
  }
  *target = value;
  return Status::Ok();
}

Status SetFactor(const GivenKvOption& given, std::optional<double>* target) {
  const std::optional<double> value = ParseReal(given.value);
  // Written so that NaN fails it.
  if (!value || !(*value > 0.0 && *value <= 1e6)) return given.Refuse("is not a number above 0, such as 1.5");
  *target = value;
  return Status::Ok();
}

Status SetPath(const GivenKvOption& given, std::string* target) {
  if (given.value.empty() || given.value.find('\0') != std::string_view::npos) {
    return given.Refuse("is not a path");
  }
  *target = given.value;
  return Status::Ok();
}

Status SetTypes(const GivenKvOption& given, KvOptions* kv) {
  const size_t comma = std::min(given.value.find(','), given.value.size());
  const bool is_pair = comma < given.value.size();
  const auto types = NameAll(kTypes, KvTypeName);
  KVRUN_ASSIGN_OR_RETURN(const KvType k_type, Choose(given, given.value.substr(0, comma), types));
  KvType v_type = k_type;
  if (is_pair) {
    KVRUN_ASSIGN_OR_RETURN(v_type, Choose(given, given.value.substr(comma + 1), types));
  }
  kv->k_type = k_type;
  kv->v_type = v_type;
  return Status::Ok();
}

Status SetBudget(const GivenKvOption& given, KvOptions* kv) {
  if (const size_t stroke = given.value.find('/'); stroke != std::string_view::npos) {
    return SetFraction(given, stroke, kv);
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

Status SetBackend(const GivenKvOption& given, KvStorageOptions* storage) {
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

Status SetDailyBytes(const GivenKvOption& given, std::optional<uint64_t>* target) {
  constexpr std::string_view kPerDay = "/day";
  const std::optional<double> bytes =
      given.value.ends_with(kPerDay) ? ParseBytes(given.value.substr(0, given.value.size() - kPerDay.size()))
                                     : std::nullopt;
  // Written so that NaN fails it.
  if (!bytes || !(*bytes >= 1.0 && *bytes <= static_cast<double>(kMaxBudgetBytes))) {
    return given.Refuse(fmt::format(
        "is no number of bytes a day from 1 byte to {}, such as 20GiB/day (the units K, M and G are of 1024)",
        FormatBytes(kMaxBudgetBytes)));
  }
  *target = static_cast<uint64_t>(std::floor(*bytes));
  return Status::Ok();
}

std::vector<std::string> TypeNames() { return NameList(NameAll(kTypes, KvTypeName)); }

std::vector<std::string> BackendNames() {
  std::vector<std::string> names = NameList(NameAll(kBackends, IoBackendName));
  names.insert(names.begin(), "auto");
  return names;
}

}  // namespace kvrun::option_values
