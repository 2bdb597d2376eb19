// Counts what is written to flash, and adds it to a file in which all processes of a user count, day by day:
// what a nameless file got has worn flash, too.
//
// The file is text (docs/formats/session.md), mode 0600, and is replaced as a whole. Who adds to it locks its
// folder meanwhile, so that nothing is lost where several do.
//
// Threads: any, at any time.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "platform/base/status.h"
#include "platform/io/block_file.h"
#include "runtime/store/written_days.h"

namespace kvrun {

// What all processes have written, by the file at `path`. Nothing where there is no file. kCorrupt: it holds
// something else.
Result<WrittenDays> ReadWritten(const std::string& path);
// Makes the file's folder (0700) where it is missing. A file that holds something else is replaced.
Status AddWritten(const std::string& path, uint32_t day, uint64_t bytes);

class WriteMeter {
 public:
  // `path`: of the file; empty: it is only counted here.
  explicit WriteMeter(std::string path) : path_(std::move(path)) {}
  ~WriteMeter() { (void)Flush(); }
  WriteMeter(const WriteMeter&) = delete;
  WriteMeter& operator=(const WriteMeter&) = delete;

  const std::string& path() const { return path_; }
  void Add(uint64_t bytes) { bytes_ += bytes; }
  uint64_t bytes() const { return bytes_; }
  // What was counted is in the file; what cannot be written there is tried again with the next call.
  Status Flush();
  // The same, once it is much: a process that is killed does not leave more than that out.
  static constexpr uint64_t kMuchBytes = uint64_t{64} << 20;
  void FlushIfMuch() {
    if (bytes_ - flushed_ >= kMuchBytes) (void)Flush();
  }

 private:
  const std::string path_;
  std::atomic<uint64_t> bytes_ = 0;
  std::atomic<uint64_t> flushed_ = 0;
  std::mutex mutex_;  // of who flushes
};

// `file`, whose writes count; the file itself where `meter` is null.
std::unique_ptr<BlockFile> Metered(std::unique_ptr<BlockFile> file, std::shared_ptr<WriteMeter> meter);

}  // namespace kvrun
