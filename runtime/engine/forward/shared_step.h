// A decode step of several passes, a row each: one product with the weights for all rows, as weights are read
// from memory once for all of them then; what looks back by each pass. Activations of products are the step's
// own, and its members have those of a row. A row gets what its pass alone would compute, where products do
// not depend on how many rows there are, as on the CPU.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/engine/pass/forward_pass.h"
#include "runtime/engine/pass/step_member.h"
#include "runtime/engine/pass/step_recorder.h"
#include "runtime/kv/serve/kv_thread.h"

namespace kvrun {

// One thread at a time, which no member's pass is used by meanwhile.
class SharedStep {
 public:
  struct Row {
    StepMember* member = nullptr;
    StepRow row;
    std::span<float> logits;       // float [n_vocab]
    Status status = Status::Ok();  // of its own
  };
  static constexpr size_t kMostRows = kMaxOutputRows;

  // Rows of members whose look_back() has the same form. After an error no row was given, but those whose own
  // status is one say more.
  Status Run(std::span<Row> rows);
  // Before a member is gone. It holds nothing of the device then.
  void Drop();

 private:
  // What was recorded: for whom, and as they were then.
  using Members = std::vector<std::pair<LookBack*, uint64_t>>;

  Status Prepare(Device& device, const StepCommands& commands);
  void WriteInputs();

  std::vector<Row*> active_;
  std::vector<LookBack*> parts_;
  std::vector<StepRecords*> caches_;
  Members members_;
  Members recorded_for_;
  StepLists lists_;
  std::optional<StepCommands> commands_;  // of all rows
  ChoiceBuffers choice_;
  std::optional<KvThread> thread_;
};

}  // namespace kvrun
