#include "offline/final_choice.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "offline/step_sampler.h"

namespace kvrun::offline {
namespace {

constexpr size_t kMostConfirmed = 3;  // besides kvrun's own choice
constexpr size_t kMostTried = 6;      // of the fastest; as many of the least KL
constexpr uint32_t kMostTurns = 5;
// Of those that are slower than the fastest by no more, the one of least KL is taken.
constexpr double kHardlySlower = 1.03;

struct Finalist {
  Measured measured;
  bool is_own = false;
  double held_out_kl = 0.0;
  bool is_good = false;  // else it is there to be compared with
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
  std::vector<Measured> InOrder() const;
  Status Confirm();
  Status TakeTurns();
  const Finalist& Best() const;
  bool IsOwn(const Measured& measured) const {
    return measured.sized.candidate == answer_.own.sized.candidate;
  }
  Result<Finalist> HeldOut(const Measured& measured) const;

  const SolverAnswer& answer_;
  const FinalChoiceInput& input_;
  std::vector<Finalist> finalists_;  // kvrun's own choice first, good or not
  double kl_limit_ = 0.0;
  bool is_within_limit_ = true;
  uint32_t n_refused_ = 0;
};

Result<Finalist> Choice::HeldOut(const Measured& measured) const {
  KVRUN_ASSIGN_OR_RETURN(const Quality quality, input_.measure_held_out(measured.sized));
  return Finalist{measured, IsOwn(measured), quality.kl, false, {}};
}

// Accepted points but kvrun's own choice: those that are probably the fastest, then those of least KL.
std::vector<Measured> Choice::InOrder() const {
  std::vector<Measured> order;
  for (const Measured& measured : answer_.accepted) {
    if (!IsOwn(measured)) order.push_back(measured);
  }
  std::stable_sort(order.begin(), order.end(), [this](const Measured& a, const Measured& b) {
    return LikelyMs(a, input_.batch) < LikelyMs(b, input_.batch);
  });
  const auto others = std::span(order).subspan(std::min(order.size(), kMostTried));
  std::stable_sort(others.begin(), others.end(),
                   [](const Measured& a, const Measured& b) { return a.quality.kl < b.quality.kl; });
  order.resize(std::min(order.size(), 2 * kMostTried));
  return order;
}

Status Choice::Confirm() {
  const std::vector<Measured> order = InOrder();
  const uint64_t total = order.size() + 1;
  KVRUN_RETURN_IF_ERROR(input_.tell("confirming the best", 0, total));
  KVRUN_ASSIGN_OR_RETURN(Finalist own, HeldOut(answer_.own));
  own.is_good = input_.kl_limit == 0.0 || own.kl() <= input_.kl_limit;
  bool any_is_good = own.is_good;
  finalists_.push_back(std::move(own));
  const double limit = input_.kl_limit > 0.0
                           ? input_.kl_limit
                           : std::max(kConfirmedShare * finalists_.front().kl(), kNegligibleKl);
  kl_limit_ = limit;
  std::vector<Finalist> refused;
  for (size_t i = 0; i < order.size(); ++i) {
    if (finalists_.size() > (input_.is_late() ? 1 : kMostConfirmed)) break;
    // The others are for a given limit that nothing has kept yet.
    if (i >= kMostTried && any_is_good) break;
    KVRUN_RETURN_IF_ERROR(input_.tell("confirming the best", i + 1, total));
    KVRUN_ASSIGN_OR_RETURN(Finalist finalist, HeldOut(order[i]));
    finalist.is_good = finalist.kl() <= limit;
    any_is_good = any_is_good || finalist.is_good;
    (finalist.is_good ? finalists_ : refused).push_back(std::move(finalist));
  }
  n_refused_ = static_cast<uint32_t>(refused.size());
  if (any_is_good) return Status::Ok();
  is_within_limit_ = false;
  std::move(refused.begin(), refused.end(), std::back_inserter(finalists_));
  const auto least = std::min_element(finalists_.begin(), finalists_.end(),
                                      [](const Finalist& a, const Finalist& b) { return a.kl() < b.kl(); });
  least->is_good = true;
  std::erase_if(finalists_, [](const Finalist& one) { return !one.is_good && !one.is_own; });
  return Status::Ok();
}

Status Choice::TakeTurns() {
  // Which group gives way to another changes hits, not what is attended to.
  for (Finalist& finalist : finalists_) {
    if (!finalist.is_own) SetPolicy(input_.best_policy(finalist.measured.sized), &finalist.measured.sized);
  }
  const uint64_t total = uint64_t{kMostTurns} * finalists_.size();
  for (uint32_t turn = 0; turn < kMostTurns; ++turn) {
    if (turn > 0 && input_.is_late()) break;
    for (size_t i = 0; i < finalists_.size(); ++i) {
      KVRUN_RETURN_IF_ERROR(input_.tell("comparing the best", turn * finalists_.size() + i, total));
      KVRUN_ASSIGN_OR_RETURN(const double ms, input_.measure_ms(finalists_[i].measured));
      finalists_[i].times_ms.push_back(ms);
    }
  }
  return Status::Ok();
}

const Finalist& Choice::Best() const {
  double slowest_ms = std::numeric_limits<double>::infinity();
  for (const Finalist& one : finalists_) {
    if (!one.is_good) continue;
    // Without a given limit nothing is slower than kvrun's own choice.
    const double slack = one.is_own && input_.kl_limit == 0.0 ? 1.0 : kHardlySlower;
    slowest_ms = std::min(slowest_ms, slack * Median(one.times_ms));
  }
  const Finalist* best = nullptr;
  for (const Finalist& one : finalists_) {
    if (!one.is_good || Median(one.times_ms) > slowest_ms) continue;
    if (best == nullptr || one.kl() < best->kl()) best = &one;
  }
  return *best;
}

Result<FinalChoice> Choice::Run() {
  KVRUN_RETURN_IF_ERROR(Confirm());
  KVRUN_RETURN_IF_ERROR(TakeTurns());
  const Finalist& own = finalists_.front();
  const Finalist& best = Best();
  return FinalChoice{.chosen = best.measured,
                     .is_own = best.is_own,
                     .kl_limit = kl_limit_,
                     .is_within_limit = is_within_limit_,
                     .n_refused = n_refused_,
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
