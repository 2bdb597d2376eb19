// Attention of few rows to K and V of int8 or int4, which are whole numbers as they lie there: queries and
// weights are rounded to 16 bits, and nothing is decoded to floats. Compiled once for each instruction set,
// hence the guard.
//
// No sum can overflow: a query's length is 32,700, a key's at most 16 * 128; weights are at most 32,767 and
// values 128, and there are 64 of them. Rounding is that of rounded_pairs-inl.h for queries, and 2^-16 of a
// row's largest weight in the block, each times its entry's scale.
#if defined(KVRUN_HOST_ATTEND_FEW_ROUNDED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVRUN_HOST_ATTEND_FEW_ROUNDED_INL_H_
#undef KVRUN_HOST_ATTEND_FEW_ROUNDED_INL_H_
#else
#define KVRUN_HOST_ATTEND_FEW_ROUNDED_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstring>

#include "runtime/device/host/prefetch.h"
#include "runtime/device/host/rounded_pairs-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvrun::host::HWY_NAMESPACE {

// Whether products with such keys, or values, are of whole numbers.
HWY_INLINE bool RoundsType([[maybe_unused]] const AttendRows& rows, [[maybe_unused]] KvType type) {
  return KVRUN_ATTENDS_ROUNDED && rows.rounds && (type == KvType::kInt8 || type == KvType::kInt4);
}

#if KVRUN_ATTENDS_ROUNDED

constexpr float kLargestWeight = 32767.0F;
static_assert(int64_t{32767} * 128 * kBlockEntries < int64_t{1} << 31);
static_assert(int64_t{32767} * 128 * 16 < int64_t{1} << 31 && kMaxHeadDim == 16 * 16);

using Words = hn::Repartition<int16_t, Ints>;

// scores[r * kBlockEntries + entry] = q[r] . k[entry], without scales of whole rows.
template <size_t kRows>
HWY_NOINLINE void ScoreBytes(const KvBlock& block, const Ahead& ahead, const FewLayout& at,
                             size_t first_row) {
  constexpr size_t kEntries = HWY_MIN(kLanes, (kRows > 3 && !kManyRegisters) ? 2 : 4);
  constexpr size_t kParts = kLanes / kEntries;
  const Floats d;
  const Ints di;
  const Words words;
  const hn::Rebind<int8_t, Words> bytes;
  const size_t dims = at.rounded_dims();
  const int16_t* HWY_RESTRICT queries = at.rounded_queries() + first_row * dims;
  float* HWY_RESTRICT scores = at.scores() + first_row * kBlockEntries;
  for (size_t begin = 0; begin < block.n_entries; begin += kLanes) {
    IntVector parts[kRows][kParts];
    for (size_t part = 0; part < kParts; ++part) {
      const int8_t* rows[kEntries];
      IntVector sums[kRows * kEntries];
      for (size_t e = 0; e < kEntries; ++e) {
        // Beyond the last entry: the last again.
        const size_t entry = HWY_MIN(begin + part * kEntries + e, block.n_entries - 1);
        ahead.Prefetch(begin + part * kEntries + e);
        rows[e] = reinterpret_cast<const int8_t*>(block.k[entry]);
      }
      ForConstants<kRows * kEntries>([&](auto k) HWY_ATTR { sums[k] = hn::Zero(di); });
      // What lies behind a row is multiplied with zeros.
      for (size_t i = 0; i < dims; i += hn::Lanes(words)) {
        ForConstants<kEntries>([&](auto e) HWY_ATTR {
          const auto key = hn::BitCast(di, hn::PromoteTo(words, hn::LoadU(bytes, rows[e] + i)));
          ForConstants<kRows>([&](auto r) HWY_ATTR {
            const auto query = hn::BitCast(di, hn::Load(words, queries + r * dims + i));
            sums[r * kEntries + e] = AddPairs(sums[r * kEntries + e], key, query);
          });
        });
      }
      ForConstants<kRows>([&](auto r)
                              HWY_ATTR { parts[r][part] = SumEach<kEntries>(di, sums + r * kEntries); });
    }
    for (size_t r = 0; r < kRows; ++r) {
      const Vector step = hn::Set(d, at.query_steps()[first_row + r]);
      const Vector score = hn::ConvertTo(d, SumEach<kParts, kEntries>(di, parts[r]));
      hn::Store(hn::Mul(score, step), d, scores + r * kBlockEntries + begin);
    }
  }
}

