// Self-tests of the operations on KV records: each against a small computation here, on any device.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "platform/base/status.h"
#include "runtime/device/device.h"

namespace kvrun {

// Of records. Those with scales first: only where a kernel multiplies can its products be wrong.
inline constexpr std::array kSelfTestRecordTypes = {KvType::kFp8, KvType::kInt8, KvType::kInt4, KvType::kF16,
                                                    KvType::kF32};

// One row of a sequence, whose entries are in slots.
struct SlotCase {
  static constexpr uint32_t kKvHeads = 2;
  static constexpr uint32_t kGroupTokens = 3;
  static constexpr uint32_t kSlots = 70;

  KvType k_type = KvType::kF16;
  KvType v_type = KvType::kF16;
  uint32_t head_dim = 64;
  uint32_t group = 1;  // query heads of a KV head
  bool has_biases = false;
  bool in_space = false;  // records hold entries in a space of their own
  float score_cap = 0.0F;

  uint32_t n_heads() const { return group * kKvHeads; }
  uint32_t qkv_stride() const { return (n_heads() + 2 * kKvHeads) * head_dim; }
  SlotShape shape() const {
    return {{k_type, v_type, kKvHeads, head_dim, kGroupTokens}, 1, kSlots, 2, kSlots - 2, has_biases};
  }
  SlotAttentionArgs args() const {
    SlotAttentionArgs args;
    args.Add({.shape = shape()});
    args.attention.kv_shape = {KvType::kF16, 1, kKvHeads, head_dim, 0};
    args.attention.n_heads = n_heads();
    args.attention.n_tokens = 1;
    args.attention.score_cap = score_cap;
    return args;
  }
};

// A source of c's, one with biases, another of c's, and a window of f16.
std::vector<SlotCase> CasesOfSources(const SlotCase& c);
// But for buffers.
SlotAttentionArgs ArgsOfSources(const SlotCase& c);

// On success a line of detail, else what is wrong. Encodes KV of `kv_type`, looks at the records of `type`,
// decodes, and looks at what came back. in_space: through a space of their own.
Result<std::string> CheckRecords(Device& device, KvType kv_type, KvType type, bool in_space = false);
// Rotates and stores into slots that hold zeros.
Result<std::string> CheckRopeAndEncode(Device& device, const SlotCase& c);
// tolerance: as a part of the largest result.
Result<std::string> CheckSlotAttention(Device& device, const SlotCase& c, double tolerance = 3e-4);
// To all of CasesOfSources at once.
Result<std::string> CheckSlotSources(Device& device, const SlotCase& c);

}  // namespace kvrun
