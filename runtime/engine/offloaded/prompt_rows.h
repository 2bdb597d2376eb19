// A prompt that is computed row by row, as tokens that were generated: its hidden states, of which more
// logits may be wanted later.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "platform/base/status.h"
#include "runtime/engine/pass/forward_pass.h"
#include "runtime/engine/pass/step_commands.h"

namespace kvrun {

class PromptRows {
 public:
  // Computes a row, whose hidden state is then the first of StepCommands::hidden().
  using ComputeRow = std::function<Status(std::span<const StepRow> row)>;

  // The commands must outlive it.
  explicit PromptRows(const StepCommands& commands) : commands_(commands) {}

  // Keeps the hidden states of rows from the first on whose logits are wanted: outputs ascend.
  Status Run(std::span<const StepRow> rows, std::span<const uint32_t> outputs, const StepProgress& progress,
             const ComputeRow& compute_row);
  // The last step was no such prompt.
  void Forget() { kept_.clear(); }
  bool are_kept() const { return !kept_.empty(); }
  // Rows that were kept come to the commands' hidden states, as if they were the first of a chunk.
  Status Load(std::span<const uint32_t> outputs) const;

 private:
  uint64_t n_embd() const { return commands_.config().n_embd; }

  const StepCommands& commands_;
  uint32_t first_kept_ = 0;
  std::vector<float> kept_;  // [rows from that one on, n_embd]
};

}  // namespace kvrun