// The same of int4. A lane has four dimensions of a key, as they lie in 16 bits: they are of one block.
template <size_t kRows>
HWY_NOINLINE void ScoreNibbles(const KvBlock& block, const Ahead& ahead, size_t head_dim, const FewLayout& at,
                               size_t first_row) {
  constexpr size_t kEntries = HWY_MIN(kLanes, (kRows > 2 && !kManyRegisters) ? 2 : 4);
  constexpr size_t kParts = kLanes / kEntries;
  constexpr size_t kDims = 4 * kLanes;
  const Floats d;
  const Ints di;
  const Words words;
  const hn::Rebind<uint16_t, Ints> halves;
  const hn::Rebind<uint32_t, Ints> bits;
  const size_t n_scales = RowScales(KvType::kInt4, static_cast<uint32_t>(head_dim));
  const size_t dims = at.dims;
  const size_t n_pairs = at.pairs_of_four();
  const int32_t* HWY_RESTRICT queries = at.query_pairs() + first_row * 2 * n_pairs;
  float* HWY_RESTRICT scores = at.scores() + first_row * kBlockEntries;
  const auto is_first = hn::FirstN(d, kInt4BlockElements / 4);
  for (size_t begin = 0; begin < block.n_entries; begin += kLanes) {
    Vector parts[kRows][kParts];
    for (size_t part = 0; part < kParts; ++part) {
      const std::byte* rows[kEntries];
      const float* scales[kEntries];
      Vector sums[kRows * kEntries];
      ForConstants<kEntries>([&](auto e) HWY_ATTR {
        // Beyond the last entry: the last again.
        const size_t entry = HWY_MIN(begin + part * kEntries + e, block.n_entries - 1);
        ahead.Prefetch(begin + part * kEntries + e);
        rows[e] = block.k[entry];
        scales[e] = at.k_scales() + entry * n_scales;
      });
      ForConstants<kRows * kEntries>([&](auto k) HWY_ATTR { sums[k] = hn::Zero(d); });
      // What lies behind a row is multiplied with zeros.
      for (size_t i = 0; i < dims; i += kDims) {
        const size_t of_block = i / kInt4BlockElements;
        const int32_t* const pairs = queries + i / 4;
        ForConstants<kEntries>([&](auto e) HWY_ATTR {
          const auto* const from = reinterpret_cast<const uint16_t*>(rows[e] + i / 2);
          const auto four = hn::PromoteTo(bits, hn::LoadU(halves, from));
          // The first two of them in the lower word, the others in the upper one, each in its lowest bits.
          const auto two = hn::BitCast(words, hn::Or(four, hn::ShiftLeft<8>(four)));
          const IntVector even = hn::BitCast(di, hn::ShiftRight<12>(hn::ShiftLeft<12>(two)));
          const IntVector odd = hn::BitCast(di, hn::ShiftRight<12>(hn::ShiftLeft<8>(two)));
          Vector scale = hn::Set(d, scales[e][of_block]);
          if constexpr (kDims > kInt4BlockElements) {
            const size_t second = HWY_MIN(of_block + 1, n_scales - 1);
            scale = hn::IfThenElse(is_first, scale, hn::Set(d, scales[e][second]));
          }
          ForConstants<kRows>([&](auto r) HWY_ATTR {
            const IntVector first_pair = hn::Load(di, pairs + 2 * r * n_pairs);
            const IntVector second_pair = hn::Load(di, pairs + (2 * r + 1) * n_pairs);
            const IntVector sum = AddPairs(AddPairs(hn::Zero(di), even, first_pair), odd, second_pair);
            sums[r * kEntries + e] = hn::MulAdd(hn::ConvertTo(d, sum), scale, sums[r * kEntries + e]);
          });
        });
      }
      ForConstants<kRows>([&](auto r)
                              HWY_ATTR { parts[r][part] = SumEach<kEntries>(d, sums + r * kEntries); });
    }
    for (size_t r = 0; r < kRows; ++r) {
      const Vector step = hn::Set(d, at.query_steps()[first_row + r]);
      hn::Store(hn::Mul(SumEach<kParts, kEntries>(d, parts[r]), step), d, scores + r * kBlockEntries + begin);
    }
  }
}

