// Rows of an index as columns of floats. Compiled once for each instruction set, hence the guard.
#if defined(KVRUN_HOST_INDEX_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVRUN_HOST_INDEX_DECODE_INL_H_
#undef KVRUN_HOST_INDEX_DECODE_INL_H_
#else
#define KVRUN_HOST_INDEX_DECODE_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

#include "runtime/device/device.h"

HWY_BEFORE_NAMESPACE();
namespace kvrun::host::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Element kJ of words of elements of kBits: signed numbers, or halves.
template <int kBits, int kJ, class D, class V>
HWY_INLINE hn::Vec<D> Element(D d, V words) {
  const hn::RebindToSigned<D> di;
  const hn::RebindToUnsigned<D> du;
  if constexpr (kBits == 16) {
    const auto half = kJ == 0 ? hn::And(words, hn::Set(du, 0xffffU)) : hn::ShiftRight<16>(words);
    const auto magnitude = hn::ShiftLeft<13>(hn::And(half, hn::Set(du, 0x7fffU)));
    const auto sign = hn::ShiftLeft<16>(hn::And(half, hn::Set(du, 0x8000U)));
    // The exponents' biases differ by 112. Infinities, which no index holds, become 2^16.
    const auto value = hn::Mul(hn::BitCast(d, magnitude), hn::Set(d, 0x1p112F));
    return hn::Or(value, hn::BitCast(d, sign));
  } else {
    const auto highest = hn::BitCast(di, hn::ShiftLeft<32 - kBits - kBits * kJ>(words));
    return hn::ConvertTo(d, hn::ShiftRight<32 - kBits>(highest));
  }
}

template <int kBits, int kJ, class D, class V>
HWY_INLINE void StoreElements(D d, V words, size_t n_columns, float* to, size_t stride) {
  if constexpr (kJ * kBits < 32) {
    if (kJ >= n_columns) return;
    hn::Store(Element<kBits, kJ>(d, words), d, to + kJ * stride);
    StoreElements<kBits, kJ + 1>(d, words, n_columns, to, stride);
  }
}

// Where a tile's rows begin: bytes from the tile's first row on, and bits of that byte that belong to the row
// before (int4 of an odd rank).
struct RowOffsets {
  int32_t* bytes;
  int32_t* bits;
  bool has_bits;  // any of those is not 0
};

// A vector's rows are loaded one by one and transposed: a whole score takes a fifth less time than where
// their words are gathered (AVX2). Not where vectors are no types of arrays.
#undef KVRUN_HOST_TRANSPOSES
#if HWY_TARGET != HWY_SCALAR && HWY_MAX_BYTES <= 64 && \
    (HWY_TARGET & (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)) == 0
#define KVRUN_HOST_TRANSPOSES 1
#else
#define KVRUN_HOST_TRANSPOSES 0
#endif

#if KVRUN_HOST_TRANSPOSES
using IndexWords = hn::ScalableTag<uint32_t>;

// Words 0 to 3 of rows k, 4 + k, 8 + k .. of a vector's.
HWY_INLINE hn::Vec<IndexWords> LoadEachFourth(const uint8_t* first_row, const int32_t* bytes) {
  [[maybe_unused]] const IndexWords d;
  const hn::Full128<uint32_t> d4;
  const auto load = [&](size_t row) HWY_ATTR {
    return hn::LoadU(d4, reinterpret_cast<const uint32_t*>(first_row + bytes[row]));
  };
#if HWY_MAX_BYTES == 64
  const hn::Half<IndexWords> half;
  return hn::Combine(d, hn::Combine(half, load(12), load(8)), hn::Combine(half, load(4), load(0)));
#elif HWY_MAX_BYTES == 32
  return hn::Combine(d, load(4), load(0));
#else
  return load(0);
#endif
}

