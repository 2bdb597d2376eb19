// What kvrun serve answers, field by field.
#include "apps/kvserve/openai_reply.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "apps/kvserve/openai_error.h"

namespace kvrun::serve {
namespace {

const ReplyHead kChatHead = {true, "chatcmpl-1", 1700000000, "m"};
const ReplyHead kTextHead = {false, "cmpl-1", 1700000000, "m"};

void ExpectJson(const Json& json, const char* expected) {
  EXPECT_EQ(cli::DumpJson(json), cli::DumpJson(Json::parse(expected)));
}

// Of a character in two tokens the first, and a whole one that could have been taken.
StepLogprobs HalfStep() { return {{"\xc3", -0.5F}, {{" a", -0.25F}, {"\xc3", -0.5F}}}; }
StepLogprobs OtherHalfStep() {
  return {{"\xa4", -std::numeric_limits<float>::infinity()}, {{"b", 0.0F}, {"b", -2.0F}}};
}

TEST(OpenAiReply, ChatAnswers) {
  Choice plain;
  plain.text = "Hi";
  plain.finish_reason = "stop";
  Choice thinking = plain;
  thinking.index = 1;
  thinking.reasoning = "Hm";
  thinking.finish_reason = "length";
  ExpectJson(ReplyJson(kChatHead, {plain, thinking}, {10, 4, 8, 3}), R"({
      "id": "chatcmpl-1", "object": "chat.completion", "created": 1700000000, "model": "m",
      "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "Hi", "refusal": null}, "logprobs": null,
         "finish_reason": "stop"},
        {"index": 1, "message": {"role": "assistant", "content": "Hi", "refusal": null,
                                 "reasoning_content": "Hm"}, "logprobs": null, "finish_reason": "length"}],
      "usage": {"prompt_tokens": 10, "completion_tokens": 4, "total_tokens": 14,
                "prompt_tokens_details": {"cached_tokens": 8},
                "completion_tokens_details": {"reasoning_tokens": 3}}})");
}

TEST(OpenAiReply, ChatLogprobsHaveTheBytesOfEachToken) {
  Choice choice;
  choice.finish_reason = "stop";
  choice.has_logprobs = true;
  choice.logprobs = {HalfStep(), OtherHalfStep()};
  ExpectJson(ReplyJson(kChatHead, {choice}, {})["choices"][0]["logprobs"], R"({"content": [
      {"token": "\\xc3", "logprob": -0.5, "bytes": [195], "top_logprobs": [
         {"token": " a", "logprob": -0.25, "bytes": [32, 97]},
         {"token": "\\xc3", "logprob": -0.5, "bytes": [195]}]},
      {"token": "\\xa4", "logprob": -9999.0, "bytes": [164], "top_logprobs": [
         {"token": "b", "logprob": 0.0, "bytes": [98]}, {"token": "b", "logprob": -2.0, "bytes": [98]}]}],
      "refusal": null})");
  choice.logprobs.clear();
  ExpectJson(ReplyJson(kChatHead, {choice}, {})["choices"][0]["logprobs"],
             R"({"content": [], "refusal": null})");
}

TEST(OpenAiReply, CompletionAnswers) {
  Choice choice;
  choice.text = "\xc3\xa4";
  choice.finish_reason = "length";
  choice.has_logprobs = true;
  choice.logprobs = {HalfStep(), OtherHalfStep(), {{"c", -1.0F}, {}}};
  const Json json = ReplyJson(kTextHead, {choice}, {});
  EXPECT_EQ(json["object"], "text_completion");
  // The token that was taken is there though it is not among the likeliest, and "b" is not there twice.
  ExpectJson(json["choices"], R"([{"index": 0, "text": "\u00e4", "logprobs": {
      "tokens": ["bytes:\\xc3", "bytes:\\xa4", "c"], "token_logprobs": [-0.5, -9999.0, -1.0],
      "top_logprobs": [{" a": -0.25, "bytes:\\xc3": -0.5}, {"b": 0.0, "bytes:\\xa4": -9999.0}, {"c": -1.0}],
      "text_offset": [0, 1, 1]}, "finish_reason": "length"}])");
  choice.has_logprobs = false;
  EXPECT_TRUE(ReplyJson(kTextHead, {choice}, {})["choices"][0]["logprobs"].is_null());
}

