// All stores over a disk that fails: whatever happens, what is read is right, or there is an error that says
// what is wrong, and the store goes on. Every read and every write of a conversation is made to fail in every
// way, one after another; then at random.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "platform/io/faulty_block_file.h"
#include "tests/storage/faulted_stores.h"
#include "tests/storage/newest_first_file.h"
#include "tests/support/or_die.h"

namespace kvrun::testing {
namespace {

// What a caller knows of the units, and what the store told it.
class CheckedStore {
 public:
  static constexpr uint32_t kLayers = FaultedStore::kLayers;
  static constexpr uint32_t kStreams = FaultedStore::kStreams;
  static constexpr uint32_t kUnits = FaultedStore::kUnits;

  CheckedStore(std::unique_ptr<FaultedStore> store, const StoreTraits& traits)
      : traits_(traits), store_(std::move(store)) {}

  void Write(const Unit& first, uint32_t n) {
    const uint32_t n_at_once = traits_.writes_runs ? n : 1;
    for (uint32_t i = 0; i < n; i += n_at_once) {
      const Unit unit{first.layer, first.stream, first.index + i};
      ++version_;
      const Status status = store_->Write(unit, n_at_once, version_);
      for (uint32_t u = 0; u < n_at_once; ++u) {
        newest_[{unit.layer, unit.stream, unit.index + u}] = status.ok() ? version_ : kGone;
      }
      Note(status);
    }
  }

  void Forget(const Unit& unit) {
    if (!traits_.forgets) return;
    store_->Forget(unit);
    newest_[unit] = kGone;
    for (auto& [other, version] : newest_) {
      if (traits_.forgets_those_after && other.stream == unit.stream && other.index >= unit.index) {
        version = kGone;
      }
    }
  }

  void Flush() { Note(store_->Flush()); }
  void Announce(uint32_t layer) { Note(store_->Announce(layer)); }

  // Ascending, of one layer.
  void Read(const std::vector<Unit>& units) {
    std::vector<WantedUnit> wanted;
    bool are_there = true;
    for (const Unit& unit : units) {
      const uint64_t version = newest_[unit];
      if (version == kGone && !traits_.says_what_is_gone) continue;
      are_there &= version != kGone;
      wanted.push_back({unit, version});
    }
    if (wanted.empty()) return;
    const Status status = store_->Read(wanted);
    Note(status);
    if (!status.ok()) return;
    EXPECT_TRUE(are_there) << "a unit that is not there was handed out";
    ++n_good_reads_;
  }

  // A prompt, some tokens, what is said is taken back and others come in its place. Each unit is read before
  // it is replaced or forgotten: what has failed is seen.
  void RunConversation() {
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      Write({layer, 0, 0}, 4);
      Write({layer, 1, 2}, 3);
      Read({{layer, 0, 0}, {layer, 0, 1}, {layer, 0, 2}, {layer, 0, 3}, {layer, 1, 2}});
      Read({{layer, 1, 3}, {layer, 1, 4}});
    }
    Write({0, 0, 4}, 1);
    Read({{0, 0, 3}, {0, 0, 4}});
    Forget({0, 0, 2});
    Announce(1);
    Write({0, 0, 2}, 2);
    Read({{1, 0, 0}, {1, 0, 1}});
    Read({{0, 0, 0}, {0, 0, 1}, {0, 0, 2}, {0, 0, 3}});
    Write({1, 0, 2}, 2);
    Write({1, 1, 2}, 1);
    Read({{1, 1, 2}, {1, 1, 3}, {1, 1, 4}});
    Write({1, 1, 3}, 1);
    Flush();
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      Read({{layer, 0, 1}, {layer, 0, 2}, {layer, 0, 3}, {layer, 1, 2}});
      Read({{layer, 0, 0}, {layer, 1, 3}, {layer, 1, 4}});
    }
  }
  static constexpr uint64_t kConversationReads = 12;