// to[k] = word k of each of a vector's rows. Reads 16 bytes of each.
HWY_INLINE void LoadFourWords(const uint8_t* first_row, const int32_t* bytes, hn::Vec<IndexWords> (&to)[4]) {
  const IndexWords d;
  const hn::Repartition<uint64_t, IndexWords> wide;
  const auto row0 = LoadEachFourth(first_row, bytes);
  const auto row1 = LoadEachFourth(first_row, bytes + 1);
  const auto row2 = LoadEachFourth(first_row, bytes + 2);
  const auto row3 = LoadEachFourth(first_row, bytes + 3);
  const auto low01 = hn::BitCast(wide, hn::InterleaveLower(d, row0, row1));
  const auto low23 = hn::BitCast(wide, hn::InterleaveLower(d, row2, row3));
  const auto high01 = hn::BitCast(wide, hn::InterleaveUpper(d, row0, row1));
  const auto high23 = hn::BitCast(wide, hn::InterleaveUpper(d, row2, row3));
  to[0] = hn::BitCast(d, hn::InterleaveLower(wide, low01, low23));
  to[1] = hn::BitCast(d, hn::InterleaveUpper(wide, low01, low23));
  to[2] = hn::BitCast(d, hn::InterleaveLower(wide, high01, high23));
  to[3] = hn::BitCast(d, hn::InterleaveUpper(wide, high01, high23));
}

// Of whole words: four words of a vector's rows at a time. Reads 16 bytes of each row from a multiple of 16
// on.
template <int kBits>
HWY_INLINE void DecodeTransposed(const uint8_t* first_row, const int32_t* bytes, size_t rank,
                                 size_t n_entries, float* to) {
  const hn::ScalableTag<float> d;
  constexpr size_t kPerWord = 32 / kBits;
  for (size_t column = 0; column < rank; column += 4 * kPerWord) {
    hn::Vec<IndexWords> words[4];
    LoadFourWords(first_row + column * kBits / 8, bytes, words);
    for (size_t k = 0; k < 4 && column + k * kPerWord < rank; ++k) {
      const size_t first = column + k * kPerWord;
      StoreElements<kBits, 0>(d, words[k], HWY_MIN(kPerWord, rank - first), to + first * n_entries,
                              n_entries);
    }
  }
}
#endif

// tile[column * n_entries + i] = column of entry i; n_entries: a multiple of the vectors' lanes. may_read_on:
// there are 16 bytes from each row's last whole 16 on.
template <int kBits>
void DecodeTile(const uint8_t* first_row, const RowOffsets& offsets, size_t n_columns, size_t n_entries,
                bool may_read_on, float* tile) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::RebindToUnsigned<decltype(d)> du;
#if KVRUN_HOST_TRANSPOSES
  if (may_read_on && !offsets.has_bits) {
    for (size_t i = 0; i < n_entries; i += hn::Lanes(d)) {
      DecodeTransposed<kBits>(first_row, offsets.bytes + i, n_columns, n_entries, tile + i);
    }
    return;
  }
#endif
  (void)may_read_on;
  // With bits to drop, a word holds half as many columns that are whole.
  const size_t per_word = offsets.has_bits ? 4 : 32 / kBits;
  for (size_t i = 0; i < n_entries; i += hn::Lanes(d)) {
    const auto at = hn::Load(di, offsets.bytes + i);
    const auto* const base = reinterpret_cast<const int32_t*>(first_row);
    for (size_t column = 0; column < n_columns; column += per_word) {
      const auto bytes = hn::Set(di, static_cast<int32_t>(column * kBits / 8));
      auto words = hn::BitCast(du, hn::GatherOffset(di, base, hn::Add(at, bytes)));
      if (offsets.has_bits) words = hn::Shr(words, hn::BitCast(du, hn::Load(di, offsets.bits + i)));
      StoreElements<kBits, 0>(d, words, HWY_MIN(per_word, n_columns - column), tile + column * n_entries + i,
                              n_entries);
    }
  }
}

inline void DecodeTile(KvType type, const uint8_t* first_row, const RowOffsets& offsets, size_t n_columns,
                       size_t n_entries, bool may_read_on, float* tile) {
  switch (type) {
    case KvType::kF16: return DecodeTile<16>(first_row, offsets, n_columns, n_entries, may_read_on, tile);
    case KvType::kInt8: return DecodeTile<8>(first_row, offsets, n_columns, n_entries, may_read_on, tile);
    default: return DecodeTile<4>(first_row, offsets, n_columns, n_entries, may_read_on, tile);
  }
}

}  // namespace kvrun::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVRUN_HOST_INDEX_DECODE_INL_H_
