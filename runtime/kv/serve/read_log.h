// A reader that notes what is fetched from it, so that the same reads can be done again: for benchmarks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "platform/base/status.h"
#include "runtime/store/record_store.h"

namespace kvrun {

// Reads of chosen groups that were done again: for benchmarks.
struct RepeatedReads {
  uint64_t fetches = 0;  // each waits for its reads before the next begins
  uint64_t reads = 0;
  uint64_t read_bytes = 0;
  double milliseconds = 0.0;
};

class ReadLog final : public RecordFetcher {
 public:
  // `store` must outlive it.
  explicit ReadLog(RecordFetcher& store) : store_(store) {}

  Status Fetch(uint32_t layer, std::span<const GroupFetch> fetches) override;

  // Carries out the noted fetches once more, in their order, into the memory they went to, which must still
  // be there. Answers how many batches there were.
  Result<uint64_t> Repeat();

 private:
  // Of one layer: fetches [begin, begin + count).
  struct Batch {
    uint32_t layer = 0;
    size_t begin = 0;
    size_t count = 0;
  };

  RecordFetcher& store_;
  std::vector<Batch> batches_;
  std::vector<GroupFetch> fetches_;
};

}  // namespace kvrun
