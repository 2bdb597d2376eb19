// Everything before the window.
#pragma once

#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "runtime/kv/contracts/kv_selector.h"

namespace kvrun {

class AllSelector final : public KvSelector {
 public:
  // Of groups 0 to n_groups - 1 at most.
  explicit AllSelector(uint32_t n_groups) : groups_(n_groups) {
    std::iota(groups_.begin(), groups_.end(), 0U);
  }

  Status BeginDecode() override { return Status::Ok(); }
  void EndDecode() override {}
  Buffer* chosen(uint32_t /*layer*/) const override { return nullptr; }
  Result<std::span<const uint32_t>> Choose(const StreamStep& step) override { return LastChoice(step); }
  std::span<const uint32_t> LastChoice(const StreamStep& step) const override {
    return std::span(groups_).first(step.n_groups);
  }

 private:
  std::vector<uint32_t> groups_;
};

}  // namespace kvrun
