// The command lists of decode steps: which ones a step has, and what is recorded in each.
// docs/methods/kvswap.md follows a token through them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/engine/offloaded/decode_probe.h"
#include "runtime/engine/pass/layer_states.h"
#include "runtime/engine/pass/step_commands.h"
#include "runtime/kv/serve/step_records.h"

namespace kvrun {

class DecodeLists {
 public:
  // All must outlive it.
  static Result<std::unique_ptr<DecodeLists>> Create(Device& device, const StepCommands& commands,
                                                     StepRecords& cache, const LayerStates& states,
                                                     const DecodeProbe& probe);

  // Of a step, in the order of submission: list i ends with the prediction of layer i. First those of which
  // there is nothing to compute yet, then each layer with the prediction of a later one
  // (KvMethod::lookahead). Layers are counted that keep growing KV; those between them go with the one
  // before. Recorded if they are not there; valid until the next call, or Drop. There is scratch.
  using Step = std::span<const std::unique_ptr<CommandList>>;
  Result<Step> For(uint32_t n_rows, uint32_t n_outputs);
  // What they were recorded with will be gone: buffers, adapters, kernels.
  void Drop() { steps_.clear(); }

  // What attention takes while the cache is in its decode phase, for slots as they are. Lists are dropped
  // with it.
  Status MakeScratch();
  bool has_scratch() const { return attend_scratch_ != nullptr; }
  void DropScratch() {
    Drop();
    attend_scratch_.reset();
  }

 private:
  struct RecordedStep {
    uint32_t n_rows = 0;
    uint32_t n_outputs = 0;
    bool is_probed = false;
    bool takes_inputs = false;
    std::vector<std::unique_ptr<CommandList>> lists;
  };

  DecodeLists(Device& device, const StepCommands& commands, StepRecords& cache, const LayerStates& states,
              const DecodeProbe& probe)
      : device_(device), commands_(commands), cache_(cache), states_(states), probe_(probe) {}

  Status CreateBuffers();
  Status RecordFirst(CommandList& list, uint32_t layer, uint32_t n_rows);
  Status RecordLayer(CommandList& list, uint32_t layer, uint32_t n_rows, uint32_t n_outputs);
  // Of the model's layers, those before this one which the lists so far have not computed.
  Status RecordStates(CommandList& list, uint32_t begin, uint32_t end, uint32_t n_rows);
  Status RecordNorms(CommandList& list, uint32_t layer, uint32_t n_rows);
  Status RecordPrediction(CommandList& list, uint32_t layer, uint32_t n_rows, const Buffer* normed);
  ScoreArgs Score(uint32_t layer, uint32_t n_rows) const;
  SlotAttentionArgs SlotAttention(uint32_t layer, uint32_t n_rows) const;

  // The device chooses, by the scores of an index.
  bool scores() const { return cache_.index() != nullptr; }
  uint32_t lookahead() const { return cache_.plan().method.lookahead; }
  uint32_t n_layers() const { return commands_.config().n_kv_layers(); }
  // Of the model; behind the last one, how many there are.
  uint32_t model_layer(uint32_t layer) const {
    return layer < n_layers() ? commands_.config().kv_layers[layer] : commands_.config().n_layers;
  }

  Device& device_;
  const StepCommands& commands_;
  StepRecords& cache_;
  const LayerStates& states_;
  const DecodeProbe& probe_;
  std::unique_ptr<Buffer> later_normed_;  // float [n_sequences, n_embd], of a prediction ahead
  std::unique_ptr<Buffer> query_;         // float [n_sequences, q_dim]
  std::unique_ptr<Buffer> score_scratch_;
  std::unique_ptr<Buffer> attend_scratch_;
  std::vector<RecordedStep> steps_;
};

}  // namespace kvrun
