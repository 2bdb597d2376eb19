#include "offline/final_choice.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "offline/step_sampler.h"

namespace kvrun::offline {
namespace {

constexpr size_t kMostConfirmed = 3;  // besides kvrun's own choice
constexpr size_t kMostTried = 6;
constexpr uint32_t kMostTurns = 5;
constexpr uint32_t kFewestTurns = 3;
// Of those that are slower than the fastest by no more, the one of least KL is taken.
constexpr double kHardlySlower = 1.03;

struct Finalist {
  Measured measured;
  bool is_own = false;
  double held_out_kl = 0.0;
  std::vector<double> times_ms;

  double kl() const { return (measured.quality.kl + held_out_kl) / 2; }
};

// By what is predicted, and by how long one sequence took on the text: either is some 5 to 10 % off.
double LikelyMs(const Measured& measured, uint32_t batch) {
  return batch == 1 ? std::sqrt(measured.predicted_ms * measured.quality.step_ms) : measured.predicted_ms;
}

class Choice {
 public:
  Choice(const SolverAnswer& answer, const FinalChoiceInput& input) : answer_(answer), input_(input) {}

  Result<FinalChoice> Run();

 private:
  Status Confirm();
  Status TakeTurns();
  size_t Best() const;
  bool IsOwn(const Measured& measured) const {
    return measured.sized.candidate == answer_.own.sized.candidate;
  }
  bool OwnIsAccepted() const {
    return std::ranges::any_of(answer_.accepted, [this](const Measured& one) { return IsOwn(one); });
  }
  Result<Finalist> HeldOut(const Measured& measured) const;

  const SolverAnswer& answer_;
  const FinalChoiceInput& input_;
  std::vector<Finalist> finalists_;  // kvrun's own choice first, whether it is accepted or not
};

Result<Finalist> Choice::HeldOut(const Measured& measured) const {
  KVRUN_ASSIGN_OR_RETURN(const Quality quality, input_.measure_held_out(measured.sized));
  return Finalist{measured, IsOwn(measured), quality.kl, {}};
}

Status Choice::Confirm() {
  std::vector<Measured> accepted;
  for (const Measured& measured : answer_.accepted) {
    if (!IsOwn(measured)) accepted.push_back(measured);
  }
  std::ranges::stable_sort(accepted, {}, [this](const Measured& one) { return LikelyMs(one, input_.batch); });
  accepted.resize(std::min(accepted.size(), kMostTried));
  const uint64_t total = accepted.size() + 1;
  KVRUN_RETURN_IF_ERROR(input_.tell(0, total));
  KVRUN_ASSIGN_OR_RETURN(Finalist own, HeldOut(answer_.own));
  finalists_.push_back(std::move(own));
  const double limit = input_.kl_limit > 0.0 ? input_.kl_limit : kConfirmedShare * finalists_.front().kl();
  std::vector<Finalist> refused;
  for (const Measured& measured : accepted) {
    if (finalists_.size() > kMostConfirmed) break;
    KVRUN_RETURN_IF_ERROR(input_.tell(finalists_.size() + refused.size(), total));
    KVRUN_ASSIGN_OR_RETURN(Finalist finalist, HeldOut(measured));
    (finalist.kl() <= limit ? finalists_ : refused).push_back(std::move(finalist));
  }
  if (finalists_.size() > 1 || OwnIsAccepted() || refused.empty()) return Status::Ok();
  finalists_.push_back(*std::ranges::min_element(refused, {}, [](const Finalist& one) { return one.kl(); }));
  return Status::Ok();
}

Status Choice::TakeTurns() {
  // Which group gives way to another changes hits, not what is attended to.
  for (Finalist& finalist : finalists_) {
    if (!finalist.is_own) SetPolicy(input_.best_policy(finalist.measured.sized), &finalist.measured.sized);
  }
  const uint64_t total = uint64_t{kMostTurns} * finalists_.size();
  for (uint32_t turn = 0; turn < kMostTurns; ++turn) {
    if (turn >= kFewestTurns && input_.is_late()) break;
    for (size_t i = 0; i < finalists_.size(); ++i) {
      KVRUN_RETURN_IF_ERROR(input_.tell(turn * finalists_.size() + i, total));
      KVRUN_ASSIGN_OR_RETURN(const double ms, input_.measure_ms(finalists_[i].measured));
      finalists_[i].times_ms.push_back(ms);
    }
  }
  return Status::Ok();
}

size_t Choice::Best() const {
  const size_t first = OwnIsAccepted() ? 0 : 1;
  double fastest_ms = std::numeric_limits<double>::infinity();
  for (size_t i = first; i < finalists_.size(); ++i)
    fastest_ms = std::min(fastest_ms, Median(finalists_[i].times_ms));
  size_t best = first;
  double least_kl = std::numeric_limits<double>::infinity();
  for (size_t i = first; i < finalists_.size(); ++i) {
    const bool is_slow = Median(finalists_[i].times_ms) > kHardlySlower * fastest_ms;
    if (is_slow || finalists_[i].kl() >= least_kl) continue;
    least_kl = finalists_[i].kl();
    best = i;
  }
  return best;
}

Result<FinalChoice> Choice::Run() {
  KVRUN_RETURN_IF_ERROR(Confirm());
  KVRUN_RETURN_IF_ERROR(TakeTurns());
  const Finalist& own = finalists_.front();
  const Finalist& best = finalists_[Best()];
  return FinalChoice{.chosen = best.measured,
                     .is_own = best.is_own,
                     .held_out_kl = best.held_out_kl,
                     .own_held_out_kl = own.held_out_kl,
                     .measured_ms = Median(best.times_ms),
                     .own_measured_ms = Median(own.times_ms)};
}

}  // namespace

Result<FinalChoice> ChooseFinally(const SolverAnswer& answer, const FinalChoiceInput& input) {
  return Choice(answer, input).Run();
}

}  // namespace kvrun::offline
