// What the processor can do: multiply-adds from registers, and reads from memory.
#include "runtime/device/instruction_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/device/host/rates.cc"
#include <hwy/foreach_target.h>
// What is compiled for each target may use these.
#include <hwy/highway.h>

#include <algorithm>

#include "runtime/device/host/operations.h"

HWY_BEFORE_NAMESPACE();
namespace kvrun::host::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// At least `n` multiply-adds of single elements, in eight chains that do not wait for each other.
float MultiplyAdd(size_t n, float x) {
  const hn::ScalableTag<float> d;
  const auto factor = hn::Set(d, x);
  const auto added = hn::Set(d, 0.25F);
  auto s0 = hn::Set(d, x);
  auto s1 = hn::Set(d, x + 1.0F);
  auto s2 = hn::Set(d, x + 2.0F);
  auto s3 = hn::Set(d, x + 3.0F);
  auto s4 = hn::Set(d, x + 4.0F);
  auto s5 = hn::Set(d, x + 5.0F);
  auto s6 = hn::Set(d, x + 6.0F);
  auto s7 = hn::Set(d, x + 7.0F);
  const size_t per_turn = 8 * hn::Lanes(d);
  for (size_t i = 0; i < n; i += per_turn) {
    s0 = hn::MulAdd(s0, factor, added);
    s1 = hn::MulAdd(s1, factor, added);
    s2 = hn::MulAdd(s2, factor, added);
    s3 = hn::MulAdd(s3, factor, added);
    s4 = hn::MulAdd(s4, factor, added);
    s5 = hn::MulAdd(s5, factor, added);
    s6 = hn::MulAdd(s6, factor, added);
    s7 = hn::MulAdd(s7, factor, added);
  }
  const auto sum =
      hn::Add(hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)), hn::Add(hn::Add(s4, s5), hn::Add(s6, s7)));
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

// All of `n` words, which are a multiple of 64.
uint32_t Read(const uint32_t* words, size_t n) {
  const hn::ScalableTag<uint32_t> d;
  const size_t lanes = hn::Lanes(d);
  auto s0 = hn::Zero(d);
  auto s1 = hn::Zero(d);
  auto s2 = hn::Zero(d);
  auto s3 = hn::Zero(d);
  size_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    s0 = hn::Xor(s0, hn::LoadU(d, words + i));
    s1 = hn::Xor(s1, hn::LoadU(d, words + i + lanes));
    s2 = hn::Xor(s2, hn::LoadU(d, words + i + 2 * lanes));
    s3 = hn::Xor(s3, hn::LoadU(d, words + i + 3 * lanes));
  }
  for (; i + lanes <= n; i += lanes) s0 = hn::Xor(s0, hn::LoadU(d, words + i));
  return hn::GetLane(hn::SumOfLanes(d, hn::Xor(hn::Xor(s0, s1), hn::Xor(s2, s3))));
}

}  // namespace
}  // namespace kvrun::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvrun::host {
namespace {

HWY_EXPORT(MultiplyAdd);
HWY_EXPORT(Read);

constexpr size_t kInvocations = 64;  // of a group, as device.h counts them
constexpr size_t kMultiplyAdds = 256;
constexpr size_t kWordsRead = 4;

void AluRate(ThreadPool& pool, const RateArgs& args) {
  auto* data = Data<float>(args.values);
  const float x = data[0];
  pool.ParallelFor(args.n_groups, 1, [&](size_t begin, size_t end, uint32_t worker) {
    const size_t n = (end - begin) * args.n_steps * kInvocations * kMultiplyAdds;
    // What nobody reads would not be computed.
    data[worker % kInvocations] = HWY_DYNAMIC_DISPATCH(MultiplyAdd)(n, x);
  });
}

void ReadRate(ThreadPool& pool, const RateArgs& args) {
  auto* data = Data<uint32_t>(args.values);
  constexpr size_t kGrain = kInvocations * kWordsRead;
  pool.ParallelFor(size_t{args.n_groups} * args.n_steps * kGrain, kGrain,
                   [&](size_t begin, size_t end, uint32_t) {
                     if (HWY_DYNAMIC_DISPATCH(Read)(data + begin, end - begin) == 0x12345678U)
                       data[begin] = 0;
                   });
}

}  // namespace

void Rate(ThreadPool& pool, const RateArgs& args) {
  args.kind == RateArgs::Kind::kArithmetic ? AluRate(pool, args) : ReadRate(pool, args);
}

}  // namespace kvrun::host
#endif  // HWY_ONCE
