// While the static set is chosen again a disk fails: there is one clear error each time, nothing of either
// sequence is lost, and the step that works in the end says what it says without faults.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "platform/io/faulty_block_file.h"
#include "runtime/engine/session/session_kv.h"
#include "runtime/kv/planner/plan_kv.h"
#include "runtime/kv/serve/record_cache.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/or_die.h"
#include "tests/support/program_runner.h"
#include "tests/support/small_models.h"

namespace kvrun::testing {
namespace {

constexpr uint32_t kRoom = 200;
constexpr uint32_t kBegins[] = {100, 90};  // of what two sequences decode together
constexpr uint32_t kChosenAt = 8;          // the step at which both sets are chosen again
constexpr uint32_t kSteps = 18;
constexpr int kMostTries = 60;

enum class FaultyFile { kStore, kSpill };

class StaticFaults : public ::testing::TestWithParam<const char*> {
 protected:
  struct Made {
    std::unique_ptr<ForwardPass> pass;
    FaultyBlockFile* files[2] = {};
  };
  struct Counts {
    IoCounters of[2];
  };

  void SetUp() override {
    if (SharedDevice() == nullptr) GTEST_SKIP() << "no device";
    RunOrDie(ParseKvOptions(std::string("--kv-window 6 --kv-method ") + GetParam(), &settings_));
    loaded_ = LoadSmallModel({"SelfMade", ""}, folder_);
  }

  // Both sequences' prompts are there.
  Made Make(FaultyFile place, const FaultPlan& faults) const {
    std::unique_ptr<FaultyBlockFile> files[2];
    Made made;
    for (const FaultyFile file : {FaultyFile::kStore, FaultyFile::kSpill}) {
      const auto i = static_cast<size_t>(file);
      const BlockFileOptions options{.folder = folder_.Path("kv"), .allow_tmpfs = true};
      files[i] = std::make_unique<FaultyBlockFile>(OrDie(CreateBlockFile(options)),
                                                   file == place ? faults : FaultPlan());
      made.files[i] = files[i].get();
    }
    auto options = std::make_shared<OffloadedPassOptions>();
    const KvModelShape shape = ShapeOf(loaded_.model->config);
    options->plan = OrDie(PlanKv(settings_.kv, shape, kRoom, 2, files[0]->mode().alignment_bytes));
    options->plan.prefill.tile_tokens = 64;
    options->plan.prefill.spills_hidden = true;
    options->stores = OrDie(MakeKvStores(options->plan, shape.n_layers, std::move(files[0]), nullptr));
    options->spill = std::move(files[1]);
    made.pass = loaded_.NewPass({.n_sequences = 2, .n_ctx = kRoom, .offloaded = std::move(options)});
    for (const uint32_t s : {0U, 1U}) Feed(*made.pass, IdsOf(s), 0, kBegins[s], kBegins[s], s);
    return made;
  }
  std::vector<int> IdsOf(uint32_t sequence) const {
    return SomeIds(kRoom, sequence + 1, loaded_.model->config.n_vocab);
  }
  // One token of each sequence; its logits are added.
  Status Step(ForwardPass& pass, uint32_t step, std::vector<float>* said) const {
    ForwardStep rows;
    for (const uint32_t s : {0U, 1U})
      rows.Add(SpanKind::kDecode, {IdsOf(s)[kBegins[s] + step], kBegins[s] + step, s});
    std::vector<float> logits(2 * loaded_.model->config.n_vocab);
    const Status status = pass.Run(rows, std::vector<uint32_t>{0, 1}, logits);
    if (status.ok()) said->insert(said->end(), logits.begin(), logits.end());
    return status;
  }
  static Counts CountsOf(const Made& made) {
    return {{made.files[0]->counters(), made.files[1]->counters()}};
  }
  static bool IsClearError(const Status& status) {
    const std::string& text = status.message();
    const bool names_place = text.find("layer ") != text.npos || text.find("intermediate") != text.npos;
    return names_place && text.find('\n') == text.npos && status.code() == StatusCode::kIo;
  }

  // What is said with these faults; answers how many steps failed.
  int Converse(FaultyFile place, const Fault& fault) {
    const Made made = Make(place, {.faults = {fault}, .random_kinds = {}});
    std::vector<float> said;
    int n_errors = 0;
    for (uint32_t step = 0; step < kSteps; ++step) {
      for (int tries = 0;; ++tries) {
        const Status status = Step(*made.pass, step, &said);
        if (status.ok()) break;
        EXPECT_EQ(step, kChosenAt) << status.message();
        EXPECT_TRUE(IsClearError(status)) << status.message();
        EXPECT_LT(tries, kMostTries) << "it fails for ever: " << status.message();
        if (tries >= kMostTries) return n_errors;
        ++n_errors;
        for (const uint32_t s : {0U, 1U}) {
          has_caught_up_ |= made.pass->record_cache()->length(s) < kBegins[s] + step;
        }
      }
    }
    EXPECT_GT(made.files[static_cast<size_t>(place)]->n_faults(), 0U) << "it did not happen";
    EXPECT_EQ(said, reference_);
    return n_errors;
  }

