// Choices of groups with the locality of a real text's, where random keys have none: for benchmarks over a
// cache that was filled at random. Pure and deterministic.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "platform/base/random.h"

namespace kvrun {

// Of one stream of one layer.
class ReplayedSelection {
 public:
  // repeated_share: of the groups that are not pinned, how many were chosen by the step before too. In the
  // long run: what does not divide evenly is carried over to the next step.
  ReplayedSelection(double repeated_share, uint32_t n_pinned, uint32_t n_chosen, uint64_t seed);

  // The choice of the next step among groups [0, n_groups): ascending, distinct, n_chosen of them or all that
  // there are, the pinned ones first. New ones are drawn at random; where there are too few of them, more are
  // repeated. Valid until the next call; allocates nothing.
  std::span<const uint32_t> Next(uint32_t n_groups);

 private:
  void KeepSome(uint32_t n_kept);
  void DrawNew(uint32_t n_new, uint32_t n_groups);
  bool WasChosen(uint32_t group) const;

  double repeated_share_;
  uint32_t n_pinned_;
  uint32_t n_chosen_;
  Random random_;
  double carried_ = 0.0;          // a part of a group
  std::vector<uint32_t> last_;    // not pinned, ascending
  std::vector<uint32_t> free_;    // of the choice that is made: not pinned
  std::vector<uint32_t> chosen_;  // with the pinned ones
};

}  // namespace kvrun
