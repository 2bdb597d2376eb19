// What a file of sealed units knows of each: whether it is there, and what opens it. Bookkeeping and
// ciphers: it reads and writes no file.
//
// Each time that a file is opened it gets another key: of the key that is given and 32 random bytes, the
// opening's *salt*. What is written is sealed under that key, with a number that counts up as its nonce. So a
// file, or its whole disk, may be put back to what it was any number of times: no nonce meets its key again.
// Units of earlier openings stay under the keys of those, whose salts are saved as long as a unit needs them.
//
// Threads: one at a time. Seal, Open and Forget allocate nothing, but for messages of errors.
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

class SealedUnits {
 public:
  // Openings whose units are there, and this one.
  static constexpr uint32_t kMostOpenings = 65536;

  // Without any that is there. `number`: of the file, among those that have the same key: what is of another
  // one does not open.
  static Result<SealedUnits> Create(const SecretKey& key, uint32_t n_units, uint32_t unit_bytes,
                                    uint32_t number);
  // 24 for each unit; openings before this one take 80 each, where units of them are there.
  static uint64_t MemoryBytes(uint32_t n_units);

  uint32_t n_units() const { return n_units_; }
  // So many, where there are fewer.
  Status Grow(uint32_t n_units);
  bool IsThere(uint32_t unit) const { return table_[unit].place != 0; }
  // The unit is there from now on, as `sealed`, which is as long as `plain`, the same memory or apart from
  // it. Where it fails, the unit is not there.
  Status Seal(uint32_t unit, std::span<const std::byte> plain, std::span<std::byte> sealed);
  // In place. kCorrupt: it is not what was sealed last. Where it fails, or there is no such unit, the bytes
  // are zeros.
  Status Open(uint32_t unit, std::span<std::byte> bytes);
  void Forget(uint32_t first_unit, uint32_t end_unit);

  // Which units are there, what opens them, and the salts that they need. Loading: before all else. kCorrupt
  // where it contradicts itself, or there are too many openings; kInvalidArgument where units are there that
  // there is no room for.
  Status VisitState(StateVisitor& visitor);

 private:
  using Salt = std::array<std::byte, kSaltBytes>;

  // As it is saved. place: the opening's number in its 16 highest bits, then the nonce's count; 0: the unit
  // is not there.
  struct Entry {
    uint64_t place;
    std::array<std::byte, kTagBytes> tag;
  };
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

  SealedUnits(const SecretKey& key, uint32_t unit_bytes, uint32_t number, Sealer sealer);

  std::array<std::byte, 12> AssociatedOf(uint32_t unit) const;
  // What opens units of that opening: kept until those of another one are opened.
  Result<Sealer*> SealerOf(uint32_t opening);
  const Opening* Find(uint32_t opening) const;
  std::vector<SavedOpening> OpeningsThatAreNeeded();
  Status TakeOpenings(const std::vector<SavedOpening>& saved);
  Status VisitTable(StateVisitor& visitor);
  Status CheckTable(uint64_t n_loaded) const;
  Status Contradicts(const std::string& why) const;

  SecretKey key_;  // as it was given
  uint32_t n_units_ = 0;
  uint32_t unit_bytes_;
  uint32_t number_;
  std::unique_ptr<Entry[]> table_;

  Sealer sealer_;  // of this opening
  Salt salt_{};
  uint32_t opening_ = 0;
  uint64_t count_ = 0;  // of nonces that it has used

  std::vector<Opening> before_;                   // ascending by number
  std::array<std::optional<Sealer>, 2> openers_;  // by cipher: for units of those
  std::array<uint32_t, 2> opener_of_{};           // whose key it has
};

}  // namespace kvrun