  // After faults that are over: all is written anew, and right.
  void ExpectGoesOn() {
    Flush();  // an error that was not told yet
    const size_t n_errors = errors_.size();
    const uint64_t n_good = n_good_reads_;
    for (const auto& [unit, version] : std::map(newest_)) Forget(unit);
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      for (uint32_t stream = 0; stream < kStreams; ++stream) Write({layer, stream, 0}, kUnits);
    }
    Flush();
    for (uint32_t layer = 0; layer < kLayers; ++layer) ReadFrom({layer, 0, 0}, 1);
    EXPECT_EQ(errors_.size(), n_errors);
    EXPECT_EQ(n_good_reads_, n_good + kLayers);
  }

  // Units of the layer from this one on.
  void ReadFrom(Unit unit, uint32_t step) {
    std::vector<Unit> units;
    for (; unit.stream < kStreams; ++unit.stream, unit.index %= kUnits) {
      for (; unit.index < kUnits; unit.index += step) units.push_back(unit);
    }
    Read(units);
  }

  // The same for all errors but the back end's.
  void ExpectClearErrors() const {
    for (const Status& status : errors_) {
      EXPECT_TRUE(status.code() == StatusCode::kIo || status.code() == StatusCode::kCorrupt)
          << status.message();
      EXPECT_EQ(status.message().find('\n'), std::string::npos) << status.message();
      for (const std::string& word : traits_.words) {
        EXPECT_NE(status.message().find(word), std::string::npos) << status.message();
      }
    }
  }

  const std::vector<Status>& errors() const { return errors_; }
  uint64_t n_good_reads() const { return n_good_reads_; }

 private:
  static constexpr uint64_t kGone = 0;

  void Note(const Status& status) {
    if (!status.ok()) errors_.push_back(status);
  }

  StoreTraits traits_;
  std::map<Unit, uint64_t> newest_;  // version; kGone
  uint64_t version_ = kGone;
  std::vector<Status> errors_;
  uint64_t n_good_reads_ = 0;
  std::unique_ptr<FaultedStore> store_;
};

struct Outcome {
  std::vector<Status> errors;
  uint64_t n_faults = 0;
  IoCounters counters;
};

bool IsTold(FaultKind kind) {
  return kind == FaultKind::kIoError || kind == FaultKind::kNoSpace || kind == FaultKind::kShortRead;
}

FaultPlan OnlyFault(FaultKind kind, IoKind request, uint64_t index, uint64_t count = 1) {
  FaultPlan plan;
  plan.faults = {{kind, request, index, count}};
  plan.seed = index + 1;
  return plan;
}

constexpr uint64_t kGoesOnEvery =
    4;  // fault: to write and to read all anew takes as long as the conversation

class StoreFaults : public ::testing::TestWithParam<StoreCase> {
 protected:
  void SetUp() override {
    if (NewFile() == nullptr) GTEST_SKIP() << fixture_.reason;
    const Outcome healthy = Talk({}, false);
    ASSERT_TRUE(healthy.errors.empty()) << healthy.errors[0].message();
    healthy_ = healthy.counters;
  }

  const StoreTraits& traits() const { return GetParam().traits; }
  std::unique_ptr<BlockFile> NewFile() { return fixture_.MakeFile(GetParam().backend, GetParam().direct, 4); }
  std::unique_ptr<FaultedStore> NewStore(std::unique_ptr<BlockFile> file) {
    return OrDie(GetParam().make(AlignedFile(std::move(file), GetParam().alignment_bytes)));
  }
  CheckedStore NewChecked(const FaultPlan& plan, FaultyBlockFile** faulty) {
    auto file = std::make_unique<FaultyBlockFile>(NewFile(), plan);
    *faulty = file.get();
    return {NewStore(std::move(file)), traits()};
  }

  // The conversation. `goes_on`: the faults end with it, and the store works as if there had been none.
  Outcome Talk(const FaultPlan& plan, bool goes_on) {
    FaultyBlockFile* faulty = nullptr;
    CheckedStore store = NewChecked(plan, &faulty);
    store.RunConversation();
    Outcome outcome{store.errors(), faulty->n_faults(), faulty->counters()};
    if (outcome.errors.empty()) {
      EXPECT_EQ(store.n_good_reads(), CheckedStore::kConversationReads);
    }
    if (goes_on && outcome.n_faults > 0) store.ExpectGoesOn();
    store.ExpectClearErrors();
    return outcome;
  }

  // Where the last unit of a layer is written and read alone: the first error.
  Status Alone(const FaultPlan& plan) {
    FaultyBlockFile* faulty = nullptr;
    CheckedStore store = NewChecked(plan, &faulty);
    store.Write({1, 1, 2}, 1);
    store.Flush();
    store.Read({{1, 1, 2}});
    store.ExpectClearErrors();
    return store.errors().empty() ? Status::Ok() : store.errors()[0];
  }

  StoreFixture fixture_;
  IoCounters healthy_;
};

