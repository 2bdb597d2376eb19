// State files whose bytes are not what was written: by accident, and on purpose.
#include <cerrno>
#include <cstring>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "platform/base/units.h"
#include "platform/io/seal.h"
#include "runtime/store/state_format.h"
#include "runtime/store/state_reader.h"
#include "tests/storage/allocation_counter.h"
#include "tests/storage/power_cut_io.h"
#include "tests/storage/state_file_fixture.h"
#include "tests/support/or_die.h"
#include "tests/support/reference_files.h"
#include "tests/support/sanitized.h"

namespace kvrun::testing {
namespace {

constexpr int kTrials = kIsSanitized ? 500 : 10'000;

constexpr char kDamagedName[] = "s";
constexpr uint64_t kExampleId = 0x1122334455667788;

// With an id that is always the same.
class ExampleIo : public PowerCutIo {
 public:
  ExampleIo() : PowerCutIo(1) {}
  uint64_t NewFileId() override { return kExampleId; }
};

enum class Found : uint8_t { kRefused, kLast, kOneBefore, kOther };

// What a damaged file says that it holds, of what it has held.
Found FoundIn(ExampleIo& io, const std::vector<StateModel>& states, const SecretKey* key) {
  const auto file = StateFile::Open(kDamagedName, true, &io, key);
  const Result<StateModel> found = file.ok() ? LoadState(**file) : Result<StateModel>(file.status());
  if (!found.ok()) {
    const StatusCode code = found.status().code();
    EXPECT_TRUE(code == StatusCode::kCorrupt || code == StatusCode::kUnsupported) << found.status().message();
    return Found::kRefused;
  }
  if (*found == states.back()) return Found::kLast;
  return *found == states[states.size() - 2] ? Found::kOneBefore : Found::kOther;
}

// Five saves, each of another state.
struct SavedFile {
  std::vector<StateModel> states;
  std::vector<size_t> begins;  // of their segments
  StateBytes bytes;

  explicit SavedFile(ExampleIo& io, const SecretKey* key = nullptr) {
    Random random(11);
    const auto file = OrDie(StateFile::Create(kDamagedName, &io, key));
    StateModel model = {{KeyOf(1), StatePattern(300, 1)}, {KeyOf(2), {}}, {KeyOf(3), StatePattern(1, 2)}};
    for (uint64_t i = 0; i < 5; ++i) {
      model[KeyOf(9)] = StatePattern(20, i);
      states.push_back(model);
      begins.push_back(i == 0 ? size_t{kStateBlockBytes} : static_cast<size_t>(file->file_bytes()));
      RunOrDie(SaveState(*file, model));
      model = Changed(std::move(model), random, 2000);
    }
    bytes = io.Bytes(kDamagedName);
  }
  bool IsInLastHeader(size_t at) const {
    return at >= begins.back() && at < begins.back() + StateSegmentHeader::kBytes;
  }
};

// Plain, and sealed.
class StateFilesDamage : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (GetParam() && !CheckEncryption().ok()) GTEST_SKIP() << CheckEncryption().message();
  }
  const SecretKey* key() const { return GetParam() ? &key_ : nullptr; }

 private:
  SecretKey key_ = SecretKey::Random().value();
};

INSTANTIATE_TEST_SUITE_P(Both, StateFilesDamage, ::testing::Bool(),
                         [](const auto& one) { return one.param ? "Sealed" : "Plain"; });

// Never a save before: but that one whose header is the file's last may be one that did not end.
TEST_P(StateFilesDamage, AFlippedBitIsSeenAndGivesNoOlderSave) {
  ExampleIo io;
  const SavedFile saved(io, key());
  int n_refused = 0;
  int n_before = 0;
  for (size_t at = 0; at < saved.bytes.size() && !HasFailure(); ++at) {
    if (saved.bytes[at] == std::byte{} && at % 61 != 0) continue;
    SCOPED_TRACE(at);
    io.Bytes(kDamagedName) = saved.bytes;
    io.Bytes(kDamagedName)[at] ^= std::byte{1} << (at % 8);
    const Found found = FoundIn(io, saved.states, key());
    EXPECT_TRUE(found == (saved.IsInLastHeader(at) ? Found::kOneBefore : Found::kLast) ||
                (found == Found::kRefused && !saved.IsInLastHeader(at)));
    n_refused += found == Found::kRefused ? 1 : 0;
    n_before += found == Found::kOneBefore ? 1 : 0;
  }
  EXPECT_GT(n_refused, 600);
  EXPECT_GT(n_before, 50);
}

