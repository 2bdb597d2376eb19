// Templates of today's models: the texts that Jinja2 makes of them, and whose text each byte is.
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "runtime/jinja/jinja_template.h"
#include "tests/support/reference_files.h"
#include "tests/support/seeds.h"

namespace kvrun {
namespace {

using nlohmann::ordered_json;
using testing::ReadFileOrDie;
using testing::SharedPath;

constexpr std::time_t kNow = 1772892309;  // 2026-03-07 14:05:09 UTC
constexpr const char* kSentinel = "<|\x01sentinel\x02|>";

struct Case {
  std::string name;
  std::string template_name;
  JinjaVariables variables;
  ordered_json expected;
};

class JinjaReference : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto path = SharedPath("reference/templates/expected.jsonl");
    if (!path) GTEST_SKIP() << "reference/templates is not there";
    const char* const zone = std::getenv("TZ");
    zone_ = zone == nullptr ? "" : zone;
    setenv("TZ", "UTC", 1);
    std::istringstream lines(ReadFileOrDie(*path));
    for (std::string line; std::getline(lines, line);) AddCase(ordered_json::parse(line));
  }

  void TearDown() override {
    if (zone_.empty()) {
      unsetenv("TZ");
    } else {
      setenv("TZ", zone_.c_str(), 1);
    }
  }

  void AddCase(ordered_json line) {
    Case added;
    added.template_name = line["template"].get<std::string>();
    added.name = added.template_name + ", " + line["case"].get<std::string>();
    added.variables.now = kNow;
    added.variables.form = ordered_json::object();
    added.variables.content = line["variables"];
    for (const char* name : {"bos_token", "eos_token"}) {
      if (!added.variables.content.contains(name)) continue;
      added.variables.form[name] = added.variables.content[name];
      added.variables.content.erase(name);
    }
    added.expected = std::move(line);
    if (!templates_.contains(added.template_name)) Read(added.template_name);
    cases_.push_back(std::move(added));
  }

  void Read(const std::string& name) {
    const auto path = SharedPath("reference/templates/" + name + ".jinja");
    ASSERT_TRUE(path) << name;
    Result<JinjaTemplate> read = JinjaTemplate::Parse(ReadFileOrDie(*path));
    ASSERT_TRUE(read.ok()) << name << ": " << read.status().message();
    templates_.emplace(name, std::move(read).value());
  }

  Result<JinjaText> Render(const Case& one) { return templates_.at(one.template_name).Render(one.variables); }

  std::vector<Case> cases_;
  std::map<std::string, JinjaTemplate> templates_;
  std::string zone_;
};

TEST_F(JinjaReference, TextsAndErrorsAreThoseOfJinja2) {
  ASSERT_GT(cases_.size(), 1000U);
  for (const Case& one : cases_) {
    const Result<JinjaText> text = Render(one);
    const bool is_error = one.expected.contains("error") && !one.expected["error"].is_null();
    ASSERT_EQ(text.ok(), !is_error) << one.name << ": " << (text.ok() ? "no error" : text.status().message());
    if (is_error) {
      EXPECT_NE(text.status().message().find("line "), std::string::npos) << text.status().message();
    } else {
      EXPECT_EQ(JoinPieces(*text), one.expected["text"]) << one.name;
    }
  }
}

TEST_F(JinjaReference, PiecesAreNeitherEmptyNorLikeTheirNeighbours) {
  for (const Case& one : cases_) {
    const Result<JinjaText> text = Render(one);
    if (!text.ok()) continue;
    for (size_t i = 0; i < text->size(); ++i) {
      EXPECT_FALSE((*text)[i].text.empty()) << one.name;
      if (i > 0) {
        EXPECT_NE((*text)[i].is_content, (*text)[i - 1].is_content) << one.name;
      }
    }
  }
}

// Puts the sentinel somewhere into texts, and some names of keys, of a value.
class Injector {
 public:
  explicit Injector(uint64_t seed) : random_(seed) {}

  void Inject(ordered_json* value) {
    if (value->is_string()) {
      auto& text = value->get_ref<std::string&>();
      if (random_() % 2 == 0) text.insert(random_() % (text.size() + 1), Piece());
    } else if (value->is_object()) {
      ordered_json changed = ordered_json::object();
      for (auto& [name, item] : value->items()) {
        // What the roles and types are decides which way the template takes.
        const bool is_kept = name == "role" || name == "type" || random_() % 16 != 0;
        ordered_json inner = item;
        if ((name != "role" && name != "type") || random_() % 32 == 0) Inject(&inner);
        changed[is_kept ? name : name + Piece()] = std::move(inner);
      }
      *value = std::move(changed);
    } else if (value->is_array()) {
      for (ordered_json& item : *value) Inject(&item);
    }
  }

 private:
  std::string Piece() {
    constexpr const char* kAround[] = {"",   "</think>", "<think>", "\n",        " ", "<tool_call>",
                                       "{}", "%s",       "'",       "<|im_end|>"};
    return std::string(kAround[random_() % 10]) + kSentinel + kAround[random_() % 10];
  }

  std::mt19937_64 random_;
};

// No byte of a sentinel is form, be it whole or cut: its characters stand nowhere else.
bool IsFormClean(const JinjaText& text) {
  for (const JinjaPiece& piece : text) {
    if (!piece.is_content && (piece.text.find_first_of("\x01\x02") != std::string::npos ||
                              piece.text.find("sentinel") != std::string::npos)) {
      return false;
    }
  }
  return true;
}

TEST_F(JinjaReference, WhatIsInjectedIsContent) {
  // 10^4 for each template in the long run: KVRUN_HISTORIES=600 (times 17 cases).
  const testing::Seeds seeds = testing::SeedsHere(6);
  size_t n_rendered = 0;
  size_t n_with_sentinel = 0;
  for (uint64_t seed = seeds.first; seed < seeds.end(); ++seed) {
    Injector injector(seed);
    for (const Case& one : cases_) {
      Case injected = one;
      injector.Inject(&injected.variables.content);
      const Result<JinjaText> text = Render(injected);
      if (!text.ok()) continue;
      ++n_rendered;
      n_with_sentinel += JoinPieces(*text).find(kSentinel) != std::string::npos ? 1 : 0;
      ASSERT_TRUE(IsFormClean(*text))
          << one.name << ", seed " << seed << ": " << injected.variables.content.dump();
    }
  }
  EXPECT_GT(n_rendered, seeds.n * cases_.size() / 2);
  EXPECT_GT(n_with_sentinel, n_rendered / 3);
}

}  // namespace
}  // namespace kvrun
