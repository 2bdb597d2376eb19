// An *extent* is what is chosen as one: a group of consecutive entries, or a cluster. A *record* is what is
// read as one piece of fixed size. A group is one record. A cluster of 18 entries in records of 4 is five:
// for such methods this says which.
//
// Threads: one at a time; during a step the KV thread alone.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/kv/contracts/kv_selector.h"

namespace kvrun {

class ExtentMap {
 public:
  virtual ~ExtentMap() = default;

  // Ids of extents that a stream can choose are less.
  virtual uint32_t n_extents(const StreamStep& step) const = 0;
  // Ids of the records of extents (ascending and distinct), ascending. Valid until the next call for the
  // stream, whatever the layer.
  virtual std::span<const uint32_t> Records(const StreamStep& step, std::span<const uint32_t> extents) = 0;
  // Of each of the records that Records answered last for the stream: how many its extent has.
  virtual std::span<const uint32_t> Weights(const StreamStep& step) const = 0;
  // Entries that count, of a record.
  virtual uint32_t n_entries(const StreamStep& step, uint32_t record) const = 0;
};

}  // namespace kvrun