TEST_P(StateFilesDamage, FlippedBitsAreSeenAndGiveNoOlderSave) {
  ExampleIo io;
  const SavedFile saved(io, key());
  std::vector<size_t> said;  // where it says anything
  for (size_t i = 0; i < saved.begins.back(); ++i) {
    if (saved.bytes[i] != std::byte{}) said.push_back(i);
  }
  Random random(5);
  for (int trial = 0; trial < kTrials && !HasFailure(); ++trial) {
    SCOPED_TRACE(trial);
    io.Bytes(kDamagedName) = saved.bytes;
    for (uint32_t n = random.Below(4) + 1; n > 0; --n) {
      size_t at = random.Below(static_cast<uint32_t>(saved.begins.back()));
      if (random.Below(8) != 0) at = said[random.Below(static_cast<uint32_t>(said.size()))];
      io.Bytes(kDamagedName)[at] ^= std::byte{1} << random.Below(8);
    }
    const Found found = FoundIn(io, saved.states, key());
    EXPECT_TRUE(found == Found::kRefused || found == Found::kLast);
  }
}

// Where it ends in a header, or before one, nothing shows that there was more.
TEST_P(StateFilesDamage, AFileThatWasCutIsSeen) {
  ExampleIo io;
  const SavedFile saved(io, key());
  for (size_t size = 0; size < saved.bytes.size() && !HasFailure(); size += 1 + size % 7) {
    SCOPED_TRACE(size);
    io.Bytes(kDamagedName) = saved.bytes;
    io.Bytes(kDamagedName).resize(size);
    size_t n_before = saved.begins.size();
    while (n_before > 0 && size < saved.begins[n_before - 1]) --n_before;
    // In the segment that begins last before the cut.
    const bool is_in_header = n_before > 1 && size - saved.begins[n_before - 1] < StateSegmentHeader::kBytes;
    const auto file = StateFile::Open(kDamagedName, true, &io, key());
    ASSERT_EQ(file.ok(), is_in_header);
    if (file.ok()) {
      EXPECT_TRUE(Holds(**file, saved.states[n_before - 2]));
    } else {
      EXPECT_EQ(file.status().code(), StatusCode::kCorrupt);
    }
  }
}

// A backup is put back, and work goes on; then a part of the file is as it was before that.
TEST_P(StateFilesDamage, ASaveOfAnotherHistoryDoesNotFollow) {
  ExampleIo io;
  auto file = OrDie(StateFile::Create(kDamagedName, &io, key()));
  const auto save = [&](uint64_t one, uint64_t other) {
    RunOrDie(SaveState(*file, {{KeyOf(1), StatePattern(100, one)}, {KeyOf(2), StatePattern(100, other)}}));
    return static_cast<size_t>(file->file_bytes());
  };
  save(1, 1);
  save(2, 1);
  file.reset();
  const StateBytes backup = io.Bytes(kDamagedName);
  file = OrDie(StateFile::Open(kDamagedName, false, &io, key()));
  const size_t third_end = save(3, 1);
  save(3, 2);
  file.reset();
  const StateBytes before = io.Bytes(kDamagedName);
  io.Bytes(kDamagedName) = backup;
  file = OrDie(StateFile::Open(kDamagedName, false, &io, key()));
  ASSERT_EQ(save(4, 1), third_end);
  file.reset();
  StateBytes& bytes = io.Bytes(kDamagedName);
  bytes.insert(bytes.end(), before.begin() + static_cast<ptrdiff_t>(third_end), before.end());
  const auto opened = StateFile::Open(kDamagedName, true, &io, key());
  EXPECT_EQ(opened.status().message(),
            "the session's file s is damaged: its saves do not follow one another: the session has to be "
            "computed again, or its file copied again");
}

