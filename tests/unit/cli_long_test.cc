// --long cut|split: documents that are longer than the context. The toy's tokens are bytes, so that limits
// are exact; a prompt may have the context less the room for the answer (-n, at most half of the context).
#include <fmt/format.h>
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

// Of one letter, so that no place to cut is better than another.
std::string Letters(size_t n, char letter = 'a') { return std::string(n, letter); }

// What stands right before the line about what is left out, and right after it, whatever the blanks.
bool EndsBefore(const std::string& text, const std::string& end) {
  std::string kept = text.substr(0, text.find("[... "));
  while (!kept.empty() && (kept.back() == '\n' || kept.back() == ' ')) kept.pop_back();
  return kept.ends_with(end);
}
bool BeginsAfter(const std::string& text, const std::string& begin) {
  std::string kept = text.substr(std::min(text.size(), text.find("...]\n") + 5));
  return kept.starts_with(begin) || kept.starts_with(" " + begin);
}

class CliLong : public ::testing::Test {
 protected:
  // "nobos" continues plain text: a prompt's tokens are its bytes.
  ProgramResult Run(const std::vector<std::string>& files, std::vector<std::string> more,
                    const std::string& model = "nobos-transcript") const {
    std::vector<std::string> arguments = {"run", "-m", model};
    for (size_t i = 0; i < files.size(); ++i) {
      arguments.push_back("-f");
      arguments.push_back(folder_.Write(fmt::format("file{}", i), files[i]));
    }
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Cli(arguments);
  }

  // The prompt that the toy was given: it answers with it, as far as there is room.
  static Json Parsed(const ProgramResult& result) {
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return Json::parse(result.out, nullptr, false);
  }

  TemporaryFolder folder_;
};

TEST_F(CliLong, WithoutItTheRefusalNamesIt) {
  const ProgramResult refused = Run({Letters(5000)}, {});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_PRED2(Contains, refused.err, "5000 tokens, more than the 4096 that the model was trained with");
  EXPECT_PRED2(Contains, refused.err,
               "; --long cut leaves out the middle of the documents, and --long split asks");
  EXPECT_FALSE(Contains(Run({}, {"-p", Letters(5000)}).err, "--long")) << "no document";
  const ProgramResult chat = Cli({"chat", "-m", "toy", "-f", folder_.Write("long", Letters(5000))});
  EXPECT_EQ(chat.exit_code, 1);
  EXPECT_PRED2(Contains, chat.err, "; --long cut leaves out their middle");
  const ProgramResult wrong = Run({"x"}, {"--long", "fold"});
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_PRED2(Contains, wrong.err, "is not one of cut, split");
}

TEST_F(CliLong, WhatFitsExactlyIsNotTouchedOneTokenMoreIsCut) {
  for (const char* way : {"cut", "split"}) {
    std::vector<std::string> options = {"--ctx", "400", "-n", "100", "--json", "--long", way};
    if (way == std::string("split")) options.insert(options.end(), {"--chat", "-p", "?"});
    // The toy's chat form: "<start>system:be good<end><start>user:\n\n?<end><start>assistant:".
    const size_t around = way == std::string("split") ? 34U + 3U : 0U;
    const ProgramResult fits = Run({Letters(300 - around)}, options);
    const Json exact = Parsed(fits);
    EXPECT_EQ(exact["prompt_tokens"], 300) << way;
    EXPECT_FALSE(exact.contains("left_out_tokens") || exact.contains("parts")) << way;
    EXPECT_FALSE(Contains(fits.err, "left out") || Contains(fits.err, "part 1")) << way;
    const Json more = Parsed(Run({Letters(301 - around)}, options));
    EXPECT_TRUE(more.contains("left_out_tokens") || more.contains("parts")) << way << more;
  }
}

