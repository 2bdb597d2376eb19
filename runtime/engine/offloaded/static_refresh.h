// Chooses the static sets of sequences again while they are decoded (StaticPlan::steps): their last tokens
// are computed once more, as a prompt, whose rows say what is in the set. Layers that go forward alone are
// set back for that: a copy of their states is made so many tokens before a set's turn.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "platform/base/status.h"
#include "runtime/engine/pass/layer_states.h"
#include "runtime/engine/pass/recent_tokens.h"
#include "runtime/kv/plan/kv_report.h"
#include "runtime/kv/serve/record_cache.h"

namespace kvrun {

class StaticRefresh {
 public:
  // Computes rows of a sequence, whose entries from the first of them on are forgotten.
  using ComputePrompt = std::function<Status(std::span<const StepRow> rows)>;
  // The cache comes back into its decode phase.
  using BeginDecode = std::function<Status()>;

  // Cache and states must outlive it.
  StaticRefresh(const RecordCache& cache, LayerStates& states, uint32_t n_vocab, ComputePrompt compute_prompt,
                BeginDecode begin_decode);

  // Before rows are computed: what ChooseAgain has forgotten and then could not compute is computed.
  Status CatchUp(std::span<const StepRow> rows);
  // Before a decode step: the sets of its sequences whose turn it is.
  Status ChooseAgain(std::span<const StepRow> rows);
  // Rows were computed.
  Status Note(std::span<const StepRow> rows);
  // The same of a prompt, by which the set was chosen.
  Status NotePrompt(std::span<const StepRow> rows);

  // What it knows of the tokens before. Of sequences of so many entries.
  Status VisitState(StateVisitor& visitor, std::span<const uint32_t> lengths);

  // Since the last reset; nothing where there is no static set.
  std::optional<StaticReport> report() const;
  void ResetReport() {
    if (report_) report_.emplace();
  }

 private:
  Status VisitSequence(StateVisitor& visitor, uint32_t i, uint32_t length);
  // Where there are any; prompts may change them.
  const StaticPlan& statics() const { return cache_.plan().of_groups().statics; }
  // At most so many tokens are computed again.
  uint32_t most_rows() const;
  Status ComputeAgain(uint32_t sequence, uint32_t begin, uint32_t end);
  void Add(std::span<const StepRow> rows);
  Status SetAside(uint32_t sequence);

  // Of a sequence's states, those before its last tokens.
  struct Aside {
    std::optional<uint32_t> position;  // nothing: the copy says nothing
    std::optional<LayerStates::Copy> states;
  };

  const RecordCache& cache_;
  uint32_t n_vocab_;
  LayerStates& states_;
  ComputePrompt compute_prompt_;
  BeginDecode begin_decode_;
  std::vector<RecentTokens> recent_;  // of each sequence; empty: prompts alone choose
  std::vector<Aside> asides_;         // of each; empty: layers need none
  std::optional<StaticReport> report_;
};

}  // namespace kvrun
