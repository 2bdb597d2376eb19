// What every row of the table of methods keeps to over histories that nobody has thought of: prompts, tokens
// and drafts of several sequences, alone and together, what was said taken back, prompts that are cancelled,
// and reads and writes that fail. Each seed is one history, the same for all methods. The model is the tokens
// of each sequence, and what `full` in memory says after them.
//
// A history that fails is printed; KVRUN_SEED=<its seed> KVRUN_HISTORIES=1 runs it again.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "platform/base/random.h"
#include "platform/io/block_file.h"
#include "runtime/engine/session/session_kv.h"
#include "runtime/kv/plan/kv_method.h"
#include "runtime/store/row_store.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/method_exclusions.h"
#include "tests/support/mischievous_file.h"
#include "tests/support/or_die.h"
#include "tests/support/program_runner.h"
#include "tests/support/seeds.h"
#include "tests/support/small_models.h"

namespace kvrun::testing {
namespace {

constexpr uint32_t kHistoryContext = 160;
constexpr uint32_t kHistorySteps = 32;
constexpr uint32_t kHistoryVocabulary = 300;
constexpr uint64_t kUsualHistories = 5;

// --- Histories.

enum class TroubleKind : uint8_t {
  kNothing,
  kReads,   // from one on, all reads fail until the step has ended
  kWrites,  // the same of writes
  kCancel,  // a prompt of it is cancelled
};

// A span of a step. Of a draft, n_kept tokens are right.
struct SpanOfHistory {
  SpanKind kind = SpanKind::kDecode;
  uint32_t sequence = 0;
  uint32_t begin = 0;
  std::vector<int> ids;
  uint32_t n_kept = 0;

  uint32_t n_rows() const { return static_cast<uint32_t>(ids.size()); }
  uint32_t end() const { return begin + n_rows(); }
  // Whose logits are wanted: of a prompt those of its last row.
  uint32_t first_output() const { return kind == SpanKind::kPrompt ? n_rows() - 1 : 0; }
};

struct StepOfHistory {
  std::vector<SpanOfHistory> spans;
  TroubleKind trouble = TroubleKind::kNothing;
  uint32_t trouble_at = 0;    // how many requests, or questions whether to cancel, go well before
  bool is_abandoned = false;  // when cancelled: not given again
};

struct History {
  uint64_t seed = 0;
  uint32_t n_sequences = 0;
  std::vector<StepOfHistory> steps;
};

std::string Describe(const StepOfHistory& step) {
  std::string text;
  for (const SpanOfHistory& span : step.spans) {
    const char* const kind = span.kind == SpanKind::kPrompt   ? "prompt"
                             : span.kind == SpanKind::kDecode ? "token"
                                                              : "draft";
    text += fmt::format("{}{} of {}: [{}, {})", text.empty() ? "" : " + ", kind, span.sequence, span.begin,
                        span.end());
    if (span.n_kept < span.n_rows()) text += fmt::format(", {} right", span.n_kept);
  }
  switch (step.trouble) {
    case TroubleKind::kNothing: break;
    case TroubleKind::kReads: text += fmt::format("; reads fail from number {} on", step.trouble_at); break;
    case TroubleKind::kWrites: text += fmt::format("; writes fail from number {} on", step.trouble_at); break;
    case TroubleKind::kCancel:
      text +=
          fmt::format("; cancelled at question {}{}", step.trouble_at, step.is_abandoned ? " for good" : "");
      break;
  }
  return text;
}

std::string Describe(const History& history) {
  std::string text =
      fmt::format("KVRUN_SEED={} KVRUN_HISTORIES=1: {} sequences", history.seed, history.n_sequences);
  for (size_t i = 0; i < history.steps.size(); ++i) {
    text += fmt::format("\n  {}. {}", i, Describe(history.steps[i]));
  }
  return text;
}

// Draws a history; what it draws next depends on how long the sequences are by then.
class HistoryMaker {
 public:
  explicit HistoryMaker(uint64_t seed) : random_(seed) {
    history_.seed = seed;
    history_.n_sequences = 2 + random_.Below(2);
    lengths_.resize(history_.n_sequences);
    abandons_ = Chance(2);
    fails_writes_ = Chance(2);
  }

