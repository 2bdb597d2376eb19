#include "runtime/device/host/attend_rows.h"

#include <cstring>

#include "platform/base/units.h"

// Vectors lie in arrays here, which those of unknown length cannot; processors that have them have NEON.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/device/host/attend_rows.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/cache_control.h>
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#ifndef KVRUN_ATTEND_ROWS_LAYOUT
#define KVRUN_ATTEND_ROWS_LAYOUT
namespace kvrun::host {
namespace {

// Up to so many rows have lanes along dimensions.
constexpr uint32_t kFewRows = 8;
// Rows of floats are padded to this, which is a multiple of every vector.
constexpr uint32_t kPadFloats = 16;
static_assert(DecodedRowFloats(1) == kPadFloats);
constexpr uint32_t kMaxRowScales = kMaxHeadDim / kInt4BlockElements;

// What AttendRows::memory holds, in floats.
struct Layout {
  explicit Layout(const AttendRows& rows)
      : dims(static_cast<uint32_t>(DecodedRowFloats(rows.head_dim))),
        lanes(rows.n_rows > kFewRows ? RoundUp(rows.n_rows, kPadFloats) : 0),
        memory(reinterpret_cast<float*>(rows.memory)) {}

  // Scaled by 1 / sqrt(head_dim). [n_rows, dims] where rows are few, else [dims, lanes].
  float* queries() const { return memory; }
  float* sums() const { return memory + kMaxAttendRows * dims; }  // likewise
  float* keys() const {
    return memory + 2 * kMaxAttendRows * dims;
  }  // a block's, decoded: [kBlockEntries, dims]
  float* values() const { return keys() + kBlockEntries * dims; }
  // Of few rows [n_rows, kBlockEntries], else [kBlockEntries, lanes]; then weights.
  float* scores() const { return values() + kBlockEntries * dims; }
  float* maximum() const { return scores() + kBlockEntries * kMaxAttendRows; }
  float* weight() const { return maximum() + kMaxAttendRows; }
  float* correction() const { return weight() + kMaxAttendRows; }
  float* k_scales() const { return correction() + kMaxAttendRows; }  // [kBlockEntries, scales of a row]
  float* v_scales() const { return k_scales() + kBlockEntries * kMaxRowScales; }
  size_t count() const {
    return size_t{2} * (kMaxAttendRows + kBlockEntries) * dims + kBlockEntries * kMaxAttendRows +
           3 * kMaxAttendRows + 2 * kBlockEntries * kMaxRowScales;
  }

  uint32_t dims;
  uint32_t lanes;
  float* memory;
};

constexpr uint32_t RowScales(KvType type, uint32_t head_dim) {
  if (type == KvType::kF16 || type == KvType::kF32) return 0;
  return type == KvType::kInt4 ? CeilDiv(head_dim, kInt4BlockElements) : 1;
}

constexpr size_t RowBytes(KvType type, uint32_t head_dim) {
  return CeilDiv(size_t{head_dim} * KvElementBits(type), size_t{8});
}

}  // namespace
}  // namespace kvrun::host
#endif

