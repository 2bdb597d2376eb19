#include "apps/kvserve/openai_reply.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

namespace kvrun::serve {
namespace {

constexpr double kLeastLogprob = -9999.0;  // OpenAI's stand-in

bool IsContinuation(unsigned char byte) { return (byte & 0xC0U) == 0x80; }

// How many bytes the character has that the text begins with; 0: it begins with none.
size_t CharacterBytes(std::string_view text) {
  const auto byte_at = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
  const unsigned lead = byte_at(0);
  if (lead < 0x80) return 1;
  const size_t n_bytes = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  // Longer than need be, surrogates, and beyond the last character.
  const unsigned second = byte_at(1);
  if (lead < 0xC2 || lead > 0xF4 || (lead == 0xE0 && second < 0xA0) || (lead == 0xED && second > 0x9F) ||
      (lead == 0xF0 && second < 0x90) || (lead == 0xF4 && second > 0x8F)) {
    return 0;
  }
  for (size_t i = 1; i < n_bytes; ++i) {
    if (!IsContinuation(static_cast<unsigned char>(byte_at(i)))) return 0;
  }
  return n_bytes;
}

// Bytes of no character as "\xe2", after `mark` if there are any.
std::string ShownToken(std::string_view text, std::string_view mark) {
  std::string shown;
  bool is_whole = true;
  while (!text.empty()) {
    const size_t n_bytes = CharacterBytes(text);
    if (n_bytes == 0) {
      shown += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[0]));
      is_whole = false;
    } else {
      shown += text.substr(0, n_bytes);
    }
    text.remove_prefix(std::max<size_t>(n_bytes, 1));
  }
  return is_whole ? shown : std::string(mark) + shown;
}

std::string ShownInCompletion(const TokenLogprob& token) { return ShownToken(token.text, "bytes:"); }

double FiniteLogprob(const TokenLogprob& token) {
  return std::isfinite(token.logprob) ? token.logprob : kLeastLogprob;
}

Json ChatTokenJson(const TokenLogprob& token) {
  Json bytes = Json::array();
  for (const char c : token.text) bytes.push_back(static_cast<unsigned char>(c));
  return {
      {"token", ShownToken(token.text, "")}, {"logprob", FiniteLogprob(token)}, {"bytes", std::move(bytes)}};
}

using StepPointer = const StepLogprobs*;

Json ChatLogprobs(StepPointer begin, StepPointer end) {
  Json content = Json::array();
  for (StepPointer step = begin; step != end; ++step) {
    Json json = ChatTokenJson(step->taken);
    Json& likeliest = json["top_logprobs"] = Json::array();
    for (const TokenLogprob& token : step->likeliest) likeliest.push_back(ChatTokenJson(token));
    content.push_back(std::move(json));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

// The token that was taken is always among them.
Json CompletionTopJson(const StepLogprobs& step) {
  Json top = Json::object();
  // Of different tokens of one text the likelier stays.
  for (const TokenLogprob& token : step.likeliest)
    top.emplace(ShownInCompletion(token), FiniteLogprob(token));
  top.emplace(ShownInCompletion(step.taken), FiniteLogprob(step.taken));
  return top;
}

Json CompletionLogprobs(StepPointer begin, StepPointer end, uint64_t text_offset) {
  Json tokens = Json::array();
  Json logprobs = Json::array();
  Json top = Json::array();
  Json offsets = Json::array();
  for (StepPointer step = begin; step != end; ++step) {
    tokens.push_back(ShownInCompletion(step->taken));
    logprobs.push_back(FiniteLogprob(step->taken));
    top.push_back(CompletionTopJson(*step));
    offsets.push_back(text_offset);
    text_offset += CountCharacters(step->taken.text);
  }
  return {{"tokens", std::move(tokens)},
          {"token_logprobs", std::move(logprobs)},
          {"top_logprobs", std::move(top)},
          {"text_offset", std::move(offsets)}};
}

Json HeadJson(const ReplyHead& head, const char* chat_object) {
  return {{"id", head.id},
          {"object", head.is_chat ? chat_object : "text_completion"},
          {"created", head.created_s},
          {"model", head.model}};
}

Json ChunkJson(const ReplyHead& head) {
  Json json = HeadJson(head, "chat.completion.chunk");
  json["choices"] = Json::array();
  return json;
}

Json ChoiceJson(bool is_chat, const Choice& choice) {
  Json json = {{"index", choice.index}};
  if (is_chat) {
    Json& message = json["message"] = {{"role", "assistant"}, {"content", choice.text}, {"refusal", nullptr}};
    if (!choice.reasoning.empty()) message["reasoning_content"] = choice.reasoning;
  } else {
    json["text"] = choice.text;
  }
  json["logprobs"] = nullptr;
  if (choice.has_logprobs) {
    const StepPointer begin = choice.logprobs.data();
    const StepPointer end = begin + choice.logprobs.size();
    json["logprobs"] = is_chat ? ChatLogprobs(begin, end) : CompletionLogprobs(begin, end, 0);
  }
  json["finish_reason"] = choice.finish_reason;
  return json;
}

Json DeltaJson(const Piece& piece) {
  Json delta = Json::object();
  if (piece.is_first) delta["role"] = "assistant";
  // Something has to be there while it goes on, also where a token's text is not known yet.
  const bool says_nothing_else = piece.reasoning.empty() && (piece.is_first || piece.finish_reason.empty());
  if (!piece.text.empty() || says_nothing_else) delta["content"] = piece.text;
  if (!piece.reasoning.empty()) delta["reasoning_content"] = piece.reasoning;
  return delta;
}

}  // namespace

uint64_t CountCharacters(std::string_view text) {
  return static_cast<uint64_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return !IsContinuation(static_cast<unsigned char>(c)); }));
}

