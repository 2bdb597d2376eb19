// Hands out parts of one memory, each in one piece, in a ring: what was handed out first is used again first.
// Only arithmetic: the memory is the caller's. Nothing is allocated after the constructor.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace kvrun {

class StagingRing {
 public:
  struct Part {
    uint64_t offset = 0;
    uint32_t id = 0;
  };

  // At most `max_parts` at once.
  StagingRing(uint64_t capacity_bytes, uint32_t max_parts)
      : capacity_bytes_(capacity_bytes), held_(max_parts) {}

  // Nothing where there is no room yet. With nothing handed out, anything up to the capacity has room.
  std::optional<Part> Allocate(uint64_t bytes);
  // In any order; the room is free again once all that was handed out before is released too.
  void Release(uint32_t id);

  static uint64_t MemoryBytes(uint32_t max_parts) { return max_parts * sizeof(Held); }

 private:
  struct Held {
    uint64_t bytes = 0;  // with what was left out at the memory's end
    bool released = false;
  };

  uint64_t capacity_bytes_;
  std::vector<Held> held_;  // itself a ring
  uint32_t first_ = 0;
  uint32_t n_held_ = 0;
  uint64_t end_ = 0;  // of the newest part
  uint64_t used_bytes_ = 0;
};

}  // namespace kvrun
