// The buffers of a step's activations, and the commands that every KV method records alike: all of a layer
// but what looks back (attention, or LayerStates).
#pragma once

#include <algorithm>
#include <array>
#include <complex>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/engine/pass/device_weights.h"
#include "runtime/engine/pass/forward_pass.h"
#include "runtime/model/model.h"

namespace kvrun {

inline constexpr uint32_t kChunkRows = 256;
inline constexpr uint32_t kMaxOutputRows = 32;

// Which rows a step computes, as the host writes it.
struct StepInputs {
  std::unique_ptr<Buffer> step;             // StepParams
  std::unique_ptr<Buffer> angles;           // float [kChunkRows, rotary_dim / 2, 2]
  std::unique_ptr<Buffer> windowed_angles;  // of LayerRope::kWindowed; null: no layer has such

  static Result<StepInputs> Create(const ModelConfig& config, Device& device, std::string_view part);
};

// What a step has for itself; all other activations lie in buffers that steps share, one after another. With
// two places the host writes one step's inputs while the device computes the other.
struct StepPlace {
  Buffer* hidden = nullptr;  // the residual stream, float [rows, n_embd]
  Buffer* step = nullptr;    // StepInputs
  Buffer* angles = nullptr;
  Buffer* windowed_angles = nullptr;
  Buffer* qkv = nullptr;       // float [rows, qkv_dim]
  Buffer* attended = nullptr;  // float [rows, block_dim]: what looking back has brought

  // Of a layer's rotation.
  Buffer* angles_of(LayerRope rope) const { return rope == LayerRope::kWindowed ? windowed_angles : angles; }
};

class StepCommands {
 public:
  // `n_ctx`: of a sequence, which some rotations depend on. `hidden_use`: kShared where the host moves hidden
  // states of a chunk in and out. `n_rows`: that a step may have.
  static Result<StepCommands> Create(const ModelConfig& config, std::shared_ptr<const DeviceWeights> weights,
                                     Device& device, BufferUse hidden_use, uint32_t n_ctx,
                                     uint32_t n_rows = kChunkRows);
  uint32_t n_rows() const { return n_rows_; }
  // Steps may have so many rows from now on. Nothing that was recorded may name what there was. After an
  // error there are no activations, until it is asked for again.
  Status SetRows(Device& device, uint32_t n_rows);

  const ModelConfig& config() const { return *config_; }
  const std::shared_ptr<const DeviceWeights>& weights() const { return weights_; }
  const DeviceLayer& layer(uint32_t index) const { return weights_->layers[index]; }
  uint32_t qkv_dim() const { return config_->q_dim() + 2 * config_->kv_dim(); }
  Buffer* hidden() const { return hidden_.get(); }  // of own()
  // The most columns that any layer's block_output multiplies with.
  static uint32_t BlockDim(const ModelConfig& config);
  // Where steps are that say nothing else.
  StepPlace own() const {
    return {hidden_.get(), inputs_.step.get(), inputs_.angles.get(), inputs_.windowed_angles.get(),
            qkv_.get(),    attended_.get()};
  }
  Buffer* qkv() const { return qkv_.get(); }  // float [rows, qkv_dim]
  const Buffer* step() const { return inputs_.step.get(); }

  // What attention works on; kv, its type and context, and scratch are the caller's to fill in.
  AttentionArgs Attention(uint32_t layer, uint32_t n_rows, bool of_prompt) const {
    return Attention(layer, n_rows, of_prompt, own());
  }
  AttentionArgs Attention(uint32_t layer, uint32_t n_rows, bool of_prompt, const StepPlace& place) const;

  // Tokens, positions and angles of the next step. Kernels find the entry at `first_position` first in the KV
  // buffer.
  void WriteRows(std::span<const StepRow> rows) { WriteRows(own(), rows, 0); }
  void WriteRows(const StepPlace& place, std::span<const StepRow> rows, uint32_t first_position);
  // Of the rows that were written: float [n_rows, rotary_dim / 2, 2].
  std::span<const float> angles(size_t n_rows) const;
  // How many groups a choice may have in steps from now on; 0: as many as its plan says.
  void WriteMostChosen(uint32_t n_groups);
  // Of which rows logits are wanted.
  void WriteOutputs(std::span<const uint32_t> outputs) { WriteOutputs(own(), outputs); }
  void WriteOutputs(const StepPlace& place, std::span<const uint32_t> outputs);

