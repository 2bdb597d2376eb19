// Chats by the template that a model carries.
#include "runtime/chat/chat_template.h"

#include <gtest/gtest.h>

#include <string>

#include "runtime/model/gguf.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/or_die.h"
#include "tests/support/reference_files.h"

namespace kvrun::chat_template_test {
namespace {

using kvrun::testing::GgufBuilder;
using kvrun::testing::OrDie;
using nlohmann::ordered_json;

constexpr const char* kChatMl =
    R"({% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }})"
    R"({% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %})";
// No known form: "U:", "A:".
constexpr const char* kOwn =
    R"({{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ 'U:' + m.content + '|' }})"
    R"({% elif m.role == 'assistant' %}{{ 'A:' + m.content + eos_token }}{% else %})"
    R"({{ raise_exception('no ' + m.role + ' here') }}{% endif %}{% endfor %})"
    R"({% if tools %}{{ 'T:' + tools[0].name + '|' }}{% endif %}A:)";

// What a GgufFile is read from outlives it.
struct OpenFile {
  testing::Bytes bytes;
  std::unique_ptr<GgufFile> file;

  const GgufFile& operator*() const { return *file; }
};

OpenFile FileWith(const ordered_json& keys) {
  GgufBuilder builder;
  for (const auto& [key, value] : keys.items()) builder.Set(key, value.get<std::string>());
  builder.SetStrings("tokenizer.ggml.tokens", {"<s>", "<|end|>"});
  builder.Set("tokenizer.ggml.bos_token_id", 0U).Set("tokenizer.ggml.eos_token_id", 1U);
  OpenFile open = {builder.Build(), nullptr};
  open.file = OrDie(GgufFile::Parse(open.bytes, "test.gguf"));
  return open;
}

Result<ChatTemplate> Read(const std::string& jinja) {
  return ChatTemplate::OfFile(*FileWith({{"tokenizer.chat_template", jinja}}));
}

ChatRequest Request(const ordered_json& messages) {
  ChatRequest request;
  request.messages = messages;
  return request;
}

const ordered_json kHi = {{{"role", "user"}, {"content", "Hi"}}};

std::string Write(const std::string& jinja, const ChatRequest& request) {
  return JoinPieces(OrDie(OrDie(Read(jinja)).Write(request)));
}

TEST(ChatTemplate, IsRunWhateverItsForm) {
  EXPECT_EQ(Write(kOwn, Request(kHi)), "<s>U:Hi|A:");
  EXPECT_EQ(OrDie(Read(kOwn)).name(), "template");
  EXPECT_EQ(OrDie(Read(kOwn)).note(), "");
  EXPECT_EQ(Write(kChatMl, Request(kHi)), "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(OrDie(Read(kChatMl)).name(), "chatml");
}

TEST(ChatTemplate, ContentsAreApartFromWhatItWrites) {
  const ChatText text = OrDie(OrDie(Read(kOwn)).Write(Request(kHi)));
  ASSERT_EQ(text.size(), 3U);
  EXPECT_EQ(text[1].text, "Hi");
  EXPECT_TRUE(text[1].is_content);
  EXPECT_FALSE(text[0].is_content || text[2].is_content);
}

TEST(ChatTemplate, ReadsVariables) {
  ChatRequest request = Request(kHi);
  request.variables = {{"tools", {{{"name", "clock"}}}}};
  EXPECT_EQ(Write(kOwn, request), "<s>U:Hi|T:clock|A:");
  request.variables["documents"] = "nobody reads them";
  const Status refused = OrDie(Read(kOwn)).Write(request).status();
  EXPECT_EQ(refused.code(), StatusCode::kUnsupported);
  EXPECT_NE(refused.message().find("does not read the variable \"documents\""), std::string::npos);
}

TEST(ChatTemplate, SaysWhatItDoesNotTake) {
  const ChatTemplate chat = OrDie(Read(kOwn));
  const auto refused = [&](const ordered_json& messages) {
    const Result<ChatText> text = chat.Write(Request(messages));
    EXPECT_EQ(text.status().code(), StatusCode::kInvalidArgument);
    return text.status().message();
  };
  EXPECT_NE(refused({{{"role", "system"}, {"content", "x"}}}).find("no system here"), std::string::npos);
  EXPECT_NE(refused({{{"role", "user"}, {"content", 3}}}).find("message 1: its \"content\""),
            std::string::npos);
  EXPECT_NE(refused({{{"content", "x"}}}).find("message 1 has no \"role\""), std::string::npos);
  EXPECT_NE(refused({7}).find("message 1 is not a JSON object"), std::string::npos);
  EXPECT_NE(refused("x").find("not a JSON array"), std::string::npos);
}

TEST(ChatTemplate, ContinuesBehindAnAnswer) {
  ChatRequest request = Request(kHi);
  request.continued = true;
  EXPECT_EQ(Write(kOwn, request), "<|end|>U:Hi|A:");
  EXPECT_EQ(Write(kChatMl, request), "<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  // One that writes no earlier answers.
  const Result<ChatText> none = OrDie(Read("{{ messages[-1].content }}")).Write(request);
  EXPECT_EQ(none.status().code(), StatusCode::kUnsupported);
  EXPECT_NE(none.status().message().find("give the whole conversation"), std::string::npos);
}

TEST(ChatTemplate, ThinkingIsItsOwnSwitch) {
  ChatRequest request = Request(kHi);
  request.thinking = Thinking::kOff;
  EXPECT_EQ(OrDie(Read(kOwn)).Write(request).status().code(), StatusCode::kUnsupported);
  for (const std::string name : {"enable_thinking", "thinking"}) {
    const std::string jinja =
        "{{ messages[0].content }}{% if " + name + " is defined %}{{ ' ' ~ " + name + " }}{% endif %}";
    EXPECT_EQ(Write(jinja, Request(kHi)), "Hi");
    request.thinking = Thinking::kOff;
    EXPECT_EQ(Write(jinja, request), "Hi False");
    request.thinking = Thinking::kOn;
    EXPECT_EQ(Write(jinja, request), "Hi True");
  }
}

// What a model thought reaches a template in the way that it reads, and is no part of an answer elsewhere.
TEST(ChatTemplate, ThoughtsAreWhereItLooksForThem) {
  const ChatRequest request =
      Request({{{"role", "user"}, {"content", "Hi"}},
               {{"role", "assistant"}, {"content", "Yes"}, {"reasoning_content", "Hm"}}});
  const std::string all = "{% for m in messages %}{{ m.content }}";
  EXPECT_EQ(Write(all + "({{ m.reasoning_content }}){% endfor %}", request), "Hi()Yes(Hm)");
  EXPECT_EQ(Write(all + "({{ m['thinking'] }}){% endfor %}", request), "Hi()Yes(Hm)");
  EXPECT_EQ(Write(all + "{% endfor %}{{ enable_thinking }}", request), "HiYes");
  EXPECT_EQ(Write("{% for m in messages %}{{ m.content.split('</think>')[0] }}|{% endfor %}", request),
            "Hi|<think>\nHm\n|");
  EXPECT_EQ(
      Write("{% for m in messages %}{{ m.content.split('</think>')[-1].lstrip() }}|{% endfor %}", request),
      "Hi|Yes|");
}

TEST(ChatTemplate, ContentsAreListsOfPartsWhereItTakesThoseAlone) {
  EXPECT_EQ(
      Write("{% for p in messages[0].content %}{% if p.type == 'text' %}{{ p.text }}{% endif %}{% endfor %}",
            Request(kHi)),
      "Hi");
}

TEST(ChatTemplate, AKnownFormStandsInWhereItFails) {
  // A tag that there is not; a value that there is not; one that never ends.
  for (const std::string broken :
       {"{% include 'x' %}", "{{ nothing.at.all }}",
        "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}"}) {
    const ChatTemplate chat = OrDie(Read(broken + kChatMl));
    EXPECT_NE(chat.note().find("the known form chatml is used instead"), std::string::npos) << chat.note();
    EXPECT_EQ(JoinPieces(OrDie(chat.Write(Request(kHi)))),
              "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    const Result<ChatTemplate> none = Read(broken + kOwn);
    EXPECT_FALSE(none.ok() && none->Write(Request(kHi)).ok());
    EXPECT_TRUE(!none.ok() || !none->note().empty());
  }
  const Result<ChatTemplate> unread = Read("{% include 'x' %}");
  EXPECT_EQ(unread.status().code(), StatusCode::kUnsupported);
  EXPECT_NE(unread.status().message().find("test.gguf"), std::string::npos);
  EXPECT_NE(unread.status().message().find("--chat-template"), std::string::npos);
  EXPECT_NE(Read("hello").status().message().find("does not write what the user asks"), std::string::npos);
}

// A question alone fails; with what the template asks for, it is the one that writes.
TEST(ChatTemplate, WorksWithTheVariablesThatItNeeds) {
  const std::string needs = "{{ functions | tojson }}";
  ChatRequest request = Request(kHi);
  request.variables = {{"functions", {1}}};
  EXPECT_EQ(Write(needs + kOwn, request), "[1]<s>U:Hi|A:");
  const ChatTemplate known = OrDie(Read(needs + kChatMl));
  EXPECT_EQ(JoinPieces(OrDie(known.Write(request))),
            "[1]<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(JoinPieces(OrDie(known.Write(Request(kHi)))),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
}

TEST(ChatTemplate, KnownFormsTakeNoVariablesOrTools) {
  const auto file = FileWith({});
  const ChatTemplate chat = OrDie(ChatTemplate::Choose(*file, "chatml"));
  ChatRequest request = Request(kHi);
  request.variables = {{"tools", ordered_json::array()}};
  EXPECT_NE(chat.Write(request).status().message().find("reads no variables, such as \"tools\""),
            std::string::npos);
  request = Request({{{"role", "assistant"}, {"content", "x"}, {"tool_calls", ordered_json::array()}}});
  EXPECT_EQ(chat.Write(request).status().code(), StatusCode::kUnsupported);
}

TEST(ChatTemplate, TheDefaultOneOfSeveralIsTaken) {
  const auto written = [](const ordered_json& keys) -> Result<std::string> {
    KVRUN_ASSIGN_OR_RETURN(const ChatTemplate chat, ChatTemplate::OfFile(*FileWith(keys)));
    KVRUN_ASSIGN_OR_RETURN(const ChatText text, chat.Write(Request(kHi)));
    return JoinPieces(text);
  };
  const Result<std::string> none = written({{"tokenizer.chat_template.tool_use", kChatMl}});
  EXPECT_EQ(none.status().code(), StatusCode::kUnsupported);
  EXPECT_NE(none.status().message().find("name its form with --chat-template"), std::string::npos);
  ordered_json keys = {{"tokenizer.chat_template.default", "1{{ messages[0].content }}"}};
  EXPECT_EQ(written(keys).value(), "1Hi");
  keys["tokenizer.chat_template"] = "2{{ messages[0].content }}";
  EXPECT_EQ(written(keys).value(), "2Hi");
}

TEST(ChatTemplate, CanBeChosenByNameOrText) {
  const auto file = FileWith({});
  const auto written = [&](const char* choice) {
    return JoinPieces(OrDie(OrDie(ChatTemplate::Choose(*file, choice)).Write(Request(kHi))));
  };
  EXPECT_EQ(written("chatml"), written(kChatMl));
  EXPECT_EQ(written(kOwn), "<s>U:Hi|A:");
  EXPECT_EQ(
      written("qwen"),
      "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
      "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(written("zephyr"), "<|user|>\nHi<|end|>\n<|assistant|>\n");
  for (const char* wrong : {"", "llama-4", "{{ 'a' }"}) {
    const Result<ChatTemplate> refused = ChatTemplate::Choose(*file, wrong);
    EXPECT_EQ(refused.status().code(), StatusCode::kUnsupported) << wrong;
    for (const char* const* name = ChatFormNames(); *name != nullptr; ++name) {
      EXPECT_NE(refused.status().message().find(*name), std::string::npos) << refused.status().message();
    }
  }
}

TEST(ChatTemplate, NoOtherStandsInForOneThatIsChosen) {
  const auto file = FileWith({});
  const Result<ChatTemplate> unread = ChatTemplate::Choose(*file, std::string("{% include 'x' %}") + kChatMl);
  EXPECT_EQ(unread.status().code(), StatusCode::kUnsupported);
  const ChatTemplate failing = OrDie(ChatTemplate::Choose(*file, std::string("{{ no.thing }}") + kChatMl));
  EXPECT_EQ(failing.Write(Request(kHi)).status().code(), StatusCode::kInvalidArgument);
}

TEST(ChatTemplate, WhatIsSaidTwiceOrIsTheModelsIsRefused) {
  const ChatTemplate chat = OrDie(Read("{{ bos_token }}{{ messages[0].content }}{{ enable_thinking }}"));
  ChatRequest request = Request(kHi);
  request.variables = {{"bos_token", "x"}};
  EXPECT_EQ(chat.Write(request).status().code(), StatusCode::kInvalidArgument);
  request.variables = {{"enable_thinking", false}};
  EXPECT_TRUE(chat.Write(request).ok());
  request.thinking = Thinking::kOn;
  EXPECT_EQ(chat.Write(request).status().code(), StatusCode::kInvalidArgument);
}

TEST(ChatTemplate, ADocumentMayHaveManyMegabytes) {
  const std::string document(size_t{30} << 20, 'x');
  const ChatText text =
      OrDie(OrDie(Read(kChatMl)).Write(Request({{{"role", "user"}, {"content", document}}})));
  EXPECT_EQ(text.at(3).text.size(), document.size());
}

TEST(ChatTemplate, HasABoundThatIsSaid) {
  std::string jinja(kChatMl);
  jinja.resize(size_t{1} << 20, ' ');
  EXPECT_TRUE(Read(jinja).ok());
  jinja += ' ';
  const auto file = FileWith({});
  for (const Status& refused : {Read(jinja).status(), ChatForm::FromSource(jinja).status(),
                                ChatTemplate::Choose(*file, jinja).status()}) {
    EXPECT_EQ(refused.code(), StatusCode::kUnsupported);
    EXPECT_NE(refused.message().find("has 1048577 bytes; kvrun reads up to 1048576"), std::string::npos)
        << refused.message();
  }
}

TEST(ChatTemplate, BadFilesAreSaid) {
  EXPECT_EQ(ChatTemplate::OfFile(*FileWith({})).status().code(), StatusCode::kUnsupported);
  GgufBuilder builder;
  builder.Set("tokenizer.chat_template", kChatMl).Set("tokenizer.ggml.eos_token_id", 2U);
  builder.SetStrings("tokenizer.ggml.tokens", {"a", "<|endoftext|>"});
  const testing::Bytes bytes = builder.Build();
  EXPECT_EQ(ChatTemplate::OfFile(*OrDie(GgufFile::Parse(bytes, "test.gguf"))).status().code(),
            StatusCode::kCorrupt);
}

TEST(ChatTemplateReference, SmolLm2) {
  const auto path = testing::TestModelPath();
  if (!path) GTEST_SKIP() << "the test model is not there";
  const ChatTemplate chat = OrDie(ChatTemplate::OfFile(*OrDie(GgufFile::Open(*path))));
  EXPECT_EQ(chat.name(), "chatml");
  EXPECT_EQ(
      JoinPieces(OrDie(chat.Write(Request(kHi)))),
      "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
      "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
}

TEST(ChatTemplateReference, Qwen) {
  const auto path = testing::SharedPath("reference/tokenizer/ggml-vocab-qwen2.gguf");
  if (!path) GTEST_SKIP() << "the vocabulary is not there";
  const ChatTemplate chat = OrDie(ChatTemplate::OfFile(*OrDie(GgufFile::Open(*path))));
  EXPECT_EQ(chat.name(), "qwen");
  EXPECT_EQ(JoinPieces(OrDie(chat.Write(Request(kHi)))),
            "<|im_start|>system\nYou are a helpful assistant<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
            "<|im_start|>assistant\n");
}

}  // namespace
}  // namespace kvrun::chat_template_test
