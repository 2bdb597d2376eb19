// Thoughts told from the answer, in every form that templates show, however the text comes.
#include "runtime/chat/reasoning.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/fake_tokenizer.h"

namespace kvrun {
namespace {

using testing::FakeTokenizer;

const std::vector<std::string>& Marks() {
  static const std::vector<std::string> marks = {
      "<think>",          "</think>",         "[THINK]",     "[/THINK]",           "<seed:think>",
      "</seed:think>",    "<|channel>",       "<channel|>",  "<|START_THINKING|>", "<|END_THINKING|>",
      "<|inner_prefix|>", "<|inner_suffix|>", "<|channel|>", "<|message|>",        "<|start|>",
      "<|end|>",          "<|call|>",         "<|begin|>",   "<|think|>",          "<|content|>",
      "<|eom|>",          "<|im_start|>",
  };
  return marks;
}

// How a vocabulary has marks. kText: not at all, they are spelled in bytes.
enum class MarksAre { kControl, kUserDefined, kText };

class MarkTokenizer : public FakeTokenizer {
 public:
  explicit MarkTokenizer(MarksAre marks) : FakeTokenizer(Marks()), marks_(marks) {}

  bool IsControl(TokenId id) const override {
    return FakeTokenizer::IsControl(id) || (marks_ == MarksAre::kControl && id >= kFirstWord);
  }
  void AppendToken(TokenId id, bool show_special, std::string* bytes) const override {
    if (id < kFirstWord) return FakeTokenizer::AppendToken(id, show_special, bytes);
    if (show_special || !IsControl(id)) *bytes += Marks()[static_cast<size_t>(id - kFirstWord)];
  }
  // What a vocabulary of these marks makes of a text that is trusted.
  std::vector<TokenId> Ids(std::string_view text) const {
    std::vector<TokenId> ids;
    while (!text.empty()) {
      const auto mark = std::find_if(Marks().begin(), Marks().end(),
                                     [&](const std::string& one) { return text.starts_with(one); });
      const bool is_mark = marks_ != MarksAre::kText && mark != Marks().end();
      ids.push_back(is_mark ? FindToken(*mark) : static_cast<TokenId>(static_cast<unsigned char>(text[0])));
      text.remove_prefix(is_mark ? mark->size() : 1);
    }
    return ids;
  }

