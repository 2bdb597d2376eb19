// Self-tests of attention over a KV cache in memory, and of what stores it: each against a small computation
// here, on any device.
#pragma once

#include <cstdint>
#include <string>

#include "platform/base/status.h"
#include "runtime/device/device.h"

namespace kvrun {

struct AttentionCase {
  static constexpr uint32_t kContext = 512;
  static constexpr uint32_t kSequences = 2;
  static constexpr uint32_t kKvHeads = 2;

  KvType type = KvType::kF16;
  uint32_t head_dim = 64;
  uint32_t group = 1;     // query heads of a KV head
  uint32_t n_tokens = 1;  // more than one: a chunk of one sequence
  uint32_t position = 0;  // of the first token
  // As in AttentionArgs.
  uint32_t window_tokens = 0;
  float score_cap = 0.0F;

  KvShape kv_shape() const { return {type, kSequences, kKvHeads, head_dim, kContext}; }
  uint32_t n_heads() const { return group * kKvHeads; }
  uint32_t qkv_stride() const { return (n_heads() + 2 * kKvHeads) * head_dim; }
};

// On success a line of detail, else what is wrong. With `in_parts`, every entry is attended twice, which
// changes no average. `tolerance`: a part of the largest value, more where a device rounds.
Result<std::string> CheckAttention(Device& device, const AttentionCase& c, bool in_parts,
                                   double tolerance = 2e-4);
// AttendNew, of one token. `halves`: which elements are rotated together.
Result<std::string> CheckAttendNew(Device& device, const AttentionCase& c, bool halves);
// RopeAndStore. `halves`: which elements are rotated together.
Result<std::string> CheckRope(Device& device, const AttentionCase& c, bool halves);

}  // namespace kvrun
