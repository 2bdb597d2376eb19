#include "runtime/engine/measure/work_kinds.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace kvrun {
namespace {

class CountedMatrix : public Matrix {
 public:
  explicit CountedMatrix(uint64_t bytes) : Matrix(TensorType::kQ4_0, 1, 32), bytes_(bytes) {}
  uint64_t size_bytes() const override { return bytes_; }

 private:
  uint64_t bytes_;
};

void Stack(MatrixStack* stack, uint64_t bytes) {
  stack->push_back({std::make_unique<CountedMatrix>(bytes), 0});
}

// A layer of each kind, the first with experts: half of 4 are used.
ModelConfig OneOfEach() {
  ModelConfig config;
  config.layers = {{LayerKind::kAttention, LayerRope::kMain},
                   {LayerKind::kWindowedAttention, LayerRope::kMain},
                   {LayerKind::kDeltaNet, LayerRope::kNone},
                   {LayerKind::kShortConvolution, LayerRope::kNone}};
  config.kv_layers = {0};
  config.n_layers = 4;
  config.n_embd = 64;
  config.n_heads = config.n_kv_heads = 2;
  config.head_dim = 16;
  config.sliding_window = 100;
  config.delta_net = {.n_key_heads = 2, .n_value_heads = 4, .head_dim = 8, .n_taps = 4};
  config.n_convolution_taps = 3;
  config.experts = {.n_experts = 4, .n_used = 2, .n_ff = 32};
  return config;
}

DeviceWeights Weights() {
  DeviceWeights weights;
  weights.token_embedding = std::make_unique<CountedMatrix>(5000);
  weights.layers.resize(4);
  for (DeviceLayer& layer : weights.layers) Stack(&layer.block_output, 300);
  weights.layers[0].experts_gate_up = std::make_unique<CountedMatrix>(4000);
  weights.layers[0].experts_down = std::make_unique<CountedMatrix>(2000);
  return weights;
}

uint64_t Of(const std::vector<uint64_t>& bytes, WorkKind kind) { return bytes[static_cast<size_t>(kind)]; }

TEST(WorkKinds, AreToldFromOperationsAndVariants) {
  const std::pair<const char*, WorkKind> names[] = {
      {"matvec", WorkKind::kProducts},
      {"matmul4_q4_0_subgroup", WorkKind::kProducts},
      {"expert_matmul_q8_0_floor", WorkKind::kExpertProducts},
      {"choose_experts", WorkKind::kExpertProducts},
      {"delta_rule", WorkKind::kDeltaRule},
      {"short_convolution_f32_floor", WorkKind::kConvolution},
      {"attend", WorkKind::kAttention},
      {"attend_window", WorkKind::kWindowedAttention},
      {"attend1_f16_floor_window", WorkKind::kWindowedAttention},
      {"attend_slots", WorkKind::kAttention},
      {"score_and_select", WorkKind::kSelection},
      {"rms_norm", WorkKind::kOther},
  };
  for (const auto& [name, kind] : names) EXPECT_EQ(WorkKindOf(name), kind) << name;
}

TEST(WorkKinds, TimesAreSumsOfOneStepTheLongestFirst) {
  std::vector<uint64_t> bytes(kWorkKinds, 0);
  bytes[static_cast<size_t>(WorkKind::kProducts)] = 77;
  const OperationTime operations[] = {{"rms_norm", 4, 2.0},
                                      {"matvec_q4_0_floor", 8, 10.0},
                                      {"swiglu", 4, 1.0},
                                      {"matvec_q8_0_floor", 2, 6.0}};
  const std::vector<WorkTime> times = TimesByKind(operations, 2, bytes);
  ASSERT_EQ(times.size(), 2U);
  EXPECT_EQ(times[0].kind, WorkKind::kProducts);
  EXPECT_DOUBLE_EQ(times[0].milliseconds, 8.0);
  EXPECT_EQ(times[0].bytes, 77U);
  EXPECT_EQ(times[1].kind, WorkKind::kOther);
  EXPECT_DOUBLE_EQ(times[1].milliseconds, 1.5);
}

TEST(WorkKinds, AStepMovesWeightsStatesAndKv) {
  const ModelConfig config = OneOfEach();
  const DeviceWeights weights = Weights();
  for (const uint32_t n : {1U, 3U}) {
    const std::vector<uint64_t> bytes =
        BytesOfStep(config, weights, {.n_sequences = n, .depth = 1000, .kv_element_bytes = 2});
    EXPECT_EQ(Of(bytes, WorkKind::kProducts), 5000U + 4 * 300);
    EXPECT_EQ(Of(bytes, WorkKind::kExpertProducts), 6000U / 2);
    EXPECT_EQ(Of(bytes, WorkKind::kDeltaRule), n * 2 * 4 * 8 * 8 * 4);            // read and written
    EXPECT_EQ(Of(bytes, WorkKind::kConvolution), n * 2 * 4 * (3 * 64 + 2 * 64));  // 64 channels
    EXPECT_EQ(Of(bytes, WorkKind::kWindowedAttention), n * 100 * 2 * 32 * 2);     // K and V of 32
    EXPECT_EQ(Of(bytes, WorkKind::kAttention), n * 1000 * 2 * 32 * 2);
    EXPECT_EQ(Of(bytes, WorkKind::kOther), 0U);
  }
  const std::vector<uint64_t> few =
      BytesOfStep(config, weights, {.n_sequences = 1, .depth = 30, .kv_element_bytes = 4});
  EXPECT_EQ(Of(few, WorkKind::kWindowedAttention), 30U * 2 * 32 * 4);
}

TEST(WorkKinds, EachChunkOfAPromptMovesThem) {
  const std::vector<uint64_t> bytes = BytesOfPrompt(OneOfEach(), Weights(), 300, 256, 2);
  EXPECT_EQ(Of(bytes, WorkKind::kProducts), 5000U + 2 * 4 * 300);
  EXPECT_EQ(Of(bytes, WorkKind::kExpertProducts), 2U * 6000);  // rows choose different ones
  EXPECT_EQ(Of(bytes, WorkKind::kDeltaRule), 2U * 2 * 4 * 8 * 8 * 4);
  EXPECT_EQ(Of(bytes, WorkKind::kAttention), (256U + 300) * 2 * 32 * 2);
  EXPECT_EQ(Of(bytes, WorkKind::kWindowedAttention), (256U + 100 + 44) * 2 * 32 * 2);
}

}  // namespace
}  // namespace kvrun
