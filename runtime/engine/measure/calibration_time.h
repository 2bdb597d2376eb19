// How long a calibration will take on this device, and what of it there is time for: fewer and shorter pieces
// of text, fewer settings of reuse rates, shorter cuts of layers. The choice is pure; what is chosen gives
// the same adapter whatever the clock says.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "platform/base/status.h"
#include "runtime/engine/measure/calibration.h"
#include "runtime/engine/session/session.h"
#include "runtime/model/model.h"

namespace kvrun {

// Seconds, with sums for adapters.
struct CalibrationRates {
  double token_s = 0.0;   // of a prompt, at its beginning
  double attend_s = 0.0;  // more for each token before it
  double step_s = 0.0;    // of a decoded token

  // Of a prompt of n tokens.
  double PromptSeconds(double n) const { return token_s * n + attend_s * n * n / 2; }
};

// What is to be calibrated.
struct CalibrationJob {
  uint64_t n_tokens = 0;       // of texts
  uint64_t n_done_tokens = 0;  // of them, those whose sums are kept already
  uint32_t n_ctx = 0;          // of a piece, where there is time for all
  bool may_shorten = true;
  uint32_t rank = 0;
  uint32_t n_layers = 0;
  bool measures_reuse = true;
  bool measures_layers = true;
};

struct CalibrationTimes {
  uint32_t n_ctx = 0;        // of a piece
  double sums_s = 0.0;       // for the sums; where there is no limit, what they take
  double later_s = 0.0;      // for what comes after them
  double seconds = 0.0;      // of everything, likely
  double all_seconds = 0.0;  // of everything, were there no limit
};
// limit_s 0: none. Half of a time that is not enough for all is for the sums, and pieces are halved until two
// fit into that, and one into what is there for reuse rates.
CalibrationTimes ChooseCalibrationTimes(const CalibrationRates& rates, const CalibrationJob& job,
                                        double limit_s);

// Of what is summed up, how many tokens fit: the first pieces, that give `rank` columns enough in any case.
// `token_s`: as measured. Pieces from `n_done` on are to come.
size_t PiecesThatFit(std::span<const std::span<const TokenId>> pieces, size_t n_done, uint32_t rank,
                     double token_s, double left_s);

// (group, selected entries), the most telling first: nearest to what kvrun chooses.
using ReuseSettingSize = std::pair<uint32_t, uint32_t>;
std::vector<ReuseSettingSize> ByImportance(std::vector<ReuseSettingSize> settings);

// What it takes to cut each layer alone.
struct CutSize {
  uint32_t n_ctx = 0;
  uint32_t n_steps = 0;
  bool operator==(const CutSize&) const = default;
};
// Of all the text, half of it or a quarter, what takes no more than left_s; nothing where none does. `full`:
// where there is time for all. Of fewer steps shares do more harm than good (docs/measurements/reading.md).
std::optional<CutSize> ChooseCuts(const CalibrationRates& rates, const CutSize& full, uint32_t n_layers,
                                  double left_s);
double CutSeconds(const CalibrationRates& rates, const CutSize& size, uint32_t n_layers);

// Prefills and decodes a few tokens, for a second or two. Takes the mutex.
Result<CalibrationRates> MeasureCalibrationRates(const Model& model,
                                                 std::shared_ptr<const DeviceWeights> weights, Device& device,
                                                 std::mutex* device_mutex, uint32_t n_ctx);

// By rates that are measured now. Pieces that are kept in a checkpoint already have their length.
Result<CalibrationTimes> TimeCalibration(const Model& model, std::shared_ptr<const DeviceWeights> weights,
                                         Device& device, std::mutex* device_mutex,
                                         const CalibrationOptions& options, bool measures_reuse,
                                         bool measures_layers, double limit_s);

}  // namespace kvrun
