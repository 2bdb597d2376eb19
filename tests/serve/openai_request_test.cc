// What a body asks of kvrun serve, and what is said of one that cannot be read or done.
#include "apps/kvserve/openai_request.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace kvrun::serve {
namespace {

// Fields of a chat, and of a completion, besides the one that each must have.
std::string ChatBody(const std::string& fields) {
  return R"({"messages": [{"role": "user", "content": "Hi"}])" + (fields.empty() ? "" : ", " + fields) + "}";
}
std::string CompletionBody(const std::string& fields) {
  return R"({"prompt": "Hi")" + (fields.empty() ? "" : ", " + fields) + "}";
}
CompletionRequest Chat(const std::string& fields) { return ParseChatRequest(ChatBody(fields)); }
CompletionRequest Completion(const std::string& fields) {
  return ParseCompletionRequest(CompletionBody(fields));
}
Json Messages(const std::string& messages) {
  return ParseChatRequest(R"({"messages": )" + messages + "}").messages;
}

// "PARAM CODE: MESSAGE" of the refusal; "" where there is none.
std::string Refusal(const std::function<void()>& ask) {
  try {
    ask();
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status, 400U);
    return fmt::format("{} {}: {}", error.param, error.code, error.what());
  }
  return "";
}
std::string ChatRefusal(const std::string& fields) {
  return Refusal([&] { Chat(fields); });
}
std::string CompletionRefusal(const std::string& fields) {
  return Refusal([&] { Completion(fields); });
}
std::string MessagesRefusal(const std::string& messages) {
  return Refusal([&] { Messages(messages); });
}
std::string PromptRefusal(const std::string& prompt) {
  return Refusal([&] { ParseCompletionRequest(R"({"prompt": )" + prompt + "}"); });
}
// Of a body, by every parser.
std::vector<std::string> BodyRefusals(const std::string& body) {
  return {Refusal([&] { ParseChatRequest(body); }), Refusal([&] { ParseCompletionRequest(body); }),
          Refusal([&] { ParseTokenizeRequest(body); }), Refusal([&] { ParseDetokenizeRequest(body); })};
}
void ExpectAll(const std::vector<std::string>& refusals, const std::string& begin) {
  for (const std::string& refusal : refusals) EXPECT_EQ(refusal.substr(0, begin.size()), begin) << refusal;
}

TEST(OpenAiRequest, WhatIsNotGivenIsNotSet) {
  for (const CompletionRequest& request : {Chat(""), Completion("")}) {
    EXPECT_EQ(request.model, "");
    EXPECT_EQ(request.n, 1U);
    EXPECT_FALSE(request.sampling.temperature || request.sampling.top_p || request.sampling.top_k ||
                 request.sampling.min_p || request.sampling.presence_penalty ||
                 request.sampling.frequency_penalty || request.sampling.repeat_penalty ||
                 request.sampling.seed || request.max_tokens || request.n_logprobs);
    EXPECT_TRUE(request.sampling.logit_bias.empty() && request.stop.empty());
    EXPECT_FALSE(request.stream || request.include_usage || request.return_progress || request.echo);
  }
  EXPECT_TRUE(Chat("").is_chat);
  EXPECT_TRUE(Chat("").template_variables.empty());
  EXPECT_FALSE(Completion("").is_chat);
}

TEST(OpenAiRequest, SamplingIsRead) {
  const std::string fields = R"("model": "m", "temperature": 2, "top_p": 0.5, "top_k": 40.0, "min_p": 0.25,
      "presence_penalty": -2, "frequency_penalty": 1.5, "repeat_penalty": 1.25,
      "seed": 18446744073709551615, "logit_bias": {"7": -100, "2147483647": 0.5},
      "stop": ["a", "\u00e4b"], "max_tokens": 3.0, "n": 16)";
  for (const CompletionRequest& request : {Chat(fields), Completion(fields)}) {
    EXPECT_EQ(request.model, "m");
    EXPECT_EQ(request.sampling.temperature, 2.0F);
    EXPECT_EQ(request.sampling.top_p, 0.5F);
    EXPECT_EQ(request.sampling.top_k, 40U);
    EXPECT_EQ(request.sampling.min_p, 0.25F);
    EXPECT_EQ(request.sampling.presence_penalty, -2.0F);
    EXPECT_EQ(request.sampling.frequency_penalty, 1.5F);
    EXPECT_EQ(request.sampling.repeat_penalty, 1.25F);
    EXPECT_EQ(request.sampling.seed, std::numeric_limits<uint64_t>::max());
    EXPECT_EQ(request.sampling.logit_bias, (std::map<int32_t, float>{{7, -100.0F}, {2147483647, 0.5F}}));
    EXPECT_EQ(request.stop, (std::vector<std::string>{"a",
                                                      "\xc3\xa4"
                                                      "b"}));
    EXPECT_EQ(request.max_tokens, 3U);
    EXPECT_EQ(request.n, 16U);
  }
}

