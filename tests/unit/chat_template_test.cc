// The expected texts are what Jinja makes of the templates, less the BOS that the tokenizer adds.
#include "runtime/model/chat_template.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "runtime/model/gguf.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/reference_files.h"

namespace kvrun {
namespace {

using testing::GgufBuilder;
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

ChatTemplate Read(const char* jinja) {
  const Result<ChatTemplate> result = ChatTemplate::FromSource(jinja);
  EXPECT_TRUE(result.ok()) << result.status().message();
  return result.ok() ? *result : ChatTemplate();
}

std::string Apply(const char* jinja, const Messages& messages, bool add_assistant, bool continued = false) {
  const Result<std::string> text = Read(jinja).Apply(messages, add_assistant, continued);
  EXPECT_TRUE(text.ok()) << text.status().message();
  return text.ok() ? *text : "";
}

TEST(ChatTemplate, FormsAreRecognised) {
  EXPECT_EQ(Read(kChatMl).form(), ChatForm::kChatMl);
  EXPECT_EQ(Read(kChatMl).name(), "chatml");
  EXPECT_EQ(Read(kChatMlWithDefault).form(), ChatForm::kChatMl);
  EXPECT_EQ(Read(kQwen25).form(), ChatForm::kQwen);
  EXPECT_EQ(Read(kQwen3).name(), "qwen");
  EXPECT_EQ(Read(kLlama2).name(), "llama-2");
  for (const char* mistral : {kMistralV1, kMistralV3, kMistralNemo, kMistralOld}) {
    EXPECT_EQ(Read(mistral).name(), "mistral");
  }
  EXPECT_EQ(Read(kLlama3).name(), "llama-3");
  EXPECT_EQ(Read(kLlama31).form(), ChatForm::kLlama3);
  EXPECT_EQ(Read(kZephyr).name(), "zephyr");
}

TEST(ChatTemplate, OthersAreRefusedWithAWayOn) {
  for (const char* jinja :
       {"", "{{ messages }}", "{{ '<start_of_turn>user' }}",
        "{{'<|user|>\n' + message['content'] + '<|end|>\n'}}<|assistant|>",
        "{{ '<|im_start|>user<|im_sep|>' }}<|im_end|>", "[SYSTEM_PROMPT][/SYSTEM_PROMPT][INST][/INST]",
        "{{ '", "{%", "{# [INST] #", "{{ 'a\\"}) {
    const Result<ChatTemplate> result = ChatTemplate::FromSource(jinja);
    ASSERT_FALSE(result.ok()) << jinja;
    EXPECT_EQ(result.status().code(), StatusCode::kUnsupported);
    EXPECT_NE(result.status().message().find("run without --chat"), std::string::npos);
  }
}

TEST(ChatTemplate, ChatMl) {
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

TEST(ChatTemplate, ChatMlInsertsTheTemplatesOwnSystemMessage) {
  const std::string hi = "<|im_start|>user\nHi <|im_end|>\n";
  EXPECT_EQ(Apply(kChatMlWithDefault, kUser, false),
            "<|im_start|>system\nYou aren't a \"person\".<|im_end|>\n" + hi);
  EXPECT_EQ(Apply(kChatMlWithDefault, kSystemUser, false), "<|im_start|>system\nS<|im_end|>\n" + hi);
  EXPECT_EQ(Apply(kChatMlWithDefault, kUser, true, true), hi + "<|im_start|>assistant\n");
  EXPECT_EQ(Apply(kChatMlAssigned, kUser, false), "<|im_start|>system\nBe kind.<|im_end|>\n" + hi);
  EXPECT_EQ(Apply(kQwen25, kUser, false), "<|im_start|>system\nYou are Qwen. You help.<|im_end|>\n" + hi);
  EXPECT_EQ(Apply(kQwen25, kSystemUser, false), "<|im_start|>system\nS<|im_end|>\n" + hi);
}

TEST(ChatTemplate, Qwen3KeepsOnlyTheLastAnswersThoughts) {
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

TEST(ChatTemplate, Llama2) {
  EXPECT_EQ(Apply(kLlama2, kUser, true), "[INST] Hi [/INST]");
  EXPECT_EQ(Apply(kLlama2, kUser, false), "[INST] Hi [/INST]");
  EXPECT_EQ(Apply(kLlama2, kSystemUser, true), "[INST] <<SYS>>\nS\n<</SYS>>\n\nHi [/INST]");
  EXPECT_EQ(Apply(kLlama2, kTurns, true),
            "[INST] <<SYS>>\nS\n<</SYS>>\n\n1 [/INST] 2 </s><s>[INST] 3 [/INST]");
  EXPECT_EQ(Apply(kLlama2, kUser, true, true), "[INST] Hi [/INST]");
}

TEST(ChatTemplate, MistralVersionsDifferInSpacesAndInTheTurnOfTheSystemMessage) {
  EXPECT_EQ(Apply(kMistralV1, kTurns, true), " [INST] S\n\n1 [/INST]  2 </s> [INST] 3 [/INST]");
  EXPECT_EQ(Apply(kMistralV3, kTurns, true), "[INST] 1[/INST] 2</s>[INST] S\n\n3[/INST]");
  EXPECT_EQ(Apply(kMistralNemo, kTurns, true), "[INST]S\n\n1[/INST] 2 </s>[INST]3[/INST]");
  EXPECT_EQ(Apply(kMistralOld, {kTurns.begin() + 1, kTurns.end()}, true),
            "[INST] 1 [/INST] 2 </s> [INST] 3 [/INST]");
  EXPECT_EQ(Apply(kMistralV3, kSystemUser, false), "[INST] S\n\nHi [/INST]");
  EXPECT_EQ(Apply(kMistralV3, kUser, true, true), "[INST] Hi [/INST]");
}

TEST(ChatTemplate, Llama3) {
  const std::string hi = "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>";
  const std::string answer = "<|start_header_id|>assistant<|end_header_id|>\n\n";
  EXPECT_EQ(Apply(kLlama3, kUser, true), hi + answer);
  EXPECT_EQ(Apply(kLlama3, kSystemUser, false),
            "<|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|>" + hi);
  EXPECT_EQ(Apply(kLlama3, {kTurns.begin() + 2, kTurns.begin() + 3}, false, true), answer + "2<|eot_id|>");
}

TEST(ChatTemplate, Llama31WritesDatesBeforeTheSystemMessage) {
  const std::string hi = "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>";
  const std::string dates =
      "<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n"
      "Today Date: 26 Jul 2024\n\n";
  EXPECT_EQ(Apply(kLlama31, kUser, false), dates + "<|eot_id|>" + hi);
  EXPECT_EQ(Apply(kLlama31, kSystemUser, false), dates + "S<|eot_id|>" + hi);
  EXPECT_EQ(Apply(kLlama31, kUser, false, true), hi);
}

TEST(ChatTemplate, Zephyr) {
  EXPECT_EQ(Apply(kZephyr, kUser, true), "<|user|>\nHi </s>\n<|assistant|>\n");
  EXPECT_EQ(Apply(kZephyr, kTurns, false),
            "<|system|>\nS</s>\n<|user|>\n1</s>\n<|assistant|>\n 2 </s>\n<|user|>\n3</s>\n");
}

TEST(ChatTemplate, WrongRolesAndOrdersAreRefused) {
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

Result<ChatTemplate> Recognize(const GgufBuilder& builder) {
  const testing::Bytes bytes = builder.Build();
  KVRUN_ASSIGN_OR_RETURN(const std::unique_ptr<GgufFile> file, GgufFile::Parse(bytes, "test.gguf"));
  return ChatTemplate::Recognize(*file);
}

TEST(ChatTemplateFile, TheDefaultOneOfSeveralIsTaken) {
  GgufBuilder builder;
  builder.SetStrings("tokenizer.chat_templates", {"tool_use"})
      .Set("tokenizer.chat_template.tool_use", kChatMl);
  const Result<ChatTemplate> none = Recognize(builder);
  EXPECT_EQ(none.status().code(), StatusCode::kUnsupported);
  EXPECT_NE(none.status().message().find("\"tool_use\""), std::string::npos);
  builder.Set("tokenizer.chat_template.default", kLlama3);
  EXPECT_EQ(Recognize(builder)->form(), ChatForm::kLlama3);
  builder.Set("tokenizer.chat_template", kLlama2);
  EXPECT_EQ(Recognize(builder)->form(), ChatForm::kLlama2);
}

TEST(ChatTemplateFile, MissingOrUnknownNamesTheFile) {
  const Result<ChatTemplate> missing = Recognize(GgufBuilder());
  EXPECT_EQ(missing.status().code(), StatusCode::kUnsupported);
  EXPECT_NE(missing.status().message().find("test.gguf"), std::string::npos);
  EXPECT_NE(missing.status().message().find("run without --chat"), std::string::npos);
  const Result<ChatTemplate> unknown = Recognize(GgufBuilder().Set("tokenizer.chat_template", "{{ x }}"));
  EXPECT_EQ(unknown.status().code(), StatusCode::kUnsupported);
  EXPECT_NE(unknown.status().message().find("test.gguf"), std::string::npos);
  EXPECT_EQ(Recognize(GgufBuilder().Set("tokenizer.chat_template", 3U)).status().code(),
            StatusCode::kCorrupt);
}

TEST(ChatTemplateFile, EosIsTheFilesOwn) {
  GgufBuilder builder;
  builder.Set("tokenizer.chat_template", kZephyr).Set("tokenizer.ggml.eos_token_id", 1U);
  builder.SetStrings("tokenizer.ggml.tokens", {"a", "<|endoftext|>"});
  EXPECT_EQ(*Recognize(builder)->Apply(kUser, false), "<|user|>\nHi <|endoftext|>\n");
  builder.Set("tokenizer.ggml.eos_token_id", 2U);
  EXPECT_EQ(Recognize(builder).status().code(), StatusCode::kCorrupt);
}

TEST(ChatTemplateReference, SmolLm2) {
  const auto path = testing::TestModelPath();
  if (!path) GTEST_SKIP() << "the test model is not there";
  const Result<std::unique_ptr<GgufFile>> file = GgufFile::Open(*path);
  ASSERT_TRUE(file.ok()) << file.status().message();
  const Result<ChatTemplate> chat = ChatTemplate::Recognize(**file);
  ASSERT_TRUE(chat.ok()) << chat.status().message();
  EXPECT_EQ(chat->form(), ChatForm::kChatMl);
  EXPECT_EQ(
      *chat->Apply({{"user", "Hi"}}, true),
      "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
      "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
}

TEST(ChatTemplateReference, Qwen) {
  const auto path = testing::SharedPath("reference/tokenizer/ggml-vocab-qwen2.gguf");
  if (!path) GTEST_SKIP() << "the vocabulary is not there";
  const Result<std::unique_ptr<GgufFile>> file = GgufFile::Open(*path);
  ASSERT_TRUE(file.ok()) << file.status().message();
  const Result<ChatTemplate> chat = ChatTemplate::Recognize(**file);
  ASSERT_TRUE(chat.ok()) << chat.status().message();
  EXPECT_EQ(chat->form(), ChatForm::kQwen);
  EXPECT_EQ(*chat->Apply({{"user", "Hi"}}, false),
            "<|im_start|>system\nYou are a helpful assistant<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n");
}

}  // namespace
}  // namespace kvrun
