#include "runtime/kv/math/read_limit.h"

#include <algorithm>
#include <cmath>

namespace kvrun {
namespace {

// Twice as many reads as there are to be make the threshold a fifth higher; a step counts as at most four
// times as many, or as few.
constexpr double kGain = 0.25;
constexpr double kMostRatio = 4.0;
constexpr float kLeastThreshold = 1e-6F;
constexpr float kMostThreshold = 1e3F;

}  // namespace

std::span<const uint8_t> ReadLimit::MayStayUnread(uint32_t stream, std::span<const float> scores) {
  may_stay_.resize(scores.size());
  const float threshold = streams_[stream].threshold;
  std::transform(scores.begin(), scores.end(), may_stay_.begin(),
                 [threshold](float score) { return static_cast<uint8_t>(score > threshold ? 0 : 1); });
  return may_stay_;
}

void ReadLimit::Note(uint32_t stream, uint32_t n_reads) {
  streams_[stream].n_reads += n_reads;
  ++streams_[stream].n_layers;
}

void ReadLimit::EndStep() {
  for (Stream& stream : streams_) {
    if (stream.n_layers == 0) continue;
    const double ratio = stream.n_reads / (groups_per_layer_ * stream.n_layers);
    const double factor = std::pow(std::clamp(ratio, 1.0 / kMostRatio, kMostRatio), kGain);
    stream.threshold =
        std::clamp(static_cast<float>(stream.threshold * factor), kLeastThreshold, kMostThreshold);
  }
  DropStep();
}

void ReadLimit::DropStep() {
  for (Stream& stream : streams_) stream.n_reads = stream.n_layers = 0;
}

}  // namespace kvrun
