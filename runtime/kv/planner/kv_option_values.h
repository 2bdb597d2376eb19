// How values of options are read: what a row of the table names as its `set`. Internal to kv_options.cc and
// kv_option_table.cc.
#pragma once

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "platform/base/status.h"
#include "runtime/kv/planner/kv_option_table.h"
#include "runtime/kv/planner/kv_options.h"

namespace kvrun::option_values {

// Far above any use: what is larger was mistyped.
inline constexpr uint32_t kMaxEntries = 1U << 24;

// A word and what it stands for.
template <typename T>
struct Named {
  std::string_view name;
  T value;
};

template <typename Rows>
std::string Names(const Rows& rows) {
  std::string names;
  for (const auto& row : rows) names += fmt::format("{}{}", names.empty() ? "" : ", ", row.name);
  return names;
}

template <typename Rows>
std::vector<std::string> NameList(const Rows& rows) {
  std::vector<std::string> names;
  for (const auto& row : rows) names.emplace_back(row.name);
  return names;
}

template <typename T, size_t N>
std::array<Named<T>, N> NameAll(const std::array<T, N>& values, std::string_view (*name_of)(T)) {
  std::array<Named<T>, N> named;
  for (size_t i = 0; i < N; ++i) named[i] = {name_of(values[i]), values[i]};
  return named;
}

// A value of one of a few words.
template <typename Rows>
auto Choose(const GivenKvOption& given, std::string_view word, const Rows& rows)
    -> Result<decltype(rows[0].value)> {
  for (const auto& row : rows) {
    if (row.name == word) return row.value;
  }
  return given.Refuse("is not one of " + Names(rows));
}

template <typename Rows, typename Target>
Status SetChoice(const GivenKvOption& given, const Rows& rows, Target* target) {
  KVRUN_ASSIGN_OR_RETURN(const auto value, Choose(given, given.value, rows));
  *target = value;
  return Status::Ok();
}

// Of a table whose rows have names, such as the methods.
template <typename Rows>
Status SetRow(const GivenKvOption& given, const Rows& rows, std::string* target) {
  for (const auto& row : rows) {
    if (row.name != given.value) continue;
    *target = given.value;
    return Status::Ok();
  }
  return given.Refuse("is not one of " + Names(rows));
}

// A number within the row's bounds.
Status SetCount(const GivenKvOption& given, std::optional<uint32_t>* target);
// A share above 0 and at most 1.
Status SetMass(const GivenKvOption& given, std::optional<double>* target);
// A share from 0 to 1.
Status SetShare(const GivenKvOption& given, std::optional<double>* target);
Status SetStaticShare(const GivenKvOption& given, std::optional<StaticShare>* target);
Status SetReads(const GivenKvOption& given, std::optional<double>* target);
// A number above 0.
Status SetFactor(const GivenKvOption& given, std::optional<double>* target);
Status SetPath(const GivenKvOption& given, std::string* target);
// One type, or one for K and one for V.
Status SetTypes(const GivenKvOption& given, KvOptions* kv);
// Bytes, with or without a unit, or a share of all KV.
Status SetBudget(const GivenKvOption& given, KvOptions* kv);
Status SetBackend(const GivenKvOption& given, KvStorageOptions* storage);
// "20GiB/day": bytes as of a budget.
Status SetDailyBytes(const GivenKvOption& given, std::optional<uint64_t>* target);

std::vector<std::string> TypeNames();
std::vector<std::string> BackendNames();

}  // namespace kvrun::option_values
