// Base of selectors that choose on the host, without scores: keeps each stream's choice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/kv/contracts/kv_selector.h"
#include "runtime/kv/plan/kv_plan.h"

namespace kvrun {

class HostSelector : public KvSelector {
 public:
  // The plan must outlive it.
  HostSelector(const KvPlan& plan, uint32_t n_layers) : plan_(plan), n_layers_(n_layers) {}

  Status BeginDecode() override {
    lists_.resize(size_t{n_layers_} * plan_.n_streams * ListWords());
    return Status::Ok();
  }
  void EndDecode() override { lists_ = {}; }
  Buffer* chosen(uint32_t /*layer*/) const override { return nullptr; }
  Result<std::span<const uint32_t>> Choose(const StreamStep& step) override {
    uint32_t* const list = &lists_[Offset(step)];
    list[0] = Fill(step, std::span(list + 1, plan_.choice.n_chosen));
    return std::span<const uint32_t>(list + 1, list[0]);
  }
  std::span<const uint32_t> LastChoice(const StreamStep& step) const override {
    const uint32_t* const list = &lists_[Offset(step)];
    return {list + 1, list[0]};
  }

 protected:
  // Writes ascending groups, at most n_chosen, and answers how many.
  virtual uint32_t Fill(const StreamStep& step, std::span<uint32_t> groups) = 0;
  const KvPlan& plan() const { return plan_; }

 private:
  size_t ListWords() const { return 1 + size_t{plan_.choice.n_chosen}; }
  size_t Offset(const StreamStep& step) const {
    return (size_t{step.layer} * plan_.n_streams + step.stream) * ListWords();
  }

  const KvPlan& plan_;
  uint32_t n_layers_;
  std::vector<uint32_t> lists_;  // [n_layers, n_streams] of a count and its groups
};

}  // namespace kvrun
