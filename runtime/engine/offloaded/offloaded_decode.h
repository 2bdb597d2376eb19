// A pass's decode steps: what comes before a step is computed (ComputeStep), and after. Of a step that passes
// share each has its own.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/engine/offloaded/decode_lists.h"
#include "runtime/engine/offloaded/decode_probe.h"
#include "runtime/engine/pass/forward_step.h"
#include "runtime/engine/pass/step_commands.h"
#include "runtime/engine/pass/step_probe.h"
#include "runtime/kv/math/selection_pace.h"
#include "runtime/kv/plan/kv_step.h"
#include "runtime/kv/serve/kv_thread.h"
#include "runtime/kv/serve/record_cache.h"

namespace kvrun {

class OffloadedDecode {
 public:
  // All must outlive it. `probe` may be null.
  static Result<std::unique_ptr<OffloadedDecode>> Create(Device& device, StepCommands& commands,
                                                         RecordCache& cache, const LayerStates& states,
                                                         std::shared_ptr<StepProbe> probe);

  // The cache comes into its decode phase, if it is not there. What a prompt takes on the device is given up.
  Status Begin();
  // Begins, and computes rows of different sequences. logits: float [outputs.size(), n_vocab]; may be empty.
  Status Run(std::span<const StepRow> rows, std::span<const uint32_t> outputs, std::span<float> logits);
  // Run in its parts: Prepare, what is computed, Conclude.
  Status Prepare(std::span<const StepRow> rows, std::span<const uint32_t> outputs);
  Status Conclude(std::span<const StepRow> rows);
  LookBack& look_back() { return *lists_; }
  // Before a prompt: what was recorded is of no use after it.
  void DropLists() { lists_->Drop(); }

 private:
  OffloadedDecode(Device& device, StepCommands& commands, RecordCache& cache, DecodeProbe probe);

  Status BeginStep(std::span<const StepRow> rows);
  Status Learn();
  Status WriteRowsToScore();
  Status WriteInputs(std::span<const StepRow> rows, std::span<const uint32_t> outputs);

  // The device chooses, by the scores of an index.
  bool scores() const { return cache_.index() != nullptr; }
  uint32_t n_layers() const { return commands_.config().n_kv_layers(); }

  Device& device_;
  StepCommands& commands_;
  RecordCache& cache_;
  StepRecords& steps_;              // of the cache
  std::optional<KvThread> thread_;  // where KV is on flash
  DecodeProbe probe_;
  std::unique_ptr<DecodeLists> lists_;
  std::optional<SelectionPace> pace_;  // where how much is selected follows the reads
  KvStep kv_step_;
  double io_before_ms_ = 0.0;  // the step
  double stall_before_ms_ = 0.0;
};

}  // namespace kvrun
