// How a state file is sealed that nobody is to read without its key. Format: docs/formats/state_file.md.
//
// Each segment has a key of its own, of the key that is given and the 32 random bytes in the segment's
// header. In a segment nothing lies where something else does: what it is and its place are the nonce.
//
// Threads: one at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "platform/base/status.h"
#include "platform/io/seal.h"
#include "platform/io/secret_key.h"
#include "runtime/store/state_format.h"

namespace kvrun {

enum class StateSealed : uint32_t { kHeader = 1, kChunk = 2, kTable = 3 };

// Behind the header of a file that is sealed: what tells whether a key is its own.
struct StateSealHeader {
  static constexpr size_t kBytes = 64;
  StateSalt salt{};
  KeyCheck key_check{};

  static Result<StateSealHeader> Of(const SecretKey& key);  // with a salt of its own
  std::array<std::byte, kBytes> Encode(uint64_t file_id) const;
  // False: it is not what was written.
  static bool Decode(std::span<const std::byte, kBytes> bytes, uint64_t file_id, StateSealHeader* header);
  Result<bool> IsOf(const SecretKey& key) const;
};

class StateSealer {
 public:
  // kUnsupported: there is no such cipher.
  static Result<StateSealer> Create(Cipher cipher, const SecretKey& key, uint64_t file_id);

  // A segment begins there, behind all that there are; those from there on were none. Answers its salt.
  Result<StateSalt> BeginSegment(uint64_t begin_bytes);
  Status AddSegment(uint64_t begin_bytes, const StateSalt& salt);
  void DropSegmentsFrom(uint64_t begin_bytes);

  // What lies at that place of a segment. `sealed`: the bytes, then the tag.
  Status Seal(StateSealed what, uint64_t place_bytes, std::span<const std::byte> plain,
              std::span<std::byte> sealed);
  // kCorrupt: it is not what was sealed.
  Status Open(StateSealed what, uint64_t place_bytes, std::span<const std::byte> sealed,
              std::span<std::byte> plain);

  // A segment's header. Decode adds the segment, where it is one.
  Result<std::array<std::byte, StateSegmentHeader::kBytes>> EncodeHeader(const StateSegmentHeader& header,
                                                                         uint64_t begin_bytes);
  bool DecodeHeader(std::span<const std::byte, StateSegmentHeader::kBytes> bytes, uint64_t begin_bytes,
                    StateSegmentHeader* header);

  uint64_t MemoryBytes() const { return segments_.capacity() * (sizeof(Segment) + SecretKey::kBytes); }

 private:
  struct Segment {
    uint64_t begin_bytes;
    SecretKey key;
  };

  StateSealer(const SecretKey& key, uint64_t file_id, Sealer sealer);
  Status Prepare(uint64_t place_bytes);  // the key of the segment that it lies in
  std::array<std::byte, 8> Associated() const;

  SecretKey key_;
  uint64_t file_id_;
  std::vector<Segment> segments_;  // ascending
  Sealer sealer_;
  uint64_t sealer_of_ = UINT64_MAX;  // where the segment begins whose key it has; none
};

}  // namespace kvrun
