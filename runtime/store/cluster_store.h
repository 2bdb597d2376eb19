// Records of clusters on flash. A *cluster* is a set of KV entries that are read together, in consecutive
// records of one size. Knows bytes, not attention. Format: docs/formats/kv_clusters.md.
//
// Clusters gain and lose records at their end all the time, and nothing on flash is ever moved. So each has
// room for the most records that it may have, its *half*; two halves, of ids 2p and 2p + 1, are a *pool*. In
// the layout kDualHead, the even cluster grows from the pool's front upwards and the odd one from the pool's
// end downwards: the odd cluster of a pool adjoins the even cluster of the next pool without a gap, however
// many records they have. Callers number clusters so that those that are wanted together adjoin there, and
// both are read at once. In kCluster all grow upwards, to compare with.
//
// A cluster's place follows from its id: no table of places is needed. A checksum (XXH3, its low 32 bits,
// seeded with the place) of every cluster is kept in memory: what is bad, old or from another place is found
// whatever the disk answers, and is never handed out.
//
// Threads: one at a time, and no other than the file's. Write, Flush, Fetch and Forget allocate nothing, but
// for messages of errors.
//
// Source: DynaKV, section 5.2. Its buffers of a page's size are the caller's pending entries.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "platform/base/status.h"
#include "platform/io/block_file.h"
#include "runtime/store/checked_read.h"
#include "runtime/store/cluster_files.h"
#include "runtime/store/staged_file.h"

struct XXH3_state_s;

namespace kvrun {

struct ClusterStoreShape {
  uint32_t n_layers = 0;
  uint32_t n_streams = 0;
  uint32_t n_clusters = 0;    // ids of a layer's stream: [0, n_clusters)
  uint32_t max_records = 0;   // of a cluster
  uint32_t record_bytes = 0;  // as in a slot, without padding
  ClusterLayout layout = ClusterLayout::kDualHead;
  // Of a file that is kept: halves for ids of a layer's stream in it, no fewer; so a longer context finds
  // clusters where a shorter one has left them. 0: n_clusters.
  uint32_t lane_clusters = 0;
};

class ClusterStore final : public ClusterFiles {
 public:
  // Reserves the file's space and registers the staging with it. `staging_bytes` bounds the ring that all
  // writes and reads go through: at least a half, that is max_records * record_bytes rounded up to the
  // alignment; with more, more is in flight at once.
  static Result<std::unique_ptr<ClusterStore>> Create(std::unique_ptr<BlockFile> file,
                                                      const ClusterStoreShape& shape, uint64_t staging_bytes);
  ~ClusterStore() override = default;  // waits for what is in flight
  ClusterStore(const ClusterStore&) = delete;
  ClusterStore& operator=(const ClusterStore&) = delete;

  // What a store of this shape holds in memory: 8 bytes for each cluster (or half, where a lane has more),
  // 4 for each of one layer, staging, tables of requests, and its file's. UINT64_MAX: more than can be.
  static uint64_t MemoryBytes(const ClusterStoreShape& shape, uint64_t staging_bytes, const IoMode& mode);
  // What it takes on flash, from the start. UINT64_MAX: more than can be.
  static uint64_t FileBytes(const ClusterStoreShape& shape, const IoMode& mode);

  // The cluster has `records` from now on, 1 to max_records side by side; those before first_changed
  // are what they were (a Fetch finds where that is wrong). Writes the pages that changed, and all where the
  // cluster counts as not written; nothing where only records at the end went. Returns when `records` may be
  // reused; errors of a write show once, in a later call of Write, Flush or Fetch. Clusters whose write has
  // failed, and the cluster of a Write that answers an error, count as not written. (But for
  // kInvalidArgument, which changes nothing.)
  Status Write(uint32_t layer, uint32_t stream, uint32_t cluster, uint32_t first_changed,
               std::span<const std::byte> records) override;
  // Waits for all writes. (The system may still hold them in memory: nothing is kept beyond the process.)
  Status Flush() override;
  // Reads clusters of one layer that were written, whole, into memory of the caller, in any order; each
  // cluster at most once. What adjoins on flash is one read, up to 1 MiB or what the staging allows. A
  // cluster whose checksum is wrong is read once more. An error names layer, stream and clusters, and says
  // that the sequence has to be computed again; the memory then holds anything, and the store goes on.
  Status Fetch(uint32_t layer, std::span<const ClusterFetch> fetches) override;
  // The cluster counts as not written from now on. Ids that there are not are ignored.
  void Forget(uint32_t layer, uint32_t stream, uint32_t cluster) override;
  // kInvalidArgument where what is loaded lies otherwise in the file, or is more than there is room for.
  Status VisitState(StateVisitor& visitor) override;

  uint64_t CountRuns(uint32_t layer, uint32_t stream, std::span<const uint32_t> clusters) const override;

  const IoMode& mode() const override { return file_.mode(); }
  const ClusterStoreStats& stats() const override { return stats_; }

