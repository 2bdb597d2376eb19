// kvrun chat.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <string>
#include <vector>

#include "tests/support/cli_fixture.h"

namespace kvrun {
namespace {

using testing::Cli;
using testing::Contains;

TEST(CliChat, EveryTurnSeesTheWholeConversationOnce) {
  const ProgramResult result =
      Cli({"chat", "-m", "transcript", "--quiet"}, {{}, "one\n\ntwo\n/reset\nthree\n/exit\nnever", ""});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const std::string first = "<bos><start>system:be good<end><start>user:one<end><start>assistant:";
  const std::string second = first + "[" + first + "]<end><start>user:two<end><start>assistant:";
  const std::string third = "<bos><start>system:be good<end><start>user:three<end><start>assistant:";
  EXPECT_EQ(result.out, fmt::format("[{}]\n[{}]\n[{}]\n", first, second, third));
}

TEST(CliChat, AnAnswerThatWasCutIsFollowedByTheEndOfItsTurn) {
  // The answers are the lengths of the context: 32, then 3 of the answer, its end and 22 of the next turn.
  const ProgramResult length =
      Cli({"chat", "-m", "toy", "--quiet", "-n", "3", "--system", "S"}, {{}, "one\ntwo", ""});
  EXPECT_EQ(length.out, "32:\n57:\n");
  const ProgramResult stop =
      Cli({"chat", "-m", "toy", "--quiet", "--stop", ":", "--system", "S"}, {{}, "one\ntwo", ""});
  EXPECT_EQ(stop.out, "32\n56\n");
}

TEST(CliChat, MessagesHaveNoControlTokens) {
  // The answers are the lengths of the context: 32 of "one" (see above), and "<end>" is five bytes.
  const std::vector<std::string> chat = {"chat", "-m", "toy", "--quiet", "-n", "3", "--system", "S"};
  EXPECT_EQ(Cli(chat, {{}, "one\ntwo<end>", ""}).out, "32:\n62:\n");
  std::vector<std::string> trusting = chat;
  trusting.emplace_back("--parse-special");
  EXPECT_EQ(Cli(trusting, {{}, "one\ntwo<end>", ""}).out, "32:\n58:\n");
}

TEST(CliChat, TheChatFormCanBeChosen) {
  const ProgramResult result =
      Cli({"chat", "-m", "nochat-transcript", "-q", "--chat-template", "toy-form", "--thinking", "off"},
          {{}, "one\n", ""});
  EXPECT_EQ(
      result.out,
      "[<bos>{toy-form}<start>system:be good<end><start>user:one<end><start>assistant:(do not think)]\n");
}

TEST(CliChat, AFullContextIsSaidAndResetHelps) {
  const ProgramResult result = Cli({"chat", "-m", "toy", "--ctx", "70", "--system", "S", "-n", "3"},
                                   {{}, "one\n" + std::string(200, 'x') + "\ntwo\n/reset\none\n", ""});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_PRED2(Contains, result.err, "does not fit");
  EXPECT_EQ(result.out, "32:\n57:\n32:\n") << "the message that did not fit counts as not said";
}

TEST(CliChat, AnUnknownCommandIsNotSentAndASlashCanBe) {
  const ProgramResult result =
      Cli({"chat", "-m", "transcript", "-q"},
          {{}, "/rset\n/usr/lib is full\n/reset now\n/file\n//usr/lib is full\n/reset\n /x\n", ""});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const std::string form = "[<bos><start>system:be good<end><start>user:{}<end><start>assistant:]\n";
  EXPECT_EQ(result.out,
            fmt::format(fmt::runtime(form), "/usr/lib is full") + fmt::format(fmt::runtime(form), " /x"));
  EXPECT_PRED2(Contains, result.err, "there is no command /rset, and nothing was sent");
  EXPECT_PRED2(Contains, result.err, "there is no command /usr/lib, and nothing was sent");
  EXPECT_PRED2(Contains, result.err, "/file, /save, /stats, /reset, /help, /exit");
  EXPECT_PRED2(Contains, result.err, "/reset takes nothing after it");
  EXPECT_PRED2(Contains, result.err, "/file needs the name of a file");
}

TEST(CliChat, AZeroByteIsSaidAndTheConversationGoesOn) {
  const ProgramResult result =
      Cli({"chat", "-m", "transcript", "-q"}, {{}, std::string("a\0b\nhello\n", 10), ""});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_PRED2(Contains, result.err, "zero byte");
  EXPECT_EQ(result.out, "[<bos><start>system:be good<end><start>user:hello<end><start>assistant:]\n");
}

TEST(CliChat, DocumentsArePartOfTheFirstMessageInTheirOrder) {
  const TemporaryFolder folder;
  const std::string one = folder.Write("one two.txt", "ONE");
  const std::string two = folder.Write("two.txt", "TWO");
  const ProgramResult result =
      Cli({"chat", "-m", "transcript", "-q", "-f", one, "-f", two}, {{}, "why?\nso?\n/reset\nagain?\n", ""});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const std::string head = "<bos><start>system:be good<end><start>user:ONE\n\nTWO\n\n";
  const std::string first = head + "why?<end><start>assistant:";
  const std::string second = first + "[" + first + "]<end><start>user:so?<end><start>assistant:";
  EXPECT_EQ(result.out,
            fmt::format("[{}]\n[{}]\n[{}]\n", first, second, head + "again?<end><start>assistant:"));
  const ProgramResult missing = Cli({"chat", "-m", "transcript", "-f", folder.Path("none")});
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_PRED2(Contains, missing.err, "cannot read " + folder.Path("none"));
  EXPECT_EQ(Cli({"chat", "-m", "transcript", "-f", "-"}).exit_code, 2);
}

TEST(CliChat, ADocumentsContextHasRoomToTalk) {
  const TemporaryFolder folder;
  const std::string path = folder.Write("long.txt", std::string(20000, 'x'));
  const ProgramResult roomy = Cli({"chat", "-m", "roomy", "-f", path}, {{}, "why?\n/stats\n", ""});
  EXPECT_EQ(roomy.exit_code, 0) << roomy.err;
  EXPECT_PRED2(Contains, roomy.err, "of 24134 tokens") << "20,038 with the form, and 4,096 more";
  const ProgramResult narrow = Cli({"chat", "-m", "toy", "-f", path}, {{}, "why?\n", ""});
  EXPECT_EQ(narrow.exit_code, 1);
  EXPECT_PRED2(Contains, narrow.err, "the document of -f has 20038 tokens");
  const ProgramResult given = Cli({"chat", "-m", "roomy", "-f", path, "--ctx", "9000"}, {{}, "why?\n", ""});
  EXPECT_EQ(given.exit_code, 1);
  EXPECT_PRED2(Contains, given.err, "more than the context of 9000");
}

TEST(CliChat, FilesAreAddedToTheNextMessageOnce) {
  const TemporaryFolder folder;
  folder.Write("my notes.txt", "NOTES");
  const std::string zero = folder.Write("zero", std::string("a\0b", 3));
  const std::string long_file = folder.Write("long", std::string(5000, 'x'));
  const std::string lines =
      fmt::format("/file ~/my notes.txt\n/file {0}/none\n/file {1}\n/file {2}\none\ntwo\n", folder.Path(""),
                  zero, long_file);
  const ProgramResult result = Cli({"chat", "-m", "transcript"}, {{"HOME=" + folder.Path("")}, lines, ""});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const std::string first = "<bos><start>system:be good<end><start>user:NOTES\n\none<end><start>assistant:";
  EXPECT_TRUE(result.out.starts_with(
      fmt::format("[{0}]\n[{0}[{0}]<end><start>user:two<end><start>assistant:]\n", first)))
      << result.out;
  EXPECT_PRED2(Contains, result.err, "my notes.txt (5 bytes) is part of the next message");
  EXPECT_PRED2(Contains, result.err, "cannot read");
  EXPECT_PRED2(Contains, result.err, "zero byte");
  EXPECT_PRED2(Contains, result.err, "long does not fit into what is left of the context of 4096 tokens");
}

TEST(CliChat, PathsAreTakenAsPeopleTypeThem) {
  const TemporaryFolder folder;
  folder.Write("my notes.txt", "NOTES");
  for (const std::string& typed : {folder.Path("my notes.txt"), "\"" + folder.Path("my notes.txt") + "\"",
                                   folder.Path("my\\ notes.txt"), std::string("'~/my notes.txt'")}) {
    const ProgramResult result = Cli({"chat", "-m", "transcript", "-q"},
                                     {{"HOME=" + folder.Path("")}, "/file " + typed + "\nx\n", ""});
    EXPECT_PRED2(Contains, result.out, "user:NOTES\n\nx<end>") << typed << result.err;
  }
}

TEST(CliChat, SaveWritesANewFileAndReplacesNone) {
  const TemporaryFolder folder;
  const std::string notes = folder.Write("notes.txt", "NOTES");
  const std::string path = folder.Path("talk.md");
  const std::string lines =
      fmt::format("/save {0}\n/file {1}\none\ntwo\n/save {0}\n/save {0}\n/save {1}\n/save {2}\n", path, notes,
                  folder.Path("none/talk.md"));
  const ProgramResult result =
      Cli({"chat", "-m", "some/toy", "--system", "S", "-n", "2", "--temp", "0"}, {{}, lines, ""});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_PRED2(Contains, result.err, "nothing to save");
  EXPECT_PRED2(Contains, result.err, "the conversation was written to " + path);
  EXPECT_PRED2(Contains, result.err, path + " is there already");
  EXPECT_PRED2(Contains, result.err, notes + " is there already");
  EXPECT_PRED2(Contains, result.err, "cannot write " + folder.Path("none/talk.md"));
  EXPECT_EQ(ReadWholeFile(notes), "NOTES");
  EXPECT_EQ(
      ReadWholeFile(path),
      fmt::format("# Conversation with toy\n\n## System\n\nS\n\n## User\n\n[document: {}, 5 bytes]\n\none\n\n"
                  "## Assistant\n\n39\n\n## User\n\ntwo\n\n## Assistant\n\n63\n",
                  notes));
}

TEST(CliChat, StatisticsTellHowFullTheContextIs) {
  const ProgramResult result = Cli(
      {"chat", "-m", "toy", "--quiet", "-n", "3", "--temp", "0", "--system", "S"}, {{}, "one\n/stats\n", ""});
  EXPECT_PRED2(Contains, result.err, "context  35 of 4096 tokens");
  EXPECT_PRED2(Contains, result.err, "answer 3 tokens at ");
}

TEST(CliChat, StatisticsHaveTheLastTurnBesideTheSum) {
  const auto err = [](const std::string& input, const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments = {"chat", "-m", "toy", "--quiet", "-n", "3", "--temp", "0"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Cli(arguments, {{}, input, ""}).err;
  };
  const std::string last =
      "\nlast     prompt 2 tokens at 50.0 token/s, answer 1 token, the first after 4.00 s\n";
  EXPECT_PRED2(Contains, err("one\ntwo\n/stats\n"), last);
  const std::string one = err("one\n/stats\n");
  EXPECT_FALSE(Contains(one, last)) << "it is the sum";
  EXPECT_PRED2(Contains, one, "\nsampling none, ");
  EXPECT_FALSE(Contains(one, "in use ")) << "a person wants to know less";
  EXPECT_PRED2(Contains, err("one\n/stats\n", {"-v"}), "\nin use   ");
}

TEST(CliChat, JsonIsRefusedOnce) {
  const ProgramResult result = Cli({"chat", "-m", "toy", "--json"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.out, "");
  EXPECT_PRED2(Contains, result.err, "\"--json\" is not an option of kvrun chat");
  EXPECT_PRED2(Contains, Cli({"run", "-m", "toy", "--json", "--nonsense"}).out, "{\"error\"");
}

// On a terminal that is all that is not asked for.
TEST(CliChat, ItBeginsWithOneLineAboutTheCacheAndNoJargon) {
  const ProgramResult result = Cli({"chat", "-m", "toy", "--kv-budget", "1/13"}, {{}, "one\n", ""});
  const std::string before = result.err.substr(0, result.err.find("speed "));
  EXPECT_PRED2(Contains, before,
               "kvrun: KV cache: 13.0 MiB of 180.0 MiB in memory, the rest on flash in /fake/kv\n");
  for (const char* jargon : {"sampling", "entries", "sequences", "top-p"}) {
    EXPECT_FALSE(Contains(before, jargon)) << before;
  }
}

TEST(CliChat, WhatEndsAnAnswerButTheModelIsSaid) {
  const auto err = [](const char* model, const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"chat", "-m", model};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Cli(arguments, {{}, "one\n", ""}).err;
  };
  EXPECT_PRED2(Contains, err("toy", {"-n", "3"}),
               "kvrun: the answer was ended at its limit of 3 tokens (-n N sets another, -n -1 none)\n");
  EXPECT_PRED2(Contains, err("loop", {}), "kvrun: the answer was ended, as it repeated itself\n");
  EXPECT_FALSE(Contains(err("loop", {"--ignore-end", "-n", "5"}), "repeated"));
  EXPECT_FALSE(Contains(err("toy", {}), "was ended"));
  EXPECT_EQ(err("toy", {"-n", "3", "-q"}), "");
}

TEST(CliChat, AnAnswerHasALimitUnlessThereIsToBeNone) {
  EXPECT_PRED2(Contains, Cli({"chat", "--help"}).out, "(default 2048;");
  const ProgramResult endless = Cli({"chat", "-m", "toy", "--ignore-end"}, {{}, "one\n", ""});
  EXPECT_PRED2(Contains, endless.err, "its limit of 2048 tokens");
}

// What follows "seed " in the line of the sampling.
std::string PrintedSeed(const ProgramResult& result) {
  const size_t found = result.err.find("seed ");
  return found == std::string::npos ? ""
                                    : result.err.substr(found + 5, result.err.find('\n', found) - found - 5);
}

TEST(CliChatSampling, SamplesWithASeedThatRepeatsTheAnswers) {
  const ProgramInput input{{}, "one\ntwo\n", ""};
  const ProgramResult result = Cli({"chat", "-m", "toy"}, input);
  EXPECT_PRED2(Contains, result.err, "sampling temperature 0.7, top-p 0.95, seed ");
  EXPECT_PRED2(Contains, result.out, "t=0.7,k=0,p=0.95,m=0,r=1,w=64,s=" + PrintedSeed(result) + ";");
  const ProgramResult other = Cli({"chat", "-m", "toy"}, input);
  EXPECT_NE(PrintedSeed(other), PrintedSeed(result)) << "a random one";
  const ProgramResult again = Cli({"chat", "-m", "toy", "--seed", PrintedSeed(result)}, input);
  EXPECT_EQ(again.out, result.out);
  const ProgramResult seven = Cli({"chat", "-m", "toy", "-q"}, {{"KVRUN_SEED=7"}, "one\n/reset\none\n", ""});
  EXPECT_PRED2(Contains, seven.out, "s=7;");
  EXPECT_PRED2(Contains, seven.out, "s=8;") << "the same question has another answer";
  EXPECT_EQ(seven.err, "");
}

TEST(CliChatSampling, SmallModelsHaveAPenaltyForRepetitionUnlessOneIsGiven) {
  const auto chat = [](const char* model, const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"chat", "-m", model, "-q"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Cli(arguments, {{}, "one\n", ""}).out;
  };
  EXPECT_PRED2(Contains, chat("tiny", {}), ",r=1.1,");
  EXPECT_PRED2(Contains, chat("tiny", {"--repeat-penalty", "1"}), ",r=1,");
  EXPECT_PRED2(Contains, chat("toy", {}), ",r=1,") << "it has billions of parameters";
  const ProgramResult run = Cli({"run", "-m", "tiny", "-p", "x", "--chat", "--temp", "1"});
  EXPECT_PRED2(Contains, run.out, ",r=1.1,");
  EXPECT_PRED2(Contains, Cli({"run", "-m", "tiny", "-p", "x", "--temp", "1"}).out, ",r=1,")
      << "what is continued as it is has none";
}

TEST(CliChatSampling, TheModelFilesAdviceHoldsUntilSomebodySaysOtherwise) {
  const ProgramResult result = Cli({"chat", "-m", "advising"}, {{}, "one\n", ""});
  EXPECT_PRED2(Contains, result.err, "sampling temperature 0.25, top-k 20, top-p 0.95, seed ");
  EXPECT_PRED2(Contains, result.err,
               "note: the model file's advice is ignored: general.sampling.min_p is nan");
  EXPECT_PRED2(Contains, result.out, "t=0.25,k=20,p=0.95,m=0,");
  const ProgramResult given = Cli({"chat", "-m", "advising", "-q", "--temp", "0.5", "--min-p", "0.125"},
                                  {{"KVRUN_TOP_K=0", "KVRUN_TOP_P=1"}, "one\n", ""});
  EXPECT_PRED2(Contains, given.out, "t=0.5,k=0,p=1,m=0.125,");
  EXPECT_EQ(given.err, "");
  const ProgramResult greedy = Cli({"chat", "-m", "advising", "--temp", "0"}, {{}, "one\n", ""});
  EXPECT_EQ(greedy.out.find("t="), std::string::npos) << greedy.out;
  EXPECT_PRED2(Contains, greedy.err, "sampling none, always the likeliest token (temperature 0)\n");
  const ProgramResult run = Cli({"run", "-m", "advising", "-p", "x"});
  EXPECT_EQ(run.out.find("t="), std::string::npos) << "run stays greedy: " << run.out;
}

TEST(CliChat, InterruptStopsTheAnswerAndThenTheConversation) {
  RunningProgram program(KVRUN_FAKE_PROGRAM, {"chat", "-m", "slow-endless", "--quiet"}, {});
  program.Type("hello\n");
  ASSERT_TRUE(program.WaitForOutput("xxx"));
  program.Signal(SIGINT);
  ASSERT_TRUE(program.WaitForOutput("x\n"));
  program.Type("again\n");
  ASSERT_TRUE(program.WaitForOutput("x\nxxx"));
  program.Signal(SIGINT);
  program.Type("/help\n");
  ASSERT_TRUE(program.WaitForOutput("/reset ")) << "it has gone on to the next line";
  program.Signal(SIGINT);
  EXPECT_EQ(program.Finish().exit_code, 130);
}

}  // namespace
}  // namespace kvrun
