#include "runtime/store/checked_read.h"

#include <fmt/format.h>
#include <xxhash.h>

namespace kvrun {

uint32_t ChecksumOf(std::span<const std::byte> bytes, uint64_t seed, uint32_t least) {
  return AsChecksum(XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed), least);
}

Status CameBackChanged(std::string_view what, std::string_view whole) {
  return {
      StatusCode::kCorrupt,
      fmt::format("{} came back changed from flash, twice: the {} has to be computed again", what, whole)};
}

Status CannotBeRead(int error_number, std::string_view what) {
  return StatusFromErrno(
      error_number,
      fmt::format("{} cannot be read from flash, and the sequence has to be computed again", what));
}

Status CannotBeWritten(int error_number, std::string_view what) {
  return StatusFromErrno(error_number,
                         fmt::format("{} cannot be written to flash, and the sequence has to be computed "
                                     "again (--kv-dir names another folder)",
                                     what));
}

}  // namespace kvrun
