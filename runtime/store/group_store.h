// Records of KV groups on flash. Knows bytes, not attention. Format: docs/formats/kv_groups.md.
//
// A stream's groups of a layer lie side by side, padded to the alignment of direct I/O, so that a prefill
// writes long runs, and neighbours are read at once.
//
// A checksum (XXH3, its low 32 bits, seeded with the record's place) of every record is kept in memory: a
// bad, stale or misdirected record is found whatever the disk answers, and is never handed out.
//
// Threads: one at a time, and no other than the file's. Append, Flush and Fetch allocate nothing, but for
// messages of errors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "platform/base/status.h"
#include "platform/io/block_file.h"
#include "runtime/store/checked_read.h"
#include "runtime/store/record_store.h"
#include "runtime/store/staged_file.h"
#include "runtime/store/state_visitor.h"

namespace kvrun {

struct GroupStoreShape {
  uint32_t n_layers = 0;
  uint32_t n_streams = 0;
  uint32_t n_groups = 0;      // per layer and stream, at most
  uint32_t record_bytes = 0;  // as in a slot, without padding
  // Of a file that is kept: places of a stream's groups of a layer in it, no fewer; so a longer context finds
  // records where a shorter one has left them. 0: n_groups.
  uint32_t lane_groups = 0;
};

using GroupStoreStats = StoreStats;

class GroupStore final : public RecordStore {
 public:
  // Reserves the file's space and registers the staging with it. `staging_bytes` bounds the ring that writes
  // go through, and reads where records are padded or memory is not aligned: at least a padded record; from
  // 1 MiB on, runs of 256 KiB and more are written in one request. Whoever wants reads to land in memory that
  // is registered does that with the file before.
  static Result<std::unique_ptr<GroupStore>> Create(std::unique_ptr<BlockFile> file,
                                                    const GroupStoreShape& shape, uint64_t staging_bytes);
  ~GroupStore() override = default;  // waits for what is in flight
  GroupStore(const GroupStore&) = delete;
  GroupStore& operator=(const GroupStore&) = delete;

  // What a store of this shape holds in memory: checksums, staging, tables of requests, and its file's.
  static uint64_t MemoryBytes(const GroupStoreShape& shape, uint64_t staging_bytes, const IoMode& mode);
  // What it takes on flash, from the start. UINT64_MAX: more than can be.
  static uint64_t FileBytes(const GroupStoreShape& shape, const IoMode& mode);

  // Writes records [first_group, first_group + records.size() / record_bytes) and notes their checksums;
  // records that were there are replaced. Returns when `records` may be reused; errors of a write show here,
  // or once in a later call of Append, Flush or Fetch. Groups whose write has failed, and all groups of an
  // Append that answers an error, count as not written.
  Status Append(uint32_t layer, uint32_t stream, uint32_t first_group,
                std::span<const std::byte> records) override;
  // Waits for all writes. (The system may still hold them in memory: nothing is kept beyond the process.)
  Status Flush() override;
  // Reads records of one layer that were appended, into memory of the caller. `fetches` by stream, and those
  // of a stream by ascending group, for merging. A record whose checksum is wrong is read once more. An error
  // names layer, stream and groups, and says that the sequence has to be computed again; the memory then
  // holds anything. Memory that the system cannot read into directly is filled through the staging from then
  // on, and a note in mode() says so.
  Status Fetch(uint32_t layer, std::span<const GroupFetch> fetches) override;
  // Forgets the groups from `n_groups` on, in all layers: they may be appended again.
  Status Truncate(uint32_t stream, uint32_t n_groups) override;

  // Saves, loads or counts which groups are there, and their checksums; the file keeps them. With no write
  // under way; loading is into a store without groups, of the same records and lanes. Of each stream what
  // lies behind the first n_lasting groups is loaded only where n_lasting is what it was; before that all is,
  // and kInvalidArgument says that there are more.
  Status VisitState(StateVisitor& visitor, uint32_t n_lasting);
  // kIo: a write of the stream's first n_groups has failed, in any layer, so that it has to be computed
  // again.
  Status CheckWritten(uint32_t stream, uint32_t n_groups) const;

