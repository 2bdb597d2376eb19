// How much was written to flash: in all, and on each of the last days (of UTC). Plain data, and its two
// forms: what a session keeps with its state, and the text of a file that counts for all sessions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "platform/base/status.h"
#include "runtime/store/state_visitor.h"

namespace kvrun {

class WrittenDays {
 public:
  static constexpr size_t kMostDays = 30;  // that are told apart; older ones are in the total alone
  struct Day {
    uint32_t day = 0;  // since 1970-01-01
    uint64_t bytes = 0;
  };

  // A day before the newest one counts as that: clocks are set back.
  void Add(uint32_t day, uint64_t bytes);
  uint64_t total_bytes() const { return total_bytes_; }
  uint64_t BytesOf(uint32_t day) const;
  const std::vector<Day>& days() const { return days_; }  // on which something was written; ascending

  // As an item of a session's state (docs/formats/session.md). Loading: kCorrupt where it contradicts itself.
  Status VisitState(StateVisitor& visitor, const StateKey& key);
  // As a file (docs/formats/session.md).
  std::string Text() const;
  // kCorrupt: it is no such text.
  static Result<WrittenDays> Read(std::string_view text);

 private:
  uint64_t total_bytes_ = 0;
  std::vector<Day> days_;
};

// Of a time in seconds since 1970.
uint32_t DayOf(int64_t seconds);
// Now.
uint32_t Today();
// "2026-11-30".
std::string DateText(uint32_t day);

}  // namespace kvrun
