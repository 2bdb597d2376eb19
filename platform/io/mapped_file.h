// A read-only memory mapping of a whole file.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "platform/base/status.h"

namespace kvrun {

// Owns the mapping; move-only; safe to read from several threads. A file that shrinks while it is mapped
// is outside of what this can protect against (the system raises SIGBUS).
class MappedFile {
 public:
  static Result<MappedFile> Open(const std::string& path);

  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_bytes_}; }

  // Tells the system that the pages of `part` are not needed for now, so that resident memory falls.
  // Reading them again is allowed and reads the file again.
  void DropResidentPages(std::span<const std::byte> part) const;

 private:
  const std::byte* data_ = nullptr;
  size_t size_bytes_ = 0;
};

}  // namespace kvrun
