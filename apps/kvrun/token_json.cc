#include "apps/kvrun/token_json.h"

#include <string>

namespace kvrun::cli {
namespace {

Json OneLogprob(const Model& model, const kvrun_token_logprob& one) {
  return {{"token", one.token}, {"text", TextOfToken(model, one.token)}, {"logprob", one.logprob}};
}

Json TopJson(const Model& model, const StepLogprobs& logprobs) {
  Json top = Json::array();
  for (const kvrun_token_logprob& one : logprobs.likeliest) top.push_back(OneLogprob(model, one));
  return top;
}

}  // namespace

Json LogprobsJson(const Model& model, const StepLogprobs& logprobs) {
  Json json = OneLogprob(model, logprobs.taken);
  json["top"] = TopJson(model, logprobs);
  return json;
}

Json LogprobsJson(const Model& model, const std::vector<StepLogprobs>& logprobs) {
  Json json = Json::array();
  for (const StepLogprobs& step : logprobs) json.push_back(LogprobsJson(model, step));
  return json;
}

Json AnswerJson(const Answer& answer, size_t n_prompt_tokens, bool shows_reasoning) {
  Json json = {{"text", answer.text}};
  if (shows_reasoning && !answer.reasoning.empty()) json["reasoning"] = answer.reasoning;
  json["tokens"] = answer.tokens;
  json["finish"] = FinishName(answer.finish);
  json["prompt_tokens"] = n_prompt_tokens;
  return json;
}

Json PieceJson(const Model& model, const GeneratedPiece& piece) {
  Json json = {{"text", std::string(piece.text)}};
  if (piece.is_reasoning) json["reasoning"] = true;
  json["token"] = piece.token < 0 ? Json() : Json(piece.token);
  if (piece.logprobs == nullptr) return json;
  json["logprob"] = piece.logprobs->taken.logprob;
  json["top"] = TopJson(model, *piece.logprobs);
  return json;
}

}  // namespace kvrun::cli
