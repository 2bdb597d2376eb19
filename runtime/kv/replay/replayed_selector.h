// In place of another selector's choices: choices with the locality of a real text's. For benchmarks over a
// cache that was filled at random. What is replaced is made nevertheless, as it costs time.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "runtime/kv/contracts/kv_selector.h"
#include "runtime/kv/plan/kv_plan.h"
#include "runtime/kv/replay/replayed_selection.h"

namespace kvrun {

class ReplayedSelector final : public KvSelector {
 public:
  // repeated_share: see ReplayedSelection. The plan must outlive it.
  ReplayedSelector(std::unique_ptr<KvSelector> replaced, const KvPlan& plan, uint32_t n_layers,
                   double repeated_share)
      : replaced_(std::move(replaced)), n_streams_(plan.n_streams) {
    const size_t n = size_t{n_layers} * n_streams_;
    choices_.reserve(n);
    for (size_t i = 0; i < n; ++i) {
      const auto layer = static_cast<uint32_t>(i / n_streams_);
      choices_.emplace_back(repeated_share, plan.choice.n_pinned, plan.layers[layer].n_chosen, i);
    }
  }

  Status BeginDecode() override { return replaced_->BeginDecode(); }
  void EndDecode() override { replaced_->EndDecode(); }
  Buffer* chosen(uint32_t layer) const override { return replaced_->chosen(layer); }
  Status Receive(uint32_t layer) override { return replaced_->Receive(layer); }
  Result<std::span<const uint32_t>> Choose(const StreamStep& step) override {
    KVRUN_RETURN_IF_ERROR(replaced_->Choose(step).status());
    return choices_[size_t{step.layer} * n_streams_ + step.stream].Next(step.n_groups);
  }
  Result<GroupSample> Sample(const StreamStep& step) override { return replaced_->Sample(step); }
  std::span<const uint32_t> LastChoice(const StreamStep& step) const override {
    return replaced_->LastChoice(step);
  }

 private:
  std::unique_ptr<KvSelector> replaced_;
  uint32_t n_streams_;
  std::vector<ReplayedSelection> choices_;  // [n_layers, n_streams]
};

}  // namespace kvrun
