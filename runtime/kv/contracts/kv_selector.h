// Chooses the groups that each stream attends to beside its window.
//
// Threads: one at a time; during a step the KV thread alone calls Receive and Choose.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "platform/base/status.h"
#include "runtime/device/device.h"

namespace kvrun {

// What a choice is asked for: a stream of a layer, in a step.
struct StreamStep {
  uint32_t layer = 0;
  uint32_t row = 0;       // of the step
  uint32_t head = 0;      // of the row's streams
  uint32_t stream = 0;    // of the layer
  uint32_t position = 0;  // of the row's new entry
  uint32_t n_groups = 0;  // that can be chosen: those before the window
};

// Groups that are drawn besides what is chosen, ascending, and the bias of each one's scores.
struct GroupSample {
  std::span<const uint32_t> groups = {};
  std::span<const float> biases = {};
};

class KvSelector {
 public:
  virtual ~KvSelector() = default;

  // What is kept for decoding alone.
  virtual Status BeginDecode() = 0;
  virtual void EndDecode() = 0;
  // Where a score of the layer (CommandList::ScoreAndSelect) leaves its choice; null: the device has no part
  // in it.
  virtual Buffer* chosen(uint32_t layer) const = 0;

  // Once in each step, before the layer's first choice: what the device chose in it is there.
  virtual Status Receive(uint32_t /*layer*/) { return Status::Ok(); }
  // Ascending and distinct groups, at most KvPlan::layers[layer].n_chosen, pinned ones among them. Valid
  // until the next call for the layer. A choice that no device can have made is kDevice.
  virtual Result<std::span<const uint32_t>> Choose(const StreamStep& step) = 0;
  // Of the other groups, those that are drawn, after Choose and as long valid; one that Choose answered may
  // be among them where its answer is not the device's.
  virtual Result<GroupSample> Sample(const StreamStep& /*step*/) { return GroupSample(); }
  // The scores of what Choose answered, where the plan limits reads (KvSlotPlan::reads_per_layer); as long
  // valid. Empty where they are not known.
  virtual std::span<const float> Scores(const StreamStep& /*step*/) const { return {}; }
  // What Choose answered last, for that stream.
  virtual std::span<const uint32_t> LastChoice(const StreamStep& step) const = 0;
};

}  // namespace kvrun
