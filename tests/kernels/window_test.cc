// Attention as layers of some models want it: over a window, whose KV is a ring, with scores that have a cap
// or a scale of their own, without rotation; against the scalar reference.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/support/attention_cases.h"
#include "tests/support/check_sources.h"
#include "tests/support/operations_fixture.h"
#include "tests/support/scalar_reference.h"
#include "tests/support/score_cases.h"
#include "tests/support/slot_attention_cases.h"

namespace kvrun::testing {
namespace {

class WindowTest : public OperationsTest {};
class HostWindowTest : public RoundingOperationsTest {};

INSTANTIATE_TEST_SUITE_P(Modes, WindowTest,
                         ::testing::ValuesIn(ModesOf(Operations::kAttention,
                                                     {DeviceMode::kPlanned, DeviceMode::kFloor,
                                                      DeviceMode::kGpu, DeviceMode::kGpuFloor})),
                         ModeName);
INSTANTIATE_TEST_SUITE_P(Modes, HostWindowTest, ::testing::ValuesIn(HostModes()), ModeName);

// A model's heads, and how long its window is.
struct WindowModel {
  uint32_t n_heads = 0;
  uint32_t n_kv_heads = 0;
  uint32_t head_dim = 0;
  uint32_t window_tokens = 0;
  float score_cap = 0.0F;
  float score_scale = 0.0F;
};
// Gemma 3's is the first.
constexpr WindowModel kModels[] = {{4, 1, 256, 512, 0.0F, 0.0F},  {6, 2, 64, 100, 0.0F, 0.0F},
                                   {8, 2, 80, 64, 2.0F, 0.0F},    {3, 3, 10, 7, 0.0F, 0.2F},
                                   {2, 1, 128, 1, 0.0F, 0.0F},    {9, 1, 64, 128, 1.5F, 0.09F},
                                   {10, 1, 16, 33, 3.0F, 0.125F}, {4, 4, 66, 200, 0.0F, 0.0F}};

AttendShape ShapeOf(const WindowModel& model, KvType type, uint32_t n_sequences, uint32_t n_ctx) {
  AttendShape shape{
      .kv = {type, n_sequences, model.n_kv_heads, model.head_dim, n_ctx},
      .n_heads = model.n_heads,
      .tokens = {},
      .window_tokens = model.window_tokens,
      .score_cap = model.score_cap,
      .score_scale = model.score_scale,
  };
  return shape;
}

// A prompt's rows from `position` on.
AttendShape PromptOf(const WindowModel& model, KvType type, uint32_t position, uint32_t n_tokens,
                     uint32_t n_ctx) {
  AttendShape shape = ShapeOf(model, type, 2, n_ctx);
  shape.of_prompt = true;
  for (uint32_t t = 0; t < n_tokens; ++t) shape.tokens.push_back(TokenAt(position + t, 1));
  return shape;
}

TEST_P(WindowTest, DecodingABatch) {
  for (Device* device : devices_) {
    for (const WindowModel& model : kModels) {
      for (const KvType type : {KvType::kF16, KvType::kF32}) {
        const uint32_t window = model.window_tokens;
        AttendShape shape = ShapeOf(model, type, 3, window + (type == KvType::kF16 ? 5 : 0));
        for (const uint32_t position : {0U, window / 2, window - 1, window, window + 1, window + 77,
                                        3 * window + 11, 100'000U, 131'071U}) {
          shape.tokens.push_back(TokenAt(position, static_cast<uint32_t>(shape.tokens.size() % 3)));
        }
        CheckAttend(*device, shape);
      }
    }
  }
}

void CheckPrefill(Device& device) {
  for (const WindowModel& model : kModels) {
    for (const KvType type : {KvType::kF16, KvType::kF32}) {
      const uint32_t window = model.window_tokens;
      for (const auto& [position, n_tokens] :
           {std::pair{0U, 17U}, {window - 1, 3U}, {window + 60, 40U}, {70'000U, 50U}, {70'003U, 1U}}) {
        CheckAttend(device, PromptOf(model, type, position, n_tokens, window + n_tokens - 1));
        CheckAttend(device, PromptOf(model, type, position, n_tokens, window + 97));
      }
    }
  }
}

TEST_P(WindowTest, PrefillInChunks) {
  for (Device* device : devices_) CheckPrefill(*device);
}

TEST_P(HostWindowTest, RoundedPrefillInChunks) {
  for (const auto& device : rounding_) CheckPrefill(*device);
}

// More rows than a window has entries.
TEST_P(WindowTest, LongChunk) {
  for (Device* device : devices_) CheckAttend(*device, PromptOf(kModels[5], KvType::kF16, 1000, 300, 427));
}

// The rows of a prompt, from `first` on in a step of its own: [n_tokens, n_heads * head_dim].
std::vector<std::byte> OutputFrom(Device& device, AttendShape shape, uint32_t first, uint32_t n_tokens) {
  std::vector<float> qkv = Queries(shape);
  std::vector<float> kv = RandomKv(shape.kv);
  const size_t row_floats = qkv.size() / shape.tokens.size();
  qkv = std::vector<float>(&qkv[first * row_floats], &qkv[first * row_floats] + n_tokens * row_floats);
  shape.tokens = std::vector<StepToken>(&shape.tokens[first], &shape.tokens[first] + n_tokens);
  SelfTestRun run(device);
  const Buffer* output = Attend(run, shape, qkv, Stored(shape.kv.type, kv));
  return run.Bytes(output, size_t{n_tokens} * shape.n_heads * shape.kv.head_dim * sizeof(float));
}

// Here all entries are there from the beginning: what a row sees does not change.
TEST_P(HostWindowTest, RowsDoNotDependOnHowAPromptIsCut) {
  const auto check = [](Device& device) {
    for (const WindowModel& model : kModels) {
      const AttendShape shape =
          PromptOf(model, KvType::kF16, 2 * model.window_tokens + 9, 90, model.window_tokens + 90);
      const std::vector<std::byte> whole = OutputFrom(device, shape, 0, 90);
      std::vector<std::byte> parts;
      for (const auto& [first, n_tokens] : {std::pair{0U, 1U}, {1U, 50U}, {51U, 39U}}) {
        const std::vector<std::byte> part = OutputFrom(device, shape, first, n_tokens);
        parts.insert(parts.end(), part.begin(), part.end());
      }
      EXPECT_EQ(whole, parts) << Describe(shape);
    }
  };
  for (Device* device : devices_) check(*device);
  for (const auto& device : rounding_) check(*device);
}

// Caps and scales without a window; a large cap changes little.
TEST_P(WindowTest, CapsAndScales) {
  for (Device* device : devices_) {
    for (const KvType type : {KvType::kF16, KvType::kF32}) {
      for (const bool of_prompt : {false, true}) {
        for (const auto& [cap, scale] :
             {std::pair{0.5F, 0.0F}, {50.0F, 0.0F}, {0.0F, 0.0625F}, {2.0F, 0.05F}}) {
          AttendShape shape{.kv = {type, 1, 2, 64, 150},
                            .n_heads = 6,
                            .of_prompt = of_prompt,
                            .tokens = {},
                            .score_cap = cap,
                            .score_scale = scale};
          for (uint32_t t = 0; t < (of_prompt ? 20U : 3U); ++t) shape.tokens.push_back(TokenAt(100 + t, 0));
          CheckAttend(*device, shape);
        }
      }
    }
  }
}

// A step that stores beyond the ring's end, of rows that may not be rotated.
void CheckRopeAndStore(Device& device, KvType type, uint32_t rotary_dim, bool has_norms) {
  SelfTestRun run(device);
  AttendShape shape{.kv = {type, 2, 2, 64, 40}, .n_heads = 4, .tokens = {}, .window_tokens = 30};
  for (uint32_t t = 0; t < 9; ++t) shape.tokens.push_back(TokenAt(4034 + t, 1));
  const std::vector<float> qkv = RandomFloats(shape.qkv_count(), 13);
  const std::vector<float> angles = RandomFloats(shape.tokens.size() * rotary_dim, 14);
  const std::vector<float> norms = RandomFloats(size_t{2} * shape.kv.head_dim, 15);
  std::vector<double> expected(qkv.begin(), qkv.end());
  std::vector<double> expected_kv = Untouched(shape.kv.size_bytes() / KvElementBytes(type));
  AttentionArgs args = shape.args();
  args.qkv = PoisonedBuffer(run, expected);
  args.step = run.Step(shape.tokens);
  args.kv = PoisonedBuffer(run, Untouched(shape.kv.size_bytes() / sizeof(float)));
  args.angles = rotary_dim > 0 ? run.Floats(angles) : nullptr;
  args.norms = has_norms ? run.Floats(norms) : nullptr;
  args.rotary_dim = rotary_dim;
  run.Run([&](CommandList& list) { return list.RopeAndStore(args); });
  AttentionReferenceArgs reference = shape.reference();
  reference.angles = angles;
  reference.rotary_dim = rotary_dim;
  if (has_norms) reference.norms = norms;
  RopeAndStoreReference(reference, expected, expected_kv);
  const double tolerance = 2 * LargestMagnitude(expected) * (shape.kv.head_dim + 24) * kRoundoff;
  EXPECT_TRUE(IsClose(run, args.qkv, expected, tolerance));
  if (type == KvType::kF32) {
    EXPECT_TRUE(IsClose(run, args.kv, expected_kv, tolerance)) << "KV";
    return;
  }
  const auto halves = Download<uint16_t>(run, args.kv, expected_kv.size());
  ASSERT_TRUE(run.status().ok()) << run.status().message();
  for (size_t i = 0; i < halves.size(); ++i) {
    const double found = HalfToFloat(halves[i]);
    if (std::isnan(expected_kv[i])) {
      ASSERT_TRUE(std::isnan(found)) << "entry " << i << " was overwritten";
    } else {
      // Vulkan may round to either neighbour, and flush what is not normal to zero.
      ASSERT_NEAR(found, expected_kv[i], std::max(std::abs(expected_kv[i]) * 0x1p-10, 0x1p-14) + tolerance);
    }
  }
}

TEST_P(WindowTest, RopeAndStore) {
  for (Device* device : devices_) {
    for (const KvType type : {KvType::kF16, KvType::kF32}) {
      for (const uint32_t rotary_dim : {0U, 64U}) {
        for (const bool has_norms : {false, true}) CheckRopeAndStore(*device, type, rotary_dim, has_norms);
      }
    }
  }
}

// Biases are added to what has a cap.
TEST_P(WindowTest, SlotsWithCapsAndScales) {
  for (Device* device : devices_) {
    uint32_t turn = 0;
    for (const KvType type : kAllKvTypes) {
      for (const uint32_t group : {1U, 4U, 9U}) {
        SlotCase c = AttendCase(type, type, turn % 2 == 0 ? 64 : 80, 4, group, turn % 3 == 0);
        c.score_cap = turn % 4 == 3 ? 0.0F : 1.5F;
        c.score_scale = turn % 4 == 1 ? 0.0F : 0.08F;
        c.shape.has_biases = turn % 2 == 1;
        const SlotData data = MakeSlots(c.shape, Lengths(4), false, kBiases[2]);
        CheckSources(*device, c, {&c.shape, 1}, {&data, 1});
        ++turn;
      }
    }
  }
}

TEST_P(HostWindowTest, RoundedSlotsWithCapsAndScales) {
  for (const auto& device : rounding_) {
    for (const KvType type : {KvType::kInt8, KvType::kInt4}) {
      for (const uint32_t group : {1U, 3U, 9U}) {
        SlotCase c = AttendCase(type, type, 64, 4, group, false);
        c.score_cap = 1.5F;
        c.score_scale = 0.08F;
        const SlotData data = MakeSlots(c.shape, Lengths(4), false);
        CheckSources(*device, c, {&c.shape, 1}, {&data, 1});
      }
    }
  }
}

TEST_P(WindowTest, ChoicesWithAScale) {
  for (Device* device : devices_) {
    for (const HeadReduction reduction : kReductions) {
      CheckScore(*device, {.index = {KvType::kInt4, 32, 4, 60, 2},
                           .n_heads = 6,
                           .n_kv_heads = 2,
                           .head_dim = 64,
                           .reduction = reduction,
                           .window_tokens = 10,
                           .n_pinned = 1,
                           .n_chosen = 9,
                           .score_scale = 0.2F,
                           .tokens = {TokenAt(200, 1), TokenAt(150, 0)}});
    }
  }
}

}  // namespace
}  // namespace kvrun::testing
