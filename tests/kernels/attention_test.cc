// RoPE, KV stores and attention over every shape of head, against the scalar reference.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "tests/support/attention_cases.h"
#include "tests/support/operations_fixture.h"
#include "tests/support/scalar_reference.h"

namespace kvrun::testing {
namespace {

constexpr uint32_t kHeadDims[] = {8, 10, 16, 48, 64, 80, 96, 128, 256};
constexpr uint32_t kHostHeadDims[] = {2, 8, 10, 16, 48, 64, 66, 80, 96, 128, 256};
constexpr KvType kKvTypes[] = {KvType::kF16, KvType::kF32};

class AttentionTest : public OperationsTest {
 protected:
  static std::span<const uint32_t> HeadDims() {
    return IsHost(GetParam()) ? std::span<const uint32_t>(kHostHeadDims)
                              : std::span<const uint32_t>(kHeadDims);
  }
  // Of the longest chunk: the CPU has tiles of more rows than others.
  static uint32_t ChunkTokens() { return IsHost(GetParam()) ? 50 : 20; }
};

// What is the CPU's alone.
class HostAttentionTest : public RoundingOperationsTest {};

INSTANTIATE_TEST_SUITE_P(Modes, AttentionTest,
                         ::testing::ValuesIn(ModesOf(Operations::kAttention,
                                                     {DeviceMode::kPlanned, DeviceMode::kFloor,
                                                      DeviceMode::kGpu, DeviceMode::kGpuFloor})),
                         ModeName);

INSTANTIATE_TEST_SUITE_P(Modes, HostAttentionTest, ::testing::ValuesIn(HostModes()), ModeName);

TEST_P(AttentionTest, DecodingABatch) {
  constexpr uint32_t kGroups[] = {1, 2, 3, 4, 7, 8};
  constexpr uint32_t kHostGroups[] = {1, 2, 3, 4, 7, 8, 9, 16};
  const auto groups =
      IsHost(GetParam()) ? std::span<const uint32_t>(kHostGroups) : std::span<const uint32_t>(kGroups);
  AttendShape shape;
  for (const uint32_t position : {0U, 1U, 7U, 31U, 32U, 63U, 64U, 65U, 127U, 128U, 256U, 299U}) {
    shape.tokens.push_back(TokenAt(position, static_cast<uint32_t>(shape.tokens.size() % 4)));
  }
  for (Device* device : devices_) {
    uint32_t turn = 0;
    for (const KvType type : kKvTypes) {
      for (const uint32_t head_dim : HeadDims()) {
        for (const uint32_t group : groups) {
          // Two of the groups for each head; all of them for the heads that matter most.
          if (IsHost(GetParam()) && head_dim != 64 && head_dim != 80 && turn++ % 4 != 0) continue;
          shape.kv = {type, 4, 2, head_dim, 300};
          shape.n_heads = 2 * group;
          CheckAttend(*device, shape);
        }
        ++turn;
      }
    }
  }
}

void CheckPrefillInChunks(Device& device, std::span<const uint32_t> head_dims, uint32_t chunk_tokens) {
  for (const KvType type : kKvTypes) {
    uint32_t turn = 0;
    for (const uint32_t head_dim : head_dims) {
      for (const auto& [position, n_tokens] :
           {std::pair{0U, 17U}, {30U, 5U}, {120U, chunk_tokens}, {250U, 1U}}) {
        constexpr uint32_t kGroups[] = {1, 3, 2, 7, 4, 8};
        AttendShape shape{.kv = {type, 2, 3, head_dim, 300},
                          .n_heads = 3 * kGroups[turn++ % 6],
                          .of_prompt = true,
                          .tokens = {}};
        for (uint32_t t = 0; t < n_tokens; ++t) shape.tokens.push_back(TokenAt(position + t, 1));
        CheckAttend(device, shape);
      }
    }
  }
}

TEST_P(AttentionTest, PrefillInChunks) {
  for (Device* device : devices_) CheckPrefillInChunks(*device, HeadDims(), ChunkTokens());
}

TEST_P(HostAttentionTest, RoundedPrefillInChunks) {
  for (const auto& device : rounding_) CheckPrefillInChunks(*device, kHostHeadDims, 50);
}

// Rounded sums are the largest that there can be: queries and keys point the same way, all weights are equal.
TEST_P(HostAttentionTest, RoundedSumsDoNotOverflow) {
  for (const auto& device : rounding_) {
    for (const float value : {1.0F, -1.0F}) {
      for (const uint32_t head_dim : {2U, 64U, 256U}) {
        AttendShape shape{
            .kv = {KvType::kF16, 1, 1, head_dim, 300}, .n_heads = 4, .of_prompt = true, .tokens = {}};
        for (uint32_t t = 0; t < 40; ++t) shape.tokens.push_back(TokenAt(200 + t, 0));
        CheckAttendOf(*device, shape, std::vector<float>(shape.qkv_count(), kQueryScale),
                      std::vector<float>(shape.kv.size_bytes() / 2, value));
      }
    }
  }
}

// What was never written attracts nothing, and keys of zeros are not divided by their length.
TEST_P(HostAttentionTest, RoundedZeros) {
  AttendShape shape{.kv = {KvType::kF16, 1, 1, 64, 300}, .n_heads = 4, .of_prompt = true, .tokens = {}};
  for (uint32_t t = 0; t < 40; ++t) shape.tokens.push_back(TokenAt(100 + t, 0));
  for (const auto& device : rounding_) {
    CheckAttendOf(*device, shape, Queries(shape), std::vector<float>(shape.kv.size_bytes() / 2, 0.0F));
    CheckAttendOf(*device, shape, std::vector<float>(shape.qkv_count(), 0.0F), RandomKv(shape.kv));
  }
}

// Whether any of each row's head's results is no number: [n_tokens, n_heads].
std::vector<bool> HeadsWithNaN(Device& device, const AttendShape& shape, const std::vector<float>& qkv,
                               std::vector<float> kv) {
  SelfTestRun run(device);
  std::vector<float> output(shape.tokens.size() * shape.n_heads * shape.kv.head_dim);
  const std::vector<std::byte> bytes =
      run.Bytes(Attend(run, shape, qkv, Stored(shape.kv.type, kv)), output.size() * sizeof(float));
  std::memcpy(output.data(), bytes.data(), bytes.size());
  std::vector<bool> heads(shape.tokens.size() * shape.n_heads);
  for (size_t i = 0; i < output.size(); ++i) {
    if (std::isnan(output[i])) heads[i / shape.kv.head_dim] = true;
  }
  return heads;
}

ptrdiff_t CountNaN(const std::vector<bool>& heads) { return std::count(heads.begin(), heads.end(), true); }

void CheckThatNaNsAreNotLost(Device& device, const AttendShape& shape) {
  const auto odd_nan = std::bit_cast<float>(0x7fcab123U);
  const std::string name = Describe(shape) + (RoundsActivations(device) ? ", rounded" : "");
  const std::vector<float> qkv = Queries(shape);
  const std::vector<float> kv = RandomKv(shape.kv);
  EXPECT_EQ(CountNaN(HeadsWithNaN(device, shape, qkv, kv)), 0) << name;
  std::vector<float> damaged = qkv;
  damaged[5] = odd_nan;  // the first row's first head
  const std::vector<bool> of_query = HeadsWithNaN(device, shape, damaged, kv);
  EXPECT_TRUE(of_query[0]) << name;
  EXPECT_EQ(CountNaN(of_query), 1) << name;
  for (const size_t element : {size_t{3 * 64 + 5}, size_t{(300 + 3) * 64 + 5}}) {
    damaged = kv;
    damaged[element] = odd_nan;  // of K, of V
    const std::vector<bool> heads = HeadsWithNaN(device, shape, qkv, damaged);
    EXPECT_EQ(CountNaN(heads), std::ssize(heads)) << name << ", element " << element;
  }
}

// A damaged model must not go unnoticed: what is no number makes results that are none.
TEST_P(HostAttentionTest, NaNsAreNotLost) {
  for (const uint32_t n_tokens : {1U, 3U, 40U}) {
    for (const KvType type : kKvTypes) {
      AttendShape shape{.kv = {type, 1, 1, 64, 300}, .n_heads = 3, .of_prompt = true, .tokens = {}};
      for (uint32_t t = 0; t < n_tokens; ++t) shape.tokens.push_back(TokenAt(100 + t, 0));
      for (Device* device : devices_) CheckThatNaNsAreNotLost(*device, shape);
      for (const auto& device : rounding_) CheckThatNaNsAreNotLost(*device, shape);
    }
  }
}

// More query heads of one KV head than rows of a tile.
TEST_P(HostAttentionTest, ManyHeadsOfOne) {
  for (Device* device : devices_) {
    CheckAttend(
        *device,
        {.kv = {KvType::kF16, 1, 1, 16, 80}, .n_heads = 200, .of_prompt = false, .tokens = {TokenAt(79, 0)}});
  }
}

// One row of a long context: positions are divided, and for the early ones some parts are empty.
TEST_P(AttentionTest, Splits) {
  for (Device* device : devices_) {
    for (const KvType type : kKvTypes) {
      for (const uint32_t head_dim : {64U, 80U}) {
        for (const uint32_t position : {0U, 31U, 32U, 64U, 500U, 2099U}) {
          const AttendShape shape{.kv = {type, 1, 1, head_dim, 2100},
                                  .n_heads = 1,
                                  .of_prompt = false,
                                  .tokens = {TokenAt(position, 0)}};
          CheckAttend(*device, shape);
        }
      }
    }
  }
}

// A prompt's chunk over a KV that is there in tiles, one after the other in one buffer.
void CheckTiles(Device& device, const AttendShape& shape, uint32_t tile_tokens) {
  SelfTestRun run(device);
  const std::vector<float> qkv = Queries(shape);
  std::vector<float> kv = RandomKv(shape.kv);
  Stored(shape.kv.type, kv);
  const std::vector<double> expected = AttendReference(shape.reference(), qkv, kv);
  AttentionArgs args = shape.args();
  args.qkv = run.Floats(qkv);
  args.kv_shape.n_ctx = tile_tokens;
  args.output = PoisonedBuffer(run, Untouched(expected.size()));
  // Parts of the tiles take turns in a buffer that has more rows between them.
  const uint32_t n_rows = args.n_tokens * args.n_heads;
  Buffer* const parts = PoisonedBuffer(run, Untouched(3 * args.parts_bytes() / sizeof(float)));
  const uint32_t n_tiles = shape.kv.n_ctx / tile_tokens;
  for (uint32_t tile = 0; tile < n_tiles; ++tile) {
    std::vector<StepToken> tokens = shape.tokens;
    for (StepToken& token : tokens) {
      token.position = std::min(token.position - tile * tile_tokens, tile_tokens - 1);
    }
    std::vector<float> values;
    for (uint32_t plane = 0; plane < shape.kv.n_kv_heads * 2; ++plane) {
      const auto begin =
          kv.begin() + (size_t{plane} * shape.kv.n_ctx + tile * tile_tokens) * shape.kv.head_dim;
      values.insert(values.end(), begin, begin + size_t{tile_tokens} * shape.kv.head_dim);
    }
    args.step = run.Step(tokens);
    args.kv = run.Floats(Stored(shape.kv.type, values));
    args.parts_before = args.parts_after;
    args.parts_after = {parts, tile % 2 * 2 * n_rows};
    args.scratch = PoisonedBuffer(run, Untouched(device.AttendScratchBytes(args) / sizeof(float)));
    run.Run([&](CommandList& list) { return list.Attend(args); });
  }
  EXPECT_TRUE(IsClose(run, args.output, Untouched(expected.size()), 0.0)) << "before: " << Describe(shape);
  run.Run([&](CommandList& list) { return list.FinishAttention(args); });
  // A correction for each tile, as for each block.
  EXPECT_TRUE(IsClose(run, args.output, expected, AttendTolerance(shape))) << Describe(shape);
}

TEST_P(AttentionTest, PrefillOverTiles) {
  for (Device* device : devices_) {
    for (const KvType type : kKvTypes) {
      for (const uint32_t head_dim : {64U, 80U}) {
        for (const auto& [position, n_tokens] : {std::pair{200U, ChunkTokens()}, {287U, 1U}, {200U, 2U}}) {
          AttendShape shape{.kv = {type, 1, 3, head_dim, 288}, .n_heads = 9, .of_prompt = true, .tokens = {}};
          for (uint32_t t = 0; t < n_tokens; ++t) shape.tokens.push_back(TokenAt(position + t, 0));
          CheckTiles(*device, shape, 96);
          shape.score_cap = 1.5F;
          shape.score_scale = 0.07F;
          CheckTiles(*device, shape, 96);
        }
      }
    }
  }
}

struct RopeCase {
  AttendShape shape;
  uint32_t rotary_dim = 0;
  bool halves = false;
  bool norms = false;
};

// K and V as stored: poisoned where nothing was written, else within the rounding of their type.
void ExpectKv(SelfTestRun& run, const AttentionArgs& args, std::span<const double> expected,
              double tolerance) {
  if (args.kv_shape.type == KvType::kF32) {
    EXPECT_TRUE(IsClose(run, args.kv, expected, tolerance)) << "KV";
    return;
  }
  const bool is_nearest = AsHost(run.device()) != nullptr;
  std::vector<uint16_t> halves(expected.size());
  const std::vector<std::byte> bytes = run.Bytes(args.kv, halves.size() * sizeof(uint16_t));
  ASSERT_TRUE(run.status().ok()) << run.status().message();
  std::memcpy(halves.data(), bytes.data(), bytes.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    const double found = HalfToFloat(halves[i]);
    if (std::isnan(expected[i])) {
      ASSERT_TRUE(std::isnan(found)) << "entry " << i << " was overwritten";
    } else {
      // Vulkan may round to either neighbour, and flush what is not normal to zero.
      const double rounding = is_nearest ? std::max(std::abs(expected[i]) * 0x1p-11, 0x1p-25)
                                         : std::max(std::abs(expected[i]) * 0x1p-10, 0x1p-14);
      ASSERT_NEAR(found, expected[i], rounding + tolerance) << i;
    }
  }
}

void CheckRope(Device& device, const RopeCase& c) {
  SelfTestRun run(device);
  const KvShape& kv = c.shape.kv;
  const std::vector<float> qkv = RandomFloats(c.shape.qkv_count(), 13);
  const std::vector<float> angles = RandomFloats(c.shape.tokens.size() * c.rotary_dim, 14);
  const std::vector<float> norms = RandomFloats(size_t{2} * kv.head_dim, 15);
  const size_t kv_count = kv.size_bytes() / KvElementBytes(kv.type);
  std::vector<double> expected(qkv.begin(), qkv.end());
  std::vector<double> expected_kv = Untouched(kv_count);
  const AttentionArgs args{.qkv = PoisonedBuffer(run, expected),
                           .step = run.Step(c.shape.tokens),
                           .kv = PoisonedBuffer(run, Untouched(kv.size_bytes() / sizeof(float))),
                           .kv_shape = kv,
                           .n_heads = c.shape.n_heads,
                           .n_tokens = static_cast<uint32_t>(c.shape.tokens.size()),
                           .angles = run.Floats(angles),
                           .norms = c.norms ? run.Floats(norms) : nullptr,
                           .norm_epsilon = 1e-5F,
                           .rotary_dim = c.rotary_dim,
                           .rope_halves = c.halves};
  run.Run([&](CommandList& list) { return list.RopeAndStore(args); });
  RopeAndStoreReference({.tokens = c.shape.tokens,
                         .kv_shape = kv,
                         .n_heads = c.shape.n_heads,
                         .angles = angles,
                         .norms = c.norms ? std::span<const float>(norms) : std::span<const float>{},
                         .norm_epsilon = args.norm_epsilon,
                         .rotary_dim = c.rotary_dim,
                         .rope_halves = c.halves},
                        expected, expected_kv);
  // The norm's sum of head_dim squares, root, quotient and products; then two products and a sum.
  const double tolerance = 2 * LargestMagnitude(expected) * (kv.head_dim + 24) * kRoundoff;
  EXPECT_TRUE(IsClose(run, args.qkv, expected, tolerance)) << Describe(c.shape);
  ExpectKv(run, args, expected_kv, tolerance);
}

TEST_P(AttentionTest, RopeAndStore) {
  RopeCase c;
  c.shape.tokens = {TokenAt(0, 2), TokenAt(19, 0), TokenAt(7, 1), TokenAt(8, 1)};
  for (Device* device : devices_) {
    for (const KvType type : kKvTypes) {
      for (const uint32_t head_dim : HeadDims()) {
        c.shape.kv = {type, 3, 2, head_dim, 20};
        c.shape.n_heads = 6;
        for (uint32_t variation = 0; variation < 8; ++variation) {
          c.halves = (variation & 1) != 0;
          c.norms = (variation & 2) != 0;
          c.rotary_dim = (variation & 4) != 0 ? head_dim : head_dim / 4 * 2;
          CheckRope(*device, c);
        }
      }
    }
  }
}

// A layer's KV that is larger than what the device binds at once: in windows of some streams.
class KvWindowTest : public OperationsTest {};

INSTANTIATE_TEST_SUITE_P(Modes, KvWindowTest, ::testing::Values(DeviceMode::kSmallBuffers), ModeName);

void CheckWindows(Device& device, const AttendShape& shape) {
  const KvShape& kv = shape.kv;
  ASSERT_GT(kv.size_bytes(), device.info().max_buffer_bytes);
  ASSERT_TRUE(device.FitsKv(kv)) << Describe(shape);
  Result<std::unique_ptr<Buffer>> kv_buffer = device.CreateBuffer(kv.size_bytes(), BufferUse::kKv, "test");
  ASSERT_TRUE(kv_buffer.ok()) << kv_buffer.status().message();
  SelfTestRun run(device);
  const std::vector<float> qkv = Queries(shape);
  const std::vector<float> angles = RandomFloats(shape.tokens.size() * kv.head_dim, 14);
  std::vector<double> expected(qkv.begin(), qkv.end());
  AttentionArgs args{
      .qkv = PoisonedBuffer(run, expected),
      .step = run.Step(shape.tokens),
      .kv = kv_buffer->get(),
      .kv_shape = kv,
      .n_heads = shape.n_heads,
      .n_tokens = static_cast<uint32_t>(shape.tokens.size()),
      .angles = run.Floats(angles),
      .rotary_dim = kv.head_dim,
      .output = PoisonedBuffer(run, Untouched(shape.tokens.size() * shape.n_heads * kv.head_dim)),
      .of_prompt = shape.of_prompt};
  args.scratch = PoisonedBuffer(run, Untouched(device.AttendScratchBytes(args) / sizeof(float)));
  run.Run([&](CommandList& list) -> Status {
    KVRUN_RETURN_IF_ERROR(list.RopeAndStore(args));
    return list.Attend(args);
  });

  const AttentionReferenceArgs reference{.tokens = shape.tokens,
                                         .kv_shape = kv,
                                         .n_heads = shape.n_heads,
                                         .angles = angles,
                                         .norms = {},
                                         .rotary_dim = kv.head_dim};
  std::vector<double> expected_kv(kv.size_bytes() / KvElementBytes(kv.type));
  RopeAndStoreReference(reference, expected, expected_kv);
  const double tolerance = 2 * LargestMagnitude(expected) * (kv.head_dim + 24) * kRoundoff;
  EXPECT_TRUE(IsClose(run, args.qkv, expected, tolerance)) << "rotated once: " << Describe(shape);
  const std::vector<std::byte> stored = run.Bytes(args.kv, kv.size_bytes());
  ASSERT_TRUE(run.status().ok()) << run.status().message();
  std::vector<float> entries(expected_kv.size());
  for (size_t i = 0; i < entries.size(); ++i) {
    uint16_t half = 0;
    if (kv.type == KvType::kF32) {
      std::memcpy(&entries[i], &stored[i * sizeof(float)], sizeof(float));
    } else {
      std::memcpy(&half, &stored[i * sizeof(half)], sizeof(half));
      entries[i] = HalfToFloat(half);
    }
    // Vulkan may round to either neighbour.
    const double rounding =
        kv.type == KvType::kF16 ? std::max(std::abs(expected_kv[i]) * 0x1p-10, 0x1p-14) : 0.0;
    ASSERT_NEAR(entries[i], expected_kv[i], rounding + tolerance) << i << " of KV: " << Describe(shape);
  }
  const std::vector<double> attended =
      AttendReference(reference, std::vector<float>(expected.begin(), expected.end()), entries);
  EXPECT_TRUE(IsClose(run, args.output, attended, AttendTolerance(shape) + tolerance)) << Describe(shape);
}

TEST_P(KvWindowTest, SomeStreamsAtATime) {
  for (Device* device : devices_) {
    for (const KvType type : kKvTypes) {
      for (const uint32_t head_dim : {64U, 80U, 128U}) {
        AttendShape shape;
        shape.n_heads = 6;
        // One stream at a time of f32; two or more of f16, which end within a sequence.
        const uint32_t n_ctx = static_cast<uint32_t>(kSmallBufferBytes / (2 * head_dim * sizeof(float))) - 8;
        shape.kv = {type, 2, 3, head_dim, n_ctx};
        shape.tokens = {TokenAt(0, 1), TokenAt(0, 0), TokenAt(n_ctx - 1, 1), TokenAt(1, 0)};
        CheckWindows(*device, shape);
        shape.of_prompt = true;
        shape.tokens = {TokenAt(0, 1), TokenAt(1, 1), TokenAt(2, 1), TokenAt(3, 1), TokenAt(4, 1)};
        CheckWindows(*device, shape);
      }
    }
  }
}

TEST_P(KvWindowTest, AStreamThatIsLargerDoesNotFit) {
  for (Device* device : devices_) {
    const KvShape shape{KvType::kF32, 1, 2, 64,
                        static_cast<uint32_t>(kSmallBufferBytes / (2 * 64 * sizeof(float))) + 1};
    EXPECT_FALSE(device->FitsKv(shape));
  }
}

}  // namespace
}  // namespace kvrun::testing
