// The command lists of a pass's decode steps, and what of them looks back into records: the choice by an
// index, and attention to slots, window and what is kept.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/engine/offloaded/decode_probe.h"
#include "runtime/engine/pass/layer_states.h"
#include "runtime/engine/pass/look_back.h"
#include "runtime/engine/pass/step_commands.h"
#include "runtime/engine/pass/step_recorder.h"
#include "runtime/kv/serve/record_cache.h"
#include "runtime/kv/serve/step_records.h"

namespace kvrun {

class DecodeLists final : public LookBack {
 public:
  // All must outlive it.
  static Result<std::unique_ptr<DecodeLists>> Create(Device& device, const StepCommands& commands,
                                                     RecordCache& cache, const LayerStates& states,
                                                     const DecodeProbe& probe);

  // Of a step. Recorded if they are not there; valid until the next call, or Drop. There is scratch.
  Result<const StepLists*> For(uint32_t n_rows, uint32_t n_outputs);
  // What they were recorded with will be gone: buffers, adapters, kernels.
  void Drop() {
    steps_.clear();
    ++version_;
  }

  // What attention takes while the cache is in its decode phase, for slots as they are. Lists are dropped
  // with it.
  Status MakeScratch();
  bool has_scratch() const { return attend_scratch_ != nullptr; }
  void DropScratch() {
    Drop();
    attend_scratch_.reset();
  }

  StepForm form() const override;
  uint64_t version() const override { return version_; }
  const StepCommands& commands() const override { return commands_; }
  const LayerStates& states() const override { return states_; }
  Status RecordAttention(CommandList& list, uint32_t layer, uint32_t n_rows) override;
  Buffer* query() override { return choice_.query.get(); }
  Status RecordChoice(CommandList& list, uint32_t layer, uint32_t n_rows) override;
  Status RecordInput(CommandList& list, uint32_t layer) override { return probe_.RecordInput(list, layer); }

 private:
  struct RecordedStep {
    uint32_t n_rows = 0;
    uint32_t n_outputs = 0;
    bool is_probed = false;
    bool takes_inputs = false;
    StepLists lists;
  };

  DecodeLists(Device& device, const StepCommands& commands, StepRecords& cache, bool has_store,
              const LayerStates& states, const DecodeProbe& probe)
      : device_(device),
        commands_(commands),
        cache_(cache),
        has_store_(has_store),
        states_(states),
        probe_(probe) {}

  Status CreateBuffers();
  ScoreArgs Score(uint32_t layer, uint32_t n_rows) const;
  SlotAttentionArgs SlotAttention(uint32_t layer, uint32_t n_rows) const;

  // The device chooses, by the scores of an index.
  bool scores() const { return cache_.index() != nullptr; }
  uint32_t n_layers() const { return commands_.config().n_kv_layers(); }
  uint32_t model_layer(uint32_t layer) const { return commands_.config().kv_layers[layer]; }

  Device& device_;
  const StepCommands& commands_;
  StepRecords& cache_;
  const bool has_store_;
  const LayerStates& states_;
  const DecodeProbe& probe_;
  ChoiceBuffers choice_;  // of n_sequences rows
  std::unique_ptr<Buffer> score_scratch_;
  std::unique_ptr<Buffer> attend_scratch_;
  std::vector<RecordedStep> steps_;
  uint64_t version_ = 0;
};

}  // namespace kvrun
