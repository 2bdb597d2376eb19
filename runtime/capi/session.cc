#include "runtime/engine/session/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/capi/border.h"
#include "runtime/capi/handles.h"
#include "runtime/capi/session_options.h"
#include "runtime/capi/session_stats.h"

using kvrun::Status;
using kvrun::StatusCode;
using kvrun::TokenId;
using kvrun::capi::CheckNotNull;
using kvrun::capi::Guard;

namespace {

kvrun::Result<kvrun::GenerateOptions> Translate(const kvrun_generate_options& given) {
  kvrun::GenerateOptions options;
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
  if (given.n_stop > 0) KVRUN_RETURN_IF_ERROR(CheckNotNull(given.stop, "stop"));
  for (size_t i = 0; i < given.n_stop; ++i) {
    KVRUN_RETURN_IF_ERROR(CheckNotNull(given.stop[i], "stop[]"));
    options.stops.emplace_back(given.stop[i]);
  }
  return options;
}

kvrun_finish ToC(kvrun::Finish finish) {
  switch (finish) {
    case kvrun::Finish::kLength: return KVRUN_FINISH_LENGTH;
    case kvrun::Finish::kEnd: return KVRUN_FINISH_END;
    case kvrun::Finish::kStop: return KVRUN_FINISH_STOP;
    case kvrun::Finish::kContextFull: return KVRUN_FINISH_CONTEXT_FULL;
    case kvrun::Finish::kCancelled: return KVRUN_FINISH_CANCELLED;
    case kvrun::Finish::kRepeats: return KVRUN_FINISH_REPEATS;
  }
  return KVRUN_FINISH_CANCELLED;
}

kvrun::Result<std::span<const TokenId>> CheckIds(const kvrun_session* session, const int32_t* ids,
                                                 size_t count) {
  KVRUN_RETURN_IF_ERROR(CheckNotNull(session, "session"));
  if (count == 0) return std::span<const TokenId>();
  KVRUN_RETURN_IF_ERROR(CheckNotNull(ids, "ids"));
  return std::span<const TokenId>(ids, count);
}

// Options of a call, as they were given and as the engine takes them: one for all sequences, or one for each.
struct Translated {
  std::vector<kvrun_generate_options> given;
  std::vector<kvrun::GenerateOptions> options;

