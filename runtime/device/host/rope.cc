#include "runtime/device/host/rope.h"

#include <algorithm>
#include <cmath>

#include "runtime/device/instruction_targets.h"
#include "runtime/model/tensor_type.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/device/host/rope.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace kvrun::host {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::ScalableTag<float>;

void NormHead(const RopeShape& shape, const float* HWY_RESTRICT norm, float* HWY_RESTRICT head) {
  const Floats d;
  const size_t lanes = hn::Lanes(d);
  const size_t whole = shape.head_dim / lanes * lanes;
  auto sums = hn::Zero(d);
  for (size_t i = 0; i < whole; i += lanes) {
    const auto x = hn::LoadU(d, head + i);
    sums = hn::MulAdd(x, x, sums);
  }
  float sum = hn::GetLane(hn::SumOfLanes(d, sums));
  for (size_t i = whole; i < shape.head_dim; ++i) sum += head[i] * head[i];
  const float factor = 1.0F / std::sqrt(sum / static_cast<float>(shape.head_dim) + shape.norm_epsilon);
  for (size_t i = 0; i < whole; i += lanes) {
    const auto scale = hn::Mul(hn::Set(d, factor), hn::LoadU(d, norm + i));
    hn::StoreU(hn::Mul(hn::LoadU(d, head + i), scale), d, head + i);
  }
  for (size_t i = whole; i < shape.head_dim; ++i) head[i] *= factor * norm[i];
}

void RotateHead(const RopeShape& shape, const float* HWY_RESTRICT angles, float* HWY_RESTRICT head) {
  const Floats d;
  const size_t lanes = hn::Lanes(d);
  const size_t pairs = shape.rotary_dim / 2;
  size_t i = 0;
  for (; i + lanes <= pairs; i += lanes) {
    auto cosine = hn::Zero(d);
    auto sine = hn::Zero(d);
    hn::LoadInterleaved2(d, angles + 2 * i, cosine, sine);
    auto a = hn::Zero(d);
    auto b = hn::Zero(d);
    if (shape.halves) {
      a = hn::LoadU(d, head + i);
      b = hn::LoadU(d, head + pairs + i);
    } else {
      hn::LoadInterleaved2(d, head + 2 * i, a, b);
    }
    const auto first = hn::NegMulAdd(b, sine, hn::Mul(a, cosine));
    const auto second = hn::MulAdd(a, sine, hn::Mul(b, cosine));
    if (shape.halves) {
      hn::StoreU(first, d, head + i);
      hn::StoreU(second, d, head + pairs + i);
    } else {
      hn::StoreInterleaved2(first, second, d, head + 2 * i);
    }
  }
  for (; i < pairs; ++i) {
    float& first = head[shape.halves ? i : 2 * i];
    float& second = head[shape.halves ? pairs + i : 2 * i + 1];
    const float a = first;
    const float b = second;
    first = a * angles[2 * i] - b * angles[2 * i + 1];
    second = a * angles[2 * i + 1] + b * angles[2 * i];
  }
}

}  // namespace

void RopeHeadHere(const RopeShape& shape, const float* angles, const float* norm, float* head) {
  if (norm != nullptr) NormHead(shape, norm, head);
  if (shape.rotary_dim != 0) RotateHead(shape, angles, head);
}

void FloatsToHalvesHere(const float* from, size_t count, uint16_t* to) {
  constexpr float kLargest = 65504.0F;
  size_t i = 0;
  // Highway's conversion rounds to nearest where the processor has one.
#if HWY_TARGET <= HWY_AVX2 || HWY_TARGET == HWY_NEON
  const Floats d;
  const hn::Rebind<hwy::float16_t, Floats> halves;
  const size_t lanes = hn::Lanes(d);
  for (; i + lanes <= count; i += lanes) {
    const auto given = hn::LoadU(d, from + i);
    const auto clamped = hn::Clamp(given, hn::Set(d, -kLargest), hn::Set(d, kLargest));
    const auto x = hn::IfThenElse(hn::IsNaN(given), given, clamped);  // Clamp may lose it
    hn::StoreU(hn::DemoteTo(halves, x), halves, reinterpret_cast<hwy::float16_t*>(to + i));
  }
#endif
  for (; i < count; ++i) to[i] = FloatToHalf(std::clamp(from[i], -kLargest, kLargest));
}

}  // namespace HWY_NAMESPACE
}  // namespace kvrun::host
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvrun::host {

HWY_EXPORT(RopeHeadHere);
HWY_EXPORT(FloatsToHalvesHere);

void RopeHead(const RopeShape& shape, const float* angles, const float* norm, float* head) {
  HWY_DYNAMIC_DISPATCH(RopeHeadHere)(shape, angles, norm, head);
}

void FloatsToHalves(const float* from, size_t count, uint16_t* to) {
  HWY_DYNAMIC_DISPATCH(FloatsToHalvesHere)(from, count, to);
}

}  // namespace kvrun::host
#endif
