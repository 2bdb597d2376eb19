// The means of blocks of an index's rows, as tiles that queries are multiplied with. Compiled once for each
// instruction set, hence the guard.
//
// Of an index of int4, where products are of whole numbers: columns are added up in bytes, row by row as they
// lie in memory, and only the sums are brought into a tile's order.
#if defined(KVRUN_HOST_SCORE_BLOCKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVRUN_HOST_SCORE_BLOCKS_INL_H_
#undef KVRUN_HOST_SCORE_BLOCKS_INL_H_
#else
#define KVRUN_HOST_SCORE_BLOCKS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstring>

#include "runtime/device/host/index_decode-inl.h"
#include "runtime/device/host/score_rounded-inl.h"
#include "runtime/device/host/score_tiles.h"

HWY_BEFORE_NAMESPACE();
namespace kvrun::host::HWY_NAMESPACE {
namespace {

// Where a row of the index begins, in bits.
size_t BitOfRow(const Scoring& s, size_t row) {
  const IndexShape& shape = s.args.index_shape;
  const size_t group = row / shape.rows();
  return group * shape.group_words() * 32 + (row - group * shape.rows()) * s.tiling.row_bits;
}

size_t BlockRows(const Scoring& s, size_t block) {
  return std::min(s.block_rows, s.n_index_rows - block * s.block_rows);
}

// own.tile = the means of n blocks from `first` on, as columns of floats; of further ones, the last again.
// One row of each block at a time.
void AverageRows(const Scoring& s, size_t first, size_t n, const WorkerMemory& own) {
  const hn::ScalableTag<float> d;
  const IndexShape& shape = s.args.index_shape;
  const size_t tile = s.tiling.tile_entries;
  const size_t base_bit = BitOfRow(s, first * s.block_rows) / 32 * 32;
  const size_t last_rows = BlockRows(s, first + n - 1);
  std::fill_n(own.tile, shape.rank * tile, 0.0F);
  for (size_t k = 0; k < s.block_rows; ++k) {
    for (size_t i = 0; i < tile; ++i) {
      const size_t block = first + std::min(i, n - 1);
      const size_t bit = BitOfRow(s, block * s.block_rows + std::min(k, BlockRows(s, block) - 1)) - base_bit;
      own.bytes[i] = static_cast<int32_t>(bit / 8);
      own.bits[i] = static_cast<int32_t>(bit % 8);
    }
    const uint8_t* const from = s.index + base_bit / 8;
    const uint8_t* const last_end = from + own.bytes[n - 1] + RoundUp<size_t>(s.tiling.row_bits / 8, 16);
    DecodeTile(shape.type, from, {own.bytes, own.bits}, shape.rank, tile, last_end <= s.index_end, own.rows);
    if (k >= last_rows) {
      for (size_t column = 0; column < shape.rank; ++column)
        std::fill(own.rows + column * tile + n - 1, own.rows + (column + 1) * tile, 0.0F);
    }
    for (size_t i = 0; i < shape.rank * tile; i += hn::Lanes(d))
      hn::Store(hn::Add(hn::Load(d, own.tile + i), hn::Load(d, own.rows + i)), d, own.tile + i);
  }
  // Rows that are queries' factors; only the last block may have fewer.
  for (size_t i = 0; i < tile; ++i)
    own.totals[i] = 1.0F / static_cast<float>(i + 1 < n ? s.block_rows : last_rows);
  for (size_t column = 0; column < shape.rank; ++column) {
    for (size_t i = 0; i < tile; i += hn::Lanes(d)) {
      float* const at = own.tile + column * tile + i;
      hn::Store(hn::Mul(hn::Load(d, at), hn::Load(d, own.totals + i)), d, at);
    }
  }
}

}  // namespace
}  // namespace kvrun::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if KVRUN_SCORES_ROUNDED