// Until a conversation passes without a fault.
TEST_P(StoreFaults, EveryReadInEveryWay) {
  uint64_t n_flips_found = 0;
  for (const FaultKind kind : {FaultKind::kIoError, FaultKind::kShortRead, FaultKind::kBitFlip,
                               FaultKind::kMisdirected, FaultKind::kStaleData}) {
    uint64_t index = 0;
    for (;; ++index) {
      SCOPED_TRACE(fmt::format("{} at read {}", FaultKindName(kind), index));
      const Outcome outcome = Talk(OnlyFault(kind, IoKind::kRead, index), index % kGoesOnEvery == 0);
      if (outcome.n_faults == 0) break;
      EXPECT_EQ(outcome.n_faults, 1U);
      const bool is_error = IsTold(kind) && !traits().reads_again_after_error;
      EXPECT_EQ(outcome.errors.size(), is_error ? 1U : 0U);
      for (const Status& error : outcome.errors) EXPECT_EQ(error.code(), StatusCode::kIo);
      if (is_error) continue;
      // Read once more, and then right. (A flip in the padding harms nobody.)
      if (kind == FaultKind::kBitFlip) {
        n_flips_found += outcome.counters.reads - healthy_.reads;
      } else {
        EXPECT_GT(outcome.counters.reads, healthy_.reads);
      }
    }
    EXPECT_EQ(index, healthy_.reads);
  }
  EXPECT_GE(n_flips_found, 1U);
}

// All reads from one on: the second look does not help.
TEST_P(StoreFaults, EveryReadFromOneOn) {
  for (uint64_t index = 0; index < healthy_.reads; index += 2) {
    for (const FaultKind kind :
         {FaultKind::kIoError, FaultKind::kShortRead, FaultKind::kMisdirected, FaultKind::kStaleData}) {
      SCOPED_TRACE(fmt::format("{} from read {} on", FaultKindName(kind), index));
      const Outcome outcome = Talk(OnlyFault(kind, IoKind::kRead, index, UINT64_MAX), false);
      ASSERT_FALSE(outcome.errors.empty());
      EXPECT_EQ(outcome.errors[0].code(), IsTold(kind) ? StatusCode::kIo : StatusCode::kCorrupt);
    }
  }
}

TEST_P(StoreFaults, EveryWriteInEveryWay) {
  uint64_t n_flips_found = 0;
  for (const FaultKind kind : {FaultKind::kIoError, FaultKind::kNoSpace, FaultKind::kBitFlip,
                               FaultKind::kMisdirected, FaultKind::kLostWrite, FaultKind::kTornWrite}) {
    uint64_t index = 0;
    for (;; ++index) {
      SCOPED_TRACE(fmt::format("{} at write {}", FaultKindName(kind), index));
      const Outcome outcome = Talk(OnlyFault(kind, IoKind::kWrite, index), index % kGoesOnEvery == 0);
      if (outcome.n_faults == 0) break;
      EXPECT_EQ(outcome.n_faults, 1U);
      if (kind == FaultKind::kBitFlip) {
        n_flips_found += outcome.errors.empty() ? 0 : 1;
      } else {
        EXPECT_FALSE(outcome.errors.empty());
      }
      for (const Status& error : outcome.errors) {
        EXPECT_EQ(error.code(), IsTold(kind) ? StatusCode::kIo : StatusCode::kCorrupt) << error.message();
      }
    }
    EXPECT_EQ(index, healthy_.writes);
  }
  EXPECT_GE(n_flips_found, 1U);
}

TEST_P(StoreFaults, APowerCutAnywhere) {
  for (uint64_t index = 0; index < healthy_.writes; ++index) {
    SCOPED_TRACE(fmt::format("from write {} on", index));
    const Outcome outcome = Talk(OnlyFault(FaultKind::kLostWrite, IoKind::kWrite, index, UINT64_MAX), false);
    ASSERT_FALSE(outcome.errors.empty());
    EXPECT_EQ(outcome.errors[0].code(), StatusCode::kCorrupt) << outcome.errors[0].message();
  }
}

TEST_P(StoreFaults, AFullDiskAnywhere) {
  for (uint64_t n = 0; n < 10; ++n) {
    SCOPED_TRACE(fmt::format("full after {} tenths", n));
    FaultPlan plan;
    plan.capacity_bytes = healthy_.written_bytes * n / 10;
    const Outcome outcome = Talk(plan, false);
    ASSERT_FALSE(outcome.errors.empty());
    EXPECT_NE(outcome.errors[0].message().find("No space left"), std::string::npos)
        << outcome.errors[0].message();
  }
}