HWY_BEFORE_NAMESPACE();
namespace kvrun::host {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::CappedTag<float, kPadFloats>;
using Vector = hn::Vec<Floats>;
constexpr size_t kLanes = hn::MaxLanes(Floats());
// AVX-512 and NEON have 32 registers.
#if HWY_TARGET <= HWY_AVX3 || HWY_TARGET == HWY_NEON
constexpr bool kManyRegisters = true;
#else
constexpr bool kManyRegisters = false;
#endif

// What an element stands for is this times its scale, times what LoadElements returns.
constexpr float TypeFactor(KvType type) { return type == KvType::kFp8 ? 256.0F : 1.0F; }
constexpr bool HasRowScale(KvType type) { return type == KvType::kFp8 || type == KvType::kInt8; }

// kLanes elements from `begin` on, a multiple of kLanes.
template <KvType kType>
HWY_INLINE Vector LoadElements(const std::byte* row, size_t begin) {
  const Floats d;
  if constexpr (kType == KvType::kF32) {
    return hn::LoadU(d, reinterpret_cast<const float*>(row) + begin);
  } else if constexpr (kType == KvType::kF16) {
    const hn::Rebind<hwy::float16_t, Floats> halves;
    return hn::PromoteTo(d, hn::LoadU(halves, reinterpret_cast<const hwy::float16_t*>(row) + begin));
  } else if constexpr (kType == KvType::kFp8) {
    // E4M3's bits in a half stand for a 256th of it, subnormal numbers too.
    const hn::Rebind<uint8_t, Floats> bytes;
    const hn::Rebind<uint16_t, Floats> words;
    const hn::Rebind<hwy::float16_t, Floats> halves;
    const auto bits = hn::PromoteTo(words, hn::LoadU(bytes, reinterpret_cast<const uint8_t*>(row) + begin));
    const auto sign = hn::And(hn::ShiftLeft<8>(bits), hn::Set(words, 0x8000));
    const auto magnitude = hn::And(hn::ShiftLeft<7>(bits), hn::Set(words, 0x3f80));
    return hn::PromoteTo(d, hn::BitCast(halves, hn::Or(sign, magnitude)));
  } else if constexpr (kType == KvType::kInt8) {
    const hn::Rebind<int8_t, Floats> bytes;
    const hn::Rebind<int32_t, Floats> words;
    return hn::ConvertTo(
        d, hn::PromoteTo(words, hn::LoadU(bytes, reinterpret_cast<const int8_t*>(row) + begin)));
  } else {
#if HWY_TARGET == HWY_SCALAR
    const auto byte = static_cast<int>(row[begin / 2]);
    return hn::Set(d, static_cast<float>(((byte >> (begin % 2 * 4) & 0xf) ^ 8) - 8));
#else
    const hn::CappedTag<uint8_t, kLanes / 2> packed;
    const hn::Rebind<uint16_t, decltype(packed)> pairs;
    const hn::Rebind<int8_t, Floats> bytes;
    const hn::Rebind<int32_t, Floats> words;
    const auto pair =
        hn::PromoteTo(pairs, hn::LoadU(packed, reinterpret_cast<const uint8_t*>(row) + begin / 2));
    const auto nibbles = hn::And(hn::Or(pair, hn::ShiftLeft<4>(pair)), hn::Set(pairs, 0x0f0f));
    const auto eight = hn::Set(bytes, 8);
    const auto numbers = hn::Sub(hn::Xor(hn::BitCast(bytes, nibbles), eight), eight);
    return hn::ConvertTo(d, hn::PromoteTo(words, numbers));
#endif
  }
}

// With the scales of a row's blocks, where there are such.
template <KvType kType>
HWY_INLINE Vector LoadScaled(const std::byte* row, const float* scales, size_t begin) {
  const Vector elements = LoadElements<kType>(row, begin);
  if constexpr (kType != KvType::kInt4) return elements;
  return hn::Mul(elements, hn::Set(Floats(), scales[begin / kInt4BlockElements]));
}

// Zeros beyond the row's end: what lies there may be no number.
template <KvType kType>
HWY_INLINE Vector LoadTail(const std::byte* row, const float* scales, size_t begin, size_t dims) {
  const Vector elements = LoadScaled<kType>(row, scales, begin);
  return hn::IfThenElseZero(hn::FirstN(Floats(), dims - begin), elements);
}

// Lane i: the sum of all lanes of v[i], where there are as many vectors as lanes; else parts of it.
template <size_t kCount>
HWY_INLINE Vector SumEach(Vector* HWY_RESTRICT v) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (kCount > 1) {
    const Floats d;
    for (size_t i = 0; i < kCount / 2; ++i) {
      v[i] = hn::Add(hn::ConcatEven(d, v[2 * i + 1], v[2 * i]), hn::ConcatOdd(d, v[2 * i + 1], v[2 * i]));
    }
    return SumEach<kCount / 2>(v);
  }
#endif
  return v[0];
}

