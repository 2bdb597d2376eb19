// What a state file holds after calls that fail, a process that is killed, and a power cut.
#include <cerrno>
#include <fstream>
#include <optional>
#include <vector>

#include "platform/io/seal.h"
#include "runtime/store/state_folder.h"
#include "runtime/store/state_format.h"
#include "tests/storage/power_cut_io.h"
#include "tests/storage/state_file_fixture.h"
#include "tests/support/or_die.h"
#include "tests/support/program_runner.h"
#include "tests/support/sanitized.h"
#include "tests/support/seeds.h"

namespace kvrun::testing {
namespace {

constexpr char kStateName[] = "s";

// What may be found: the last save that was answered, or one after it that was not.
struct ExpectedState {
  std::optional<StateModel> committed;
  std::vector<StateModel> under_way;

  bool MayBe(const StateModel& found) const {
    return committed == found || std::find(under_way.begin(), under_way.end(), found) != under_way.end();
  }
};

class StateHistory {
 public:
  explicit StateHistory(uint64_t seed, const SecretKey* key = nullptr)
      : key_(key), random_(seed), io_(seed ^ 0x5eed) {}

  void Run() {
    for (int round = 0; round < 12 && !::testing::Test::HasFailure(); ++round) {
      const bool dies = random_.Below(2) == 0;
      const bool fails = !dies && random_.Below(2) == 0;
      if (dies && random_.Below(3) == 0) io_.DieAt(random_.Below(60));
      if (fails) io_.FailAt(random_.Below(60), random_.Below(2) == 0 ? EIO : ENOSPC, false);
      Live(dies, fails);
      if (!io_.is_dead() && !io_.has_failed()) CheckNames();
      n_deaths_ += io_.is_dead() ? 1 : 0;
      const bool cuts = random_.Below(2) == 0;
      io_.Revive();
      if (cuts) io_.CutPower();
      CheckFile();
    }
  }

  int n_deaths() const { return n_deaths_; }
  int n_under_way() const { return n_under_way_; }

 private:
  // One process.
  void Live(bool dies, bool fails) {
    const bool creates = !expected_.committed || random_.Below(8) == 0;
    auto file =
        creates ? StateFile::Create(kStateName, &io_, key_) : StateFile::Open(kStateName, false, &io_, key_);
    if (!file.ok()) {
      ASSERT_TRUE(io_.is_dead() || io_.has_failed()) << file.status().message();
      return;
    }
    StateModel held;
    if (!creates) {
      const Result<StateModel> loaded = LoadState(**file);
      if (!loaded.ok()) {
        ASSERT_TRUE(io_.is_dead() || io_.has_failed()) << loaded.status().message();
        return;
      }
      // A last header that cannot be read is none.
      const bool may_be_before = io_.has_failed() || io_.is_dead();
      ASSERT_TRUE(*loaded == *expected_.committed || (may_be_before && IsPast(*loaded)));
      held = *loaded;
    }
    if (fails && !io_.has_failed()) io_.FailAt(random_.Below(40), EIO, true);
    for (uint32_t n_saves = 1 + random_.Below(4); n_saves > 0 && !io_.is_dead(); --n_saves) {
      StateModel next = Changed(held, random_);
      const Status status = Save(**file, next, dies);
      if (status.ok()) {
        held = next;
        if (expected_.committed) past_.push_back(std::move(*expected_.committed));
        expected_ = {std::move(next), {}};
      } else {
        ASSERT_TRUE(io_.is_dead() || io_.has_failed()) << status.message();
        expected_.under_way.push_back(std::move(next));
      }
      const bool has_failed = io_.has_failed() && !io_.is_dead();
      ASSERT_TRUE(!has_failed || Holds(**file, held));
    }
  }

  // The last calls are where it matters: a death may come among them.
  Status Save(StateFile& file, const StateModel& next, bool dies) {
    KVRUN_RETURN_IF_ERROR(file.BeginSave());
    for (const auto& [key, bytes] : next) KVRUN_RETURN_IF_ERROR(file.Put(key, bytes));
    if (dies && !io_.will_die() && random_.Below(2) == 0) io_.DieAt(random_.Below(8));
    return file.Commit();
  }

  bool IsPast(const StateModel& model) const {
    return std::find(past_.begin(), past_.end(), model) != past_.end();
  }

  void CheckNames() {
    for (const std::string& name : io_.Names()) EXPECT_EQ(name, kStateName);
  }

