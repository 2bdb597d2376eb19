// What GgufFile::Parse does: from bytes to keys and tensors. Internal to gguf.cc.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "platform/base/status.h"
#include "runtime/model/gguf.h"

namespace kvrun {

// Value types of the GGUF format.
enum class GgufType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};

// Bytes of one value; 0 for strings, arrays and unknown types.
uint32_t GgufTypeBytes(uint32_t type);

// `text` in quotes for a message, at most 80 bytes of it, what is not printable ASCII as \xNN.
std::string QuoteForMessage(std::string_view text);

// A position in the file that cannot leave it, of which the beginning is in memory. Messages name neither
// file nor key: the callers add them.
class GgufCursor {
 public:
  GgufCursor(std::span<const std::byte> beginning, uint64_t file_bytes)
      : bytes_(beginning), file_bytes_(file_bytes) {}

  uint64_t position() const { return position_; }
  uint64_t remaining() const { return file_bytes_ - position_; }
  uint64_t remaining_in_memory() const { return bytes_.size() - position_; }
  uint64_t file_bytes() const { return file_bytes_; }
  // Above the length of the beginning where something failed because more of the file was needed.
  uint64_t wanted_bytes() const { return wanted_bytes_; }

  Result<std::span<const std::byte>> Take(uint64_t count, std::string_view what);
  Result<uint32_t> U32(std::string_view what);
  Result<uint64_t> U64(std::string_view what);
  Result<std::string_view> String();
  // A count of things that take at least `min_bytes` each.
  Result<uint64_t> Count(std::string_view what, uint64_t min_bytes);

 private:
  Status PastEnd(std::string_view what, uint64_t at) const;
  // Of what is in the file.
  Result<std::span<const std::byte>> TakeThere(uint64_t count);

  std::span<const std::byte> bytes_;
  uint64_t file_bytes_;
  uint64_t position_ = 0;
  uint64_t wanted_bytes_ = 0;
};

class GgufParser {
 public:
  GgufParser(GgufFile& file, std::span<const std::byte> beginning, uint64_t file_bytes)
      : file_(file), beginning_(beginning), cursor_(beginning, file_bytes) {}

  // Fills in the file. The message does not yet name the file.
  Status Run();
  // After a failure: as GgufCursor::wanted_bytes. The next attempt needs a GgufFile that is empty.
  uint64_t wanted_bytes() const { return cursor_.wanted_bytes(); }

 private:
  Status CheckMagicAndVersion();
  Status ReadKeys(uint64_t count);
  Result<GgufValue> ReadValue(uint32_t type);
  Result<GgufValue> ReadArray();
  Result<uint64_t> ReadAlignment() const;
  Status ReadTensors(uint64_t count);
  // `type` is the file's number, known or not.
  Result<GgufTensor> ReadTensorInfo(uint64_t& offset, uint32_t& type);
  void CountUnknown(const GgufTensor& tensor, uint32_t type, std::string_view where);
  Status ReadShape(GgufTensor& tensor);
  Status PlaceTensor(GgufTensor& tensor, uint64_t offset, uint64_t alignment, uint64_t data_start) const;
  Status CheckOverlap() const;

  GgufFile& file_;
  std::span<const std::byte> beginning_;
  GgufCursor cursor_;
};

}  // namespace kvrun
