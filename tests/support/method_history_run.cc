#include "tests/support/method_history_run.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "platform/base/status.h"
#include "runtime/engine/session/session_kv.h"
#include "runtime/store/row_store.h"
#include "tests/support/or_die.h"
#include "tests/support/small_models.h"

namespace kvrun::testing {

namespace {

// What says that a sequence has to be given again from its first token on.
bool SaysToBeginAnew(const Status& status) {
  return status.message().find("computed again") != std::string::npos ||
         status.message().find("begin anew") != std::string::npos;
}

// Whether a step that has failed leaves nothing behind when it is given again. Its first rows may have been
// there and are taken back: clusters that they have changed stay so, what of a static set was in the window
// then is in none any more, and what was evicted for them is gone.
bool IsUndone(const StepOfHistory& step, const KvPlan& plan) {
  const bool is_of_one_part = step.spans.size() == 1 && step.spans[0].kind != SpanKind::kVerify;
  if (plan.method.evicts()) return is_of_one_part && step.spans[0].begin == 0;
  return is_of_one_part || !(plan.method.has_clusters() || plan.has_statics());
}

// Carries out a history with a pass. What fails is given again, and has to do then; or its sequences have to
// be computed again, where they have lost something for good. Memory stays within the plan meanwhile.
class HistoryRun {
 public:
  // `mischief`: of the pass's files.
  HistoryRun(const History& history, const KvPlan& plan, const LoadedModel& loaded, uint64_t bytes_before,
             ForwardPass& pass, Mischief& mischief, Troubles troubles)
      : history_(history),
        plan_(plan),
        loaded_(loaded),
        bytes_before_(bytes_before),
        pass_(pass),
        mischief_(mischief),
        troubles_(troubles),
        texts_(history.n_sequences),
        may_have_lost_(history.n_sequences) {
    said_.n_same = history.steps.size();
    pass.SetProgress([this](uint64_t, uint64_t) {
      ExpectWithinPlan();
      return n_questions_++ >= cancelled_at_;
    });
  }

  // Until something is not as it should be.
  SaidInHistory Run() {
    said_.logits.resize(history_.steps.size());
    for (size_t i = 0; i < history_.steps.size() && !::testing::Test::HasFailure(); ++i) {
      SCOPED_TRACE(fmt::format("step {}: {}", i, Describe(history_.steps[i])));
      RunStep(history_.steps[i], i);
    }
    return std::move(said_);
  }

 private:
  void RunStep(const StepOfHistory& step, size_t number) {
    for (const SpanOfHistory& span : step.spans) texts_[span.sequence].resize(span.begin);
    if (step.is_abandoned && troubles_ == Troubles::kLeftOut) return NoteDifference(number);
    Status status = GiveInTrouble(step, number);
    if (step.is_abandoned && status.code() == StatusCode::kCancelled) return NoteDifference(number);
    if (!status.ok() && !::testing::Test::HasFailure()) status = GiveAgain(step, number);
    EXPECT_TRUE(status.ok()) << status.message();
    const std::vector<float>& logits = said_.logits[number];
    EXPECT_TRUE(std::all_of(logits.begin(), logits.end(), [](float value) { return std::isfinite(value); }));
    ExpectWithinPlan();
    for (const SpanOfHistory& span : step.spans) {
      std::vector<int>& text = texts_[span.sequence];
      text.insert(text.end(), span.ids.begin(), span.ids.begin() + span.n_kept);
      if (span.begin == 0) may_have_lost_[span.sequence] = false;
    }
  }

  // The first time. What goes wrong is what the history says.
  Status GiveInTrouble(const StepOfHistory& step, size_t number) {
    if (troubles_ == Troubles::kHappen) {
      if (step.trouble == TroubleKind::kReads)
        mischief_ = {.fails = IoKind::kRead, .n_good = step.trouble_at};
      if (step.trouble == TroubleKind::kWrites)
        mischief_ = {.fails = IoKind::kWrite, .n_good = step.trouble_at};
      if (step.trouble == TroubleKind::kCancel) cancelled_at_ = step.trouble_at;
    }
    n_questions_ = 0;
    const Status status = Give(step, number);
    const bool was_cancelled = n_questions_ > cancelled_at_;
    const bool has_met_fault = mischief_.n_failed > 0;
    if (has_met_fault && mischief_.fails == IoKind::kWrite) {
      may_have_lost_.assign(may_have_lost_.size(), true);  // any of what waited to be written
    }
    mischief_ = {};
    cancelled_at_ = UINT32_MAX;
    if (status.ok()) {
      EXPECT_FALSE(was_cancelled);
      return status;
    }
    if (!IsUndone(step, plan_)) NoteDifference(number);
    if (was_cancelled) {
      EXPECT_EQ(status.code(), StatusCode::kCancelled) << status.message();
      ++said_.n_cancelled;
    } else if (!plan_.method.evicts() ||
               !SaysToBeginAnew(status)) {  // it may go back behind what was evicted
      EXPECT_TRUE(has_met_fault || MayHaveLost()) << "without a fault: " << status.message();
      EXPECT_TRUE(status.code() == StatusCode::kIo || status.code() == StatusCode::kCorrupt)
          << status.message();
      ++said_.n_failed;
    }
    return status;
  }

