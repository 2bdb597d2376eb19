// What a file with save points holds after anything that may happen to it: processes that are killed at any
// moment, saves that fail, power cuts.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <optional>
#include <vector>

#include "platform/io/seal.h"
#include "runtime/store/sealed_file.h"
#include "tests/storage/power_cut_io.h"
#include "tests/storage/save_point_fixture.h"
#include "tests/support/sanitized.h"
#include "tests/support/seeds.h"

namespace kvrun::testing {
namespace {

constexpr char kHistoryName[] = "s";
constexpr StateKey kSaveNumber{StatePart::kIdentity, 0};
constexpr uint32_t kHistoryUnits = 24;
constexpr uint32_t kHistoryDepth = 4;

// Which version each unit holds; nothing: it is not there.
using Versions = std::vector<std::optional<uint64_t>>;

class SavePointHistory {
 public:
  explicit SavePointHistory(uint64_t seed, const SecretKey* key = nullptr)
      : key_(key), random_(seed), io_(seed ^ 0x10), disk_(seed ^ 0xd15c) {}

  void Run() {
    for (int round = 0; round < 8 && !::testing::Test::HasFailure(); ++round) {
      Live();
      n_deaths_ += io_.is_dead() ? 1 : 0;
      const bool cuts = random_.Below(2) == 0;
      io_.Revive();
      if (cuts) io_.CutPower();
      if (cuts) disk_.CutPower();
    }
  }

  int n_deaths() const { return n_deaths_; }
  int n_saves() const { return n_saves_; }
  int n_failed_saves() const { return n_failed_saves_; }
  int n_under_way() const { return n_under_way_; }

 private:
  // One process, which ends anywhere.
  void Live() {
    if (!Open()) return;
    for (uint32_t n = random_.Below(60); n > 0 && !io_.is_dead() && !::testing::Test::HasFailure(); --n) {
      const uint32_t kind = random_.Below(16);
      if (kind < 7) Write();
      if (kind >= 7 && kind < 11) Read();
      if (kind == 11) Discard();
      if (kind > 11) Save();
    }
    // It ends with requests in flight.
    if (random_.Below(2) == 0) SubmitWrites();
    file_.reset();
    state_.reset();
  }

  bool Open() {
    auto opened = StateFile::Open(kHistoryName, false, &io_);
    const bool is_new = !opened.ok() && opened.status().code() == StatusCode::kNotFound;
    EXPECT_TRUE(opened.ok() || is_new) << opened.status().message();
    EXPECT_TRUE(!is_new || last_committed_ == 0) << "a save was lost";
    if (is_new) opened = StateFile::Create(kHistoryName, &io_);
    if (!opened.ok()) return false;
    state_ = std::move(opened).value();
    auto made = SavePointFile::Create(std::make_unique<PowerCutFile>(disk_, kHistoryDepth),
                                      uint64_t{kHistoryUnits} * kUnitBytes, kUnitBytes);
    EXPECT_TRUE(made.ok());
    kept_ = made->get();
    file_ = std::move(made).value();
    if (key_ != nullptr) {
      auto sealed =
          SealedFile::Create(std::move(file_), *key_,
                             {.size_bytes = uint64_t{kHistoryUnits} * kUnitBytes, .unit_bytes = kUnitBytes});
      EXPECT_TRUE(sealed.ok());
      sealed_ = sealed->get();
      file_ = std::move(sealed).value();
    }
    now_.assign(kHistoryUnits, std::nullopt);
    return is_new || Load();
  }

  bool Load() {
    StateLoader loader(*state_);
    uint64_t number = 0;
    const Status numbered = loader.Value(kSaveNumber, &number);
    const Status loaded = VisitFiles(loader);
    EXPECT_TRUE(numbered.ok()) << numbered.message();
    EXPECT_TRUE(loaded.ok()) << loaded.message();
    EXPECT_GE(number, last_committed_) << "a save was lost";
    EXPECT_EQ(shown_.count(number), 1U);
    if (::testing::Test::HasFailure()) return false;
    n_under_way_ += number > last_committed_ ? 1 : 0;
    last_committed_ = number;
    now_ = shown_[number];
    for (uint32_t unit = 0; unit < kHistoryUnits; ++unit) {
      EXPECT_TRUE(!now_[unit] || UnitHolds(*file_, unit, *now_[unit])) << "unit " << unit << " of " << number;
    }
    return true;
  }

