#include "apps/kvrun/chat_sampling.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <cerrno>
#include <chrono>

namespace kvrun::cli {
namespace {

uint64_t RandomSeed() {
  uint64_t seed = 0;
  ssize_t size;
  do {
    size = ::getrandom(&seed, sizeof seed, 0);
  } while (size < 0 && errno == EINTR);
  // A system without it: any seed does, as long as it differs from chat to chat.
  if (size != sizeof seed) {
    seed = static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  }
  return seed;
}

}  // namespace

void ChooseSampling(const OptionSet& set, const Json& model_info, GenerationOptions* generation) {
  kvrun_generate_options* values = &generation->values;
  const Json advice = model_info.value("sampling", Json::object());
  const auto choose = [&](const char* option, const char* name, auto otherwise, auto* value) {
    if (set.Given(option)) return;
    const Json advised = advice.value(name, Json());
    *value = advised.is_number() ? advised.get<decltype(otherwise)>() : otherwise;
  };
  choose("--temp", "temperature", kChatTemperature, &values->temperature);
  choose("--top-k", "top_k", uint32_t{0}, &values->top_k);
  choose("--top-p", "top_p", kChatTopP, &values->top_p);
  choose("--min-p", "min_p", 0.0F, &values->min_p);
  AvoidRepetition(set, model_info, generation);
  if (!set.Given("--seed") || generation->has_random_seed) values->seed = RandomSeed();
  generation->has_random_seed = false;
}

void AvoidRepetition(const OptionSet& set, const Json& model_info, GenerationOptions* generation) {
  generation->values.repeat_limit = generation->ignore_end ? 0 : kRepeatLimit;
  if (set.Given("--repeat-penalty")) return;
  const Json parameters = model_info.value("parameters", Json());
  if (parameters.is_number() && parameters.get<double>() < static_cast<double>(kSmallModelParameters))
    generation->values.repetition_penalty = kSmallModelPenalty;
}

std::string SamplingText(const kvrun_generate_options& values) {
  const std::string penalty =
      values.repetition_penalty == 1 ? "" : fmt::format(", repeat penalty {}", values.repetition_penalty);
  if (values.temperature == 0) return "sampling none, always the likeliest token (temperature 0)" + penalty;
  std::string text = fmt::format("sampling temperature {}", values.temperature);
  if (values.top_k != 0) text += fmt::format(", top-k {}", values.top_k);
  if (values.top_p < 1) text += fmt::format(", top-p {}", values.top_p);
  if (values.min_p > 0) text += fmt::format(", min-p {}", values.min_p);
  return text + penalty + fmt::format(", seed {}", values.seed);
}

}  // namespace kvrun::cli
