// Products of queries with rows of an index of int4: queries are rounded to 8 bits, and rows stay whole
// numbers. Compiled once for each instruction set, hence the guard.
//
// A word of a row holds eight columns. Its low and high halves of bytes make two groups of four columns in
// bytes each, which one instruction multiplies with four of a query's and adds up. Rows' numbers have 8 added
// to them, as that wants one factor unsigned; sums begin with what this adds, negated.
#if defined(KVRUN_HOST_SCORE_ROUNDED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVRUN_HOST_SCORE_ROUNDED_INL_H_
#undef KVRUN_HOST_SCORE_ROUNDED_INL_H_
#else
#define KVRUN_HOST_SCORE_ROUNDED_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "runtime/device/host/index_decode-inl.h"
#include "runtime/device/host/rounded_queries.h"

// x86 has the instruction; on Arm it would have to be looked for while running.
#undef KVRUN_SCORES_ROUNDED
#if HWY_ARCH_X86 && KVRUN_HOST_TRANSPOSES && HWY_TARGET != HWY_EMU128
#define KVRUN_SCORES_ROUNDED 1
#else
#define KVRUN_SCORES_ROUNDED 0
#endif

#if KVRUN_SCORES_ROUNDED
#include "runtime/device/host/int8_dot-inl.h"
#endif

#if KVRUN_SCORES_ROUNDED

KVRUN_BEFORE_NAMESPACE();
namespace kvrun::host::HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX3_DL
using ScoreDot = Vnni512Dot;
#else
using ScoreDot = MaddubsDot;
#endif

// Rows of a vector, from groups of four columns: [2 * n_words, n_entries, 4].
HWY_INLINE void StoreGroups(hn::Vec<IndexWords> word, size_t stride, uint8_t* to) {
  const IndexWords d;
  const auto unsigned_word = hn::Xor(word, hn::Set(d, 0x88888888U));
  const auto mask = hn::Set(d, 0x0F0F0F0FU);
  auto* const groups = reinterpret_cast<uint32_t*>(to);
  hn::Store(hn::And(unsigned_word, mask), d, groups);
  hn::Store(hn::And(hn::ShiftRight<4>(unsigned_word), mask), d, groups + stride);
}

// A tile's rows as groups. n_entries: a multiple of the vectors' lanes. may_read_on: there are 16 bytes from
// each row's last whole 16 on; else no byte behind a row is read.
inline void DecodeGroups(const uint8_t* first_row, const int32_t* bytes, size_t rank, size_t n_entries,
                         bool may_read_on, uint8_t* to) {
  const IndexWords d;
  const size_t n_words = CeilDiv(rank, RoundedQueries::kWordColumns);
  const size_t word_bytes = 2 * n_entries * 4;
  for (size_t i = 0; i < n_entries; i += hn::Lanes(d)) {
    for (size_t first = 0; first < n_words; first += 4) {
      hn::Vec<IndexWords> words[4];
      const size_t n = HWY_MIN(size_t{4}, n_words - first);
      if (may_read_on) {
        LoadFourWords(first_row + first * 4, bytes + i, words);
      } else {
        alignas(64) uint32_t lanes[4][HWY_MAX_BYTES / 4] = {};
        for (size_t row = 0; row < hn::Lanes(d); ++row) {
          for (size_t k = 0; k < n; ++k) {
            const size_t at = (first + k) * 4;
            std::memcpy(&lanes[k][row], first_row + bytes[i + row] + at, HWY_MIN(size_t{4}, rank / 2 - at));
          }
        }
        for (size_t k = 0; k < n; ++k) words[k] = hn::Load(d, lanes[k]);
      }
      for (size_t k = 0; k < n; ++k) StoreGroups(words[k], n_entries, to + (first + k) * word_bytes + i * 4);
    }
  }
}

// kGroups groups of kVectors vectors, added to sums.
template <int kGroups, size_t kVectors>
HWY_INLINE void AddGroups(const uint8_t* HWY_RESTRICT groups, const int8_t* HWY_RESTRICT query,
                          VI (&sums)[kVectors]) {
  const DU8 d;
  KVRUN_UNROLL
  for (size_t v = 0; v < kVectors; ++v) {
    VU8 of_vector[kGroups];
    KVRUN_UNROLL
    for (size_t g = 0; g < kGroups; ++g) {
      of_vector[g] = hn::Load(d, groups + (g * kVectors + v) * hn::Lanes(d));
    }
    sums[v] = ScoreDot::template Columns<4, kGroups>(sums[v], of_vector, query);
  }
}

// products[row, i] = query row . entry i, of a tile of kVectors vectors of entries.
template <size_t kVectors>
HWY_NOINLINE void MultiplyGroups(const uint8_t* HWY_RESTRICT tile, const RoundedQueries& queries,
                                 float* HWY_RESTRICT products) {
  const DI di;
  const DF d;
  const size_t group_bytes = kVectors * hn::Lanes(DU8());
  for (size_t row = 0; row < queries.n_rows; ++row, products += kVectors * hn::Lanes(d)) {
    VI sums[kVectors];
    KVRUN_UNROLL
    for (size_t v = 0; v < kVectors; ++v) sums[v] = hn::Set(di, queries.starts[row]);
    const int8_t* query = queries.quants + row * queries.stride();
    const uint8_t* groups = tile;
    size_t n_words = queries.n_words;
    for (; n_words >= 3; n_words -= 3, groups += 6 * group_bytes, query += 24)
      AddGroups<6>(groups, query, sums);
    for (; n_words > 0; --n_words, groups += 2 * group_bytes, query += 8) AddGroups<2>(groups, query, sums);
    const auto step = hn::Set(d, queries.steps[row]);
    KVRUN_UNROLL
    for (size_t v = 0; v < kVectors; ++v)
      hn::Store(hn::Mul(hn::ConvertTo(d, sums[v]), step), d, products + v * hn::Lanes(d));
  }
}

}  // namespace kvrun::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVRUN_SCORES_ROUNDED

#endif  // KVRUN_HOST_SCORE_ROUNDED_INL_H_
