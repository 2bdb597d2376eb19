// Every KV method over random histories (tests/support/method_history.h): a pass that is saved between steps,
// ends, and goes on in another one over the same files says bit for bit what one says that never ended.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/engine/session/session_kv.h"
#include "runtime/kv/plan/kv_method.h"
#include "runtime/store/row_store.h"
#include "runtime/store/state_file.h"
#include "runtime/store/state_visitor.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/method_history.h"
#include "tests/support/method_history_run.h"
#include "tests/support/or_die.h"
#include "tests/support/program_runner.h"
#include "tests/support/seeds.h"
#include "tests/support/shared_memory_file.h"
#include "tests/support/small_models.h"

namespace kvrun::testing {
namespace {

namespace saved_history {

constexpr uint64_t kUsualHistories = 4;

// What a pass lies in besides memory.
struct PassFiles {
  SharedBytes records = std::make_shared<std::vector<std::byte>>();
  SharedBytes rows = std::make_shared<std::vector<std::byte>>();
};

using NewPassFn = std::function<std::unique_ptr<ForwardPass>(const PassFiles& files)>;

// A pass that ends and is opened again before every other Run, by chance.
class ReopenedPass final : public ForwardPass {
 public:
  ReopenedPass(NewPassFn new_pass, std::string state_path, uint32_t n_sequences, uint64_t seed)
      : new_pass_(std::move(new_pass)),
        state_path_(std::move(state_path)),
        random_(seed),
        lengths_(n_sequences),
        pass_(new_pass_(files_)) {}

  uint32_t max_rows() const override { return pass_->max_rows(); }
  uint32_t max_output_rows() const override { return pass_->max_output_rows(); }
  uint32_t n_vocab() const override { return pass_->n_vocab(); }
  Status VisitState(StateVisitor& visitor, std::span<const uint32_t> lengths) override {
    return pass_->VisitState(visitor, lengths);
  }
  Status Run(const ForwardStep& step, std::span<const uint32_t> outputs, std::span<float> logits) override {
    // What the step takes back may be taken back before the pass is saved, as a session knows it.
    if (random_() % 2 == 0) {
      for (const KvSpan& span : step.kv().spans) {
        lengths_[span.sequence] = std::min(lengths_[span.sequence], span.first_position);
      }
    }
    if (random_() % 2 == 0) Reopen();
    KVRUN_RETURN_IF_ERROR(pass_->Run(step, outputs, logits));
    for (const KvSpan& span : step.kv().spans) lengths_[span.sequence] = span.end();
    return Status::Ok();
  }
  Status MoreLogits(std::span<const uint32_t> outputs, std::span<float> logits) override {
    return pass_->MoreLogits(outputs, logits);
  }
  uint32_t n_reopened() const { return n_reopened_; }

 private:
  void Reopen() {
    auto file =
        n_reopened_ == 0 ? OrDie(StateFile::Create(state_path_)) : OrDie(StateFile::Open(state_path_));
    RunOrDie(file->BeginSave());
    StateSaver saver(*file);
    RunOrDie(pass_->VisitState(saver, lengths_));
    RunOrDie(file->Commit());
    file.reset();
    pass_.reset();
    pass_ = new_pass_(files_);
    file = OrDie(StateFile::Open(state_path_, /*read_only=*/true));
    StateLoader loader(*file);
    RunOrDie(pass_->VisitState(loader, lengths_));
    ++n_reopened_;
  }

  NewPassFn new_pass_;
  std::string state_path_;
  std::mt19937_64 random_;
  std::vector<uint32_t> lengths_;  // of each sequence
  PassFiles files_;
  std::unique_ptr<ForwardPass> pass_;
  uint32_t n_reopened_ = 0;
};

class SavedHistory : public ::testing::TestWithParam<KvMethod> {
 protected:
  void SetUp() override {
    if (SharedDevice() == nullptr) GTEST_SKIP() << "no device";
    loaded_ = LoadSmallModel(SmallModels().front(), folder_);
    ASSERT_EQ(loaded_.model->config.n_vocab, kHistoryVocabulary);
  }

