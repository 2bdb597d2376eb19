// What a decode step consists of, for the parts of a method; and what is counted of it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/device/device.h"

namespace kvrun {

// Why rows are computed.
enum class SpanKind : uint8_t {
  kPrompt,  // a text that is given: each row attends to everything before it
  kDecode,  // a token that was generated: one row, which attends to what the method selects
  kVerify,  // a draft: what decoding its tokens one after another gives
};

// New entries of one sequence at consecutive positions. Entries from `first_position` on are forgotten.
struct KvSpan {
  uint32_t sequence = 0;
  uint32_t first_position = 0;
  uint32_t n_rows = 1;
  SpanKind kind = SpanKind::kDecode;

  uint32_t end() const { return first_position + n_rows; }
};

// Spans of sequences that differ; a step's rows are counted through all of them. Of a step that the parts of
// a method are handed (StepRecords::BeginStep) each span has one row, so that row i is span i: how a method
// chooses for several rows of a sequence at once is not decided yet, and they are computed one after another.
struct KvStep {
  std::vector<KvSpan> spans;

  size_t n_rows() const {
    size_t n = 0;
    for (const KvSpan& span : spans) n += span.n_rows;
    return n;
  }
};

// A step, and the angles of its positions as the device has them: float [n_rows, rotary_dim / 2, 2].
struct KvStepInputs {
  const KvStep& step;
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