// With a part that cannot be read.
class UnreadableIo : public ExampleIo {
 public:
  off_t begin_bytes = 0;
  off_t end_bytes = 0;
  ssize_t ReadAt(int fd, void* to, size_t n_bytes, off_t offset_bytes) override {
    if (offset_bytes < end_bytes && offset_bytes + static_cast<off_t>(n_bytes) > begin_bytes) {
      errno = EIO;
      return -1;
    }
    return ExampleIo::ReadAt(fd, to, n_bytes, offset_bytes);
  }
};

TEST_P(StateFilesDamage, WhatCannotBeReadBehindAWholeSaveIsNoSave) {
  UnreadableIo io;
  const SavedFile saved(io, key());
  const auto code_without = [&](size_t begin, size_t end) {
    io.begin_bytes = static_cast<off_t>(begin);
    io.end_bytes = static_cast<off_t>(end);
    return StateFile::Open(kDamagedName, true, &io, key()).status().code();
  };
  const size_t n = saved.begins.size();
  EXPECT_EQ(code_without(saved.begins[0], saved.begins[0] + 1), StatusCode::kIo) << "no save before";
  EXPECT_EQ(code_without(saved.begins[n - 2], saved.begins[n - 2] + 1), StatusCode::kCorrupt) << "one behind";
  EXPECT_EQ(code_without(saved.begins[n - 1] + kStateBlockBytes, saved.bytes.size()), StatusCode::kCorrupt)
      << "a table whose header is valid";
  EXPECT_EQ(code_without(saved.begins[n - 1], saved.bytes.size()), StatusCode::kOk);
  EXPECT_TRUE(Holds(*OrDie(StateFile::Open(kDamagedName, true, &io, key())), saved.states[n - 2]));
  const auto file = OrDie(StateFile::Open(kDamagedName, false, &io, key()));
  EXPECT_TRUE(Holds(*file, saved.states[n - 2]));
  RunOrDie(SaveState(*file, saved.states[0]));
  EXPECT_LT(file->file_bytes(), saved.begins[2]) << "a whole file";
  EXPECT_TRUE(Holds(*OrDie(StateFile::Open(kDamagedName, true, &io, key())), saved.states[0]));
}

// Any byte of what an item is of.
TEST(StateFileDamage, AChangedByteIsNeverRead) {
  ExampleIo io;
  const StateBytes bytes = StatePattern(2 * kStateChunkBytes + 10, 1);
  RunOrDie(SaveState(*OrDie(StateFile::Create(kDamagedName, &io)), {{KeyOf(1), bytes}}));
  const size_t begin = 2 * kStateBlockBytes;
  ASSERT_EQ(io.Bytes(kDamagedName)[begin + 5], bytes[5]);
  io.Bytes(kDamagedName)[begin + kStateChunkBytes + 7] ^= std::byte{16};
  const auto file = OrDie(StateFile::Open(kDamagedName, true, &io));
  StateBytes part(10);
  EXPECT_TRUE(file->Read(KeyOf(1), 0, part).ok());
  EXPECT_TRUE(file->Read(KeyOf(1), 2 * kStateChunkBytes, part).ok());
  const Status status = file->Read(KeyOf(1), kStateChunkBytes, part);
  EXPECT_EQ(status.code(), StatusCode::kCorrupt);
  EXPECT_EQ(
      status.message(),
      "the session's file s is damaged: item 1 of part 3 (layer 0, stream 0) is not what was written, at "
      "byte 24576: the session has to be computed again, or its file copied again");
  io.Bytes(kDamagedName).resize(begin + kStateChunkBytes);
  EXPECT_EQ(file->Read(KeyOf(1), 2 * kStateChunkBytes, part).code(), StatusCode::kCorrupt) << "cut meanwhile";
}

void SetHeader(StateBytes& bytes, size_t at, uint32_t value) {
  for (size_t i = 0; i < 4; ++i) bytes[at + i] = static_cast<std::byte>(value >> (8 * i));
  const StateCheck check = StateCheckOf(std::span<const std::byte>(bytes).first(48), 0);
  std::copy(check.begin(), check.end(), bytes.begin() + 48);
}