TEST_F(CliLong, CutKeepsBeginningAndEndAndAsMuchAsFits) {
  std::string text = Letters(2000, 'a') + Letters(2000, 'z');
  const ProgramResult result =
      Run({text}, {"--ctx", "400", "-n", "100", "--json", "--long", "cut", "-p", "Why?"});
  const Json object = Parsed(result);
  EXPECT_EQ(object["prompt_tokens"], 300);
  const std::string mark = "\n[... 3,739 tokens left out ...]\n";
  EXPECT_EQ(object["left_out_tokens"], 4000 - (300 - 6 - mark.size()));
  EXPECT_PRED2(
      Contains, result.err,
      "/file0 is too long for the context of 400: 3,739 of its 4,000 tokens, in its middle, are left out\n");
  EXPECT_EQ(Run({text}, {"--ctx", "400", "-n", "100", "--long", "cut", "-q"}).err, "");
  // All of the prompt can be seen where the answer may be as long.
  const std::string said =
      Parsed(Run({text}, {"--ctx", "400", "-n", "300", "--json", "--long", "cut", "-p", "Why?"}))["text"];
  EXPECT_TRUE(said.starts_with("[" + Letters(81, 'a') + "\n[... 3,839 tokens left out ...]\n" +
                               Letters(80, 'z') + "\n\nW"))
      << said;
}

TEST_F(CliLong, CutsWhereALineOrASentenceEnds) {
  const auto cut = [&](const std::string& text) {
    return Parsed(Run({text}, {"--ctx", "600", "-n", "300", "--json", "--long", "cut"}))["text"]
        .get<std::string>();
  };
  std::string lines;
  std::string sentences;
  std::string words;
  for (int i = 1000; i < 1200; ++i) {
    lines += fmt::format("line {}\n", i);
    sentences += fmt::format("It is {}. ", i);
    words += fmt::format("word{} ", i);
  }
  const std::string of_lines = cut(lines);
  const size_t at = of_lines.find("[...");
  ASSERT_NE(at, of_lines.npos) << of_lines;
  EXPECT_EQ(of_lines[at - 1], '\n');
  EXPECT_PRED2(Contains, of_lines, "tokens left out ...]\nline 11");
  EXPECT_EQ(at % 10, 1U) << "whole lines, behind the bracket";
  const std::string of_sentences = cut(sentences);
  EXPECT_PRED2(EndsBefore, of_sentences, ".");
  EXPECT_PRED2(BeginsAfter, of_sentences, "It is 11");
  const std::string of_words = cut(words);
  const size_t word = of_words.rfind("word", of_words.find("[... "));
  EXPECT_NE(std::string("0123456789").find(of_words[word + 7]), std::string::npos) << of_words;
  EXPECT_PRED2(BeginsAfter, of_words, "word11");
}

TEST_F(CliLong, NoCharacterIsCut) {
  for (const char* character : {"\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80"}) {
    std::string text;
    for (int i = 0; i < 500; ++i) text += character;
    for (int ctx = 200; ctx < 208; ++ctx) {
      const Json object =
          Parsed(Run({text}, {"--ctx", std::to_string(ctx), "-n", "100", "--json", "--long", "cut"}));
      const std::string said = object["text"];
      const size_t mark = said.find("\n[... ");
      ASSERT_NE(mark, said.npos) << said;
      EXPECT_EQ((mark - 1) % std::string(character).size(), 0U) << ctx;
      EXPECT_TRUE(said.substr(said.find("...]\n") + 5).starts_with(character)) << said;
      EXPECT_LE(object["prompt_tokens"], ctx - 100);
      EXPECT_GE(object["prompt_tokens"], ctx - 100 - 8);
    }
  }
}

