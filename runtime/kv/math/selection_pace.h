// How many groups a step's choice may have, where that follows how late reads are while decoding
// (--kv-adapt). Pure: a step's times in, a number out. Source: none; it is the usual control by small
// multiplicative steps.
#pragma once

#include <algorithm>
#include <cstdint>

namespace kvrun {

class SelectionPace {
 public:
  // Groups, pinned ones among them: least <= usual <= most. `hide`: as KvOptions::hide.
  SelectionPace(uint32_t least, uint32_t usual, uint32_t most, double hide)
      : least_(least), most_(most), count_(std::clamp(usual, least, most)), hide_(hide) {}

  uint32_t count() const { return count_; }
  // Of a step: how long groups were being read, and how long the device waited for them. Fewer where less is
  // hidden than is asked for; more where only half of what may show does.
  void Note(double io_ms, double stall_ms) {
    const double hidden = io_ms > 0.0 ? 1.0 - stall_ms / io_ms : 1.0;
    if (hidden < hide_) {
      count_ = std::max(least_, count_ - std::min(count_, std::max(count_ / kFewerBy, 1U)));
    } else if (hidden >= (1.0 + hide_) / 2.0) {
      count_ = std::min(most_, count_ + std::max(count_ / kMoreBy, 1U));
    }
  }

 private:
  static constexpr uint32_t kFewerBy = 16;
  static constexpr uint32_t kMoreBy = 32;

  uint32_t least_;
  uint32_t most_;
  uint32_t count_;
  double hide_;
};

}  // namespace kvrun
