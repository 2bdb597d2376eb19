// What layers without growing KV keep of each sequence: K and V of a window, the matrices of delta nets, the
// last inputs of short convolutions. Of constant size, however long a sequence is.
//
// Such a layer goes forward alone: what it has read cannot be taken back. Copies made at some positions
// (Save) are where a sequence can begin again (Restore).
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/engine/pass/step_commands.h"
#include "runtime/model/model_config.h"
#include "runtime/store/state_visitor.h"

namespace kvrun {

class LayerStates {
 public:
  // `kv_type`: f16 or f32, of windows. Nothing for a model whose layers all keep growing KV.
  static Result<LayerStates> Create(const ModelConfig& config, Device& device, KvType kv_type,
                                    uint32_t n_sequences, uint32_t n_ctx);
  // What Create takes on the device.
  static uint64_t SizeBytes(const ModelConfig& config, KvType kv_type, uint32_t n_sequences, uint32_t n_ctx);

  // Before layers are recorded: what their attention takes, with these activations.
  Status MakeScratch(const StepCommands& commands);

  bool are_none() const { return layers_.empty(); }
  // A layer of these kinds as a whole, but for what comes after looking back (StepCommands::AfterAttention):
  // of rows of one sequence's prompt, or each of another sequence. Rows at position 0 begin with nothing.
  Status RecordLayer(CommandList& list, const StepCommands& commands, uint32_t layer, uint32_t n_rows,
                     bool of_prompt, const StepPlace& place) const {
    KVRUN_RETURN_IF_ERROR(RecordInput(list, commands, layer, n_rows, place));
    return RecordLookBack(list, commands, layer, n_rows, of_prompt, place);
  }
  // The same in two parts: what multiplies with weights, into InputOf; and what uses states, from there to
  // place.attended.
  static Status RecordInput(CommandList& list, const StepCommands& commands, uint32_t layer, uint32_t n_rows,
                            const StepPlace& place);
  static Buffer* InputOf(const StepCommands& commands, uint32_t layer, const StepPlace& place);
  Status RecordLookBack(CommandList& list, const StepCommands& commands, uint32_t layer, uint32_t n_rows,
                        bool of_prompt, const StepPlace& place) const;
  // Of a row, in both.
  struct Columns {
    uint32_t input = 0;
    uint32_t attended = 0;
  };
  static Columns ColumnsOf(const ModelConfig& config, uint32_t layer);

  // A copy of one sequence's states.
  class Copy {
   public:
    uint64_t size_bytes() const;

   private:
    friend class LayerStates;
    std::vector<std::unique_ptr<Buffer>> buffers_;  // of each state
  };
  Result<Copy> MakeCopy() const;
  // All that was submitted is complete.
  Status Save(uint32_t sequence, const Copy& to) const;
  Status Restore(uint32_t sequence, const Copy& from);

  // States of sequences that have so many entries, and those of a copy, which is the `nth` of its sequence.
  Status VisitState(StateVisitor& visitor, std::span<const uint32_t> lengths) const;
  Status VisitCopy(StateVisitor& visitor, uint32_t sequence, uint32_t nth, const Copy& copy) const;

  // Where a prompt is computed layer by layer, no place but the chunks of a layer has the states in between.
  struct Saving {
    uint32_t position = 0;  // after the token before this
    const Copy* to = nullptr;
  };
  // Which copies of them are wanted, by the positions where chunks end, ascending. Asked before the prompt
  // is computed; copies are complete when that is.
  using ChooseSavings = std::function<std::vector<Saving>(uint32_t sequence, std::span<const uint32_t> ends)>;
  void SetSavings(ChooseSavings choose) { choose_savings_ = std::move(choose); }
  std::vector<Saving> SavingsOf(uint32_t sequence, std::span<const uint32_t> ends) const {
    return choose_savings_ ? choose_savings_(sequence, ends) : std::vector<Saving>();
  }
  // One layer's part of Save.
  Status RecordSave(CommandList& list, uint32_t layer, uint32_t sequence, const Copy& to) const {
    return RecordMove(list, sequence, to, /*saves=*/true, layer);
  }

 private:
  // One buffer of a layer: for each sequence `sequence_bytes`.
  struct State {
    std::unique_ptr<Buffer> buffer;
    uint64_t sequence_bytes = 0;
  };
  struct OfLayer {
    State first;   // K and V of a window; the inputs of a convolution
    State second;  // the matrices of a delta net
  };

  LayerStates() = default;
  Status MakeLayer(const LayerConfig& layer, uint32_t n_sequences, OfLayer* made) const;
  AttentionArgs WindowAttention(const StepCommands& commands, uint32_t layer, uint32_t n_rows, bool of_prompt,
                                const StepPlace& place) const;
  Status RecordDeltaNet(CommandList& list, const StepCommands& commands, uint32_t layer, uint32_t n_rows,
                        bool of_prompt, const StepPlace& place) const;
  Status RecordConvolution(CommandList& list, const StepCommands& commands, uint32_t layer, uint32_t n_rows,
                           bool of_prompt, const StepPlace& place) const;
  Status Move(uint32_t sequence, const Copy& copy, bool saves) const;
  // Of one layer, or of all.
  Status RecordMove(CommandList& list, uint32_t sequence, const Copy& copy, bool saves,
                    std::optional<uint32_t> layer) const;
  struct Placed {
    uint32_t layer = 0;
    const State* state = nullptr;
  };
  // Those that there are, in the order of a copy's buffers.
  std::vector<Placed> States() const;

  Device* device_ = nullptr;
  const ModelConfig* config_ = nullptr;
  KvShape window_shape_;
  std::vector<OfLayer> layers_;        // [n_layers]; empty: none has a state
  std::unique_ptr<Buffer> scratch_;    // of windows' attention
  std::unique_ptr<Buffer> convolved_;  // float [kChunkRows, channels of delta nets]
  ChooseSavings choose_savings_;
};

}  // namespace kvrun