// What is wrong, with what, and where that lies.
TEST_P(StoreFaults, ErrorsNameFileAndPlace) {
  EXPECT_TRUE(Alone({}).ok());
  const Status unread = Alone(OnlyFault(FaultKind::kIoError, IoKind::kRead, 0, UINT64_MAX));
  EXPECT_EQ(unread.code(), StatusCode::kIo);
  EXPECT_TRUE(unread.message().starts_with(traits().read_alone)) << unread.message();
  EXPECT_TRUE(unread.message().ends_with(": Input/output error")) << unread.message();
  const Status changed = Alone(OnlyFault(FaultKind::kMisdirected, IoKind::kRead, 0, UINT64_MAX));
  EXPECT_EQ(changed.code(), StatusCode::kCorrupt);
  EXPECT_EQ(changed.message(), fmt::format("{} came back changed from flash, twice: the {} has to be "
                                           "computed again",
                                           traits().changed_alone, traits().whole));
  const Status unwritten = Alone(OnlyFault(FaultKind::kIoError, IoKind::kWrite, 0));
  EXPECT_EQ(unwritten.code(), StatusCode::kIo);
  EXPECT_TRUE(unwritten.message().starts_with(traits().written_alone)) << unwritten.message();
  EXPECT_TRUE(unwritten.message().ends_with(": Input/output error")) << unwritten.message();
}

TEST_P(StoreFaults, AFailedWriteIsToldAndCountsAsNotWritten) {
  FaultyBlockFile* faulty = nullptr;
  CheckedStore store = NewChecked(OnlyFault(FaultKind::kIoError, IoKind::kWrite, 1), &faulty);
  const Unit good{0, 0, 2};
  const Unit bad{0, 0, 3};
  store.Write(good, 1);
  store.Flush();
  store.Write(bad, 1);
  store.Flush();
  ASSERT_EQ(faulty->n_faults(), 1U);
  const size_t n_told = traits().reading_says_what_was_not_written ? 0 : 1;
  EXPECT_EQ(store.errors().size(), n_told);
  store.Flush();
  EXPECT_EQ(store.errors().size(), n_told) << "told twice";
  store.Read({good});
  EXPECT_EQ(store.n_good_reads(), 1U);
  const uint64_t n_reads = faulty->counters().reads;
  store.Read({bad});
  EXPECT_EQ(store.n_good_reads(), 1U);
  if (traits().reads_together) {
    EXPECT_EQ(faulty->counters().reads, n_reads);  // what is not there is not read
  }
  store.ExpectClearErrors();
  const size_t n_errors = store.errors().size();
  EXPECT_EQ(n_errors, n_told + (traits().says_what_is_gone || n_told == 0 ? 1 : 0));
  store.Write(bad, 1);
  store.Flush();
  store.Read({good, bad});
  EXPECT_EQ(store.errors().size(), n_errors);
  EXPECT_EQ(store.n_good_reads(), 2U);
}

// The caller may free its memory after an error: no read may still be under way.
TEST_P(StoreFaults, AReadThatFailsLeavesNoneBehind) {
  FaultPlan plan;
  plan.faults = {{FaultKind::kIoError, IoKind::kRead, 0, UINT64_MAX}};
  auto faulty = std::make_unique<FaultyBlockFile>(NewFile(), plan);
  const FaultyBlockFile& disk = *faulty;
  auto file = std::make_unique<NewestFirstFile>(std::move(faulty));
  const NewestFirstFile& held = *file;
  CheckedStore store(NewStore(std::move(file)), traits());
  for (uint32_t stream = 0; stream < CheckedStore::kStreams; ++stream) {
    store.Write({0, stream, 0}, CheckedStore::kUnits);
  }
  store.Flush();
  ASSERT_TRUE(store.errors().empty());
  store.ReadFrom({0, 0, 0}, 2);  // none beside the other
  EXPECT_EQ(store.errors().size(), 1U);
  EXPECT_EQ(held.n_held(), 0U);
  if (traits().reads_together) {
    EXPECT_EQ(disk.counters().reads, disk.mode().queue_depth);  // none was started after the error
  }
}

// A file that has no room, or whose back end fails from some call on.
class BrokenFile final : public WrappingFile {
 public:
  static constexpr uint64_t kNever = UINT64_MAX;

