// A forward pass of a model with layers that go forward alone (LayerStates), as one that can go back: a
// sequence that is cut to any length, or whose step has failed, begins again at the last copy of its states
// before that, or with nothing, and the tokens from there on are computed once more.
//
// Copies are made where chunks of prompts end, where prompts begin and end, and now and then while tokens are
// generated. Sequences share them; CopyPlaces says which are given up for others. A copy for which there is
// no memory is not made.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "platform/base/status.h"
#include "runtime/engine/forward/copy_places.h"
#include "runtime/engine/pass/forward_pass.h"
#include "runtime/engine/pass/layer_states.h"
#include "runtime/engine/pass/step_member.h"

namespace kvrun {

class ResumingPass : public ForwardPass, public StepMember {
 public:
  // `pass` has layer states. n_copies: of a sequence, where all have as many.
  ResumingPass(std::unique_ptr<ForwardPass> pass, uint32_t n_sequences, uint32_t n_ctx, uint32_t n_copies);

  uint32_t max_rows() const override { return pass_->max_rows(); }
  uint32_t max_output_rows() const override { return pass_->max_output_rows(); }
  uint32_t n_vocab() const override { return pass_->n_vocab(); }
  Status Run(const ForwardStep& step, std::span<const uint32_t> outputs, std::span<float> logits) override;
  Status MoreLogits(std::span<const uint32_t> outputs, std::span<float> logits) override {
    return pass_->MoreLogits(outputs, logits);
  }
  // What is computed once more is a part of a Run's work: its rows count as less than one each then.
  void SetProgress(StepProgress progress) override;
  std::optional<KvReport> kv_report() const override { return pass_->kv_report(); }
  void ResetKvReport() override { pass_->ResetKvReport(); }
  RecordCache* record_cache() override { return pass_->record_cache(); }
  LayerStates* layer_states() override { return pass_->layer_states(); }
  StepMember* step_member() override { return pass_->step_member() != nullptr ? this : nullptr; }
  void Cut(uint32_t sequence, uint32_t length) override;
  uint64_t recomputed_tokens() const override { return recomputed_tokens_; }
  // With the copies.
  Status VisitState(StateVisitor& visitor, std::span<const uint32_t> lengths) override;

  Device& device() override { return pass_->step_member()->device(); }
  StepCommands& commands() override { return pass_->step_member()->commands(); }
  LookBack& look_back() override { return pass_->step_member()->look_back(); }
  StepRecords* records() override { return pass_->step_member()->records(); }
  Status Begin(const StepRow& row) override;
  void Submit() override;
  Status End(const StepRow& row) override;

  // Of a sequence's copies, ascending. For tests.
  std::span<const CopyPlaces::Place> copies(uint32_t sequence) const { return places_.of(sequence); }

 private:
  struct Sequence {
    std::vector<TokenId> ids;              // that were computed, or are being computed
    std::optional<uint32_t> position = 0;  // of the states as they are; nothing: a step has failed, who knows
  };

  Status VisitCopies(StateVisitor& visitor, uint32_t sequence);
  // How many tokens the sequence lacks before its states are those before `position`; at most that many.
  uint32_t MissingBefore(uint32_t sequence, uint32_t position) const;
  Status ComeTo(uint32_t sequence, uint32_t position);
  Status Repeat(uint32_t sequence, uint32_t begin, uint32_t end);
  // Computes the step, whose sequences' states are where it begins, and makes copies.
  Status Compute(const ForwardStep& step, std::span<const uint32_t> outputs, std::span<float> logits);
  // The span was computed: its states are those at its end.
  Status NoteComputed(const KvSpan& span);
  // A copy of the states, which are those before `position`.
  Status Keep(uint32_t sequence, uint32_t position);
  std::vector<LayerStates::Saving> ChooseSavings(uint32_t sequence, std::span<const uint32_t> ends);
  // The memory of the sequence's copies; false where there was none for one: its slot, and all others that
  // have none yet, are no more.
  bool MakeCopies(uint32_t sequence);

  std::unique_ptr<ForwardPass> pass_;
  std::vector<Sequence> sequences_;
  CopyPlaces places_;
  std::vector<std::optional<LayerStates::Copy>> copies_;  // of each slot; nothing: not made yet
  const ForwardStep* computed_ = nullptr;                 // while it is
  ForwardStep repeated_;
  // Of a Run: rows that were computed once more, and in all; those of its step.
  struct Work {
    uint64_t n_repeated = 0;
    uint64_t n_all = 0;
    uint64_t n_of_step = 0;
  };
  Work work_;
  uint64_t recomputed_tokens_ = 0;
};

}  // namespace kvrun