// Rows to be prefetched while others are computed with.
struct Ahead {
  size_t n_entries = 0;
  size_t row_bytes = 0;
  const std::byte* const* rows = nullptr;
  const std::byte* const* scales = nullptr;  // null: none

  HWY_INLINE void Prefetch(size_t entry) const {
    if (entry >= n_entries) return;
    for (size_t i = 0; i < row_bytes; i += 64) hwy::Prefetch(rows[entry] + i);
    if (scales != nullptr) hwy::Prefetch(scales[entry]);
  }
};

// scores[r * kBlockEntries + entry] = q[r] . k[entry], without scales of whole rows.
template <KvType kType, size_t kRows>
HWY_NOINLINE void ScoreFew(const KvBlock& block, const Ahead& ahead, size_t head_dim, const Layout& at,
                           size_t first_row) {
  constexpr size_t kEntries = HWY_MIN(kLanes, (kRows > 2 && !kManyRegisters) ? 2 : 4);
  constexpr size_t kParts = kLanes / kEntries;
  const Floats d;
  const size_t n_scales = RowScales(kType, static_cast<uint32_t>(head_dim));
  const float* HWY_RESTRICT queries = at.queries() + first_row * at.dims;
  float* HWY_RESTRICT scores = at.scores() + first_row * kBlockEntries;
  const size_t whole = head_dim / kLanes * kLanes;
  for (size_t begin = 0; begin < block.n_entries; begin += kLanes) {
    Vector parts[kRows][kParts];
    for (size_t part = 0; part < kParts; ++part) {
      const std::byte* rows[kEntries];
      const float* scales[kEntries];
      Vector sums[kRows][kEntries];
      for (size_t e = 0; e < kEntries; ++e) {
        // Beyond the last entry: the last again.
        const size_t entry = HWY_MIN(begin + part * kEntries + e, block.n_entries - 1);
        ahead.Prefetch(begin + part * kEntries + e);
        rows[e] = block.k[entry];
        scales[e] = at.k_scales() + entry * n_scales;
        for (size_t r = 0; r < kRows; ++r) sums[r][e] = hn::Zero(d);
      }
      const auto add = [&](size_t i, const Vector(&keys)[kEntries]) HWY_ATTR {
        for (size_t r = 0; r < kRows; ++r) {
          const Vector query = hn::Load(d, queries + r * at.dims + i);
          for (size_t e = 0; e < kEntries; ++e) sums[r][e] = hn::MulAdd(keys[e], query, sums[r][e]);
        }
      };
      Vector keys[kEntries];
      for (size_t i = 0; i < whole; i += kLanes) {
        for (size_t e = 0; e < kEntries; ++e) keys[e] = LoadScaled<kType>(rows[e], scales[e], i);
        add(i, keys);
      }
      if (whole < head_dim) {
        for (size_t e = 0; e < kEntries; ++e) keys[e] = LoadTail<kType>(rows[e], scales[e], whole, head_dim);
        add(whole, keys);
      }
      for (size_t r = 0; r < kRows; ++r) parts[r][part] = SumEach<kEntries>(sums[r]);
    }
    for (size_t r = 0; r < kRows; ++r) {
      hn::Store(SumEach<kParts>(parts[r]), d, scores + r * kBlockEntries + begin);
    }
  }
}

