// State files that are sealed: who reads them, what is in them, and what is written.
#include "runtime/store/state_seal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "platform/io/seal.h"
#include "tests/storage/numbered_key.h"
#include "tests/storage/power_cut_io.h"
#include "tests/storage/state_file_fixture.h"
#include "tests/support/or_die.h"

namespace kvrun::testing {
namespace {

constexpr char kSealedState[] = "s";

class SealedState : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!CheckEncryption().ok()) GTEST_SKIP() << CheckEncryption().message();
  }

  std::unique_ptr<StateFile> Create() { return OrDie(StateFile::Create(kSealedState, &io_, &key_)); }
  Result<std::unique_ptr<StateFile>> Open(const SecretKey* key, bool read_only = false) {
    return StateFile::Open(kSealedState, read_only, &io_, key);
  }
  uint64_t Written(StateFile& file, const StateModel& model) {
    const uint64_t before = file.counters().written_bytes;
    RunOrDie(SaveState(file, model));
    return file.counters().written_bytes - before;
  }

  PowerCutIo io_{1};
  const SecretKey key_ = KeyNumber(1);
};

TEST_F(SealedState, IsReadWithItsKeyAlone) {
  const StateModel model = {{KeyOf(1), StatePattern(3 * kStateChunkBytes + 5, 1)}, {KeyOf(2), {}}};
  RunOrDie(SaveState(*Create(), model));
  for (const bool read_only : {false, true}) {
    EXPECT_TRUE(Holds(*OrDie(Open(&key_, read_only)), model));
    const SecretKey other = KeyNumber(2);
    const Status wrong = Open(&other, read_only).status();
    EXPECT_EQ(wrong.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(wrong.message(),
              "the session's file s is encrypted under another key: give the one that it was made with "
              "(--session-key), or name another session");
    const Status none = Open(nullptr, read_only).status();
    EXPECT_EQ(none.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(
        none.message(),
        "the session's file s is encrypted: give the key that it was made with (--session-key), or name "
        "another session");
  }
  EXPECT_TRUE(OrDie(StateFile::IsSealed(kSealedState, &io_)));
  RunOrDie(SaveState(*OrDie(StateFile::Create(kSealedState, &io_)), model));
  EXPECT_FALSE(OrDie(StateFile::IsSealed(kSealedState, &io_)));
  const Status plain = Open(&key_).status();
  EXPECT_EQ(plain.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(plain.message(),
            "the session's file s is not encrypted, and there is a key for it: open it without a key "
            "(--session-key), or name another session");
  EXPECT_EQ(StateFile::IsSealed("none", &io_).status().code(), StatusCode::kNotFound);
}

// No 16 bytes of an item, nor of what tables say, at any place of the file.
TEST_F(SealedState, TellsNothing) {
  StateModel model;
  for (uint16_t item = 0; item < 700; ++item) model[KeyOf(item)] = StatePattern(100, item);  // a long table
  model[KeyOf(1000)] = StatePattern(2 * kStateChunkBytes + 40, 5000);
  auto file = Create();
  RunOrDie(SaveState(*file, model));
  model[KeyOf(1000)][3] ^= std::byte{1};
  model[KeyOf(3)] = StatePattern(30, 7000);
  RunOrDie(SaveState(*file, model));
  EXPECT_TRUE(Holds(*OrDie(Open(&key_, true)), model));

  const auto windows = [](std::span<const std::byte> bytes, const auto& visit) {
    for (size_t at = 0; at + 16 <= bytes.size(); ++at)
      visit(std::string(reinterpret_cast<const char*>(bytes.data()) + at, 16));
  };
  std::set<std::string> secret;
  for (const auto& [key, bytes] : model) {
    windows(bytes, [&](std::string window) { secret.insert(std::move(window)); });
    const auto record = StateItemRecord{key, StateItemRecord::Kind::kIs, 1, bytes.size()}.Encode();
    secret.insert(std::string(reinterpret_cast<const char*>(record.data()), 16));
  }
  const auto count = [&](const StateBytes& bytes) {
    size_t n = 0;
    windows(bytes, [&](const std::string& window) { n += secret.count(window); });
    return n;
  };
  EXPECT_EQ(count(io_.Bytes(kSealedState)), 0U);
  RunOrDie(SaveState(*OrDie(StateFile::Create("plain", &io_)), model));
  EXPECT_GT(count(io_.Bytes("plain")), 90'000U) << "in a plain file all of it is found";
}

TEST_F(SealedState, WhatHasNotChangedIsNotWritten) {
  StateModel model = {{KeyOf(1), StatePattern(10 * kStateChunkBytes, 1)}, {KeyOf(2), StatePattern(100, 2)}};
  auto file = Create();
  Written(*file, model);
  EXPECT_EQ(Written(*file, model), 0U);
  const uint64_t few = kStateBlockBytes + StateSegmentHeader::kBytes + kStateBlockBytes;
  model[KeyOf(1)][5 * kStateChunkBytes] ^= std::byte{1};
  EXPECT_EQ(Written(*file, model), kStateChunkBytes + few);  // with tags no more blocks
  file.reset();
  file = OrDie(Open(&key_));
  EXPECT_EQ(Written(*file, model), 0U) << "of another process, too";
  model[KeyOf(2)].push_back(std::byte{1});
  EXPECT_EQ(Written(*file, model), few);
  EXPECT_TRUE(Holds(*OrDie(Open(&key_, true)), model));
}

// The same saves, from the same file: nothing of theirs is alike.
TEST_F(SealedState, EachSaveHasAKeyOfItsOwn) {
  RunOrDie(SaveState(*Create(), {{KeyOf(1), StatePattern(500, 1)}}));
  const StateBytes before = io_.Bytes(kSealedState);
  std::vector<StateBytes> after;
  for (int branch = 0; branch < 2; ++branch) {
    io_.Bytes(kSealedState) = before;
    RunOrDie(SaveState(*OrDie(Open(&key_)), {{KeyOf(1), StatePattern(500, 2)}}));
    after.push_back(io_.Bytes(kSealedState));
  }
  ASSERT_EQ(after[0].size(), after[1].size());
  ASSERT_GT(after[0].size(), before.size() + kStateBlockBytes);
  size_t n_alike = 0;
  const size_t payload = before.size() + kStateBlockBytes;
  for (size_t at = payload; at < payload + 500; ++at) n_alike += after[0][at] == after[1][at] ? 1 : 0;
  EXPECT_LT(n_alike, 50U);
  // A segment of one does not go with the file of the other: its header is not of the table behind it.
  StateBytes mixed = after[0];
  std::copy(after[1].begin() + static_cast<ptrdiff_t>(payload), after[1].end(),
            mixed.begin() + static_cast<ptrdiff_t>(payload));
  io_.Bytes(kSealedState) = mixed;
  EXPECT_EQ(Open(&key_).status().code(), StatusCode::kCorrupt);
}

TEST_F(SealedState, AChangedByteIsNeverRead) {
  const StateBytes bytes = StatePattern(2 * kStateChunkBytes + 10, 1);
  RunOrDie(SaveState(*Create(), {{KeyOf(1), bytes}}));
  const size_t begin = 2 * kStateBlockBytes;
  for (const size_t at : {size_t{7}, size_t{kStateChunkBytes - 1}, size_t{kStateChunkBytes + 15}}) {
    io_.Bytes(kSealedState)[begin + at] ^= std::byte{16};  // a byte, the last one, its tag
    const auto file = OrDie(Open(&key_, true));
    StateBytes part(10, std::byte{9});
    const Status status = file->Read(KeyOf(1), 0, part);
    EXPECT_EQ(status.code(), StatusCode::kCorrupt);
    EXPECT_NE(status.message().find("item 1 of part 3 (layer 0, stream 0) is not what was written"),
              std::string::npos)
        << status.message();
    EXPECT_EQ(part, StateBytes(10, std::byte{9})) << "nothing of it is handed out";
    EXPECT_TRUE(file->Read(KeyOf(1), kStateChunkBytes, part).ok());
    io_.Bytes(kSealedState)[begin + at] ^= std::byte{16};
  }
}

// All that is in the clear: each of its bits.
TEST_F(SealedState, AHeaderThatWasChangedIsSeen) {
  RunOrDie(SaveState(*Create(), {{KeyOf(1), StatePattern(500, 1)}}));
  for (size_t at = 0; at < StateFileHeader::kBytes + StateSealHeader::kBytes; ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      io_.Bytes(kSealedState)[at] ^= std::byte{1} << bit;
      EXPECT_EQ(Open(&key_, true).status().code(), StatusCode::kCorrupt) << at;
      io_.Bytes(kSealedState)[at] ^= std::byte{1} << bit;
    }
  }
  EXPECT_TRUE(Open(&key_, true).ok());
  // One that is whole and names a cipher that there is not.
  const auto header = OrDie(StateFileHeader::Decode(
      std::span<const std::byte>(io_.Bytes(kSealedState)).first<StateFileHeader::kBytes>(), "s"));
  const auto other = StateFileHeader{header.file_id, 9}.Encode();
  std::copy(other.begin(), other.end(), io_.Bytes(kSealedState).begin());
  EXPECT_EQ(Open(&key_, true).status().code(), StatusCode::kUnsupported);
}

// What docs/formats/state_file.md says, undone by hand.
TEST_F(SealedState, IsSealedAsThePageSays) {
  const StateBytes item = StatePattern(100, 1);
  RunOrDie(SaveState(*Create(), {{KeyOf(1), item}}));
  const std::span<const std::byte> bytes = io_.Bytes(kSealedState);
  const auto salt = bytes.subspan(kStateBlockBytes + 72).first<kSaltBytes>();
  const auto cipher = static_cast<Cipher>(bytes[32]);
  Sealer sealer = OrDie(Sealer::Create(cipher, OrDie(DeriveKey(key_, salt, "kvrun state segment"))));
  const std::span<const std::byte> id = bytes.subspan(24, 8);
  const auto open = [&](uint32_t what, uint64_t place, std::span<const std::byte> sealed, size_t tag_at) {
    StateBytes plain(sealed.size());
    RunOrDie(
        sealer.Open(MakeNonce(what, place), id, sealed, plain, bytes.subspan(tag_at).first<kTagBytes>()));
    return plain;
  };
  const StateBytes header =
      open(1, kStateBlockBytes, bytes.subspan(kStateBlockBytes + 8, 64), kStateBlockBytes + 112);
  EXPECT_EQ(header[8], std::byte{116}) << "the payload's bytes: the chunk and its tag";
  EXPECT_EQ(header[16], std::byte{1});
  const size_t payload = 2 * kStateBlockBytes;
  EXPECT_EQ(open(2, payload, bytes.subspan(payload, 100), payload + 100), item);
  const StateBytes table = open(3, payload + 116, bytes.subspan(payload + 116, 64), payload + 116 + 64);
  const auto record = StateItemRecord{KeyOf(1), StateItemRecord::Kind::kIs, 1, 100}.Encode();
  EXPECT_TRUE(std::equal(record.begin(), record.end(), table.begin()));
  EXPECT_EQ(bytes.size(), payload + kStateBlockBytes);
}

TEST_F(SealedState, MemoryIsThatOfTables) {
  const auto file = Create();
  RunOrDie(SaveState(*file, {{KeyOf(1), StatePattern(400 * kStateChunkBytes, 1)}}));
  EXPECT_LE(file->MemoryBytes(), 401 * 24 + 48U + 48);
}

}  // namespace
}  // namespace kvrun::testing