  void CheckFile() {
    const auto file = StateFile::Open(kStateName, false, &io_, key_);
    if (!file.ok() && file.status().code() == StatusCode::kNotFound && !expected_.committed) {
      expected_ = {};
      return;
    }
    ASSERT_TRUE(file.ok()) << file.status().message();
    Result<StateModel> found = LoadState(**file);
    ASSERT_TRUE(found.ok()) << found.status().message();
    ASSERT_TRUE(expected_.MayBe(*found));
    if (expected_.committed != *found) {
      ++n_under_way_;
      if (expected_.committed) past_.push_back(std::move(*expected_.committed));
    }
    CheckNames();
    expected_ = {std::move(*found), {}};
  }

  const SecretKey* key_;
  Random random_;
  PowerCutIo io_;
  ExpectedState expected_;
  std::vector<StateModel> past_;  // saves before
  int n_deaths_ = 0;
  int n_under_way_ = 0;
};

void RunStateHistories(const SecretKey* key) {
  const Seeds seeds = SeedsHere(kIsSanitized ? 20 : 400);
  int n_deaths = 0;
  int n_under_way = 0;
  for (uint64_t seed = seeds.first; seed < seeds.end() && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    StateHistory history(seed, key);
    history.Run();
    n_deaths += history.n_deaths();
    n_under_way += history.n_under_way();
  }
  if (seeds.n < 400) return;
  EXPECT_GT(n_deaths, 1000);
  EXPECT_GT(n_under_way, 20) << "of " << n_deaths << " deaths, as many came so late that a save was whole";
}

TEST(StateFileFaults, APowerCutLeavesTheLastSaveOrOneThatWasUnderWay) { RunStateHistories(nullptr); }

TEST(StateFileFaults, APowerCutLeavesTheLastSaveOrOneThatWasUnderWaySealed) {
  if (!CheckEncryption().ok()) GTEST_SKIP() << CheckEncryption().message();
  const SecretKey key = OrDie(SecretKey::Random());
  RunStateHistories(&key);
}

// The system, of which one call fails, or every other one is interrupted or short.
class FaultyStateIo : public StateFileIo {
 public:
  int64_t fails_at = INT64_MAX;
  int error_number = EIO;
  bool is_short = false;
  bool makes_no_file = false;
  int64_t n_calls = 0;

  int Open(int folder, const char* name, int flags, mode_t mode) override {
    const bool is_new = (flags & O_CREAT) != 0;
    return Fails() || (is_new && makes_no_file) ? -1 : StateFileIo::Open(folder, name, flags, mode);
  }
  int Stat(int fd, struct stat* facts) override { return Fails() ? -1 : StateFileIo::Stat(fd, facts); }
  int StatName(int folder, const char* name, struct stat* facts) override {
    return Fails() ? -1 : StateFileIo::StatName(folder, name, facts);
  }
  ssize_t ReadAt(int fd, void* to, size_t n_bytes, off_t offset_bytes) override {
    return Fails() ? -1 : StateFileIo::ReadAt(fd, to, Part(n_bytes), offset_bytes);
  }
  ssize_t WriteAt(int fd, const void* from, size_t n_bytes, off_t offset_bytes) override {
    return Fails() ? -1 : StateFileIo::WriteAt(fd, from, Part(n_bytes), offset_bytes);
  }
  int Truncate(int fd, off_t size_bytes) override {
    return Fails() ? -1 : StateFileIo::Truncate(fd, size_bytes);
  }
  int SyncData(int fd) override { return Fails() ? -1 : StateFileIo::SyncData(fd); }
  int Sync(int fd) override { return Fails() ? -1 : StateFileIo::Sync(fd); }
  int Lock(int fd) override { return Fails() ? -1 : StateFileIo::Lock(fd); }
  int Rename(int folder, const char* from, const char* to) override {
    return Fails() ? -1 : StateFileIo::Rename(folder, from, to);
  }
  int Remove(int folder, const char* name) override {
    return Fails() ? -1 : StateFileIo::Remove(folder, name);
  }

