// What a file of sealed units saves and loads, and that no nonce is used twice.
#include "runtime/store/sealed_units.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/storage/sealed_fixture.h"
#include "tests/support/sanitized.h"
#include "tests/support/seeds.h"

namespace kvrun::testing {
namespace {

struct SavedOpening {
  uint32_t number;
  uint32_t cipher = 1;
  std::array<std::byte, kSaltBytes> salt{};
};
struct SavedUnit {
  uint64_t place;
  std::array<std::byte, kTagBytes> tag{};
};

class SealedUnitsTest : public SealedFileTest {
 protected:
  Status Load(const std::vector<SavedOpening>& openings, const std::vector<SavedUnit>& units) {
    RunOrDie(state_->BeginSave());
    RunOrDie(state_->Put({StatePart::kSeals, 0}, std::as_bytes(std::span(openings))));
    std::vector<uint64_t> places;
    std::vector<std::array<std::byte, kTagBytes>> tags;
    for (const SavedUnit& unit : units) {
      places.push_back(unit.place);
      tags.push_back(unit.tag);
    }
    RunOrDie(state_->Put({StatePart::kSeals, 1}, std::as_bytes(std::span(places))));
    RunOrDie(state_->Put({StatePart::kSeals, 2}, std::as_bytes(std::span(tags))));
    RunOrDie(state_->Commit());
    loaded_.emplace(OrDie(SealedUnits::Create(KeyNumber(1), shape_, 0)));
    StateLoader loader(*state_);
    return loaded_->VisitState(loader);
  }
  void ExpectRefused(const std::vector<SavedOpening>& openings, const std::vector<SavedUnit>& units,
                     const std::string& part, StatusCode code = StatusCode::kCorrupt) {
    const Status status = Load(openings, units);
    EXPECT_EQ(status.code(), code) << part;
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  }
  static uint64_t Place(uint64_t opening, uint64_t count) { return opening << 48 | count; }