TEST(OpenAiRequest, OtherNamesAndOtherFormsAreRead) {
  EXPECT_EQ(Chat(R"("repetition_penalty": 1.5)").sampling.repeat_penalty, 1.5F);
  EXPECT_EQ(Chat(R"("repetition_penalty": 1.5, "repeat_penalty": 2)").sampling.repeat_penalty, 2.0F);
  EXPECT_EQ(Chat(R"("top_k": -1)").sampling.top_k, 0U);
  EXPECT_EQ(Chat(R"("seed": -1)").sampling.seed, std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(Chat(R"("seed": -3.0)").sampling.seed, std::numeric_limits<uint64_t>::max() - 2);
  EXPECT_EQ(Chat(R"("stop": "end")").stop, std::vector<std::string>{"end"});
  EXPECT_TRUE(Chat(R"("stop": [])").stop.empty());
}

TEST(OpenAiRequest, MaxCompletionTokensCountsMore) {
  EXPECT_EQ(Chat(R"("max_completion_tokens": 5)").max_tokens, 5U);
  EXPECT_EQ(Chat(R"("max_tokens": 9, "max_completion_tokens": 5)").max_tokens, 5U);
  EXPECT_EQ(Chat(R"("max_tokens": 9, "max_completion_tokens": null)").max_tokens, 9U);
  EXPECT_EQ(Completion(R"("max_tokens": -1)").max_tokens, std::nullopt);
  EXPECT_EQ(Completion(R"("max_tokens": 9007199254740991)").max_tokens, 4294967295U);
  // For the C API it would be no limit.
  EXPECT_EQ(Completion(R"("max_tokens": 1)").max_tokens, 1U);
  EXPECT_EQ(CompletionRefusal(R"("max_tokens": 0)"),
            "max_tokens invalid_value: \"max_tokens\" is 0: it must be 1 or more; leave it out for no limit");
}

TEST(OpenAiRequest, NullCountsAsNotGiven) {
  for (const char* name : {"model",          "temperature",
                           "top_p",          "top_k",
                           "min_p",          "presence_penalty",
                           "stop",           "frequency_penalty",
                           "repeat_penalty", "seed",
                           "logit_bias",     "repetition_penalty",
                           "max_tokens",     "n",
                           "stream",         "max_completion_tokens",
                           "stream_options", "return_progress",
                           "tools",          "logprobs",
                           "top_logprobs",   "response_format",
                           "tool_choice",    "chat_template_kwargs",
                           "echo",           "reasoning_effort",
                           "suffix",         "enable_thinking",
                           "best_of",        "functions",
                           "function_call",  "audio",
                           "modalities",     "web_search_options"}) {
    EXPECT_EQ(ChatRefusal(fmt::format("\"{}\": null", name)), "") << name;
    EXPECT_EQ(CompletionRefusal(fmt::format("\"{}\": null", name)), "") << name;
  }
}

TEST(OpenAiRequest, UnknownFieldsAreIgnored) {
  const std::string fields = R"("user": "u", "store": true, "metadata": {"a": "b"}, "service_tier": "auto",
      "parallel_tool_calls": true, "safety_identifier": "s", "prompt_cache_key": "k", "verbosity": "low",
      "no_such_field": [{"temperature": "hot"}])";
  EXPECT_EQ(ChatRefusal(fields), "");
  EXPECT_EQ(CompletionRefusal(fields), "");
}