// Scores to weights, row by row. k_scales, v_scales: one for each entry, or null.
HWY_NOINLINE void SoftmaxFew(const AttendRows& rows, const Layout& at, const KvBlock& block,
                             const float* k_scales, const float* v_scales) {
  const Floats d;
  const Vector masked = hn::Set(d, kMaskedScore);
  const size_t n_entries = block.n_entries;
  for (size_t r = 0; r < rows.n_rows; ++r) {
    float* scores = at.scores() + r * kBlockEntries;
    const size_t visible = HWY_MIN(size_t{block.visible[r]}, n_entries);
    Vector largest = hn::Set(d, at.maximum()[r]);
    for (size_t i = 0; i < n_entries; i += kLanes) {
      Vector score = hn::Load(d, scores + i);
      if (k_scales != nullptr) score = hn::Mul(score, hn::Load(d, k_scales + i));
      if (i + kLanes > visible) {
        score = hn::IfThenElse(hn::FirstN(d, visible > i ? visible - i : 0), score, masked);
      }
      hn::Store(score, d, scores + i);
      largest = hn::Max(largest, score);
    }
    const Vector maximum = hn::MaxOfLanes(d, largest);
    const float correction = hn::GetLane(hn::Exp(d, hn::Sub(hn::Set(d, at.maximum()[r]), maximum)));
    at.maximum()[r] = hn::GetLane(maximum);
    at.correction()[r] = correction;
    Vector weight = hn::Zero(d);
    for (size_t i = 0; i < n_entries; i += kLanes) {
      const Vector score = hn::Load(d, scores + i);
      const auto is_seen = hn::Gt(score, hn::Set(d, 0.5F * kMaskedScore));
      Vector one = hn::IfThenElseZero(is_seen, hn::Exp(d, hn::Sub(score, maximum)));
      weight = hn::Add(weight, one);
      if (v_scales != nullptr) one = hn::Mul(one, hn::Load(d, v_scales + i));
      hn::Store(one, d, scores + i);
    }
    at.weight()[r] = at.weight()[r] * correction + hn::GetLane(hn::SumOfLanes(d, weight));
  }
}

// Sums of kVectors vectors of dimensions from `begin` on.
template <KvType kType, size_t kRows, size_t kVectors, bool kIsTail>
HWY_INLINE void AccumulatePart(const KvBlock& block, const Ahead& ahead, size_t head_dim, const Layout& at,
                               size_t first_row, size_t begin) {
  const Floats d;
  const size_t n_scales = RowScales(kType, static_cast<uint32_t>(head_dim));
  const float* HWY_RESTRICT weights = at.scores() + first_row * kBlockEntries;
  const float* HWY_RESTRICT scales = at.v_scales();
  float* HWY_RESTRICT to = at.sums() + first_row * at.dims + begin;
  Vector sums[kRows][kVectors];
  for (size_t r = 0; r < kRows; ++r) {
    const Vector correction = hn::Set(d, at.correction()[first_row + r]);
    for (size_t v = 0; v < kVectors; ++v) {
      sums[r][v] = hn::Mul(hn::Load(d, to + r * at.dims + v * kLanes), correction);
    }
  }
  for (size_t entry = 0; entry < block.n_entries; ++entry) {
    ahead.Prefetch(entry);
    Vector values[kVectors];
    for (size_t v = 0; v < kVectors; ++v) {
      const size_t i = begin + v * kLanes;
      values[v] = kIsTail ? LoadTail<kType>(block.v[entry], scales + entry * n_scales, i, head_dim)
                          : LoadScaled<kType>(block.v[entry], scales + entry * n_scales, i);
    }
    for (size_t r = 0; r < kRows; ++r) {
      const Vector weight = hn::Set(d, weights[r * kBlockEntries + entry]);
      for (size_t v = 0; v < kVectors; ++v) sums[r][v] = hn::MulAdd(values[v], weight, sums[r][v]);
    }
  }
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t v = 0; v < kVectors; ++v) hn::Store(sums[r][v], d, to + r * at.dims + v * kLanes);
  }
}