TEST(StateFileDamage, OtherVersionsAndFlagsAreNamed) {
  ExampleIo io;
  RunOrDie(SaveState(*OrDie(StateFile::Create(kDamagedName, &io)), {}));
  const StateBytes whole = io.Bytes(kDamagedName);
  const auto message_with = [&](size_t at, uint32_t value) {
    io.Bytes(kDamagedName) = whole;
    SetHeader(io.Bytes(kDamagedName), at, value);
    const auto file = StateFile::Open(kDamagedName, false, &io);
    EXPECT_EQ(file.status().code(), StatusCode::kUnsupported);
    return file.status().message();
  };
  EXPECT_EQ(
      message_with(8, 2),
      "the session's file s is of version 2, and this kvrun reads version 1: use the kvrun that wrote it, "
      "or compute the session again");
  EXPECT_EQ(message_with(12, 2),
            "the session's file s is of version 1 with flags 0x2, and this kvrun reads flags 0 and 1: use "
            "the kvrun "
            "that wrote it, or compute the session again");
  EXPECT_EQ(
      message_with(16, 4096),
      "the session's file s has chunks of 4096 bytes and blocks of 4096, and this kvrun reads 16384 and "
      "4096: use the kvrun that wrote it, or compute the session again");
  io.Bytes(kDamagedName) = whole;
  SetHeader(io.Bytes(kDamagedName), 8, 1);
  EXPECT_TRUE(StateFile::Open(kDamagedName, false, &io).ok());
  for (const size_t size_bytes : {0, 63, 64, 4096, 4200, 8191}) {
    io.Bytes(kDamagedName) = whole;
    io.Bytes(kDamagedName).resize(size_bytes);
    EXPECT_EQ(StateFile::Open(kDamagedName, false, &io).status().code(), StatusCode::kCorrupt) << size_bytes;
  }
}

// A file whose checksums are right, and which says what it wants.
struct MadeFile {
  StateSegmentHeader header;
  StateBytes payload;
  StateBytes table;

  template <typename Record>
  void Add(const Record& record) {
    const auto bytes = record.Encode();
    table.insert(table.end(), bytes.begin(), bytes.end());
  }
  StateBytes Bytes() {
    StateBytes bytes(kStateBlockBytes * 2);
    const auto file_header = StateFileHeader{kExampleId}.Encode();
    std::copy(file_header.begin(), file_header.end(), bytes.begin());
    header.table_check = StateCheckOf(table, kExampleId);
    const auto segment_header = header.Encode(kExampleId);
    std::copy(segment_header.begin(), segment_header.end(), bytes.begin() + kStateBlockBytes);
    bytes.insert(bytes.end(), payload.begin(), payload.end());
    bytes.insert(bytes.end(), table.begin(), table.end());
    bytes.resize((bytes.size() + kStateBlockBytes - 1) / kStateBlockBytes * kStateBlockBytes);
    return bytes;
  }
};

Status OpenMade(MadeFile made) {
  ExampleIo io;
  io.Bytes(kDamagedName) = made.Bytes();
  // What the reader has of its own: a buffer, the state of a checksum, words of an error.
  const uint64_t most_bytes = io.Bytes(kDamagedName).size() + kStateChunkBytes + 8192;
  ResetHeapPeak();
  const uint64_t before_bytes = CurrentHeapUse().live_bytes;
  const auto file = StateFile::Open(kDamagedName, true, &io);
  EXPECT_LE(CurrentHeapUse().peak_bytes - before_bytes, most_bytes);
  return file.status();
}

MadeFile GoodFile() {
  MadeFile made;
  made.payload = StatePattern(100, 1);
  made.header = {.number = 0, .payload_bytes = 100, .n_items = 1, .n_chunks = 1, .table_check = {}};
  made.Add(StateItemRecord{KeyOf(1), StateItemRecord::Kind::kIs, 1, 100});
  made.Add(StateChunkRecord{0, 2 * kStateBlockBytes, StateCheckOf(made.payload, kExampleId)});
  return made;
}

