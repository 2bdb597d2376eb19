// The bytes of a state file: its headers and the records of its tables. docs/formats/state_file.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "platform/base/status.h"
#include "runtime/store/state_file.h"

struct XXH3_state_s;

namespace kvrun {

inline constexpr uint32_t kStateVersion = 1;
// Headers have blocks of their own, and segments begin at one: no write touches a block of what is valid.
inline constexpr uint32_t kStateBlockBytes = 4096;
// So many, and it is written anew: each is read at the start. More there are only where that has failed.
inline constexpr uint64_t kManyStateSegments = 1024;
inline constexpr uint64_t kMostStateSegments = 65536;
inline constexpr uint64_t kMostStateItems = uint64_t{1} << 24;  // of a save

// Of a file that is sealed: between each thing that is sealed and the next.
inline constexpr uint32_t kStateTagBytes = 16;
using StateSalt = std::array<std::byte, 32>;

// XXH3 of 128 bits: its low 64 bits, then the high ones, each little-endian.
using StateCheck = std::array<std::byte, 16>;

StateCheck StateCheckOf(std::span<const std::byte> bytes, uint64_t file_id);

// The same of bytes that come in pieces.
class StateChecker {
 public:
  explicit StateChecker(uint64_t file_id);
  void Add(std::span<const std::byte> bytes);
  StateCheck Value() const;

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, Free> state_;
};

struct StateFileHeader {
  static constexpr size_t kBytes = 64;
  uint64_t file_id = 0;
  uint32_t cipher = 0;  // 0: the file is plain

  bool is_sealed() const { return cipher != 0; }

  std::array<std::byte, kBytes> Encode() const;
  // `path`: for messages.
  // Whether a file that begins so, with less than a header, may have been cut off.
  static bool MayBegin(std::span<const std::byte> bytes);
  static Result<StateFileHeader> Decode(std::span<const std::byte, kBytes> bytes, const std::string& path);
};

struct StateSegmentHeader {
  static constexpr size_t kBytes = 128;
  // In a file that is sealed: what is sealed of it, and where the tag is instead of the check.
  static constexpr size_t kFieldsAt = 8;
  static constexpr size_t kFieldsBytes = 64;
  static constexpr size_t kCheckAt = 112;

  uint64_t number = 0;  // of the segment, in its file
  uint64_t payload_bytes = 0;
  uint64_t n_items = 0;   // records of the table
  uint64_t n_chunks = 0;  // the same
  StateCheck table_check{};
  // The check of the header before it, which has that of the one before that: what lies behind it in another
  // history of the same file does not follow here. Zeros in the first one.
  StateCheck previous_check{};
  StateSalt salt{};        // of a segment that is sealed; else zeros
  uint32_t tag_bytes = 0;  // behind each chunk and each piece of the table; not in the header

  uint64_t table_bytes() const;
  uint64_t table_bytes_in_file() const;  // with tags

  std::array<std::byte, kBytes> Encode(uint64_t file_id) const;
  // Of the header itself.
  StateCheck Check(uint64_t file_id) const;
  static StateCheck CheckIn(std::span<const std::byte, kBytes> bytes);
  // False where the bytes are no header of this file; `header` is what they say, then, too. Else that can be
  // added up without overflow, and there are no more items and chunks than there can be.
  static bool Decode(std::span<const std::byte, kBytes> bytes, uint64_t file_id, StateSegmentHeader* header);
  // Parts of it, for files that are sealed: false where these bytes are no such header.
  static bool TakeSalt(std::span<const std::byte, kBytes> bytes, StateSegmentHeader* header);
  static bool TakeFields(std::span<const std::byte, kBytes> bytes, StateSegmentHeader* header);
};

// Of a table: one for each item that is not as it was, and its chunks that are not.
struct StateItemRecord {
  static constexpr size_t kBytes = 32;
  enum class Kind : uint32_t { kIs = 1, kIsGone = 2 };
  StateKey key;
  Kind kind = Kind::kIs;
  uint32_t n_chunks = 0;  // whose records follow
  uint64_t size_bytes = 0;

  std::array<std::byte, kBytes> Encode() const;
  static bool Decode(std::span<const std::byte, kBytes> bytes, StateItemRecord* record);
};

struct StateChunkRecord {
  static constexpr size_t kBytes = 32;
  uint32_t index = 0;         // in its item
  uint64_t offset_bytes = 0;  // in the file
  StateCheck check{};

  std::array<std::byte, kBytes> Encode() const;
  static bool Decode(std::span<const std::byte, kBytes> bytes, StateChunkRecord* record);
};

// "item 3 of part 5 (layer 2, stream 0)".
std::string StateKeyInWords(const StateKey& key);

}  // namespace kvrun
