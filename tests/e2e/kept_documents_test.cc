// Documents that kvrun run keeps by itself (--keep): of one that was read before, the question alone is read,
// and of one that was changed what follows the change.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "platform/io/seal.h"
#include "tests/support/long_run_fixture.h"

namespace kvrun::testing {
namespace {

class KeptDocuments : public LongRunFixture {
 protected:
  void SetUp() override {
    LongRunFixture::SetUp();
    if (!CheckEncryption().ok()) GTEST_SKIP() << "a build that cannot encrypt keeps none";
    for (int i = 0; i < 1400; ++i) document_ += i % 7 == 0 || i % 11 == 0 ? 'b' : 'a';
  }

  struct Said {
    std::string text;
    uint64_t n_read = 0;
    uint64_t n_cached = 0;
    std::string messages;
  };
  Said Ask(const std::string& document, const std::string& question,
           std::vector<std::string> more = {}) const {
    const std::string path = folder_.Path("document.txt");
    std::ofstream(path) << document;
    std::vector<std::string> arguments = {
        "run",       "-m", model_,   "-f",    path,       "-p",
        question,    "-n", "5",      "--ctx", "2000",     "--ignore-end",
        "--seed",    "1",  "--temp", "0",     "--kv-dir", folder_.Path("kv"),
        "--kv-tmpfs"};
    if (more.empty()) more = {"--keep", "1G"};
    more.emplace_back("--json");
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ProgramResult result = RunProgram(RealProgram(), arguments,
                                            WithDrivers({"XDG_STATE_HOME=" + folder_.Path("state"),
                                                         "XDG_CONFIG_HOME=" + folder_.Path("config")}));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    Said said{.text = result.out, .messages = result.err};
    const auto json = nlohmann::json::parse(result.out, nullptr, false);
    if (json.is_discarded()) return said;
    said.text = json["text"];
    said.n_read = json["prefill_tokens"];
    said.n_cached = json["cached_tokens"];
    return said;
  }
  std::vector<std::string> Files() const {
    std::vector<std::string> names;
    const std::filesystem::path folder = folder_.Path("state") + "/kvrun/sessions";
    if (!std::filesystem::exists(folder)) return names;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.path().extension() == ".session") names.push_back(entry.path().filename());
    }
    return names;
  }
  static bool Notes(const Said& said) {
    return said.messages.find("is kept for the next question") != said.messages.npos;
  }

  std::string document_;
};

TEST_F(KeptDocuments, ASecondQuestionReadsNothingOfTheDocument) {
  for (const char* budget : {"", "--kv-budget=1/2"}) {
    SCOPED_TRACE(budget);
    std::vector<std::string> keep = {"--keep", "1G"};
    if (*budget != '\0') keep.insert(keep.begin(), budget);
    const Said first = Ask(document_, "ba", keep);
    EXPECT_GE(first.n_read, document_.size());
    EXPECT_EQ(Notes(first), *budget == '\0') << "the first time of all";
    const Said second = Ask(document_, "abb", keep);
    EXPECT_GE(second.n_cached, document_.size());
    EXPECT_LE(second.n_read, 6U);
    EXPECT_FALSE(Notes(second));
    std::string changed = document_;
    changed[900] = changed[900] == 'a' ? 'b' : 'a';
    const Said of_changed = Ask(changed, "abb", keep);
    EXPECT_GE(of_changed.n_cached, 895U);
    EXPECT_LE(of_changed.n_cached, 905U);
    std::vector<std::string> anew = keep;
    anew.back() = "0";
    EXPECT_EQ(Ask(changed, "abb", anew).text, of_changed.text);
  }
  EXPECT_EQ(Files().size(), 2U) << "one for each way to keep KV";
}

TEST_F(KeptDocuments, NothingIsKeptThatNeedNotBe) {
  Ask(document_, "ba", {"--keep", "0"});
  Ask(document_.substr(0, 600), "ba");
  EXPECT_TRUE(Files().empty());
  Ask(document_, "ba", {"--keep", "1G", "--session", "mine"});
  EXPECT_EQ(Files(), std::vector<std::string>{"mine.session"});
}

TEST_F(KeptDocuments, TheLeastRecentlyUsedGo) {
  std::string other = document_;
  std::reverse(other.begin(), other.end());
  Ask(document_, "ba");
  Ask(other, "ba");
  EXPECT_EQ(Files().size(), 2U);
  Ask(other, "bab", {"--keep", "1K"});
  EXPECT_EQ(Files().size(), 1U) << "that of the text that was asked about stays";
  EXPECT_GE(Ask(other, "bb").n_cached, other.size());
}

// What lies there under the name is damaged, or under another key.
TEST_F(KeptDocuments, WhatCannotBeOpenedCostsReadingAlone) {
  const Said first = Ask(document_, "ba");
  std::filesystem::remove_all(folder_.Path("config"));
  const Said under_another = Ask(document_, "ba");
  EXPECT_GE(under_another.n_read, document_.size());
  EXPECT_EQ(under_another.text, first.text);
  EXPECT_NE(under_another.messages.find("note: the document is not kept: "), std::string::npos)
      << under_another.messages;
}

}  // namespace
}  // namespace kvrun::testing
