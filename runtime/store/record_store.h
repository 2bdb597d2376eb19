// Where records of KV groups lie, whatever holds them. Knows bytes, not attention.
//
// A *stream* is what selects on its own: one sequence, or one KV head of one sequence. A record's place is
// fixed by (layer, stream, group).
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "platform/base/status.h"

namespace kvrun {

struct GroupFetch {
  uint32_t stream = 0;
  uint32_t group = 0;           // or another record's id, of readers whose records are not of groups
  std::byte* memory = nullptr;  // of a record's size; complete and checked when Fetch returns
};

class RecordFetcher {
 public:
  virtual ~RecordFetcher() = default;
  // Reads records of one layer that are stored, into memory of the caller. `fetches` by stream, and those of
  // a stream by ascending group.
  virtual Status Fetch(uint32_t layer, std::span<const GroupFetch> fetches) = 0;
};

class RecordStore : public RecordFetcher {
 public:
  // Keeps whole records, of the groups from first_group on; those that were there are replaced. Returns when
  // `records` may be reused.
  virtual Status Append(uint32_t layer, uint32_t stream, uint32_t first_group,
                        std::span<const std::byte> records) = 0;
  // Waits until everything is where it stays.
  virtual Status Flush() = 0;
  // Forgets the groups from `n_groups` on, in all layers: they may be appended again.
  virtual Status Truncate(uint32_t stream, uint32_t n_groups) = 0;
};

}  // namespace kvrun
