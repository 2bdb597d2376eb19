// --session of kvrun run and chat, documents that are kept without it, and kvrun sessions, over the toy
// library.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/support/cli_fixture.h"

namespace kvrun {
namespace {

using testing::Cli;
using testing::Contains;
using testing::Json;

namespace cli_sessions {

class CliSessions : public ::testing::Test {
 protected:
  std::string SessionPath() const { return folder_.Path("one.session"); }
  ProgramResult Run(const std::string& prompt, std::vector<std::string> more = {}) const {
    std::vector<std::string> arguments = {"run", "-m", "toy.gguf", "-p", prompt, "--session", SessionPath()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Cli(arguments);
  }
  ProgramResult Chat(const std::string& typed, std::vector<std::string> more = {}) const {
    std::vector<std::string> arguments = {"chat",   "-m", "transcript.gguf", "--session", SessionPath(),
                                          "--temp", "0"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Cli(arguments, {.environment = {}, .stdin_text = typed, .stdout_path = ""});
  }

  TemporaryFolder folder_;
};

TEST_F(CliSessions, RunReadsWhatIsNewAlone) {
  const Json first = Json::parse(Run("a long text", {"--json"}).out);
  EXPECT_EQ(first["cached_tokens"], 0);
  const Json again = Json::parse(Run("a long text, and more", {"--json"}).out);
  EXPECT_EQ(again["prompt_tokens"], first["prompt_tokens"].get<int>() + 10);
  EXPECT_EQ(again["cached_tokens"], first["prompt_tokens"]);
  EXPECT_EQ(again["prefill_tokens"], 10);
  // An edited middle costs what follows the edit; the same text its last token.
  EXPECT_EQ(Json::parse(Run("a long test, and more", {"--json"}).out)["prefill_tokens"], 12);
  EXPECT_EQ(Json::parse(Run("a long test, and more", {"--json"}).out)["prefill_tokens"], 1);
  EXPECT_PRED2(Contains, Run("a long test, and more!").err, "after 22 that were there");
}

TEST_F(CliSessions, RunSaysWhatDoesNotGoWithIt) {
  const ProgramResult batch = Cli({"run", "-m", "toy.gguf", "--session", "x", "--batch", "lines"});
  EXPECT_EQ(batch.exit_code, 2);
  EXPECT_PRED2(Contains, batch.err, "--session keeps one text");
  EXPECT_EQ(Cli({"run", "-m", "toy.gguf", "-p", "x", "--session", ""}).exit_code, 2);
}

TEST_F(CliSessions, OneThatIsOnlyReadStaysAsItIs) {
  const Json first = Json::parse(Run("a long text", {"--json"}).out);
  const std::string before = ReadWholeFile(SessionPath());
  const Json read = Json::parse(Run("a long text, and more", {"--json", "--session-read-only"}).out);
  EXPECT_EQ(read["cached_tokens"], first["prompt_tokens"]);
  Chat("one\n", {"--session-read-only"});
  EXPECT_EQ(ReadWholeFile(SessionPath()), before);
  // What was asked for was done: nothing is said to be wrong.
  EXPECT_FALSE(Contains(Run("a long text", {"--session-read-only"}).err, "not kept"));
  const ProgramResult unnamed = Cli({"run", "-m", "toy.gguf", "-p", "x", "--session-read-only"});
  EXPECT_EQ(unnamed.exit_code, 2);
  EXPECT_PRED2(Contains, unnamed.err, "name it with --session");
  EXPECT_EQ(Cli({"chat", "-m", "toy.gguf", "--session-read-only"}).exit_code, 2);
  // In the environment it is for the commands that have one.
  EXPECT_EQ(Cli({"run", "-m", "toy.gguf", "-p", "x"}, {{"KVRUN_SESSION_READ_ONLY=1"}, "", ""}).exit_code, 0);
}

TEST_F(CliSessions, ChatGoesOnWhereItWas) {
  const ProgramResult once =
      Cli({"chat", "-m", "transcript.gguf", "--temp", "0"}, {{}, "one\ntwo\nthree\n", ""});
  const ProgramResult first = Chat("one\ntwo\n");
  EXPECT_FALSE(Contains(first.err, "goes on"));
  const ProgramResult second = Chat("three\n");
  EXPECT_PRED2(Contains, second.err, "the conversation goes on after 2 messages");
  // As if it had not ended, the answer has the whole context in it.
  EXPECT_EQ(second.out, once.out.substr(once.out.size() - second.out.size()));
  EXPECT_EQ(first.out + second.out, once.out);
}

TEST_F(CliSessions, ChatDoesNotReadADocumentTwice) {
  const std::string document = folder_.Write("report.txt", "The report.");
  Chat("what is it?\n", {"-f", document});
  const ProgramResult again = Chat("and then?\n", {"-f", document});
  // The answer is the whole context, and so was the answer before, which is a part of it.
  size_t n_times = 0;
  for (size_t at = again.out.find("The report."); at != again.out.npos;
       at = again.out.find("The report.", at + 1)) {
    ++n_times;
  }
  EXPECT_EQ(n_times, 2U) << again.out;
  // Another one is a part of the next message.
  const std::string other = folder_.Write("other.txt", "Something else.");
  EXPECT_PRED2(Contains, Chat("and this?\n", {"-f", other}).out, "Something else.");
}

TEST_F(CliSessions, ResetForgetsWhatIsKept) {
  Chat("one\n/reset\n");
  EXPECT_FALSE(Contains(Chat("two\n").err, "goes on"));
}

// What run has read is not read again, and not cut off.
TEST_F(CliSessions, ChatGoesOnAfterATextOfRun) {
  const auto tokens = [this] { return Json::parse(ReadWholeFile(SessionPath()))["tokens"]; };
  const auto begins_with = [](const Json& longer, const Json& text) {
    return longer.size() > text.size() && std::equal(text.begin(), text.end(), longer.begin());
  };
  Run("a long text", {"-n", "3"});
  const Json text = tokens();
  const ProgramResult first = Chat("one\n", {"--system", "Be brief."});
  EXPECT_PRED2(Contains, first.err, "begins after the session's text");
  EXPECT_PRED2(Contains, first.err, "without the message of --system");
  EXPECT_PRED2(Contains, first.out, "a long text");
  EXPECT_PRED2(begins_with, tokens(), text);
  const Json after_one = tokens();
  const ProgramResult second = Chat("two\n");
  EXPECT_PRED2(Contains, second.err, "goes on after 1 message");
  EXPECT_PRED2(Contains, second.out, "one");
  EXPECT_PRED2(begins_with, tokens(), after_one);
  const ProgramResult third = Chat("/reset\nthree\n");
  EXPECT_FALSE(Contains(third.out, "one")) << third.out;
  EXPECT_PRED2(Contains, third.out, "a long text");
  EXPECT_PRED2(begins_with, tokens(), text);
}

class CliSessionsOfDocuments : public ::testing::Test {
 protected:
  // The answer's JSON, or null where it has none.
  Json Run(std::vector<std::string> more, const std::vector<std::string>& environment) {
    return Json::parse(Say("run", "toy.gguf", std::move(more), environment).out, nullptr, false);
  }
  ProgramResult Say(const std::string& command, const std::string& model, std::vector<std::string> more,
                    const std::vector<std::string>& environment) {
    std::vector<std::string> arguments = {
        command, "-m", model, "-f", folder_.Write("text", std::string(2000, 'x')), "-n", "3", "--temp", "0"};
    if (command == "run") arguments.emplace_back("--json");
    arguments.insert(arguments.end(), more.begin(), more.end());
    ProgramInput input{{"KVRUN_NO_KEEP=", "XDG_STATE_HOME=" + folder_.Path("")}, "why?\n", ""};
    input.environment.insert(input.environment.begin(), environment.begin(), environment.end());
    return Cli(arguments, input);
  }

  TemporaryFolder folder_;
};

TEST_F(CliSessionsOfDocuments, AreKeptWhereThatIsFast) {
  const std::vector<std::string> with_aes = {"FAKE_AES=1"};
  Run({"-p", "a"}, {});
  EXPECT_EQ(Run({"-p", "b"}, {})["cached_tokens"], 0) << "without AES";
  EXPECT_EQ(Run({"-p", "a"}, with_aes)["cached_tokens"], 0);
  EXPECT_GE(Run({"-p", "b"}, with_aes)["cached_tokens"], 2000);
  EXPECT_EQ(Run({"-p", "b", "--kv-type", "f32"}, with_aes)["cached_tokens"], 0) << "it is another one";
  EXPECT_GE(Run({"-p", "b", "--kv-io", "threads"}, with_aes)["cached_tokens"], 2000) << "it is the same";
  for (const std::vector<std::string>& none :
       {std::vector<std::string>{"--no-keep"}, {"--keep", "0"}, {"--kv-encrypt"}, {"--kv-dir", "/flash"}}) {
    std::vector<std::string> more = {"-p", "b"};
    more.insert(more.end(), none.begin(), none.end());
    EXPECT_EQ(Run(more, with_aes)["cached_tokens"], 0) << none.front();
  }
  EXPECT_EQ(Run({"-p", "b"}, {"FAKE_AES=1", "KVRUN_NO_KEEP=1"})["cached_tokens"], 0);
  EXPECT_GE(Run({"-p", "b", "--keep", "1G"}, {"KVRUN_NO_KEEP=1"})["cached_tokens"], 2000)
      << "what is asked for needs no AES, and the command line counts";
}

TEST_F(CliSessionsOfDocuments, WhatFailsWithOneIsDoneWithout) {
  for (const char* command : {"run", "chat"}) {
    SCOPED_TRACE(command);
    const ProgramResult plain = Say(command, "toy.gguf", {"--no-keep"}, {});
    const ProgramResult kept = Say(command, "keptfail.gguf", {}, {"FAKE_AES=1"});
    EXPECT_EQ(kept.exit_code, 0) << kept.err;
    if (command == std::string("chat")) {
      EXPECT_EQ(kept.out, plain.out);
    } else {
      EXPECT_EQ(Json::parse(kept.out)["tokens"], Json::parse(plain.out)["tokens"]);
    }
    EXPECT_FALSE(Contains(kept.err, "not kept")) << kept.err;
    EXPECT_PRED2(Contains, Say(command, "keptfail.gguf", {"--keep", "1G"}, {}).err,
                 "note: the document is not kept: the disk is full");
  }
}

TEST_F(CliSessions, BenchDecodesAtItsEndAndLeavesItAsItIs) {
  Run("a long text", {"-n", "3"});
  const std::string before = ReadWholeFile(SessionPath());
  const auto bench = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments = {"bench", "-m", "toy.gguf", "-n", "4"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Cli(arguments);
  };
  const ProgramResult once = bench({"--session", SessionPath(), "-r", "2", "--json"});
  EXPECT_EQ(once.exit_code, 0) << once.err;
  const Json result = Json::parse(once.out).at(0);
  EXPECT_EQ(result["depth"], Json::parse(before)["tokens"].size());
  EXPECT_EQ(result["decode_tps_runs"].size(), 2U);
  EXPECT_EQ(ReadWholeFile(SessionPath()), before);
  EXPECT_PRED2(Contains, bench({"--session", SessionPath()}).out, "decode token/s");
  EXPECT_EQ(bench({"--session", SessionPath(), "-d", "5"}).exit_code, 2);
  EXPECT_EQ(bench({"--session", SessionPath(), "-n", "0"}).exit_code, 2);
  EXPECT_PRED2(Contains, bench({"--session", "nope"}).err, "there is no session nope");
  EXPECT_PRED2(Contains, bench({"--session", "broken"}).err,
               "the session broken cannot be measured: its end is missing");
  EXPECT_PRED2(Contains, bench({"--session", "locked"}).err,
               "the session locked is encrypted: give its key (--session-key)");
}

TEST_F(CliSessions, EvalComparesItsOwnText) {
  Run("a long text", {"-n", "3"});
  const std::string before = ReadWholeFile(SessionPath());
  const auto eval = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments = {"eval", "-m", "toy.gguf", "--session"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Cli(arguments);
  };
  const ProgramResult once = eval({SessionPath(), "--tokens", "4", "--json"});
  EXPECT_EQ(once.exit_code, 0) << once.err;
  EXPECT_EQ(Json::parse(once.out)["kl_mean"], 0.04);
  EXPECT_EQ(ReadWholeFile(SessionPath()), before);
  const size_t n_half = Json::parse(before)["tokens"].size() / 2;
  EXPECT_EQ(Json::parse(eval({SessionPath(), "--json"}).out)["kl_mean"], 0.01 * static_cast<double>(n_half));
  EXPECT_PRED2(Contains, eval({SessionPath()}).out, "session " + SessionPath());
  EXPECT_EQ(eval({SessionPath(), "-f", "book.txt"}).exit_code, 2);
  EXPECT_EQ(eval({SessionPath(), "--ctx", "100"}).exit_code, 2);
  EXPECT_PRED2(Contains, eval({"nope"}).err, "there is no session nope");
}

TEST(CliSessionsCommand, ToKeepAndNotToIsRefused) {
  EXPECT_EQ(Cli({"run", "-m", "toy", "-f", "x", "--keep", "1G", "--no-keep"}).exit_code, 2);
  const ProgramResult wrong = Cli({"chat", "-m", "toy", "--keep", "much"});
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_PRED2(Contains, wrong.err, "--keep: \"much\" is no number of bytes such as 500M or 20G");
}

TEST(CliSessionsCommand, ListsAndShows) {
  const ProgramResult list = Cli({"sessions"});
  EXPECT_EQ(list.exit_code, 0) << list.err;
  EXPECT_PRED2(Contains, list.out, "new\n  7639 tokens, 3.0 GiB, kvswap, last used 2001-09-0");
  EXPECT_PRED2(Contains, list.out, ", 5.0 GiB were written for it\n");
  EXPECT_PRED2(Contains, list.out,
               "written to flash by kvrun today: 1.0 GiB; on the last 1 day it was used: 7.0 GiB\n");
  EXPECT_PRED2(Contains, list.out, "Toy: Once upon a time");
  EXPECT_PRED2(Contains, list.out, "cannot be opened: its end is missing");
  EXPECT_EQ(Json::parse(Cli({"sessions", "--json"}).out).size(), 3U);
  EXPECT_PRED2(Contains, Cli({"sessions"}, {{"FAKE_NO_SESSIONS=1"}, "", ""}).err, "no sessions are kept");
  const std::string shown = Cli({"sessions", "--show", "old"}).out;
  EXPECT_PRED2(Contains, shown, "budget");
  EXPECT_PRED2(Contains, shown, "2001-09-09");
  EXPECT_FALSE(Contains(shown, "by kvrun today"));
  EXPECT_EQ(Cli({"sessions", "--show", "nope"}).exit_code, 1);
}

TEST(CliSessionsCommand, OfWhatIsEncryptedSaysNoMoreThanItsKeyAllows) {
  const ProgramResult locked = Cli({"sessions", "--show", "locked"});
  EXPECT_EQ(locked.exit_code, 0);
  EXPECT_PRED2(Contains, locked.out, "locked\n  encrypted, 3.0 GiB, last used 2001-09-0");
  EXPECT_FALSE(Contains(locked.out, "Once upon a time"));
  EXPECT_PRED2(Contains, locked.err, "the session locked is encrypted: --session-key shows what is in it");
  const ProgramResult shown = Cli({"sessions", "--show", "locked", "--session-key", "right.key"});
  EXPECT_PRED2(Contains, shown.out, "locked\n  7639 tokens, 3.0 GiB, kvswap");
  EXPECT_PRED2(Contains, shown.out, "Once upon a time");
  EXPECT_EQ(shown.err, "");
  EXPECT_PRED2(Contains, Cli({"sessions", "--show", "locked", "--session-key", "wrong.key"}).out,
               "cannot be opened: is encrypted under another key");
}

TEST(CliSessionsCommand, WipesKeys) {
  const ProgramResult own = Cli({"sessions", "--wipe"});
  EXPECT_EQ(own.exit_code, 0);
  EXPECT_EQ(own.out, "");
  EXPECT_PRED2(Contains, own.err, "destroyed your key for sessions: no session that was encrypted with it");
  EXPECT_PRED2(Contains, Cli({"sessions", "--wipe", "--session-key", "auto"}).err, "destroyed your key");
  EXPECT_PRED2(Contains, Cli({"sessions", "--wipe", "--session-key", "my.key"}).err,
               "destroyed the key my.key: no session");
  EXPECT_EQ(Cli({"sessions", "--wipe", "-q"}).err, "");
  const ProgramResult link = Cli({"sessions", "--wipe", "--session-key", "link.key"});
  EXPECT_EQ(link.exit_code, 1);
  EXPECT_PRED2(Contains, link.err, "it is a symbolic link");
}

TEST(CliSessionsCommand, RemovesCopiesAndPrunes) {
  EXPECT_PRED2(Contains, Cli({"sessions", "--remove", "old"}).err, "removed the session old");
  EXPECT_EQ(Cli({"sessions", "--remove", "nope"}).exit_code, 1);
  EXPECT_EQ(Cli({"sessions", "--copy", "new", "--to", "newer"}).exit_code, 0);
  EXPECT_EQ(Cli({"sessions", "--copy", "new", "--to", "old"}).exit_code, 1);
  EXPECT_EQ(Cli({"sessions", "--copy", "new"}).exit_code, 2);
  // Three of 3 GiB, the last used first; the last one is in use.
  const ProgramResult pruned = Cli({"sessions", "--prune", "5G"});
  EXPECT_EQ(pruned.exit_code, 0) << pruned.err;
  EXPECT_FALSE(Contains(pruned.err, "session new"));
  EXPECT_PRED2(Contains, pruned.err, "removed the session old");
  EXPECT_PRED2(Contains, pruned.err, "broken stays: process 7 has it");
  for (const char* wrong : {"5X", "", "-1", "G", "1e400"}) {
    EXPECT_EQ(Cli({"sessions", "--prune", wrong}).exit_code, 2) << wrong;
  }
}

}  // namespace cli_sessions
}  // namespace
}  // namespace kvrun