 private:
  // What is known of a cluster, by its place: (layer * n_streams + stream) * lane + cluster. Both or neither.
  struct Entry {
    uint32_t checksum = kNotWritten;
    uint32_t n_records = 0;
  };

  struct FreeHashState {
    void operator()(XXH3_state_s* state) const;
  };

  // Bytes of the file.
  struct Extent {
    uint64_t offset = 0;
    uint64_t bytes = 0;
    uint64_t end() const { return offset + bytes; }
    uint64_t flash_pages() const {
      return bytes == 0 ? 0 : (end() - 1) / kFlashPageBytes - offset / kFlashPageBytes + 1;
    }
  };

  // What a request of the file is for; at its index.
  struct Request {
    StagedFile::Request* io = nullptr;  // null before the first of this index
    uint64_t place = 0;                 // of a write: the cluster's
    uint32_t first = 0;                 // of a read: fetches of order_[first, first + n)
    uint32_t n = 0;
    CheckedRead read;  // its clusters
  };

  ClusterStore(StagedFile file, const ClusterStoreShape& shape, uint64_t staging_bytes);

  static uint64_t HalfBytes(const ClusterStoreShape& shape, const IoMode& mode);
  static uint32_t Lane(const ClusterStoreShape& shape);
  static uint64_t NumClusters(const ClusterStoreShape& shape);
  uint64_t Place(uint32_t layer, uint32_t stream, uint32_t cluster) const;
  std::span<Entry> EntriesOf(uint32_t layer, uint32_t stream) {
    return {entries_.get() + Place(layer, stream, 0), shape_.n_clusters};
  }
  Status TakeEntries(std::span<const Entry> loaded, uint32_t layer, uint32_t stream);
  bool GrowsDown(uint64_t place) const;
  // What lies `near` to `far` bytes from the end of the half that the cluster grows from.
  Extent At(uint64_t place, uint64_t near, uint64_t far) const;
  Extent Bytes(uint64_t place) const;  // of the cluster's records
  Extent Pages(uint64_t place) const;  // the same, rounded to the alignment
  // "layer 1, stream 0, clusters 3 to 5": for messages.
  std::string Named(uint64_t first_place, uint64_t last_place) const;
  bool IsThere(uint32_t layer, uint32_t stream, uint32_t cluster) const;
  Status CheckIds(uint32_t layer, uint32_t stream, uint32_t cluster, const char* what) const;

  // Sends what is queued, waits for so many completions (no more than there are requests), and handles all
  // that are there.
  Status Poll(uint32_t wait_for);
  Status TakeWriteError();

  // Writing.
  Status WriteChanged(uint64_t place, uint32_t first_changed, std::span<const std::byte> records);
  Status WaitForWrite(uint64_t place);
  // Those of the records' bytes that lie `near` or more from where the half grows from, as on flash.
  void CopyToStaging(uint64_t place, uint64_t near, std::span<const std::byte> records, const Extent& pages,
                     std::byte* staged) const;
  void OnWritten(Request& request, int error_number);

  // Reading.
  Status CheckFetches(uint32_t layer, std::span<const ClusterFetch> fetches) const;
  Status CheckWritten(uint32_t layer, std::span<const ClusterFetch> fetches) const;
  Status PrepareFetch(uint32_t layer, std::span<const ClusterFetch> fetches);
  Status SortFetches();
  void CountRuns();
  Status FetchAll();
  const ClusterFetch& Fetched(uint32_t index) const { return fetches_[order_[index]]; }
  uint64_t FetchedPlace(uint32_t index) const;
  // How many clusters from this one on one request reads, and their pages.
  uint32_t RunLength(uint32_t first, Extent& pages) const;
  bool StartRead(uint32_t first, uint32_t n, const Extent& pages);
  void OnRead(Request& request, int error_number);
  std::byte* StagedPages(const Request& request, uint32_t index) const;
  // Checks the cluster, and hands its records out.
  bool Accept(const Request& request, uint32_t index);
  void ReadAgain(Request& request);
  const std::byte* Record(uint64_t place, const std::byte* pages, uint32_t index) const;
  uint32_t Checksum(uint64_t place, const std::byte* pages) const;

  ClusterStoreShape shape_;
  uint32_t lane_;
  uint64_t half_bytes_;
  uint64_t halves_per_stream_;
  uint64_t longest_read_bytes_;                              // of several clusters
  std::unique_ptr<Entry[]> entries_;                         // by place
  std::unique_ptr<uint32_t[]> order_;                        // of the Fetch that runs: its fetches by place
  std::unique_ptr<XXH3_state_s, FreeHashState> hash_state_;  // for bytes that do not lie in their order
  std::span<const ClusterFetch> fetches_;
  uint32_t fetched_layer_ = 0;
  std::vector<Request> requests_;
  Status write_error_;  // not told yet
  Status read_error_;   // of the Fetch that runs
  ClusterStoreStats stats_;
  StagedFile file_;  // the first to go: requests in flight use the members above
};

}  // namespace kvrun