KVRUN_BEFORE_NAMESPACE();
namespace kvrun::host::HWY_NAMESPACE {
namespace {

// So many numbers of 4 bits are added up in a byte.
constexpr size_t kMostRowsInBytes = 16;

// Of a vector's bytes: the low and the high halves of rows' bytes, added up.
template <class D>
struct NibbleSums {
  hn::Vec<D> low;
  hn::Vec<D> high;
};

// Of n rows, at most kMostRowsInBytes: bytes from `offset` on, of which n_bytes are the row's. May read on
// after those.
template <class D>
HWY_INLINE NibbleSums<D> AddNibbles(D d, const Scoring& s, size_t first_row, size_t n, size_t offset,
                                    size_t n_bytes) {
  const auto mask = hn::Set(d, uint8_t{0x0F});
  const auto flip = hn::Set(d, uint8_t{0x88});  // numbers have 8 added to them
  const hn::Repartition<uint16_t, D> wide;
  const size_t group_rows = s.args.index_shape.rows();
  const size_t group_bytes = size_t{s.args.index_shape.group_words()} * 4;
  const size_t row_bytes = s.tiling.row_bits / 8;
  NibbleSums<D> sums{hn::Zero(d), hn::Zero(d)};
  const auto add = [&](hn::Vec<D> bytes) HWY_ATTR {
    bytes = hn::Xor(bytes, flip);
    const auto high = hn::BitCast(d, hn::ShiftRight<4>(hn::BitCast(wide, bytes)));
    sums.low = hn::Add(sums.low, hn::And(bytes, mask));
    sums.high = hn::Add(sums.high, hn::And(high, mask));
  };
  size_t in_group = first_row % group_rows;
  const uint8_t* from = s.index + first_row / group_rows * group_bytes + in_group * row_bytes + offset;
  for (size_t i = 0; i < n; ++i) {
    if (from + hn::Lanes(d) <= s.index_end) {
      add(hn::LoadU(d, from));
    } else {
      HWY_ALIGN uint8_t bytes[HWY_MAX_BYTES] = {};
      std::memcpy(bytes, from, std::min(n_bytes, hn::Lanes(d)));
      add(hn::Load(d, bytes));
    }
    from += row_bytes;
    if (++in_group == group_rows) {
      in_group = 0;
      from += group_bytes - group_rows * row_bytes;
    }
  }
  return sums;
}

// The means of kMostRowsInBytes rows.
template <class D>
HWY_INLINE NibbleSums<D> HalveSums(D d, const NibbleSums<D>& sums) {
  return {hn::AverageRound(sums.low, hn::Zero(d)), hn::AverageRound(sums.high, hn::Zero(d))};
}

// The means of n rows from `first_row` on, a vector of bytes from `offset` on. Where halves are rounded up
// twice, they are so in all blocks: products have the same added to them, which no softmax sees.
template <class D>
HWY_INLINE NibbleSums<D> AverageNibbles(D d, const Scoring& s, size_t first_row, size_t n, size_t offset) {
  static_assert(kMostRowsInBytes == 2 * kMeanSteps);
  const size_t n_bytes = s.tiling.row_bits / 8 - offset;
  if (n == kMeanSteps) return AddNibbles(d, s, first_row, n, offset, n_bytes);
  if (n == kMostRowsInBytes) return HalveSums(d, AddNibbles(d, s, first_row, n, offset, n_bytes));
  if (n == 2 * kMostRowsInBytes) {
    const NibbleSums<D> a = HalveSums(d, AddNibbles(d, s, first_row, kMostRowsInBytes, offset, n_bytes));
    const NibbleSums<D> b =
        HalveSums(d, AddNibbles(d, s, first_row + kMostRowsInBytes, kMostRowsInBytes, offset, n_bytes));
    return {hn::AverageRound(a.low, b.low), hn::AverageRound(a.high, b.high)};
  }
  uint32_t totals[2][HWY_MAX_BYTES] = {};
  HWY_ALIGN uint8_t bytes[2][HWY_MAX_BYTES];
  for (size_t row = 0; row < n; row += kMostRowsInBytes) {
    const auto sums = AddNibbles(d, s, first_row + row, std::min(kMostRowsInBytes, n - row), offset, n_bytes);
    hn::Store(sums.low, d, bytes[0]);
    hn::Store(sums.high, d, bytes[1]);
    for (size_t half = 0; half < 2; ++half) {
      for (size_t i = 0; i < hn::Lanes(d); ++i) totals[half][i] += bytes[half][i];
    }
  }
  const float factor = kMeanSteps / static_cast<float>(n);
  for (size_t half = 0; half < 2; ++half) {
    for (size_t i = 0; i < hn::Lanes(d); ++i)
      bytes[half][i] = static_cast<uint8_t>(static_cast<float>(totals[half][i]) * factor + 0.5F);
  }
  return {hn::Load(d, bytes[0]), hn::Load(d, bytes[1])};
}

// The means of n blocks from `first` on as groups of four columns, as DecodeGroups has rows.
template <class D>
HWY_INLINE void AverageGroupsBy(D d, const Scoring& s, size_t first, size_t n, uint8_t* groups) {
  const size_t stride = s.tiling.tile_entries * 4;
  const size_t n_words = s.rounded.n_words;
  HWY_ALIGN uint8_t low[HWY_MAX_BYTES];
  HWY_ALIGN uint8_t high[HWY_MAX_BYTES];
  for (size_t i = 0; i < n; ++i) {
    for (size_t offset = 0; offset < n_words * 4; offset += hn::Lanes(d)) {
      const NibbleSums<D> means =
          AverageNibbles(d, s, (first + i) * s.block_rows, BlockRows(s, first + i), offset);
      hn::Store(means.low, d, low);
      hn::Store(means.high, d, high);
      uint8_t* to = groups + offset / 4 * 2 * stride + i * 4;
      for (size_t at = 0; at < std::min(hn::Lanes(d), n_words * 4 - offset); at += 4, to += 2 * stride) {
        std::memcpy(to, low + at, 4);
        std::memcpy(to + stride, high + at, 4);
      }
    }
  }
  for (size_t i = n; i < s.tiling.tile_entries; ++i) {
    for (size_t group = 0; group < 2 * n_words; ++group) std::memset(groups + group * stride + i * 4, 0, 4);
  }
}

HWY_NOINLINE void AverageGroups(const Scoring& s, size_t first, size_t n, uint8_t* groups) {
  const size_t row_bytes = s.tiling.row_bits / 8;
  const hn::CappedTag<uint8_t, 16> d16;
  const hn::CappedTag<uint8_t, 32> d32;
  const hn::ScalableTag<uint8_t> d;
  if (row_bytes <= 16) {
    AverageGroupsBy(d16, s, first, n, groups);
  } else if (row_bytes <= 32) {
    AverageGroupsBy(d32, s, first, n, groups);
  } else {
    AverageGroupsBy(d, s, first, n, groups);
  }
}

}  // namespace
}  // namespace kvrun::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVRUN_SCORES_ROUNDED

#endif  // KVRUN_HOST_SCORE_BLOCKS_INL_H_
