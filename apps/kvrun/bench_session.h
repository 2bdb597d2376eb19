// kvrun bench --session: how fast decoding is at the end of a session that is kept, as it lies.
#pragma once

#include <cstdint>

#include "apps/common/api.h"
#include "apps/common/progress.h"
#include "apps/common/shared_options.h"

namespace kvrun::cli {

// Decodes so many tokens after those that `shared.session` has, so often, and leaves the session as it is.
// Loads the weights. The answer is that of kvrun_bench_json for one depth, with `session` in it. Throws where
// there is no such session, or it cannot be gone on with.
Json BenchSession(const Model& model, const SharedOptions& shared, uint32_t n_decode, uint32_t n_repetitions,
                  Progress* progress);

}  // namespace kvrun::cli
