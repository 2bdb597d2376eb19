// Documents that kvrun run and chat keep by themselves: of one that was read before, the question alone is
// read, and of one that was changed what follows the change. What prevents it costs reading, and no answer.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <regex>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "platform/io/seal.h"
#include "tests/support/long_run_fixture.h"

namespace kvrun::testing {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

class KeptDocuments : public LongRunFixture {
 protected:
  void SetUp() override {
    LongRunFixture::SetUp();
    if (!CheckEncryption().ok()) GTEST_SKIP() << "a build that cannot encrypt keeps none";
    if (!HasAesInstructions()) GTEST_SKIP() << "without AES none is kept without being asked for";
    for (int i = 0; i < 1400; ++i) document_ += i % 7 == 0 || i % 11 == 0 ? 'b' : 'a';
  }

  // As a user's own, who has said nothing of documents.
  ProgramInput Input(const Words& more = {}) const {
    Words environment = more;
    for (const std::string& variable :
         {std::string("KVRUN_NO_KEEP="), "XDG_STATE_HOME=" + folder_.Path("state"),
          "XDG_CONFIG_HOME=" + folder_.Path("config"), "XDG_CACHE_HOME=" + folder_.Path("cache")}) {
      const auto same = [&](const std::string& other) {
        return other.starts_with(variable.substr(0, variable.find('=') + 1));
      };
      if (std::none_of(more.begin(), more.end(), same)) environment.push_back(variable);
    }
    return WithDrivers(environment);
  }
  Words Arguments(const std::string& command, const std::string& document, const Words& more) const {
    Words arguments = {command,  "-m", model_,   "-f",   WriteDocument(document),
                       "-n",     "5",  "--ctx",  "2000", "--ignore-end",
                       "--seed", "1",  "--temp", "0",    "--kv-tmpfs"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  std::string WriteDocument(const std::string& text) const { return folder_.Write("document.txt", text); }

  struct Said {
    std::string text;
    uint64_t n_read = 0;
    uint64_t n_cached = 0;
    std::string messages;
  };
  Said Ask(const std::string& document, const std::string& question, Words more = {},
           const ProgramInput& input = {}) const {
    more.insert(more.end(), {"-p", question, "--json"});
    const ProgramResult result = RunProgram(RealProgram(), Arguments("run", document, more),
                                            input.environment.empty() ? Input() : input);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    Said said{.text = result.out, .messages = result.err};
    const auto json = nlohmann::json::parse(result.out, nullptr, false);
    if (json.is_discarded()) return said;
    said.text = json["text"];
    said.n_read = json["prefill_tokens"];
    said.n_cached = json["cached_tokens"];
    return said;
  }
  // What was read before the first message, and with the messages: of all together.
  Said Talk(const std::string& document, const std::string& typed, const Words& more = {}) const {
    ProgramInput input = Input();
    input.stdin_text = typed;
    const ProgramResult result = RunProgram(RealProgram(), Arguments("chat", document, more), input);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    Said said{.text = result.out, .messages = result.err};
    std::smatch found;
    static const std::regex kRead("prompt ([0-9]+) tokens? at [^,]*");
    static const std::regex kCached("after ([0-9]+) that");
    if (std::regex_search(result.err, found, kRead)) said.n_read = std::stoull(found[1]);
    if (std::regex_search(result.err, found, kCached)) said.n_cached = std::stoull(found[1]);
    return said;
  }
  Words Files() const {
    Words names;
    const fs::path folder = folder_.Path("state") + "/kvrun/sessions";
    if (!fs::exists(folder)) return names;
    for (const auto& entry : fs::directory_iterator(folder)) {
      if (entry.path().extension() == ".session") names.push_back(entry.path().filename());
    }
    return names;
  }
  static bool Notes(const Said& said) {
    return said.messages.find("is kept for the next question") != said.messages.npos;
  }
  static bool SaysNotKept(const Said& said) {
    return said.messages.find("note: the document is not kept: ") != said.messages.npos;
  }
  // Nothing was read of what lies there, nothing is said of it, and the answer is as ever.
  void ExpectReadAsEver(const Said& said) const {
    EXPECT_GE(said.n_read, document_.size());
    EXPECT_EQ(said.text, Ask(document_, "ba", {"--no-keep"}).text);
    EXPECT_FALSE(SaysNotKept(said) || Notes(said)) << said.messages;
  }

  std::string document_;
};

// With the key that they were made with alone.
TEST_F(KeptDocuments, AreListedByTheirFirstWords) {
  Ask(document_, "ba");
  const std::string words = document_.substr(0, 16);
  const auto listed = [this](const Words& arguments, const Words& environment) {
    return RunProgram(RealProgram(), arguments, Input(environment)).out;
  };
  EXPECT_NE(listed({"sessions"}, {}).find(words), std::string::npos) << listed({"sessions"}, {});
  const Words elsewhere = {"XDG_CONFIG_HOME=" + folder_.Path("elsewhere")};
  EXPECT_EQ(listed({"sessions"}, elsewhere).find(words), std::string::npos);
  EXPECT_NE(listed({"sessions"}, elsewhere).find("encrypted, "), std::string::npos);
  EXPECT_FALSE(fs::exists(folder_.Path("elsewhere"))) << "to look makes no key";
  const auto json = nlohmann::json::parse(listed({"sessions", "--json"}, elsewhere), nullptr, false);
  ASSERT_EQ(json.size(), 1U);
  EXPECT_TRUE(json[0]["encrypted"].get<bool>());
  EXPECT_GT(json[0]["bytes"].get<uint64_t>(), 0U);
  for (const char* unknown : {"tokens", "words", "model", "context", "written", "options"})
    EXPECT_TRUE(json[0][unknown].is_null()) << unknown;
}

TEST_F(KeptDocuments, ASecondQuestionReadsNothingOfTheDocument) {
  for (const char* budget : {"", "--kv-budget=1/2"}) {
    SCOPED_TRACE(budget);
    const Words options = *budget == '\0' ? Words() : Words{budget};
    const Said first = Ask(document_, "ba", options);
    EXPECT_GE(first.n_read, document_.size());
    EXPECT_EQ(Notes(first), *budget == '\0') << "the first time of all: " << first.messages;
    const Said second = Ask(document_, "abb", options);
    EXPECT_GE(second.n_cached, document_.size());
    EXPECT_LE(second.n_read, 6U);
    EXPECT_FALSE(Notes(second));
    std::string changed = document_;
    changed[900] = changed[900] == 'a' ? 'b' : 'a';
    const Said of_changed = Ask(changed, "abb", options);
    EXPECT_GE(of_changed.n_cached, 895U);
    EXPECT_LE(of_changed.n_cached, 905U);
    Words anew = options;
    anew.emplace_back("--no-keep");
    EXPECT_EQ(Ask(changed, "abb", anew).text, of_changed.text);
  }
  EXPECT_EQ(Files().size(), 2U) << "one for each way to keep KV";
}

TEST_F(KeptDocuments, ASecondChatReadsNothingOfTheDocumentAndKnowsNothingOfTheFirst) {
  const Said first = Talk(document_, "ba\nabab\n");
  EXPECT_GE(first.n_read, document_.size());
  EXPECT_TRUE(Notes(first)) << first.messages;
  const Said second = Talk(document_, "bb\n");
  EXPECT_GE(second.n_cached, document_.size());
  EXPECT_LE(second.n_read, 60U) << "the message and its form";
  EXPECT_EQ(second.messages.find("goes on"), second.messages.npos) << second.messages;
  EXPECT_EQ(second.text, Talk(document_, "bb\n", {"--no-keep"}).text);
  EXPECT_EQ(Talk(document_, "bb\n/reset\nbb\n").text, second.text + second.text);
  EXPECT_EQ(Files().size(), 1U);
}

TEST_F(KeptDocuments, EverythingIsSaidOfOneToo) {
  EXPECT_NE(Ask(document_, "ba", {"-v"}).text, "");
  EXPECT_GE(Ask(document_, "ab", {"-v"}).n_cached, document_.size());
}

TEST_F(KeptDocuments, AChatThatSaysNothingKeepsWhatItHasRead) {
  Talk(document_, "");
  EXPECT_LE(Talk(document_, "").n_read, 1U);
}

TEST_F(KeptDocuments, RunAndChatFindTheSameOne) {
  Ask(document_, "ba", {"--chat"});
  const Said chat = Talk(document_, "ab\n");
  EXPECT_GE(chat.n_cached, document_.size());
  EXPECT_LE(chat.n_read, 60U);
  const Said run = Ask(document_, "ba", {"--chat"});
  EXPECT_GE(run.n_cached, document_.size());
  EXPECT_EQ(Files().size(), 1U);
}

TEST_F(KeptDocuments, ALongerContextThanItHadIsFound) {
  Ask(document_, "ba", {"--ctx", "1500"});
  const Said longer = Ask(document_, "bab", {"--ctx", "4000"});
  EXPECT_FALSE(SaysNotKept(longer)) << longer.messages;
  EXPECT_GE(Ask(document_, "abb", {"--ctx", "4000"}).n_cached, document_.size())
      << "it was made anew, if need be";
}

TEST_F(KeptDocuments, NothingIsKeptThatNeedNotBe) {
  for (const Words& none :
       {Words{"--no-keep"}, Words{"--keep", "0"}, Words{"--kv-encrypt"},
        Words{"--kv-dir", folder_.Path("kv")}, Words{"--kv-method", "h2o", "--kv-budget", "1/2"}}) {
    const Said said = Ask(document_, "ba", none);
    EXPECT_FALSE(SaysNotKept(said) || Notes(said)) << said.messages;
    EXPECT_TRUE(Files().empty()) << none.front();
    EXPECT_FALSE(fs::exists(folder_.Path("config"))) << "no key is made for it, with " << none.front();
  }
  Talk(document_, "ba\n", {"--no-keep"});
  Ask(document_, "ba", {}, Input({"KVRUN_NO_KEEP=1"}));
  Ask(document_, "ba", {}, Input({"KVRUN_KEEP=0"}));
  Ask(document_.substr(0, 600), "ba");
  EXPECT_TRUE(Files().empty());
  Ask(document_, "ba", {"--session", "mine"});
  EXPECT_EQ(Files(), Words{"mine.session"});
  Ask(document_, "ba", {"--keep", "1G", "--kv-dir", folder_.Path("kv")});
  EXPECT_EQ(Files().size(), 2U) << "that was asked for";
}

TEST_F(KeptDocuments, SaysOnceWhatIsKept) {
  EXPECT_FALSE(Notes(Ask(document_, "ba", {"-q"})));
  fs::remove_all(folder_.Path("state"));
  const Said first = Ask(document_, "ba");
  EXPECT_TRUE(Notes(first));
  EXPECT_NE(first.messages.find(folder_.Path("state")), std::string::npos) << first.messages;
  EXPECT_NE(first.messages.find("--no-keep"), std::string::npos) << first.messages;
  std::string other = document_;
  std::reverse(other.begin(), other.end());
  EXPECT_FALSE(Notes(Ask(other, "ba")));
  EXPECT_EQ(Files().size(), 2U);
}

TEST_F(KeptDocuments, TheLeastRecentlyUsedGo) {
  std::string other = document_;
  std::reverse(other.begin(), other.end());
  Ask(document_, "ba");
  Ask(other, "ba");
  EXPECT_EQ(Files().size(), 2U);
  const auto bytes = fs::file_size(folder_.Path("state") + "/kvrun/sessions/" + Files()[0]);
  Ask(other, "bab", {"--keep", std::to_string(bytes * 3 / 2)});
  EXPECT_EQ(Files().size(), 1U) << "that of the text that was asked about stays";
  EXPECT_GE(Ask(other, "bb").n_cached, other.size());
  EXPECT_TRUE(SaysNotKept(Ask(other, "bab", {"--keep", "1K"})));
  EXPECT_EQ(Files(), Words()) << "it takes more than all may";
}

// The limit refuses what is kept, and not the answer.
TEST_F(KeptDocuments, ALimitOfWhatIsWrittenCostsKeepingAlone) {
  EXPECT_EQ(Ask(document_, "ba", {"--kv-write-limit", "1K/day"}).n_cached, 0U);
  EXPECT_EQ(Files(), Words());
}

TEST_F(KeptDocuments, WhereNoneCanBeKeptTheTextIsReadAsEver) {
  // Root can write into any folder, but not into a file as if it were one.
  const std::string file = folder_.Write("file", "");
  for (const char* folder : {"XDG_STATE_HOME=", "XDG_CONFIG_HOME="}) {
    SCOPED_TRACE(folder);
    const ProgramInput input = Input({folder + file});
    ExpectReadAsEver(Ask(document_, "ba", {}, input));
    EXPECT_TRUE(Files().empty());
    EXPECT_TRUE(SaysNotKept(Ask(document_, "ba", {"--keep", "1G"}, input))) << "it was asked for";
  }
  const ProgramInput homeless = Input({"XDG_STATE_HOME=", "HOME="});
  ExpectReadAsEver(Ask(document_, "ba", {}, homeless));
}

TEST_F(KeptDocuments, AKeyThatCannotBeReadCostsReadingAlone) {
  Ask(document_, "ba");
  const fs::path key = folder_.Path("config") + "/kvrun/session.key";
  fs::permissions(key, fs::perms::others_read, fs::perm_options::add);
  ExpectReadAsEver(Ask(document_, "ba"));
  fs::permissions(key, fs::perms::others_read, fs::perm_options::remove);
  EXPECT_GE(Ask(document_, "abb").n_cached, document_.size()) << "it was left as it is";
}

TEST_F(KeptDocuments, WhatAnotherProcessHasCostsReadingAlone) {
  Ask(document_, "ba", {"--chat"});
  RunningProgram other(RealProgram(), Arguments("chat", document_, {}), Input());
  other.Type("ab\n");
  ASSERT_TRUE(other.WaitForOutput("at its limit"));
  const Said said = Ask(document_, "ba", {"--chat"});
  EXPECT_GE(said.n_read, document_.size());
  EXPECT_FALSE(SaysNotKept(said)) << said.messages;
  EXPECT_EQ(other.Finish().exit_code, 0);
  EXPECT_GE(Ask(document_, "ba", {"--chat"}).n_cached, document_.size());
}

// What lies there under the name is under a key that is gone.
TEST_F(KeptDocuments, WhatCannotBeOpenedIsReplaced) {
  const Said first = Ask(document_, "ba");
  fs::remove_all(folder_.Path("config"));
  const Said under_another = Ask(document_, "ba");
  EXPECT_GE(under_another.n_read, document_.size());
  EXPECT_EQ(under_another.text, first.text);
  EXPECT_GE(Ask(document_, "abb").n_cached, document_.size());
  EXPECT_EQ(Files().size(), 1U);
}

TEST_F(KeptDocuments, WhatCannotBeWrittenCostsNoAnswerAndLeavesNothing) {
  ProgramInput input = Input();
  input.before_program = [] {
    const rlimit most = {96 * 1024, 96 * 1024};
    return signal(SIGXFSZ, SIG_IGN) != SIG_ERR && setrlimit(RLIMIT_FSIZE, &most) == 0;
  };
  ExpectReadAsEver(Ask(document_, "ba", {}, input));
  EXPECT_TRUE(Files().empty());
  EXPECT_TRUE(SaysNotKept(Ask(document_, "ba", {"--keep", "1G"}, input)));
}

}  // namespace
}  // namespace kvrun::testing
