// Recorded operations of the host device: calls, kept with their arguments.
#pragma once

#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/device/device.h"
#include "runtime/device/host/host_device.h"

namespace kvrun::host {

struct HostOperation {
  std::string_view name;  // a literal: "matmul_q4_1", for profiles
  Buffer* result;         // or one of them
  std::function<void(ThreadPool&)> run;
};

// Operations that may be carried out beside those of other strands.
struct Strand {
  size_t begin = 0;
  size_t end = 0;
};

class HostCommandList : public CommandList {
 public:
  explicit HostCommandList(HostDevice& device) : device_(device) {}

  Status Add(const Operation& operation) override;
  Status AwaitHost() override {
    await_at_ = operations_.size();
    return Status::Ok();
  }
  void BeginStrand() override;
  void EndStrands() override;
  Status Finish() override { return Status::Ok(); }

  std::span<const HostOperation> operations() const { return operations_; }
  // Before which of them the host's value is waited for.
  size_t await_at() const { return await_at_; }
  // Each some strands that lie one after another: they begin at begin of the first.
  using Strands = std::vector<Strand>;
  std::span<const Strands> strands() const { return strands_; }

 private:
  Status AddAll(std::span<const Operation> operations);

  HostDevice& device_;
  std::vector<HostOperation> operations_;
  size_t await_at_ = 0;
  std::vector<Strands> strands_;
  Strands open_;
};

}  // namespace kvrun::host