// Of each scale of a row, those of all entries: [scales of a row, kBlockEntries], up to a whole vector.
HWY_NOINLINE void LoadScalePlanes(KvType type, uint32_t head_dim, size_t n_entries,
                                  const std::byte* const* from, float* HWY_RESTRICT to) {
  const Floats d;
  const hn::Rebind<hwy::float16_t, Floats> halves;
  const size_t n_scales = RowScales(type, head_dim);
  alignas(64) uint16_t gathered[kBlockEntries * kMaxRowScales];
  for (size_t entry = 0; entry < n_entries; ++entry) {
    for (size_t i = 0; i < n_scales; ++i)
      std::memcpy(gathered + i * kBlockEntries + entry, from[entry] + i * sizeof(uint16_t), sizeof(uint16_t));
  }
  const size_t end = RoundUp<size_t>(n_entries, kLanes);
  for (size_t i = 0; i < n_scales * kBlockEntries; i += kBlockEntries) {
    std::fill(gathered + i + n_entries, gathered + i + end, uint16_t{0});
    for (size_t entry = i; entry < i + end; entry += kLanes) {
      const auto scales = hn::Load(halves, reinterpret_cast<const hwy::float16_t*>(gathered + entry));
      hn::Store(FromHalves(d, scales), d, to + entry);
    }
  }
}

// Weights times the scales of values, rounded: [n_rows, scales of a row, kBlockEntries], and the steps that
// they stand for.
HWY_NOINLINE void RoundWeights(const AttendRows& rows, const FewLayout& at, const KvBlock& block) {
  const Floats d;
  const Ints di;
  const hn::Rebind<uint16_t, Floats> words;
  const hn::Rebind<uint32_t, Floats> bits;
  const size_t n_scales = RowScales(block.v_type, rows.head_dim);
  const Vector to_low_bits = hn::Set(d, kToLowBits);
  for (size_t r = 0; r < rows.n_rows; ++r) {
    const float* HWY_RESTRICT weights = at.scores() + r * kBlockEntries;
    for (size_t plane = 0; plane < n_scales; ++plane) {
      const float* HWY_RESTRICT scales = at.v_scales() + plane * kBlockEntries;
      auto* HWY_RESTRICT to =
          reinterpret_cast<uint16_t*>(at.rounded_weights() + (r * kMaxRowScales + plane) * kBlockEntries);
      // By their bits what is no number is the largest.
      IntVector largest_bits = hn::Zero(di);
      for (size_t i = 0; i < block.n_entries; i += kLanes) {
        const Vector weight = hn::Mul(hn::Load(d, weights + i), hn::Load(d, scales + i));
        largest_bits = hn::Max(hn::BitCast(di, hn::Abs(weight)), largest_bits);
      }
      const Vector largest = hn::BitCast(d, hn::MaxOfLanes(di, largest_bits));
      // Infinity is no step either.
      const Vector step =
          hn::MulAdd(largest, hn::Set(d, 1.0F / kLargestWeight), hn::Mul(largest, hn::Zero(d)));
      const Vector inverse = InverseOf(step);
      for (size_t i = 0; i < block.n_entries; i += kLanes) {
        const Vector weight = hn::Mul(hn::Load(d, weights + i), hn::Load(d, scales + i));
        const Vector rounded = hn::MulAdd(weight, inverse, to_low_bits);
        hn::StoreU(hn::TruncateTo(words, hn::BitCast(bits, rounded)), words, to + i);
      }
      at.weight_steps()[r * kMaxRowScales + plane] = hn::GetLane(step);
    }
  }
}

