// A limit of time for work of several parts: whether another one ends before it, and how far all of it is.
// Pure but for the clock it is given.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace kvrun::offline {

class TimeLimit {
 public:
  using Clock = std::function<double()>;  // seconds from any moment on; never runs backwards

  // Began `spent_s` seconds ago. No clock: the steady one.
  explicit TimeLimit(double limit_s, double spent_s = 0.0, Clock clock = {});

  double limit_s() const { return limit_s_; }
  // Seconds from the beginning on.
  double Spent() const { return clock_() - begin_; }
  // Until the limit; 0 after it.
  double Left() const;
  bool IsOver() const { return Left() <= 0.0; }
  bool HasRoomFor(double seconds) const { return seconds < Left(); }

  // What is done in any case likely ends so many seconds after the beginning: progress counts with it where
  // that is after the limit.
  void Expect(double seconds);
  // For progress, in whole seconds: of all that it takes, and what is spent of that. It is not done yet: less
  // than TotalSeconds().
  uint64_t TotalSeconds() const;
  uint64_t DoneSeconds() const;

 private:
  double limit_s_;
  double expected_s_;
  Clock clock_;
  double begin_;
};

// Watches a part of the work whose progress is told, such as a prompt's tokens: whether it would end too
// late, if it went on as it began. Earlier tokens are the faster ones, so what is late by this is late.
class Projection {
 public:
  // The part begins now. `limit` must outlive this.
  explicit Projection(const TimeLimit& limit) : limit_(&limit), begin_(limit.Spent()) {}
  // `done` of `total`; false until something can be said. `end_s`: seconds from the limit's beginning, by
  // which the part must end.
  bool IsTooLate(uint64_t done, uint64_t total, double end_s) const;
  // Likely, of all of the part; 0 where nothing is done.
  double Seconds(uint64_t done, uint64_t total) const;

 private:
  const TimeLimit* limit_;
  double begin_;
};

// "45 seconds", "3.5 minutes".
std::string DurationText(double seconds);

}  // namespace kvrun::offline
