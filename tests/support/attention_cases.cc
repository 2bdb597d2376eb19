#include "tests/support/attention_cases.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "runtime/device/self_test_data.h"
#include "tests/support/operations_fixture.h"

namespace kvrun::testing {

std::string Describe(const AttendShape& shape) {
  return ::testing::PrintToString(shape.kv.head_dim) + " dimensions, " +
         ::testing::PrintToString(shape.n_heads) + "/" + ::testing::PrintToString(shape.kv.n_kv_heads) +
         " heads, " + ::testing::PrintToString(shape.tokens.size()) + " tokens from " +
         ::testing::PrintToString(shape.tokens[0].position) +
         (shape.kv.type == KvType::kF16 ? ", f16" : ", f32") + (shape.of_prompt ? ", one sequence" : "") +
         (shape.window_tokens > 0 ? ", window of " + ::testing::PrintToString(shape.window_tokens) : "") +
         (shape.score_cap > 0.0F ? ", capped" : "") + (shape.score_scale > 0.0F ? ", scaled" : "");
}

std::vector<float> Queries(const AttendShape& shape) {
  std::vector<float> qkv = RandomFloats(shape.qkv_count(), 12);
  for (float& value : qkv) value *= kQueryScale;
  return qkv;
}

std::vector<float> RandomKv(const KvShape& kv) {
  return RandomFloats(kv.size_bytes() / KvElementBytes(kv.type), 11);
}

std::vector<float> Stored(KvType type, std::span<float> values) {
  if (type == KvType::kF32) return {values.begin(), values.end()};
  std::vector<uint16_t> halves(values.size());
  std::transform(values.begin(), values.end(), halves.begin(), FloatToHalf);
  std::transform(halves.begin(), halves.end(), values.begin(), HalfToFloat);
  std::vector<float> stored(values.size() / 2);
  std::memcpy(stored.data(), halves.data(), stored.size() * sizeof(float));
  return stored;
}

// Scores are sums of head_dim products of magnitude at most q, times 1 / sqrt(head_dim). Rounding errors add
// up as a random walk: 8 sqrt(n) roundings are exceeded with negligible probability. exp is good to 3 + 2|x|
// units in the last place (Vulkan's precision rules; |x| at most twice the largest score), once for each
// weight and once for each of at most n / 4 blocks whose maximum was corrected. The weighted sum and the sum
// of weights add n roundings as a random walk again. All relative to the largest value.
double AttendTolerance(const AttendShape& shape) {
  const double n = std::min(shape.tokens.back().position + 1.0, static_cast<double>(shape.kv.n_ctx));
  const double dims = shape.kv.head_dim;
  const double largest_score = 0.5 * kQueryScale * std::sqrt(dims);  // values are uniform in [-1, 1)
  const double score = 8 * std::sqrt(dims) * kRoundoff * largest_score + CapTolerance(shape.score_cap);
  const double exponential = 2 * kRoundoff * (3 + 4 * largest_score) * 4;
  return 2 * (score + exponential) + 2 * 8 * std::sqrt(n) * kRoundoff;
}

// Six standard deviations of what attend_rounded-inl.h rounds: Q and K (uniform here, |q| = kQueryScale |k|),
// then weights and values; no average over entries is counted on.
double RoundedTolerance(const AttendShape& shape) {
  const double dims = shape.kv.head_dim;
  const double score = kQueryScale / 3 * std::sqrt(dims) * std::sqrt(2.0 / 12) / 32700;
  return 6 * (score + std::sqrt(1.0 / 12) * (1.0 / 8191 + 1.0 / 4095)) + AttendTolerance(shape);
}

Buffer* Attend(SelfTestRun& run, const AttendShape& shape, const std::vector<float>& qkv,
               const std::vector<float>& stored) {
  const size_t n_outputs = shape.tokens.size() * shape.n_heads * shape.kv.head_dim;
  AttentionArgs args = shape.args();
  args.qkv = run.Floats(qkv);
  args.step = run.Step(shape.tokens);
  args.kv = run.Floats(stored);
  args.output = PoisonedBuffer(run, Untouched(n_outputs));
  const size_t scratch_floats = run.device().AttendScratchBytes(args) / sizeof(float);
  args.scratch = PoisonedBuffer(run, Untouched(scratch_floats));
  run.Run([&](CommandList& list) { return list.Attend(args); });
  std::vector<float> beyond(scratch_floats + kBeyond);
  std::memcpy(beyond.data(), run.Bytes(args.scratch, beyond.size() * sizeof(float)).data(),
              beyond.size() * sizeof(float));
  EXPECT_TRUE(std::all_of(beyond.end() - kBeyond, beyond.end(), [](float v) { return std::isnan(v); }))
      << "scratch: " << Describe(shape);
  return args.output;
}

void CheckAttendOf(Device& device, const AttendShape& shape, const std::vector<float>& qkv,
                   std::vector<float> kv) {
  const std::vector<float> stored = Stored(shape.kv.type, kv);
  const std::vector<double> expected = AttendReference(shape.reference(), qkv, kv);
  SelfTestRun run(device);
  const bool rounds = RoundsActivations(device);
  EXPECT_TRUE(IsClose(run, Attend(run, shape, qkv, stored), expected,
                      rounds ? RoundedTolerance(shape) : AttendTolerance(shape)))
      << Describe(shape) << (rounds ? ", rounded" : "");
}

void CheckAttend(Device& device, const AttendShape& shape) {
  CheckAttendOf(device, shape, Queries(shape), RandomKv(shape.kv));
}

}  // namespace kvrun::testing