template <KvType kType, size_t kRows>
HWY_NOINLINE void AccumulateFew(const KvBlock& block, const Ahead& ahead, size_t head_dim, const Layout& at,
                                size_t first_row) {
  constexpr size_t kVectors = (kRows > 2 && !kManyRegisters) ? 2 : 4;
  Ahead once = ahead;
  size_t begin = 0;
  for (; begin + kVectors * kLanes <= head_dim; begin += kVectors * kLanes) {
    AccumulatePart<kType, kRows, kVectors, false>(block, once, head_dim, at, first_row, begin);
    once = {};
  }
  for (; begin + kLanes <= head_dim; begin += kLanes) {
    AccumulatePart<kType, kRows, 1, false>(block, once, head_dim, at, first_row, begin);
    once = {};
  }
  if (begin < head_dim) AccumulatePart<kType, kRows, 1, true>(block, once, head_dim, at, first_row, begin);
}

// Calls function.template operator()<type>().
template <class F>
HWY_INLINE void WithType(KvType type, const F& function) {
  switch (type) {
    case KvType::kF32: return function.template operator()<KvType::kF32>();
    case KvType::kF16: return function.template operator()<KvType::kF16>();
    case KvType::kFp8: return function.template operator()<KvType::kFp8>();
    case KvType::kInt8: return function.template operator()<KvType::kInt8>();
    case KvType::kInt4: return function.template operator()<KvType::kInt4>();
  }
}

// Four rows at a time. For more, elements are decoded again, from the cache: to decode a block once for both
// passes took as long or longer (8 rows of 64 and 128 dimensions, every type, AVX-512 and AVX2).
template <bool kIsValue>
void ForRows(KvType type, const KvBlock& block, const Ahead& ahead, const AttendRows& rows,
             const Layout& at) {
  WithType(type, [&]<KvType kType>() {
    for (size_t row = 0; row < rows.n_rows; row += 4) {
      const auto run = [&]<size_t kRows>() {
        if constexpr (kIsValue) {
          AccumulateFew<kType, kRows>(block, row == 0 ? ahead : Ahead(), rows.head_dim, at, row);
        } else {
          ScoreFew<kType, kRows>(block, row == 0 ? ahead : Ahead(), rows.head_dim, at, row);
        }
      };
      switch (rows.n_rows - row) {
        case 1: run.template operator()<1>(); break;
        case 2: run.template operator()<2>(); break;
        case 3: run.template operator()<3>(); break;
        default: run.template operator()<4>(); break;
      }
    }
  });
}

// Halves to floats, kMaxRowScales or fewer for each entry, with the type's factor; zeros up to a whole
// vector.
void LoadScales(KvType type, uint32_t head_dim, size_t n_entries, const std::byte* const* from, float* to) {
  const Floats d;
  const hn::Rebind<hwy::float16_t, Floats> halves;
  const size_t n_scales = RowScales(type, head_dim);
  if (n_scales == 0) return;
  alignas(64) uint16_t gathered[kBlockEntries * kMaxRowScales + kPadFloats];
  const size_t count = n_entries * n_scales;
  for (size_t entry = 0; entry < n_entries; ++entry) {
    if (n_scales == 1) {
      std::memcpy(gathered + entry, from[entry], sizeof(uint16_t));
    } else {
      std::memcpy(gathered + entry * n_scales, from[entry], n_scales * sizeof(uint16_t));
    }
  }
  std::memset(gathered + count, 0, kPadFloats * sizeof(uint16_t));
  const Vector factor = hn::Set(d, TypeFactor(type));
  for (size_t i = 0; i < count; i += kLanes) {
    const Vector scale =
        hn::PromoteTo(d, hn::Load(halves, reinterpret_cast<const hwy::float16_t*>(gathered + i)));
    hn::Store(hn::Mul(scale, factor), d, to + i);
  }
}

