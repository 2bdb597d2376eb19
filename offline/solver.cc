#include "offline/solver.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "offline/quality_model.h"

namespace kvrun::offline {
namespace {

// A candidate must be predicted to be so much faster than the best to be worth a measurement.
constexpr double kWorthwhile = 0.995;
// How hopeful guesses are taken, in standard deviations: at first a little; more where nothing else is left.
constexpr std::array kHopes = {0.5, 1.0, 1.5, 2.0};
// Before the limit is reached: as many of own's neighbours as are not slower than this tell the model what
// each dimension does.
constexpr double kSlowestNeighbour = 1.5;

class Search {
 public:
  explicit Search(const SolverInput& input) : input_(input), is_done_(input.all.size()) {}

  Result<SolverAnswer> Run();

 private:
  Status Measure(const SizedCandidate& candidate);
  Status MeasureNeighbours();
  const SizedCandidate* Next(double hope) const;
  bool IsOver() const { return answer_.ended_early; }
  double BestMs() const;
  bool IsAccepted(const Measured& measured) const {
    const bool is_own = measured.sized.candidate == input_.own.candidate;
    return measured.quality.kl <= answer_.kl_limit || (is_own && input_.kl_limit == 0.0);
  }

  const SolverInput& input_;
  std::vector<bool> is_done_;
  QualityModel model_;
  SolverAnswer answer_;
};

Status Search::Measure(const SizedCandidate& candidate) {
  Result<Quality> measured = input_.measure(candidate);
  if (!measured.ok() && !answer_.measured.empty() && input_.ran_out && input_.ran_out(measured.status())) {
    answer_.ended_early = true;
    return Status::Ok();
  }
  KVRUN_ASSIGN_OR_RETURN(const Quality quality, std::move(measured));
  answer_.measured.push_back({candidate, quality, input_.predict_ms(candidate, &quality)});
  model_.Add(candidate, quality.kl);
  for (size_t i = 0; i < input_.all.size(); ++i) {
    if (input_.all[i].candidate == candidate.candidate) is_done_[i] = true;
  }
  if (answer_.measured.size() >= input_.max_measurements) answer_.ended_early = true;
  if (input_.is_enough && input_.is_enough(answer_.measured.back())) answer_.ended_early = true;
  return Status::Ok();
}

// Of those that are accepted, by what is predicted now.
double Search::BestMs() const {
  double best = std::numeric_limits<double>::infinity();
  for (const Measured& measured : answer_.measured) {
    if (IsAccepted(measured)) best = std::min(best, input_.predict_ms(measured.sized, &measured.quality));
  }
  return best;
}

Status Search::MeasureNeighbours() {
  const SizedCandidate& own = input_.own;
  const double slowest = kSlowestNeighbour * input_.predict_ms(own, &answer_.own.quality);
  for (const Neighbour& neighbour : Neighbours(own.candidate, input_.setting)) {
    if (IsOver()) break;
    const Result<SizedCandidate> sized = SizeCandidate(neighbour.candidate, input_.setting);
    if (!sized.ok() || input_.predict_ms(*sized, nullptr) > slowest) continue;
    KVRUN_RETURN_IF_ERROR(Measure(*sized));
  }
  return Status::Ok();
}

// The fastest of those that may be good enough; where none was good enough yet, the one that seems best.
const SizedCandidate* Search::Next(double hope) const {
  const double best_ms = BestMs();
  const double log_limit = std::log(answer_.kl_limit);
  const SizedCandidate* next = nullptr;
  double next_value = std::isinf(best_ms) ? std::numeric_limits<double>::infinity() : kWorthwhile * best_ms;
  for (size_t i = 0; i < input_.all.size(); ++i) {
    if (is_done_[i]) continue;
    const GuessedKl guess = model_.Guess(input_.all[i]);
    const double hopeful = guess.log_mean - hope * guess.log_deviation;
    if (!std::isinf(best_ms) && hopeful > log_limit) continue;
    const double value = std::isinf(best_ms) ? hopeful : input_.predict_ms(input_.all[i], nullptr);
    if (value >= next_value) continue;
    next_value = value;
    next = &input_.all[i];
  }
  return next;
}

Result<SolverAnswer> Search::Run() {
  answer_.kl_limit = input_.kl_limit;
  KVRUN_RETURN_IF_ERROR(Measure(input_.own));
  answer_.own = answer_.measured.front();
  if (answer_.kl_limit == 0.0) answer_.kl_limit = std::max(kOwnShare * answer_.own.quality.kl, kNegligibleKl);
  if (!IsOver()) KVRUN_RETURN_IF_ERROR(MeasureNeighbours());
  for (size_t i = 0; i < kHopes.size() && !IsOver();) {
    const SizedCandidate* next = Next(kHopes[i]);
    if (next == nullptr) {
      ++i;
    } else {
      KVRUN_RETURN_IF_ERROR(Measure(*next));
    }
  }
  for (const Measured& measured : answer_.measured) {
    if (!IsAccepted(measured)) continue;
    answer_.accepted.push_back(measured);
    answer_.accepted.back().predicted_ms = input_.predict_ms(measured.sized, &measured.quality);
  }
  std::stable_sort(answer_.accepted.begin(), answer_.accepted.end(),
                   [](const Measured& a, const Measured& b) {
                     return std::pair(a.predicted_ms, a.quality.kl) < std::pair(b.predicted_ms, b.quality.kl);
                   });
  return std::move(answer_);
}

}  // namespace

Result<SolverAnswer> Solve(const SolverInput& input) { return Search(input).Run(); }

std::vector<FrontPoint> ParetoFront(const std::vector<std::pair<double, double>>& points) {
  std::vector<FrontPoint> sorted;
  for (size_t i = 0; i < points.size(); ++i) sorted.push_back({points[i].first, points[i].second, i});
  std::sort(sorted.begin(), sorted.end(), [](const FrontPoint& a, const FrontPoint& b) {
    return std::pair(a.step_ms, a.kl) < std::pair(b.step_ms, b.kl);
  });
  std::vector<FrontPoint> front;
  for (const FrontPoint& point : sorted) {
    if (front.empty() || point.kl < front.back().kl) front.push_back(point);
  }
  return front;
}

}  // namespace kvrun::offline
