#include "runtime/engine/session/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/capi/border.h"
#include "runtime/capi/generate_call.h"
#include "runtime/capi/handles.h"
#include "runtime/capi/session_options.h"
#include "runtime/capi/session_stats.h"

using kvrun::Status;
using kvrun::StatusCode;
using kvrun::TokenId;
using kvrun::capi::CheckNotNull;
using kvrun::capi::FinishToC;
using kvrun::capi::GenerateCall;
using kvrun::capi::Guard;

namespace {

kvrun::Result<std::span<const TokenId>> CheckIds(const kvrun_session* session, const int32_t* ids,
                                                 size_t count) {
  KVRUN_RETURN_IF_ERROR(CheckNotNull(session, "session"));
  if (count == 0) return std::span<const TokenId>();
  KVRUN_RETURN_IF_ERROR(CheckNotNull(ids, "ids"));
  return std::span<const TokenId>(ids, count);
}

Status Generate(kvrun_session* session, std::span<const uint32_t> sequences, const GenerateCall& how,
                kvrun_token_fn token, void* user, kvrun_generate_result* results) {
  std::vector<kvrun::GenerateResult> generated(sequences.size());
  const Status status = session->session->GenerateEach(sequences, how.options,
                                                       how.BindToken(token, user, sequences), generated);
  for (size_t i = 0; results != nullptr && i < generated.size(); ++i) {
    results[i] = {generated[i].n_tokens, FinishToC(generated[i].finish)};
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

kvrun_status kvrun_session_generate(kvrun_session* session, const uint32_t* sequences, size_t n,
                                    const kvrun_generate_options* options, kvrun_token_fn token, void* user,
                                    kvrun_generate_result* results) {
  return Guard([&]() -> Status {
    KVRUN_RETURN_IF_ERROR(CheckSequences(session, sequences, n));
    GenerateCall how;
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
    GenerateCall how;
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
