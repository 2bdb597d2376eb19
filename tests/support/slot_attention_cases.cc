#include "tests/support/slot_attention_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "runtime/device/self_test_data.h"
#include "tests/support/operation_cases.h"
#include "tests/support/slot_cases.h"

namespace kvrun::testing {

std::string Describe(const SlotCase& c) {
  return fmt::format("{}{}; {}/{} heads, {} tokens, {}{} streams, tables of {}{}{}", Describe(c.shape.record),
                     c.in_space ? " in a space" : "", c.n_heads(), c.n_kv_heads, c.tokens.size(),
                     c.shape.is_shared ? "sharing " : "", c.shape.n_streams, c.shape.table_slots,
                     c.score_cap > 0.0F ? ", capped" : "", c.score_scale > 0.0F ? ", scaled" : "");
}

std::vector<float> SpaceConstants(const SlotCase& c) {
  return RandomFloats((size_t{1} + c.n_sequences * c.n_kv_heads) * 2 * c.head_dim(), 43);
}

SlotCase AttendCase(KvType k_type, KvType v_type, uint32_t head_dim, uint32_t group_tokens, uint32_t group,
                    bool together) {
  SlotCase c;
  c.n_sequences = 3;
  c.n_kv_heads = 2;
  c.group = group;
  c.tokens = {TokenAt(50, 1), TokenAt(51, 2), TokenAt(52, 0), TokenAt(53, 1)};
  c.shape.record = {k_type, v_type, together ? c.n_kv_heads : 1, head_dim, group_tokens};
  c.shape.n_streams = c.n_sequences * (together ? 1 : c.n_kv_heads);
  c.shape.n_slots = kPrimeSlots;
  c.shape.n_window_slots = 2;
  c.shape.table_slots = kPrimeSlots - 2;
  return c;
}

SlotShape SourceBeside(const SlotCase& c, KvType k_type, KvType v_type, uint32_t group_tokens,
                       bool together) {
  SlotShape shape = c.shape;
  shape.record = {k_type, v_type, together ? c.n_kv_heads : 1, c.head_dim(), group_tokens};
  shape.n_streams = c.n_sequences * (together ? 1 : c.n_kv_heads);
  shape.n_slots = shape.n_window_slots = 11;
  shape.table_slots = 9;
  return shape;
}

std::vector<TableLength> Lengths(uint32_t group_tokens) {
  return {{kPrimeSlots - 2, 1},
          {1, 1},
          {kPrimeSlots - 2, group_tokens},
          {7, (group_tokens + 1) / 2},
          {2, group_tokens}};
}

SlotData MakeSlots(const SlotShape& shape, std::span<const TableLength> lengths, bool uneven,
                   std::span<const float> biases) {
  const KvRecordShape& record = shape.record;
  const size_t count = size_t{shape.n_streams} * shape.table_slots * 2 * record.n_rows() * record.head_dim;
  std::vector<float> values = RandomFloats(count, 41);
  for (size_t i = 0; uneven && i < count; ++i)
    values[i] = std::ldexp(values[i], -static_cast<int>(i * 5 % 23));
  // All bits set: NaN as f32 and f16, as a scale too.
  SlotData data{std::vector<uint32_t>(shape.size_bytes() / sizeof(uint32_t), 0xffffffffU),
                std::vector<uint32_t>(shape.table_bytes() / sizeof(uint32_t)), 0};
  size_t at = 0;
  for (uint32_t stream = 0; stream < shape.n_streams; ++stream) {
    const TableLength length = lengths[stream % lengths.size()];
    data.most_entries = std::max(data.most_entries, length.slots * record.group_tokens);
    uint32_t* table = &data.tables[data.tables.size() / shape.n_streams * stream];
    table[0] = length.slots;
    table[1] = shape.has_biases ? kGarbage : length.last_entries;
    for (uint32_t s = 0; s < shape.table_slots; ++s) {
      // A permutation, as the step is prime to the number of slots; beyond the length: slots that must not be
      // read.
      const uint32_t first = shape.is_shared ? 3 + 7 * stream * shape.table_slots : stream;
      const uint32_t slot = (first + s * 7) % shape.n_slots;
      uint32_t n_entries = s + 1 == length.slots ? length.last_entries : record.group_tokens;
      table[2 + s] = slot;
      if (shape.has_biases) {
        const std::array counts = {1U, (record.group_tokens + 1) / 2, record.group_tokens};
        n_entries = counts[(stream + s) % counts.size()];
        table[2 + s] = slot | (n_entries - 1) << 24;
        table[2 + shape.table_slots + s] =
            s < length.slots ? std::bit_cast<uint32_t>(biases[s % biases.size()]) : 0xffffffffU;
      }
      if (s >= length.slots) continue;
      const auto words = std::span(data.slots)
                             .subspan((size_t{stream} * shape.stream_slots() + slot) * record.size_words(),
                                      record.size_words());
      for (uint32_t entry = 0; entry < n_entries; ++entry) {
        for (uint32_t row = 0; row < 2 * record.n_heads; ++row, at += record.head_dim) {
          EncodeRow(record, {row % 2, row / 2, entry}, std::span(values).subspan(at, record.head_dim), words);
        }
      }
    }
  }
  return data;
}

// As for attention over resident KV (attention_test.cc), with one rounding more for each scale.
double WeightTolerance(const SlotCase& c, uint32_t n_entries, bool has_biases) {
  const double dims = c.head_dim();
  const double largest_score = 0.5 * kSlotQueryScale * std::sqrt(dims) + (has_biases ? kLargeBias : 0.0F);
  const double score = (8 * std::sqrt(dims) + 4) * kRoundoff * largest_score + CapTolerance(c.score_cap);
  const double exponential = 2 * kRoundoff * (3 + 4 * largest_score) * 4;
  return 2 * (score + exponential) + 2 * 8 * std::sqrt(n_entries + 1.0) * kRoundoff;
}

// What is flushed is below 2^-15 of a row's largest, which is below 1: there is such only in uneven values.
double AttendTolerance(const SlotCase& c, uint32_t n_entries, bool has_biases, bool is_flushed) {
  const double flushed = is_flushed ? 0x1p-15 : 0.0;
  return WeightTolerance(c, n_entries, has_biases) + 2 * flushed * kSlotQueryScale * std::sqrt(c.head_dim()) +
         flushed;
}

}  // namespace kvrun::testing