TEST(StateFileDamage, WhatAHostileFileSaysIsNotTrusted) {
  EXPECT_TRUE(OpenMade(GoodFile()).ok());
  const auto refused = [](const char* what, const MadeFile& made) {
    EXPECT_EQ(OpenMade(made).code(), StatusCode::kCorrupt) << what;
  };
  // The header.
  for (const uint64_t many :
       {uint64_t{2}, uint64_t{1} << 40, uint64_t{1} << 59, uint64_t{1} << 62, UINT64_MAX}) {
    MadeFile made = GoodFile();
    made.header.n_items = many;
    refused("items", made);
    made = GoodFile();
    made.header.n_chunks = many;
    refused("chunks", made);
    made = GoodFile();
    made.header.payload_bytes = many;
    refused("payload", made);
    made = GoodFile();
    made.header.number = many;
    refused("number", made);
  }
  // The table: an item, then its chunks.
  const auto table = [](const std::vector<StateItemRecord>& items,
                        const std::vector<StateChunkRecord>& chunks) {
    MadeFile made = GoodFile();
    made.table.clear();
    for (const auto& item : items) made.Add(item);
    for (const auto& chunk : chunks) made.Add(chunk);
    made.header.n_items = items.size();
    made.header.n_chunks = chunks.size();
    return made;
  };
  using Kind = StateItemRecord::Kind;
  const uint64_t begin = 2 * kStateBlockBytes;
  const StateKey key = KeyOf(1);
  refused("an item of more chunks than there are",
          table({{key, Kind::kIs, 1, UINT64_MAX}}, {{0, begin, {}}}));
  refused("chunks that were not there", table({{key, Kind::kIs, 0, 100}}, {}));
  refused("more chunks than records", table({{key, Kind::kIs, UINT32_MAX, UINT64_MAX}}, {{0, begin, {}}}));
  refused("a chunk behind the item", table({{key, Kind::kIs, 1, 100}}, {{1, begin, {}}}));
  refused("a chunk twice", table({{key, Kind::kIs, 2, 50}}, {{0, begin, {}}, {0, begin + 50, {}}}));
  refused("a chunk before the payload", table({{key, Kind::kIs, 1, 100}}, {{0, begin - 1, {}}}));
  refused("a chunk behind the payload", table({{key, Kind::kIs, 1, 100}}, {{0, begin + 1, {}}}));
  refused("a chunk nowhere", table({{key, Kind::kIs, 1, 100}}, {{0, UINT64_MAX, {}}}));
  refused("bytes of no item", table({{key, Kind::kIs, 1, 99}}, {{0, begin, {}}}));
  refused("a gone item that was not there", table({{key, Kind::kIsGone, 0, 0}}, {}));
  refused("no kind", table({{key, static_cast<Kind>(3), 1, 100}}, {{0, begin, {}}}));
  MadeFile twice = table({{key, Kind::kIs, 1, 100}}, {{0, begin, {}}});
  twice.Add(StateItemRecord{key, Kind::kIs, 0, 0});
  twice.header.n_items = 2;
  refused("an item twice", twice);
  MadeFile shared = table({{key, Kind::kIs, 1, 100}}, {{0, begin, {}}});
  shared.Add(StateItemRecord{KeyOf(2), Kind::kIs, 1, 100});
  shared.Add(StateChunkRecord{0, begin, {}});
  shared.header.n_items = shared.header.n_chunks = 2;
  refused("bytes of two items", shared);
}

// Many items without bytes: as much memory as the table is long, and no more.
TEST(StateFileDamage, ManyItemsTakeNoMoreMemoryThanTheirFile) {
  MadeFile made;
  for (uint32_t layer = 0; layer < 100'000; ++layer) {
    made.Add(StateItemRecord{{StatePart::kIndex, 0, layer, 0}, StateItemRecord::Kind::kIs, 0, 0});
  }
  made.header.n_items = 100'000;
  EXPECT_TRUE(OpenMade(made).ok());
}

