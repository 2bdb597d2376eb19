// What a decode step is asked to tell of itself, and to take in place of what it computes (StepProbe): the
// buffers for it, and the commands that a step has for it.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/engine/pass/step_commands.h"
#include "runtime/engine/pass/step_probe.h"
#include "runtime/kv/serve/record_cache.h"

namespace kvrun {

class DecodeProbe {
 public:
  // `probe` may be null: nothing is ever asked for. The commands must outlive it.
  static Result<DecodeProbe> Create(Device& device, const StepCommands& commands,
                                    std::shared_ptr<StepProbe> probe);

  // Of the next step.
  bool is_wanted() const { return probe_ != nullptr && probe_->wanted; }
  bool gives_inputs() const { return is_wanted() && !probe_->inputs.empty(); }

  // Where it is wanted: a layer's queries, as RopeAndEncode has left them.
  Status RecordQueries(CommandList& list, uint32_t layer) const;
  // Where inputs are given, before a layer that is not the first: hidden states become those that are given.
  Status RecordInput(CommandList& list, uint32_t layer) const;

  // Before a step: what RecordInput reads, if inputs are given.
  void WriteInputs();
  // After a step: what the row at `position` looked at.
  Status Read(RecordCache& cache, uint32_t position);

 private:
  DecodeProbe(const StepCommands& commands, std::shared_ptr<StepProbe> probe)
      : commands_(&commands), probe_(std::move(probe)) {}

  Status CreateBuffers(Device& device);
  uint32_t n_layers() const { return commands_->config().n_kv_layers(); }

  const StepCommands* commands_;
  std::shared_ptr<StepProbe> probe_;              // may be null
  std::vector<std::unique_ptr<Buffer>> queries_;  // of each layer: kReadback, float [qkv_dim]
  std::vector<std::unique_ptr<Buffer>> inputs_;   // of each layer: kUpload, float [n_embd]
};

}  // namespace kvrun
