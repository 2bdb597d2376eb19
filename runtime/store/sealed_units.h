// What a file of sealed units knows of each: whether it is there, and what opens it. Bookkeeping and
// ciphers: it reads and writes no file.
//
// Each time that a file is opened it gets another key: of the key that is given and 32 random bytes, the
// opening's *salt*. What is written is sealed under that key, with a number that counts up as its nonce. So a
// file, or its whole disk, may be put back to what it was any number of times: no nonce meets its key again.
// Units of earlier openings stay under the keys of those, whose salts are saved as long as a unit needs them.
//
// Memory holds the count of each unit's nonce: an older version of the unit had another one, and does not
// open. The tag lies behind the unit's used bytes where there is room for it, else in memory, too.
//
// Threads: one at a time, but for Open with an Opener of the thread's own: of those, any number at a time,
// and nothing else meanwhile. Seal, Open and Forget allocate nothing, but for messages of errors.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "platform/base/status.h"
#include "platform/io/seal.h"
#include "platform/io/secret_key.h"
#include "runtime/store/state_visitor.h"

namespace kvrun {

// The units of a file, of unit_bytes each.
struct SealedShape {
  uint64_t size_bytes = 0;  // of all units, rounded up to whole ones
  uint32_t unit_bytes = 0;
  uint32_t used_bytes = 0;  // of a unit, from its begin on; the others are read as zeros. 0: all
  // A lane is so many units one after another, of which the first held_units may be there: memory is for
  // those alone. 0: one lane of all, which grows with the file.
  uint32_t lane_units = 0;
  uint32_t held_units = 0;

  uint32_t n_units() const;  // 0: none, or more than can be
  bool has_tags_in_units() const { return used_bytes > 0 && unit_bytes - used_bytes >= kTagBytes; }
};

class SealedUnits {
 public:
  // Openings whose units are there, and this one.
  static constexpr uint32_t kMostOpenings = 65536;

  // What a thread opens units with beside the one that has the units: it has the keys.
  class Opener {
   private:
    friend class SealedUnits;
    std::optional<Sealer> own;                     // of this opening
    std::array<std::optional<Sealer>, 2> earlier;  // by cipher: for units of openings before this
    std::array<uint32_t, 2> earlier_of{UINT32_MAX, UINT32_MAX};  // whose key it has
  };
  // About: the ciphers' tables.
  static constexpr uint64_t kOpenerBytes = 8 * 1024;

  // Without any that is there. `shape`: of at least one unit. `number`: of the file, among those that have
  // the same key: what is of another one does not open.
  static Result<SealedUnits> Create(const SecretKey& key, const SealedShape& shape, uint32_t number);
  // For each unit that may be there 8, and 16 where its tag is in memory; openings before this one take 80
  // each, where units of them are there.
  static uint64_t MemoryBytes(const SealedShape& shape);

  uint32_t n_units() const { return n_units_; }
  // So many, where there are fewer.
  Status Grow(uint32_t n_units);
  bool IsThere(uint32_t unit) const {
    const size_t at = IndexOf(unit);
    return at != kNowhere && places_[at] != 0;
  }
  // The unit is there from now on, as `sealed`, which is as long as `plain`, the same memory or apart from
  // it. Where it fails, the unit is not there. kInvalidArgument: it cannot be.
  Status Seal(uint32_t unit, std::span<const std::byte> plain, std::span<std::byte> sealed);
  // In place. kCorrupt: it is not what was sealed last. Where it fails, or there is no such unit, the bytes
  // are zeros.
  Status Open(uint32_t unit, std::span<std::byte> bytes) { return Open(unit, bytes, &own_opener_); }
  Status Open(uint32_t unit, std::span<std::byte> bytes, Opener* opener) const;
  Result<Opener> MakeOpener() const;
  // After VisitState has loaded.
  Status Prepare(Opener* opener) const;
  void Forget(uint32_t first_unit, uint32_t end_unit);

  // Which units are there, what opens them, and the salts that they need. Loading: before all else. kCorrupt
  // where it contradicts itself, or there are too many openings; kInvalidArgument where units are there that
  // there is no room for.
  Status VisitState(StateVisitor& visitor);

 private:
  using Salt = std::array<std::byte, kSaltBytes>;

  using Tag = std::array<std::byte, kTagBytes>;
  static constexpr size_t kNowhere = SIZE_MAX;

  struct SavedOpening {
    uint32_t number;
    uint32_t cipher;
    Salt salt;
  };
  // One before this.
  struct Opening {
    uint32_t number = 0;
    Cipher cipher = Cipher::kAes256Gcm;
    Salt salt{};
    SecretKey key;
  };

  SealedUnits(const SecretKey& key, const SealedShape& shape, uint32_t number, Sealer sealer);

  std::array<std::byte, 12> AssociatedOf(uint32_t unit) const;
  // In the tables; kNowhere: it cannot be there.
  size_t IndexOf(uint32_t unit) const {
    if (shape_.lane_units == 0) return unit;
    const uint32_t at = unit % shape_.lane_units;
    return at < shape_.held_units ? size_t{unit / shape_.lane_units} * shape_.held_units + at : kNowhere;
  }
  uint32_t UnitOf(size_t at) const;
  uint32_t lane_places() const { return shape_.lane_units == 0 ? n_units_ : shape_.held_units; }
  size_t n_places() const;
  // What opens units of that opening: kept until those of another one are opened.
  Result<Sealer*> SealerOf(uint32_t opening, Opener* opener) const;
  const Opening* Find(uint32_t opening) const;
  std::vector<SavedOpening> OpeningsThatAreNeeded();
  Status TakeOpenings(const std::vector<SavedOpening>& saved);
  Status VisitLane(StateVisitor& visitor, uint32_t lane);
  Status CheckPlaces(uint32_t lane, uint64_t n_loaded) const;
  Status Contradicts(const std::string& why) const;

  SecretKey key_;  // as it was given
  uint32_t n_units_ = 0;
  SealedShape shape_;
  uint32_t number_;
  // As it is saved: the opening's number in the 16 highest bits, then the nonce's count; 0: the unit is not
  // there.
  std::unique_ptr<uint64_t[]> places_;
  std::unique_ptr<Tag[]> tags_;  // null: they lie in units

  Sealer sealer_;  // of this opening
  Salt salt_{};
  uint32_t opening_ = 0;
  uint64_t count_ = 0;  // of nonces that it has used

  std::vector<Opening> before_;  // ascending by number
  Opener own_opener_;
};

}  // namespace kvrun
