// The expected texts are what Jinja makes of the templates, less the BOS that the tokenizer adds.
#include "runtime/chat/chat_form.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

namespace kvrun {
namespace {

using Messages = std::vector<ChatMessage>;

constexpr const char* kChatMl =
    R"({% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }})"
    R"({% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %})";
constexpr const char* kChatMlWithDefault =
    R"({% for m in messages %}{% if loop.first and messages[0]['role'] != 'system' %})"
    R"({{ '<|im_start|>system\nYou aren\'t a "person".<|im_end|>\n' }}{% endif %})"
    R"({{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %})";
constexpr const char* kChatMlAssigned =
    R"({% if messages[0]['role'] == 'system' %}{% set system_message = messages[0]['content'] %})"
    R"({% else %}{% set system_message = "Be kind." %}{% endif %})"
    R"({{ '<|im_start|>system\n' + system_message + '<|im_end|>\n' }}...)";
constexpr const char* kQwen25 =
    R"({%- if tools %}{{- '<|im_start|>system\n' }}{%- else %}{%- if messages[0]['role'] == 'system' %})"
    R"({{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}{%- else %})"
    R"({{- '<|im_start|>system\nYou are Qwen. You help.<|im_end|>\n' }}{%- endif %}{%- endif %}...)";
constexpr const char* kQwen3 =
    R"({%- set ns = namespace(last_query_index=messages|length - 1) %}{%- if enable_thinking is defined %})"
    R"({{- '<|im_start|>assistant\n' }}{%- set content = message.content.split('</think>')[-1] %}<|im_end|>...)";
constexpr const char* kLlama2 =
    R"({% if messages[0]['role'] == 'system' %}{% set system_message = messages[0]['content'] %}{% else %})"
    R"({% set system_message = false %}{% endif %}{% for message in messages %}{% set content = )"
    R"('<<SYS>>\n' + system_message + '\n<</SYS>>\n\n' + message['content'] %}{% if message['role'] == 'user' %})"
    R"({{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% else %})"
    R"({{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %})";
constexpr const char* kMistralV1 =
    R"({{ bos_token }}{% for message in messages %}{% if loop.first and system_message is defined %})"
    R"({{ ' [INST] ' + system_message + '\n\n' + message['content'] + ' [/INST]' }}{% else %})"
    R"({{ ' ' + message['content'] + eos_token }}{% endif %}{% endfor %})";
constexpr const char* kMistralV3 =
    R"({{ bos_token }}{% for message in messages %}{% if loop.last and system_message is defined %})"
    R"({{ "[INST] " + system_message + "\n\n" + message["content"] + "[/INST]" }}{% else %})"
    R"({{ " " + message["content"]|trim + eos_token }}{% endif %}{% endfor %})";
constexpr const char* kMistralNemo =
    R"({{ raise_exception("[INST] must alternate with answers") }}{{ "[INST]" + message["content"] + "[/INST]" }})"
    R"({{ message["content"] + eos_token }})";
constexpr const char* kMistralOld =
    R"({{ '[INST] ' + message['content'] + ' [/INST]' }}{{ message['content'] + eos_token + ' ' }})";
constexpr const char* kLlama3 =
    R"({% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + )"
    R"(message['content'] | trim + '<|eot_id|>' %})";
constexpr const char* kLlama31 =
    R"({%- set date_string = "26 Jul 2024" %}{{- "<|start_header_id|>system<|end_header_id|>\n\n" }})"
    R"({{- "Cutting Knowledge Date: December 2023\n" }}{{- "Today Date: " + date_string + "\n\n" }})"
    R"({{- message['content'] | trim + "<|eot_id|>" }})";
constexpr const char* kZephyr =
    R"({% for message in messages %}{{ '<|user|>\n' + message['content'] + eos_token }})"
    R"({{ '<|assistant|>\n' + message['content'] + eos_token }}{% endfor %})";

const Messages kUser = {{"user", "Hi "}};
const Messages kSystemUser = {{"system", "S"}, {"user", "Hi "}};
const Messages kTurns = {{"system", "S"}, {"user", "1"}, {"assistant", " 2 "}, {"user", "3"}};

ChatForm Read(const char* jinja) {
  const Result<ChatForm> result = ChatForm::FromSource(jinja);
  EXPECT_TRUE(result.ok()) << result.status().message();
  return result.ok() ? *result : ChatForm();
}

std::string Apply(const char* jinja, const Messages& messages, bool add_assistant, bool continued = false) {
  const Result<std::string> text = Read(jinja).Apply(messages, add_assistant, continued);
  EXPECT_TRUE(text.ok()) << text.status().message();
  return text.ok() ? *text : "";
}

TEST(ChatForm, FormsAreRecognised) {
  EXPECT_EQ(Read(kChatMl).form(), KnownChatForm::kChatMl);
  EXPECT_EQ(Read(kChatMl).name(), "chatml");
  EXPECT_EQ(Read(kChatMlWithDefault).form(), KnownChatForm::kChatMl);
  EXPECT_EQ(Read(kQwen25).form(), KnownChatForm::kQwen);
  EXPECT_EQ(Read(kQwen3).name(), "qwen");
  EXPECT_EQ(Read(kLlama2).name(), "llama-2");
  for (const char* mistral : {kMistralV1, kMistralV3, kMistralNemo, kMistralOld}) {
    EXPECT_EQ(Read(mistral).name(), "mistral");
  }
  EXPECT_EQ(Read(kLlama3).name(), "llama-3");
  EXPECT_EQ(Read(kLlama31).form(), KnownChatForm::kLlama3);
  EXPECT_EQ(Read(kZephyr).name(), "zephyr");
}

TEST(ChatForm, OthersAreRefusedWithAWayOn) {
  for (const char* jinja :
       {"", "{{ messages }}", "{{ '<start_of_turn>user' }}",
        "{{'<|user|>\n' + message['content'] + '<|end|>\n'}}<|assistant|>",
        "{{ '<|im_start|>user<|im_sep|>' }}<|im_end|>", "[SYSTEM_PROMPT][/SYSTEM_PROMPT][INST][/INST]",
        "{{ '", "{%", "{# [INST] #", "{{ 'a\\"}) {
    const Result<ChatForm> result = ChatForm::FromSource(jinja);
    ASSERT_FALSE(result.ok()) << jinja;
    EXPECT_EQ(result.status().code(), StatusCode::kUnsupported);
    EXPECT_NE(result.status().message().find("run without --chat"), std::string::npos);
  }
}

TEST(ChatForm, ChatMl) {
  const std::string hi = "<|im_start|>user\nHi <|im_end|>\n";
  EXPECT_EQ(Apply(kChatMl, kUser, false), hi);
  EXPECT_EQ(Apply(kChatMl, kUser, true), hi + "<|im_start|>assistant\n");
  EXPECT_EQ(Apply(kChatMl, kSystemUser, false), "<|im_start|>system\nS<|im_end|>\n" + hi);
  EXPECT_EQ(
      Apply(kChatMl, kTurns, true),
      "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\n1<|im_end|>\n<|im_start|>assistant\n 2 <|im_end|>\n"
      "<|im_start|>user\n3<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(Read(kChatMl).answer_end(), "<|im_end|>\n");
}

TEST(ChatForm, ChatMlInsertsTheTemplatesOwnSystemMessage) {
  const std::string hi = "<|im_start|>user\nHi <|im_end|>\n";
  EXPECT_EQ(Apply(kChatMlWithDefault, kUser, false),
            "<|im_start|>system\nYou aren't a \"person\".<|im_end|>\n" + hi);
  EXPECT_EQ(Apply(kChatMlWithDefault, kSystemUser, false), "<|im_start|>system\nS<|im_end|>\n" + hi);
  EXPECT_EQ(Apply(kChatMlWithDefault, kUser, true, true), hi + "<|im_start|>assistant\n");
  EXPECT_EQ(Apply(kChatMlAssigned, kUser, false), "<|im_start|>system\nBe kind.<|im_end|>\n" + hi);
  EXPECT_EQ(Apply(kQwen25, kUser, false), "<|im_start|>system\nYou are Qwen. You help.<|im_end|>\n" + hi);
  EXPECT_EQ(Apply(kQwen25, kSystemUser, false), "<|im_start|>system\nS<|im_end|>\n" + hi);
}

TEST(ChatForm, Qwen3KeepsOnlyTheLastAnswersThoughts) {
  const Messages messages = {{"user", "1"}, {"assistant", "<think>\na\n</think>\n\nb"}, {"user", "2"}};
  const std::string shared =
      "<|im_start|>user\n1<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"
      "<|im_start|>user\n2<|im_end|>\n";
  EXPECT_EQ(Apply(kQwen3, messages, true), shared + "<|im_start|>assistant\n");
  Messages longer = messages;
  longer.push_back({"assistant", "c"});
  EXPECT_EQ(Apply(kQwen3, longer, false),
            shared + "<|im_start|>assistant\n<think>\n\n</think>\n\nc<|im_end|>\n");
  longer.back().content = "<think>\nd\n</think>\n\ne";
  EXPECT_EQ(Apply(kQwen3, longer, false),
            shared + "<|im_start|>assistant\n<think>\nd\n</think>\n\ne<|im_end|>\n");
}

TEST(ChatForm, Llama2) {
  EXPECT_EQ(Apply(kLlama2, kUser, true), "[INST] Hi [/INST]");
  EXPECT_EQ(Apply(kLlama2, kUser, false), "[INST] Hi [/INST]");
  EXPECT_EQ(Apply(kLlama2, kSystemUser, true), "[INST] <<SYS>>\nS\n<</SYS>>\n\nHi [/INST]");
  EXPECT_EQ(Apply(kLlama2, kTurns, true),
            "[INST] <<SYS>>\nS\n<</SYS>>\n\n1 [/INST] 2 </s><s>[INST] 3 [/INST]");
  EXPECT_EQ(Apply(kLlama2, kUser, true, true), "[INST] Hi [/INST]");
}

TEST(ChatForm, MistralVersionsDifferInSpacesAndInTheTurnOfTheSystemMessage) {
  EXPECT_EQ(Apply(kMistralV1, kTurns, true), " [INST] S\n\n1 [/INST]  2 </s> [INST] 3 [/INST]");
  EXPECT_EQ(Apply(kMistralV3, kTurns, true), "[INST] 1[/INST] 2</s>[INST] S\n\n3[/INST]");
  EXPECT_EQ(Apply(kMistralNemo, kTurns, true), "[INST]S\n\n1[/INST] 2 </s>[INST]3[/INST]");
  EXPECT_EQ(Apply(kMistralOld, {kTurns.begin() + 1, kTurns.end()}, true),
            "[INST] 1 [/INST] 2 </s> [INST] 3 [/INST]");
  EXPECT_EQ(Apply(kMistralV3, kSystemUser, false), "[INST] S\n\nHi [/INST]");
  EXPECT_EQ(Apply(kMistralV3, kUser, true, true), "[INST] Hi [/INST]");
}

TEST(ChatForm, Llama3) {
  const std::string hi = "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>";
  const std::string answer = "<|start_header_id|>assistant<|end_header_id|>\n\n";
  EXPECT_EQ(Apply(kLlama3, kUser, true), hi + answer);
  EXPECT_EQ(Apply(kLlama3, kSystemUser, false),
            "<|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|>" + hi);
  EXPECT_EQ(Apply(kLlama3, {kTurns.begin() + 2, kTurns.begin() + 3}, false, true), answer + "2<|eot_id|>");
}

TEST(ChatForm, Llama31WritesDatesBeforeTheSystemMessage) {
  const std::string hi = "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>";
  const std::string dates =
      "<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n"
      "Today Date: 26 Jul 2024\n\n";
  EXPECT_EQ(Apply(kLlama31, kUser, false), dates + "<|eot_id|>" + hi);
  EXPECT_EQ(Apply(kLlama31, kSystemUser, false), dates + "S<|eot_id|>" + hi);
  EXPECT_EQ(Apply(kLlama31, kUser, false, true), hi);
}

TEST(ChatForm, Zephyr) {
  EXPECT_EQ(Apply(kZephyr, kUser, true), "<|user|>\nHi </s>\n<|assistant|>\n");
  EXPECT_EQ(Apply(kZephyr, kTurns, false),
            "<|system|>\nS</s>\n<|user|>\n1</s>\n<|assistant|>\n 2 </s>\n<|user|>\n3</s>\n");
}

// Shortened: what deals with tools is left out. The newer one differs in the last line.
const std::string kDeepSeekStart =
    R"({% set ns = namespace(system_prompt='') %}{%- for message in messages %}{%- if message['role'] == 'system' %})"
    R"({% set ns.system_prompt = message['content'] %}{%- endif %}{%- endfor %}{{bos_token}}{{ns.system_prompt}})"
    R"({%- for message in messages %}{%- if message['role'] == 'user' %}{{'<｜User｜>' + message['content']}})"
    R"({%- endif %}{%- if message['role'] == 'assistant' %}{% set content = message['content'] %})"
    R"({% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %})"
    R"({{'<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>'}}{%- endif %}{%- endfor -%})";
const std::string kDeepSeek =
    kDeepSeekStart + R"({% if add_generation_prompt %}{{'<｜Assistant｜>'}}{% endif %})";
const std::string kDeepSeekThinking =
    kDeepSeekStart + R"({% if add_generation_prompt %}{{'<｜Assistant｜><think>\n'}}{% endif %})";

TEST(ChatForm, DeepSeekR1) {
  EXPECT_EQ(Read(kDeepSeek.c_str()).form(), KnownChatForm::kDeepSeek);
  EXPECT_EQ(Read(kDeepSeek.c_str()).name(), "deepseek-r1");
  const std::string hi = "<｜User｜>Hi <｜Assistant｜>";
  EXPECT_EQ(Apply(kDeepSeek.c_str(), kUser, true), hi);
  EXPECT_EQ(Apply(kDeepSeek.c_str(), kUser, false), "<｜User｜>Hi ");
  EXPECT_EQ(Apply(kDeepSeekThinking.c_str(), kUser, true), hi + "<think>\n");
  EXPECT_EQ(Apply(kDeepSeek.c_str(), kSystemUser, true), "S" + hi);
  const Messages turns = {
      {"system", "S"}, {"user", "1"}, {"assistant", "<think>\na\n</think>\n\nb "}, {"user", "2"}};
  EXPECT_EQ(Apply(kDeepSeekThinking.c_str(), turns, true),
            "S<｜User｜>1<｜Assistant｜>\n\nb <｜end▁of▁sentence｜><｜User｜>2<｜Assistant｜><think>\n");
  EXPECT_EQ(Read(kDeepSeek.c_str()).answer_end(), "<｜end▁of▁sentence｜>");
  // From V3.1 on the form is another one.
  const std::string newer =
      kDeepSeekStart + "{{'<｜Assistant｜>'}}{% if not thinking %}{{'</think>'}}{% endif %}";
  EXPECT_FALSE(ChatForm::FromSource(newer).ok());
}

TEST(ChatForm, ASystemMessageOfDeepSeekStandsAtTheStartAlone) {
  const ChatForm chat = Read(kDeepSeek.c_str());
  EXPECT_FALSE(chat.Apply({{"user", "1"}, {"system", "2"}}, true).ok());
  EXPECT_FALSE(chat.Apply({{"system", "2"}, {"user", "1"}}, true, /*continued=*/true).ok());
}

// The end of the template as Qwen3 has it.
constexpr const char* kQwen3Switch =
    R"({%- set ns = namespace(last_query_index=messages|length - 1) %})"
    R"({{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }})"
    R"({%- set content = message.content.split('</think>')[-1].lstrip('\n') %})"
    R"({%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }})"
    R"({%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }})"
    R"({%- endif %}{%- endif %})";

std::string Joined(const ChatText& text) {
  std::string whole;
  for (const ChatSegment& segment : text) whole += segment.text;
  return whole;
}

TEST(ChatForm, ThinkingIsSwitchedWhereTheFormHasASwitch) {
  const ChatForm qwen3 = Read(kQwen3Switch);
  const auto write = [&](const ChatForm& chat, Thinking thinking) {
    return chat.Write(kUser, {ChatStart::kNothing, true, thinking});
  };
  const std::string hi = "<|im_start|>user\nHi <|im_end|>\n<|im_start|>assistant\n";
  EXPECT_EQ(Joined(*write(qwen3, Thinking::kDefault)), hi);
  EXPECT_EQ(Joined(*write(qwen3, Thinking::kOn)), hi);
  EXPECT_EQ(Joined(*write(qwen3, Thinking::kOff)), hi + "<think>\n\n</think>\n\n");
  for (const char* without : {kChatMl, kQwen25, kLlama3, kMistralV3, kDeepSeekThinking.c_str()}) {
    for (const Thinking thinking : {Thinking::kOn, Thinking::kOff}) {
      const Result<ChatText> text = write(Read(without), thinking);
      EXPECT_EQ(text.status().code(), StatusCode::kUnsupported);
      EXPECT_NE(text.status().message().find("no switch for thinking"), std::string::npos);
    }
  }
}

TEST(ChatForm, BehindAnAnswerComesTheEndOfItsTurn) {
  const auto after = [](const char* jinja) {
    return Joined(*Read(jinja).Write(kUser, {ChatStart::kAnswer, true, Thinking::kDefault}));
  };
  EXPECT_EQ(after(kChatMlWithDefault),
            "<|im_end|>\n<|im_start|>user\nHi <|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(after(kLlama2), " </s><s>[INST] Hi [/INST]");
  EXPECT_EQ(after(kMistralV3), "</s>[INST] Hi [/INST]");
  EXPECT_EQ(after(kZephyr), "</s>\n<|user|>\nHi </s>\n<|assistant|>\n");
  EXPECT_EQ(after(kDeepSeekThinking.c_str()), "<｜end▁of▁sentence｜><｜User｜>Hi <｜Assistant｜><think>\n");
  const ChatForm mistral = Read(kMistralV3);
  EXPECT_FALSE(mistral.Write({{"assistant", "x"}}, {ChatStart::kAnswer, true, Thinking::kDefault}).ok());
  EXPECT_FALSE(mistral.Write(kSystemUser, {ChatStart::kAnswer, true, Thinking::kDefault}).ok());
}

TEST(ChatForm, WrongRolesAndOrdersAreRefused) {
  const auto refused = [](const char* jinja, const Messages& messages, bool continued = false) {
    return Read(jinja).Apply(messages, true, continued).status().code() == StatusCode::kInvalidArgument;
  };
  EXPECT_TRUE(refused(kChatMl, {{"tool", "x"}}));
  EXPECT_FALSE(refused(kChatMl, {{"user", "1"}, {"user", "2"}}));
  for (const char* jinja : {kLlama2, kMistralV3}) {
    EXPECT_TRUE(refused(jinja, {{"user", "1"}, {"user", "2"}}));
    EXPECT_TRUE(refused(jinja, {{"assistant", "1"}}));
    EXPECT_FALSE(refused(jinja, {{"assistant", "1"}, {"user", "2"}}, true));
    EXPECT_TRUE(refused(jinja, {{"user", "1"}, {"system", "2"}}));
    EXPECT_TRUE(refused(jinja, {{"system", "2"}}));
  }
}

// Half a MiB of each took up to 40 seconds where a search began anew at each expression.
TEST(ChatFormLength, TakesTimeAsItIsLong) {
  constexpr size_t kBytes = size_t{512} << 10;
  const std::string code = "{{ ";
  const std::vector<std::pair<std::string, std::string>> patterns = {
      {"", "{{ x }}"},
      {"", "{% if a %}"},
      {"", "{%- set system = '' -%}"},
      {"", "{# # #}"},
      {"", "{# "},
      {"", "{{ 'a' + "},
      {"", "{"},
      {"", "{% set a='system'"},
      {code, "='"},
      {code, "=''"},
      {code, "{{"},
      {code, "['content']"},
      {code + "'", "\n"},
      {code + "'", "\\'"},
      {code + "'", "<|im_start|>"},
      {"", "text }} %} #}"},
  };
  const auto start = std::chrono::steady_clock::now();
  for (const auto& [begin, pattern] : patterns) {
    std::string jinja = begin;
    while (jinja.size() + pattern.size() <= kBytes) jinja += pattern;
    EXPECT_EQ(ChatForm::FromSource(jinja).status().code(), StatusCode::kUnsupported) << pattern;
    const Result<ChatForm> known = ChatForm::FromSource(jinja + "'}}}}" + std::string(kChatMl));
    EXPECT_TRUE(known.ok()) << pattern;
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

}  // namespace
}  // namespace kvrun