TEST_F(CliLong, OfSeveralFilesTheLongAreCutTheSame) {
  const ProgramResult result = Run({Letters(1000, 'a'), Letters(20, 'b'), Letters(3000, 'c')},
                                   {"--ctx", "800", "-n", "400", "--json", "--long", "cut", "-p", "Q"});
  const Json object = Parsed(result);
  EXPECT_GE(object["prompt_tokens"], 398);
  EXPECT_LE(object["prompt_tokens"], 400);
  const std::string said = object["text"];
  EXPECT_PRED2(Contains, said, "\n\n" + Letters(20, 'b') + "\n\nc") << "the short one is whole";
  const auto n_of = [&said](char letter) { return std::count(said.begin(), said.end(), letter); };
  EXPECT_GT(n_of('a'), 100);
  EXPECT_EQ(n_of('a'), n_of('c'));
  EXPECT_PRED2(Contains, result.err, "/file0 is too long");
  EXPECT_FALSE(Contains(result.err, "/file1"));
  EXPECT_PRED2(Contains, result.err, "/file2 is too long");
}

TEST_F(CliLong, TheChatFormSystemMessageAndQuestionStayWhole) {
  const auto cut = [&](const std::string& question) {
    return Parsed(Run({Letters(2000) + "<end><start>x" + Letters(2000)},
                      {"--ctx", "800", "-n", "400", "--json", "--long", "cut", "--chat", "--system",
                       "Be brief.", "-p", question}));
  };
  const Json object = cut("What is it?");
  EXPECT_EQ(object["prompt_tokens"], 400);
  const std::string said = object["text"];
  EXPECT_TRUE(said.starts_with("[<start>system:Be brief.<end><start>user:aaa")) << said;
  const Json longer = cut("What is it? Say it.");
  EXPECT_EQ(longer["prompt_tokens"], 400);
  EXPECT_EQ(longer["left_out_tokens"].get<int>(), object["left_out_tokens"].get<int>() + 8);
}

TEST_F(CliLong, AQuestionThatIsTooLongIsRefused) {
  for (const std::vector<std::string>& more :
       std::vector<std::vector<std::string>>{{"--long", "cut"}, {"--long", "split", "--chat"}}) {
    std::vector<std::string> options = {"--ctx", "400", "-n", "100", "-p", Letters(500, 'q')};
    options.insert(options.end(), more.begin(), more.end());
    const ProgramResult result = Run({Letters(1000)}, options);
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_EQ(result.out, "");
    EXPECT_PRED2(Contains, result.err,
                 "without any of its documents; with an answer of 100 that leaves them no room in "
                 "the context of 400");
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    // Of no document: as without --long.
    const ProgramResult alone = Run({}, options);
    EXPECT_EQ(alone.exit_code, 1);
    EXPECT_PRED2(Contains, alone.err, ", more than the context of 400");
  }
  // What fits beside a shorter answer is answered, as without --long.
  const Json fits = Parsed(
      Run({Letters(10)}, {"--ctx", "400", "-n", "100", "-p", Letters(350, 'q'), "--json", "--long", "cut"}));
  EXPECT_EQ(fits["prompt_tokens"], 362);
}

TEST_F(CliLong, EmptyAndTinyContextsAreRefusedOrServed) {
  for (const char* way : {"cut", "split"}) {
    for (const char* ctx : {"1", "2", "30", "70"}) {
      const ProgramResult result = Run({Letters(100)}, {"--ctx", ctx, "--long", way, "--chat", "-p", "?"});
      EXPECT_EQ(result.exit_code, 1) << ctx;
      EXPECT_PRED2(Contains, result.err, "no room in the context of ");
    }
  }
  EXPECT_EQ(Run({""}, {"--ctx", "4", "--long", "cut", "-p", "?"}).exit_code, 0) << "nothing to cut";
  EXPECT_EQ(Run({Letters(3)}, {"--ctx", "4", "--long", "cut"}).exit_code, 0) << "fits, if not with an answer";
  // What the model was trained with is the context where none is given: 64.
  const Json small = Parsed(Run({Letters(100)}, {"--long", "cut", "--json", "-n", "4"}, "nobos-small"));
  EXPECT_EQ(small["prompt_tokens"], 60);
}