  History Make() {
    while (history_.steps.size() < kHistorySteps) {
      if (history_.steps.size() % 8 == 0) only_decodes_ = history_.steps.size() > 0 && !Chance(3);
      AddStep();
    }
    return std::move(history_);
  }

 private:
  bool Chance(uint32_t one_of) { return random_.Below(one_of) == 0; }

  void AddStep() {
    StepOfHistory step;
    const uint32_t n_spans = Chance(2) ? 1 : 1 + random_.Below(history_.n_sequences);
    std::vector<uint32_t> sequences(history_.n_sequences);
    for (uint32_t i = 0; i < history_.n_sequences; ++i) sequences[i] = i;
    uint32_t n_left = kHistoryContext;  // rows of a step, at most
    for (uint32_t i = 0; i < n_spans && n_left > 0; ++i) {
      std::swap(sequences[i], sequences[i + random_.Below(history_.n_sequences - i)]);
      step.spans.push_back(NewSpan(sequences[i], n_left));
      n_left -= step.spans.back().n_rows();
    }
    AddTrouble(step);
    for (const SpanOfHistory& span : step.spans) {
      lengths_[span.sequence] = span.begin + (step.is_abandoned ? 0 : span.n_kept);
    }
    history_.steps.push_back(std::move(step));
  }

  SpanOfHistory NewSpan(uint32_t sequence, uint32_t most_rows) {
    SpanOfHistory span;
    span.sequence = sequence;
    span.begin = Begin(lengths_[sequence]);
    const uint32_t room = std::min(kHistoryContext - span.begin, most_rows);
    const uint32_t kind = random_.Below(8);
    span.kind = span.begin == 0 || (kind < 3 && !only_decodes_) ? SpanKind::kPrompt
                : kind < 6                                      ? SpanKind::kDecode
                                                                : SpanKind::kVerify;
    uint32_t n_rows = 1;
    // Mostly long ones, and rows alone.
    if (span.kind == SpanKind::kPrompt)
      n_rows = Chance(6) ? 1 : 1 + random_.Below(span.begin == 0 ? 120 : 50);
    if (span.kind == SpanKind::kVerify) n_rows = 2 + random_.Below(7);
    n_rows = std::min(n_rows, room);
    for (uint32_t i = 0; i < n_rows; ++i) {
      span.ids.push_back(static_cast<int>(3 + random_.Below(kHistoryVocabulary - 3)));
    }
    span.n_kept = span.kind == SpanKind::kVerify && Chance(2) ? 1 + random_.Below(n_rows) : n_rows;
    return span;
  }

  // Mostly where the sequence ends. Else some of it is taken back, or all.
  uint32_t Begin(uint32_t length) {
    const uint32_t kind = random_.Below(10);
    uint32_t begin = length;
    if (kind == 0 && !only_decodes_) begin = 0;
    if (kind == 1) begin = random_.Below(length + 1);
    if (kind == 2 || kind == 3) begin = length - random_.Below(std::min(length, 24U) + 1);
    return begin + 8 > kHistoryContext ? begin / 2 : begin;
  }

  void AddTrouble(StepOfHistory& step) {
    const bool has_prompt = std::any_of(step.spans.begin(), step.spans.end(), [](const SpanOfHistory& span) {
      return span.kind == SpanKind::kPrompt && span.n_rows() > 1;
    });
    const uint32_t kind = random_.Below(10);
    step.trouble_at = random_.Below(1U << random_.Below(6));
    const bool cancels = Chance(3);
    const bool is_for_good = Chance(2);
    if (has_prompt && cancels) {
      step.trouble = TroubleKind::kCancel;
      step.trouble_at %= 3;
      step.is_abandoned = abandons_ && is_for_good;
    } else if (kind < 4) {
      step.trouble = TroubleKind::kReads;
    } else if (kind < 6 && fails_writes_) {
      step.trouble = TroubleKind::kWrites;
    }
  }

