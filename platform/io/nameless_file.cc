#include "platform/io/nameless_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>

#include "platform/io/folder.h"

namespace kvrun {
namespace {

// Where the file is to lie: the folder, or one above it that is on the same file system.
Result<std::string> Place(const BlockFileOptions& options) {
  const MissingParents parents =
      options.makes_parents ? MissingParents::kAreMade : MissingParents::kAreErrors;
  Status made;
  if (!options.only_tries) made = MakeFolder(options.folder, parents);
  Result<std::string> place = made.ok() ? NearestFolder(options.folder, parents) : made;
  if (place.ok()) return place;
  return Status(place.status().code(),
                place.status().message() + "; or name another folder for the KV cache with --kv-dir");
}

Result<UniqueFd> OpenWithoutName(const std::string& folder) {
  // O_EXCL: nobody can give it a name later.
  int fd = open(folder.c_str(), O_TMPFILE | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
  if (fd >= 0) return UniqueFd(fd);
  // Not known to the file system, or to the kernel; anything else mkostemp meets too, and says it better.
  std::string path = folder + "/kvrun-kv.XXXXXX";
  fd = mkostemp(path.data(), O_CLOEXEC);
  if (fd < 0) return CannotInFolder(errno, folder, "make a file in");
  UniqueFd file(fd);
  if (unlink(path.c_str()) != 0) return CannotInFolder(errno, folder, "remove the name of a file in");
  return file;
}

}  // namespace

Result<BackingFile> OpenNamelessFile(const BlockFileOptions& options) {
  if (options.folder.empty()) {
    return Status(StatusCode::kInvalidArgument,
                  "no folder for the KV cache is named: name one with --kv-dir");
  }
  BackingFile file;
  file.folder = options.folder;
  KVRUN_ASSIGN_OR_RETURN(const std::string place, Place(options));
  KVRUN_ASSIGN_OR_RETURN(file.fd, OpenWithoutName(place));
  const bool in_memory = IsInMemory(file.fd.get());
  if (in_memory && !options.allow_tmpfs) {
    return Status(
        StatusCode::kUnsupported,
        fmt::format(
            "{} lies in memory (tmpfs), where a KV cache saves no memory: name another folder with --kv-dir",
            file.folder));
  }
  if (in_memory)
    file.notes.push_back(file.folder + " lies in memory (tmpfs): the KV cache saves no memory there");
  KVRUN_RETURN_IF_ERROR(SetUpDirect(options, DirectTrial::kWriteAndRead, &file));
  if (ftruncate(file.fd.get(), 0) != 0) return CannotInFolder(errno, file.folder, "shorten a file in");
  return file;
}

Result<BackingFile> OpenBuffered(const BackingFile& file) {
  // Not a duplicate of the descriptor: direct I/O is set for all duplicates together.
  const std::string path = fmt::format("/proc/self/fd/{}", file.fd.get());
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return StatusFromErrno(errno, "cannot open a file without a name again");
  BackingFile buffered;
  buffered.fd = UniqueFd(fd);
  buffered.folder = file.folder;
  return buffered;
}

}  // namespace kvrun
