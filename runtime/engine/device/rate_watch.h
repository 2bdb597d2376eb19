// Whether a device computes as fast as it was measured to: what steps of sessions take, beside the times that
// "auto" has kept.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "runtime/engine/device/device_times.h"
#include "runtime/engine/pass/forward_pass.h"

namespace kvrun {

// So many times as fast or as slow as kept is far off. Between two devices the choice turns at kClearWin, and
// least times of many steps come and go by tens of percent; beside a program that takes half of the cores
// they are twice as long.
inline constexpr double kFarOff = 1.6;
// Times are compared where they are of the same kind as the trial's: resident KV, one row or a chunk of a
// prompt, at positions before this one. Longer contexts take longer by themselves.
inline constexpr uint32_t kWatchedPositions = 512;
inline constexpr uint32_t kWatchedChunkRows = 64;  // at least
// Fewer steps say nothing: the first ones let drivers compile.
inline constexpr uint32_t kWatchedSteps = 16;
inline constexpr uint32_t kWatchedChunks = 2;

// Least times per token; 0: not seen often enough.
class RateWatch {
 public:
  // Any thread.
  void Add(uint32_t n_rows, uint32_t last_position, double step_us);
  DeviceTimes Seen() const;

 private:
  mutable std::mutex mutex_;
  DeviceTimes least_;
  uint32_t n_decode_ = 0;
  uint32_t n_prefill_ = 0;
};

// Seen by kept, in both phases; 1 where nothing was seen.
DeviceTimes RatioOf(const DeviceTimes& seen, const DeviceTimes& kept);
// `usual`: the ratio that is no surprise: a trial of a few layers is not the whole model. Nothing, or what is
// far off, in words.
std::optional<std::string> FarOff(const DeviceTimes& seen, const DeviceTimes& kept, const DeviceTimes& usual);

// `pass`, which has resident KV, with its steps told to `watch`.
std::unique_ptr<ForwardPass> WatchPass(std::unique_ptr<ForwardPass> pass, std::shared_ptr<RateWatch> watch);

}  // namespace kvrun
