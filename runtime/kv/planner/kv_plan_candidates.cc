#include "runtime/kv/planner/kv_plan_candidates.h"

#include <algorithm>

#include "platform/base/units.h"

namespace kvrun {
namespace {

// A layer's multiplications below which a second stage saves no time that counts (0.2 ms on two cores).
constexpr uint64_t kCheapProducts = uint64_t{8} << 20;
// How many times what is chosen candidates are (docs/measurements/reading.md, "Scoring in two stages").
constexpr uint32_t kCandidatesOfChosen = 4;
// Where candidates are a larger share of all, or the first stage of all products, too little is saved.
constexpr uint32_t kMostCandidateShare = 2;
constexpr uint32_t kMostFirstShare = 4;
// The first columns of an index have most of the keys' variance, but not where keys have no directions of
// their own: a quarter of them, and no fewer than tell such keys apart.
constexpr uint32_t kFirstShare = 4;
constexpr uint32_t kLeastFirstColumns = 32;

}  // namespace

CandidatePlan PlanCandidates(const CandidateInput& input) {
  const uint64_t products = uint64_t{input.n_queries} * input.rank * input.n_groups * input.group_tokens;
  const uint64_t n_candidates = uint64_t{kCandidatesOfChosen} * input.n_chosen;
  if (products < kCheapProducts || n_candidates * kMostCandidateShare > input.n_groups) return {};
  const uint32_t columns =
      std::min(input.rank, std::max(CeilDiv(input.rank, kFirstShare), kLeastFirstColumns));
  const uint64_t first_products = uint64_t{input.n_kv_heads} * columns;
  if (first_products * kMostFirstShare > uint64_t{input.n_queries} * input.rank) return {};
  return {.n_groups = static_cast<uint32_t>(n_candidates), .first_columns = columns};
}

}  // namespace kvrun
