// Which of the chosen groups that no slot has are worth reading, where reads are limited: those whose score
// is above a threshold. In place of each other one a step attends to a group that lies in a slot and was not
// chosen (SlotCache::Plan). The threshold of a sequence's stream follows its reads, so that a layer reads so
// many groups a step on average, and most where it gains most. It depends on the stream's own reads alone:
// neither on time nor on other sequences, so that a run repeats.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvrun {

class ReadLimit {
 public:
  // groups_per_layer: that a stream reads in a step, on average over layers; above 0.
  ReadLimit(double groups_per_layer, uint32_t n_streams)
      : groups_per_layer_(groups_per_layer), streams_(n_streams) {}

  // scores: of chosen groups, none below 0. Answers for each whether it may stay unread; valid until the next
  // call.
  std::span<const uint8_t> MayStayUnread(uint32_t stream, std::span<const float> scores);
  // A layer has read so many in place of others.
  void Note(uint32_t stream, uint32_t n_reads);
  // All layers of all the step's streams have been noted.
  void EndStep();
  // The step was given up: nothing of it counts.
  void DropStep();

  float threshold(uint32_t stream) const { return streams_[stream].threshold; }
  void SetThreshold(uint32_t stream, float threshold) { streams_[stream].threshold = threshold; }

 private:
  struct Stream {
    float threshold = 0.006F;  // of a head's attention
    uint32_t n_reads = 0;      // of the step
    uint32_t n_layers = 0;
  };

  double groups_per_layer_;
  std::vector<Stream> streams_;
  std::vector<uint8_t> may_stay_;
};

}  // namespace kvrun