TEST(OpenAiRequest, WhatIsOutOfRangeOrOfAnotherTypeIsRefusedByName) {
  struct {
    const char* name;
    std::vector<const char*> bad_values;
  } const cases[] = {
      {"model", {"1", "[]"}},
      {"temperature", {"-0.1", "2.1", "true", "\"1\"", "[]", "{}"}},
      {"top_p", {"-0.1", "1.1", "false"}},
      {"top_k", {"-2", "1.5", "4294967296", "true"}},
      {"min_p", {"-1", "2"}},
      {"presence_penalty", {"-2.5", "2.5"}},
      {"frequency_penalty", {"-2.5", "2.5"}},
      {"repeat_penalty", {"0", "101"}},
      {"repetition_penalty", {"0", "101"}},
      {"seed", {"1.5", "true", "\"7\"", "18446744073709551616", "1e30"}},
      {"logit_bias", {"[]", "{\"a\": 1}", "{\"-1\": 1}", "{\"1 \": 1}", "{\"\": 1}", "{\"2147483648\": 1}"}},
      {"stop", {"\"\"", "[\"a\", \"\"]", "[1]", "7", "{}", "\"a\\u0000b\""}},
      {"max_tokens", {"-2", "0", "1.5", "true", "\"3\""}},
      {"max_completion_tokens", {"-2", "0", "1e30"}},
      {"n", {"0", "17", "1.5", "true"}},
      {"stream", {"1", "\"true\""}},
      {"return_progress", {"0"}},
  };
  for (const auto& field : cases) {
    for (const char* value : field.bad_values) {
      const std::string fields = fmt::format("\"{}\": {}", field.name, value);
      ExpectAll({ChatRefusal(fields), CompletionRefusal(fields)},
                fmt::format("{} invalid_value: \"{}\" is ", field.name, field.name));
    }
  }
  EXPECT_EQ(ChatRefusal(R"("temperature": 3)"),
            "temperature invalid_value: \"temperature\" is 3: it must be a number from 0 to 2");
  EXPECT_EQ(ChatRefusal(R"("logit_bias": {"5": 101})"),
            "logit_bias.5 invalid_value: \"logit_bias.5\" is 101: it must be a number from -100 to 100");
  std::string stops = "\"a\"";
  for (int i = 1; i < 16; ++i) stops += ", \"a\"";
  EXPECT_EQ(Chat("\"stop\": [" + stops + "]").stop.size(), 16U);
  EXPECT_NE(ChatRefusal("\"stop\": [" + stops + ", \"a\"]"), "");
}

TEST(OpenAiRequest, StreamOptionsBelongToAStream) {
  const CompletionRequest request =
      Chat(R"("stream": true, "stream_options": {"include_usage": true}, "return_progress": true)");
  EXPECT_TRUE(request.stream && request.include_usage && request.return_progress);
  EXPECT_FALSE(Chat(R"("stream": true, "stream_options": {})").include_usage);
  for (const char* stream : {"", "\"stream\": false, "}) {
    EXPECT_EQ(ChatRefusal(std::string(stream) + R"("stream_options": {"include_usage": true})"),
              "stream_options invalid_value: \"stream_options\" is an object: it must be left out where "
              "\"stream\" is not true");
  }
  EXPECT_NE(ChatRefusal(R"("stream": true, "stream_options": true)"), "");
  EXPECT_NE(ChatRefusal(R"("stream": true, "stream_options": {"include_usage": 1})"), "");
}

TEST(OpenAiRequest, LogprobsOfAChatAreAFlagAndANumber) {
  EXPECT_EQ(Chat(R"("logprobs": false)").n_logprobs, std::nullopt);
  EXPECT_EQ(Chat(R"("logprobs": true)").n_logprobs, 0U);
  EXPECT_EQ(Chat(R"("logprobs": true, "top_logprobs": 20)").n_logprobs, 20U);
  EXPECT_EQ(Chat(R"("top_logprobs": 0)").n_logprobs, std::nullopt);
  EXPECT_NE(ChatRefusal(R"("logprobs": 1)"), "");
  EXPECT_NE(ChatRefusal(R"("logprobs": true, "top_logprobs": 21)"), "");
  EXPECT_NE(ChatRefusal(R"("logprobs": true, "top_logprobs": true)"), "");
  EXPECT_EQ(ChatRefusal(R"("top_logprobs": 1)"),
            "top_logprobs invalid_value: \"top_logprobs\" is 1: it must be left out where \"logprobs\" is "
            "not true");
}