 private:
  size_t Part(size_t n_bytes) const { return is_short ? std::max<size_t>(1, n_bytes / 3) : n_bytes; }
  bool Fails() {
    const int64_t call = n_calls++;
    errno = error_number;
    return call == fails_at || (is_short && call % 2 == 0);
  }
};

// A whole file, a segment, one that begins with a tail of a save that did not end.
void EveryCallFails(int error_number, const SecretKey* key = nullptr) {
  const StateModel first = {{KeyOf(1), StatePattern(100'000, 1)}, {KeyOf(2), StatePattern(10, 1)}};
  const StateModel second = {{KeyOf(1), StatePattern(100'001, 1)}, {KeyOf(3), StatePattern(70'000, 2)}};
  const StateModel third = {{KeyOf(1), {}}, {KeyOf(4), StatePattern(kStateChunkBytes, 3)}};
  bool is_through = false;
  int n_errors = 0;
  for (int64_t n = 0; !is_through; ++n) {
    SCOPED_TRACE(n);
    const TemporaryFolder folder;
    const std::string path = folder.Path("s");
    FaultyStateIo io;
    io.error_number = error_number;
    io.fails_at = n;
    StateModel held;
    std::unique_ptr<StateFile> file;
    for (const StateModel* next : {&first, &second, &third}) {
      if (file == nullptr) {
        auto opened =
            held.empty() ? StateFile::Create(path, &io, key) : StateFile::Open(path, false, &io, key);
        if (!opened.ok()) {
          // A table behind a header that is valid was readable once.
          EXPECT_TRUE(opened.status().code() == StatusCode::kIo ||
                      opened.status().message().find("a table of it cannot be read") != std::string::npos)
              << opened.status().message();
          EXPECT_NE(opened.status().message().find(path), std::string::npos) << opened.status().message();
          ++n_errors;
          opened = held.empty() ? StateFile::Create(path, &io, key) : StateFile::Open(path, false, &io, key);
        }
        const bool has_failed = io.n_calls > n;
        file = OrDie(std::move(opened));
        // A last header that cannot be read is none.
        if (next == &third && has_failed && Holds(*file, first)) held = first;
      }
      ASSERT_TRUE(Holds(*file, held) || Holds(*file, held));  // a read may be what fails
      const Status status = SaveState(*file, *next);
      if (!status.ok()) {
        ++n_errors;
        EXPECT_EQ(status.code(), StatusCode::kIo) << status.message();
        EXPECT_NE(status.message().find(path), std::string::npos) << status.message();
        EXPECT_TRUE(Holds(*file, held));
        EXPECT_FALSE(file->Commit().ok());
        const Status again = SaveState(*file, *next);
        EXPECT_TRUE(again.ok()) << again.message();
      }
      held = *next;
      EXPECT_TRUE(Holds(*OrDie(StateFile::Open(path, true, nullptr, key)), held));
      if (next == &second) file.reset();
    }
    is_through = io.n_calls < n;
    EXPECT_TRUE(Holds(*file, held) || Holds(*file, held));
    file.reset();
    EXPECT_TRUE(Holds(*OrDie(StateFile::Open(path, true, nullptr, key)), held));
    EXPECT_NE(::access(StateFileBeside(path).c_str(), F_OK), 0);
  }
  EXPECT_GT(n_errors, 20);
}

TEST(StateFileFaults, EveryCallMayFail) { EveryCallFails(EIO); }
TEST(StateFileFaults, EveryCallMayFailSealed) {
  if (!CheckEncryption().ok()) GTEST_SKIP() << CheckEncryption().message();
  const SecretKey key = OrDie(SecretKey::Random());
  EveryCallFails(EIO, &key);
}
TEST(StateFileFaults, TheDiskMayBeFullAtEveryCall) { EveryCallFails(ENOSPC); }

TEST(StateFileFaults, CallsMayBeShortOrInterrupted) {
  const TemporaryFolder folder;
  FaultyStateIo io;
  io.is_short = true;
  io.error_number = EINTR;
  const StateModel model = {{KeyOf(1), StatePattern(200'000, 1)}, {KeyOf(2), StatePattern(10, 1)}};
  const StateModel other = {{KeyOf(1), StatePattern(100'000, 2)}};
  const auto file = OrDie(StateFile::Create(folder.Path("s"), &io));
  for (const StateModel* next : {&model, &other}) {
    const Status status = SaveState(*file, *next);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE(Holds(*file, *next));
    EXPECT_TRUE(Holds(*OrDie(StateFile::Open(folder.Path("s"), true, &io)), *next));
  }
}

// Where there is no space for two files, only the save that tries it fails, and the next go on with segments.
TEST(StateFileFaults, AFileThatCannotBeWrittenAnewGoesOn) {
  const TemporaryFolder folder;
  FaultyStateIo io;
  io.error_number = ENOSPC;
  const auto file = OrDie(StateFile::Create(folder.Path("s"), &io));
  const auto model_of = [](uint64_t version) {
    return StateModel{{KeyOf(1), StatePattern(24 * kStateChunkBytes, version)}};
  };
  RunOrDie(SaveState(*file, model_of(0)));
  io.makes_no_file = true;
  int n_failed = 0;
  for (uint64_t save = 1; save <= 12; ++save) {
    const Status status = SaveState(*file, model_of(save));
    n_failed += status.ok() ? 0 : 1;
    EXPECT_TRUE(status.ok() || status.message().find("free space there") != std::string::npos);
    EXPECT_TRUE(Holds(*file, model_of(status.ok() ? save : save - 1)));
  }
  EXPECT_EQ(n_failed, 2) << "one at a size, one at twice that";
  const uint64_t size_bytes = file->file_bytes();
  io.makes_no_file = false;
  for (uint64_t save = 20; save < 40; ++save) RunOrDie(SaveState(*file, model_of(save)));
  EXPECT_LT(file->file_bytes(), size_bytes);
}

// After an error at a header's sync the header may be on the disk: nothing is built on it. It is cut off, so
// there need be no space for another file.
TEST(StateFileFaults, AHeaderThatIsNotCertainIsCutOff) {
  class FullIo : public PowerCutIo {
   public:
    using PowerCutIo::PowerCutIo;
    bool is_full = false;
    int Open(int folder, const char* name, int flags, mode_t mode) override {
      if (is_full && (flags & O_CREAT) != 0) {
        errno = ENOSPC;
        return -1;
      }
      return PowerCutIo::Open(folder, name, flags, mode);
    }
  };
  for (uint64_t seed = 0; seed < 20; ++seed) {
    FullIo io(seed);
    const auto file = OrDie(StateFile::Create(kStateName, &io));
    RunOrDie(SaveState(*file, {{KeyOf(1), StatePattern(100, 1)}}));
    io.is_full = true;
    const uint64_t size_bytes = file->file_bytes();
    RunOrDie(file->BeginSave());
    RunOrDie(file->Put(KeyOf(1), StatePattern(100, 2)));
    io.FailAt(3, EIO, true);  // write, sync, header, sync
    EXPECT_FALSE(file->Commit().ok());
    EXPECT_TRUE(io.has_failed());
    EXPECT_EQ(io.Bytes(kStateName).size(), size_bytes);
    EXPECT_TRUE(Holds(*file, {{KeyOf(1), StatePattern(100, 1)}}));
    const Status status = SaveState(*file, {{KeyOf(1), StatePattern(100, 3)}});
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(file->file_bytes(), size_bytes + 2 * kStateBlockBytes);
    io.CutPower();
    EXPECT_TRUE(Holds(*OrDie(StateFile::Open(kStateName, true, &io)), {{KeyOf(1), StatePattern(100, 3)}}));
  }
}

// Where there is no space for another file, there are more segments than there should be.
TEST(StateFileFaults, AFileOfManySavesThatCannotBeWrittenAnewGoesOn) {
  const TemporaryFolder folder;
  const std::string path = folder.Path("s");
  const auto model_of = [](uint64_t version) { return StateModel{{KeyOf(1), StatePattern(100, version)}}; };
  RunOrDie(SaveState(*OrDie(StateFile::Create(path)), model_of(0)));
  {
    // Saves without changes.
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    StateBytes bytes(3 * kStateBlockBytes);
    file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    const std::span<const std::byte> all = bytes;
    const uint64_t id = OrDie(StateFileHeader::Decode(all.first<StateFileHeader::kBytes>(), path)).file_id;
    StateSegmentHeader header;
    ASSERT_TRUE(StateSegmentHeader::Decode(all.subspan(kStateBlockBytes).first<StateSegmentHeader::kBytes>(),
                                           id, &header));
    while (header.number + 1 < kManyStateSegments) {
      header = {.number = header.number + 1,
                .table_check = StateCheckOf({}, id),
                .previous_check = header.Check(id)};
      StateBytes block(kStateBlockBytes);
      const auto encoded = header.Encode(id);
      std::copy(encoded.begin(), encoded.end(), block.begin());
      file.write(reinterpret_cast<const char*>(block.data()), static_cast<std::streamsize>(block.size()));
    }
  }
  FaultyStateIo io;
  io.error_number = ENOSPC;
  const auto file = OrDie(StateFile::Open(path, false, &io));
  EXPECT_TRUE(Holds(*file, model_of(0)));
  io.makes_no_file = true;
  EXPECT_EQ(SaveState(*file, model_of(1)).code(), StatusCode::kIo);
  for (uint64_t save = 2; save < 6; ++save) {
    const Status status = SaveState(*file, model_of(save));
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE(Holds(*OrDie(StateFile::Open(path, true)), model_of(save)));
  }
}

}  // namespace
}  // namespace kvrun::testing