  BrokenFile(std::unique_ptr<BlockFile> file, bool is_full, uint64_t n_good_calls)
      : WrappingFile(std::move(file)), is_full_(is_full), n_good_calls_(n_good_calls) {}

  Result<size_t> Submit(std::span<const IoRequest> requests) override {
    KVRUN_RETURN_IF_ERROR(Call());
    KVRUN_ASSIGN_OR_RETURN(const size_t n, file_->Submit(requests));
    n_in_flight_ += n;
    return n;
  }
  Result<size_t> Complete(std::span<IoCompletion> completions, size_t at_least) override {
    KVRUN_RETURN_IF_ERROR(Call());
    KVRUN_ASSIGN_OR_RETURN(const size_t n, file_->Complete(completions, at_least));
    n_in_flight_ -= n;
    return n;
  }
  Status Reserve(uint64_t size_bytes) override {
    if (is_full_) return {StatusCode::kIo, "no room"};
    return file_->Reserve(size_bytes);
  }

  uint64_t n_calls() const { return n_calls_; }

 private:
  Status Call() {
    if (n_calls_++ < n_good_calls_) return Status::Ok();
    // What was in flight ends here, as nobody waits for it: its memory may be gone with the error.
    for (IoCompletion done; n_in_flight_ > 0; --n_in_flight_) OrDie(file_->Complete({&done, 1}, 1));
    return {StatusCode::kIo, "the back end is broken"};
  }

  bool is_full_;
  uint64_t n_good_calls_;
  uint64_t n_calls_ = 0;
  size_t n_in_flight_ = 0;
};

TEST_P(StoreFaults, ADiskThatIsFullIsSeenAtOnce) {
  const auto made = GetParam().make(std::make_unique<BrokenFile>(NewFile(), true, BrokenFile::kNever));
  ASSERT_FALSE(made.ok());
  EXPECT_TRUE(made.status().message().ends_with("no room")) << made.status().message();
}

// The file is of no use any more: all that is asked from then on is that error.
TEST_P(StoreFaults, ABackEndThatFails) {
  uint64_t n_good_calls = 0;
  for (;; n_good_calls += 1 + n_good_calls / 20) {
    SCOPED_TRACE(n_good_calls);
    auto file = std::make_unique<BrokenFile>(NewFile(), false, n_good_calls);
    const BrokenFile& broken = *file;
    CheckedStore store(NewStore(std::move(file)), traits());
    store.RunConversation();
    if (broken.n_calls() <= n_good_calls) {
      EXPECT_TRUE(store.errors().empty());
      break;
    }
    ASSERT_FALSE(store.errors().empty());
    for (const Status& error : store.errors()) EXPECT_EQ(error.message(), "the back end is broken");
  }
  EXPECT_GT(n_good_calls, healthy_.reads + healthy_.writes);
}

TEST_P(StoreFaults, AtRandom) {
  uint64_t n_faults = 0;
  uint64_t n_good = 0;
  for (uint64_t seed = 1; seed <= 25; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    FaultPlan plan;
    plan.seed = seed;
    plan.probability = seed % 2 == 0 ? 0.02 : 0.1;
    FaultyBlockFile* faulty = nullptr;
    CheckedStore store = NewChecked(plan, &faulty);
    std::mt19937_64 random(seed);
    const auto below = [&](uint64_t n) { return static_cast<uint32_t>(random() % n); };
    for (int step = 0; step < 120; ++step) {
      const Unit unit{below(CheckedStore::kLayers), below(CheckedStore::kStreams),
                      below(CheckedStore::kUnits)};
      switch (below(8)) {
        case 0: store.Forget(unit); break;
        case 1: store.Flush(); break;
        case 2:
        case 3:
        case 4: store.Write(unit, 1 + below(CheckedStore::kUnits - unit.index)); break;
        default: store.ReadFrom(unit, 1 + below(2));
      }
    }
    store.ExpectClearErrors();
    n_faults += faulty->n_faults();
    n_good += store.n_good_reads();
  }
  EXPECT_GT(n_faults, 25U);
  EXPECT_GT(n_good, 100U);
}

INSTANTIATE_TEST_SUITE_P(All, StoreFaults, ::testing::ValuesIn(StoreCases()),
                         [](const ::testing::TestParamInfo<StoreCase>& test) { return test.param.name; });

}  // namespace
}  // namespace kvrun::testing