  const IoMode& mode() const { return mode_; }
  const GroupStoreStats& stats() const { return stats_; }

 private:
  // Groups of one layer and stream, side by side on flash.
  struct Run {
    uint32_t layer = 0;
    uint32_t stream = 0;
    uint32_t first_group = 0;
    uint32_t n_groups = 0;
  };

  // What a request of the file is for; at its index.
  struct Request {
    StagedFile::Request* io = nullptr;  // null before the first of this index
    Run run;
    const GroupFetch* fetches = nullptr;  // of a read: the run's
    CheckedRead read;                     // its records
  };

  GroupStore(StagedFile file, const GroupStoreShape& shape, uint64_t staging_bytes);

  static uint64_t StrideBytes(const GroupStoreShape& shape, const IoMode& mode);
  static uint64_t NumRecords(const GroupStoreShape& shape);
  static uint32_t LaneGroups(const GroupStoreShape& shape);
  uint64_t Place(const Run& run, uint32_t index) const;        // of the run's record, among all of the file
  uint32_t NumWritten(uint32_t layer, uint32_t stream) const;  // up to the last group that is there
  std::span<uint32_t> ChecksumsOf(uint32_t layer, uint32_t stream) const;
  uint32_t& ChecksumAt(const Run& run, uint32_t index) const {
    return ChecksumsOf(run.layer, run.stream)[run.first_group + index];
  }
  uint32_t Checksum(const std::byte* record, uint64_t place) const;
  std::byte* Staged(const Request& request, uint32_t index) const;
  Status CheckRun(const Run& run, const char* what) const;
  void Forget(const Run& run);

  void Queue(Request& request, uint32_t first);  // from the run's record of this index on
  // Sends what is queued, waits for so many completions (no more than there are requests), and handles all
  // that are there.
  Status Poll(uint32_t wait_for);
  Status TakeWriteError();

  // Writing.
  Status AppendRuns(const Run& run, std::span<const std::byte> records);
  bool StartWrite(const Run& run, const std::byte* records);
  Status WaitForWrites(const Run& run);
  void OnWritten(Request& request, int error_number);

  // Reading.
  Status PrepareFetch(uint32_t layer, std::span<const GroupFetch> fetches);
  Status FetchAll(uint32_t layer, std::span<const GroupFetch> fetches);
  Status CheckFetch(uint32_t layer, std::span<const GroupFetch> fetches) const;
  // How many of the first fetches one request reads.
  uint32_t RunLength(std::span<const GroupFetch> fetches) const;
  bool ReadsInPlace(const GroupFetch& fetch) const;
  bool StartRead(const Run& run, const GroupFetch* fetches);
  void SetSegments(Request& request, uint32_t first, uint32_t n);
  void OnRead(Request& request, int error_number);
  // Checks the record and hands it out.
  bool Accept(const Request& request, uint32_t index);

  GroupStoreShape shape_;
  uint64_t stride_bytes_;                  // from record to record on flash
  uint32_t staged_groups_;                 // of the longest run that goes through the staging
  std::unique_ptr<uint32_t[]> checksums_;  // [n_layers, n_streams, n_groups]; kNotWritten
  std::vector<Request> requests_;
  bool reads_in_place_ = true;   // where alignments allow it
  bool memory_refused_ = false;  // a read in place of the Fetch that runs has met EFAULT
  Status write_error_;           // not told yet
  Status read_error_;            // of the Fetch that runs
  GroupStoreStats stats_;
  IoMode mode_;      // the file's, and what was noticed here
  StagedFile file_;  // the first to go: requests in flight use the members above
};

}  // namespace kvrun
