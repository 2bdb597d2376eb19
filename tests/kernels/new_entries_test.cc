// AttendNew: what is new is rotated, stored and attended to, as by RopeAndStore and Attend, which other tests
// compare with the scalar reference.
#include <cmath>
#include <cstring>
#include <utility>

#include "tests/support/attention_cases.h"
#include "tests/support/operations_fixture.h"

namespace kvrun::testing {
namespace {

struct NewEntriesCase {
  AttendShape shape;
  uint32_t rotary_dim = 0;
  bool halves = false;
  bool norms = false;
};

class NewEntriesTest : public OperationsTest {};

INSTANTIATE_TEST_SUITE_P(Modes, NewEntriesTest,
                         ::testing::ValuesIn(ModesOf(Operations::kAttention,
                                                     {DeviceMode::kPlanned, DeviceMode::kFloor,
                                                      DeviceMode::kGpu})),
                         ModeName);

// AttendNew against what it stands for, on the same device, twice with one scratch.
void CheckAttendNew(Device& device, const NewEntriesCase& c, uint32_t window_tokens, float score_cap) {
  SelfTestRun run(device);
  const KvShape& kv = c.shape.kv;
  const std::vector<float> qkv = Queries(c.shape);
  std::vector<float> values = RandomKv(kv);
  const std::vector<float> stored = Stored(kv.type, values);
  const std::vector<float> angles = RandomFloats(c.shape.tokens.size() * c.rotary_dim, 14);
  const std::vector<float> norms = RandomFloats(size_t{2} * kv.head_dim, 15);
  const size_t n_outputs = c.shape.tokens.size() * c.shape.n_heads * kv.head_dim;
  AttentionArgs args = c.shape.args();
  args.step = run.Step(c.shape.tokens);
  args.angles = run.Floats(angles);
  args.norms = c.norms ? run.Floats(norms) : nullptr;
  args.norm_epsilon = 1e-5F;
  args.rotary_dim = c.rotary_dim;
  args.rope_halves = c.halves;
  args.window_tokens = window_tokens;
  args.score_cap = score_cap;
  AttentionArgs apart = args;
  args.scratch = run.Zeros(device.AttendScratchBytes(args));
  apart.scratch = run.Zeros(device.AttendScratchBytes(args));
  for (uint32_t time = 0; time < 2; ++time) {
    for (AttentionArgs* one : {&args, &apart}) {
      one->qkv = run.Floats(qkv);
      one->kv = run.Floats(stored);
      one->output = PoisonedBuffer(run, Untouched(n_outputs));
    }
    run.Run([&](CommandList& list) -> Status {
      KVRUN_RETURN_IF_ERROR(list.AttendNew(args));
      KVRUN_RETURN_IF_ERROR(list.RopeAndStore(apart));
      return list.Attend(apart);
    });
    ASSERT_TRUE(run.status().ok()) << run.status().message();
    const std::vector<std::byte> wanted = run.Bytes(apart.output, n_outputs * sizeof(float));
    std::vector<float> floats(n_outputs);
    std::memcpy(floats.data(), wanted.data(), wanted.size());
    const double tolerance = AttendTolerance(c.shape) + 8 * kv.head_dim * kRoundoff;
    EXPECT_TRUE(IsClose(run, args.output, std::vector<double>(floats.begin(), floats.end()), tolerance))
        << Describe(c.shape) << ", time " << time << ", window " << window_tokens << ", cap " << score_cap
        << ", rotates " << c.rotary_dim << (c.halves ? " in halves" : "") << (c.norms ? ", norms" : "");
    // The same entries, but for the last bit of a rotation; the rest as it was.
    const std::vector<std::byte> kept = run.Bytes(args.kv, kv.size_bytes());
    const std::vector<std::byte> kept_apart = run.Bytes(apart.kv, kv.size_bytes());
    const auto value_of = [&](const std::vector<std::byte>& bytes, size_t i) {
      uint16_t half = 0;
      float value = 0.0F;
      if (kv.type == KvType::kF32) std::memcpy(&value, &bytes[i * sizeof(float)], sizeof(float));
      if (kv.type == KvType::kF16) {
        std::memcpy(&half, &bytes[i * sizeof(half)], sizeof(half));
        value = HalfToFloat(half);
      }
      return value;
    };
    for (size_t i = 0; i < kv.size_bytes() / KvElementBytes(kv.type); ++i) {
      const float value = value_of(kept_apart, i);
      ASSERT_NEAR(value_of(kept, i), value, std::abs(value) * 0x1p-9 + 1e-6)
          << i << " of KV, " << Describe(c.shape);
    }
  }
}

TEST_P(NewEntriesTest, AreStoredAndAttendedTo) {
  NewEntriesCase c;
  for (Device* device : devices_) {
    uint32_t turn = 0;
    for (const KvType type : {KvType::kF16, KvType::kF32}) {
      if (GetParam() == DeviceMode::kGpu && type == KvType::kF32) continue;
      // Each head and group is a kernel, which a driver takes a second to compile; 80 is none of a
      // subgroup's.
      constexpr std::pair<uint32_t, uint32_t> kHeadsAndGroups[] = {
          {64, 1}, {64, 3}, {64, 4}, {64, 9}, {16, 2}, {80, 3}, {128, 4}, {128, 8}, {256, 1}};
      for (const auto& [head_dim, group] : kHeadsAndGroups) {
        // Of positions 0 and 1, of one before and one behind a block's end, in a ring and beyond its end.
        c.shape.tokens = {TokenAt(0, 2), TokenAt(1, 3), TokenAt(127, 0), TokenAt(299, 1)};
        c.shape.kv = {type, 4, 2, head_dim, 300};
        c.shape.n_heads = 2 * group;
        c.halves = turn % 2 != 0;
        c.norms = turn % 3 == 0;
        c.rotary_dim = turn % 4 == 3 ? 0 : turn % 4 == 1 ? head_dim / 4 * 2 : head_dim;
        const bool has_window = turn % 5 == 1;
        if (has_window) c.shape.tokens.back().position = 1000;
        CheckAttendNew(*device, c, has_window ? 100 : 0, turn % 7 == 2 ? 3.0F : 0.0F);
        ++turn;
      }
    }
  }
}

}  // namespace
}  // namespace kvrun::testing