  Status VisitFiles(StateVisitor& visitor) {
    KVRUN_RETURN_IF_ERROR(kept_->VisitState(visitor, 0));
    return sealed_ != nullptr ? sealed_->VisitState(visitor) : Status::Ok();
  }

  struct Range {
    uint32_t first;
    uint32_t n;
  };
  Range AnyRange() {
    const uint32_t first = random_.Below(kHistoryUnits);
    return {first, 1 + random_.Below(std::min(kHistoryUnits - first, 7U))};
  }

  // Requests that do not meet, through segments that are cut anywhere.
  size_t SubmitWrites() {
    memory_.clear();
    segments_.clear();
    std::vector<IoRequest> requests;
    uint32_t first = random_.Below(kHistoryUnits / 2);
    for (uint32_t n = 1 + random_.Below(kHistoryDepth); n > 0 && first < kHistoryUnits; --n) {
      const uint32_t n_units = 1 + random_.Below(std::min(kHistoryUnits - first, 6U));
      const size_t n_bytes = size_t{n_units} * kUnitBytes;
      const AlignedMemory& memory = memory_.emplace_back(n_bytes);
      for (uint32_t i = 0; i < n_units; ++i) {
        now_[first + i] = ++version_;
        FillPattern(memory.span().subspan(size_t{i} * kUnitBytes, kUnitBytes),
                    uint64_t{first + i} * kUnitBytes, version_);
      }
      auto& segments = segments_.emplace_back();
      for (size_t at = 0; at < n_bytes;) {
        const size_t n_blocks = 1 + random_.Below(4);
        segments.push_back(
            {memory.data() + at, std::min(n_bytes - at, n_blocks * PowerCutDisk::kBlockBytes)});
        at += segments.back().iov_len;
      }
      requests.push_back({IoKind::kWrite, uint64_t{first} * kUnitBytes, {}, n});
      first += n_units + random_.Below(4);
    }
    for (size_t i = 0; i < requests.size(); ++i) requests[i].segments = segments_[i];
    EXPECT_EQ(file_->Submit(requests).value(), requests.size());
    return requests.size();
  }

  void Write() {
    std::vector<IoCompletion> completions(SubmitWrites());
    EXPECT_EQ(file_->Complete(completions, completions.size()).value(), completions.size());
    for (const IoCompletion& completion : completions) EXPECT_EQ(completion.error_number, 0);
  }

  void Read() {
    const auto [first, n] = AnyRange();
    const AlignedMemory memory(size_t{n} * kUnitBytes);
    std::memset(memory.span().data(), 0x5a, memory.span().size());
    EXPECT_EQ(DoOne(*file_, IoKind::kRead, uint64_t{first} * kUnitBytes, memory.span()), 0);
    for (uint32_t i = 0; i < n; ++i) {
      const std::span<std::byte> unit = memory.span().subspan(size_t{i} * kUnitBytes, kUnitBytes);
      if (now_[first + i]) {
        EXPECT_TRUE(HoldsPattern(unit, uint64_t{first + i} * kUnitBytes, *now_[first + i]));
      } else {
        EXPECT_TRUE(std::all_of(unit.begin(), unit.end(), [](std::byte b) { return b == std::byte{}; }));
      }
    }
  }

  void Discard() {
    const auto [first, n] = AnyRange();
    file_->Discard(uint64_t{first} * kUnitBytes, uint64_t{n} * kUnitBytes);
    std::fill_n(now_.begin() + first, n, std::nullopt);
  }

  void Save() {
    const uint64_t number = ++n_begun_;
    const uint32_t what = random_.Below(8);
    if (what == 0) io_.DieAt(random_.Below(30));
    // No sync that drops what it was to write: what a later process then finds may go with the power.
    if (what == 1) io_.FailAt(random_.Below(30), random_.Below(2) == 0 ? EIO : ENOSPC, false);
    const Status status = TrySave(number);
    if (status.ok()) {
      kept_->EndSave();
      last_committed_ = number;
      ++n_saves_;
      CheckSpace();
    } else {
      EXPECT_TRUE(io_.is_dead() || io_.has_failed()) << status.message();
      ++n_failed_saves_;
    }
  }