// Sums of as many dimensions as a vector of 16-bit words of two entries holds, from `begin` on.
template <size_t kBits, size_t kRows>
HWY_INLINE void AccumulateWords(const KvBlock& block, const Ahead& ahead, const FewLayout& at,
                                size_t first_row, size_t begin) {
  constexpr size_t kOfWord = 16 / kBits;  // numbers of a word
  constexpr size_t kDims = kOfWord * kLanes;
  const Floats d;
  const Ints di;
  const Words words;
  const hn::Rebind<uint16_t, Ints> halves;
  const hn::Rebind<uint32_t, Ints> bits;
  const size_t n_scales = kBits == 4 ? CeilDiv<size_t>(at.dims, kInt4BlockElements) : 1;
  const size_t plane = kBits == 4 ? begin / kInt4BlockElements : 0;
  // A vector of int4 has dimensions of two blocks, where it is as long as that.
  constexpr bool kHasTwo = kBits == 4 && kDims > kInt4BlockElements;
  const size_t second = kHasTwo && plane + 1 < n_scales ? plane + 1 : plane;
  const auto is_first = hn::FirstN(di, kInt4BlockElements / kOfWord);
  const int16_t* weights = at.rounded_weights() + first_row * kMaxRowScales * kBlockEntries;
  const auto load = [&](size_t entry) HWY_ATTR {
    const auto* from = reinterpret_cast<const uint16_t*>(block.v[entry] + begin * kBits / 8);
    return hn::PromoteTo(bits, hn::LoadU(halves, from));
  };
  IntVector sums[kRows * kOfWord];
  ForConstants<kRows * kOfWord>([&](auto k) HWY_ATTR { sums[k] = hn::Zero(di); });
  for (size_t entry = 0; entry < block.n_entries; entry += 2) {
    ahead.Prefetch(entry);
    ahead.Prefetch(entry + 1);
    // Beyond the last entry the last again, which weighs nothing.
    const auto low = load(entry);
    const auto high = load(HWY_MIN(entry + 1, block.n_entries - 1));
    const auto pair = hn::BitCast(words, hn::Or(low, hn::ShiftLeft<16>(high)));
    IntVector of_rows[kRows];
    ForConstants<kRows>([&](auto r) HWY_ATTR {
      const int16_t* const of_row = weights + r * kMaxRowScales * kBlockEntries + entry;
      of_rows[r] = PairOf(of_row + plane * kBlockEntries);
      if constexpr (kHasTwo)
        of_rows[r] = hn::IfThenElse(is_first, of_rows[r], PairOf(of_row + second * kBlockEntries));
    });
    ForConstants<kOfWord>([&](auto n) HWY_ATTR {
      constexpr int kAbove = 16 - kBits * (decltype(n)::value + 1);
      const auto value = hn::BitCast(di, hn::ShiftRight<16 - kBits>(hn::ShiftLeft<kAbove>(pair)));
      ForConstants<kRows>([&](auto r) HWY_ATTR {
        sums[r * kOfWord + n] = AddPairs(sums[r * kOfWord + n], value, of_rows[r]);
      });
    });
  }
  alignas(64) float products[kDims];
  ForConstants<kRows>([&](auto r) HWY_ATTR {
    Vector floats[kOfWord];
    ForConstants<kOfWord>([&](auto n) HWY_ATTR { floats[n] = hn::ConvertTo(d, sums[r * kOfWord + n]); });
    if constexpr (kOfWord == 4) {
      hn::StoreInterleaved4(floats[0], floats[1], floats[2], floats[3], d, products);
    } else {
      hn::StoreInterleaved2(floats[0], floats[1], d, products);
    }
    const size_t row = first_row + r;
    const Vector correction = hn::Set(d, at.correction()[row]);
    const float* const steps = at.weight_steps() + row * kMaxRowScales;
    float* HWY_RESTRICT to = at.sums() + row * at.dims + begin;
    for (size_t i = 0; i < HWY_MIN(kDims, at.dims - begin); i += kLanes) {
      const Vector step = hn::Set(d, steps[kBits == 4 ? (begin + i) / kInt4BlockElements : 0]);
      const Vector sum = hn::Mul(hn::Load(d, to + i), correction);
      hn::Store(hn::MulAdd(hn::Load(d, products + i), step, sum), d, to + i);
    }
  });
}

