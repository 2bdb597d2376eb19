// Chooses the static sets of sequences again while they are decoded (StaticPlan::steps): their last tokens
// are computed once more, as a prompt, whose rows say what is in the set.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "platform/base/status.h"
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

  // The cache must outlive it.
  StaticRefresh(const RecordCache& cache, ComputePrompt compute_prompt, BeginDecode begin_decode);

  // Before rows are computed: what ChooseAgain has forgotten and then could not compute is computed.
  Status CatchUp(std::span<const StepRow> rows);
  // Before a decode step: the sets of its sequences whose turn it is.
  Status ChooseAgain(std::span<const StepRow> rows);
  // Rows were computed.
  void Note(std::span<const StepRow> rows);
  // The same of a prompt, by which the set was chosen.
  void NotePrompt(std::span<const StepRow> rows);

  // Since the last reset; nothing where there is no static set.
  std::optional<StaticReport> report() const;
  void ResetReport() {
    if (report_) report_.emplace();
  }

 private:
  // Where there are any; prompts may change them.
  const StaticPlan& statics() const { return cache_.plan().of_groups().statics; }
  Status ComputeAgain(uint32_t sequence, uint32_t begin);

  const RecordCache& cache_;
  ComputePrompt compute_prompt_;
  BeginDecode begin_decode_;
  std::vector<RecentTokens> recent_;  // of each sequence; empty: prompts alone choose
  std::optional<StaticReport> report_;
};

}  // namespace kvrun
