// The KV cache on a disk that fails: whatever happens to any read or write, what the model says is right, or
// there is one clear error; and what is computed again afterwards is right.
// Not grouped (cmake/KvrunCompile.cmake): its names are others', too.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "platform/io/faulty_block_file.h"
#include "runtime/engine/session/session_kv.h"
#include "runtime/kv/planner/plan_kv.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/or_die.h"
#include "tests/support/program_runner.h"
#include "tests/support/small_models.h"

namespace kvrun::testing {
namespace {

constexpr uint32_t kContext = 400;
constexpr FaultKind kKinds[] = {FaultKind::kIoError,   FaultKind::kNoSpace,     FaultKind::kShortRead,
                                FaultKind::kBitFlip,   FaultKind::kMisdirected, FaultKind::kLostWrite,
                                FaultKind::kTornWrite, FaultKind::kStaleData};

// A conversation: prompts of more than one tile, tokens that complete groups, what was said taken back in
// decoding and by a prompt.
struct Part {
  uint32_t begin;  // positions that are given in one step
  uint32_t end;
};
const std::vector<Part>& Conversation() {
  static const std::vector<Part> parts = [] {
    std::vector<Part> made = {{0, 300}};
    const auto add_tokens = [&made](uint32_t begin, uint32_t end) {
      for (uint32_t i = begin; i < end; ++i) made.push_back({i, i + 1});
    };
    add_tokens(300, 309);
    add_tokens(303, 307);  // others in place of the last six
    made.push_back({305, 340});
    add_tokens(340, 346);
    return made;
  }();
  return parts;
}

enum class Place { kStore, kSpill, kRows };
constexpr const char* kPlaceNames[] = {"store", "spill file", "rows of the index"};

struct Faults {
  FaultPlan store;
  FaultPlan spill;
  FaultPlan rows;  // of the index, where it lies on flash
};

// A pass whose files fail as planned. The files are the pass's.
struct FaultyPass {
  std::unique_ptr<ForwardPass> pass;
  FaultyBlockFile* store = nullptr;
  FaultyBlockFile* spill = nullptr;
  FaultyBlockFile* rows = nullptr;  // null: there is none

  uint64_t n_faults() const {
    return store->n_faults() + spill->n_faults() + (rows == nullptr ? 0 : rows->n_faults());
  }
};

struct Said {
  Status status;
  size_t n_parts = 0;         // that went well
  std::vector<float> logits;  // after each of them
};

bool IsClear(const Status& status) {
  const std::string& text = status.message();
  const auto has = [&text](const char* part) { return text.find(part) != text.npos; };
  const bool names_group = has("layer ") && has("stream ") && (has("group") || has("cluster"));
  const bool names_offset = has("a prompt's intermediate results") && has(" at ");
  return (names_group || names_offset) && text.find('\n') == text.npos &&
         (status.code() == StatusCode::kIo || status.code() == StatusCode::kCorrupt);
}

class KvFaults : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (SharedDevice() == nullptr) GTEST_SKIP() << "no device";
    RunOrDie(ParseKvOptions(std::string("--kv-method ") + GetParam(), &settings_));
    // With more layers than have rows in memory.
    loaded_ = has_rows() ? LoadDeepModel(5, folder_) : LoadSmallModel({"SelfMade", ""}, folder_);
  }

  bool has_rows() const { return settings_.kv.rows_on_flash.value_or(false); }
  std::vector<Place> Places() const {
    return has_rows() ? std::vector{Place::kStore, Place::kSpill, Place::kRows}
                      : std::vector{Place::kStore, Place::kSpill};
  }

  std::unique_ptr<FaultyBlockFile> NewFile(const FaultPlan& plan) const {
    const BlockFileOptions options{.folder = folder_.Path("kv"), .allow_tmpfs = true};
    return std::make_unique<FaultyBlockFile>(OrDie(CreateBlockFile(options)), plan);
  }

  FaultyPass NewPass(const Faults& faults) const {
    auto store = NewFile(faults.store);
    auto spill = NewFile(faults.spill);
    auto rows = has_rows() ? NewFile(faults.rows) : nullptr;
    FaultyPass made{nullptr, store.get(), spill.get(), rows.get()};
    auto options = std::make_shared<OffloadedPassOptions>();
    const KvModelShape shape = ShapeOf(loaded_.model->config);
    options->plan = OrDie(PlanKv(settings_.kv, shape, kContext, 1, store->mode().alignment_bytes));
    // As a small budget would have it.
    options->plan.prefill.tile_tokens = 256;
    options->plan.prefill.spills_hidden = true;
    options->stores = OrDie(MakeKvStores(options->plan, shape.n_layers, std::move(store), std::move(rows)));
    options->spill = std::move(spill);
    made.pass = loaded_.NewPass({.n_sequences = 1, .n_ctx = kContext, .offloaded = std::move(options)});
    return made;
  }

