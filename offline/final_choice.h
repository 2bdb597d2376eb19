// The end of a search. Of many that were measured on one text, those that seem best are partly those that
// were lucky on it: they are measured again on parts of the text that the search has not seen. Those that are
// still good take turns, as the machine is noisy. Pure but for what it is given to measure with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "offline/solver.h"
#include "platform/base/status.h"

namespace kvrun::offline {

struct FinalChoiceInput {
  uint32_t batch = 1;
  double kl_limit = 0.0;  // as SolverInput's
  // On other parts of the text.
  std::function<Result<Quality>(const SizedCandidate& candidate)> measure_held_out;
  std::function<Result<double>(const Measured& measured)> measure_ms;
  std::function<std::string(const SizedCandidate& candidate)> best_policy;
  // Fewer are looked at then, and fewer turns taken.
  std::function<bool()> is_late;  // one turn then
  // Before each measurement. What it fails with ends it.
  std::function<Status(const std::string& what, uint64_t done, uint64_t total)> tell;
};

struct FinalChoice {
  Measured chosen;              // its quality is the search's
  bool is_own = false;          // it is what kvrun chooses from the budget alone
  double kl_limit = 0.0;        // on all parts: given, or kConfirmedShare of kvrun's own choice
  bool is_within_limit = true;  // else none that was tried is, on all parts: the one of least KL
  uint32_t n_refused = 0;       // for their KL on other parts
  double held_out_kl = 0.0;
  double own_held_out_kl = 0.0;
  double measured_ms = 0.0;  // medians, in turns
  double own_measured_ms = 0.0;
};

// Of the search's and the other parts' KL the mean counts: at most this share of what kvrun's own choice has
// there (kNegligibleKl at least), or the given limit.
inline constexpr double kConfirmedShare = 0.95;

// `answer.accepted` is not empty. Without a given limit kvrun's own choice takes part, and nothing that is
// slower in turns is taken; with one, it takes part if it is within it.
Result<FinalChoice> ChooseFinally(const SolverAnswer& answer, const FinalChoiceInput& input);

}  // namespace kvrun::offline