  TemporaryFolder folder_;
  LoadedModel loaded_;
  KvSettings settings_;
  std::vector<float> reference_;
  bool has_caught_up_ = false;
};

INSTANTIATE_TEST_SUITE_P(
    Methods, StaticFaults,
    ::testing::Values("prkv --kv-select 64 --kv-group 8 --kv-static-steps 8",
                      "prkv --kv-repage on --kv-select 64 --kv-group 8 --kv-static 0.5 --kv-static-steps 8",
                      "kvswap --kv-select 40 --kv-sinks 2 --kv-rank 4 --kv-static 0.5 --kv-static-steps 8"),
    [](const ::testing::TestParamInfo<const char*>& source) {
      const std::string_view options = source.param;
      const bool is_repaged = options.find("--kv-repage on") != options.npos;
      return std::string(options.substr(0, options.find(' '))) + (is_repaged ? "Repaged" : "");
    });

TEST_P(StaticFaults, NothingIsLostWhileTheSetIsChosenAgain) {
  const Made made = Make(FaultyFile::kStore, {});
  Counts before;
  Counts after;
  for (uint32_t step = 0; step < kSteps; ++step) {
    if (step == kChosenAt) before = CountsOf(made);
    RunOrDie(Step(*made.pass, step, &reference_));
    if (step == kChosenAt) after = CountsOf(made);
  }
  ASSERT_EQ(made.pass->kv_report()->statics->n_chosen_again, 4U) << "twice for each";
  int n_errors = 0;
  for (const FaultyFile place : {FaultyFile::kStore, FaultyFile::kSpill}) {
    const auto i = static_cast<size_t>(place);
    for (const IoKind request : {IoKind::kRead, IoKind::kWrite}) {
      const bool is_read = request == IoKind::kRead;
      const uint64_t begin = is_read ? before.of[i].reads : before.of[i].writes;
      const uint64_t end = is_read ? after.of[i].reads : after.of[i].writes;
      EXPECT_GT(end, begin);
      // Some at any rate, and so many that what is tried again fails, too.
      const uint64_t stride = std::max<uint64_t>(1, (end - begin) / 4);
      for (uint64_t index = begin; index < end; index += stride) {
        for (const uint64_t count : {uint64_t{1}, uint64_t{30}}) {
          SCOPED_TRACE(fmt::format("{} {} of {} to {}, {} in a row, of the {}", is_read ? "read" : "write",
                                   index, begin, end, count, i == 0 ? "store" : "spill file"));
          n_errors += Converse(place, {FaultKind::kIoError, request, index, count});
          if (HasFailure()) return;
        }
      }
    }
  }
  EXPECT_GT(n_errors, 20);
  EXPECT_TRUE(has_caught_up_) << "no error came after what was computed again was forgotten";
}

// A prompt fails before it has computed anything: decoding goes on with what is in slots, or is read again.
TEST_P(StaticFaults, APromptThatCannotBeginLosesNothing) {
  RunOrDie(ParseKvOptions("--kv-select 4096 --kv-static 0.25 --kv-type f32 --kv-static-steps 0", &settings_));
  constexpr uint32_t kCompleted = 4;  // steps until a group of the first sequence is complete, and not stored
  const uint32_t n_vocab = loaded_.model->config.n_vocab;
  const auto full =
      loaded_.NewPass({.n_sequences = 2, .n_ctx = kRoom, .kv_type = KvType::kF32, .offloaded = nullptr});
  for (const uint32_t s : {0U, 1U}) Feed(*full, IdsOf(s), 0, kBegins[s], kBegins[s], s);
  std::vector<float> expected;
  std::vector<float> said;
  const Made clean = Make(FaultyFile::kStore, {});
  for (uint32_t step = 0; step < kCompleted; ++step) RunOrDie(Step(*clean.pass, step, &said));
  const Fault fault{FaultKind::kIoError, IoKind::kWrite, CountsOf(clean).of[0].writes, 1};
  const Made made = Make(FaultyFile::kStore, {.faults = {fault}, .random_kinds = {}});
  said.clear();
  for (uint32_t step = 0; step < kSteps; ++step) {
    if (step == kCompleted) {
      ForwardStep rows;
      for (uint32_t i = 0; i < 16; ++i) rows.Add(SpanKind::kPrompt, {IdsOf(1)[i], kBegins[0] + step + i, 0});
      const Status status = made.pass->Run(rows, {}, {});
      EXPECT_TRUE(IsClearError(status)) << status.message();
    }
    RunOrDie(Step(*full, step, &expected));
    RunOrDie(Step(*made.pass, step, &said));
  }
  EXPECT_LE(CompareLogits(expected, said, n_vocab).max_absolute, 0.02);
}

}  // namespace
}  // namespace kvrun::testing
