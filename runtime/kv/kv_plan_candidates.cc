#include "runtime/kv/kv_plan_candidates.h"

#include <algorithm>

#include "platform/base/units.h"

namespace kvrun {
namespace {

// A layer's multiplications below which a second stage saves no time that counts (0.2 ms on two cores).
constexpr uint64_t kCheapProducts = uint64_t{8} << 20;
constexpr uint32_t kBlockEntries = 32;
// Candidates are so many times what is chosen, and a share of all at least.
constexpr uint32_t kCandidatesOfChosen = 4;
constexpr uint32_t kLeastCandidateShare = 8;
// Where candidates are a larger share, too little is saved.
constexpr uint32_t kMostCandidateShare = 2;

}  // namespace

CandidatePlan PlanCandidates(const CandidateInput& input) {
  const uint64_t products = uint64_t{input.n_queries} * input.rank * input.n_groups * input.group_tokens;
  if (products < kCheapProducts) return {};
  CandidatePlan plan;
  plan.block_groups = std::max(1U, kBlockEntries / input.group_tokens);
  const uint64_t groups = std::max(uint64_t{kCandidatesOfChosen} * input.n_chosen,
                                   uint64_t{CeilDiv(input.n_groups, kLeastCandidateShare)});
  // The last block may have one group, and those of pinned ones others that are not.
  const uint64_t n_blocks = CeilDiv(groups, uint64_t{plan.block_groups}) + 2;
  if (n_blocks * kMostCandidateShare > CeilDiv(input.n_groups, plan.block_groups)) return {};
  plan.n_blocks = static_cast<uint32_t>(n_blocks);
  return plan;
}

}  // namespace kvrun
