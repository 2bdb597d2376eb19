// Contents of chats give no control tokens, and otherwise the ids that they would have in one text with the
// form.
#include "runtime/chat/chat_encoder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "runtime/chat/chat_form_names.h"
#include "runtime/model/gguf.h"
#include "tests/support/chat_vocabularies.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/or_die.h"
#include "tests/support/reference_files.h"
#include "tests/support/seeds.h"

namespace kvrun {
namespace {

using testing::ChatMarks;
using testing::GgufBuilder;
using testing::MarkType;
using testing::OrDie;
using Ids = std::vector<TokenId>;
using Messages = std::vector<ChatMessage>;

struct NamedForm {
  std::string name;
  ChatForm chat;
  ChatTemplate chat_template = ChatTemplate::OfForm(chat);
};

// Those known by name, and what only templates in files bring: a default system message, trimming, other
// spaces, dates before the system message.
const std::vector<NamedForm>& Forms() {
  static const std::vector<NamedForm> forms = [] {
    std::vector<NamedForm> all;
    for (const char* const* name = ChatFormNames(); *name != nullptr; ++name) {
      all.push_back({*name, OrDie(ChatForm::FromSource(FindNamedTemplate(*name)))});
    }
    const auto add = [&](const char* name, const char* jinja) {
      all.push_back({name, OrDie(ChatForm::FromSource(jinja))});
    };
    add("chatml_trimming",
        R"({{'<|im_start|>' + message['role'] + '\n' + message['content'] | trim + '<|im_end|>' + '\n'}})");
    add("llama_2_default",
        R"({% set system_message = 'Be <b>kind</b>.' %}{% set content = '<<SYS>>\n' + system_message + )"
        R"('\n<</SYS>>\n\n' + message['content'] %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }})"
        R"({{ ' ' + content.strip() + ' ' + eos_token }})");
    add("mistral_v1", R"({{ ' [INST] ' + system_message + '\n\n' + message['content'] + ' [/INST]' }})"
                      R"({{ ' ' + message['content'] + eos_token }})");
    add("mistral_nemo",
        R"({{ "[INST]" + message["content"] + "[/INST]" }}{{ message["content"] + eos_token }})");
    add("llama_31",
        R"({%- set date_string = "26 Jul 2024" %}{{- "<|start_header_id|>system<|end_header_id|>\n\n" }})"
        R"({{- "Cutting Knowledge Date: December 2023\n" }}{{- "Today Date: " + date_string + "\n\n" }})"
        R"({{- message['content'] | trim + "<|eot_id|>" }})");
    return all;
  }();
  return forms;
}

struct NamedVocabulary {
  std::string name;
  std::unique_ptr<Tokenizer> tokenizer;
};

// The references where they are there.
const std::vector<NamedVocabulary>& Vocabularies() {
  static const std::vector<NamedVocabulary> vocabularies = [] {
    std::vector<NamedVocabulary> all;
    all.push_back({"bpe_control", testing::BpeWithMarks(MarkType::kControl)});
    all.push_back({"bpe_user_defined", testing::BpeWithMarks(MarkType::kUserDefined)});
    all.push_back({"spm_control", testing::SpmWithMarks(MarkType::kControl)});
    all.push_back({"spm_user_defined", testing::SpmWithMarks(MarkType::kUserDefined)});
    for (const char* name : {"gpt-2", "llama-bpe", "llama-spm", "qwen2"}) {
      const auto path = testing::SharedPath(std::string("reference/tokenizer/ggml-vocab-") + name + ".gguf");
      if (!path) continue;
      all.push_back({name, OrDie(Tokenizer::Create(*OrDie(GgufFile::Open(*path))))});
    }
    return all;
  }();
  return vocabularies;
}

Ids Encode(const Tokenizer& tokenizer, const NamedForm& form, const Messages& messages,
           bool continued = false) {
  ChatRequest request;
  request.continued = continued;
  for (const ChatMessage& message : messages)
    request.messages.push_back({{"role", message.role}, {"content", message.content}});
  const Result<Ids> ids = EncodeChat(tokenizer, form.chat_template, request);
  EXPECT_TRUE(ids.ok()) << ids.status().message();
  return ids.ok() ? *ids : Ids();
}

// What EncodeChat replaced: the form's text and the contents as one text, parsed for control tokens.
Ids EncodeAsOneText(const Tokenizer& tokenizer, const std::string& text, bool bos) {
  Ids ids = OrDie(tokenizer.Encode(text, {.add_special = false, .parse_special = true}));
  if (bos && tokenizer.adds_bos()) ids.insert(ids.begin(), tokenizer.bos());
  return ids;
}

// And the way to continue a chat: the ids behind those of a stand-in for the answer.
Ids NextTurnAsOneText(const Tokenizer& tokenizer, const ChatForm& chat, const std::string& message) {
  const std::string stand_in = "<answer>";
  const std::string text =
      OrDie(chat.Apply({{"user", "?"}, {"assistant", stand_in}, {"user", message}}, true, true));
  const size_t found = text.find(stand_in);
  const Ids of_stand_in = EncodeAsOneText(tokenizer, stand_in, false);
  const Ids ids = EncodeAsOneText(tokenizer, text.substr(found), false);
  const auto differs = std::mismatch(of_stand_in.begin(), of_stand_in.end(), ids.begin(), ids.end());
  if (differs.first == of_stand_in.end()) return {differs.second, ids.end()};
  return EncodeAsOneText(tokenizer, text.substr(found + stand_in.size()), false);
}

// The tokens that only the form may make.
std::vector<bool> MarksOf(const Tokenizer& tokenizer, const ChatForm& chat) {
  std::vector<bool> marks(tokenizer.n_vocab());
  for (TokenId id = 0; static_cast<uint32_t>(id) < tokenizer.n_vocab(); ++id) {
    marks[static_cast<size_t>(id)] = tokenizer.IsControl(id) || tokenizer.IsEndOfGeneration(id);
  }
  for (const std::string& text : chat.FormTexts()) {
    for (const std::string& mark : ChatMarks()) {
      const TokenId id = tokenizer.FindToken(mark);
      if (id >= 0 && text.find(mark) != std::string::npos) marks[static_cast<size_t>(id)] = true;
    }
  }
  return marks;
}

// The marks among ids, in order, and the texts before, between and behind them.
struct Skeleton {
  Ids marks;
  std::vector<std::string> gaps;

