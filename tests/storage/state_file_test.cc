// What state files hold, what they write for it, and what is refused.
#include "runtime/store/state_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <memory>
#include <vector>

#include "runtime/store/state_folder.h"
#include "runtime/store/state_format.h"
#include "runtime/store/state_visitor.h"
#include "tests/storage/state_file_fixture.h"
#include "tests/support/or_die.h"
#include "tests/support/program_runner.h"

namespace kvrun::testing {
namespace {

class StateFileTest : public ::testing::Test {
 protected:
  StateFileTest() : path_(folder_.Path("session")) {}

  // As many bytes as a save has written.
  uint64_t Written(StateFile& file, const StateModel& model) const {
    const uint64_t before = file.counters().written_bytes;
    const Status status = SaveState(file, model);
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE(Holds(file, model));
    EXPECT_TRUE(Holds(*OrDie(StateFile::Open(path_, true)), model));
    EXPECT_EQ(std::filesystem::file_size(path_), file.file_bytes());
    return file.counters().written_bytes - before;
  }
  size_t NumFiles() const {
    const auto folder = std::filesystem::path(path_).parent_path();
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder), {}));
  }
  void ExpectRefused(const std::string& path, const std::string& why) const {
    for (const auto& opened : {StateFile::Open(path), StateFile::Open(path, true), StateFile::Create(path)}) {
      ASSERT_FALSE(opened.ok());
      EXPECT_EQ(opened.status().code(), StatusCode::kInvalidArgument) << opened.status().message();
      EXPECT_EQ(opened.status().message(),
                path + " cannot be a session's file: it is " + why + ": name another");
    }
  }

  TemporaryFolder folder_;
  std::string path_;
};

constexpr size_t kChunk = kStateChunkBytes;