  SealedShape shape_ = ShapeOf(kSealedBytes);
  std::optional<SealedUnits> loaded_;
};

TEST_F(SealedUnitsTest, WhatContradictsItselfIsRefused) {
  EXPECT_TRUE(Load({{0}, {7}}, {{Place(0, 1)}, {0}, {Place(7, 9)}}).ok());
  ExpectRefused({{1}}, {{Place(0, 1)}}, "unit 0 is of no opening");
  ExpectRefused({{0}}, {{Place(0, 1)}, {Place(1, 1)}}, "unit 1 is of no opening");
  ExpectRefused({{1}}, {{Place(1, 0)}}, "unit 0 is of no opening");
  ExpectRefused({{1}, {1}}, {}, "opening 1 comes late");
  ExpectRefused({{2}, {1}}, {}, "opening 1 comes late");
  ExpectRefused({{65536}}, {}, "opening 65536 comes late, or cannot be");
  ExpectRefused({{0, 257}}, {}, "there is no cipher 257");
  ExpectRefused({{0, 9}}, {}, "cipher 9 is not known", StatusCode::kUnsupported);
  ExpectRefused({{0}}, std::vector<SavedUnit>(kSealedUnits + 1, {Place(0, 1)}), "room for 12",
                StatusCode::kInvalidArgument);
}

// What docs/formats/session.md says, done by hand, with the cipher that this machine would not take, too.
TEST_F(SealedUnitsTest, UnitsThatWereSealedAsThePageSaysOpen) {
  for (const Cipher cipher : {Cipher::kAes256Gcm, Cipher::kChaCha20Poly1305}) {
    SCOPED_TRACE(CipherName(cipher));
    SavedOpening opening{300, static_cast<uint32_t>(cipher)};
    FillPattern(opening.salt, 0, 7);
    Sealer sealer =
        OrDie(Sealer::Create(cipher, OrDie(DeriveKey(KeyNumber(1), opening.salt, "kvrun sealed units"))));
    constexpr uint64_t kCount = 0x0605040302;
    constexpr uint32_t kUnit = 2;
    const std::array<uint32_t, 3> associated = {0, kUnit, kUnitBytes};
    SavedUnit unit{Place(300, kCount)};
    std::vector<std::byte> bytes(kUnitBytes);
    FillPattern(bytes, 0, 9);
    RunOrDie(sealer.Seal(MakeNonce(0, kCount), std::as_bytes(std::span(associated)), bytes, bytes, unit.tag));
    ASSERT_TRUE(Load({opening}, {{0}, {0}, unit}).ok());
    EXPECT_TRUE(loaded_->IsThere(kUnit) && !loaded_->IsThere(1));
    ASSERT_TRUE(loaded_->Open(kUnit, bytes).ok());
    EXPECT_TRUE(HoldsPattern(bytes, 0, 9));
  }
}

// The same where the tag lies behind the used bytes: what is between them is not told of.
TEST_F(SealedUnitsTest, TagsLieInUnitsThatHaveRoom) {
  shape_.used_bytes = kUnitBytes - kTagBytes;
  ASSERT_TRUE(Load({}, {}).ok());
  std::vector<std::byte> plain(kUnitBytes);
  FillPattern(plain, 0, 9);
  std::vector<std::byte> sealed(kUnitBytes);
  RunOrDie(loaded_->Seal(2, plain, sealed));
  for (const size_t at :
       {size_t{0}, size_t{kUnitBytes} - 17, size_t{kUnitBytes} - 16, size_t{kUnitBytes} - 1}) {
    std::vector<std::byte> changed = sealed;
    changed[at] ^= std::byte{1};
    EXPECT_EQ(loaded_->Open(2, changed).code(), StatusCode::kCorrupt) << at;
    EXPECT_TRUE(AreZeros(changed));
  }
  std::vector<std::byte> older = sealed;
  RunOrDie(loaded_->Seal(2, plain, sealed));
  EXPECT_EQ(loaded_->Open(2, older).code(), StatusCode::kCorrupt) << "what it was before";
  std::vector<std::byte> elsewhere = sealed;
  RunOrDie(loaded_->Seal(3, plain, plain));
  EXPECT_EQ(loaded_->Open(3, elsewhere).code(), StatusCode::kCorrupt);
  RunOrDie(loaded_->Open(2, sealed));
  EXPECT_TRUE(HoldsPattern(std::span(sealed).first(shape_.used_bytes), 0, 9));
  EXPECT_TRUE(AreZeros(std::span(sealed).last(kTagBytes)));
  EXPECT_EQ(SealedUnits::MemoryBytes(shape_), 8U * kSealedUnits);
  shape_.used_bytes += 1;
  EXPECT_EQ(SealedUnits::MemoryBytes(shape_), 24U * kSealedUnits) << "there is no room";
}

// Memory is for the units of a lane that may be there, and a longer lane finds what a shorter one saved.
TEST_F(SealedUnitsTest, LanesHoldTheirFirstUnits) {
  shape_.lane_units = 5;  // so that the last lane is not whole
  shape_.held_units = 2;
  EXPECT_EQ(SealedUnits::MemoryBytes(shape_), 24U * 3 * 2);
  auto shorter = OrDie(SealedUnits::Create(KeyNumber(1), shape_, 0));
  std::vector<std::byte> units[2] = {std::vector<std::byte>(kUnitBytes), std::vector<std::byte>(kUnitBytes)};
  for (int i = 0; i < 2; ++i) FillPattern(units[i], 0, static_cast<uint64_t>(i));
  RunOrDie(shorter.Seal(5, units[0], units[0]));
  RunOrDie(shorter.Seal(11, units[1], units[1]));
  EXPECT_EQ(shorter.Seal(7, units[0], units[0]).code(), StatusCode::kInvalidArgument);
  EXPECT_FALSE(shorter.IsThere(7));
  EXPECT_TRUE(shorter.IsThere(5) && shorter.IsThere(11) && !shorter.IsThere(1));
  RunOrDie(state_->BeginSave());
  StateSaver saver(*state_);
  RunOrDie(shorter.VisitState(saver));
  RunOrDie(state_->Commit());
  const auto load = [&](uint32_t held_units) {
    shape_.held_units = held_units;
    loaded_.emplace(OrDie(SealedUnits::Create(KeyNumber(1), shape_, 0)));
    StateLoader loader(*state_);
    return loaded_->VisitState(loader);
  };
  EXPECT_EQ(load(1).code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(load(4).ok());
  RunOrDie(loaded_->Open(5, units[0]));
  RunOrDie(loaded_->Open(11, units[1]));
  EXPECT_TRUE(HoldsPattern(units[0], 0, 0) && HoldsPattern(units[1], 0, 1));
  EXPECT_TRUE(loaded_->Seal(8, units[0], units[0]).ok());
  loaded_->Forget(4, 9);
  EXPECT_TRUE(!loaded_->IsThere(5) && !loaded_->IsThere(8) && loaded_->IsThere(11));
}

// Numbers are used again, until no more openings can be told apart.
TEST_F(SealedUnitsTest, NumbersOfOpeningsDoNotRunOut) {
  std::vector<SavedOpening> openings;
  for (uint32_t number = 0; number < SealedUnits::kMostOpenings; ++number) openings.push_back({number});
  ExpectRefused(openings, {}, "was opened 65536 times");
  openings.erase(openings.begin() + 40'000);
  ASSERT_TRUE(Load(openings, {{Place(65535, 1)}}).ok());
  std::vector<std::byte> bytes(kUnitBytes);
  ASSERT_TRUE(loaded_->Seal(3, bytes, bytes).ok());
  RunOrDie(state_->BeginSave());
  StateSaver saver(*state_);
  RunOrDie(loaded_->VisitState(saver));
  RunOrDie(state_->Commit());
  std::vector<SavedOpening> saved(2);
  ASSERT_EQ(NumOpenings(), 2U) << "all others are needed by none";
  RunOrDie(state_->Read({StatePart::kSeals, 0}, 0, std::as_writable_bytes(std::span(saved))));
  EXPECT_EQ(saved[0].number, 40'000U);
  EXPECT_EQ(saved[1].number, 65'535U);
}

// --- Nonces: units of zeros are sealed to what key and nonce alone make of them. So where a pair is used
// twice, anywhere, two units begin alike.

// The first bytes of each unit that is written to a file: of zeros they are what its key and nonce make.
using Streams = std::vector<std::array<std::byte, 16>>;

class WatchedFile final : public WrappingFile {
 public:
  WatchedFile(std::unique_ptr<BlockFile> file, Streams* streams)
      : WrappingFile(std::move(file)), streams_(streams) {}
  Result<size_t> Submit(std::span<const IoRequest> requests) override {
    for (const IoRequest& request : requests) {
      if (request.kind == IoKind::kRead) continue;
      for (const iovec& segment : request.segments) {
        for (size_t at = 0; at < segment.iov_len; at += kUnitBytes) {
          std::memcpy(streams_->emplace_back().data(), static_cast<std::byte*>(segment.iov_base) + at, 16);
        }
      }
    }
    return file_->Submit(requests);
  }

 private:
  Streams* streams_;
};

class NonceHistory : public SealedFileTest {
 public:
  void TestBody() override {}
  // One file, which is written, saved, opened and put back; all that was ever written goes into `all`.
  void Run(uint64_t seed, std::set<std::array<std::byte, 16>>* all, int* n_put_back) {
    Random random(seed);
    Streams streams;
    const SecretKey key = KeyNumber(5);
    const auto open = [&] { return TryOpen(std::make_unique<WatchedFile>(Below(), &streams), key); };
    RunOrDie(open());
    std::vector<std::pair<PowerCutDisk, std::vector<std::byte>>> backups;
    const std::vector<std::byte> zeros(kUnitBytes);
    for (uint32_t n = 4 + random.Below(12); n > 0; --n) {
      const uint32_t kind = random.Below(10);
      if (kind < 6) {
        const AlignedMemory memory(size_t{1 + random.Below(3)} * kUnitBytes);
        memory.Fill(0);
        ASSERT_EQ(DoOne(*file_, IoKind::kWrite, uint64_t{random.Below(8)} * kUnitBytes, memory.span()), 0);
      } else if (kind == 6) {
        if (random.Below(3) == 0) io_.FailAt(random.Below(12), EIO, false);
        (void)TrySave();
        io_.Revive();
        RunOrDie(open());
      } else if (kind == 7) {
        Save();
      } else if (kind == 8) {
        Save();
        Close();
        backups.emplace_back(disk_, io_.Bytes(kSealedName));
        RunOrDie(open());
      } else if (!backups.empty()) {
        Close();
        const auto& [disk, state] = backups[random.Below(static_cast<uint32_t>(backups.size()))];
        disk_ = disk;
        io_.Bytes(kSealedName) = state;
        RunOrDie(open());
        ++*n_put_back;
      }
    }
    for (const auto& stream : streams) EXPECT_TRUE(all->insert(stream).second) << "a nonce is used twice";
    Close();
  }
};

TEST(SealedNonces, NoNonceIsUsedTwice) {
  if (!CheckEncryption().ok()) GTEST_SKIP() << CheckEncryption().message();
  const Seeds seeds = SeedsHere(kIsSanitized ? 200 : 10'000);
  std::set<std::array<std::byte, 16>> all;
  int n_put_back = 0;
  for (uint64_t seed = seeds.first; seed < seeds.end() && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    NonceHistory().Run(seed, &all, &n_put_back);
  }
  if (seeds.n < 200) return;
  EXPECT_GT(all.size(), seeds.n);
  EXPECT_GT(n_put_back, static_cast<int>(seeds.n / 100));
}

// So it would be found.
TEST(SealedNonces, ANonceThatIsUsedTwiceIsSeen) {
  if (!CheckEncryption().ok()) GTEST_SKIP() << CheckEncryption().message();
  Sealer sealer = OrDie(Sealer::Create(PreferredCipher(), KeyNumber(5)));
  std::vector<std::byte> sealed[3];
  std::array<std::byte, kTagBytes> tag;
  for (uint64_t i = 0; i < 3; ++i) {
    sealed[i].resize(kUnitBytes);
    const std::array<std::byte, 1> unit = {static_cast<std::byte>(i)};
    RunOrDie(sealer.Seal(MakeNonce(0, i / 2), unit, std::vector<std::byte>(kUnitBytes), sealed[i], tag));
  }
  EXPECT_TRUE(std::equal(sealed[0].begin(), sealed[0].begin() + 16, sealed[1].begin()));
  EXPECT_FALSE(std::equal(sealed[0].begin(), sealed[0].begin() + 16, sealed[2].begin()));
}

}  // namespace
}  // namespace kvrun::testing