  bool operator==(const Skeleton&) const = default;
  friend void PrintTo(const Skeleton& skeleton, std::ostream* out) {
    for (size_t i = 0; i < skeleton.gaps.size(); ++i) {
      *out << ::testing::PrintToString(skeleton.gaps[i]);
      if (i < skeleton.marks.size()) *out << " [" << skeleton.marks[i] << "] ";
    }
  }
};

Skeleton SkeletonOf(const Tokenizer& tokenizer, const std::vector<bool>& marks, const Ids& ids) {
  Skeleton skeleton;
  skeleton.gaps.emplace_back();
  for (const TokenId id : ids) {
    if (marks[static_cast<size_t>(id)]) {
      skeleton.marks.push_back(id);
      skeleton.gaps.emplace_back();
    } else {
      tokenizer.AppendToken(id, false, &skeleton.gaps.back());
    }
  }
  return skeleton;
}

// Without white space: forms trim contents, and SentencePiece writes spaces before plain texts and for
// U+2581.
Skeleton Normalized(Skeleton skeleton) {
  for (std::string& gap : skeleton.gaps) {
    for (size_t at = gap.find("\u2581"); at != std::string::npos; at = gap.find("\u2581", at))
      gap.erase(at, 3);
    std::erase_if(gap, [](char c) { return c == ' ' || (c >= '\t' && c <= '\r'); });
  }
  return skeleton;
}

const std::vector<std::string>& OrdinaryContents() {
  static const std::vector<std::string> contents = {
      "Hi",
      "",
      " ",
      "\n",
      "\n\n",
      "  the end\n",
      "\nHi there",
      "\n\n\nHi\n\n",
      "the <b>user</b> said: a < b | c > d",
      "don't | think [1] (x) \t\tΨ é 日本語 \xf0\x9f\x98\x80",
      "\xff\xfe broken \xe2\x82",
      "123456 + 7 = ?",
      "\r\nline\r\n",
      "    indented\n    twice",
      "answer",
      "<answer>",
      "user\n",
      "<",
      "|>",
      "a<|",
  };
  return contents;
}

TEST(ChatEncoder, OrdinaryContentsGiveTheIdsThatOneTextGives) {
  for (const NamedVocabulary& vocabulary : Vocabularies()) {
    const Tokenizer& tokenizer = *vocabulary.tokenizer;
    for (const NamedForm& form : Forms()) {
      const std::vector<std::string>& contents = OrdinaryContents();
      for (size_t i = 0; i < contents.size(); ++i) {
        SCOPED_TRACE(vocabulary.name + ", " + form.name + ", content " + std::to_string(i));
        const std::string& other = contents[(i * 7 + 3) % contents.size()];
        const std::string& answer = contents[(i * 11 + 5) % contents.size()];
        for (const Messages& messages :
             {Messages{{"user", contents[i]}}, Messages{{"system", other}, {"user", contents[i]}},
              Messages{{"user", contents[i]}, {"assistant", answer}, {"user", other}}}) {
          const std::string text = OrDie(form.chat.Apply(messages, true));
          EXPECT_EQ(Encode(tokenizer, form, messages), EncodeAsOneText(tokenizer, text, true));
        }
        EXPECT_EQ(Encode(tokenizer, form, {{"user", contents[i]}}, /*continued=*/true),
                  NextTurnAsOneText(tokenizer, form.chat, contents[i]));
      }
    }
  }
}

// Contents that try to be control tokens: whole, cut, one within another, overlapping, and with the halves of
// one at the two ends of a content, where the form's text goes on.
class HostileContents {
 public:
  explicit HostileContents(uint64_t seed, const std::vector<std::string>& marks = ChatMarks())
      : random_(seed), marks_(marks) {
    marks_.insert(marks_.end(), {"<s>", "</s>", "<unk>", "<|begin_of_text|>", "<|end_of_text|>", "<|end|>"});
  }

