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
  if (!set.Given("--seed") || generation->has_random_seed) values->seed = RandomSeed();
  generation->has_random_seed = false;
}

std::string SamplingText(const kvrun_generate_options& values) {
  if (values.temperature == 0) return "sampling: none, always the likeliest token (temperature 0)";
  std::string text = fmt::format("sampling: temperature {}", values.temperature);
  if (values.top_k != 0) text += fmt::format(", top-k {}", values.top_k);
  if (values.top_p < 1) text += fmt::format(", top-p {}", values.top_p);
  if (values.min_p > 0) text += fmt::format(", min-p {}", values.min_p);
  return text + fmt::format(", seed {}", values.seed);
}

}  // namespace kvrun::cli
