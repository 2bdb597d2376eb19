// Templates made at random, against Jinja2 itself where it is installed.
#include <gtest/gtest.h>

#include <chrono>
#include <sstream>
#include <string>
#include <vector>

#include "runtime/jinja/jinja_template.h"
#include "tests/support/jinja_maker.h"
#include "tests/support/program_runner.h"
#include "tests/support/seeds.h"

namespace kvrun {
namespace {

using nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr size_t kTemplatesAtOnce = 1000;

Result<JinjaText> RenderMade(const std::string& source, const ordered_json& content) {
  KVRUN_ASSIGN_OR_RETURN(const JinjaTemplate made, JinjaTemplate::Parse(source));
  return made.Render({content, {}, 0});
}

std::string Oracle() { return KVRUN_SOURCE_DIR "/tests/support/jinja_oracle.py"; }

// What Jinja2 makes of each, a line of JSON.
std::vector<ordered_json> AskOracle(const std::vector<std::string>& sources, const ordered_json& content) {
  ProgramInput input;
  for (const std::string& source : sources) {
    input.stdin_text += ordered_json{{"source", source}, {"variables", content}}.dump() + "\n";
  }
  const ProgramResult result = RunProgram("/usr/bin/env", {"python3", Oracle()}, input);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  std::vector<ordered_json> answers;
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) answers.push_back(ordered_json::parse(line));
  EXPECT_EQ(answers.size(), sources.size());
  return answers;
}

// Addresses and names of Python's own objects are not imitated, and neither are numbers above 64 bits.
bool IsComparable(const ordered_json& answer, const Result<JinjaText>& own) {
  const std::string text = answer.value("text", answer.value("error", ""));
  for (const char* part :
       {"0x7", "0X7", "<built-in", "<class", "TimeoutError", "SyntaxWarning", "<Macro", "MemoryError"}) {
    if (text.find(part) != text.npos) return false;
  }
  if (own.ok()) return true;
  const std::string& message = own.status().message();
  return message.find("64 bits") == message.npos && own.status().code() != StatusCode::kUnsupported;
}

void Compare(const std::string& source, const ordered_json& answer, const Result<JinjaText>& own,
             size_t* n_same) {
  if (!IsComparable(answer, own)) return;
  const bool has_text = answer.contains("text");
  ++*n_same;
  if (has_text != own.ok()) {
    ADD_FAILURE() << source << "\n--- Jinja2: " << answer.dump()
                  << "\n--- here: " << (own.ok() ? JoinPieces(*own) : own.status().message());
  } else if (has_text && answer["text"] != JoinPieces(*own)) {
    ADD_FAILURE() << source << "\n--- Jinja2: " << answer["text"].get<std::string>()
                  << "\n--- here: " << JoinPieces(*own);
  }
}

class JinjaFuzz : public ::testing::Test {
 protected:
  void SetUp() override { content_ = ordered_json::parse(testing::JinjaMakerVariables()); }

  const testing::Seeds seeds_ = testing::SeedsHere(1);
  ordered_json content_;
};

TEST_F(JinjaFuzz, RandomTemplatesGiveWhatJinja2Gives) {
  if (RunProgram("/usr/bin/env", {"python3", "-c", "import jinja2"}).exit_code != 0) {
    GTEST_SKIP() << "no python3 with jinja2";
  }
  size_t n_compared = 0;
  for (uint64_t seed = seeds_.first; seed < seeds_.end(); ++seed) {
    testing::JinjaMaker maker(seed);
    std::vector<std::string> sources;
    for (size_t i = 0; i < kTemplatesAtOnce; ++i) sources.push_back(maker.Template());
    const std::vector<ordered_json> answers = AskOracle(sources, content_);
    ASSERT_EQ(answers.size(), sources.size());
    for (size_t i = 0; i < sources.size(); ++i) {
      Compare(sources[i], answers[i], RenderMade(sources[i], content_), &n_compared);
    }
  }
  EXPECT_GT(n_compared, kTemplatesAtOnce / 2);
}

// Anything between brackets, cut and put together: nothing may crash or hang.
TEST_F(JinjaFuzz, DamagedTemplatesEndSoon) {
  std::mt19937_64 random(seeds_.first);
  testing::JinjaMaker maker(seeds_.first);
  const auto end = Clock::now() + std::chrono::seconds(5);
  for (int i = 0; i < 20000 && Clock::now() < end; ++i) {
    std::string source = maker.Template();
    for (int n = 0; n < 3; ++n) {
      const size_t at = static_cast<size_t>(random() % source.size());
      const std::string piece = source.substr(static_cast<size_t>(random() % source.size()), random() % 20);
      if (random() % 2 == 0) source.erase(at, random() % 8);
      source.insert(std::min(at, source.size()), piece);
    }
    const auto begin = Clock::now();
    (void)RenderMade(source, content_);
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(10)) << source;
  }
}

}  // namespace
}  // namespace kvrun
