// Elements of K and V as numbers. Compiled once for each instruction set, hence the guard.
#if defined(KVRUN_HOST_ATTEND_ELEMENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVRUN_HOST_ATTEND_ELEMENTS_INL_H_
#undef KVRUN_HOST_ATTEND_ELEMENTS_INL_H_
#else
#define KVRUN_HOST_ATTEND_ELEMENTS_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "runtime/device/host/attend_layout.h"
#include "runtime/device/host/prefetch.h"
#include "runtime/device/host/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvrun::host::HWY_NAMESPACE {

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

// Calls function(constant) for 0 .. kCount - 1: indices must be constants for arrays of vectors to lie in
// registers.
template <size_t kCount, class F>
HWY_INLINE void ForConstants(const F& function) {
  [&]<size_t... kIndex>(std::index_sequence<kIndex...>) {
    (function(std::integral_constant<size_t, kIndex>()), ...);
  }
  (std::make_index_sequence<kCount>());
}

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
    return FromHalves(d, hn::LoadU(halves, reinterpret_cast<const hwy::float16_t*>(row) + begin));
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

#if HWY_TARGET != HWY_SCALAR
// Sixteen bytes, signed, to as many vectors as they fill.
template <class D8, class V8, size_t kVectors>
HWY_INLINE void BytesToFloats([[maybe_unused]] D8 bytes, V8 numbers, Vector (&to)[kVectors]) {
  const Floats d;
  if constexpr (kVectors == 1) {
    const hn::Rebind<int32_t, Floats> words;
    to[0] = hn::ConvertTo(d, hn::PromoteTo(words, numbers));
  } else {
    const hn::Half<D8> half;
    Vector low[kVectors / 2];
    Vector high[kVectors / 2];
    BytesToFloats(half, hn::LowerHalf(half, numbers), low);
    BytesToFloats(half, hn::UpperHalf(half, numbers), high);
    for (size_t i = 0; i < kVectors / 2; ++i) {
      to[i] = low[i];
      to[kVectors / 2 + i] = high[i];
    }
  }
}
#endif

// kCount vectors of them. Of int4, sixteen elements take as many instructions to unpack as a vector's.
template <KvType kType, size_t kCount>
HWY_INLINE void LoadManyScaled(const std::byte* row, const float* scales, size_t begin,
                               Vector (&to)[kCount]) {
#if HWY_TARGET != HWY_SCALAR
  constexpr size_t kOfSixteen = 16 / kLanes;
  if constexpr (kType == KvType::kInt4 && kOfSixteen > 1 && kCount % kOfSixteen == 0) {
    const Floats d;
    const hn::CappedTag<uint8_t, 8> packed;
    const hn::Rebind<uint16_t, decltype(packed)> pairs;
    const hn::Repartition<int8_t, decltype(pairs)> bytes;
    const auto eight = hn::Set(bytes, 8);
    for (size_t i = 0; i < kCount; i += kOfSixteen) {
      const size_t at = begin + i * kLanes;
      const auto pair =
          hn::PromoteTo(pairs, hn::LoadU(packed, reinterpret_cast<const uint8_t*>(row) + at / 2));
      const auto nibbles = hn::And(hn::Or(pair, hn::ShiftLeft<4>(pair)), hn::Set(pairs, 0x0f0f));
      Vector numbers[kOfSixteen];
      BytesToFloats(bytes, hn::Sub(hn::Xor(hn::BitCast(bytes, nibbles), eight), eight), numbers);
      const Vector scale = hn::Set(d, scales[at / kInt4BlockElements]);
      for (size_t k = 0; k < kOfSixteen; ++k) to[i + k] = hn::Mul(numbers[k], scale);
    }
    return;
  }
#endif
  for (size_t i = 0; i < kCount; ++i) to[i] = LoadScaled<kType>(row, scales, begin + i * kLanes);
}

// Zeros beyond the row's end: what lies there may be no number.
template <KvType kType>
HWY_INLINE Vector LoadTail(const std::byte* row, const float* scales, size_t begin, size_t dims) {
  const Vector elements = LoadScaled<kType>(row, scales, begin);
  return hn::IfThenElseZero(hn::FirstN(Floats(), dims - begin), elements);
}

#if HWY_TARGET != HWY_SCALAR
// Of each kJoined lanes of a and b sums, 2 * kJoined lanes: those of a, then those of b.
template <size_t kJoined, class D, class V = hn::Vec<D>>
HWY_INLINE V JoinSums(D d, V a, V b) {
  if constexpr (kJoined == 1) {
    return hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b));
  } else if constexpr (kJoined == 2) {
    const hn::RepartitionToWide<hn::RebindToUnsigned<D>> pairs;
    const auto a2 = hn::BitCast(pairs, a);
    const auto b2 = hn::BitCast(pairs, b);
    return hn::Add(hn::BitCast(d, hn::InterleaveLower(pairs, a2, b2)),
                   hn::BitCast(d, hn::InterleaveUpper(pairs, a2, b2)));
  } else if constexpr (kJoined == 4) {
    return hn::Add(hn::OddEvenBlocks(b, a), hn::SwapAdjacentBlocks(hn::OddEvenBlocks(a, b)));
  } else {
    static_assert(kJoined == 8 && kLanes == 16);
    return hn::Add(hn::ConcatLowerLower(d, b, a), hn::ConcatUpperUpper(d, b, a));
  }
}
#endif

// Lane i: the sum of all lanes of v[i], where there are as many vectors as lanes. Of fewer what is left to do
// is SumEach<.., kCount> of vectors of this kind.
template <size_t kCount, size_t kJoined = 1, class D, class V = hn::Vec<D>>
HWY_INLINE V SumEach([[maybe_unused]] D d, const V* HWY_RESTRICT v) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (kCount > 1) {
    V joined[kCount / 2];
    ForConstants<kCount / 2>([&](auto i)
                                 HWY_ATTR { joined[i] = JoinSums<kJoined>(d, v[2 * i], v[2 * i + 1]); });
    return SumEach<kCount / 2, 2 * kJoined>(d, joined);
  }
#endif
  return v[0];
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

// Calls function.template operator()<count of rows>(first row, what to prefetch), four rows at a time.
template <class F>
HWY_INLINE void ForFours(size_t n_rows, const Ahead& ahead, const F& function) {
  for (size_t row = 0; row < n_rows; row += 4) {
    const Ahead once = row == 0 ? ahead : Ahead();
    switch (n_rows - row) {
      case 1: function.template operator()<1>(row, once); break;
      case 2: function.template operator()<2>(row, once); break;
      case 3: function.template operator()<3>(row, once); break;
      default: function.template operator()<4>(row, once); break;
    }
  }
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
        FromHalves(d, hn::Load(halves, reinterpret_cast<const hwy::float16_t*>(gathered + i)));
    hn::Store(hn::Mul(scale, factor), d, to + i);
  }
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

}  // namespace kvrun::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVRUN_HOST_ATTEND_ELEMENTS_INL_H_
