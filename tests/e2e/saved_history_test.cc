// Every KV method over random histories (tests/support/method_history.h): a pass that is saved between steps,
// ends, and goes on in another one over the same files says bit for bit what one says that never ended.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/engine/session/session_kv.h"
#include "runtime/kv/plan/kv_method.h"
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

// Loads zeros in place of all that one part has saved.
class WithoutAPart final : public StateVisitor {
 public:
  WithoutAPart(const StateFile& file, StatePart part) : loader_(file), part_(part) {}
  bool is_loading() const override { return true; }
  bool Has(const StateKey& key) const override { return loader_.Has(key); }
  Status Bytes(const StateKey& key, std::span<std::byte> bytes) override {
    KVRUN_RETURN_IF_ERROR(loader_.Bytes(key, bytes));
    if (key.part == part_) std::fill(bytes.begin(), bytes.end(), std::byte{0});
    return Status::Ok();
  }
  Result<uint64_t> Size(const StateKey& key, uint64_t size_bytes, uint64_t most_bytes,
                        uint32_t unit_bytes) override {
    return loader_.Size(key, size_bytes, most_bytes, unit_bytes);
  }
  Status Pieces(const StateKey& key, uint64_t size_bytes, std::span<std::byte> piece,
                const MoveFn& move) override {
    return loader_.Pieces(key, size_bytes, piece, [&](uint64_t at, std::span<std::byte> some) {
      if (key.part == part_) std::fill(some.begin(), some.end(), std::byte{0});
      return move(at, some);
    });
  }

 private:
  StateLoader loader_;
  StatePart part_;
};

class SavedHistoryBase : public ::testing::Test {
 protected:
  void SetUp() override {
    if (SharedDevice() == nullptr) GTEST_SKIP() << "no device";
    loaded_ = LoadSmallModel(SmallModels().front(), folder_);
    ASSERT_EQ(loaded_.model->config.n_vocab, kHistoryVocabulary);
  }

  KvPlan PlanOf(const std::string& method, const std::string& options, uint32_t n_sequences) const {
    KvSettings settings;
    settings.storage.folder = folder_.Path("kv");
    settings.storage.allow_tmpfs = true;
    RunOrDie(ParseKvOptions(fmt::format("--kv-method {} {}", method, options), &settings));
    return OrDie(PlanSessionKv(*loaded_.model, settings, kHistoryContext, n_sequences));
  }

  std::unique_ptr<ForwardPass> NewPass(const KvPlan& plan, const PassFiles& files) const {
    return NewHistoryPass(loaded_, plan, [&](PassFile which, uint32_t queue_depth) {
      const SharedBytes bytes = which == PassFile::kRecords ? files.records
                                : which == PassFile::kRows  ? files.rows
                                                            : std::make_shared<std::vector<std::byte>>();
      return std::make_unique<SharedMemoryFile>(bytes, 4096, queue_depth);
    });
  }

  void ExpectSame(const std::string& method, const std::string& options) const {
    const Seeds seeds = SeedsHere(kUsualHistories);
    for (uint64_t seed = seeds.first; seed < seeds.end() && !HasFailure(); ++seed) {
      const History history = MakeHistory(seed);
      SCOPED_TRACE(Describe(history));
      const KvPlan plan = PlanOf(method, options, history.n_sequences);
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

class SavedHistory : public SavedHistoryBase, public ::testing::WithParamInterface<KvMethod> {
 protected:
  void ExpectSame(const std::string& options) const {
    SavedHistoryBase::ExpectSame(std::string(GetParam().name), options);
  }
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

struct PartsCase {
  std::string name;  // of the method
  std::string options;
};

class SavedParts : public SavedHistoryBase, public ::testing::WithParamInterface<PartsCase> {};

INSTANTIATE_TEST_SUITE_P(
    All, SavedParts,
    ::testing::Values(PartsCase{"full", "--kv-type int8"},
                      PartsCase{"kvswap", "--kv-type int4 --kv-select 24 --kv-window 16 --kv-reads 1"},
                      PartsCase{"prkv", "--kv-select 48 --kv-window 16"},
                      PartsCase{"dynakv", "--kv-type int8 --kv-select 24 --kv-window 16 --kv-cluster 8"},
                      PartsCase{"arkv", "--kv-select 32 --kv-window 16"},
                      PartsCase{"lazyeviction", "--kv-select 32 --kv-window 16"}),
    [](const ::testing::TestParamInfo<PartsCase>& test) { return test.param.name; });

// Without any part of what is saved it is refused, or says something else. (Of parts that hold zeros alone,
// such as means that are not taken of so short a text, that cannot be said.)
TEST_P(SavedParts, NoneIsSavedInVain) {
  const KvPlan plan = PlanOf(GetParam().name, GetParam().options, 1);
  PassFiles files;
  const std::vector<int> ids = SomeIds(kHistoryContext, 4, kHistoryVocabulary);
  constexpr uint32_t kPrompt = 110;
  constexpr uint32_t kSaved = 125;
  const auto token = [&](ForwardPass& pass, uint32_t at, std::vector<float>* logits) {
    const ForwardStep step(SpanKind::kDecode, {ids[at], at, 0});
    logits->resize(kHistoryVocabulary);
    const uint32_t output = 0;
    return pass.Run(step, {&output, 1}, *logits);
  };
  auto pass = NewPass(plan, files);
  ForwardStep prompt;
  prompt.Add(SpanKind::kPrompt, std::span(ids).first(kPrompt), 0, 0);
  RunOrDie(pass->Run(prompt, {}, {}));
  std::vector<float> logits;
  for (uint32_t at = kPrompt; at < kSaved; ++at) RunOrDie(token(*pass, at, &logits));
  const std::vector<uint32_t> lengths = {kSaved};
  {
    const auto file = OrDie(StateFile::Create(folder_.Path("state")));
    RunOrDie(file->BeginSave());
    StateSaver saver(*file);
    RunOrDie(pass->VisitState(saver, lengths));
    RunOrDie(file->Commit());
  }
  // The records as they are now, for each pass.
  const auto copy = [](const SharedBytes& bytes) { return std::make_shared<std::vector<std::byte>>(*bytes); };
  const PassFiles saved{copy(files.records), copy(files.rows)};
  std::vector<std::vector<float>> expected;
  for (uint32_t at = kSaved; at < kHistoryContext; ++at) {
    RunOrDie(token(*pass, at, &logits));
    expected.push_back(logits);
  }
  const auto file = OrDie(StateFile::Open(folder_.Path("state"), /*read_only=*/true));
  std::set<StatePart> parts;
  file->ForEach([&](const StateKey& key, uint64_t size_bytes) {
    std::vector<std::byte> bytes(size_bytes);
    RunOrDie(file->Read(key, 0, bytes));
    if (std::any_of(bytes.begin(), bytes.end(), [](std::byte one) { return one != std::byte{0}; })) {
      parts.insert(key.part);
    }
  });
  ASSERT_FALSE(parts.empty());
  for (const StatePart part : parts) {
    pass.reset();
    pass = NewPass(plan, {copy(saved.records), copy(saved.rows)});
    WithoutAPart visitor(*file, part);
    Status status = pass->VisitState(visitor, lengths);
    bool is_same = status.ok();
    for (uint32_t at = kSaved; at < kHistoryContext && status.ok() && is_same; ++at) {
      status = token(*pass, at, &logits);
      is_same = status.ok() && logits == expected[at - kSaved];
    }
    EXPECT_FALSE(is_same) << "part " << static_cast<int>(part);
  }
}

}  // namespace saved_history
}  // namespace
}  // namespace kvrun::testing
