// Sums of products of bytes by each instruction set's own instruction, and by what stands in for it.
#include <gtest/gtest.h>

#define HWY_WANT_AVX3_DL
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/unit/host_int8_dot_test.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "runtime/device/host/int8_dot-inl.h"
#include "tests/support/host_targets.h"

#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
KVRUN_BEFORE_NAMESPACE();
namespace kvrun::host::HWY_NAMESPACE {

// Weights as a Dot wants them, of kBits bits, in turn random, the least and the largest; likewise
// activations.
template <typename Dot, int kBits, int kGroups>
void CheckColumns() {
  constexpr size_t kLanes = HWY_LANES(int32_t);
  uint32_t state = 1;
  for (int round = 0; round < 50; ++round) {
    int32_t weights[kGroups][4 * kLanes];
    int8_t activations[4 * kGroups];
    HWY_ALIGN uint8_t bytes[4 * kLanes];
    VU8 w[kGroups];
    const int32_t least = kBits == 8 ? -128 : 0;
    for (int g = 0; g < kGroups; ++g) {
      for (size_t i = 0; i < 4 * kLanes; ++i) {
        state = state * 1664525 + 1013904223;
        const auto random = static_cast<int32_t>(state >> 16 & ((1U << kBits) - 1));
        weights[g][i] = least + (round % 3 == 0 ? random : round % 3 == 1 ? 0 : (1 << kBits) - 1);
        bytes[i] = static_cast<uint8_t>(weights[g][i] + (kBits == 8 ? Dot::kBias : 0));
      }
      w[g] = hn::Load(DU8(), bytes);
    }
    int32_t sum_of_activations = 0;
    for (int i = 0; i < 4 * kGroups; ++i) {
      state = state * 1664525 + 1013904223;
      const auto random = static_cast<int32_t>(state >> 16) % 255 - 127;
      activations[i] = static_cast<int8_t>(round % 4 == 0 ? 127 : round % 4 == 1 ? -127 : random);
      sum_of_activations += activations[i];
    }
    const int32_t start = 1000 - (kBits == 8 ? Dot::kBias * sum_of_activations : 0);
    HWY_ALIGN int32_t found[kLanes];
    hn::Store(Dot::template Columns<kBits, kGroups>(hn::Set(DI(), start), w, activations), DI(), found);
    for (size_t lane = 0; lane < kLanes; ++lane) {
      int32_t expected = 1000;
      for (int i = 0; i < 4 * kGroups; ++i) expected += weights[i / 4][4 * lane + i % 4] * activations[i];
      ASSERT_EQ(found[lane], expected)
          << hwy::TargetName(HWY_TARGET) << ", " << kBits << " bits, round " << round;
    }
  }
}

template <typename Dot>
void CheckDot() {
  CheckColumns<Dot, 4, 8>();
  CheckColumns<Dot, 5, 8>();
  CheckColumns<Dot, 6, 4>();
  CheckColumns<Dot, 8, 8>();
}

void CheckTarget() {
  CheckDot<PortableDot>();
#if HWY_TARGET == HWY_AVX3_DL
  CheckDot<Vnni512Dot>();
#elif HWY_TARGET == HWY_NEON && HWY_ARCH_ARM_A64
  CheckDot<NeonMullDot>();
  if (SdotDot::IsThere()) CheckDot<SdotDot>();
#elif HWY_ARCH_X86
  CheckDot<MaddubsDot>();
#endif
#if HWY_TARGET == HWY_AVX2
  if (AvxVnniDot::IsThere()) CheckDot<AvxVnniDot>();
#endif
}

}  // namespace kvrun::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#else
namespace kvrun::host::HWY_NAMESPACE {
void CheckTarget() {}  // sums without vectors are of the C++ kind
}  // namespace kvrun::host::HWY_NAMESPACE
#endif

#if HWY_ONCE
namespace kvrun::host {
namespace {

HWY_EXPORT(CheckTarget);

TEST(Int8Dot, EveryTarget) {
  int checked = 0;
  testing::ForEachHostTarget([&checked](int64_t target) {
    HWY_DYNAMIC_DISPATCH(CheckTarget)();
    checked += target != HWY_SCALAR ? 1 : 0;
  });
  if (checked == 0) GTEST_SKIP() << "no vectors on this processor";
}

}  // namespace
}  // namespace kvrun::host
#endif
