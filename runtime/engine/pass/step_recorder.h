// Records decode steps: products with weights of all rows at once, what looks back (LookBack) by each of its
// parts. docs/methods/kvswap.md follows a token through the lists.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/engine/pass/look_back.h"
#include "runtime/engine/pass/step_commands.h"

namespace kvrun {

// In the order of submission. Where the host is waited for, list i ends with the choice of layer i: first
// those of which there is nothing to compute yet, then each layer with the choice of a later one
// (StepForm::lookahead). Layers are counted that keep growing KV; those between them go with the one before.
using StepLists = std::vector<std::unique_ptr<CommandList>>;

// Activations of a later layer's choice, for as many rows as a step may have.
struct ChoiceBuffers {
  // Null where nothing is scored.
  std::unique_ptr<Buffer> normed;  // float [rows, n_embd]: room
  std::unique_ptr<Buffer> query;   // float [rows, q_dim]

  static Result<ChoiceBuffers> Create(Device& device, const ModelConfig& config, uint32_t n_rows);
};

class StepRecorder {
 public:
  // `commands`: of all rows. One part with all of them, whose commands those are; or parts of one form, with
  // a row each, in their order, which is copied from and to their own places. All must outlive what is
  // recorded.
  StepRecorder(const StepCommands& commands, std::span<LookBack* const> parts, const ChoiceBuffers& choice,
               uint32_t n_rows);

  Result<StepLists> Record(Device& device, uint32_t n_outputs);

 private:
  Status RecordFirst(CommandList& list, uint32_t layer);
  Status RecordLayer(CommandList& list, uint32_t layer, uint32_t n_outputs);
  // Of the model's layers, those before this one which the lists so far have not computed.
  Status RecordStates(CommandList& list, uint32_t begin, uint32_t end);
  // Of a layer, by hidden states as they are now.
  Status RecordChoice(CommandList& list, uint32_t layer);
  // A row of a part, between the step's buffer and its own; nothing where they are one.
  struct RowOf {
    Buffer* buffer = nullptr;
    uint32_t row = 0;
  };
  void BeginStrand(CommandList& list) const;
  void EndStrands(CommandList& list) const;
  static Status CopyRow(CommandList& list, const RowOf& from, const RowOf& to, uint32_t n_cols);

  uint32_t n_layers() const { return commands_.config().n_kv_layers(); }
  uint32_t rows_of_part() const { return parts_.size() == 1 ? n_rows_ : 1; }
  // Of the model; behind the last one, how many there are.
  uint32_t model_layer(uint32_t layer) const {
    return layer < n_layers() ? commands_.config().kv_layers[layer] : commands_.config().n_layers;
  }

  const std::vector<LookBack*> parts_;
  const StepCommands& commands_;
  const StepForm form_;
  const ChoiceBuffers& choice_;
  const uint32_t n_rows_;
  StepPlace place_;
};

}  // namespace kvrun