TEST(OpenAiReply, BytesOfNoCharacterAreShownAsSuch) {
  const auto shown = [](const std::string& text) {
    Choice choice;
    choice.has_logprobs = true;
    choice.logprobs = {{{text, 0.0F}, {}}};
    return ReplyJson(kChatHead, {choice}, {})["choices"][0]["logprobs"]["content"][0]["token"]
        .get<std::string>();
  };
  const std::string whole = std::string("a\0", 2) + "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80\xf4\x8f\xbf\xbf";
  EXPECT_EQ(shown(whole), whole);
  EXPECT_EQ(shown(" \xe2\x82"), " \\xe2\\x82");
  EXPECT_EQ(shown("\x80z"), "\\x80z");
  EXPECT_EQ(shown("\xc0\x80"), "\\xc0\\x80");                    // longer than need be
  EXPECT_EQ(shown("\xe0\x80\x80"), "\\xe0\\x80\\x80");           // the same
  EXPECT_EQ(shown("\xf0\x80\x80\x80"), "\\xf0\\x80\\x80\\x80");  // the same
  EXPECT_EQ(shown("\xed\xa0\x80"), "\\xed\\xa0\\x80");           // a surrogate
  EXPECT_EQ(shown("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");  // beyond the last
  EXPECT_EQ(shown("\xff"), "\\xff");
  // Each is what JSON takes unchanged, so that nothing of it is lost on the way.
  for (const std::string& text : {whole, std::string("\xed\xa0\x80"), std::string("\xf0\x9f\x98")})
    EXPECT_NO_THROW(Json(shown(text)).dump());
}

TEST(OpenAiReply, CharactersAreCountedOverTokens) {
  EXPECT_EQ(CountCharacters(""), 0U);
  EXPECT_EQ(CountCharacters("a\xc3\xa4\xf0\x9f\x98\x80"), 3U);
  EXPECT_EQ(CountCharacters("\xf0\x9f") + CountCharacters("\x98\x80"), 1U);
}

Json ChatDelta(const Piece& piece) { return PieceJson(kChatHead, piece, false)["choices"][0]; }

TEST(OpenAiReply, PiecesOfAChat) {
  Piece piece;
  piece.index = 2;
  piece.is_first = true;
  piece.text = "Hi";
  ExpectJson(PieceJson(kChatHead, piece, false), R"({
      "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1700000000, "model": "m",
      "choices": [{"index": 2, "delta": {"role": "assistant", "content": "Hi"}, "logprobs": null,
                   "finish_reason": null}]})");
  EXPECT_TRUE(PieceJson(kChatHead, piece, true).at("usage").is_null());
  piece.text = "";
  ExpectJson(ChatDelta(piece)["delta"], R"({"role": "assistant", "content": ""})");
  piece.reasoning = "Hm";
  ExpectJson(ChatDelta(piece)["delta"], R"({"role": "assistant", "reasoning_content": "Hm"})");
  piece.is_first = false;
  piece.text = "a";
  ExpectJson(ChatDelta(piece)["delta"], R"({"content": "a", "reasoning_content": "Hm"})");
  piece.text = piece.reasoning = "";
  piece.finish_reason = "stop";
  ExpectJson(ChatDelta(piece), R"({"index": 2, "delta": {}, "logprobs": null, "finish_reason": "stop"})");
  piece.is_first = true;
  ExpectJson(ChatDelta(piece)["delta"], R"({"role": "assistant", "content": ""})");
}

