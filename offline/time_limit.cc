#include "offline/time_limit.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

namespace kvrun::offline {
namespace {

// Of a part, before what it takes is projected: first steps compile kernels.
constexpr double kFewestSeconds = 1.0;
constexpr double kFewestShare = 0.02;

double SteadySeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

TimeLimit::TimeLimit(double limit_s, double spent_s, Clock clock)
    : limit_s_(limit_s),
      expected_s_(limit_s),
      clock_(clock ? std::move(clock) : Clock(SteadySeconds)),
      begin_(clock_() - spent_s) {}

double TimeLimit::Left() const { return std::max(limit_s_ - Spent(), 0.0); }

void TimeLimit::Expect(double seconds) { expected_s_ = std::max(expected_s_, seconds); }

uint64_t TimeLimit::TotalSeconds() const {
  return std::max<uint64_t>(static_cast<uint64_t>(std::ceil(expected_s_)), 1);
}

uint64_t TimeLimit::DoneSeconds() const {
  return std::min(static_cast<uint64_t>(std::max(Spent(), 0.0)), TotalSeconds() - 1);
}

double Projection::Seconds(uint64_t done, uint64_t total) const {
  if (done == 0) return 0.0;
  return (limit_->Spent() - begin_) * static_cast<double>(total) / static_cast<double>(done);
}

bool Projection::IsTooLate(uint64_t done, uint64_t total, double end_s) const {
  if (limit_->Spent() >= end_s) return true;
  const double share = total == 0 ? 1.0 : static_cast<double>(done) / static_cast<double>(total);
  if (limit_->Spent() - begin_ < kFewestSeconds || share < kFewestShare) return false;
  return begin_ + Seconds(done, total) > end_s;
}

std::string DurationText(double seconds) {
  if (seconds < 90) return fmt::format("{:.0f} seconds", std::ceil(seconds));
  return fmt::format("{:.1f} minutes", seconds / 60);
}

}  // namespace kvrun::offline
