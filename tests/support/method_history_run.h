// Carries out a history (tests/support/method_history.h) with a forward pass.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "platform/io/block_file.h"
#include "runtime/engine/pass/forward_pass.h"
#include "runtime/kv/plan/kv_plan.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/method_history.h"
#include "tests/support/mischievous_file.h"

namespace kvrun::testing {

enum class PassFile : uint8_t { kRecords, kRows, kSpill };
using NewPassFileFn = std::function<std::unique_ptr<BlockFile>(PassFile which, uint32_t queue_depth)>;

// A pass for histories, as a session makes it of the plan, on files that `new_file` makes.
std::unique_ptr<ForwardPass> NewHistoryPass(const LoadedModel& loaded, const KvPlan& plan,
                                            const NewPassFileFn& new_file);

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
