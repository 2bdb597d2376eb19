// A file that is read, and not mapped: where it is cut, or its disk fails, while it is read, that is an error
// and no signal that ends the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "platform/base/status.h"
#include "platform/io/unique_fd.h"

namespace kvrun {

// Move-only; safe to read from several threads. Who renames another file onto its name changes nothing here.
class InputFile {
 public:
  // kInvalidArgument where it is no regular file: a pipe is not waited for.
  static Result<InputFile> Open(const std::string& path);

  InputFile() = default;

  const std::string& path() const { return path_; }
  uint64_t size_bytes() const { return size_bytes_; }  // when it was opened

  // Fills all of `to`. kCorrupt where the file has become too short, kIo where it cannot be read; the message
  // names file and place, and says what to do.
  Status Read(uint64_t offset_bytes, std::span<std::byte> to) const;
  Result<std::vector<std::byte>> ReadAll() const;
  // This will soon be read: the system may begin to, and returns at once.
  void WillNeed(uint64_t offset_bytes, uint64_t size_bytes) const;

  // kCorrupt where its size or its time of change is another than when it was opened: what was read may be of
  // two files.
  Status CheckUnchanged() const;
  // Whether `path` is a name of this file, of which it may have several.
  bool HasName(const std::string& path) const;

 private:
  std::string path_;
  UniqueFd fd_;
  uint64_t size_bytes_ = 0;
  int64_t changed_s_ = 0;  // st_mtim
  int64_t changed_ns_ = 0;
};

}  // namespace kvrun