  Status Add(const kvrun_generate_options* one) {
    kvrun_generate_options_init(&given.emplace_back());
    KVRUN_RETURN_IF_ERROR(kvrun::capi::ReadOptions(one, "kvrun_generate_options", &given.back()));
    KVRUN_ASSIGN_OR_RETURN(kvrun::GenerateOptions translated, Translate(given.back()));
    options.push_back(std::move(translated));
    return Status::Ok();
  }
};

// Whom to tell of a sequence's log-probabilities.
struct Listener {
  kvrun_logprobs_fn tell;
  void* user;
};

// A listener is called where the engine has log-probabilities: where they were asked for.
kvrun::TokenCallback BindToken(kvrun_token_fn token, void* user, std::span<const uint32_t> sequences,
                               const std::vector<kvrun_generate_options>& given) {
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
  return [token, user, listeners](const kvrun::GeneratedToken& generated) {
    if (!generated.logprobs.empty()) {
      std::array<kvrun_token_logprob, kvrun::kMaxLogprobs + 1> logprobs;
      const size_t n_likeliest = generated.logprobs.size() - 1;
      std::transform(generated.logprobs.begin(), generated.logprobs.end(), logprobs.begin(),
                     [](const kvrun::TokenLogprob& one) {
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

Status Generate(kvrun_session* session, std::span<const uint32_t> sequences, const Translated& how,
                kvrun_token_fn token, void* user, kvrun_generate_result* results) {
  std::vector<kvrun::GenerateResult> generated(sequences.size());
  const Status status = session->session->GenerateEach(
      sequences, how.options, BindToken(token, user, sequences, how.given), generated);
  for (size_t i = 0; results != nullptr && i < generated.size(); ++i) {
    results[i] = {generated[i].n_tokens, ToC(generated[i].finish)};
  }
  return status;
}

Status CheckSequences(const kvrun_session* session, const uint32_t* sequences, size_t n) {
  KVRUN_RETURN_IF_ERROR(CheckNotNull(session, "session"));
  KVRUN_RETURN_IF_ERROR(CheckNotNull(sequences, "sequences"));
  if (n <= KVRUN_MAX_SEQUENCES) return Status::Ok();
  return {
      StatusCode::kInvalidArgument,
      fmt::format("{} sequences were named to generate for; at most {} go together", n, KVRUN_MAX_SEQUENCES)};
}

}  // namespace

extern "C" {

void kvrun_session_options_init(kvrun_session_options* options) {
  if (options == nullptr) return;
  *options = {};
  options->struct_size = sizeof(*options);
  options->n_sequences = 1;
  options->kv_type = KVRUN_KV_F16;
}

kvrun_status kvrun_session_create(kvrun_engine* engine, const kvrun_session_options* options,
                                  kvrun_session** session) {
  return Guard([&]() -> Status {
    KVRUN_RETURN_IF_ERROR(CheckNotNull(session, "session"));
    *session = nullptr;
    KVRUN_RETURN_IF_ERROR(CheckNotNull(engine, "engine"));
    KVRUN_ASSIGN_OR_RETURN(const kvrun::SessionOptions session_options,
                           kvrun::capi::ReadSessionOptions(options));
    KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<kvrun::Session> created,
                           engine->engine->CreateSession(session_options));
    auto handle = std::make_unique<kvrun_session>();
    handle->engine = engine->engine.get();
    handle->session = std::move(created);
    handle->profile = engine->profile;
    handle->operations_before = handle->engine->OperationTotals();
    *session = handle.release();
    return Status::Ok();
  });
}

void kvrun_session_destroy(kvrun_session* session) { delete session; }

kvrun_status kvrun_session_save(kvrun_session* session) {
  return Guard([&]() -> Status {
    KVRUN_RETURN_IF_ERROR(CheckNotNull(session, "session"));
    return session->session->SavePoint();
  });
}

int kvrun_session_is_kept(const kvrun_session* session) {
  return session != nullptr && session->session->is_kept() ? 1 : 0;
}

size_t kvrun_session_tokens(const kvrun_session* session, uint32_t sequence, int32_t* ids, size_t room) {
  if (session == nullptr) return 0;
  const std::span<const TokenId> tokens = session->session->Tokens(sequence);
  if (ids != nullptr) std::copy_n(tokens.begin(), std::min(room, tokens.size()), ids);
  return tokens.size();
}

kvrun_status kvrun_session_set_note(kvrun_session* session, const char* note, size_t size) {
  return Guard([&]() -> Status {
    KVRUN_RETURN_IF_ERROR(CheckNotNull(session, "session"));
    if (size > 0) KVRUN_RETURN_IF_ERROR(CheckNotNull(note, "note"));
    return session->session->SetNote(size > 0 ? std::string(note, size) : std::string());
  });
}

kvrun_status kvrun_session_note(const kvrun_session* session, char** note, size_t* size) {
  return Guard([&]() -> Status {
    KVRUN_RETURN_IF_ERROR(CheckNotNull(note, "note"));
    *note = nullptr;
    KVRUN_RETURN_IF_ERROR(CheckNotNull(session, "session"));
    if (size != nullptr) *size = session->session->note().size();
    return kvrun::capi::CopyOut(std::string_view(session->session->note()), note);
  });
}

uint32_t kvrun_session_context(const kvrun_session* session) {
  return session == nullptr ? 0 : session->session->n_ctx();
}

uint32_t kvrun_session_length(const kvrun_session* session, uint32_t sequence) {
  return session == nullptr ? 0 : session->session->Length(sequence);
}

kvrun_status kvrun_session_truncate(kvrun_session* session, uint32_t sequence, uint32_t length) {
  return Guard([&]() -> Status {
    KVRUN_RETURN_IF_ERROR(CheckNotNull(session, "session"));
    return session->session->Truncate(sequence, length);
  });
}

kvrun_status kvrun_session_feed(kvrun_session* session, uint32_t sequence, const int32_t* ids, size_t count) {
  return Guard([&]() -> Status {
    KVRUN_ASSIGN_OR_RETURN(const std::span<const TokenId> tokens, CheckIds(session, ids, count));
    return session->session->Feed(sequence, tokens);
  });
}

kvrun_status kvrun_session_feed_logits(kvrun_session* session, uint32_t sequence, const int32_t* ids,
                                       size_t count, size_t last, kvrun_logits_fn logits, void* user) {
  return Guard([&]() -> Status {
    KVRUN_ASSIGN_OR_RETURN(const std::span<const TokenId> tokens, CheckIds(session, ids, count));
    KVRUN_RETURN_IF_ERROR(CheckNotNull(reinterpret_cast<const void*>(logits), "logits"));
    return session->session->FeedLogits(
        sequence, tokens, last, [logits, user](uint32_t position, uint32_t rows, const float* values) {
          return logits(user, position, rows, values) != 0;
        });
  });
}

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

kvrun_status kvrun_session_generate(kvrun_session* session, const uint32_t* sequences, size_t n,
                                    const kvrun_generate_options* options, kvrun_token_fn token, void* user,
                                    kvrun_generate_result* results) {
  return Guard([&]() -> Status {
    KVRUN_RETURN_IF_ERROR(CheckSequences(session, sequences, n));
    Translated how;
    KVRUN_RETURN_IF_ERROR(how.Add(options));
    return Generate(session, {sequences, n}, how, token, user, results);
  });
}

kvrun_status kvrun_session_generate_each(kvrun_session* session, const uint32_t* sequences, size_t n,
                                         const kvrun_generate_options* const* options, kvrun_token_fn token,
                                         void* user, kvrun_generate_result* results) {
  return Guard([&]() -> Status {
    KVRUN_RETURN_IF_ERROR(CheckSequences(session, sequences, n));
    KVRUN_RETURN_IF_ERROR(CheckNotNull(options, "options"));
    Translated how;
    for (size_t i = 0; i < n; ++i) KVRUN_RETURN_IF_ERROR(how.Add(options[i]));
    if (n == 0) KVRUN_RETURN_IF_ERROR(how.Add(nullptr));
    return Generate(session, {sequences, n}, how, token, user, results);
  });
}

kvrun_status kvrun_session_stats_json(const kvrun_session* session, char** json) {
  return Guard([&]() -> Status {
    KVRUN_RETURN_IF_ERROR(CheckNotNull(json, "json"));
    *json = nullptr;
    KVRUN_RETURN_IF_ERROR(CheckNotNull(session, "session"));
    return kvrun::capi::CopyOut(kvrun::capi::SessionStatsInfo(*session), json);
  });
}

void kvrun_session_stats_reset(kvrun_session* session) {
  if (session == nullptr) return;
  (void)Guard([&]() -> Status {
    session->session->ResetStats();
    session->operations_before = session->engine->OperationTotals();
    return Status::Ok();
  });
}

}  // extern "C"
