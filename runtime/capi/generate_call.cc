#include "runtime/capi/generate_call.h"

#include <algorithm>
#include <array>
#include <utility>

#include "runtime/capi/border.h"

namespace kvrun::capi {
namespace {

Result<GenerateOptions> Translate(const kvrun_generate_options& given) {
  GenerateOptions options;
  options.max_tokens = given.max_tokens;
  options.sampler = {given.temperature,
                     given.top_k,
                     given.top_p,
                     given.min_p,
                     given.repetition_penalty,
                     given.repetition_window,
                     given.seed,
                     given.presence_penalty,
                     given.frequency_penalty};
  if (given.n_logprobs > 0) {
    KVRUN_RETURN_IF_ERROR(CheckNotNull(reinterpret_cast<const void*>(given.logprobs), "logprobs"));
    options.n_logprobs = given.n_logprobs;
  }
  options.ignore_end = given.ignore_end != 0;
  options.repeat_limit = given.repeat_limit;
  options.draws_by_seed_alone = given.draws_by_seed_alone != 0;
  if (given.n_logit_bias > 0) KVRUN_RETURN_IF_ERROR(CheckNotNull(given.logit_bias, "logit_bias"));
  for (size_t i = 0; i < given.n_logit_bias; ++i)
    options.sampler.logit_bias.push_back({given.logit_bias[i].token, given.logit_bias[i].bias});
  if (given.n_stop > 0) KVRUN_RETURN_IF_ERROR(CheckNotNull(given.stop, "stop"));
  for (size_t i = 0; i < given.n_stop; ++i) {
    KVRUN_RETURN_IF_ERROR(CheckNotNull(given.stop[i], "stop[]"));
    options.stops.emplace_back(given.stop[i]);
  }
  return options;
}

// Whom to tell of a sequence's log-probabilities.
struct Listener {
  kvrun_logprobs_fn tell;
  void* user;
};

}  // namespace

kvrun_finish FinishToC(Finish finish) {
  switch (finish) {
    case Finish::kLength: return KVRUN_FINISH_LENGTH;
    case Finish::kEnd: return KVRUN_FINISH_END;
    case Finish::kStop: return KVRUN_FINISH_STOP;
    case Finish::kContextFull: return KVRUN_FINISH_CONTEXT_FULL;
    case Finish::kCancelled: return KVRUN_FINISH_CANCELLED;
    case Finish::kRepeats: return KVRUN_FINISH_REPEATS;
  }
  return KVRUN_FINISH_CANCELLED;
}

Status GenerateCall::Add(const kvrun_generate_options* one) {
  kvrun_generate_options_init(&given.emplace_back());
  KVRUN_RETURN_IF_ERROR(ReadOptions(one, "kvrun_generate_options", &given.back()));
  KVRUN_ASSIGN_OR_RETURN(GenerateOptions translated, Translate(given.back()));
  options.push_back(std::move(translated));
  return Status::Ok();
}

TokenCallback GenerateCall::BindToken(kvrun_token_fn token, void* user,
                                      std::span<const uint32_t> sequences) const {
  if (token == nullptr && std::all_of(given.begin(), given.end(), [](const kvrun_generate_options& one) {
        return one.n_logprobs == 0;
      })) {
    return {};
  }
  std::array<Listener, KVRUN_MAX_SEQUENCES> listeners{};  // of each sequence of the session
  for (size_t i = 0; i < sequences.size(); ++i) {
    const kvrun_generate_options& own = given.size() == 1 ? given.front() : given[i];
    if (sequences[i] < listeners.size()) listeners[sequences[i]] = {own.logprobs, own.logprobs_user};
  }
  return [token, user, listeners](const GeneratedToken& generated) {
    if (!generated.logprobs.empty()) {
      std::array<kvrun_token_logprob, kMaxLogprobs + 1> logprobs;
      const size_t n_likeliest = generated.logprobs.size() - 1;
      std::transform(generated.logprobs.begin(), generated.logprobs.end(), logprobs.begin(),
                     [](const TokenLogprob& one) {
                       return kvrun_token_logprob{one.id, one.logprob};
                     });
      const Listener& listener = listeners[generated.sequence];
      listener.tell(listener.user, generated.sequence, logprobs[n_likeliest], logprobs.data(), n_likeliest);
    }
    if (token == nullptr) return false;
    const char* text = generated.text.empty() ? "" : generated.text.data();
    return token(user, generated.sequence, generated.id, text, generated.text.size()) != 0;
  };
}

}  // namespace kvrun::capi

extern "C" {

void kvrun_generate_options_init(kvrun_generate_options* options) {
  if (options == nullptr) return;
  const kvrun::SamplerOptions sampler;
  *options = {};
  options->struct_size = sizeof(*options);
  options->temperature = sampler.temperature;
  options->top_k = sampler.top_k;
  options->top_p = sampler.top_p;
  options->min_p = sampler.min_p;
  options->repetition_penalty = sampler.repetition_penalty;
  options->repetition_window = sampler.repetition_window;
  options->seed = sampler.seed;
  options->presence_penalty = sampler.presence_penalty;
  options->frequency_penalty = sampler.frequency_penalty;
}

}  // extern "C"