TEST_F(StateFileTest, ItemsOfAllSizesComeBackGrowShrinkAndVanish) {
  const auto file = OrDie(StateFile::Create(path_));
  EXPECT_EQ(NumFiles(), 0U) << "before the first save there is no file";
  EXPECT_EQ(file->file_bytes(), 0U);
  const std::vector<size_t> sizes = {
      0, 1, kChunk - 1, kChunk, kChunk + 1, 3 * kChunk, 3 * kChunk + 5, 2 * kChunk, 7, 0};
  for (size_t step = 0; step < 2 * sizes.size(); ++step) {
    SCOPED_TRACE(step);
    StateModel model;
    for (uint16_t item = 0; item < 5; ++item) {
      if ((step + item) % 7 == 6) continue;  // vanished
      model[KeyOf(item)] = StatePattern(sizes[(step * 3 + item) % sizes.size()], item);
    }
    Written(*file, model);
    EXPECT_EQ(NumFiles(), 1U);
  }
  EXPECT_EQ(file->counters().saves, 2 * sizes.size());
  Written(*file, {});
  EXPECT_EQ(OrDie(StateFile::Open(path_, true))->SizeOf(KeyOf(1)), std::nullopt);
  struct stat facts {};
  ASSERT_EQ(::stat(path_.c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 07777, 0600U);
}

TEST_F(StateFileTest, KeysOfPartsLayersAndStreamsAreOthers) {
  StateModel model;
  uint64_t version = 0;
  for (const StatePart part : {StatePart::kIdentity, StatePart::kResidentKv}) {
    for (const uint32_t layer : {0U, 7U, UINT32_MAX}) {
      for (const uint32_t stream : {0U, UINT32_MAX}) {
        model[{part, 65535, layer, stream}] = StatePattern(20, version++);
      }
    }
  }
  const auto file = OrDie(StateFile::Create(path_));
  // In any order.
  RunOrDie(file->BeginSave());
  for (auto item = model.rbegin(); item != model.rend(); ++item)
    RunOrDie(file->Put(item->first, item->second));
  RunOrDie(file->Commit());
  EXPECT_TRUE(Holds(*file, model));
  EXPECT_TRUE(Holds(*OrDie(StateFile::Open(path_, true)), model));
}

TEST_F(StateFileTest, WhatHasNotChangedIsNotWritten) {
  auto file = OrDie(StateFile::Create(path_));
  StateModel model = {{KeyOf(1), StatePattern(10 * kChunk, 1)}, {KeyOf(2), StatePattern(100, 2)}};
  const uint64_t whole = Written(*file, model);
  EXPECT_EQ(whole,
            file->file_bytes() - kStateBlockBytes + StateFileHeader::kBytes + StateSegmentHeader::kBytes);
  EXPECT_EQ(Written(*file, model), 0U);
  // A block and its header, a chunk, and the table, to its block's end.
  const uint64_t few = kStateBlockBytes + StateSegmentHeader::kBytes + kStateBlockBytes;
  model[KeyOf(1)][5 * kChunk] ^= std::byte{1};
  EXPECT_EQ(Written(*file, model), kChunk + few);
  model[KeyOf(2)].push_back(std::byte{1});
  EXPECT_EQ(Written(*file, model), few);
  // Another one's table is as good.
  file.reset();
  const auto opened = OrDie(StateFile::Open(path_));
  model[KeyOf(1)][0] ^= std::byte{1};
  EXPECT_EQ(Written(*opened, model), kChunk + few);
  // Whole chunks fewer: no chunk is another.
  model[KeyOf(1)].resize(4 * kChunk);
  model.erase(KeyOf(2));
  EXPECT_EQ(Written(*opened, model), few);
}

TEST_F(StateFileTest, PartsOfItemsAreRead) {
  const auto file = OrDie(StateFile::Create(path_));
  const StateBytes bytes = StatePattern(3 * kChunk + 100, 4);
  RunOrDie(SaveState(*file, {{KeyOf(1), bytes}}));
  for (const auto& [begin, size] : std::vector<std::pair<size_t, size_t>>{{0, 1},
                                                                          {kChunk - 1, 2},
                                                                          {5, 3 * kChunk},
                                                                          {kChunk, kChunk},
                                                                          {3 * kChunk, 100},
                                                                          {bytes.size(), 0}}) {
    StateBytes part(size);
    ASSERT_TRUE(file->Read(KeyOf(1), begin, part).ok());
    EXPECT_TRUE(std::equal(part.begin(), part.end(), bytes.begin() + static_cast<ptrdiff_t>(begin)));
  }
  StateBytes two(2);
  EXPECT_EQ(file->Read(KeyOf(1), bytes.size() - 1, two).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(file->Read(KeyOf(1), UINT64_MAX, two).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(file->Read(KeyOf(2), 0, two).code(), StatusCode::kNotFound);
}

TEST_F(StateFileTest, AnItemMayComeInPieces) {
  const auto file = OrDie(StateFile::Create(path_));
  const StateBytes bytes = StatePattern(5 * kChunk + 3, 4);
  const std::span<const std::byte> all = bytes;
  RunOrDie(file->BeginSave());
  RunOrDie(file->Put(KeyOf(1), all.first(kChunk), false));
  RunOrDie(file->Put(KeyOf(1), all.subspan(kChunk, 3 * kChunk), false));
  RunOrDie(file->Put(KeyOf(1), {}, false));
  RunOrDie(file->Put(KeyOf(1), all.subspan(4 * kChunk)));
  RunOrDie(file->Put(KeyOf(2), all.first(kChunk), false));
  RunOrDie(file->Put(KeyOf(2), {}));
  RunOrDie(file->Commit());
  const StateModel model = {{KeyOf(1), bytes}, {KeyOf(2), StatePattern(kChunk, 4)}};
  EXPECT_TRUE(Holds(*file, model));
  EXPECT_EQ(Written(*file, model), 0U) << "whole it is the same";
}

TEST_F(StateFileTest, SavesThatAreNotInOrderAreRefusedAndLeaveWhatThereWas) {
  const auto file = OrDie(StateFile::Create(path_));
  const StateModel model = {{KeyOf(1), StatePattern(100, 1)}};
  const StateBytes bytes = StatePattern(2 * kChunk, 2);
  const std::span<const std::byte> all = bytes;
  EXPECT_EQ(file->Put(KeyOf(1), all).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(file->Commit().code(), StatusCode::kInvalidArgument);
  for (int round = 0; round < 2; ++round) {  // of a whole file, of a segment
    RunOrDie(file->BeginSave());
    EXPECT_EQ(file->Put(KeyOf(1), all.first(kChunk + 1), false).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(file->Commit().code(), StatusCode::kInvalidArgument);
    RunOrDie(file->BeginSave());
    RunOrDie(file->Put(KeyOf(1), all.first(kChunk), false));
    EXPECT_EQ(file->Put(KeyOf(2), all).code(), StatusCode::kInvalidArgument);
    RunOrDie(file->BeginSave());
    RunOrDie(file->Put(KeyOf(1), all.first(kChunk), false));
    EXPECT_EQ(file->Commit().code(), StatusCode::kInvalidArgument);
    RunOrDie(file->BeginSave());
    RunOrDie(file->Put(KeyOf(1), all));
    RunOrDie(file->Put(KeyOf(2), all));
    RunOrDie(file->Put(KeyOf(1), all));
    const Status twice = file->Commit();
    EXPECT_EQ(twice.message(), "item 1 of part 3 (layer 0, stream 0) of a session's state was put twice");
    EXPECT_EQ(NumFiles(), static_cast<size_t>(round));
    EXPECT_TRUE(Holds(*file, round == 0 ? StateModel() : model));
    // One that did not end.
    RunOrDie(file->BeginSave());
    RunOrDie(file->Put(KeyOf(1), all));
    Written(*file, model);
  }
}

TEST_F(StateFileTest, WhatIsOfNoUseIsDroppedWhereItIsMoreThanTheRest) {
  const auto file = OrDie(StateFile::Create(path_));
  StateModel model = {{KeyOf(1), StatePattern(48 * kChunk, 0)}};
  uint64_t most_bytes = 0;
  uint64_t last_bytes = 0;
  int n_whole = 0;
  for (uint64_t save = 1; save <= 60; ++save) {
    model[KeyOf(1)] = StatePattern(48 * kChunk, save / 3);
    model[KeyOf(2)] = StatePattern(12 * kChunk, save);
    Written(*file, model);
    EXPECT_EQ(NumFiles(), 1U);
    n_whole += file->file_bytes() < last_bytes ? 1 : 0;
    last_bytes = file->file_bytes();
    most_bytes = std::max(most_bytes, last_bytes);
  }
  EXPECT_GT(n_whole, 5);
  EXPECT_LT(n_whole, 30);
  EXPECT_LT(most_bytes, 4 * 60 * kChunk);
}

TEST_F(StateFileTest, SmallSavesStayOneFileUntilThereAreMany) {
  const auto file = OrDie(StateFile::Create(path_));
  uint64_t last_bytes = 0;
  int n_whole = 0;
  for (uint64_t save = 1; save <= 300; ++save) {
    RunOrDie(SaveState(*file, {{KeyOf(1), StatePattern(9, save)}}));
    n_whole += file->file_bytes() < last_bytes ? 1 : 0;
    last_bytes = file->file_bytes();
  }
  EXPECT_EQ(n_whole, 2) << "at 1 MiB";
  EXPECT_TRUE(Holds(*OrDie(StateFile::Open(path_, true)), {{KeyOf(1), StatePattern(9, 300)}}));
}

// 40 bytes a chunk, and no bytes of theirs.
TEST_F(StateFileTest, MemoryIsThatOfTables) {
  const auto file = OrDie(StateFile::Create(path_));
  const StateBytes bytes = StatePattern(400 * kChunk, 1);
  RunOrDie(file->BeginSave());
  RunOrDie(file->Put(KeyOf(1), bytes));
  RunOrDie(file->Commit());
  EXPECT_LE(file->MemoryBytes(), 401 * 24 + 48U);
  RunOrDie(file->BeginSave());
  RunOrDie(file->Put(KeyOf(1), bytes));
  EXPECT_LE(file->MemoryBytes(), 401 * 48 + 2 * 48 + kChunk);
  EXPECT_LE(OrDie(StateFile::Open(path_, true))->MemoryBytes(), 401 * 24 + 48U);
}

TEST_F(StateFileTest, CreateLeavesWhatHasTheNameUntilItIsSaved) {
  const StateModel old = {{KeyOf(1), StatePattern(100, 1)}};
  const StateModel next = {{KeyOf(2), StatePattern(100, 2)}};
  RunOrDie(SaveState(*OrDie(StateFile::Create(path_)), old));
  const auto file = OrDie(StateFile::Create(path_));
  RunOrDie(file->BeginSave());
  RunOrDie(file->Put(KeyOf(2), next.at(KeyOf(2))));
  EXPECT_TRUE(Holds(*OrDie(StateFile::Open(path_, true)), old));
  RunOrDie(file->Commit());
  EXPECT_TRUE(Holds(*OrDie(StateFile::Open(path_, true)), next));
  EXPECT_EQ(NumFiles(), 1U);
}

TEST_F(StateFileTest, AFileThatWasRemovedOrReplacedIsWrittenWhole) {
  const auto file = OrDie(StateFile::Create(path_));
  StateModel model = {{KeyOf(1), StatePattern(3 * kChunk, 1)}};
  RunOrDie(SaveState(*file, model));
  ASSERT_EQ(::unlink(path_.c_str()), 0);
  model[KeyOf(2)] = StatePattern(10, 1);
  Written(*file, model);
  ASSERT_EQ(::unlink(path_.c_str()), 0);
  RunOrDie(SaveState(*OrDie(StateFile::Create(path_)), {}));
  Written(*file, model);
  // Another wrote behind its end.
  std::filesystem::resize_file(path_, file->file_bytes() + 3);
  model[KeyOf(3)] = StatePattern(10, 2);
  Written(*file, model);
  EXPECT_EQ(NumFiles(), 1U);
}

TEST_F(StateFileTest, WhatAKilledSaveLeftIsRemoved) {
  const std::string beside = StateFileBeside(path_);
  const StateModel model = {{KeyOf(1), StatePattern(10, 1)}};
  const auto leave = [&] { return folder_.Write("session.kvrun-new", "half a file"); };
  ASSERT_EQ(leave(), beside);
  auto file = OrDie(StateFile::Create(path_));
  EXPECT_EQ(NumFiles(), 0U);
  leave();
  RunOrDie(SaveState(*file, model));
  EXPECT_EQ(NumFiles(), 1U);
  leave();
  EXPECT_TRUE(Holds(*OrDie(StateFile::Open(path_, true)), model));
  EXPECT_EQ(NumFiles(), 2U) << "who only reads removes nothing";
  file.reset();
  EXPECT_TRUE(Holds(*OrDie(StateFile::Open(path_)), model));
  EXPECT_EQ(NumFiles(), 1U);
}

TEST_F(StateFileTest, WhoReadsSavesNothing) {
  RunOrDie(SaveState(*OrDie(StateFile::Create(path_)), {{KeyOf(1), StatePattern(10, 1)}}));
  ASSERT_EQ(::chmod(path_.c_str(), 0400), 0);
  const auto file = OrDie(StateFile::Open(path_, true));
  EXPECT_TRUE(Holds(*file, {{KeyOf(1), StatePattern(10, 1)}}));
  const Status status = file->BeginSave();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(),
            "the session's file " + path_ + " was opened to be read: a save needs another name");
  EXPECT_FALSE(file->Put(KeyOf(1), {}).ok());
  EXPECT_FALSE(file->Commit().ok());
}

TEST_F(StateFileTest, WhatIsNoFileOfThisUserIsRefused) {
  RunOrDie(SaveState(*OrDie(StateFile::Create(path_)), {}));
  const std::string other = folder_.Path("other");
  ASSERT_EQ(::symlink(path_.c_str(), other.c_str()), 0);
  ExpectRefused(other, "a symbolic link");
  ASSERT_EQ(::unlink(other.c_str()), 0);
  ASSERT_EQ(::mkfifo(other.c_str(), 0600), 0);
  ExpectRefused(other, "a pipe");
  ASSERT_EQ(::unlink(other.c_str()), 0);
  ASSERT_EQ(::mkdir(other.c_str(), 0700), 0);
  ExpectRefused(other, "a folder");
  ExpectRefused(folder_.Path("none/"), "no name of a file");
  ExpectRefused("", "no name of a file");
  ExpectRefused("/dev/null", "a device or a socket");
  if (::chown(path_.c_str(), 12345, -1) != 0) GTEST_SKIP() << "a file cannot be given to another user";
  ExpectRefused(path_, "another user's");
}

TEST_F(StateFileTest, WhatIsNotThereIsNotFound) {
  const auto opened = StateFile::Open(path_);
  EXPECT_EQ(opened.status().code(), StatusCode::kNotFound);
  EXPECT_EQ(opened.status().message(), "there is no session's file " + path_ + ": name one that was saved");
  const auto created = StateFile::Create(folder_.Path("no/session"));
  EXPECT_EQ(created.status().code(), StatusCode::kNotFound) << created.status().message();
}

// Three parts of a session, as those have it.
struct VisitedLengths {
  struct Place {
    uint32_t layer;
    int32_t weight;
    bool operator==(const Place&) const = default;
  };
  uint64_t n_tokens = 0;
  std::vector<Place> places;
  bool operator==(const VisitedLengths&) const = default;

  Status VisitState(StateVisitor& visitor) {
    KVRUN_RETURN_IF_ERROR(visitor.Value({StatePart::kSequence, 1}, &n_tokens));
    return visitor.Vector({StatePart::kSequence, 2}, &places, 5);
  }
};

struct VisitedSession {
  VisitedLengths lengths;
  std::array<float, 3> fixed{};
  std::vector<uint8_t> rows;
  bool operator==(const VisitedSession&) const = default;

  Status VisitState(StateVisitor& visitor) {
    KVRUN_RETURN_IF_ERROR(lengths.VisitState(visitor));
    KVRUN_RETURN_IF_ERROR(visitor.Array({StatePart::kIndex, 1, 4}, std::span<float>(fixed)));
    if (!visitor.Has({StatePart::kIndex, 2})) return Status::Ok();
    return visitor.Vector({StatePart::kIndex, 2}, &rows, 1'000'000);
  }
};

struct WithPadding {
  uint8_t small;
  uint32_t large;
};
static_assert(kIsStateValue<uint32_t> && kIsStateValue<float> && kIsStateValue<double>);
static_assert(kIsStateValue<StatePart> && kIsStateValue<VisitedLengths::Place>);
static_assert(!kIsStateValue<bool> && !kIsStateValue<const char*> && !kIsStateValue<WithPadding>);
static_assert(!kIsStateValue<long double> && !kIsStateValue<std::vector<int>>);

TEST_F(StateFileTest, VisitorsSaveLoadAndCount) {
  VisitedSession session{{12, {{1, 5}, {2, -3}}}, {7.5F, 8, 9}, std::vector<uint8_t>(100'000, 5)};
  StateCounter counter;
  ASSERT_TRUE(session.VisitState(counter).ok());
  EXPECT_EQ(counter.size_bytes(), 8U + 16U + 12U + 100'000U);
  const auto file = OrDie(StateFile::Create(path_));
  RunOrDie(file->BeginSave());
  StateSaver saver(*file);
  EXPECT_FALSE(saver.is_loading());
  ASSERT_TRUE(session.VisitState(saver).ok());
  RunOrDie(file->Commit());
  const auto opened = OrDie(StateFile::Open(path_, true));
  VisitedSession loaded;
  StateLoader loader(*opened);
  EXPECT_TRUE(loader.is_loading());
  const Status status = loaded.VisitState(loader);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(loaded == session);
}

TEST_F(StateFileTest, ALoaderRefusesItemsOfOtherSizes) {
  const auto file = OrDie(StateFile::Create(path_));
  RunOrDie(SaveState(*file, {{KeyOf(1), StatePattern(12, 1)}}));
  StateLoader loader(*file);
  uint64_t value = 0;
  const Status other = loader.Value(KeyOf(1), &value);
  EXPECT_EQ(other.code(), StatusCode::kCorrupt);
  EXPECT_EQ(other.message(),
            "the session's file " + path_ +
                ": item 1 of part 3 (layer 0, stream 0) has 12 bytes, not 8: it is of another "
                "session or damaged, and the session has to be computed again");
  EXPECT_EQ(loader.Value(KeyOf(2), &value).code(), StatusCode::kCorrupt);
  std::vector<uint64_t> eights;
  EXPECT_EQ(loader.Vector(KeyOf(1), &eights, 100).code(), StatusCode::kCorrupt) << "12 is no multiple of 8";
  EXPECT_EQ(loader.Vector(KeyOf(2), &eights, 100).code(), StatusCode::kCorrupt);
  std::vector<uint32_t> fours;
  EXPECT_EQ(loader.Vector(KeyOf(1), &fours, 2).code(), StatusCode::kCorrupt) << "more than two";
  EXPECT_TRUE(fours.empty() && eights.empty());
  EXPECT_TRUE(loader.Vector(KeyOf(1), &fours, 3).ok());
  EXPECT_EQ(fours.size(), 3U);
  EXPECT_TRUE(loader.Has(KeyOf(1)));
  EXPECT_FALSE(loader.Has(KeyOf(2)));
}

}  // namespace
}  // namespace kvrun::testing