void AttendFew(const AttendRows& rows, const Layout& at, const KvBlock& block, const KvBlock* next) {
  const Ahead values{block.n_entries, RowBytes(block.v_type, rows.head_dim), block.v, nullptr};
  ForRows<false>(block.k_type, block, values, rows, at);
  SoftmaxFew(rows, at, block, HasRowScale(block.k_type) ? at.k_scales() : nullptr,
             HasRowScale(block.v_type) ? at.v_scales() : nullptr);
  Ahead keys;
  if (next != nullptr) {
    keys = {next->n_entries, RowBytes(next->k_type, rows.head_dim), next->k, nullptr};
    if (RowScales(next->k_type, rows.head_dim) != 0) keys.scales = next->k_scales;
  }
  ForRows<true>(block.v_type, block, keys, rows, at);
}

// to: [n_entries, dims], what the elements stand for.
void DecodeBlock(KvType type, const std::byte* const* from, const float* scales, size_t n_entries,
                 size_t head_dim, float* HWY_RESTRICT to) {
  const size_t dims = DecodedRowFloats(static_cast<uint32_t>(head_dim));
  const Floats d;
  const size_t n_scales = RowScales(type, static_cast<uint32_t>(head_dim));
  WithType(type, [&]<KvType kType>() HWY_ATTR {
    for (size_t entry = 0; entry < n_entries; ++entry) {
      const float* row_scales = scales + entry * n_scales;
      const Vector scale = hn::Set(d, HasRowScale(kType) ? row_scales[0] : 1.0F);
      for (size_t i = 0; i < dims; i += kLanes) {
        Vector elements = hn::Zero(d);
        if (i + kLanes <= head_dim) {
          elements = LoadScaled<kType>(from[entry], row_scales, i);
        } else if (i < head_dim) {
          elements = LoadTail<kType>(from[entry], row_scales, i, head_dim);
        }
        if constexpr (HasRowScale(kType)) elements = hn::Mul(elements, scale);
        hn::Store(elements, d, to + entry * dims + i);
      }
    }
  });
}

// Products of four rows of numbers from `left` (one number after the other) with vectors of `right`:
// to[j][v] += left[j * left_stride + i * left_step] * right[i][v], for i below `count`.
template <size_t kVectors>
HWY_INLINE void Multiply(const float* HWY_RESTRICT left, size_t left_stride, size_t left_step,
                         const float* HWY_RESTRICT right, size_t right_stride, size_t count,
                         Vector (&to)[4][kVectors]) {
  const Floats d;
  for (size_t i = 0; i < count; ++i) {
    Vector vectors[kVectors];
    for (size_t v = 0; v < kVectors; ++v) vectors[v] = hn::Load(d, right + i * right_stride + v * kLanes);
    for (size_t j = 0; j < 4; ++j) {
      const Vector number = hn::Set(d, left[j * left_stride + i * left_step]);
      for (size_t v = 0; v < kVectors; ++v) to[j][v] = hn::MulAdd(number, vectors[v], to[j][v]);
    }
  }
}

// scores[entry][lane], of kVectors vectors of rows from `lane` on. Keys beyond the last entry are zeros.
template <size_t kVectors>
HWY_NOINLINE void ScoreMany(const Layout& at, size_t n_entries, size_t head_dim, size_t lane) {
  const Floats d;
  for (size_t entry = 0; entry < n_entries; entry += 4) {
    Vector scores[4][kVectors];
    for (size_t j = 0; j < 4; ++j)
      for (size_t v = 0; v < kVectors; ++v) scores[j][v] = hn::Zero(d);
    Multiply<kVectors>(at.keys() + entry * at.dims, at.dims, 1, at.queries() + lane, at.lanes, head_dim,
                       scores);
    for (size_t j = 0; j < 4; ++j)
      for (size_t v = 0; v < kVectors; ++v)
        hn::Store(scores[j][v], d, at.scores() + (entry + j) * at.lanes + lane + v * kLanes);
  }
}

