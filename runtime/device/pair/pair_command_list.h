// A list of a pair: kept by one of the two devices, which its first operation names.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "runtime/device/device.h"
#include "runtime/device/pair/pair_memory.h"

namespace kvrun::pair {

class PairDevice;

class PairCommandList : public CommandList {
 public:
  explicit PairCommandList(PairDevice& device) : device_(device) {}

  Status Add(const Operation& operation) override;
  Status AwaitHost() override;
  void BeginStrand() override {
    if (own_ != nullptr) own_->BeginStrand();
  }
  void EndStrands() override {
    if (own_ != nullptr) own_->EndStrands();
  }
  Status Finish() override;

  // Of a finished list.
  Side side() const { return side_; }
  CommandList& own() { return *own_; }
  std::span<PairBuffer* const> written() const { return written_; }

 private:
  Side SideOf(const OperationWork& work) const;
  Status BeginOn(Side side);

  PairDevice& device_;
  Side side_ = Side::kDecode;
  std::unique_ptr<CommandList> own_;  // null before the first operation
  std::vector<PairBuffer*> written_;  // that the list's operations may write
};

}  // namespace kvrun::pair