  Random random_;
  History history_;
  std::vector<uint32_t> lengths_;
  // For a few steps: what slots hold is given up for each prompt.
  bool only_decodes_ = false;
  bool abandons_ = false;
  bool fails_writes_ = false;
};

// --- The test.

constexpr MethodExclusion kExclusionsOfProperties[] = {
    {"AllHeldIsFullAttention", "arkv-flash", "a part of its static set has 8 bits whatever the budget"},
    {"APromptThatFailsLeavesOthersAsTheyWere", "arkv-flash",
     "how many entries keep their precision is the mean of what all sequences' prompts say"},
};

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

// What a pass has said in a history.
struct SaidInHistory {
  std::vector<std::vector<float>> logits;  // of each step: of the rows whose logits are wanted
  // Before this step all was given that a history without troubles gives, and nothing is left of what was
  // not.
  size_t n_same = 0;
  size_t n_failed = 0;  // steps, of reads and writes
  size_t n_cancelled = 0;
};

enum class Troubles : bool { kLeftOut, kHappen };

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

class MethodProperties : public ::testing::TestWithParam<KvMethod> {
 protected:
  void SetUp() override {
    if (SharedDevice() == nullptr) GTEST_SKIP() << "no device";
    loaded_ = LoadSmallModel(SmallModels().front(), folder_);
    ASSERT_EQ(loaded_.model->config.n_vocab, kHistoryVocabulary);
  }

  // As much as there is, and nothing rounded.
  std::string Everything() const {
    const KvMethod& method = GetParam();
    if (method.counts_groups()) return "--kv-type f32 --kv-select 4096 --kv-window 6";
    return method.selects() ? "--kv-type f32 --kv-window 4096" : "--kv-type f32";
  }
  // A third of the KV, or what the method takes at the least: full takes all, in 8 bits.
  std::string Usual() const { return GetParam().needs_file() ? "--kv-budget 1/3" : "--kv-type int8"; }
  // Some of it, and nothing rounded.
  std::string SomeExact() const {
    const KvMethod& method = GetParam();
    if (method.counts_groups()) return "--kv-type f32 --kv-select 32 --kv-window 16";
    if (method.evicts()) return "--kv-type f32 --kv-select 48 --kv-window 16";
    return method.needs_file() ? "--kv-type f32 --kv-window 16" : "--kv-type f32";
  }

  KvPlan PlanOf(const std::string& options, uint32_t n_sequences) const {
    KvSettings settings;
    settings.storage.folder = folder_.Path("kv");
    settings.storage.allow_tmpfs = true;
    RunOrDie(ParseKvOptions(fmt::format("--kv-method {} {}", GetParam().name, options), &settings));
    return OrDie(PlanSessionKv(*loaded_.model, settings, kHistoryContext, n_sequences));
  }

  std::unique_ptr<BlockFile> NewFile(Mischief& mischief,
                                     uint32_t queue_depth = BlockFileOptions().queue_depth) const {
    const BlockFileOptions options{
        .folder = folder_.Path("kv"), .queue_depth = queue_depth, .allow_tmpfs = true};
    return std::make_unique<MischievousFile>(OrDie(CreateBlockFile(options)), mischief);
  }

  std::unique_ptr<ForwardPass> NewPass(const KvPlan& plan, Mischief& mischief) const {
    ForwardPassOptions options{.n_sequences = plan.n_sequences, .n_ctx = kHistoryContext};
    options.kv_type = plan.record.k_type;
    if (IsPlainResident(plan)) return loaded_.NewPass(options);
    options.offloaded = std::make_shared<OffloadedPassOptions>();
    options.offloaded->plan = plan;
    if (plan.method.needs_file()) {
      auto rows = plan.has_rows_file() ? NewFile(mischief, RowStore::kQueueDepth) : nullptr;
      options.offloaded->stores =
          OrDie(MakeKvStores(plan, loaded_.model->config.n_layers, NewFile(mischief), std::move(rows)));
      options.offloaded->spill = NewFile(mischief);
    }
    return loaded_.NewPass(options);
  }