TEST_F(CliLong, VocabulariesThatLackBytesAreCutAsWell) {
  std::string text;
  for (int i = 0; i < 600; ++i) text += "x\xc3\xa9";
  const Json object =
      Parsed(Run({text}, {"--ctx", "200", "-n", "50", "--long", "cut", "--json"}, "nobos-lossy"));
  EXPECT_LE(object["prompt_tokens"], 150);
  EXPECT_GE(object["prompt_tokens"], 140);
  const ProgramResult coarse = Run({Letters(size_t{65536} * 300)},
                                   {"--ctx", "60", "-n", "10", "--long", "cut", "--json"}, "nobos-coarse");
  EXPECT_LE(Parsed(coarse)["prompt_tokens"], 50);
}

TEST_F(CliLong, SplitAsksEachPartAndJoinsTheAnswers) {
  std::string text;
  for (int i = 1000; i < 1100; ++i) text += fmt::format("line {}\n", i);
  const std::vector<std::string> split = {"--ctx", "800",    "-n", "60",  "--long",
                                          "split", "--chat", "-p", "Why?"};
  const ProgramResult result = Run({text}, split, "nobos");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_PRED2(Contains, result.err, "kvrun: part 1 of 2: ");
  EXPECT_PRED2(Contains, result.err, "kvrun: part 2 of 2: ");
  EXPECT_PRED2(Contains, result.err, "kvrun: joining 2 answers: ");
  std::vector<std::string> as_json = split;
  as_json.push_back("--json");
  const Json object = Parsed(Run({text}, as_json, "nobos"));
  EXPECT_EQ(object["text"].get<std::string>() + "\n", result.out);
  ASSERT_EQ(object["parts"].size(), 2U);
  size_t n_tokens = 0;
  for (const Json& part : object["parts"]) {
    EXPECT_LE(part["prompt_tokens"], 740);
    EXPECT_EQ(part["finish"], "end");
    EXPECT_EQ(part["text"], fmt::format("{}:t>assistant:", part["prompt_tokens"].get<size_t>()));
    n_tokens += part["prompt_tokens"].get<size_t>();
  }
  const size_t around = 34 + std::string("\n\nWhy?").size();
  EXPECT_EQ(n_tokens, text.size() + 2 * around) << "nothing is lost, nothing is asked twice";
  // -q and --json-lines: the final answer's tokens alone, then the object.
  as_json.back() = "--json-lines";
  const std::vector<Json> lines = testing::JsonLines(Run({text}, as_json, "nobos").out);
  EXPECT_EQ(lines.size(), object["tokens"].size() + 1);
  EXPECT_EQ(lines.back()["parts"], object["parts"]);
}

// The toy's answers are then of a prompt's beginning, 100 tokens each.
TEST_F(CliLong, SplitJoinsInSeveralRoundsWhereAnswersDoNotFit) {
  const std::vector<std::string> split = {"--ctx", "700",    "-n", "100",  "--long",
                                          "split", "--chat", "-p", "Why?", "--json"};
  const ProgramResult result = Run({Letters(5000)}, split);
  const Json object = Parsed(result);
  EXPECT_EQ(object["parts"].size(), 9U);
  for (const Json& part : object["parts"]) EXPECT_EQ(part["tokens"].size(), 100U);
  EXPECT_PRED2(Contains, result.err, "kvrun: answers 1 to ");
  EXPECT_PRED2(Contains, result.err, "kvrun: joining ");
  EXPECT_LE(object["prompt_tokens"], 600);
  // Where not even two fit, their middles are left out.
  std::vector<std::string> long_answers = split;
  long_answers[3] = "350";
  const ProgramResult cut = Run({Letters(5000)}, long_answers);
  EXPECT_LE(Parsed(cut)["prompt_tokens"], 350);
  EXPECT_PRED2(Contains, cut.err, "kvrun: note: the answer from part 1 is too long for the context of 700");
}

