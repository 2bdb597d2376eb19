// How long a step of decoding takes, predicted: KVSwap's T_io and T_model (appendix A.3), fitted to sampled
// steps and to the storage's rates. Pure.
//
// Two things go on at once, and the longer one decides, but for what they disturb each other:
//   T = (A^4 + B^4)^(1/4)
//   A   the device: a constant per batch size; entries attended to, by their types; entries scored, by rank
//   and
//       index type; softmaxes; choices; and, where the reading thread shares the device's processor, what
//       each group and each byte that is read takes of it (elsewhere that is fitted to be near 0)
//   B   the thread that reads: what flash alone takes, and a part for each group and each layer's wait
// Each term has a weight >= 0.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "offline/candidate.h"
#include "offline/device_profile.h"
#include "platform/base/status.h"

namespace kvrun::offline {

// What a step's time depends on.
struct TimePoint {
  uint32_t batch = 1;
  uint32_t ctx = 0;
  uint32_t n_layers = 0;
  uint32_t n_streams = 1;      // of all sequences
  uint32_t chosen_groups = 0;  // or drawn, per stream and layer
  uint32_t group_tokens = 1;
  uint32_t heads_per_record = 1;
  uint32_t window_entries = 0;  // and those of the static set: what is always in memory
  uint32_t rank = 0;
  KvType index_type = KvType::kInt4;
  KvType k_type = KvType::kFp8;
  KvType v_type = KvType::kFp8;
  bool per_kv_head = false;
  uint32_t record_bytes = 0;  // on flash, padded
  double loads = 0.0;         // groups per step, all layers and streams
  double reads = 0.0;         // the same, adjacent ones as one
};
// What a text makes of a plan.
struct StepReads {
  double hit_rate = 1.0;        // of chosen groups that are not pinned
  double reads_per_load = 1.0;  // at most 1
  double chosen_share = 1.0;    // of the most that a step may choose or draw
};
TimePoint PointOf(const SearchSetting& setting, const KvPlan& plan, const StepReads& reads);

// What flash alone takes: rates by block size and depth, those of the mode that sessions take (the profile's
// first row's), interpolated between what was measured.
class StorageModel {
 public:
  StorageModel() = default;
  explicit StorageModel(const StorageProfile& storage);

  // Of a step: a layer's reads of a stream are in flight together, the next layer's wait for them. 0 where
  // nothing is read or nothing was measured.
  double Milliseconds(const TimePoint& point) const;

 private:
  double BytesPerSecond(double block_bytes, double depth) const;

  std::vector<double> block_bytes_;  // ascending
  std::vector<double> depths_;
  std::vector<double> log_rates_;  // [block_bytes, depths]
};

struct StepSample {
  TimePoint point;
  double step_ms = 0.0;
};

struct PredictedTime {
  double step_ms = 0.0;
  double model_ms = 0.0;    // of A, the device's work
  double reading_ms = 0.0;  // of A, what reading takes of its processor
  double storage_ms = 0.0;  // B
  bool is_io_bound() const { return storage_ms > model_ms + reading_ms; }
};

class TimeModel {
 public:
  // kInvalidArgument where there are fewer than 4 samples.
  static Result<TimeModel> Fit(const std::vector<StepSample>& samples, const StorageProfile& storage);

  // Of a batch size that was sampled; others are interpolated between those around them. Nothing is more than
  // ten times shorter or longer than all samples.
  PredictedTime Predict(const TimePoint& point) const;
  // The largest and the mean error relative to the samples that were fitted.
  double max_error() const { return max_error_; }
  double mean_error() const { return mean_error_; }

 private:
  struct Row;
  Row RowOf(const StepSample& sample) const;
  double DeviceTime(const Row& row) const;   // A
  double StorageTime(const Row& row) const;  // B
  double Loss(const std::vector<Row>& rows) const;
  std::vector<double> Refined(const std::vector<Row>& rows) const;  // weights
  bool Refine(const std::vector<Row>& rows);                        // whether there was anything to gain
  double StepTime(const PredictedTime& time) const;
  PredictedTime PredictAt(const TimePoint& point, uint32_t sampled_batch) const;

  StorageModel storage_;
  std::vector<uint32_t> batches_;  // ascending
  std::vector<double> weights_;    // of the batches' constants, A's other terms, B's terms
  double least_ms_ = 0.0;          // of what is predicted
  double most_ms_ = 0.0;
  double max_error_ = 0.0;
  double mean_error_ = 0.0;
};

// The weights w >= 0 that minimise |X w - y|^2 + ridge * |w|^2, columns scaled to the same length. Rows of X
// have as many values as there are weights.
std::vector<double> NonNegativeLeastSquares(const std::vector<std::vector<double>>& x,
                                            const std::vector<double>& y, double ridge);

}  // namespace kvrun::offline
