#include "apps/kvrun/measured_session.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "apps/common/failure.h"

namespace kvrun::cli {
namespace {

// Of a session that is there.
struct HeldText {
  uint32_t n_tokens = 0;
  uint32_t n_ctx = 0;
};

HeldText HeldBy(const SharedOptions& shared) {
  char* json = nullptr;
  Check(kvrun_sessions_info_with_key_json(shared.session.c_str(), shared.session_key.c_str(), &json));
  const Json info = TakeJson(json);
  if (info.value("encrypted", false) && shared.session_key.empty()) {
    throw Failure(KVRUN_INVALID_ARGUMENT,
                  fmt::format("the session {} is encrypted: give its key (--session-key)", shared.session));
  }
  if (info.value("trouble", Json()).is_string()) {
    throw Failure(KVRUN_UNSUPPORTED, fmt::format("the session {} cannot be measured: {}", shared.session,
                                                 TextOf(info["trouble"])));
  }
  const Json tokens = info.value("tokens", Json::array());
  if (tokens.size() != 1 || tokens[0].get<uint32_t>() < 2) {
    throw Failure(KVRUN_INVALID_ARGUMENT,
                  fmt::format("the session {} cannot be measured: it has no text", shared.session));
  }
  return {tokens[0].get<uint32_t>(), info.value("context", 0U)};
}

}  // namespace

MeasuredSession OpenToMeasure(const Model& model, const SharedOptions& shared, uint32_t n_more_tokens,
                              Progress* progress) {
  const HeldText held = HeldBy(shared);
  SessionPlan plan = PlanSession(model, shared, 1, std::max(held.n_ctx, held.n_tokens + n_more_tokens));
  LoadedEngine loaded = LoadEngine(model, shared, progress);
  Session session = StartSession(loaded, shared, &plan, progress);
  std::vector<int32_t> ids = TokensOf(session, 0);
  if (kvrun_session_is_kept(session.get()) == 0 || ids.size() < 2) {
    throw Failure(KVRUN_UNSUPPORTED,
                  fmt::format("the session {} cannot be measured: what is there is of no use with this model",
                              shared.session));
  }
  return {std::move(loaded), std::move(session), std::move(ids)};
}

}  // namespace kvrun::cli
