#include "apps/kvserve/json_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

#include "apps/common/json_limits.h"
#include "apps/common/printable.h"

namespace kvrun::serve {
namespace {

constexpr unsigned kBadRequest = 400;
constexpr size_t kShownBytes = 100;  // of a value, in a message

std::string ShownValue(const Json& value) {
  if (value.is_array()) return value.empty() ? "an empty list" : "a list";
  if (value.is_object()) return "an object";
  if (value.is_string())
    return fmt::format("\"{}\"", cli::Clipped(value.get_ref<const std::string&>(), kShownBytes));
  return cli::DumpJson(value);
}

}  // namespace

Json ParseBody(const std::string& body) {
  const std::string beyond = cli::BeyondLimits(body, kBodyLimits);
  if (!beyond.empty()) throw ApiError(kBadRequest, "the body " + beyond);
  std::string why;
  Json json = cli::ParseJson(body, &why);
  // It quotes what it read last, which may be as long as the body.
  if (json.is_discarded())
    throw ApiError(kBadRequest, "the body cannot be read as JSON: " + cli::Clipped(why, 3 * kShownBytes));
  if (!json.is_object()) throw ApiError(kBadRequest, "the body is not a JSON object");
  return json;
}

void RefuseValue(const std::string& param, const Json& value, const std::string& what_it_must_be) {
  throw ApiError(kBadRequest,
                 fmt::format("\"{}\" is {}: it must be {}", param, ShownValue(value), what_it_must_be), param,
                 "invalid_value");
}

void RefuseMissing(const std::string& param, const std::string& what_it_must_be) {
  throw ApiError(kBadRequest, fmt::format("\"{}\" is missing: give {}", param, what_it_must_be), param,
                 "missing_required_parameter");
}

void RefuseUnsupported(const std::string& param, const std::string& message) {
  throw ApiError(kBadRequest, message, param, "unsupported_parameter");
}

std::optional<int64_t> WholeNumber(const Json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
    return static_cast<int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  const double real = value.is_number() ? value.get<double>() : NAN;
  // Both are powers of two, hence exact; NaN fails it, too.
  if (!(real >= -0x1.0p63 && real < 0x1.0p63) || real != std::floor(real)) return std::nullopt;
  return static_cast<int64_t>(real);
}

std::vector<int32_t> TokenIds(const std::string& param, const Json& value) {
  constexpr std::string_view kIds = "a list of token ids: whole numbers from 0 to 2147483647";
  if (!value.is_array()) RefuseValue(param, value, std::string(kIds));
  std::vector<int32_t> ids;
  ids.reserve(value.size());
  for (const Json& one : value) {
    const std::optional<int64_t> id = WholeNumber(one);
    if (!id || *id < 0 || *id > std::numeric_limits<int32_t>::max())
      RefuseValue(fmt::format("{}[{}]", param, ids.size()), one,
                  "a token id: a whole number from 0 to 2147483647");
    ids.push_back(static_cast<int32_t>(*id));
  }
  return ids;
}

const Json* Fields::Find(const char* name) const {
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

std::optional<float> Fields::Real(const char* name, float least, float most) const {
  const Json* const value = Find(name);
  if (value == nullptr) return std::nullopt;
  const double real = value->is_number() ? value->get<double>() : NAN;
  // NaN fails it, too.
  if (!(real >= least && real <= most))
    RefuseValue(name, *value, fmt::format("a number from {} to {}", least, most));
  return static_cast<float>(real);
}

std::optional<int64_t> Fields::Whole(const char* name, int64_t least, int64_t most) const {
  const Json* const value = Find(name);
  if (value == nullptr) return std::nullopt;
  const std::optional<int64_t> number = WholeNumber(*value);
  if (!number || *number < least || *number > most)
    RefuseValue(name, *value, fmt::format("a whole number from {} to {}", least, most));
  return number;
}

std::optional<bool> Fields::Flag(const char* name) const {
  const Json* const value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) RefuseValue(name, *value, "true or false");
  return value->get<bool>();
}

std::optional<std::string> Fields::Text(const char* name) const {
  const Json* const value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) RefuseValue(name, *value, "a string");
  return value->get<std::string>();
}

}  // namespace kvrun::serve