TEST(OpenAiRequest, LogprobsOfACompletionAreANumber) {
  EXPECT_EQ(Completion(R"("logprobs": 0)").n_logprobs, 0U);
  EXPECT_EQ(Completion(R"("logprobs": 20)").n_logprobs, 20U);
  EXPECT_NE(CompletionRefusal(R"("logprobs": 21)"), "");
  EXPECT_NE(CompletionRefusal(R"("logprobs": true)"), "");
  EXPECT_TRUE(Completion(R"("echo": true)").echo);
  EXPECT_EQ(CompletionRefusal(R"("echo": true, "logprobs": 0)").substr(0, 32),
            "logprobs unsupported_parameter: ");
}

TEST(OpenAiRequest, WhatCannotBeDoneIsRefusedByName) {
  struct {
    const char* name;
    std::vector<const char*> harmless;
    std::vector<const char*> refused;
  } const cases[] = {
      {"tools", {"[]"}, {"[{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]", "true"}},
      {"tool_choice", {"\"none\"", "\"auto\""}, {"\"required\"", "{\"type\": \"function\"}"}},
      {"functions", {"[]"}, {"[{\"name\": \"f\"}]"}},
      {"function_call", {"\"none\"", "\"auto\""}, {"{\"name\": \"f\"}"}},
      {"response_format",
       {"{\"type\": \"text\"}"},
       {"{\"type\": \"json_object\"}", "{\"type\": \"json_schema\", \"json_schema\": {}}", "{}", "\"text\""}},
      {"json_schema", {}, {"{}"}},
      {"grammar", {"\"\""}, {"\"root ::= x\""}},
      {"structured_outputs", {}, {"{\"regex\": \"a\"}"}},
      {"guided_json", {}, {"{}"}},
      {"guided_regex", {}, {"\"a\""}},
      {"guided_choice", {}, {"[\"a\"]"}},
      {"guided_grammar", {}, {"\"a\""}},
      {"modalities", {"[\"text\"]"}, {"[\"text\", \"audio\"]", "[\"audio\"]", "\"text\""}},
      {"audio", {}, {"{\"voice\": \"alloy\", \"format\": \"wav\"}"}},
      {"web_search_options", {}, {"{}"}},
      {"moderation", {}, {"{\"model\": \"m\"}"}},
      {"suffix", {"\"\""}, {"\"end\""}},
      {"use_beam_search", {"false"}, {"true"}},
      {"best_of", {"1"}, {"2"}},
  };
  for (const auto& field : cases) {
    for (const char* value : field.harmless) {
      const std::string fields = fmt::format("\"{}\": {}", field.name, value);
      EXPECT_EQ(ChatRefusal(fields) + CompletionRefusal(fields), "");
    }
    for (const char* value : field.refused) {
      const std::string fields = fmt::format("\"{}\": {}", field.name, value);
      ExpectAll({ChatRefusal(fields), CompletionRefusal(fields)},
                fmt::format("{} unsupported_parameter: \"{}\": this server ", field.name, field.name));
    }
  }
  EXPECT_EQ(CompletionRefusal(R"("n": 3, "best_of": 3)"), "");
  EXPECT_NE(CompletionRefusal(R"("n": 3, "best_of": 4)"), "");
}

