// Finds the fastest candidate that keeps the quality: a greedy search over predicted times, in which only
// measured quality counts. Pure but for what it is given to measure with. Source: KVSwap, appendix A.4; there
// the quality is kept by taking sigma and G as small as possible, here by measuring the KL to full attention.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "offline/candidate.h"
#include "platform/base/status.h"

namespace kvrun::offline {

struct Quality {
  double kl = 0.0;              // mean KL(full || method), nats
  double top1 = 0.0;            // share of equal first choices
  double hit_rate = 0.0;        // of chosen groups
  double reads_per_load = 1.0;  // adjacent groups are one read
  double chosen_share = 1.0;    // of the most that a step may choose: less where it adapts
  double hidden = 1.0;          // of the time in which flash was read, what the device computed meanwhile
  double step_ms = 0.0;         // of one sequence, while it was measured
};

struct Measured {
  SizedCandidate sized;
  Quality quality;
  double predicted_ms = 0.0;  // in an answer's `measured`, as of when it was measured
};

struct SolverInput {
  SearchSetting setting;
  std::span<const SizedCandidate> all;
  SizedCandidate own;  // what kvrun would choose
  // The greatest KL that is accepted; 0: kOwnShare of what `own` has (kNegligibleKl at
  // least), and `own` itself.
  double kl_limit = 0.0;
  uint32_t max_measurements = 256;
  // Milliseconds of a step. Asked of every candidate, and anew after each measurement. `quality`: of those
  // that were measured, else null.
  std::function<double(const SizedCandidate& candidate, const Quality* quality)> predict_ms;
  std::function<Result<Quality>(const SizedCandidate& candidate)> measure;
  // Of a measurement that failed: true where time ran out. The search then ends with what it has; where that
  // is not even `own`, it fails. May be empty.
  std::function<bool(const Status& status)> ran_out;
  // After each measurement: true where no more should be made (time is up). May be empty.
  std::function<bool(const Measured& measured)> is_enough;
};

// Measured on one text: on another a candidate that is just as good as kvrun's own choice may be a little
// worse. So it must be better by this.
inline constexpr double kOwnShare = 0.94;
// Nats. Less is what rounding does: where kvrun's own choice has less, no other is refused for it.
inline constexpr double kNegligibleKl = 1e-4;

struct SolverAnswer {
  double kl_limit = 0.0;
  // Those within the limit; the one of least predicted time first, of equal ones the one of least KL. Empty:
  // none was found.
  std::vector<Measured> accepted;
  Measured own;
  std::vector<Measured> measured;  // all, in the order they were measured; `own` is the first
  bool ended_early = false;  // is_enough or max_measurements ended it, and not the lack of something better
};

// What `measure` fails with ends the search, and is its answer unless time ran out.
Result<SolverAnswer> Solve(const SolverInput& input);

// Of measured points those that no other beats in both time and KL, by rising time.
struct FrontPoint {
  double step_ms = 0.0;
  double kl = 0.0;
  size_t index = 0;  // in `points`
};
std::vector<FrontPoint> ParetoFront(const std::vector<std::pair<double, double>>& points);  // (ms, KL)

}  // namespace kvrun::offline