template <size_t kVectors>
HWY_NOINLINE void AccumulateMany(const Layout& at, size_t n_entries, size_t head_dim, size_t lane) {
  const Floats d;
  for (size_t i = 0; i < head_dim; i += 4) {
    Vector sums[4][kVectors];
    float* HWY_RESTRICT to = at.sums() + i * at.lanes + lane;
    for (size_t v = 0; v < kVectors; ++v) {
      const Vector correction = hn::Load(d, at.correction() + lane + v * kLanes);
      for (size_t j = 0; j < 4; ++j)
        sums[j][v] = hn::Mul(hn::Load(d, to + j * at.lanes + v * kLanes), correction);
    }
    Multiply<kVectors>(at.values() + i, 1, at.dims, at.scores() + lane, at.lanes, n_entries, sums);
    for (size_t j = 0; j < 4; ++j)
      for (size_t v = 0; v < kVectors; ++v) hn::Store(sums[j][v], d, to + j * at.lanes + v * kLanes);
  }
}

// A vector of rows from `lane` on. visible: of each row, as a number.
void SoftmaxMany(const Layout& at, size_t n_entries, size_t lane, const float* visible) {
  const Floats d;
  const Vector masked = hn::Set(d, kMaskedScore);
  const Vector last = hn::Load(d, visible + lane);
  const bool sees_all = hn::AllTrue(d, hn::Ge(last, hn::Set(d, static_cast<float>(n_entries))));
  float* HWY_RESTRICT scores = at.scores() + lane;
  const Vector before = hn::Load(d, at.maximum() + lane);
  Vector maximum = before;
  for (size_t entry = 0; entry < n_entries; ++entry) {
    Vector score = hn::Load(d, scores + entry * at.lanes);
    if (!sees_all) {
      score = hn::IfThenElse(hn::Lt(hn::Set(d, static_cast<float>(entry)), last), score, masked);
      hn::Store(score, d, scores + entry * at.lanes);
    }
    maximum = hn::Max(maximum, score);
  }
  const Vector correction = hn::Exp(d, hn::Sub(before, maximum));
  Vector weight = hn::Mul(hn::Load(d, at.weight() + lane), correction);
  for (size_t entry = 0; entry < n_entries; ++entry) {
    const Vector score = hn::Load(d, scores + entry * at.lanes);
    const auto is_seen = hn::Gt(score, hn::Set(d, 0.5F * kMaskedScore));
    const Vector one = hn::IfThenElseZero(is_seen, hn::Exp(d, hn::Sub(score, maximum)));
    hn::Store(one, d, scores + entry * at.lanes);
    weight = hn::Add(weight, one);
  }
  hn::Store(maximum, d, at.maximum() + lane);
  hn::Store(weight, d, at.weight() + lane);
  hn::Store(correction, d, at.correction() + lane);
}

template <bool kIsValue>
void ForLanes(const Layout& at, size_t n_entries, size_t head_dim) {
  constexpr size_t kMost = kManyRegisters ? 4 : 2;
  size_t lane = 0;
  const auto run = [&]<size_t kVectors>() {
    for (; lane + kVectors * kLanes <= at.lanes; lane += kVectors * kLanes) {
      if constexpr (kIsValue) {
        AccumulateMany<kVectors>(at, n_entries, head_dim, lane);
      } else {
        ScoreMany<kVectors>(at, n_entries, head_dim, lane);
      }
    }
  };
  run.template operator()<kMost>();
  if constexpr (kMost > 2) run.template operator()<2>();
  run.template operator()<1>();
}

void AttendMany(const AttendRows& rows, const Layout& at, const KvBlock& block) {
  const size_t n = block.n_entries;
  const size_t head_dim = rows.head_dim;
  DecodeBlock(block.k_type, block.k, at.k_scales(), n, head_dim, at.keys());
  const size_t padded = RoundUp<size_t>(n, 4);
  std::memset(at.keys() + n * at.dims, 0, (padded - n) * at.dims * sizeof(float));
  DecodeBlock(block.v_type, block.v, at.v_scales(), n, head_dim, at.values());
  ForLanes<false>(at, n, head_dim);
  alignas(64) float visible[kMaxAttendRows] = {};
  for (size_t r = 0; r < rows.n_rows; ++r) visible[r] = static_cast<float>(block.visible[r]);
  for (size_t lane = 0; lane < at.lanes; lane += kLanes) SoftmaxMany(at, n, lane, visible);
  ForLanes<true>(at, n, head_dim);
}

}  // namespace

