// Carries out a history (tests/support/method_history.h) with a forward pass.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/engine/pass/forward_pass.h"
#include "runtime/kv/plan/kv_plan.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/method_history.h"
#include "tests/support/mischievous_file.h"

namespace kvrun::testing {

// What a pass has said in a history.
struct SaidInHistory {
  std::vector<std::vector<float>> logits;  // of each step: of the rows whose logits are wanted
  // Before this step all was given that a history without troubles gives, and nothing is left of what was
  // not.
  size_t n_same = 0;
  size_t n_failed = 0;  // steps, of reads and writes
  size_t n_cancelled = 0;
};

enum class Troubles : bool { kLeftOut, kHappen };

// Until something is not as it should be. What fails is given again, and has to do then; or its sequences
// have to be computed again, where they have lost something for good. Memory stays within the plan meanwhile.
// `mischief`: of the pass's files. `bytes_before`: of KV, before there was the pass.
SaidInHistory RunHistory(const History& history, const KvPlan& plan, const LoadedModel& loaded,
                         uint64_t bytes_before, ForwardPass& pass, Mischief& mischief, Troubles troubles);

}  // namespace kvrun::testing
