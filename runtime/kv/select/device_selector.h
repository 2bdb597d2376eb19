// Reads what the device chose by the scores of an index.
#pragma once

#include <memory>
#include <vector>

#include "runtime/kv/contracts/kv_selector.h"
#include "runtime/kv/plan/kv_plan.h"

namespace kvrun {

class DeviceSelector final : public KvSelector {
 public:
  // The plan must outlive it.
  DeviceSelector(Device& device, const KvPlan& plan, uint32_t n_layers)
      : device_(device), plan_(plan), chosen_(n_layers) {}

  Status BeginDecode() override;
  void EndDecode() override;
  Buffer* chosen(uint32_t layer) const override { return chosen_[layer].get(); }
  Status Receive(uint32_t layer) override;
  Result<std::span<const uint32_t>> Choose(const StreamStep& step) override;
  Result<GroupSample> Sample(const StreamStep& step) override;
  std::span<const float> Scores(const StreamStep& step) const override;
  std::span<const uint32_t> LastChoice(const StreamStep& step) const override;

 private:
  uint64_t ListWords(uint32_t layer) const { return plan_.choice_list(layer).words(); }
  std::span<const uint32_t> List(const StreamStep& step) const;
  uint64_t Offset(const StreamStep& step) const {
    return (uint64_t{step.row} * plan_.heads_per_sequence() + step.head) * ListWords(step.layer);
  }

  Device& device_;
  const KvPlan& plan_;
  std::vector<std::unique_ptr<Buffer>> chosen_;  // of each layer: kShared, ScoreArgs::chosen
};

}  // namespace kvrun