TEST(OpenAiRequest, TemplateVariablesAreGathered) {
  EXPECT_EQ(Chat(R"("reasoning_effort": "high")").template_variables, (Json{{"reasoning_effort", "high"}}));
  EXPECT_EQ(Chat(R"("reasoning_effort": "none")").template_variables, (Json{{"enable_thinking", false}}));
  EXPECT_EQ(Chat(R"("enable_thinking": true)").template_variables, (Json{{"enable_thinking", true}}));
  EXPECT_EQ(Chat(R"("reasoning_effort": "none", "enable_thinking": true)").template_variables,
            (Json{{"enable_thinking", true}}));
  EXPECT_EQ(Chat(R"("chat_template_kwargs": {"enable_thinking": false, "x": [1]}, "enable_thinking": true)")
                .template_variables,
            (Json{{"enable_thinking", false}, {"x", {1}}}));
  EXPECT_NE(ChatRefusal(R"("reasoning_effort": "huge")"), "");
  EXPECT_NE(ChatRefusal(R"("enable_thinking": "no")"), "");
  EXPECT_NE(ChatRefusal(R"("chat_template_kwargs": [])"), "");
  // They would take the conversation's place.
  EXPECT_EQ(ChatRefusal(R"("chat_template_kwargs": {"messages": []})").substr(0, 29),
            "chat_template_kwargs.messages");
}

TEST(OpenAiRequest, MessagesAreRead) {
  EXPECT_EQ(Messages(R"([{"role": "developer", "content": "S", "name": "n"},
                         {"content": [{"type": "text", "text": "a\u0000"}, {"text": "b"}], "role": "user"},
                         {"role": "assistant", "content": "", "refusal": null, "tool_calls": []}])"),
            Json::parse(R"([{"role": "system", "content": "S", "name": "n"},
                            {"role": "user", "content": "a\u0000b"},
                            {"role": "assistant", "content": ""}])"));
  EXPECT_EQ(Messages(R"([{"role": "assistant", "content": null, "reasoning_content": "hm"}])"),
            Json::parse(R"([{"role": "assistant", "content": "", "reasoning_content": "hm"}])"));
  EXPECT_EQ(Messages(R"([{"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}])"),
            Json::parse(R"([{"role": "assistant", "content": "no"}])"));
}

TEST(OpenAiRequest, CallsOfToolsInMessagesArePassedOn) {
  EXPECT_EQ(Messages(R"([{"role": "assistant", "tool_calls": [
                            {"id": "1", "type": "function", "function": {"arguments": "{\"a\": 1}"}},
                            {"id": "2", "function": {"name": "g", "arguments": "no JSON"}},
                            {"id": "3", "function": {"name": "h", "arguments": {"b": 2}}}]},
                         {"role": "tool", "tool_call_id": "1", "content": "42"}])"),
            Json::parse(R"([{"role": "assistant", "content": "", "tool_calls": [
                               {"id": "1", "type": "function", "function": {"arguments": {"a": 1}}},
                               {"id": "2", "function": {"name": "g", "arguments": "no JSON"}},
                               {"id": "3", "function": {"name": "h", "arguments": {"b": 2}}}]},
                            {"role": "tool", "content": "42", "tool_call_id": "1"}])"));
  const std::string much(size_t{5} << 20, ' ');
  EXPECT_EQ(MessagesRefusal(R"([{"role": "assistant", "tool_calls": [{"function": {"arguments": ")" + much +
                            R"("}}]}])")
                .substr(0, 62),
            "messages[0].tool_calls[0].function.arguments invalid_value: \"m");
}

