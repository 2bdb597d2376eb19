// State files whose bytes are not what was written: by accident, and on purpose.
#include <cstring>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "runtime/store/state_format.h"
#include "runtime/store/state_visitor.h"
#include "tests/storage/allocation_counter.h"
#include "tests/storage/power_cut_io.h"
#include "tests/storage/state_file_fixture.h"
#include "tests/support/or_die.h"
#include "tests/support/reference_files.h"

namespace kvrun::testing {
namespace {

constexpr char kDamagedName[] = "s";
constexpr uint64_t kExampleId = 0x1122334455667788;

// With an id that is always the same.
class ExampleIo : public PowerCutIo {
 public:
  ExampleIo() : PowerCutIo(1) {}
  uint64_t NewFileId() override { return kExampleId; }
};

// What is known of a damaged file: an error, or it is one of the states.
::testing::AssertionResult IsRefusedOrOneOf(ExampleIo& io, const std::vector<StateModel>& states,
                                            int* n_refused) {
  const auto file = StateFile::Open(kDamagedName, true, &io);
  if (!file.ok()) {
    ++*n_refused;
    const StatusCode code = file.status().code();
    if (code == StatusCode::kCorrupt || code == StatusCode::kUnsupported)
      return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << file.status().message();
  }
  const Result<StateModel> found = LoadState(**file);
  if (!found.ok()) {
    ++*n_refused;
    if (found.status().code() == StatusCode::kCorrupt) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << found.status().message();
  }
  if (std::find(states.begin(), states.end(), *found) != states.end()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "a state that never was";
}

TEST(StateFileDamage, FlipsAndCutsAreSeenOrLeaveAnEarlierSave) {
  ExampleIo io;
  Random random(11);
  std::vector<StateModel> states;
  {
    const auto file = OrDie(StateFile::Create(kDamagedName, &io));
    StateModel model = {{KeyOf(1), StatePattern(300, 1)}, {KeyOf(2), {}}, {KeyOf(3), StatePattern(1, 2)}};
    for (int i = 0; i < 4; ++i) {
      states.push_back(model);
      RunOrDie(SaveState(*file, model));
      model = Changed(std::move(model), random, 2000);
    }
  }
  const StateBytes whole = io.Bytes(kDamagedName);
  std::vector<size_t> said;  // where it says anything
  for (size_t i = 0; i < whole.size(); ++i) {
    if (whole[i] != std::byte{}) said.push_back(i);
  }
  int n_refused = 0;
  for (int trial = 0; trial < 20'000 && !HasFailure(); ++trial) {
    SCOPED_TRACE(trial);
    StateBytes bytes = whole;
    if (random.Below(4) == 0) bytes.resize(random.Below(static_cast<uint32_t>(bytes.size())));
    for (uint32_t n = random.Below(4) + 1; n > 0 && !bytes.empty(); --n) {
      size_t at = random.Below(static_cast<uint32_t>(bytes.size()));
      if (random.Below(8) != 0) at = said[random.Below(static_cast<uint32_t>(said.size()))];
      if (at < bytes.size()) bytes[at] ^= std::byte{1} << random.Below(8);
    }
    io.Bytes(kDamagedName) = bytes;
    EXPECT_TRUE(IsRefusedOrOneOf(io, states, &n_refused));
  }
  EXPECT_GT(n_refused, 2000);
  EXPECT_LT(n_refused, 19'000);
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
      "byte 73728: the session has to be computed again, or its file copied again");
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
  EXPECT_EQ(
      message_with(12, 1),
      "the session's file s is of version 1 with flags 0x1, and this kvrun reads flags 0: use the kvrun "
      "that wrote it, or compute the session again");
  EXPECT_EQ(
      message_with(16, 4096),
      "the session's file s has chunks of 4096 bytes and blocks of 4096, and this kvrun reads 65536 and "
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
  const uint64_t before_bytes = CurrentHeapUse().live_bytes;
  const auto file = StateFile::Open(kDamagedName, true, &io);
  EXPECT_LE(CurrentHeapUse().live_bytes - before_bytes, most_bytes);
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