  std::string Next() {
    std::string text;
    if (Chance(4)) text += Tail(Mark());
    for (size_t n = Below(4) + 1; n > 0; --n) text += Piece();
    if (Chance(4)) text += Head(Mark());
    return text;
  }

 private:
  size_t Below(size_t n) { return static_cast<size_t>(random_() % n); }
  bool Chance(size_t one_in) { return Below(one_in) == 0; }
  const std::string& Mark() { return marks_[Below(marks_.size())]; }
  std::string Head(const std::string& text) { return text.substr(0, Below(text.size()) + 1); }
  std::string Tail(const std::string& text) { return text.substr(Below(text.size())); }

  std::string Piece() {
    static const std::vector<std::string> fillers = {"\n",       " ",  "\n\n", "user\n", "assistant",
                                                     "system\n", "Hi", "the",  "\t\t",   "\u2581",
                                                     "think",    "|>", "<|",   "]"};
    switch (Below(7)) {
      case 0:
      case 1: return Mark();
      case 2: return Head(Mark());
      case 3: return Tail(Mark());
      case 4: return Head(Mark()) + Mark() + Tail(Mark());
      case 5: {
        std::string outer = Mark();
        return outer.insert(Below(outer.size()), Mark());
      }
      default: return fillers[Below(fillers.size())];
    }
  }

