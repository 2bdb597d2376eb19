// A forward pass of a model with layers that go forward alone (LayerStates), as one that can go back: a
// sequence that is cut to any length, or whose step has failed, begins again at the last copy of its states
// before that, and the tokens from there on are computed once more.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "platform/base/status.h"
#include "runtime/engine/pass/forward_pass.h"
#include "runtime/engine/pass/layer_states.h"

namespace kvrun {

class ResumingPass : public ForwardPass {
 public:
  // `pass` has layer states. So many copies of them are kept of a sequence, closer together towards its end.
  ResumingPass(std::unique_ptr<ForwardPass> pass, uint32_t n_sequences, uint32_t n_copies);

  uint32_t max_rows() const override { return pass_->max_rows(); }
  uint32_t max_output_rows() const override { return pass_->max_output_rows(); }
  uint32_t n_vocab() const override { return pass_->n_vocab(); }
  Status Run(const ForwardStep& step, std::span<const uint32_t> outputs, std::span<float> logits) override;
  Status MoreLogits(std::span<const uint32_t> outputs, std::span<float> logits) override {
    return pass_->MoreLogits(outputs, logits);
  }
  void SetProgress(StepProgress progress) override { pass_->SetProgress(std::move(progress)); }
  std::optional<KvReport> kv_report() const override { return pass_->kv_report(); }
  void ResetKvReport() override { pass_->ResetKvReport(); }
  RecordCache* record_cache() override { return pass_->record_cache(); }
  LayerStates* layer_states() override { return pass_->layer_states(); }

 private:
  struct Kept {
    uint32_t position = 0;  // the states are those before this token
    LayerStates::Copy states;
  };
  struct Sequence {
    std::vector<TokenId> ids;              // that were computed, or are being computed
    std::optional<uint32_t> position = 0;  // of the states as they are; nothing: a step has failed, who knows
    std::vector<Kept> kept;                // ascending
  };

  Status ComeTo(uint32_t sequence, uint32_t position);
  Status Repeat(uint32_t sequence, uint32_t begin, uint32_t end);
  // A copy of the states, which are those before `position`.
  Status Keep(uint32_t sequence, uint32_t position);

  std::unique_ptr<ForwardPass> pass_;
  uint32_t n_copies_;
  std::vector<Sequence> sequences_;
  ForwardStep repeated_;
};

}  // namespace kvrun