  Status TrySave(uint64_t number) {
    KVRUN_RETURN_IF_ERROR(file_->Sync());
    KVRUN_RETURN_IF_ERROR(state_->BeginSave());
    StateSaver saver(*state_);
    uint64_t saved_number = number;
    KVRUN_RETURN_IF_ERROR(saver.Value(kSaveNumber, &saved_number));
    KVRUN_RETURN_IF_ERROR(VisitFiles(saver));
    shown_[number] = now_;
    if (random_.Below(8) == 0) Write();  // these are no part of it
    return state_->Commit();
  }

  // A place of each unit that is there, and one of each that was written while the save was under way.
  void CheckSpace() {
    const auto n_there = static_cast<uint64_t>(
        std::count_if(now_.begin(), now_.end(), [](const auto& version) { return version.has_value(); }));
    EXPECT_LE(kept_->used_bytes(), (n_there + kHistoryUnits) * kUnitBytes);
    EXPECT_GE(kept_->used_bytes(), n_there * kUnitBytes);
  }

  const SecretKey* key_;
  Random random_;
  PowerCutIo io_;
  PowerCutDisk disk_;
  std::map<uint64_t, Versions> shown_;  // by the number of the save
  uint64_t last_committed_ = 0;
  uint64_t n_begun_ = 0;
  uint64_t version_ = 0;
  Versions now_;
  std::vector<AlignedMemory> memory_;  // of writes in flight
  std::vector<std::vector<iovec>> segments_;
  std::unique_ptr<StateFile> state_;
  std::unique_ptr<BlockFile> file_;
  SavePointFile* kept_ = nullptr;  // it, or what lies below
  SealedFile* sealed_ = nullptr;   // it, where it is encrypted
  int n_deaths_ = 0;
  int n_saves_ = 0;
  int n_failed_saves_ = 0;
  int n_under_way_ = 0;
};

void RunHistories(const SecretKey* key) {
  const Seeds seeds = SeedsHere(kIsSanitized ? 20 : 200);
  int n_deaths = 0;
  int n_saves = 0;
  int n_failed_saves = 0;
  int n_under_way = 0;
  for (uint64_t seed = seeds.first; seed < seeds.end() && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    SavePointHistory history(seed, key);
    history.Run();
    n_deaths += history.n_deaths();
    n_saves += history.n_saves();
    n_failed_saves += history.n_failed_saves();
    n_under_way += history.n_under_way();
  }
  // All of it has happened.
  EXPECT_GT(n_deaths, 0);
  EXPECT_GT(n_saves, 0);
  EXPECT_GT(n_failed_saves, n_deaths);
  EXPECT_GT(n_under_way, 0);
}

TEST(SavePointHistories, EveryUnitOfTheLastSavePointIsThere) { RunHistories(nullptr); }

TEST(SavePointHistories, EveryUnitOfTheLastSavePointIsThereSealed) {
  if (!CheckEncryption().ok()) GTEST_SKIP() << CheckEncryption().message();
  const SecretKey key = SecretKey::Random().value();
  RunHistories(&key);
}

// The same units written again after each save point: a shadow for each, however often.
TEST(SavePointHistories, ShadowsDoNotBecomeMore) {
  PowerCutIo io(1);
  PowerCutDisk disk(2);
  Random random(3);
  const auto state = StateFile::Create(kHistoryName, &io).value();
  const auto file = SavePointFile::Create(std::make_unique<PowerCutFile>(disk, kHistoryDepth),
                                          uint64_t{kHistoryUnits} * kUnitBytes, kUnitBytes)
                        .value();
  for (uint64_t version = 1; version < 100; ++version) {
    for (uint32_t n = 0; n < 20; ++n) ASSERT_EQ(WriteUnit(*file, random.Below(kHistoryUnits), version), 0);
    ASSERT_TRUE(SaveTo(*file, *state).ok());
    ASSERT_LE(disk.bytes().size(), 2 * uint64_t{kHistoryUnits} * kUnitBytes);
    ASSERT_LE(file->used_bytes(), uint64_t{kHistoryUnits} * kUnitBytes);
  }
}

}  // namespace
}  // namespace kvrun::testing