TEST(OpenAiRequest, WhatIsWrongWithAMessageIsSaid) {
  struct {
    const char* messages;
    const char* refusal;
  } const cases[] = {
      {"[]", "messages invalid_value: \"messages\" is an empty list: it must be a list of at least one"},
      {"\"Hi\"", "messages invalid_value: \"messages\" is \"Hi\": it must be a list"},
      {"[7]", "messages[0] invalid_value: \"messages[0]\" is 7: it must be an object"},
      {R"([{"content": "a"}])", "messages[0].role missing_required_parameter: "},
      {R"([{"role": "function", "content": "a"}])", "messages[0].role invalid_value: "},
      {R"([{"role": 1, "content": "a"}])", "messages[0].role invalid_value: "},
      {R"([{"role": "user", "content": "a"}, {"role": "user"}])",
       "messages[1].content missing_required_parameter: "},
      {R"([{"role": "user", "content": null, "tool_calls": [{"function": {}}]}])",
       "messages[0].content missing_required_parameter: "},
      {R"([{"role": "assistant", "content": null, "tool_calls": []}])",
       "messages[0].content missing_required_parameter: "},
      {R"([{"role": "user", "content": 1}])", "messages[0].content invalid_value: "},
      {R"([{"role": "user", "content": ["a"]}])", "messages[0].content[0] invalid_value: "},
      {R"([{"role": "user", "content": [{"type": "text"}]}])",
       "messages[0].content[0].text missing_required_parameter: "},
      {R"([{"role": "user", "content": [{"type": "text", "text": 1}]}])",
       "messages[0].content[0].text invalid_value: "},
      {R"([{"role": "user", "content": [{"text": "a"}, {"type": "image_url", "image_url": {"url": "u"}}]}])",
       "messages[0].content[1] unsupported_parameter: \"messages[0].content[1]\" is a part of type "
       "\"image_url\": only text can be read"},
      {R"([{"role": "assistant", "content": "", "reasoning_content": 1}])",
       "messages[0].reasoning_content invalid_value: "},
      {R"([{"role": "assistant", "tool_calls": "x"}])", "messages[0].tool_calls invalid_value: "},
      {R"([{"role": "assistant", "tool_calls": [{"name": "f"}]}])",
       "messages[0].tool_calls[0] invalid_value: "},
  };
  for (const auto& one : cases) ExpectAll({MessagesRefusal(one.messages)}, one.refusal);
  EXPECT_EQ(Refusal([] { ParseChatRequest("{\"prompt\": \"a\"}"); }).substr(0, 36),
            "messages missing_required_parameter:");
}

TEST(OpenAiRequest, PromptsAreTextsOrLists) {
  const auto prompts = [](const std::string& value) {
    std::string shown;
    for (const CompletionRequest::Prompt& prompt :
         ParseCompletionRequest(R"({"prompt": )" + value + "}").prompts) {
      shown += prompt.is_ids ? fmt::format("<{}>", fmt::join(prompt.ids, ",")) : "'" + prompt.text + "'";
    }
    return shown;
  };
  EXPECT_EQ(prompts(R"("a")"), "'a'");
  EXPECT_EQ(prompts(R"(["a", "b"])"), "'a''b'");
  EXPECT_EQ(prompts("[1, 2.0, 2147483647]"), "<1,2,2147483647>");
  EXPECT_EQ(prompts("[[1], [2, 3]]"), "<1><2,3>");
  for (const char* value :
       {"\"\"",      "[]",       "[[]]",         "[\"\"]", "[\"a\", \"\"]", "[\"a\", 1]",   "[1, \"a\"]",
        "[[1], []]", "[[1], 2]", "[[1], \"a\"]", "[-1]",   "[1.5]",         "[2147483648]", "[true]",
        "[null]",    "7",        "{}",           "true",   "[{}]",          "[[[1]]]"}) {
    EXPECT_EQ(PromptRefusal(value).substr(0, 6), "prompt") << value;
  }
  EXPECT_EQ(PromptRefusal("null").substr(0, 34), "prompt missing_required_parameter:");
  EXPECT_EQ(PromptRefusal("[1, 2, true]").substr(0, 40), "prompt[2] invalid_value: \"prompt[2]\" is ");
  std::string many = "\"a\"";
  for (int i = 1; i < 16; ++i) many += ", \"a\"";
  EXPECT_EQ(PromptRefusal("[" + many + "]"), "");
  EXPECT_NE(PromptRefusal("[" + many + ", \"a\"]"), "");
}

