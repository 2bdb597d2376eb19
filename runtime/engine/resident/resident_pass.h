// The forward pass of the method `full` with f16 or f32 entries: all KV in device memory, one recorded list
// per shape of step.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/engine/pass/forward_pass.h"
#include "runtime/engine/pass/layer_states.h"
#include "runtime/engine/pass/layer_sums.h"
#include "runtime/engine/pass/look_back.h"
#include "runtime/engine/pass/step_commands.h"
#include "runtime/engine/pass/step_member.h"
#include "runtime/engine/pass/step_parts.h"
#include "runtime/kv/memory/resident_cache.h"

namespace kvrun {

class ResidentForwardPass : public ForwardPass, public StepMember, private LookBack {
 public:
  // `sink_rows`: where given, prompts' keys (but the first so many of them) and queries are summed up per
  // layer, for adapters.
  static Result<std::unique_ptr<ResidentForwardPass>> Create(
      const Model& model, std::shared_ptr<const DeviceWeights> weights, Device& device,
      const ForwardPassOptions& options, std::optional<uint32_t> sink_rows = std::nullopt);

  uint32_t max_rows() const override { return kChunkRows; }
  uint32_t max_output_rows() const override { return kMaxOutputRows; }
  uint32_t n_vocab() const override { return commands_.config().n_vocab; }
  Status Run(const ForwardStep& step, std::span<const uint32_t> outputs, std::span<float> logits) override;
  Status MoreLogits(std::span<const uint32_t> outputs, std::span<float> logits) override;

  const KvShape& kv_shape() const { return cache_.shape(); }
  // Of the n-th of the layers that keep growing KV.
  Buffer* kv(uint32_t nth) { return cache_.layer(nth); }
  LayerStates* layer_states() override { return &states_; }
  StepMember* step_member() override { return cache_.shape().n_sequences == 1 ? this : nullptr; }
  Status VisitState(StateVisitor& visitor, std::span<const uint32_t> lengths) override;

  Device& device() override { return device_; }
  StepCommands& commands() override { return commands_; }
  LookBack& look_back() override { return *this; }
  StepRecords* records() override { return nullptr; }
  Status Begin(const StepRow& row) override;
  Status End(const StepRow& /*row*/) override { return Status::Ok(); }

  // Of all rows that were summed up since the pass was created, or ClearSums: over any number of prompts,
  // each from position 0, whose sinks are left out. Steps of a single row are not summed up. Points into
  // this.
  Result<LayerSums> Sums(uint32_t layer);
  Status ClearSums();
  // From now on steps of a single row keep what each of these layers takes as its input.
  Status KeepInputs();
  // Of the last such step, float [n_layers, n_embd]: appended to `inputs`.
  void AppendInputs(std::vector<float>* inputs) const;

 private:
  // Which commands a step needs; its positions and tokens are data.
  struct StepShape {
    uint32_t n_rows = 0;  // 0: only logits, of the rows of the step before
    bool of_prompt = false;
    uint32_t n_outputs = 0;
    bool has_sinks = false;  // and rows are summed up
    bool keeps_inputs = false;

    bool operator==(const StepShape&) const = default;
  };

  ResidentForwardPass(Device& device, StepCommands commands, ResidentCache cache, LayerStates states)
      : device_(device),
        commands_(std::move(commands)),
        cache_(std::move(cache)),
        states_(std::move(states)),
        parts_(commands_.config().n_vocab) {}

  StepForm form() const override { return {.is_one_list = true}; }
  uint64_t version() const override { return version_; }
  const StepCommands& commands() const override { return commands_; }
  const LayerStates& states() const override { return states_; }
  Status RecordAttention(CommandList& list, uint32_t layer, uint32_t n_rows) override;
  Buffer* query() override { return nullptr; }
  Status RecordChoice(CommandList& /*list*/, uint32_t /*layer*/, uint32_t /*n_rows*/) override {
    return Status::Ok();
  }

  Status CreateScratch();
  Status SetRows(uint32_t n_rows);
  Status RunPart(const StepPart& part, std::span<const uint32_t> outputs, std::span<float> logits);
  Status Execute(const StepShape& shape, std::span<float> logits);
  Result<CommandList*> ListFor(const StepShape& shape);
  Status RecordLayer(CommandList& list, const StepShape& shape, uint32_t layer);
  Status RecordAttention(CommandList& list, const StepShape& shape, uint32_t nth);
  // Of the n-th of the layers that keep growing KV.
  AttentionArgs Attention(const StepShape& shape, uint32_t nth) const;

  Device& device_;
  StepCommands commands_;
  mutable ResidentCache cache_;
  LayerStates states_;
  std::optional<uint32_t> sink_rows_;
  std::vector<LayerSumBuffers> sums_;            // of each layer with KV; empty: none
  uint64_t n_summed_ = 0;                        // rows in them
  uint64_t n_skipped_ = 0;                       // of these, sinks
  std::vector<std::unique_ptr<Buffer>> inputs_;  // of each layer: kReadback, float [n_embd]; empty: not kept
  std::unique_ptr<Buffer> scratch_;              // of attention
  StepParts parts_;
  uint32_t last_rows_ = 0;
  uint64_t version_ = 0;
  std::list<std::pair<StepShape, std::unique_ptr<CommandList>>> lists_;  // latest used first
};

// A text's KV, f16, all in memory, with room for `n_ctx` tokens; and its sums. What passes of other methods
// go on from (OffloadedPassOptions::import), whatever their groups. kCancelled where `progress`, in tokens,
// says so.
Result<std::unique_ptr<ResidentForwardPass>> PrefillInMemory(const Model& model,
                                                             std::shared_ptr<const DeviceWeights> weights,
                                                             Device& device, std::span<const TokenId> ids,
                                                             uint32_t n_ctx, const StepProgress& progress);

}  // namespace kvrun