  SaidInHistory Run(const History& history, const KvPlan& plan, Troubles troubles) const {
    const uint64_t bytes_before = KvBytesInUse(loaded_);
    Mischief mischief;
    const auto pass = NewPass(plan, mischief);
    return HistoryRun(history, plan, loaded_, bytes_before, *pass, mischief, troubles).Run();
  }

  // What `full` in memory says, given each sequence's tokens from the first on, whatever has led to them. For
  // all methods the same.
  const std::vector<std::vector<float>>& FullOf(const History& history) const {
    static std::map<uint64_t, std::vector<std::vector<float>>> of_seeds;
    const auto [found, is_new] = of_seeds.try_emplace(history.seed);
    if (!is_new) return found->second;
    const auto pass = loaded_.NewPass(
        {.n_sequences = 1, .n_ctx = kHistoryContext, .kv_type = KvType::kF32, .offloaded = nullptr});
    std::vector<std::vector<int>> texts(history.n_sequences);
    for (const StepOfHistory& step : history.steps) {
      std::vector<float>& logits = found->second.emplace_back();
      for (const SpanOfHistory& span : step.spans) {
        std::vector<int>& text = texts[span.sequence];
        text.resize(span.begin);
        if (step.is_abandoned) continue;
        text.insert(text.end(), span.ids.begin(), span.ids.end());
        const std::vector<float> of_span = LogitsOf(*pass, text, span.n_rows() - span.first_output());
        logits.insert(logits.end(), of_span.begin(), of_span.end());
        text.resize(span.begin + span.n_kept);
      }
    }
    return found->second;
  }

  // Calls `check` with each history, prints the one that fails, and ends with it. None, unless they are asked
  // for, on other devices than the CPU: what is looked for is in what the host does.
  template <class Check>
  void ForHistories(const Check& check) const {
    const Seeds seeds = SeedsHere(loaded_.device->info().kind == "cpu" ? kUsualHistories : 0);
    for (uint64_t seed = seeds.first; seed < seeds.end() && !HasFailure(); ++seed) {
      const History history = HistoryMaker(seed).Make();
      SCOPED_TRACE(Describe(history));
      check(history);
    }
  }

  // Histories without troubles would say little. What lies in memory has none.
  void ExpectTroubles(size_t n_failed, size_t n_cancelled) const {
    const bool is_usual = SeedsHere(0).n == 0 && loaded_.device->info().kind == "cpu";
    if (HasFailure() || !is_usual || !GetParam().needs_file()) return;
    EXPECT_GT(n_failed, 0U);
    EXPECT_GT(n_cancelled, 0U);
  }

