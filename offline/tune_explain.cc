#include "offline/tune_explain.h"

#include <cmath>
#include <utility>

#include "offline/quality_model.h"

namespace kvrun::offline {
namespace {

// Where twice the budget would be faster by this, memory is what bounds.
constexpr double kMuchFaster = 0.95;

double TwiceTheBudgetMs(const TuneSolution& solution, const PredictTime& predict) {
  QualityModel guesses;
  for (const Measured& measured : solution.measured) guesses.Add(measured.sized, measured.quality.kl);
  SearchSetting roomy = solution.setting;
  roomy.budget_bytes *= 2;
  double best = solution.predicted.step_ms;
  for (const SizedCandidate& sized : AllCandidates(roomy)) {
    const double ms = predict(sized, roomy, nullptr).step_ms;
    if (ms < best && guesses.Guess(sized).log_mean <= std::log(solution.kl_limit)) best = ms;
  }
  return best;
}

std::string Bound(const TuneSolution& solution) {
  if (solution.twice_budget_ms < kMuchFaster * solution.predicted.step_ms) return "memory";
  return solution.predicted.is_io_bound() ? "I/O" : "compute";
}

std::vector<RejectedNeighbour> Rejected(const TuneSolution& solution, const PredictTime& predict) {
  QualityModel guesses;
  for (const Measured& measured : solution.measured) guesses.Add(measured.sized, measured.quality.kl);
  std::vector<RejectedNeighbour> rejected;
  for (const Neighbour& neighbour : Neighbours(solution.chosen.sized.candidate, solution.setting)) {
    RejectedNeighbour row{.change = neighbour.change, .reason = "does not fit"};
    const Result<SizedCandidate> sized = SizeCandidate(neighbour.candidate, solution.setting);
    if (sized.ok()) {
      row.predicted_ms = predict(*sized, solution.setting, nullptr).step_ms;
      row.kl = std::exp(guesses.Guess(*sized).log_mean);
      for (const Measured& measured : solution.measured) {
        Candidate same = measured.sized.candidate;
        same.policy = sized->candidate.policy;
        if (same != sized->candidate) continue;
        row.kl = measured.quality.kl;
        row.kl_is_measured = true;
        row.predicted_ms = predict(*sized, solution.setting, &measured.quality).step_ms;
      }
      const bool is_good = row.kl <= solution.kl_limit;
      const bool is_slower = row.predicted_ms > solution.predicted.step_ms;
      row.reason = is_good ? (is_slower            ? "slower"
                              : row.kl_is_measured ? "no better in the end"
                                                   : "not tried")
                           : (is_slower ? "KL, and slower" : "KL");
    }
    rejected.push_back(std::move(row));
  }
  return rejected;
}

}  // namespace

void ExplainSolution(const PredictTime& predict, TuneSolution* solution) {
  solution->twice_budget_ms = TwiceTheBudgetMs(*solution, predict);
  solution->bound = Bound(*solution);
  solution->rejected = Rejected(*solution, predict);
}

}  // namespace kvrun::offline