template <size_t kBits, size_t kRows>
HWY_NOINLINE void AccumulateRows(const KvBlock& block, const Ahead& ahead, const FewLayout& at,
                                 size_t first_row) {
  Ahead once = ahead;
  for (size_t begin = 0; begin < at.dims; begin += 16 / kBits * kLanes) {
    AccumulateWords<kBits, kRows>(block, once, at, first_row, begin);
    once = {};
  }
}

HWY_INLINE void ScoreRoundedFew(const AttendRows& rows, const FewLayout& at, const KvBlock& block,
                                const Ahead& ahead) {
  ForFours(rows.n_rows, ahead, [&]<size_t kRows>(size_t row, const Ahead& once) {
    if (block.k_type == KvType::kInt4) {
      ScoreNibbles<kRows>(block, once, rows.head_dim, at, row);
    } else {
      ScoreBytes<kRows>(block, once, at, row);
    }
  });
}

// Of weights, which are rounded first.
HWY_INLINE void AccumulateRoundedFew(const AttendRows& rows, const FewLayout& at, const KvBlock& block,
                                     const Ahead& ahead) {
  LoadScalePlanes(block.v_type, rows.head_dim, block.n_entries, block.v_scales, at.v_scales());
  RoundWeights(rows, at, block);
  ForFours(rows.n_rows, ahead, [&]<size_t kRows>(size_t row, const Ahead& once) {
    if (block.v_type == KvType::kInt4) {
      AccumulateRows<4, kRows>(block, once, at, row);
    } else {
      AccumulateRows<8, kRows>(block, once, at, row);
    }
  });
}

// Beside BeginFew, of the queries as that has scaled them. Room for as many rows as a vector has lanes: where
// scores and weights will be.
HWY_INLINE void BeginRoundedFew(const AttendRows& rows, const FewLayout& at) {
  alignas(64) int16_t rounded[kFewRows * kMaxHeadDim];
  RoundRows(at.queries(), rows.n_rows, at.dims, rounded, at.query_steps());
  std::fill_n(at.rounded_queries(), rows.n_rows * at.rounded_dims(), int16_t{0});
  for (uint32_t r = 0; r < rows.n_rows; ++r)
    std::copy_n(rounded + r * at.dims, at.dims, at.rounded_queries() + r * at.rounded_dims());
  const size_t n_pairs = at.pairs_of_four();
  std::fill_n(at.query_pairs(), rows.n_rows * 2 * n_pairs, 0);
  for (uint32_t r = 0; r < rows.n_rows; ++r) {
    int32_t* const even = at.query_pairs() + 2 * r * n_pairs;
    for (uint32_t i = 0; i < at.dims / 4; ++i) {
      uint64_t four;
      std::memcpy(&four, rounded + r * at.dims + 4 * i, sizeof(four));
      even[i] = static_cast<int32_t>((four & 0xffff) | (four >> 16 & 0xffff0000));
      even[n_pairs + i] = static_cast<int32_t>((four >> 16 & 0xffff) | (four >> 32 & 0xffff0000));
    }
  }
}

#endif  // KVRUN_ATTENDS_ROUNDED

}  // namespace kvrun::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVRUN_HOST_ATTEND_FEW_ROUNDED_INL_H_