  // Once more; then, if something of them is lost, once the step's sequences are computed again. Others need
  // not be.
  Status GiveAgain(const StepOfHistory& step, size_t number) {
    const Status again = Give(step, number);
    if (again.ok()) return again;
    // A write has failed, or a read of clusters that were to be cut short, or it goes back behind what was
    // evicted.
    EXPECT_TRUE(MayHaveLost() || plan_.method.has_clusters() || plan_.method.evicts())
        << "given again: " << again.message();
    EXPECT_TRUE(SaysToBeginAnew(again)) << again.message();
    NoteDifference(number);
    for (const SpanOfHistory& span : step.spans) {
      may_have_lost_[span.sequence] = false;
      if (texts_[span.sequence].empty()) continue;
      ForwardStep text;
      text.Add(SpanKind::kPrompt, texts_[span.sequence], 0, span.sequence);
      KVRUN_RETURN_IF_ERROR(pass_.Run(text, {}, {}));
    }
    return Give(step, number);
  }

  // Notes the logits of a prompt's last row, and of all rows of other spans.
  Status Give(const StepOfHistory& step, size_t number) {
    ForwardStep given;
    std::vector<uint32_t> outputs;
    for (const SpanOfHistory& span : step.spans) {
      const auto first = static_cast<uint32_t>(given.size());
      given.Add(span.kind, span.ids, span.begin, span.sequence);
      for (uint32_t row = span.first_output(); row < span.n_rows(); ++row) outputs.push_back(first + row);
    }
    said_.logits[number].resize(outputs.size() * pass_.n_vocab());
    return pass_.Run(given, outputs, said_.logits[number]);
  }

  void ExpectWithinPlan() const {
    if (IsPlainResident(plan_)) return;  // which has no plan
    EXPECT_LE(KvBytesInUse(loaded_) - bytes_before_, std::max(plan_.decode_bytes(), plan_.prefill_bytes()));
  }

  void NoteDifference(size_t number) { said_.n_same = std::min(said_.n_same, number); }
  bool MayHaveLost() const {
    return std::find(may_have_lost_.begin(), may_have_lost_.end(), true) != may_have_lost_.end();
  }

  const History& history_;
  const KvPlan& plan_;
  const LoadedModel& loaded_;
  uint64_t bytes_before_;
  ForwardPass& pass_;
  Mischief& mischief_;
  Troubles troubles_;
  SaidInHistory said_;
  std::vector<std::vector<int>> texts_;  // of each sequence: what it has been given
  std::vector<bool> may_have_lost_;      // of each sequence: a write has failed since it began
  uint32_t n_questions_ = 0;             // whether to cancel, in a step
  uint32_t cancelled_at_ = UINT32_MAX;
};

}  // namespace

std::unique_ptr<ForwardPass> NewHistoryPass(const LoadedModel& loaded, const KvPlan& plan,
                                            const NewPassFileFn& new_file) {
  ForwardPassOptions options{.n_sequences = plan.n_sequences, .n_ctx = kHistoryContext};
  options.kv_type = plan.record.k_type;
  if (IsPlainResident(plan)) return loaded.NewPass(options);
  options.offloaded = std::make_shared<OffloadedPassOptions>();
  options.offloaded->plan = plan;
  if (plan.method.needs_file()) {
    const uint32_t queue_depth = BlockFileOptions().queue_depth;
    auto rows = plan.has_rows_file() ? new_file(PassFile::kRows, RowStore::kQueueDepth) : nullptr;
    options.offloaded->stores = OrDie(MakeKvStores(
        plan, loaded.model->config.n_layers, new_file(PassFile::kRecords, queue_depth), std::move(rows)));
    options.offloaded->spill = new_file(PassFile::kSpill, queue_depth);
  }
  return loaded.NewPass(options);
}

SaidInHistory RunHistory(const History& history, const KvPlan& plan, const LoadedModel& loaded,
                         uint64_t bytes_before, ForwardPass& pass, Mischief& mischief, Troubles troubles) {
  return HistoryRun(history, plan, loaded, bytes_before, pass, mischief, troubles).Run();
}

}  // namespace kvrun::testing
