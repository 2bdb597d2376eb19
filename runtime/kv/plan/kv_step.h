// What a decode step consists of, for the parts of a method; and what is counted of it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/device/device.h"

namespace kvrun {

// A new entry of a step.
struct KvRow {
  uint32_t sequence = 0;
  uint32_t position = 0;
};

// A step's rows, and the angles of their positions as the device has them: float [n_rows, rotary_dim / 2, 2].
struct KvStepInputs {
  std::span<const KvRow> rows;
  std::span<const float> angles;
};

// Of decode steps, since the session's statistics were reset.
struct KvStats {
  uint64_t chosen_groups = 0;  // pinned ones left out
  uint64_t drawn_groups = 0;   // of them, those that were drawn at random
  uint64_t choices = 0;        // of a stream of a layer in a step each
  uint64_t least_groups = 0;   // of a choice, pinned ones left out
  uint64_t most_groups = 0;
  uint64_t hit_groups = 0;       // of chosen_groups, those that were in a layer's own slot already
  uint64_t stand_in_groups = 0;  // those that were not read, as others in slots stood in for them
  uint64_t pool_groups = 0;      // those that were read into the pool; the others were read into own slots
  double fetch_ms = 0.0;         // the KV thread planned and read
  // For how much of it is hidden behind the device's work. io_ms: a layer's groups were being read from
  // flash. stall_ms: the device had nothing to do but to wait for them; at most io_ms, but for what planning
  // and tables take.
  double io_ms = 0.0;
  double stall_ms = 0.0;
  std::vector<double> layer_fetch_ms;
  std::vector<uint64_t> layer_loads;
};

}  // namespace kvrun
