// A file that is read and written at given offsets, many requests at once.
//
// Order of back ends: io_uring, Linux AIO, a pool of threads; each first with direct I/O (past the page
// cache), then buffered. What is really in effect is measured when the file is opened and reported.
//
// Threads: one at a time; one that has submitted must not end while its requests are in flight. Nothing is
// allocated in Submit and Complete, but for messages of errors.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "platform/base/status.h"

namespace kvrun {

enum class IoBackend : uint8_t { kIoUring, kAio, kThreads };
enum class DirectIo : uint8_t { kAuto, kOn, kOff };  // kOn: an error where the file system has none

std::string_view IoBackendName(IoBackend backend);  // "io_uring", "aio", "threads"

// What is in effect.
struct IoMode {
  IoBackend backend = IoBackend::kThreads;
  bool direct = false;
  // Offsets, lengths and addresses of every request are multiples of this; 1 in buffered mode.
  uint32_t alignment_bytes = 1;
  uint32_t queue_depth = 0;
  // Why not something better, a sentence each: "io_uring cannot be used: Function not implemented".
  std::vector<std::string> notes;
};

enum class IoKind : uint8_t { kRead, kWrite };

// Segments are read or written one after another from `offset` on; they and their memory must stay until the
// request is complete. At most kMaxIoSegments.
struct IoRequest {
  IoKind kind = IoKind::kRead;
  uint64_t offset = 0;
  std::span<const iovec> segments;
  uint64_t tag = 0;  // the caller's
};
inline constexpr uint32_t kMaxIoSegments = 64;

struct IoCompletion {
  uint64_t tag = 0;
  // 0: all bytes were transferred. Else an errno, and the memory of a read holds anything: ENODATA: the file
  // ends before; EINVAL: too many segments, or not aligned as mode() asks for.
  int error_number = 0;
};

struct IoCounters {
  uint64_t reads = 0;  // requests, as given
  uint64_t read_bytes = 0;
  uint64_t writes = 0;
  uint64_t written_bytes = 0;
};

class BlockFile {
 public:
  virtual ~BlockFile() = default;  // waits for what is in flight

  virtual const IoMode& mode() const = 0;
  // Starts requests; fewer than given are taken where the queue is full (0 is possible): the answer says how
  // many. Those not handed out by Complete yet count as in flight. Short transfers are continued inside; a
  // request is complete or has failed as a whole. Requests in flight have no order among each other.
  // An error (here and of Complete) means that the back end itself failed: the file is of no use any more.
  virtual Result<size_t> Submit(std::span<const IoRequest> requests) = 0;
  // Waits until at least `at_least` (no more than are in flight) requests are complete, and hands out up to
  // completions.size() of them.
  virtual Result<size_t> Complete(std::span<IoCompletion> completions, size_t at_least) = 0;
  // Makes the file at least this long and reserves the space: a full disk shows here, not later, where the
  // file system can (else there is a note). With no request in flight.
  virtual Status Reserve(uint64_t size_bytes) = 0;
  // Adds memory that many requests will use: registered with the back end where that helps; where that fails
  // there is a note. It must stay until the file is destroyed. With no request in flight.
  virtual void RegisterMemory(std::span<const iovec> regions) = 0;
  // All that complete requests have written is on the disk, and no power cut takes it. With no request in
  // flight.
  virtual Status Sync() = 0;
  // Nobody needs these bytes any more, those of writes in flight included: a hint, by which their space may
  // be given back. What is read there afterwards is anything.
  virtual void Discard(uint64_t /*offset_bytes*/, uint64_t /*size_bytes*/) {}
  // Writes out and drops what the page cache holds of the file; nothing in direct mode.
  virtual void DropCache() = 0;
  virtual IoCounters counters() const = 0;
};

struct BlockFileOptions {
  std::string folder;          // where the file is made; it is made itself (0700) where it is missing
  bool makes_parents = false;  // of a folder that is missing, where they are too; else that is an error
  // To learn what there would be: makes no folder. In place of one that is missing, the nearest above it,
  // which is on the same file system, takes the file.
  bool only_tries = false;
  bool auto_backend = true;  // the best that works; else `backend` or an error
  IoBackend backend = IoBackend::kIoUring;
  DirectIo direct = DirectIo::kAuto;
  uint32_t queue_depth = 32;  // requests in flight, 1 to kMaxQueueDepth
  bool allow_tmpfs = false;   // a file in memory defeats its purpose: refused unless forced
};
inline constexpr uint32_t kMaxQueueDepth = 1024;

// Makes a nameless file (0600; O_TMPFILE, or unlinked at once), so that nothing is left behind however the
// process ends. Every choice is tried with a real write and read.
Result<std::unique_ptr<BlockFile>> CreateBlockFile(const BlockFileOptions& options);

// One nameless file through every back end that works, direct and buffered, to measure them: each of them
// reads what the others wrote. The first is what CreateBlockFile would give; others of its kind follow, then
// buffered ones. Only one may have requests in flight at a time. With `direct` kOff all are buffered.
Result<std::vector<std::unique_ptr<BlockFile>>> CreateBlockFileModes(const BlockFileOptions& options);

// Free for this user in the file system of a folder, or of the nearest above it that is there.
Result<uint64_t> FreeSpaceBytes(const std::string& folder);

// What a file in this mode holds in memory: its tables, the rings it shares with the system, and 16 KiB for
// the stack of each thread.
uint64_t BlockFileMemoryBytes(const IoMode& mode);

}  // namespace kvrun
