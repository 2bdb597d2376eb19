// The bytes of one extent of KV entries: the same on flash, in slots and in the recent window.
#pragma once

#include <cstdint>

namespace kvrun {

// How an element of K or V is stored. kFp8 (E4M3, no infinities, largest 448) and kInt8 have one f16 scale
// per entry and head: the row's largest magnitude / 448 or / 127. kInt4 (values -8..7) has one f16 scale per
// block of 32 elements of a row (the last may be shorter): the element of largest magnitude / -8, times that
// of kInt4Factors with which the squares of what rounding takes add up to least (of equal ones, the first).
// Below 1, the largest elements become -8 or 7 steps, and all others lose less.
enum class KvType : uint8_t { kF16, kF32, kFp8, kInt8, kInt4 };

constexpr uint32_t KvElementBits(KvType type) {
  switch (type) {
    case KvType::kF32: return 32;
    case KvType::kF16: return 16;
    case KvType::kFp8:
    case KvType::kInt8: return 8;
    case KvType::kInt4: return 4;
  }
  return 0;
}
inline constexpr uint32_t kInt4BlockElements = 32;
inline constexpr float kInt4Factors[] = {1.0F, 0.92F, 0.85F, 0.78F, 0.7F};

// A record in words of 32 bits, little-endian, elements from the low bits up:
//   K  [n_heads, group_tokens, row_words(k_type)]
//   V  [n_heads, group_tokens, row_words(v_type)]
//   scales of K, f16 [n_heads, group_tokens, row_scales(k_type)], then of V; two to a word, without a gap
//   with has_positions: positions of the entries, [group_tokens]; from a whole word on
//   zeros up to a multiple of 4 words
struct KvRecordShape {
  KvType k_type = KvType::kF16;
  KvType v_type = KvType::kF16;
  uint32_t n_heads = 0;  // KV heads in a record: all of the model's, or 1
  uint32_t head_dim = 0;
  uint32_t group_tokens = 0;
  // Entries that are not neighbours say where they are from. Operations step over positions: EncodeRecords
  // makes zeros of them, others leave them alone.
  bool has_positions = false;

  constexpr uint32_t row_words(KvType type) const { return (head_dim * KvElementBits(type) + 31) / 32; }
  constexpr uint32_t row_scales(KvType type) const {
    if (type == KvType::kFp8 || type == KvType::kInt8) return 1;
    return type == KvType::kInt4 ? (head_dim + kInt4BlockElements - 1) / kInt4BlockElements : 0;
  }
  constexpr uint32_t n_rows() const { return n_heads * group_tokens; }  // of K, and of V
  constexpr uint32_t v_begin_words() const { return n_rows() * row_words(k_type); }
  constexpr uint32_t scales_begin_words() const { return v_begin_words() + n_rows() * row_words(v_type); }
  // Of the scales alone, in halves: V's begin here.
  constexpr uint32_t v_scales_begin() const { return n_rows() * row_scales(k_type); }
  constexpr uint32_t positions_begin_words() const {
    const uint32_t halves = n_rows() * (row_scales(k_type) + row_scales(v_type));
    return scales_begin_words() + (halves + 1) / 2;
  }
  constexpr uint32_t size_words() const {
    return (positions_begin_words() + (has_positions ? group_tokens : 0) + 3) / 4 * 4;
  }
  constexpr uint64_t size_bytes() const { return uint64_t{size_words()} * 4; }
  bool operator==(const KvRecordShape&) const = default;
};

}  // namespace kvrun