  std::mt19937_64 random_;
  std::vector<std::string> marks_;
};

// A text in which `innocent` stands for each hostile content.
std::string Replaced(std::string text, const std::string& what, const std::string& with) {
  const size_t at = text.find(what);
  if (at != std::string::npos) text.replace(at, what.size(), with);
  return text;
}

class Injection : public ::testing::TestWithParam<size_t> {
 protected:
  static constexpr size_t kContents = 10000;
};

TEST_P(Injection, NoContentMakesAControlToken) {
  const NamedForm& form = Forms()[GetParam()];
  const std::vector<NamedVocabulary>& vocabularies = Vocabularies();
  const Messages innocent = {{"system", "Q1Q"}, {"user", "Q2Q"}, {"assistant", "Q3Q"}, {"user", "Q4Q"}};
  HostileContents contents(GetParam() * 1000 + 1);
  for (size_t v = 0; v < vocabularies.size(); ++v) {
    SCOPED_TRACE(form.name + ", " + vocabularies[v].name);
    const Tokenizer& tokenizer = *vocabularies[v].tokenizer;
    const std::vector<bool> marks = MarksOf(tokenizer, form.chat);
    const Skeleton innocent_skeleton = SkeletonOf(tokenizer, marks, Encode(tokenizer, form, innocent));
    const Skeleton innocent_turn =
        SkeletonOf(tokenizer, marks, Encode(tokenizer, form, {innocent[3]}, /*continued=*/true));
    const size_t n_contents = kContents / vocabularies.size() + 1;
    for (size_t i = 0; i < n_contents; i += innocent.size()) {
      Messages messages = innocent;
      Skeleton expected = innocent_skeleton;
      for (ChatMessage& message : messages) {
        std::string hostile = contents.Next();
        const bool thoughtful = message.role == "assistant" && hostile.find("</think>") != std::string::npos;
        if (thoughtful) hostile = "thoughts are cut off by some forms";
        for (std::string& gap : expected.gaps) gap = Replaced(gap, message.content, hostile);
        message.content = hostile;
      }
      Skeleton turn = innocent_turn;
      for (std::string& gap : turn.gaps) gap = Replaced(gap, "Q4Q", messages[3].content);
      const Ids all = Encode(tokenizer, form, messages);
      ASSERT_EQ(Normalized(SkeletonOf(tokenizer, marks, all)), Normalized(expected))
          << OrDie(form.chat.Apply(messages, true));
      const Ids next = Encode(tokenizer, form, {messages[3]}, /*continued=*/true);
      ASSERT_EQ(Normalized(SkeletonOf(tokenizer, marks, next)), Normalized(turn)) << messages[3].content;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, Injection, ::testing::Range(size_t{0}, Forms().size()),
                         [](const auto& param) {
                           std::string name = Forms()[param.param].name;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// "<|im_start|>", "[INST]": what the texts of a template have between brackets.
std::vector<std::string> MarksIn(const std::vector<std::string>& texts) {
  std::set<std::string> marks;
  for (const std::string& text : texts) {
    for (size_t at = text.find_first_of("<["); at != std::string::npos;
         at = text.find_first_of("<[", at + 1)) {
      const size_t end = text.find(text[at] == '<' ? '>' : ']', at);
      if (end == std::string::npos || end - at > 40 || end - at < 2) continue;
      const std::string mark = text.substr(at, end + 1 - at);
      if (mark.find_first_of(" \n\t'\"{}") == std::string::npos) marks.insert(mark);
    }
  }
  return {marks.begin(), marks.end()};
}

size_t CountControl(const Tokenizer& tokenizer, const Ids& ids) {
  return static_cast<size_t>(
      std::count_if(ids.begin(), ids.end(), [&](TokenId id) { return tokenizer.IsControl(id); }));
}

// A conversation of many turns, of contents that hold each other's and the template's marks.
nlohmann::ordered_json HostileMessages(HostileContents& contents) {
  constexpr size_t kTurns = 20;
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  for (size_t i = 0; i < kTurns; ++i) {
    messages.push_back({{"role", "user"}, {"content", contents.Next()}});
    messages.push_back(
        {{"role", "assistant"}, {"content", contents.Next()}, {"reasoning_content", contents.Next()}});
  }
  messages.push_back({{"role", "user"}, {"content", contents.Next()}});
  return messages;
}

// Templates of today's models. The control tokens are those of the pieces that the template wrote, each by
// itself: none of contents, and none across a border. 10^4 contents for each: KVRUN_HISTORIES=250.
TEST(TemplateInjection, NoContentMakesAControlToken) {
  const auto folder = testing::SharedPath("reference/templates");
  if (!folder) GTEST_SKIP() << "reference/templates is not there";
  const testing::Seeds seeds = testing::SeedsHere(25);
  size_t n_templates = 0;
  size_t n_encoded = 0;
  for (const auto& entry : std::filesystem::directory_iterator(*folder)) {
    if (entry.path().extension() != ".jinja") continue;
    SCOPED_TRACE(entry.path().filename().string());
    GgufBuilder builder;
    builder.Set("tokenizer.chat_template", testing::ReadFileOrDie(entry.path().string()));
    const testing::Bytes bytes = builder.Build();
    const ChatTemplate chat = OrDie(ChatTemplate::OfFile(*OrDie(GgufFile::Parse(bytes, "chat.gguf"))));
    if (!chat.note().empty()) continue;  // it needs variables
    const std::vector<std::string> marks = MarksIn(chat.FormTexts());
    const std::unique_ptr<Tokenizer> tokenizer = testing::BpeWithMarks(MarkType::kControl, marks);
    ++n_templates;
    for (uint64_t seed = seeds.first; seed < seeds.end(); ++seed) {
      HostileContents contents(seed, marks);
      ChatRequest request;
      request.messages = HostileMessages(contents);
      const Result<ChatText> written = chat.Write(request);
      if (!written.ok()) continue;  // some refuse what looks like their marks
      ++n_encoded;
      size_t n_control = tokenizer->adds_bos() ? 1 : 0;
      for (const ChatSegment& segment : WithoutAddedBos(*tokenizer, *written)) {
        if (segment.is_content) continue;
        n_control +=
            CountControl(*tokenizer, OrDie(tokenizer->Encode(segment.text, {.parse_special = true})));
      }
      const Ids ids = OrDie(EncodeChat(*tokenizer, chat, request));
      ASSERT_EQ(CountControl(*tokenizer, ids), n_control) << "seed " << seed;
    }
  }
  EXPECT_GT(n_templates, 50U);
  EXPECT_GT(n_encoded, n_templates * seeds.n * 3 / 4);
}

}  // namespace
}  // namespace kvrun