  Status Embed(CommandList& list, uint32_t n_rows, const StepPlace& place) const;
  // Norm, and the product to Q, K and V.
  Status Qkv(CommandList& list, uint32_t layer, uint32_t n_rows, const StepPlace& place) const;
  // The output projection of what looks back, and the feed-forward network, added to the residual stream.
  Status AfterAttention(CommandList& list, uint32_t layer, uint32_t n_rows, const StepPlace& place) const;
  // Where queries have gates: those, once more, as Qkv computes them.
  Status QueryGate(CommandList& list, uint32_t layer, uint32_t n_rows, const StepPlace& place) const;
  // Norm, and the product that a layer without attention begins with: float [n_rows, state_input_dim].
  Status StateInput(CommandList& list, uint32_t layer, uint32_t n_rows, const StepPlace& place) const;
  Buffer* state_input() const { return state_input_.get(); }
  static uint32_t StateInputDim(const ModelConfig& config);  // 0: all layers have attention
  // Q of a layer from hidden states, after that layer's norm; neither are its heads normalised, nor rotated.
  struct QueryPlace {
    const Buffer* hidden = nullptr;  // float [n_rows, n_embd]
    Buffer* normed = nullptr;        // likewise: room
    Buffer* query = nullptr;         // float [n_rows, q_dim]
  };
  Status Query(CommandList& list, uint32_t layer, uint32_t n_rows, const QueryPlace& place) const;
  // Logits of the rows that WriteOutputs names, of a step of n_rows; 0: of the step before, whose rows are
  // not known.
  Status Head(CommandList& list, uint32_t n_rows, uint32_t n_outputs, const StepPlace& place) const;
  // Of the last step that recorded Head; valid until the next.
  std::span<const float> logits() const;
  // Those from `first_row` on to where they are wanted, capped where the model does that.
  void CopyLogits(std::span<float> to, uint32_t first_row = 0) const;
  // Where they will be; null: given up. Until then it may hold anything; what is written is flushed.
  Buffer* logits_buffer() const { return logits_.get(); }
  // While no logits are wanted, other work may have their memory. Nothing that was recorded may name it.
  void GiveUpLogits() { logits_.reset(); }

  // Activations of the feed-forward network, which hold nothing between one AfterAttention and the next. They
  // may be given up meanwhile, as logits.
  std::array<Buffer*, 2> feed_forward() const { return {gate_up_.get(), ffn_.get()}; }
  void GiveUpFeedForward() { gate_up_.reset(), ffn_.reset(); }
  Status MakeFeedForward(Device& device);  // if they were given up
  // All that was given up.
  Status MakeGivenUp(Device& device);
  static uint64_t FeedForwardBytes(const ModelConfig& config);  // of kChunkRows

  // Refuses rows that are not in the vocabulary or the cache, and spans that ForwardPass::Run does not take.
  Status CheckStep(const ForwardStep& step, uint32_t max_rows, uint32_t n_ctx, uint32_t n_sequences) const;

 private:
  StepCommands() = default;
  Status CreateBuffers(Device& device);
  uint32_t n_logits_rows() const { return std::min(n_rows_, kMaxOutputRows); }
  // Rotations of one kind of layers.
  struct Turns {
    RopeTable rope;
    std::vector<std::complex<double>> turns;  // [frequencies, kTurnPositions]
  };
  static Turns MakeTurns(const RopeConfig& rope, uint32_t n_ctx);
  static void WriteAngles(const Turns& turns, std::span<const StepRow> rows, Buffer* angles);
  InputNorm Norm(const std::unique_ptr<Buffer>& weight, Buffer* rows) const;
  Status GateProduct(CommandList& list, uint32_t layer, uint32_t n_rows, const StepPlace& place,
                     bool was_normed) const;
  Status GatedProduct(CommandList& list, uint32_t layer, uint32_t n_rows, const Buffer* hidden) const;
  Status BlockOutput(CommandList& list, uint32_t layer, uint32_t n_rows, const StepPlace& place) const;
  Status FeedForward(CommandList& list, uint32_t layer, uint32_t n_rows, Buffer* hidden) const;
  Status Experts(CommandList& list, uint32_t layer, uint32_t n_rows, Buffer* hidden) const;
  Status AddNormed(CommandList& list, const Buffer& norm, uint32_t n_rows, Buffer* hidden) const;
  static Status Product(CommandList& list, const MatrixStack& stack, const MatMulArgs& args);

  const ModelConfig* config_ = nullptr;
  std::shared_ptr<const DeviceWeights> weights_;
  BufferUse hidden_use_ = BufferUse::kDevice;
  uint32_t n_rows_ = 0;
  // Positions whose angles are one multiplication away from each other.
  static constexpr uint32_t kTurnPositions = 64;

  Turns turns_;
  Turns windowed_turns_;  // without frequencies: no layer has such
  StepInputs inputs_;
  std::unique_ptr<Buffer> hidden_;    // [rows, n_embd]
  std::unique_ptr<Buffer> normed_;    // [rows, n_embd]
  std::unique_ptr<Buffer> qkv_;       // [rows, qkv_dim]
  std::unique_ptr<Buffer> attended_;  // [rows, BlockDim]
  // Null where the model needs none.
  std::unique_ptr<Buffer> query_gate_;      // [rows, q_dim]
  std::unique_ptr<Buffer> state_input_;     // [rows, StateInputDim]
  std::unique_ptr<Buffer> block_result_;    // [rows, n_embd]: before its norm
  std::unique_ptr<Buffer> router_;          // [rows, n_experts]
  std::unique_ptr<Buffer> expert_ids_;      // uint32 [rows, n_used]
  std::unique_ptr<Buffer> expert_weights_;  // [rows, n_used]
  std::unique_ptr<Buffer> gate_up_;         // [rows, 2 * n_ff]; of experts, of all that are used
  std::unique_ptr<Buffer> ffn_;             // [rows, n_ff]
  std::unique_ptr<Buffer> output_rows_;     // [outputs, n_embd]
  std::unique_ptr<Buffer> logits_;          // [outputs, n_vocab]
};

}  // namespace kvrun