void AttendBlockHere(const AttendRows& rows, const KvBlock& block, const KvBlock* next) {
  const Layout at(rows);
  LoadScales(block.k_type, rows.head_dim, block.n_entries, block.k_scales, at.k_scales());
  LoadScales(block.v_type, rows.head_dim, block.n_entries, block.v_scales, at.v_scales());
  if (at.lanes == 0) {
    AttendFew(rows, at, block, next);
  } else {
    AttendMany(rows, at, block);
  }
}

void DecodeRowsHere(KvType type, uint32_t head_dim, uint32_t n_entries, const std::byte* const* rows,
                    const std::byte* const* scales, float* to) {
  alignas(64) float row_scales[kBlockEntries * kMaxRowScales + kPadFloats];
  LoadScales(type, head_dim, n_entries, scales, row_scales);
  DecodeBlock(type, rows, row_scales, n_entries, head_dim, to);
}

}  // namespace HWY_NAMESPACE
}  // namespace kvrun::host
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>
#include <cmath>

namespace kvrun::host {

HWY_EXPORT(AttendBlockHere);
HWY_EXPORT(DecodeRowsHere);

size_t AttendRowsBytes(uint32_t head_dim) {
  const AttendRows rows{.head_dim = head_dim};
  return Layout(rows).count() * sizeof(float);
}

void BeginAttend(const AttendRows& rows, const float* const* queries) {
  const Layout at(rows);
  const float scale = 1.0F / std::sqrt(static_cast<float>(rows.head_dim));
  const size_t n_padded = at.lanes == 0 ? rows.n_rows : at.lanes;
  std::fill_n(at.queries(), n_padded * at.dims, 0.0F);
  std::fill_n(at.sums(), n_padded * at.dims, 0.0F);
  std::fill_n(at.maximum(), kMaxAttendRows, kMaskedScore);
  std::fill_n(at.weight(), kMaxAttendRows, 0.0F);
  const size_t row_step = at.lanes == 0 ? at.dims : 1;
  const size_t dim_step = at.lanes == 0 ? 1 : at.lanes;
  for (size_t r = 0; r < rows.n_rows; ++r) {
    float* to = at.queries() + r * row_step;
    for (size_t i = 0; i < rows.head_dim; ++i) to[i * dim_step] = queries[r][i] * scale;
  }
}

void AttendBlock(const AttendRows& rows, const KvBlock& block, const KvBlock* next) {
  HWY_DYNAMIC_DISPATCH(AttendBlockHere)(rows, block, next);
}

void DecodeRows(KvType type, uint32_t head_dim, uint32_t n_entries, const std::byte* const* rows,
                const std::byte* const* scales, float* to) {
  HWY_DYNAMIC_DISPATCH(DecodeRowsHere)(type, head_dim, n_entries, rows, scales, to);
}

void EndAttend(const AttendRows& rows, float* parts) {
  const Layout at(rows);
  const size_t row_step = at.lanes == 0 ? at.dims : 1;
  const size_t dim_step = at.lanes == 0 ? 1 : at.lanes;
  for (size_t r = 0; r < rows.n_rows; ++r) {
    const float* sums = at.sums() + r * row_step;
    float* part = parts + r * AttendPartFloats(rows.head_dim);
    for (size_t i = 0; i < rows.head_dim; ++i) part[i] = sums[i * dim_step];
    part[rows.head_dim] = at.maximum()[r];
    part[rows.head_dim + 1] = at.weight()[r];
  }
}

}  // namespace kvrun::host
#endif