  KvPlan PlanOf(const std::string& options, uint32_t n_sequences) const {
    KvSettings settings;
    settings.storage.folder = folder_.Path("kv");
    settings.storage.allow_tmpfs = true;
    RunOrDie(ParseKvOptions(fmt::format("--kv-method {} {}", GetParam().name, options), &settings));
    return OrDie(PlanSessionKv(*loaded_.model, settings, kHistoryContext, n_sequences));
  }

  std::unique_ptr<ForwardPass> NewPass(const KvPlan& plan, const PassFiles& files) const {
    ForwardPassOptions options{.n_sequences = plan.n_sequences, .n_ctx = kHistoryContext};
    options.kv_type = plan.record.k_type;
    if (IsPlainResident(plan)) return loaded_.NewPass(options);
    options.offloaded = std::make_shared<OffloadedPassOptions>();
    options.offloaded->plan = plan;
    if (plan.method.needs_file()) {
      const auto file = [](const SharedBytes& bytes, uint32_t queue_depth) {
        return std::make_unique<SharedMemoryFile>(bytes, 4096, queue_depth);
      };
      auto rows = plan.has_rows_file() ? file(files.rows, RowStore::kQueueDepth) : nullptr;
      options.offloaded->stores =
          OrDie(MakeKvStores(plan, loaded_.model->config.n_layers, file(files.records, 32), std::move(rows)));
      options.offloaded->spill = file(std::make_shared<std::vector<std::byte>>(), 32);
    }
    return loaded_.NewPass(options);
  }

  void ExpectSame(const std::string& options) const {
    const Seeds seeds = SeedsHere(kUsualHistories);
    for (uint64_t seed = seeds.first; seed < seeds.end() && !HasFailure(); ++seed) {
      const History history = MakeHistory(seed);
      SCOPED_TRACE(Describe(history));
      const KvPlan plan = PlanOf(options, history.n_sequences);
      Mischief none;
      const uint64_t bytes_before = KvBytesInUse(loaded_);
      const auto run = [&](ForwardPass& pass) {
        return RunHistory(history, plan, loaded_, bytes_before, pass, none, Troubles::kLeftOut);
      };
      auto pass = NewPass(plan, PassFiles());
      const SaidInHistory said = run(*pass);
      pass.reset();
      ReopenedPass reopened([&](const PassFiles& files) { return NewPass(plan, files); },
                            folder_.Path("state"), history.n_sequences, seed);
      const SaidInHistory again = run(reopened);
      EXPECT_GT(reopened.n_reopened(), 0U);
      for (size_t i = 0; i < history.steps.size() && !HasFailure(); ++i) {
        EXPECT_TRUE(said.logits[i] == again.logits[i]) << "step " << i << " says something else";
      }
    }
  }

  TemporaryFolder folder_;
  LoadedModel loaded_;
};

INSTANTIATE_TEST_SUITE_P(All, SavedHistory, ::testing::ValuesIn(KvMethods().begin(), KvMethods().end()),
                         MethodTestName);

// A third of the KV, or what the method takes at the least: full takes all, in 8 bits.
TEST_P(SavedHistory, OfAThirdOfTheKv) {
  ExpectSame(GetParam().needs_file() ? "--kv-budget 1/3" : "--kv-type int8");
}

TEST_P(SavedHistory, OfRotatedRecords) { ExpectSame("--kv-type int4"); }

TEST_P(SavedHistory, OfAllThatThereIs) {
  ExpectSame(GetParam().counts_groups() ? "--kv-select 4096 --kv-window 6" : "--kv-type f16");
}

// What lies in slots stands in for what is not read, so that it is a part of the state. Of all methods that
// can limit reads.
class SavedHistoryOfLimitedReads : public SavedHistory {};
INSTANTIATE_TEST_SUITE_P(All, SavedHistoryOfLimitedReads,
                         ::testing::Values(OrDie(FindKvMethod("kvswap")), OrDie(FindKvMethod("loki")),
                                           OrDie(FindKvMethod("infinigen"))),
                         MethodTestName);

TEST_P(SavedHistoryOfLimitedReads, SlotsAreAPartOfIt) { ExpectSame("--kv-budget 1/3 --kv-reads 1"); }

}  // namespace saved_history
}  // namespace
}  // namespace kvrun::testing