TEST(OpenAiRequest, TokensAreRead) {
  const TokenizeRequest plain = ParseTokenizeRequest(R"({"content": ""})");
  EXPECT_TRUE(plain.content.empty() && !plain.add_special && !plain.parse_special);
  const TokenizeRequest special =
      ParseTokenizeRequest(R"({"content": "a", "add_special": true, "parse_special": true})");
  EXPECT_EQ(special.content, "a");
  EXPECT_TRUE(special.add_special && special.parse_special);
  EXPECT_NE(Refusal([] { ParseTokenizeRequest("{}"); }), "");
  EXPECT_NE(Refusal([] { ParseTokenizeRequest(R"({"content": ["a"]})"); }), "");
  EXPECT_EQ(ParseDetokenizeRequest(R"({"tokens": [5, 0]})"), (std::vector<int32_t>{5, 0}));
  EXPECT_TRUE(ParseDetokenizeRequest(R"({"tokens": []})").empty());
  EXPECT_NE(Refusal([] { ParseDetokenizeRequest("{}"); }), "");
  EXPECT_EQ(Refusal([] { ParseDetokenizeRequest(R"({"tokens": [5, -1]})"); }).substr(0, 24),
            "tokens[1] invalid_value:");
}

TEST(OpenAiRequest, WhatIsNoJsonObjectIsRefused) {
  for (const char* body : {"", " ", "{", "{\"a\": 1,}", "nul", "{\"a\": 1} x", "{\"a\": 1e999}",
                           "{\"a\": \"\\ud800\"}", "{\"a\": \"\xff\"}", "{\"a\": \"\xc0\x80\"}",
                           "{\"a\": \"\xed\xa0\x80\"}", "{\"a\": \"\n\"}", "\xff\xfe{"}) {
    ExpectAll(BodyRefusals(body), " : the body cannot be read as JSON: ");
  }
  ExpectAll(BodyRefusals("[1]"), " : the body is not a JSON object");
  ExpectAll(BodyRefusals("null"), " : the body is not a JSON object");
}

TEST(OpenAiRequest, ARefusalIsShortHoweverLongTheValueIs) {
  const std::string much(size_t{1} << 20, 'x');
  for (const std::string& refusal :
       {ChatRefusal("\"n\": \"" + much + "\""), ChatRefusal("\"logit_bias\": {\"" + much + "\": 1}"),
        MessagesRefusal(R"([{"role": "user", "content": [{"type": ")" + much + "\"}]}]"),
        BodyRefusals("{\"a\": \"" + much + "\xff\"}")[0]}) {
    EXPECT_GT(refusal.size(), 20U);
    EXPECT_LT(refusal.size(), 600U);
  }
}

TEST(OpenAiRequest, DepthAndSizeHaveLimits) {
  for (const char* open : {"[", "{\"a\":"}) {
    std::string body;
    for (int i = 0; i < 1'000'000; ++i) body += open;
    ExpectAll(BodyRefusals(body), " : the body is nested more than 100 deep");
  }
  const auto nested = [](size_t depth) {
    return "\"x\": " + std::string(depth - 1, '[') + std::string(depth - 1, ']');
  };
  EXPECT_EQ(ChatRefusal(nested(100)), "");
  EXPECT_NE(ChatRefusal(nested(101)), "");
  // Brackets in a text are none.
  EXPECT_EQ(ChatRefusal("\"x\": \"\\\"" + std::string(1000, '[') + "\""), "");

  std::string values = "0";
  for (int i = 0; i < 2'000'000; ++i) values += ",0";
  ExpectAll(BodyRefusals("{\"x\": [" + values + "]}"), " : the body has more than 2000000 values");
  std::string biases = "\"0\":0";
  for (int i = 1; i < 4'000; ++i) biases += fmt::format(",\"{}\":0", i);
  EXPECT_EQ(Chat("\"logit_bias\": {" + biases + "}").sampling.logit_bias.size(), 4'000U);
  ExpectAll({ChatRefusal("\"logit_bias\": {" + biases + ",\"4000\":0}")},
            " : the body has an object of more than 4000 members");
  std::string members = "0";
  for (int i = 0; i < 100'000; ++i) members += ",{\"a\":0}";
  ExpectAll(BodyRefusals("{\"x\": [" + members + "]}"),
            " : the body has more than 100000 members in its objects");
}

// A parser of nlohmann's that has a callback would take a minute.
TEST(OpenAiRequest, ManyObjectsInAListAreReadAtOnce) {
  std::string objects = "{}";
  for (int i = 0; i < 300'000; ++i) objects += ",{}";
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(ChatRefusal("\"x\": [" + objects + "]"), "");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

}  // namespace
}  // namespace kvrun::serve
