// A session that is kept, opened to be measured as it lies: by kvrun bench and kvrun eval.
#pragma once

#include <cstdint>
#include <vector>

#include "apps/common/api.h"
#include "apps/common/progress.h"
#include "apps/common/session_plan.h"
#include "apps/common/shared_options.h"

namespace kvrun::cli {

struct MeasuredSession {
  LoadedEngine loaded;  // outlives the session
  Session session;
  std::vector<int32_t> ids;  // its tokens, two at least
};

// Loads the weights, and opens `shared.session` with room for so many more tokens. Nothing is saved, so the
// session stays as it is. Throws where there is no such session, or it cannot be gone on with.
MeasuredSession OpenToMeasure(const Model& model, const SharedOptions& shared, uint32_t n_more_tokens,
                              Progress* progress);

}  // namespace kvrun::cli
