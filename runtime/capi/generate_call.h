// The options of a call that generates, as C gives them and as the engine takes them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "platform/base/status.h"
#include "runtime/engine/session/session.h"
#include "runtime/include/kvrun/kvrun.h"

namespace kvrun::capi {

kvrun_finish FinishToC(Finish finish);

// One for all sequences, or one for each.
struct GenerateCall {
  std::vector<kvrun_generate_options> given;
  std::vector<GenerateOptions> options;

  Status Add(const kvrun_generate_options* one);
  // `token` may be null. A listener to log-probabilities is called where they were asked for.
  TokenCallback BindToken(kvrun_token_fn token, void* user, std::span<const uint32_t> sequences) const;
};

}  // namespace kvrun::capi