TEST(OpenAiReply, PiecesWithLogprobs) {
  const StepLogprobs step = HalfStep();
  Piece piece;
  piece.logprobs = &step;
  piece.text_offset = 7;
  ExpectJson(ChatDelta(piece), R"({"index": 0, "delta": {"content": ""}, "logprobs": {"content": [
      {"token": "\\xc3", "logprob": -0.5, "bytes": [195], "top_logprobs": [
         {"token": " a", "logprob": -0.25, "bytes": [32, 97]},
         {"token": "\\xc3", "logprob": -0.5, "bytes": [195]}]}], "refusal": null}, "finish_reason": null})");
  ExpectJson(PieceJson(kTextHead, piece, true), R"({
      "id": "cmpl-1", "object": "text_completion", "created": 1700000000, "model": "m",
      "choices": [{"index": 0, "text": "", "logprobs": {"tokens": ["bytes:\\xc3"], "token_logprobs": [-0.5],
          "top_logprobs": [{" a": -0.25, "bytes:\\xc3": -0.5}], "text_offset": [7]}, "finish_reason": null}],
      "usage": null})");
}

TEST(OpenAiReply, ChunksWithoutChoices) {
  ExpectJson(UsageChunk(kTextHead, {1, 2, 0, 0}), R"({
      "id": "cmpl-1", "object": "text_completion", "created": 1700000000, "model": "m", "choices": [],
      "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3,
                "prompt_tokens_details": {"cached_tokens": 0},
                "completion_tokens_details": {"reasoning_tokens": 0}}})");
  ExpectJson(ProgressChunk(kChatHead, 100, 20, 60, 1234), R"({
      "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1700000000, "model": "m",
      "choices": [], "prompt_progress": {"total": 100, "cache": 20, "processed": 60, "time_ms": 1234}})");
}

TEST(OpenAiReply, Models) {
  ExpectJson(ModelsJson("m", 5), R"({"object": "list", "data": [
      {"id": "m", "object": "model", "created": 5, "owned_by": "kvrun"}]})");
  ExpectJson(ModelJson("m", 5), R"({"id": "m", "object": "model", "created": 5, "owned_by": "kvrun"})");
}

TEST(OpenAiReply, IdsDiffer) {
  std::set<std::string> ids;
  for (int i = 0; i < 1000; ++i) ids.insert(NewReplyId(i % 2 == 0));
  EXPECT_EQ(ids.size(), 1000U);
  for (const std::string& id : ids) {
    const size_t prefix_bytes = id.find('-') + 1;
    EXPECT_TRUE(id.substr(0, prefix_bytes) == "chatcmpl-" || id.substr(0, prefix_bytes) == "cmpl-");
    EXPECT_EQ(id.size(), prefix_bytes + 24);
    EXPECT_TRUE(std::all_of(id.begin() + static_cast<std::ptrdiff_t>(prefix_bytes), id.end(), [](char c) {
      return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
    })) << id;
  }
}

TEST(OpenAiReply, ErrorsNameTheirType) {
  ExpectJson(ErrorJson(ApiError(400, "wrong", "n", "invalid_value")), R"({"error": {"message": "wrong",
      "type": "invalid_request_error", "param": "n", "code": "invalid_value"}})");
  ExpectJson(ErrorJson(ApiError(500, "oh")),
             R"({"error": {"message": "oh", "type": "server_error", "param": null, "code": null}})");
  const std::pair<unsigned, const char*> types[] = {
      {401, "authentication_error"},  {403, "permission_error"},      {404, "invalid_request_error"},
      {405, "invalid_request_error"}, {413, "invalid_request_error"}, {429, "rate_limit_error"},
      {501, "server_error"},          {503, "service_unavailable"}};
  for (const auto& [status, type] : types)
    EXPECT_EQ(ErrorJson(ApiError(status, ""))["error"]["type"], type) << status;
}

}  // namespace
}  // namespace kvrun::serve