  // Goes on from a part of the conversation to its end, or to the first error. `topic`: what it is about.
  Said Say(ForwardPass& pass, size_t first_part = 0, size_t topic = 0) const {
    const size_t n_vocab = loaded_.model->config.n_vocab;
    const std::vector<int> ids = SomeIds(kContext, topic + 1, n_vocab);
    Said said;
    std::vector<float> logits(n_vocab);
    for (size_t part = first_part; part < Conversation().size(); ++part) {
      const auto [begin, end] = Conversation()[part];
      ForwardStep rows;
      for (uint32_t i = begin; i < end; ++i)
        rows.Add(end - begin == 1 ? SpanKind::kDecode : SpanKind::kPrompt,
                 {ids[(i + part) % kContext], i, 0});
      const uint32_t last = end - begin - 1;
      said.status = pass.Run(rows, {&last, 1}, logits);
      if (!said.status.ok()) return said;
      ++said.n_parts;
      said.logits.insert(said.logits.end(), logits.begin(), logits.end());
    }
    return said;
  }

  // What was said from a part on is what is said without faults.
  void ExpectRight(const std::string& name, const Said& said, size_t first_part, size_t topic = 0) const {
    const size_t n_vocab = loaded_.model->config.n_vocab;
    const auto expected =
        std::span(reference_[topic].logits).subspan(first_part * n_vocab, said.logits.size());
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), said.logits.begin())) << name << ": wrong";
    EXPECT_TRUE(said.status.ok() || IsClear(said.status)) << name << ": " << said.status.message();
  }

  // The conversation under faults; after an error on from where it was, then, if that fails too, from the
  // beginning. Answers whether there was an error at first.
  bool Converse(const std::string& name, const Faults& faults, bool lasts) {
    const FaultyPass made = NewPass(faults);
    const Said first = Say(*made.pass);
    ExpectRight(name, first, 0);
    EXPECT_TRUE(lasts || made.n_faults() > 0) << name << ": it did not happen";
    if (first.status.ok()) return false;
    const Said more = Say(*made.pass, first.n_parts);
    ExpectRight(name + ", on from the error", more, first.n_parts);
    if (more.status.ok()) return true;
    // About something else, unless the adapters are of the first prompt already.
    const size_t topic = first.n_parts == 0 && more.n_parts == 0 ? 1 : 0;
    const Said again = Say(*made.pass, 0, topic);
    ExpectRight(name + ", once more from the beginning", again, 0, topic);
    EXPECT_TRUE(lasts || again.status.ok()) << name << ": still " << again.status.message();
    return true;
  }

  void Reference() {
    for (const size_t topic : {1, 0}) {
      const FaultyPass made = NewPass({});
      reference_[topic] = Say(*made.pass, 0, topic);
      ASSERT_TRUE(reference_[topic].status.ok()) << reference_[topic].status.message();
      counters_[0] = made.store->counters();
      counters_[1] = made.spill->counters();
      if (made.rows != nullptr) counters_[2] = made.rows->counters();
    }
    ASSERT_NE(reference_[0].logits, reference_[1].logits);
    const FaultyPass twice = NewPass({});
    ASSERT_EQ(Say(*twice.pass).logits, reference_[0].logits) << "a run is not repeatable";
  }

  uint64_t Count(Place place, IoKind request) const {
    const IoCounters& counters = counters_[static_cast<size_t>(place)];
    return request == IoKind::kRead ? counters.reads : counters.writes;
  }

  // All of few; of many the first two and the last one, and some between, which the seed says: others for
  // each kind of fault.
  static std::set<uint64_t> Requests(uint64_t count, uint64_t seed) {
    constexpr uint64_t kFirst = 2;
    constexpr uint64_t kLast = 1;
    constexpr uint64_t kBetween = 3;
    std::set<uint64_t> chosen;
    std::mt19937_64 random(seed);
    for (uint64_t i = 0; i < count; ++i) {
      if (i < kFirst || i + kLast >= count || random() % count < kBetween) chosen.insert(i);
    }
    return chosen;
  }

  static Faults PlanOf(Place place, const FaultPlan& plan) {
    Faults faults;
    (place == Place::kStore ? faults.store : place == Place::kSpill ? faults.spill : faults.rows) = plan;
    return faults;
  }

  TemporaryFolder folder_;
  LoadedModel loaded_;
  KvSettings settings_;
  Said reference_[2];       // by topic
  IoCounters counters_[3];  // by place
};

