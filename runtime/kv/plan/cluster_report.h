// What has become of clusters: for statistics.
#pragma once

#include <cstdint>

namespace kvrun {

// What clusters that grew and were divided have cost while decoding. Pages are those of flash that were
// touched (kFlashPageBytes).
struct ClusterMoves {
  uint64_t new_entries = 0;        // that were stored
  uint64_t moved_entries = 0;      // that went to another place, as their cluster was divided
  uint64_t rewritten_entries = 0;  // that were stored, and lay in records that changed: moved ones too
  uint64_t loaded_entries = 0;     // that were read for it
  uint64_t pages_written = 0;
  uint64_t pages_read = 0;
  // What a file without gaps would have moved: all behind. Its pages with the new entries'.
  uint64_t naive_entries = 0;
  uint64_t naive_pages = 0;
};

// What is wanted, whether it lies in slots or not: entries on flash, and maximal runs of them that adjoin.
struct WantedRuns {
  uint64_t entries = 0;
  uint64_t runs = 0;
};

// Of all streams of all layers; counts since the session began.
struct ClusterReport {
  uint64_t clusters = 0;
  uint64_t entries = 0;  // that are stored
  uint64_t pending = 0;
  double variance = 0.0;          // of an entry's cluster, on average
  double cluster_variance = 0.0;  // of a cluster, on average: each counts as one, however large
  uint64_t divisions = 0;
  uint64_t forced_loads = 0;     // of clusters that were not chosen, as too many entries were pending
  uint64_t put_off = 0;          // tokens and lists whose upkeep waited, as the token had changed enough
  uint64_t joined_for_room = 0;  // entries beyond the threshold, which the index had no room to divide for
  ClusterMoves moves;
  // Of reads, those for maintenance too: records, and maximal runs of clusters that adjoin on flash.
  uint64_t records_read = 0;
  uint64_t runs = 0;
  // Of what decode steps chose: as it lies, and as the clusters alone would be.
  WantedRuns wanted;
  uint64_t wanted_clusters = 0;
  // The same in the order of the text; of those steps for which it was asked (CountTextRuns).
  WantedRuns wanted_in_text;
};

}  // namespace kvrun
