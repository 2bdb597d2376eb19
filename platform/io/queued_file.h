// What all back ends have in common: the table of requests, completions, counters. A back end hands
// transfers to the system and brings the answers back.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "platform/base/status.h"
#include "platform/io/backing_file.h"
#include "platform/io/block_file.h"
#include "platform/io/transfer.h"

namespace kvrun {

class QueuedFile : public BlockFile {
 public:
  const IoMode& mode() const final { return mode_; }
  Result<size_t> Submit(std::span<const IoRequest> requests) final;
  Result<size_t> Complete(std::span<IoCompletion> completions, size_t at_least) final;
  Status Reserve(uint64_t size_bytes) final;
  void RegisterMemory(std::span<const iovec>) override {}
  Status Sync() final;
  void Discard(uint64_t offset_bytes, uint64_t size_bytes) final;
  void DropCache() final;
  IoCounters counters() const final { return counters_; }

  // Writes and reads a block through the back end, and leaves no trace. Run once, before the file is used.
  Status Probe();
  // The same of a file that is not to be written to: reads its first block, if it has one.
  Status ProbeRead();

 protected:
  QueuedFile(std::shared_ptr<BackingFile> file, IoBackend backend, uint32_t queue_depth);
  // Waits for what is in flight. Every back end's destructor calls it first.
  void Drain();

  // Queues the transfer; it reaches the system with the next Kick or Reap at the latest.
  virtual void Start(uint32_t index) = 0;
  virtual Status Kick() = 0;
  // Hands answers to OnAnswer; waits for up to `wait_for` of them (never for more than are running), and
  // may come back earlier.
  virtual Status Reap(uint32_t wait_for) = 0;
  void OnAnswer(uint32_t index, int64_t answer);

  int fd() const { return file_->fd.get(); }
  const Transfer& transfer(uint32_t index) const { return transfers_[index]; }
  void AddNote(std::string note) { mode_.notes.push_back(std::move(note)); }

 private:
  // Alone. Answers the request's error number.
  Result<int> DoOne(IoKind kind, std::span<std::byte> bytes);
  void Finish(uint64_t tag, int error_number);
  void Count(const IoRequest& request);
  // The first failure of the back end stays: nothing is handed to it any more.
  Status Keep(Status status);

  std::shared_ptr<BackingFile> file_;
  IoMode mode_;
  IoCounters counters_;
  std::vector<Transfer> transfers_;
  std::vector<uint32_t> free_;      // of transfers_
  std::vector<IoCompletion> done_;  // a ring
  uint32_t done_begin_ = 0;
  uint32_t n_done_ = 0;
  uint32_t n_in_flight_ = 0;  // running or done, not handed out
  Status failure_;
};

// A file is shared so that the next back end can have it where one cannot be used.
Result<std::unique_ptr<QueuedFile>> MakeIoUringFile(std::shared_ptr<BackingFile> file, uint32_t queue_depth);
Result<std::unique_ptr<QueuedFile>> MakeAioFile(std::shared_ptr<BackingFile> file, uint32_t queue_depth);
Result<std::unique_ptr<QueuedFile>> MakeThreadPoolFile(std::shared_ptr<BackingFile> file,
                                                       uint32_t queue_depth);

uint32_t ThreadPoolSize(uint32_t queue_depth);

}  // namespace kvrun
