// docs/options.md is what the table of options says.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "runtime/kv/planner/kv_option_table.h"
#include "runtime/kv/planner/kv_options.h"
#include "tests/support/reference_files.h"

namespace kvrun {
namespace {

constexpr const char* kBeginning = R"(# Options of the KV cache

Every option is `--kv-NAME VALUE` on the command line, `KVRUN_KV_NAME` in the environment, `NAME` in the C API
(`kvrun_option`), and, where this page says so, `NAME` with `_` for `-` in a [config](config.md). `kvrun run --help kv`
shows the same. What is not given follows from the budget. [ARCHITECTURE.md](ARCHITECTURE.md) explains the terms, and
[methods](methods/README.md) the methods.

This page is made from the table in `runtime/kv/planner/kv_option_table.cc`, and a test compares them
(`KVRUN_UPDATE_OPTIONS=1 build/release/tests/kvrun_unit_tests --gtest_filter='OptionsPage*'` writes it anew).
)";

std::string Escaped(std::string_view text) {
  std::string escaped;
  for (const char c : text) escaped += c == '|' ? "\\|" : std::string(1, c);
  return escaped;
}

// The methods that have it, as a person would say it.
std::string MethodsOf(const KvOptionRow& row) {
  if (row.field.is_given == nullptr) return "all";
  std::vector<std::string> have;
  std::vector<std::string> lack;
  for (const KvMethod& method : KvMethods()) {
    KvOptions options;
    options.method = method.name;
    (row.field.WhatLacks(method, options).empty() ? have : lack).emplace_back(method.name);
  }
  const bool names_others = lack.size() < have.size();
  std::string names = names_others ? (lack.empty() ? "all" : "all but ") : "";
  const std::vector<std::string>& named = names_others ? lack : have;
  for (size_t i = 0; i < named.size(); ++i) names += (i == 0 ? "" : ", ") + named[i];
  return names;
}

std::string ValueOf(const KvOptionRow& row) {
  if (row.value.empty()) return "";
  std::string value = "`" + Escaped(row.value) + "`";
  if (row.most > 0) value += fmt::format(", {} to {}", row.least, row.most);
  return value;
}

std::string Table(KvOptionAudience audience) {
  std::string table = "\n| option | value | methods | config | |\n|---|---|---|---|---|\n";
  for (const KvOptionRow& row : KvOptionRows()) {
    if (row.audience != audience) continue;
    table += fmt::format("| `{}` | {} | {} | {} | {} |\n", row.name, ValueOf(row), MethodsOf(row),
                         row.config.comment.empty() ? "" : "yes", Escaped(row.help));
  }
  return table;
}

std::string Page() {
  return std::string(kBeginning) + "\n## For everybody\n" + Table(KvOptionAudience::kEverybody) +
         "\n## For experts\n" + Table(KvOptionAudience::kExperts) +
         "\n## To compare methods with each other\n\n`kvrun eval` and `kvrun bench` show these; other "
         "commands take "
         "them without a word.\n" +
         Table(KvOptionAudience::kComparisons);
}

TEST(OptionsPage, IsWhatTheTableSays) {
  const std::string path = std::string(KVRUN_SOURCE_DIR) + "/docs/options.md";
  if (std::getenv("KVRUN_UPDATE_OPTIONS") != nullptr) {
    std::ofstream(path) << Page();
    GTEST_SKIP() << "docs/options.md is written anew";
  }
  EXPECT_EQ(testing::ReadFileOrDie(path), Page()) << "KVRUN_UPDATE_OPTIONS=1 writes the page anew";
}

// Rows are whole: what is open in one would be found by a user.
TEST(OptionsPage, EveryRowSaysWhatThereIsToSay) {
  std::set<std::string_view> names;
  for (const KvOptionRow& row : KvOptionRows()) {
    SCOPED_TRACE(row.name);
    EXPECT_TRUE(names.insert(row.name).second) << "twice";
    EXPECT_NE(row.set, nullptr);
    EXPECT_GT(row.help.size(), 20U);
    EXPECT_FALSE(row.help.ends_with('.'));
    EXPECT_EQ(row.help.find('\n'), row.help.npos);
    EXPECT_EQ(row.field.needs[0].any_of == 0, row.field.is_given == nullptr);
    EXPECT_EQ(row.field.is_given == nullptr, row.field.leave_out == nullptr);
    KvOptions nothing;
    if (row.field.is_given != nullptr) {
      EXPECT_FALSE(row.field.is_given(nothing));
    }
    EXPECT_EQ(FindKvOption(row.name), &row);
  }
  EXPECT_EQ(FindKvOption("no such option"), nullptr);
}

// What is set is given, and what is left out is not: a row's three functions are about one field.
TEST(OptionsPage, ARowSetsTheFieldThatItAsks) {
  for (const KvOptionRow& row : KvOptionRows()) {
    if (row.field.is_given == nullptr) continue;
    SCOPED_TRACE(row.name);
    std::vector<std::string> values = {"2", "0.5", "some/file"};
    if (row.words != nullptr) values = row.words();
    KvSettings settings;
    bool is_set = false;
    for (const std::string& value : values) is_set = is_set || SetKvOption(row.name, value, &settings).ok();
    ASSERT_TRUE(is_set);
    EXPECT_TRUE(row.field.is_given(settings.kv));
    for (const KvOptionRow& other : KvOptionRows()) {
      if (&other != &row && other.field.is_given != nullptr) {
        EXPECT_FALSE(other.field.is_given(settings.kv)) << other.name;
      }
    }
    row.field.leave_out(&settings.kv);
    EXPECT_FALSE(row.field.is_given(settings.kv));
  }
}

}  // namespace
}  // namespace kvrun