INSTANTIATE_TEST_SUITE_P(
    Methods, KvFaults,
    ::testing::Values(
        "kvswap --kv-select 40 --kv-window 6 --kv-sinks 2 --kv-rank 4",
        "kvswap --kv-select 40 --kv-window 6 --kv-sinks 2 --kv-rank 4 --kv-reuse 3",
        "kvswap --kv-select 40 --kv-window 6 --kv-sinks 2 --kv-rank 4 --kv-static 0.5 --kv-static-steps 3",
        "prkv --kv-select 64 --kv-window 6 --kv-group 8 --kv-static-steps 3",
        "prkv --kv-repage on --kv-select 64 --kv-window 6 --kv-group 8 --kv-static-steps 3",
        "dynakv --kv-select 40 --kv-window 6 --kv-sinks 2 --kv-cluster 8 --kv-pending 2",
        // With a policy that counts, a step that is done again counts twice: other records lie in the pool,
        // and sums have another order.
        "dynakv --kv-select 40 --kv-window 6 --kv-sinks 2 --kv-cluster 8 --kv-pending 2 --kv-reuse 3 "
        "--kv-policy lru "
        "--kv-layout cluster",
        "dynakv --kv-select 40 --kv-window 6 --kv-sinks 2 --kv-cluster 8 --kv-pending 2 "
        "--kv-representatives flash",
        "dynakv --kv-layout sequence --kv-select 40 --kv-window 6 --kv-sinks 2 --kv-cluster 8 --kv-pending 2",
        "flexgen --kv-window 6 --kv-group 4", "streaming --kv-window 6 --kv-sinks 2",
        "random --kv-select 40 --kv-window 6 --kv-sinks 2",
        "oracle --kv-select 40 --kv-window 6 --kv-sinks 2",
        "quest --kv-select 40 --kv-window 6 --kv-sinks 2 --kv-group 4",
        "loki --kv-select 40 --kv-window 6 --kv-sinks 2", "arkv --kv-select 40 --kv-window 6"),
    [](const ::testing::TestParamInfo<const char*>& source) {
      const std::string_view options = source.param;
      const bool has_pool = options.find("--kv-reuse") != options.npos;
      const bool has_rows = options.find("--kv-representatives") != options.npos;
      const bool is_in_sequence = options.find("sequence") != options.npos;
      const bool has_statics = options.find("--kv-static ") != options.npos;
      const bool is_repaged = options.find("--kv-repage") != options.npos;
      return std::string(options.substr(0, options.find(' '))) + (has_pool ? "Pool" : "") +
             (has_rows ? "FlashRows" : "") + (is_in_sequence ? "InSequence" : "") +
             (has_statics ? "Static" : "") + (is_repaged ? "Repaged" : "");
    });

// Every kind of fault at every request, or at a sample of them.
TEST_P(KvFaults, OneFaultIsAnErrorOrNothing) {
  ASSERT_NO_FATAL_FAILURE(Reference());
  uint64_t n_runs = 0;
  uint64_t n_errors = 0;
  for (const Place place : Places()) {
    for (const IoKind request : {IoKind::kRead, IoKind::kWrite}) {
      // What is put aside for a prompt is one request for each list; a prompt reads each of a few tiles once.
      EXPECT_GT(Count(place, request), OrDie(FindKvMethod(settings_.kv.method)).evicts() ? 3U : 5U);
      for (const FaultKind kind : kKinds) {
        if (!FaultFits(kind, request)) continue;
        for (const uint64_t index : Requests(Count(place, request), 7 + static_cast<uint64_t>(kind))) {
          const std::string name = fmt::format("{} at {} {} of the {}", FaultKindName(kind),
                                               request == IoKind::kRead ? "read" : "write", index,
                                               kPlaceNames[static_cast<size_t>(place)]);
          const FaultPlan plan{.faults = {{kind, request, index, 1}}, .random_kinds = {}, .seed = index + 1};
          n_errors += Converse(name, PlanOf(place, plan), false) ? 1U : 0U;
          ++n_runs;
          if (HasFailure()) return;
        }
      }
    }
  }
  // A bad read is read again; nobody may read what was badly written.
  EXPECT_GT(n_errors, n_runs / 4);
  EXPECT_LT(n_errors, n_runs);
  RecordProperty("runs", std::to_string(n_runs));
  RecordProperty("errors", std::to_string(n_errors));
}

TEST_P(KvFaults, ADiskThatStaysBadIsAnErrorEachTime) {
  ASSERT_NO_FATAL_FAILURE(Reference());
  for (const Place place : Places()) {
    for (const IoKind request : {IoKind::kRead, IoKind::kWrite}) {
      for (const FaultKind kind : kKinds) {
        if (!FaultFits(kind, request)) continue;
        const uint64_t count = Count(place, request);
        for (const uint64_t index : {uint64_t{0}, count / 2, count - 1}) {
          const std::string name = fmt::format("{} from {} {} on", FaultKindName(kind),
                                               request == IoKind::kRead ? "read" : "write", index);
          const FaultPlan plan{.faults = {{kind, request, index, UINT64_MAX - index}}, .random_kinds = {}};
          Converse(name, PlanOf(place, plan), true);
        }
      }
    }
  }
}

TEST_P(KvFaults, RandomFaultsAreErrorsOrNothing) {
  ASSERT_NO_FATAL_FAILURE(Reference());
  uint64_t n_errors = 0;
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    Faults faults;
    faults.store = {.faults = {}, .probability = 0.02, .random_kinds = {}, .seed = seed};
    faults.spill = {.faults = {}, .probability = 0.01, .random_kinds = {}, .seed = seed + 1000};
    faults.rows = {.faults = {}, .probability = 0.01, .random_kinds = {}, .seed = seed + 2000};
    n_errors += Converse(fmt::format("seed {}", seed), faults, true) ? 1U : 0U;
  }
  EXPECT_GT(n_errors, 0U);
}

}  // namespace
}  // namespace kvrun::testing