// Two blocks, and then as many zeros as can be said.
class SparseIo : public ExampleIo {
 public:
  static constexpr uint64_t kSizeBytes = uint64_t{1} << 60;
  uint64_t n_reads = 0;
  uint64_t read_bytes = 0;
  int Stat(int fd, struct stat* facts) override {
    const int answer = ExampleIo::Stat(fd, facts);
    facts->st_size = static_cast<off_t>(kSizeBytes);
    return answer;
  }
  ssize_t ReadAt(int fd, void* to, size_t n_bytes, off_t offset_bytes) override {
    ++n_reads;
    read_bytes += n_bytes;
    const ssize_t n_read = ExampleIo::ReadAt(fd, to, n_bytes, offset_bytes);
    std::memset(static_cast<char*>(to) + n_read, 0, n_bytes - static_cast<size_t>(n_read));
    return static_cast<ssize_t>(n_bytes);
  }
};

TEST(StateFileDamage, AFileOfZerosThatSaysToBeLargeIsSoonRefused) {
  struct Said {
    uint64_t payload_bytes;
    uint64_t n_items;
    uint64_t n_chunks;
  };
  for (const Said& said : {Said{0, uint64_t{1} << 54, 0}, Said{0, kMostStateItems, 0},
                           Said{uint64_t{1} << 59, 1, uint64_t{1} << 43},
                           Said{uint64_t{1} << 59, kMostStateItems, uint64_t{1} << 43},
                           Said{1, 1, uint64_t{1} << 43}, Said{uint64_t{1} << 43, 1, uint64_t{1} << 43}}) {
    SCOPED_TRACE(said.payload_bytes + said.n_items + said.n_chunks);
    SparseIo io;
    MadeFile made;
    made.header.payload_bytes = said.payload_bytes;
    made.header.n_items = said.n_items;
    made.header.n_chunks = said.n_chunks;
    io.Bytes(kDamagedName) = made.Bytes();
    ResetHeapPeak();
    const uint64_t before_bytes = CurrentHeapUse().live_bytes;
    EXPECT_EQ(StateFile::Open(kDamagedName, true, &io).status().code(), StatusCode::kCorrupt);
    EXPECT_LE(CurrentHeapUse().peak_bytes - before_bytes, kStateChunkBytes + 8192);
    EXPECT_LE(io.n_reads, kMostSearchedBlocks + 10);
    EXPECT_LE(io.read_bytes, 64 * kMiB);
  }
}

// "OFFSET  HH HH ..", as the page has them; what it leaves out are zeros.
TEST(StateFileDamage, TheDocumentsExampleIsWhatIsWritten) {
  ExampleIo io;
  const auto text_of = [](const char* text) {
    const auto* const bytes = reinterpret_cast<const std::byte*>(text);
    return StateBytes(bytes, bytes + std::strlen(text));
  };
  const auto file = OrDie(StateFile::Create(kDamagedName, &io));
  StateModel model = {{{StatePart::kSequence, 1, 0, 0}, text_of("kvrun")},
                      {{StatePart::kIndex, 2, 7, 3}, text_of("flash")}};
  RunOrDie(SaveState(*file, model));
  model = {{{StatePart::kSequence, 1, 0, 0}, text_of("kvruns")}};
  RunOrDie(SaveState(*file, model));
  const std::string page = ReadFileOrDie(std::string(KVRUN_SOURCE_DIR) + "/docs/formats/state_file.md");
  const size_t begin = page.find("```hex\n") + 7;
  std::istringstream lines(page.substr(begin, page.find("```", begin) - begin));
  StateBytes bytes(file->file_bytes());
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    size_t offset = 0;
    words >> std::hex >> offset;
    for (uint32_t value = 0; words >> value;) {
      ASSERT_LT(offset, bytes.size()) << line;
      bytes[offset++] = static_cast<std::byte>(value);
    }
  }
  const StateBytes& written = io.Bytes(kDamagedName);
  EXPECT_TRUE(bytes == written);
  if (bytes == written) return;
  for (size_t i = 0; i < written.size(); i += 16) {  // as the page is to have it
    std::string line;
    bool is_said = false;
    for (size_t j = i; j < i + 16; ++j) {
      char hex[8];
      std::snprintf(hex, sizeof hex, " %02x", static_cast<unsigned>(written[j]));
      line += hex;
      is_said = is_said || written[j] != std::byte{};
    }
    if (is_said) std::printf("%04zx %s\n", i, line.c_str());
  }
}

}  // namespace
}  // namespace kvrun::testing
