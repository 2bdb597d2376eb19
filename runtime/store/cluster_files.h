// What clusters lie in on flash, however they lie there. A *cluster* is a set of KV entries that are read
// together, in records of one size.
//
// Threads: one at a time. Write, Flush, Fetch and Forget allocate nothing, but for messages of errors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "platform/base/status.h"
#include "platform/io/block_file.h"
#include "runtime/store/staged_file.h"
#include "runtime/store/state_visitor.h"

namespace kvrun {

// kDualHead, kCluster: ClusterStore. kSequence: entries in the order of the text (SequenceClusters).
enum class ClusterLayout : uint8_t { kDualHead, kCluster, kSequence };

// Of flash, for statistics: what a disk rewrites where a byte changes.
inline constexpr uint64_t kFlashPageBytes = 4096;

struct ClusterFetch {
  uint32_t stream = 0;
  uint32_t cluster = 0;
  uint32_t n_records = 0;  // all that the cluster has
  // [n_records]: where each record goes; null: it is read, as the checksum needs it, and dropped.
  std::span<std::byte* const> memory;
};

struct ClusterStoreStats : StoreStats {
  // Maximal runs of bytes of wanted clusters, within one Fetch, that adjoin on flash without a gap:
  // records_read / runs is their mean length in records.
  uint64_t runs = 0;
  // Pages of kFlashPageBytes that requests touched, whatever the file's alignment.
  uint64_t pages_read = 0;
  uint64_t pages_written = 0;
};

class ClusterFiles {
 public:
  virtual ~ClusterFiles() = default;

  // The cluster has `records` from now on, side by side; those before first_changed are what they were.
  // Returns when `records` may be reused; errors of a write show once, in a later call of Write, Flush or
  // Fetch. What was not written counts as not there.
  virtual Status Write(uint32_t layer, uint32_t stream, uint32_t cluster, uint32_t first_changed,
                       std::span<const std::byte> records) = 0;
  // Waits for all writes.
  virtual Status Flush() = 0;
  // Reads clusters of one layer that were written, whole, into memory of the caller, in any order; each
  // cluster at most once. An error says that the sequence has to be computed again; the memory then holds
  // anything, and the store goes on.
  virtual Status Fetch(uint32_t layer, std::span<const ClusterFetch> fetches) = 0;
  // The cluster counts as not written from now on.
  virtual void Forget(uint32_t layer, uint32_t stream, uint32_t cluster) = 0;
  // Saves, loads or counts what is known of the clusters (which of them are there, and their checksums); the
  // file keeps them. With no write under way; loading is into what holds nothing.
  virtual Status VisitState(StateVisitor& visitor) = 0;
  // Maximal runs without a gap that the entries of these clusters (ascending) lie in.
  virtual uint64_t CountRuns(uint32_t layer, uint32_t stream, std::span<const uint32_t> clusters) const = 0;

  virtual const IoMode& mode() const = 0;
  virtual const ClusterStoreStats& stats() const = 0;
};

}  // namespace kvrun
