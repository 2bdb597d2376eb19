// Cases of attention over slots: shapes, slots and tables, and by how much a device may be off.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/device/device.h"
#include "shaders/shared/step_params.h"
#include "tests/support/slot_reference.h"

namespace kvrun::testing {

inline constexpr float kSlotQueryScale = 3.0F;  // so that weights differ

struct SlotCase {
  SlotShape shape;
  uint32_t n_sequences = 1;
  uint32_t n_kv_heads = 1;
  uint32_t group = 1;  // query heads of a KV head
  std::vector<StepToken> tokens;
  float score_cap = 0.0F;    // as in AttentionArgs
  float score_scale = 0.0F;  // likewise; at most 1 / sqrt(head_dim)
  bool in_space = false;     // records hold entries in a space of their own, with SpaceConstants

  uint32_t n_heads() const { return n_kv_heads * group; }
  uint32_t head_dim() const { return shape.record.head_dim; }
  size_t qkv_count() const { return tokens.size() * (n_heads() + 2 * n_kv_heads) * head_dim(); }
  SlotReferenceArgs reference(std::span<const SlotReferenceSource> sources) const {
    return {.tokens = tokens,
            .n_heads = n_heads(),
            .n_kv_heads = n_kv_heads,
            .head_dim = head_dim(),
            .sources = sources,
            .means = {},
            .score_cap = score_cap,
            .score_scale = score_scale};
  }
  // But for the sources.
  SlotAttentionArgs args() const {
    SlotAttentionArgs args;
    args.attention.kv_shape = {KvType::kF16, n_sequences, n_kv_heads, head_dim(), 0};
    args.attention.n_heads = n_heads();
    args.attention.n_tokens = static_cast<uint32_t>(tokens.size());
    args.attention.score_cap = score_cap;
    args.attention.score_scale = score_scale;
    return args;
  }
};

std::string Describe(const SlotCase& c);
// EntrySpace::constants of all sequences.
std::vector<float> SpaceConstants(const SlotCase& c);

// Of 3 sequences, of which one has two rows.
inline constexpr uint32_t kPrimeSlots = 23;
SlotCase AttendCase(KvType k_type, KvType v_type, uint32_t head_dim, uint32_t group_tokens, uint32_t group,
                    bool together);
// Of a source beside c's own, which makes streams of sequences or of KV heads whatever c's does.
SlotShape SourceBeside(const SlotCase& c, KvType k_type, KvType v_type, uint32_t group_tokens, bool together);

struct TableLength {
  uint32_t slots = 0;
  uint32_t last_entries = 0;
};
// Full, nearly empty, and anything between; the last slot full or not.
std::vector<TableLength> Lengths(uint32_t group_tokens);

// Slots and tables for a case: what no table names, and what comes after a last slot's entries, is garbage.
struct SlotData {
  std::vector<uint32_t> slots;
  std::vector<uint32_t> tables;
  uint32_t most_entries = 0;
};
// biases: of each stream's slots in turn, where the shape has them. Entries that count are then one of a
// slot, some, all. is_shared: no slot is in two tables; n_slots is prime to 7, and enough for all.
SlotData MakeSlots(const SlotShape& shape, std::span<const TableLength> lengths, bool uneven,
                   std::span<const float> biases = {});

// Of slots: the first is never such that nothing remains.
inline constexpr float kVanishes = -1e30F;
inline constexpr float kLargeBias = 30.0F;
inline const std::vector<std::vector<float>> kBiases = {{0.0F},
                                                        {0.75F, 2.5F, 1.0F, 0.0F, 4.0F},
                                                        {-0.5F, -3.0F, -1.25F, -6.0F},
                                                        {1.0F, kVanishes, -0.5F, kVanishes},
                                                        {-1.0F, 0.0F, kLargeBias, -kLargeBias, 2.0F}};

// What an entry's weight among n_entries may be off by, relatively.
double WeightTolerance(const SlotCase& c, uint32_t n_entries, bool has_biases);
// What an output may be off by. is_flushed: what an fp8 kernel may flush to zero matters.
double AttendTolerance(const SlotCase& c, uint32_t n_entries, bool has_biases, bool is_flushed);

}  // namespace kvrun::testing