Json UsageJson(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}},
          {"completion_tokens_details", {{"reasoning_tokens", usage.reasoning_tokens}}}};
}

std::string NewReplyId(bool is_chat) {
  constexpr std::string_view kLetters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  constexpr size_t kRandomLetters = 24;
  std::random_device random;
  std::uniform_int_distribution<size_t> place(0, kLetters.size() - 1);
  std::string id = is_chat ? "chatcmpl-" : "cmpl-";
  for (size_t i = 0; i < kRandomLetters; ++i) id += kLetters[place(random)];
  return id;
}

Json ReplyJson(const ReplyHead& head, const std::vector<Choice>& choices, const Usage& usage) {
  Json json = HeadJson(head, "chat.completion");
  Json& list = json["choices"] = Json::array();
  for (const Choice& choice : choices) list.push_back(ChoiceJson(head.is_chat, choice));
  json["usage"] = UsageJson(usage);
  return json;
}

Json PieceJson(const ReplyHead& head, const Piece& piece, bool has_usage) {
  Json json = ChunkJson(head);
  Json choice = {{"index", piece.index}};
  if (head.is_chat) {
    choice["delta"] = DeltaJson(piece);
  } else {
    choice["text"] = piece.text;
  }
  choice["logprobs"] = nullptr;
  if (const StepPointer step = piece.logprobs; step != nullptr) {
    choice["logprobs"] =
        head.is_chat ? ChatLogprobs(step, step + 1) : CompletionLogprobs(step, step + 1, piece.text_offset);
  }
  choice["finish_reason"] = piece.finish_reason.empty() ? Json() : Json(piece.finish_reason);
  json["choices"].push_back(std::move(choice));
  if (has_usage) json["usage"] = nullptr;
  return json;
}

Json UsageChunk(const ReplyHead& head, const Usage& usage) {
  Json json = ChunkJson(head);
  json["usage"] = UsageJson(usage);
  return json;
}

Json ProgressChunk(const ReplyHead& head, uint64_t total, uint64_t cached, uint64_t processed,
                   uint64_t time_ms) {
  Json json = ChunkJson(head);
  json["prompt_progress"] = {
      {"total", total}, {"cache", cached}, {"processed", processed}, {"time_ms", time_ms}};
  return json;
}

Json ModelJson(const std::string& id, int64_t created_s) {
  return {{"id", id}, {"object", "model"}, {"created", created_s}, {"owned_by", "kvrun"}};
}

Json ModelsJson(const std::string& id, int64_t created_s) {
  return {{"object", "list"}, {"data", Json::array({ModelJson(id, created_s)})}};
}

}  // namespace kvrun::serve
