#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "runtime/model/model_config.h"
#include "tests/support/gguf_builder.h"

namespace kvrun {
namespace {

using testing::GgufBuilder;
using testing::TinyModel;

Result<RopeConfig> Read(const GgufBuilder& builder) {
  const auto bytes = builder.Build();
  const auto file = GgufFile::Parse(bytes, "model.gguf");
  if (!file.ok()) return file.status();
  const auto config = ReadModelConfig(**file);
  if (!config.ok()) return config.status();
  return config->rope;
}

RopeConfig ReadOrDie(const GgufBuilder& builder) {
  auto rope = Read(builder);
  EXPECT_TRUE(rope.ok()) << rope.status().message();
  return rope.ok() ? *rope : RopeConfig();
}

void ExpectRefused(const GgufBuilder& builder, StatusCode code, std::string_view part) {
  const Status status = Read(builder).status();
  EXPECT_EQ(status.code(), code) << status.message();
  EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
}

constexpr const char* kType = "llama.rope.scaling.type";
constexpr const char* kFactor = "llama.rope.scaling.factor";

TEST(RopeConfig, LinearByTypeByFactorAloneOrByTheOldKey) {
  for (const GgufBuilder& builder :
       {TinyModel().Set(kType, "linear").Set(kFactor, 4.0F), TinyModel().Set(kFactor, 4.0F),
        TinyModel().Set("llama.rope.scale_linear", 4.0F)}) {
    const RopeConfig rope = ReadOrDie(builder);
    EXPECT_EQ(rope.scaling, RopeScaling::kLinear);
    EXPECT_EQ(rope.factor, 4.0F);
  }
  EXPECT_EQ(ReadOrDie(TinyModel().Set(kType, "none").Set(kFactor, 4.0F)).scaling, RopeScaling::kNone);
  EXPECT_EQ(ReadOrDie(TinyModel().Set(kFactor, 0.0F)).factor, 1.0F);
  EXPECT_EQ(ReadOrDie(TinyModel().Set(kFactor, 1.0F)).scaling, RopeScaling::kNone);
}

TEST(RopeConfig, Yarn) {
  GgufBuilder builder = TinyModel().Set(kType, "yarn").Set(kFactor, 8.0F);
  RopeConfig rope = ReadOrDie(builder);
  EXPECT_EQ(rope.scaling, RopeScaling::kYarn);
  EXPECT_EQ(rope.original_context, 128U);  // n_ctx_train
  EXPECT_EQ(rope.yarn_beta_fast, 32.0F);
  EXPECT_EQ(rope.yarn_beta_slow, 1.0F);
  EXPECT_EQ(rope.yarn_attention_factor, 1.0F);
  builder.Set("llama.rope.scaling.original_context_length", 64).Set("llama.rope.scaling.attn_factor", 0.5F);
  builder.Set("llama.rope.scaling.yarn_beta_fast", 16.0F).Set("llama.rope.scaling.yarn_beta_slow", 2.0F);
  rope = ReadOrDie(builder);
  EXPECT_EQ(rope.original_context, 64U);
  EXPECT_EQ(rope.yarn_beta_fast, 16.0F);
  EXPECT_EQ(rope.yarn_beta_slow, 2.0F);
  EXPECT_EQ(rope.yarn_attention_factor, 0.5F);
}

TEST(RopeConfig, WrongScalingIsRefused) {
  ExpectRefused(TinyModel().Set(kType, "longrope"), StatusCode::kUnsupported, "\"longrope\"");
  for (const float factor : {-1.0F, 1e9F, 1e-9F}) {
    ExpectRefused(TinyModel().Set(kFactor, factor), StatusCode::kCorrupt, kFactor);
  }
  const auto yarn = [] { return TinyModel().Set(kType, "yarn").Set(kFactor, 2.0F); };
  ExpectRefused(yarn().Set("llama.rope.scaling.original_context_length", 0), StatusCode::kCorrupt, "is 0");
  ExpectRefused(yarn().Set("llama.rope.scaling.yarn_beta_fast", 0.0F), StatusCode::kCorrupt,
                "yarn_beta_fast");
  ExpectRefused(yarn().Set("llama.rope.scaling.yarn_beta_slow", -1.0F), StatusCode::kCorrupt,
                "yarn_beta_slow");
  ExpectRefused(yarn().Set("llama.rope.scaling.attn_factor", 0.0F), StatusCode::kCorrupt, "attn_factor");
  ExpectRefused(yarn().Set("llama.rope.scaling.yarn_log_multiplier", 0.1F), StatusCode::kUnsupported,
                "yarn_log_multiplier");
  ExpectRefused(yarn().Set("llama.rope.scaling.yarn_ext_factor", 0.5F), StatusCode::kUnsupported,
                "yarn_ext_factor");
}

TEST(RopeConfig, DivisorsOfTheFile) {
  const auto with = [](const std::vector<float>& divisors) {
    return TinyModel().AddTensor("rope_freqs.weight", {divisors.size()}, divisors);
  };
  const RopeConfig rope = ReadOrDie(with({1.0F, 1.5F, 4.0F, 8.0F}));
  EXPECT_EQ(rope.scaling, RopeScaling::kLlama3);
  EXPECT_EQ(rope.frequency_divisors, (std::vector<float>{1.0F, 1.5F, 4.0F, 8.0F}));
  ExpectRefused(with({1.0F, 1.0F}), StatusCode::kCorrupt, "has 2 elements of F32, expected 4");
  for (const float wrong : {0.0F, -1.0F, std::nanf(""), std::numeric_limits<float>::infinity()}) {
    ExpectRefused(with({1.0F, 1.0F, 1.0F, wrong}), StatusCode::kCorrupt,
                  "a divisor must be positive and finite");
  }
  ExpectRefused(TinyModel().AddTensor("rope_freqs.weight", TensorType::kF16, {4}, testing::Bytes(8)),
                StatusCode::kCorrupt, "of F16");
}

RopeConfig Base(uint32_t rotary_dim, float base) {
  RopeConfig rope;
  rope.rotary_dim = rotary_dim;
  rope.frequency_base = base;
  return rope;
}

void ExpectFrequencies(const RopeTable& table, const std::vector<double>& expected) {
  ASSERT_EQ(table.frequencies.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(table.frequencies[i], expected[i], expected[i] * 1e-6) << i;
  }
}

TEST(RopeTable, PlainAndLinear) {
  RopeConfig rope = Base(8, 10000.0F);
  ExpectFrequencies(MakeRopeTable(rope, 4096), {1.0, 0.1, 0.01, 0.001});
  EXPECT_EQ(MakeRopeTable(rope, 4096).magnitude, 1.0F);
  rope.scaling = RopeScaling::kLinear;
  rope.factor = 4.0F;
  ExpectFrequencies(MakeRopeTable(rope, 4096), {0.25, 0.025, 0.0025, 0.00025});
  EXPECT_EQ(MakeRopeTable(rope, 4096).magnitude, 1.0F);
}

TEST(RopeTable, Llama3Divides) {
  RopeConfig rope = Base(8, 10000.0F);
  rope.scaling = RopeScaling::kLlama3;
  rope.frequency_divisors = {1.0F, 1.0F, 2.0F, 8.0F};
  ExpectFrequencies(MakeRopeTable(rope, 4096), {1.0, 0.1, 0.005, 0.000125});
}

// Worked out by hand for rotary_dim 16, base 10000, original context 512, factor 4: pair i turns
// 512 * 10000^(-i/8) / (2 pi) times; 32 turns at pair 0.8104 and 1 turn at pair 3.8205, so that the ramp goes
// from floor = 0 to ceil = 4.
TEST(RopeTable, YarnRampsBetweenTheCorrectionPairs) {
  RopeConfig rope = Base(16, 10000.0F);
  rope.scaling = RopeScaling::kYarn;
  rope.factor = 4.0F;
  rope.original_context = 512;
  const RopeTable table = MakeRopeTable(rope, 4096);
  const std::vector<double> kept = {1.0, 0.75, 0.5, 0.25, 0.0, 0.0, 0.0, 0.0};
  std::vector<double> expected;
  double plain = 1.0;
  for (const double part : kept) {
    expected.push_back(plain * part + plain / 4 * (1 - part));
    plain *= 0.31622776601683794;  // 10000^(-1/8)
  }
  ExpectFrequencies(table, expected);
  EXPECT_NEAR(table.magnitude, 1.1386294361, 1e-6);  // 1 + 0.1 ln 4
  rope.yarn_attention_factor = 0.5F;
  EXPECT_NEAR(MakeRopeTable(rope, 4096).magnitude, 0.56931471805, 1e-6);
}

// At both ends: every pair turns often enough to be kept, or none does.
TEST(RopeTable, YarnRampIsClampedToTheRotatedDimensions) {
  RopeConfig rope = Base(8, 10000.0F);
  rope.scaling = RopeScaling::kYarn;
  rope.factor = 2.0F;
  rope.original_context = 1U << 30;  // every pair turns more than 32 times: nothing is interpolated
  ExpectFrequencies(MakeRopeTable(rope, 4096), {1.0, 0.1, 0.01, 0.001});
  rope.original_context = 1;  // no pair turns even once: all but the first is interpolated
  ExpectFrequencies(MakeRopeTable(rope, 4096), {1.0, 0.05, 0.005, 0.0005});
}

}  // namespace
}  // namespace kvrun