  TemporaryFolder folder_;
  LoadedModel loaded_;
};

INSTANTIATE_TEST_SUITE_P(All, MethodProperties, ::testing::ValuesIn(KvMethods().begin(), KvMethods().end()),
                         MethodTestName);

TEST_P(MethodProperties, AllHeldIsFullAttention) {
  if (IsExcluded(kExclusionsOfProperties, "AllHeldIsFullAttention", GetParam().name)) return;
  size_t n_failed = 0;
  size_t n_cancelled = 0;
  ForHistories([&](const History& history) {
    KvPlan plan = PlanOf(Everything(), history.n_sequences);
    plan.prefill.spills_hidden = plan.method.needs_file();  // so that prompts read and write, too
    const SaidInHistory said = Run(history, plan, Troubles::kHappen);
    const std::vector<std::vector<float>>& expected = FullOf(history);
    for (size_t i = 0; i < history.steps.size() && !HasFailure(); ++i) {
      if (history.steps[i].is_abandoned) continue;
      const LogitsDifference difference = CompareLogits(expected[i], said.logits[i], kHistoryVocabulary);
      EXPECT_LE(difference.max_absolute, 0.02) << "step " << i;
      EXPECT_EQ(difference.wrong_top1, 0U) << "step " << i;
    }
    n_failed += said.n_failed;
    n_cancelled += said.n_cancelled;
  });
  ExpectTroubles(n_failed, n_cancelled);
}

TEST_P(MethodProperties, AHistoryRepeatsWithinThePlan) {
  ForHistories([&](const History& history) {
    const KvPlan plan = PlanOf(Usual(), history.n_sequences);
    EXPECT_LE(std::max(plan.decode_bytes(), plan.prefill_bytes()), plan.budget.bytes);
    const SaidInHistory said = Run(history, plan, Troubles::kHappen);
    if (HasFailure()) return;
    const SaidInHistory again = Run(history, plan, Troubles::kHappen);
    EXPECT_EQ(said.n_failed, again.n_failed);
    for (size_t i = 0; i < history.steps.size() && !HasFailure(); ++i) {
      EXPECT_TRUE(said.logits[i] == again.logits[i]) << "step " << i << " says something else";
    }
  });
}

// A step that has failed, or was cancelled, and is given again says what it says without that, and so does
// all that follows. Nothing is rounded where it is stored: what comes back from there is what it was.
TEST_P(MethodProperties, WhatFailedAndIsGivenAgainIsAsIfItHadNot) {
  size_t n_failed = 0;
  size_t n_cancelled = 0;
  ForHistories([&](const History& history) {
    const KvPlan plan = PlanOf(SomeExact(), history.n_sequences);
    const SaidInHistory said = Run(history, plan, Troubles::kHappen);
    if (HasFailure()) return;
    const SaidInHistory untroubled = Run(history, plan, Troubles::kLeftOut);
    EXPECT_EQ(untroubled.n_failed + untroubled.n_cancelled, 0U);
    const size_t n_same = std::min(said.n_same, untroubled.n_same);
    for (size_t i = 0; i < n_same && !HasFailure(); ++i) {
      EXPECT_TRUE(said.logits[i] == untroubled.logits[i]) << "step " << i << " says something else";
    }
    n_failed += said.n_failed;
    n_cancelled += said.n_cancelled;
  });
  ExpectTroubles(n_failed, n_cancelled);
}

// Whichever write of a prompt fails, another sequence goes on as if it had not, and at once.
TEST_P(MethodProperties, APromptThatFailsLeavesOthersAsTheyWere) {
  if (IsExcluded(kExclusionsOfProperties, "APromptThatFailsLeavesOthersAsTheyWere", GetParam().name)) return;
  const std::vector<int> ids = SomeIds(70, 3, kHistoryVocabulary);
  const KvPlan plan = PlanOf(SomeExact(), 2);
  // The token after a prompt of the other sequence; nothing: as many writes were not asked for.
  const auto say = [&](std::optional<uint32_t> n_good) {
    Mischief mischief;
    const auto pass = NewPass(plan, mischief);
    Feed(*pass, ids, 0, 60, 60, 0);
    Feed(*pass, ids, 0, 50, 50, 1);
    Feed(*pass, ids, 60, 64, 1, 0);
    if (n_good) mischief = {.fails = IoKind::kWrite, .n_good = *n_good};
    ForwardStep prompt;
    prompt.Add(SpanKind::kPrompt, std::span(ids).first(40), 0, 1);
    const Status status = pass->Run(prompt, {}, {});
    EXPECT_EQ(status.code(), mischief.n_failed > 0 ? StatusCode::kIo : StatusCode::kOk) << status.message();
    const bool is_beyond = n_good && mischief.n_failed == 0;
    mischief = {};
    return is_beyond ? std::vector<float>() : Feed(*pass, ids, 64, 65, 1, 0);
  };
  const std::vector<float> expected = say(std::nullopt);
  for (uint32_t n_good = 0; !HasFailure(); ++n_good) {
    SCOPED_TRACE(fmt::format("writes fail from number {} on", n_good));
    const std::vector<float> said = say(n_good);
    if (said.empty()) break;
    EXPECT_TRUE(said == expected) << "it differs by "
                                  << CompareLogits(expected, said, kHistoryVocabulary).max_absolute;
  }
}

TEST(MethodPropertiesList, NamesRowsOfTheTable) { ExpectRowsOfTheTable(kExclusionsOfProperties); }

}  // namespace
}  // namespace kvrun::testing
