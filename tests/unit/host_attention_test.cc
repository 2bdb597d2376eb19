// RoPE, KV stores and attention on the CPU as a device, against the scalar references.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "runtime/device/host/operations.h"
#include "runtime/device/self_test_data.h"
#include "tests/support/host_run.h"
#include "tests/support/scalar_reference.h"

namespace kvrun::testing {
namespace {

constexpr double kRoundoff = 0x1p-24;
constexpr double kNothing = std::numeric_limits<double>::quiet_NaN();
constexpr uint32_t kHeadDims[] = {2, 8, 10, 16, 48, 64, 66, 80, 96, 128, 256};
constexpr KvType kKvTypes[] = {KvType::kF16, KvType::kF32};
constexpr float kQueryScale = 3.0F;  // so that weights differ

struct AttendShape {
  KvShape kv;
  uint32_t n_heads = 0;
  bool one_sequence = false;
  std::vector<StepToken> tokens;

  size_t qkv_count() const { return tokens.size() * (n_heads + 2 * kv.n_kv_heads) * kv.head_dim; }
  AttentionReferenceArgs reference() const {
    return {.tokens = tokens, .kv_shape = kv, .n_heads = n_heads, .angles = {}, .norms = {}};
  }
};

std::string Describe(const AttendShape& shape) {
  return ::testing::PrintToString(shape.kv.head_dim) + " dimensions, " +
         ::testing::PrintToString(shape.n_heads) + "/" + ::testing::PrintToString(shape.kv.n_kv_heads) +
         " heads, " + ::testing::PrintToString(shape.tokens.size()) + " tokens from " +
         ::testing::PrintToString(shape.tokens[0].position) +
         (shape.kv.type == KvType::kF16 ? ", f16" : ", f32") + (shape.one_sequence ? ", one sequence" : "");
}

StepToken TokenAt(uint32_t position, uint32_t sequence) {
  return {.id = 0, .position = position, .sequence = sequence, .output_row = 0};
}

std::vector<float> Queries(const AttendShape& shape) {
  std::vector<float> qkv = RandomFloats(shape.qkv_count(), 12);
  for (float& value : qkv) value *= kQueryScale;
  return qkv;
}

// As stored; `values` become what that stands for.
std::vector<std::byte> Stored(KvType type, std::span<float> values) {
  std::vector<std::byte> stored(values.size() * KvElementBytes(type));
  if (type == KvType::kF32) {
    std::memcpy(stored.data(), values.data(), stored.size());
    return stored;
  }
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t half = FloatToHalf(values[i]);
    std::memcpy(&stored[i * 2], &half, sizeof(half));
    values[i] = HalfToFloat(half);
  }
  return stored;
}

// Positions that no token may see hold numbers as well, so that a mask that lets them through shows.
std::vector<float> RandomKv(const KvShape& kv) {
  return RandomFloats(kv.size_bytes() / KvElementBytes(kv.type), 11);
}

// See tests/kernels/attention_test.cc: roundings of scores, of exp and of sums, all relative to the largest
// value.
double AttendTolerance(const AttendShape& shape) {
  const double n = shape.tokens.back().position + 1.0;
  const double dims = shape.kv.head_dim;
  const double largest_score = 0.5 * kQueryScale * std::sqrt(dims);
  const double score = 8 * std::sqrt(dims) * kRoundoff * largest_score;
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

void CheckAttendOf(const AttendShape& shape, bool exact, const std::vector<float>& qkv,
                   std::vector<float> kv) {
  const std::vector<std::byte> stored = Stored(shape.kv.type, kv);
  const std::vector<double> expected = AttendReference(shape.reference(), qkv, kv);
  ForEachHostPool([&](host::ThreadPool& pool) {
    HostRun run;
    AttentionArgs args{.qkv = run.Values(qkv),
                       .step = run.Step(shape.tokens),
                       .kv = run.Values(stored),
                       .kv_shape = shape.kv,
                       .n_heads = shape.n_heads,
                       .n_tokens = static_cast<uint32_t>(shape.tokens.size()),
                       .output = run.Poisoned(expected.size()),
                       .one_sequence = shape.one_sequence};
    args.scratch = run.Poisoned(host::AttendScratchBytes(args) / sizeof(float));
    host::Attend(pool, args, exact);
    EXPECT_TRUE(AreClose(run.Read<float>(args.output), expected,
                         exact ? AttendTolerance(shape) : RoundedTolerance(shape)))
        << Describe(shape) << (exact ? "" : ", rounded");
  });
}

void CheckAttend(const AttendShape& shape, bool exact = true) {
  CheckAttendOf(shape, exact, Queries(shape), RandomKv(shape.kv));
}

TEST(HostAttention, DecodingABatch) {
  AttendShape shape;
  for (const uint32_t position : {0U, 1U, 7U, 31U, 32U, 63U, 64U, 65U, 127U, 128U, 256U, 299U})
    shape.tokens.push_back(TokenAt(position, static_cast<uint32_t>(shape.tokens.size() % 4)));
  constexpr uint32_t kGroups[] = {1, 2, 3, 4, 7, 8, 9, 16};
  uint32_t turn = 0;
  for (const KvType type : kKvTypes) {
    for (const uint32_t head_dim : kHeadDims) {
      // Two of the groups for each head; all of them for the heads that matter most.
      for (const uint32_t group : kGroups) {
        if (head_dim != 64 && head_dim != 80 && turn++ % 4 != 0) continue;
        shape.kv = {type, 4, 2, head_dim, 300};
        shape.n_heads = 2 * group;
        CheckAttend(shape);
      }
      ++turn;
    }
  }
}

TEST(HostAttention, PrefillInChunks) {
  for (const KvType type : kKvTypes) {
    uint32_t turn = 0;
    for (const uint32_t head_dim : kHeadDims) {
      for (const auto& [position, n_tokens] : {std::pair{0U, 17U}, {30U, 5U}, {120U, 50U}, {250U, 1U}}) {
        constexpr uint32_t kGroups[] = {1, 3, 2, 7, 4, 8};
        AttendShape shape{.kv = {type, 2, 3, head_dim, 300},
                          .n_heads = 3 * kGroups[turn++ % 6],
                          .one_sequence = true,
                          .tokens = {}};
        for (uint32_t t = 0; t < n_tokens; ++t) shape.tokens.push_back(TokenAt(position + t, 1));
        CheckAttend(shape);
        CheckAttend(shape, false);
      }
    }
  }
}

// Rounded sums are the largest that there can be: queries and keys point the same way, all weights are equal.
TEST(HostAttention, RoundedSumsDoNotOverflow) {
  for (const float value : {1.0F, -1.0F}) {
    for (const uint32_t head_dim : {2U, 64U, 256U}) {
      AttendShape shape{
          .kv = {KvType::kF16, 1, 1, head_dim, 300}, .n_heads = 4, .one_sequence = true, .tokens = {}};
      for (uint32_t t = 0; t < 40; ++t) shape.tokens.push_back(TokenAt(200 + t, 0));
      CheckAttendOf(shape, false, std::vector<float>(shape.qkv_count(), kQueryScale),
                    std::vector<float>(shape.kv.size_bytes() / 2, value));
    }
  }
}

// What was never written attracts nothing, and keys of zeros are not divided by their length.
TEST(HostAttention, RoundedZeros) {
  AttendShape shape{.kv = {KvType::kF16, 1, 1, 64, 300}, .n_heads = 4, .one_sequence = true, .tokens = {}};
  for (uint32_t t = 0; t < 40; ++t) shape.tokens.push_back(TokenAt(100 + t, 0));
  CheckAttendOf(shape, false, Queries(shape), std::vector<float>(shape.kv.size_bytes() / 2, 0.0F));
  CheckAttendOf(shape, false, std::vector<float>(shape.qkv_count(), 0.0F), RandomKv(shape.kv));
}

// Whether any of each row's head's results is no number: [n_tokens, n_heads].
std::vector<bool> HeadsWithNaN(const AttendShape& shape, bool exact, const std::vector<float>& qkv,
                               std::vector<float> kv) {
  const std::vector<std::byte> stored = Stored(shape.kv.type, kv);
  std::vector<bool> heads(shape.tokens.size() * shape.n_heads);
  ForEachHostPool([&](host::ThreadPool& pool) {
    HostRun run;
    AttentionArgs args{.qkv = run.Values(qkv),
                       .step = run.Step(shape.tokens),
                       .kv = run.Values(stored),
                       .kv_shape = shape.kv,
                       .n_heads = shape.n_heads,
                       .n_tokens = static_cast<uint32_t>(shape.tokens.size()),
                       .output = run.Values(std::vector<float>(heads.size() * shape.kv.head_dim)),
                       .one_sequence = shape.one_sequence};
    args.scratch = run.Poisoned(host::AttendScratchBytes(args) / sizeof(float));
    host::Attend(pool, args, exact);
    const std::vector<float> output = run.Read<float>(args.output);
    for (size_t i = 0; i < output.size(); ++i) {
      if (std::isnan(output[i])) heads[i / shape.kv.head_dim] = true;
    }
  });
  return heads;
}

// A damaged model must not go unnoticed: what is no number makes results that are none.
TEST(HostAttention, NaNsAreNotLost) {
  const auto odd_nan = std::bit_cast<float>(0x7fcab123U);
  for (const uint32_t n_tokens : {1U, 3U, 40U}) {
    for (const KvType type : kKvTypes) {
      for (const bool exact : {true, false}) {
        AttendShape shape{.kv = {type, 1, 1, 64, 300}, .n_heads = 3, .one_sequence = true, .tokens = {}};
        for (uint32_t t = 0; t < n_tokens; ++t) shape.tokens.push_back(TokenAt(100 + t, 0));
        const std::string name = Describe(shape) + (exact ? "" : ", rounded");
        const std::vector<float> qkv = Queries(shape);
        const std::vector<float> kv = RandomKv(shape.kv);
        const auto undamaged = HeadsWithNaN(shape, exact, qkv, kv);
        EXPECT_EQ(std::count(undamaged.begin(), undamaged.end(), true), 0) << name;
        std::vector<float> damaged = qkv;
        damaged[5] = odd_nan;  // the first row's first head
        const std::vector<bool> of_query = HeadsWithNaN(shape, exact, damaged, kv);
        EXPECT_TRUE(of_query[0]) << name;
        EXPECT_EQ(std::count(of_query.begin(), of_query.end(), true), 1) << name;
        for (const size_t element : {size_t{3 * 64 + 5}, size_t{(300 + 3) * 64 + 5}}) {
          damaged = kv;
          damaged[element] = odd_nan;  // of K, of V
          const std::vector<bool> heads = HeadsWithNaN(shape, exact, qkv, damaged);
          EXPECT_EQ(std::count(heads.begin(), heads.end(), false), 0) << name << ", element " << element;
        }
      }
    }
  }
}

// More query heads of one KV head than rows of a tile.
TEST(HostAttention, ManyHeadsOfOne) {
  const AttendShape shape{
      .kv = {KvType::kF16, 1, 1, 16, 80}, .n_heads = 200, .one_sequence = false, .tokens = {TokenAt(79, 0)}};
  CheckAttend(shape);
}

// One row of a long context: positions are divided among workers.
TEST(HostAttention, Splits) {
  for (const KvType type : kKvTypes) {
    for (const uint32_t head_dim : {64U, 80U}) {
      for (const uint32_t position : {0U, 31U, 32U, 64U, 500U, 2099U}) {
        CheckAttend({.kv = {type, 1, 1, head_dim, 2100},
                     .n_heads = 1,
                     .one_sequence = false,
                     .tokens = {TokenAt(position, 0)}});
      }
    }
  }
}

// One tile of the entries, as KV of its own.
std::vector<float> TileOf(const AttendShape& shape, std::span<const float> kv, uint32_t tile,
                          uint32_t tile_tokens) {
  std::vector<float> values;
  for (size_t plane = 0; plane < shape.kv.n_kv_heads * 2; ++plane) {
    const auto begin = kv.begin() + static_cast<ptrdiff_t>((plane * shape.kv.n_ctx + tile * tile_tokens) *
                                                           shape.kv.head_dim);
    values.insert(values.end(), begin, begin + static_cast<ptrdiff_t>(tile_tokens * shape.kv.head_dim));
  }
  return values;
}

// A prompt's chunk over a KV that is there in tiles, one after the other.
void CheckTiles(const AttendShape& shape, uint32_t tile_tokens) {
  const std::vector<float> qkv = Queries(shape);
  std::vector<float> kv = RandomKv(shape.kv);
  Stored(shape.kv.type, kv);
  const std::vector<double> expected = AttendReference(shape.reference(), qkv, kv);
  ForEachHostPool([&](host::ThreadPool& pool) {
    HostRun run;
    AttentionArgs args{.qkv = run.Values(qkv),
                       .kv_shape = shape.kv,
                       .n_heads = shape.n_heads,
                       .n_tokens = static_cast<uint32_t>(shape.tokens.size()),
                       .output = run.Poisoned(expected.size()),
                       .one_sequence = true};
    args.kv_shape.n_ctx = tile_tokens;
    for (uint32_t tile = 0; tile < shape.kv.n_ctx / tile_tokens; ++tile) {
      std::vector<StepToken> tokens = shape.tokens;
      for (StepToken& token : tokens)
        token.position = std::min(token.position - tile * tile_tokens, tile_tokens - 1);
      std::vector<float> values = TileOf(shape, kv, tile, tile_tokens);
      args.step = run.Step(tokens);
      args.kv = run.Values(Stored(shape.kv.type, values));
      args.parts_before = args.parts_after;
      args.parts_after = run.Poisoned(args.parts_bytes() / sizeof(float));
      args.scratch = run.Poisoned(host::AttendScratchBytes(args) / sizeof(float));
      host::Attend(pool, args, true);
    }
    for (const float value : run.Read<float>(args.output)) ASSERT_TRUE(std::isnan(value));
    host::FinishAttention(pool, args);
    EXPECT_TRUE(AreClose(run.Read<float>(args.output), expected, AttendTolerance(shape))) << Describe(shape);
  });
}

TEST(HostAttention, PrefillOverTiles) {
  for (const KvType type : kKvTypes) {
    for (const uint32_t head_dim : {64U, 80U}) {
      for (const auto& [position, n_tokens] : {std::pair{200U, 50U}, {287U, 1U}, {200U, 2U}}) {
        AttendShape shape{
            .kv = {type, 1, 3, head_dim, 288}, .n_heads = 9, .one_sequence = true, .tokens = {}};
        for (uint32_t t = 0; t < n_tokens; ++t) shape.tokens.push_back(TokenAt(position + t, 0));
        CheckTiles(shape, 96);
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

// K and V as stored: poisoned where nothing was written, else the half nearest to a number within the
// tolerance.
void ExpectKv(HostRun& run, const AttentionArgs& args, std::span<const double> expected, double tolerance) {
  if (args.kv_shape.type == KvType::kF32) {
    EXPECT_TRUE(AreClose(run.Read<float>(args.kv), expected, tolerance)) << "KV";
    return;
  }
  const std::vector<uint16_t> halves = run.Read<uint16_t>(args.kv);
  ASSERT_EQ(halves.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    const double found = HalfToFloat(halves[i]);
    if (std::isnan(expected[i])) {
      ASSERT_TRUE(std::isnan(found)) << "entry " << i << " was overwritten";
    } else {
      ASSERT_NEAR(found, expected[i], std::max(std::abs(expected[i]) * 0x1p-11, 0x1p-25) + tolerance) << i;
    }
  }
}

void CheckRope(const RopeCase& c) {
  const KvShape& kv = c.shape.kv;
  const std::vector<float> qkv = RandomFloats(c.shape.qkv_count(), 13);
  const std::vector<float> angles = RandomFloats(c.shape.tokens.size() * c.rotary_dim, 14);
  const std::vector<float> norms = RandomFloats(size_t{2} * kv.head_dim, 15);
  std::vector<double> expected(qkv.begin(), qkv.end());
  std::vector<double> expected_kv(kv.size_bytes() / KvElementBytes(kv.type), kNothing);
  AttentionReferenceArgs reference = c.shape.reference();
  reference.angles = angles;
  if (c.norms) reference.norms = norms;
  reference.norm_epsilon = 1e-5F;
  reference.rotary_dim = c.rotary_dim;
  reference.rope_halves = c.halves;
  RopeAndStoreReference(reference, expected, expected_kv);
  double largest = 0.0;
  for (const double value : expected) largest = std::max(largest, std::abs(value));
  // The norm's sum of head_dim squares, root, quotient and products; then two products and a sum.
  const double tolerance = 2 * largest * (kv.head_dim + 24) * kRoundoff;
  ForEachHostPool([&](host::ThreadPool& pool) {
    HostRun run;
    const AttentionArgs args{.qkv = run.Values(qkv),
                             .step = run.Step(c.shape.tokens),
                             .kv = run.Values(std::vector<uint32_t>(kv.size_bytes() / 4, 0xffffffffU)),
                             .kv_shape = kv,
                             .n_heads = c.shape.n_heads,
                             .n_tokens = static_cast<uint32_t>(c.shape.tokens.size()),
                             .angles = run.Values(angles),
                             .norms = c.norms ? run.Values(norms) : nullptr,
                             .norm_epsilon = 1e-5F,
                             .rotary_dim = c.rotary_dim,
                             .rope_halves = c.halves};
    host::RopeAndStore(pool, args);
    EXPECT_TRUE(AreClose(run.Read<float>(args.qkv), expected, tolerance)) << Describe(c.shape);
    ExpectKv(run, args, expected_kv, tolerance);
  });
}

TEST(HostAttention, RopeAndStore) {
  RopeCase c;
  c.shape.tokens = {TokenAt(0, 2), TokenAt(19, 0), TokenAt(7, 1), TokenAt(8, 1)};
  for (const KvType type : kKvTypes) {
    for (const uint32_t head_dim : kHeadDims) {
      c.shape.kv = {type, 3, 2, head_dim, 20};
      c.shape.n_heads = 6;
      for (uint32_t variation = 0; variation < 8; ++variation) {
        c.halves = (variation & 1) != 0;
        c.norms = (variation & 2) != 0;
        c.rotary_dim = (variation & 4) != 0 ? head_dim : head_dim / 4 * 2;
        CheckRope(c);
      }
    }
  }
}

}  // namespace
}  // namespace kvrun::testing