 private:
  MarksAre marks_;
};

struct Split {
  std::string reasoning;
  std::string answer;
  std::string order;  // of pieces: "R", "A"
};

void Add(const ReasoningPieces& pieces, Split* split) {
  for (size_t i = 0; i < pieces.size(); ++i) {
    EXPECT_FALSE(pieces[i].text.empty());
    EXPECT_TRUE(i == 0 || pieces[i].is_reasoning != pieces[i - 1].is_reasoning);
    (pieces[i].is_reasoning ? split->reasoning : split->answer) += pieces[i].text;
    const char kind = pieces[i].is_reasoning ? 'R' : 'A';
    if (split->order.empty() || split->order.back() != kind) split->order += kind;
  }
}

// `longest`: of runs of bytes that come as one, of random lengths.
Split SplitOf(MarksAre marks, const std::string& prompt, const std::string& text, size_t longest,
              uint32_t seed) {
  const MarkTokenizer tokenizer(marks);
  ReasoningSplitter splitter(tokenizer, tokenizer.Ids(prompt));
  std::mt19937 random(seed);
  Split split;
  std::string run;
  const auto flush = [&](TokenId id) {
    Add(splitter.Next(id, run), &split);
    run.clear();
  };
  size_t n_run = 1;
  for (const TokenId id : tokenizer.Ids(text)) {
    if (tokenizer.IsControl(id) && !run.empty()) flush(-1);
    tokenizer.AppendToken(id, false, &run);
    if (!tokenizer.IsControl(id) && run.size() < n_run) continue;
    flush(id);
    n_run = 1 + random() % longest;
  }
  if (!run.empty()) flush(-1);
  Add(splitter.End(), &split);
  return split;
}

struct Case {
  std::string prompt;
  std::string text;
  std::string reasoning;
  std::string answer;
};

const std::vector<Case>& Cases() {
  static const std::vector<Case> cases = {
      // Thoughts that the answer opens.
      {"", "<think>\nHm.\n\nSo.\n</think>\n\nYes.", "Hm.\n\nSo.", "Yes."},
      {"", "\n\n<think>Hm</think>Yes", "Hm", "Yes"},
      {"", "[THINK]Hm[/THINK]Yes", "Hm", "Yes"},
      {"", "<seed:think>Hm</seed:think>Yes", "Hm", "Yes"},
      {"", "<thinking>Hm</thinking>\nYes", "Hm", "Yes"},
      {"", "<|START_THINKING|>Hm<|END_THINKING|>Yes", "Hm", "Yes"},
      {"", "<|inner_prefix|>Hm<|inner_suffix|>Yes", "Hm", "Yes"},
      {"", "<|channel>thought\nHm\n<channel|>Yes", "Hm", "Yes"},
      {"<|begin|>assistant", "<|think|>Hm<|end|><|begin|>assistant<|content|>Yes", "Hm", "Yes"},
      {"<|begin|>assistant", "<|content|>Yes", "", "<|content|>Yes"},
      // Thoughts that the prompt has opened, or closed.
      {"<|im_start|>assistant\n<think>\n", "\nHm\n</think>\n\nYes", "Hm", "Yes"},
      {"a[THINK]", "Hm[/THINK]Yes", "Hm", "Yes"},
      {"a<seed:think>", "Hm</seed:think>Yes", "Hm", "Yes"},
      {"Here are my reasoning steps:\n", "Hm\n[BEGIN FINAL RESPONSE]\nYes", "Hm", "Yes"},
      {"<think>\n\n</think>\n\n", "Yes", "", "Yes"},
      {"<|channel>thought\n<channel|>", "Yes", "", "Yes"},
      // Empty ones, and a close alone.
      {"", "<think>\n\n</think>\n\nYes", "", "Yes"},
      {"<think>\n", "\n</think>\nYes", "", "Yes"},
      {"", "</think>\nYes", "", "Yes"},
      // Thoughts that do not end.
      {"", "<think>\nHm. </thi", "Hm. </thi", ""},
      {"<think>", "Hm.\n\n", "Hm.\n\n", ""},
      {"", "<think>", "", ""},
      // Answers.
      {"", "Yes: <think>no</think>", "", "Yes: <think>no</think>"},
      {"", "\n  Yes\n", "", "\n  Yes\n"},
      {"", "<thi", "", "<thi"},
      {"", "<|im", "", "<|im"},
      {"", "  ", "", "  "},
      {"", "Here are my reasoning steps:\nno", "", "Here are my reasoning steps:\nno"},
      {"", "<think>Hm</think>Yes, <think>no</think>\n", "Hm", "Yes, <think>no</think>\n"},
      {"", "<think>a < b </ c </think>x < y", "a < b </ c", "x < y"},
      {"", "", "", ""},
  };
  return cases;
}

const std::vector<Case>& MessageCases() {
  static const std::string kPrompt = "<|start|>user<|message|>Hi<|end|><|start|>assistant";
  static const std::string kFinal = "<|start|>assistant<|channel|>final<|message|>";
  static const std::vector<Case> cases = {
      {kPrompt, "<|channel|>analysis<|message|>Hm.\n<|end|>" + kFinal + "Yes.\n", "Hm.", "Yes.\n"},
      {kPrompt, "<|channel|>final<|message|>Yes", "", "Yes"},
      {kPrompt, "<|channel|>analysis<|message|>A<|end|>" + kFinal.substr(9 + 9) + "x", "A", "x"},
      {kPrompt,
       "<|channel|>analysis<|message|>A<|end|><|start|>assistant<|channel|>commentary<|message|>B<|end|>"
       "<|start|>assistant<|channel|>analysis<|message|>C<|end|>" +
           kFinal + "D",
       "A\n\nC", "B\n\nD"},
      {kPrompt, " to=functions.f<|channel|>commentary json<|message|>{}<|call|>", "", "{}"},
      {kPrompt, " to=self<|message|>Hm<|eom|><|start|>assistant to=user<|message|>Yes", "Hm", "Yes"},
      {kPrompt, "<|channel|>analysis<|message|>Hm", "Hm", ""},
      {kPrompt, "<|channel|>analysis", "", ""},
      {kPrompt, "<|channel|>analysis<|message|>Hm<|end|><|start|>assi", "Hm", ""},
      // No prompt says that messages follow.
      {"", "<|channel|>analysis<|message|>Hm<|end|>" + kFinal + "Yes", "Hm", "Yes"},
      // A text without messages.
      {kPrompt, "Yes.", "", "Yes."},
      {kPrompt, std::string(300, 'x') + "<|message|>", "", std::string(300, 'x') + "<|message|>"},
  };
  return cases;
}

void ExpectSplit(const Case& expected, MarksAre marks, size_t longest, uint32_t seed) {
  const Split split = SplitOf(marks, expected.prompt, expected.text, longest, seed);
  const std::string where =
      fmt::format("\"{}\" after \"{}\", marks {}, runs of up to {}, seed {}", expected.text, expected.prompt,
                  static_cast<int>(marks), longest, seed);
  EXPECT_EQ(split.reasoning, expected.reasoning) << where;
  EXPECT_EQ(split.answer, expected.answer) << where;
}

TEST(Reasoning, IsToldFromTheAnswerWhateverMarksAre) {
  for (const Case& one : Cases()) {
    for (const MarksAre marks : {MarksAre::kUserDefined, MarksAre::kText}) ExpectSplit(one, marks, 1, 0);
  }
  // What a control token spells is shown nowhere.
  for (Case one : Cases()) {
    for (const std::string& mark : Marks()) {
      for (size_t at = 0; (at = one.answer.find(mark)) != std::string::npos;)
        one.answer.erase(at, mark.size());
    }
    ExpectSplit(one, MarksAre::kControl, 1, 0);
  }
}

TEST(Reasoning, IsTheSameHoweverTheTextIsCut) {
  for (const Case& one : Cases()) {
    for (uint32_t seed = 1; seed <= 20; ++seed) {
      for (const MarksAre marks : {MarksAre::kUserDefined, MarksAre::kText}) {
        ExpectSplit(one, marks, 4, seed);
        ExpectSplit(one, marks, 500, seed);
      }
    }
  }
}

TEST(Reasoning, OfMessagesIsThatOfTheirChannel) {
  for (Case one : MessageCases()) {
    for (uint32_t seed = 1; seed <= 20; ++seed) {
      for (const size_t longest : {size_t{1}, size_t{5}, size_t{500}}) {
        ExpectSplit(one, MarksAre::kUserDefined, longest, seed);
        ExpectSplit(one, MarksAre::kText, longest, seed);
      }
    }
    if (one.answer.ends_with("<|message|>")) one.answer.resize(300);
    ExpectSplit(one, MarksAre::kControl, 1, 0);
    ExpectSplit(one, MarksAre::kControl, 500, 0);
  }
}

TEST(Reasoning, AnAnswerMaySpellMessageMarksThatAreControlTokens) {
  const MarkTokenizer tokenizer(MarksAre::kControl);
  ReasoningSplitter splitter(tokenizer, tokenizer.Ids("<|start|>assistant"));
  Split split;
  for (const TokenId id : tokenizer.Ids("<|channel|>final<|message|>")) {
    Add(splitter.Next(id, tokenizer.DecodeToken(id)), &split);
  }
  Add(splitter.Next(-1, "It ends with <|end|>, and <|start|> follows."), &split);
  Add(splitter.End(), &split);
  EXPECT_EQ(split.answer, "It ends with <|end|>, and <|start|> follows.");
}

// Where no vocabulary has them, these are words.
TEST(Reasoning, OrdinaryModelsHaveNoMessages) {
  const FakeTokenizer tokenizer;
  ReasoningSplitter splitter(tokenizer, {});
  Split split;
  Add(splitter.Next(-1, "<|channel|>analysis<|message|>Hm<|end|>"), &split);
  Add(splitter.End(), &split);
  EXPECT_EQ(split.answer, "<|channel|>analysis<|message|>Hm<|end|>");
}

TEST(Reasoning, ComesAsSoonAsItIsKnown) {
  const MarkTokenizer tokenizer(MarksAre::kControl);
  ReasoningSplitter splitter(tokenizer, {});
  const TokenId open = tokenizer.FindToken("<think>");
  const TokenId close = tokenizer.FindToken("</think>");
  EXPECT_TRUE(splitter.Next(open, "").empty());
  EXPECT_TRUE(splitter.Next('\n', "\n").empty());
  ReasoningPieces pieces = splitter.Next('a', "One.\n");
  ASSERT_EQ(pieces.size(), 1U);
  EXPECT_EQ(pieces[0].text, "One.");
  EXPECT_TRUE(pieces[0].is_reasoning);
  // A call's text stands before its control token.
  pieces = splitter.Next(close, "Two. ");
  ASSERT_EQ(pieces.size(), 1U);
  EXPECT_EQ(pieces[0].text, "\nTwo.");
  pieces = splitter.Next('b', "\n\nYes.\n");
  ASSERT_EQ(pieces.size(), 1U);
  EXPECT_EQ(pieces[0].text, "Yes.\n");
  EXPECT_FALSE(pieces[0].is_reasoning);
}

TEST(Reasoning, OneCallMayBringBoth) {
  const FakeTokenizer tokenizer;
  ReasoningSplitter splitter(tokenizer, {});
  const ReasoningPieces pieces = splitter.Next(-1, "<think>Hm</think>Yes");
  ASSERT_EQ(pieces.size(), 2U);
  EXPECT_EQ(pieces[0].text, "Hm");
  EXPECT_TRUE(pieces[0].is_reasoning);
  EXPECT_EQ(pieces[1].text, "Yes");
  EXPECT_FALSE(pieces[1].is_reasoning);
}

TEST(Reasoning, MarksAreFoundInTemplates) {
  const auto open_of = [](std::string_view source) {
    const ReasoningMarks* marks = FindReasoningMarks(source);
    return marks == nullptr ? std::string() : std::string(marks->open);
  };
  EXPECT_EQ(open_of("{%- set content = content.split('</think>')[-1] %}"), "<think>");
  EXPECT_EQ(open_of("{{ '[THINK]' + t + '[/THINK]' }}"), "[THINK]");
  EXPECT_EQ(open_of("'</seed:think>'"), "<seed:think>");
  EXPECT_EQ(open_of("'<|channel>thought\\n' + t + '\\n<channel|>'"), "<|channel>thought");
  EXPECT_EQ(open_of("<thinking_instructions></thinking_instructions>"), "");
}

}  // namespace
}  // namespace kvrun