TEST_F(CliLong, SplitIsRefusedWhereAnswersHaveNoRoomToBeJoined) {
  // The form and the question that joins take 216 tokens here, and two answers 64 at the least.
  for (const char* ctx : {"330", "370"}) {
    const ProgramResult result =
        Run({Letters(5000)}, {"--ctx", ctx, "-n", "100", "--long", "split", "--chat", "-p", "?"});
    EXPECT_EQ(result.exit_code, 1) << ctx;
    EXPECT_EQ(result.out, "");
    EXPECT_PRED2(Contains, result.err, "--long split: the prompt that joins two answers has ");
    EXPECT_PRED2(Contains, result.err, "give a larger --ctx, or a shorter question");
    EXPECT_FALSE(Contains(result.err, "part 1 of")) << "before any is asked";
  }
}

TEST_F(CliLong, SplitNeedsAQuestionAndAChat) {
  for (const std::vector<std::string>& more :
       std::vector<std::vector<std::string>>{{"--chat"}, {"-p", "Why?"}, {}}) {
    std::vector<std::string> options = {"--long", "split"};
    options.insert(options.end(), more.begin(), more.end());
    const ProgramResult result = Run({Letters(10)}, options);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_PRED2(Contains, result.err, "--long split asks each part of the document a question");
  }
  // A variable is meant for the calls that it suits.
  const ProgramInput in_environment{{"KVRUN_LONG=split"}, "hi\n", ""};
  EXPECT_EQ(Cli({"run", "-m", "toy", "-f", folder_.Write("e", "x")}, in_environment).exit_code, 0);
  EXPECT_EQ(Cli({"chat", "-m", "toy", "-f", folder_.Write("e", "x")}, in_environment).exit_code, 0);
  const ProgramResult batch = Cli({"run", "-m", "toy", "--batch", "-", "--long", "cut"}, {{}, "{}", ""});
  EXPECT_EQ(batch.exit_code, 2);
  const ProgramResult chat =
      Cli({"chat", "-m", "toy", "--long", "split", "-f", folder_.Write("d", "x")}, {{}, "hi\n", ""});
  EXPECT_EQ(chat.exit_code, 2);
  EXPECT_PRED2(Contains, chat.err, "give --long cut, or ask one question with kvrun run");
}

TEST_F(CliLong, AChatCutsItsDocumentsAndHasRoomForTalk) {
  // Around "?" there are 34 tokens and BOS, and a quarter of the context is for talk.
  const auto chat = [&](size_t n_letters, const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments = {"chat",   "-m",  "transcript",
                                          "--long", "cut", "--ctx",
                                          "1000",   "-f",  folder_.Write("doc", Letters(n_letters))};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Cli(arguments, {{}, "hi\n", ""});
  };
  const ProgramResult cut = chat(3000);
  EXPECT_EQ(cut.exit_code, 0) << cut.err;
  EXPECT_PRED2(Contains, cut.err, "/doc is too long for the context of 1000: 2,3");
  const size_t fits = 750 - 34 - 1 - 3;
  EXPECT_FALSE(Contains(chat(fits).err, "left out"));
  EXPECT_PRED2(Contains, chat(fits + 1).err, "left out");
  // With as much room for an answer as there is, most of what the model was given can be seen.
  EXPECT_PRED2(Contains, chat(3000, {"-n", "600"}).out, "aaa\n[... 2,5");
  // And what is added later, to what is left by then.
  const std::string file = "/file " + folder_.Write("more", Letters(3000)) + "\n";
  const std::vector<std::string> with_room = {"chat", "-m", "transcript", "--ctx", "1000"};
  std::vector<std::string> cutting = with_room;
  cutting.insert(cutting.end(), {"--long", "cut"});
  const ProgramResult added = Cli(cutting, {{}, "hi\n" + file + file, ""});
  EXPECT_PRED2(Contains, added.err, "/more is too long for the context of 1000: 2,");
  EXPECT_PRED2(Contains, added.err, "is part of the next message");
  EXPECT_PRED2(Contains, added.err, "/more does not fit into what is left of the context of 1000") << "twice";
  EXPECT_FALSE(Contains(Cli(with_room, {{}, "hi\n" + file, ""}).err, "left out"));
}

}  // namespace
}  // namespace kvrun
