// Activations, scales, copies, gated norms and short convolutions against the scalar reference.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/support/layer_reference.h"
#include "tests/support/operations_fixture.h"
#include "tests/support/score_cases.h"

namespace kvrun::testing {
namespace {

class LayersTest : public OperationsTest {};
class HostLayersTest : public OperationsTest {};

INSTANTIATE_TEST_SUITE_P(Modes, LayersTest,
                         ::testing::ValuesIn(ModesOf(Operations::kLayers,
                                                     {DeviceMode::kPlanned, DeviceMode::kFloor,
                                                      DeviceMode::kGpu, DeviceMode::kGpuFloor})),
                         ModeName);
INSTANTIATE_TEST_SUITE_P(Modes, HostLayersTest, ::testing::ValuesIn(HostModes()), ModeName);

// The last is long enough, in all rows, for several threads of the CPU.
constexpr uint32_t kColumnCounts[] = {1, 5, 32, 33, 66, 100, 576, 9000};

// exp(x) is good to 3 + 2|x| units in the last place (Vulkan), a quotient to 2.5; |x| is at most `largest`.
double SigmoidRoundings(double largest) { return 2 * (3 + 2 * largest + 8); }

std::vector<double> RelativeTolerance(std::span<const double> expected, double roundings) {
  std::vector<double> tolerance;
  for (const double value : expected) tolerance.push_back(std::abs(value) * roundings * kRoundoff);
  return tolerance;
}

TEST_P(LayersTest, EmbedWithAScale) {
  for (Device* device : devices_) {
    for (const TensorType type : {TensorType::kF16, TensorType::kQ8_0, TensorType::kQ6_K}) {
      constexpr uint32_t kRows = 40;
      constexpr uint32_t kCols = 512;
      constexpr float kScale = 33.941125F;  // sqrt(1152)
      SelfTestRun run(*device);
      const std::vector<std::byte> data = RandomTensor(type, size_t{kRows} * kCols, 3);
      const MatrixSource source{.data = data, .n_rows = kRows};
      const ReferenceMatrix reference(type, kCols, {&source, 1});
      std::vector<StepToken> tokens;
      for (const uint32_t id : {0U, 39U, 17U, 17U, 5U}) tokens.push_back({id, 0, 0, 0});
      const Matrix* table = run.Weights(type, kRows, kCols, data);
      const EmbedArgs args{table, run.Step(tokens), 5, PoisonedBuffer(run, Untouched(size_t{5} * kCols)),
                           kScale};
      run.Run([&](CommandList& list) { return list.Embed(args); });
      const std::vector<double> expected = EmbedReference(reference, tokens, kScale);
      // Decoding a weight takes at most four roundings of up to four times the largest, in both.
      EXPECT_TRUE(IsClose(run, args.out, expected, 40 * kRoundoff * LargestMagnitude(expected)))
          << TensorTypeName(type);
    }
  }
}

TEST_P(LayersTest, RmsNormThatAdds) {
  constexpr uint32_t kRows = 5;
  for (Device* device : devices_) {
    for (const uint32_t n_cols : kColumnCounts) {
      SelfTestRun run(*device);
      const std::vector<float> x = RandomFloats(size_t{kRows} * n_cols, n_cols);
      const std::vector<float> weight = RandomFloats(n_cols, n_cols + 1);
      const std::vector<float> before = RandomFloats(x.size(), n_cols + 2);
      std::vector<double> expected = RmsNormReference(x, weight, 1e-2F, kRows, n_cols);
      std::vector<double> tolerance = RelativeTolerance(expected, n_cols + 24);
      for (size_t i = 0; i < expected.size(); ++i) {
        expected[i] += before[i];
        tolerance[i] += std::abs(expected[i]) * kRoundoff;
      }
      Buffer* output = PoisonedBuffer(run, std::vector<double>(before.begin(), before.end()));
      const RmsNormArgs args{run.Floats(x), run.Floats(weight), 1e-2F, kRows, n_cols, output, true};
      run.Run([&](CommandList& list) { return list.RmsNorm(args); });
      EXPECT_TRUE(IsClose(run, output, expected, tolerance)) << n_cols << " columns";
    }
  }
}

TEST_P(LayersTest, GatedUnitOfGelu) {
  constexpr uint32_t kTokens = 3;
  for (Device* device : devices_) {
    for (const uint32_t n_ff : kColumnCounts) {
      SelfTestRun run(*device);
      std::vector<float> gate_up = RandomFloats(size_t{kTokens} * 2 * n_ff, n_ff);
      for (float& value : gate_up) value *= 5.0F;
      const std::vector<double> expected = GatedUnitReference(Activation::kGeluTanh, gate_up, kTokens, n_ff);
      Buffer* output = PoisonedBuffer(run, Untouched(expected.size()));
      const GatedUnitArgs args{run.Floats(gate_up), kTokens, n_ff, output, Activation::kGeluTanh};
      run.Run([&](CommandList& list) { return list.GatedUnit(args); });
      // Where x is negative, 1 + tanh may be made of numbers near 1: off by their last place, times x / 2 and
      // `up`. The exponent, up to 27, is a sum of three roundings.
      std::vector<double> tolerance = RelativeTolerance(expected, SigmoidRoundings(27) + 2 * 4 * 27);
      for (double& value : tolerance) value += 4 * 12.5 * kRoundoff;
      EXPECT_TRUE(IsClose(run, output, expected, tolerance)) << n_ff << " columns";
    }
  }
}

// Beyond what exponentials can hold.
TEST_P(LayersTest, GatedUnitOfLargeGates) {
  for (Device* device : devices_) {
    for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
      SelfTestRun run(*device);
      const std::vector<float> gate_up = {-1e5F, -100.0F, 0.0F, 1e5F, 2.0F, 2.0F, 2.0F, 2.0F};
      Buffer* output = PoisonedBuffer(run, Untouched(4));
      const GatedUnitArgs args{run.Floats(gate_up), 1, 4, output, activation};
      run.Run([&](CommandList& list) { return list.GatedUnit(args); });
      const std::vector<double> expected = {0.0, 0.0, 0.0, 2e5};
      EXPECT_TRUE(IsClose(run, output, expected, std::vector<double>{1e-30, 1e-30, 0.0, 0.1}));
    }
  }
}

TEST_P(LayersTest, SigmoidGate) {
  constexpr uint32_t kRows = 3;
  for (Device* device : devices_) {
    for (const uint32_t n_cols : kColumnCounts) {
      SelfTestRun run(*device);
      std::vector<float> gate = RandomFloats(size_t{kRows} * n_cols, n_cols);
      for (float& value : gate) value *= 20.0F;
      const std::vector<float> values = RandomFloats(gate.size(), n_cols + 1);
      const std::vector<double> expected = SigmoidGateReference(gate, values);
      Buffer* output = PoisonedBuffer(run, std::vector<double>(values.begin(), values.end()));
      const SigmoidGateArgs args{run.Floats(gate), kRows, n_cols, output};
      run.Run([&](CommandList& list) { return list.SigmoidGate(args); });
      EXPECT_TRUE(IsClose(run, output, expected, RelativeTolerance(expected, SigmoidRoundings(20))))
          << n_cols << " columns";
    }
  }
}

TEST_P(LayersTest, CopyOfPieces) {
  for (Device* device : devices_) {
    SelfTestRun run(*device);
    const std::vector<float> from = RandomFloats(5000, 5);
    std::vector<float> to = RandomFloats(4100, 6);
    CopyArgs args;
    args.from = run.Floats(from);
    args.to = PoisonedBuffer(run, std::vector<double>(to.begin(), to.end()));
    args.pieces = {{0, 16, 4}, {4000, 20, 12004}, {16004, 0, 12}, {19996, 16396, 4}, {16, 12200, 3984}};
    run.Run([&](CommandList& list) { return list.Copy(args); });
    CopyReference(args.pieces, std::as_bytes(std::span(from)), std::as_writable_bytes(std::span(to)));
    EXPECT_TRUE(IsClose(run, args.to, std::vector<double>(to.begin(), to.end()), 0.0));
  }
}

TEST_P(LayersTest, GatedNorm) {
  struct Case {
    uint32_t n_tokens;
    uint32_t n_heads;
    uint32_t head_dim;
    uint32_t gate_offset;
    uint32_t beyond;  // of a row's gates
  };
  for (Device* device : devices_) {
    for (const Case& c : {Case{3, 32, 128, 8192, 64}, Case{1, 32, 128, 0, 0}, Case{5, 3, 20, 7, 2},
                          Case{2, 1, 4, 0, 0}, Case{40, 4, 256, 4, 0}}) {
      SelfTestRun run(*device);
      const uint32_t stride = c.gate_offset + c.n_heads * c.head_dim + c.beyond;
      const std::vector<float> values = RandomFloats(size_t{c.n_tokens} * c.n_heads * c.head_dim, 1);
      const std::vector<float> weight = RandomFloats(c.head_dim, 2);
      std::vector<float> gate = RandomFloats(size_t{c.n_tokens} * stride, 3);
      for (float& value : gate) value *= 10.0F;
      const std::vector<double> expected = GatedNormReference({.values = values,
                                                               .weight = weight,
                                                               .gate = gate,
                                                               .gate_stride = stride,
                                                               .gate_offset = c.gate_offset,
                                                               .epsilon = 1e-3F,
                                                               .n_heads = c.n_heads,
                                                               .head_dim = c.head_dim});
      Buffer* output = PoisonedBuffer(run, std::vector<double>(values.begin(), values.end()));
      const GatedNormArgs args{.values = output,
                               .weight = run.Floats(weight),
                               .gate = run.Floats(gate),
                               .gate_stride = stride,
                               .gate_offset = c.gate_offset,
                               .epsilon = 1e-3F,
                               .n_tokens = c.n_tokens,
                               .n_heads = c.n_heads,
                               .head_dim = c.head_dim};
      run.Run([&](CommandList& list) { return list.GatedNorm(args); });
      EXPECT_TRUE(
          IsClose(run, output, expected, RelativeTolerance(expected, c.head_dim + 24 + SigmoidRoundings(10))))
          << c.n_heads << " heads of " << c.head_dim;
    }
  }
}

struct ConvolutionShape {
  uint32_t n_channels = 0;
  uint32_t n_taps = 0;
  bool is_gated = false;
  bool has_silu = false;
  uint32_t beyond = 0;  // columns of an input's row after those that count

  uint32_t input_stride() const { return n_channels * (is_gated ? 3 : 1) + beyond; }
  size_t row_state() const { return size_t{n_taps - 1} * n_channels; }
};
// Qwen3.5's and LFM2's are the first.
constexpr ConvolutionShape kConvolutions[] = {{8192, 4, false, true, 0}, {2048, 3, true, false, 0},
                                              {33, 2, false, false, 3},  {100, 8, true, true, 1},
                                              {1, 4, false, true, 0},    {66, 5, true, false, 0}};
constexpr uint32_t kSequences = 4;

// A sequence of steps over one state.
class ConvolutionRun {
 public:
  ConvolutionRun(Device& device, const ConvolutionShape& shape)
      : shape_(shape),
        run_(device),
        taps_(RandomFloats(size_t{shape.n_channels} * shape.n_taps, 7)),
        expected_state_(Untouched(kSequences * shape.row_state())) {
    const std::vector<float> before = RandomFloats(shape.row_state(), 8);
    std::copy(before.begin(), before.end(), expected_state_.begin());  // of sequence 0
    state_ = PoisonedBuffer(run_, expected_state_);
    taps_buffer_ = run_.Floats(taps_);
  }

  std::vector<std::byte> Step(const std::vector<StepToken>& tokens, const std::vector<float>& input,
                              bool of_prompt) {
    const auto n_tokens = static_cast<uint32_t>(tokens.size());
    const ShortConvolutionArgs args{
        .input = run_.Floats(input),
        .input_stride = shape_.input_stride(),
        .taps = taps_buffer_,
        .state = state_,
        .step = run_.Step(tokens),
        .n_tokens = n_tokens,
        .n_channels = shape_.n_channels,
        .n_taps = shape_.n_taps,
        .of_prompt = of_prompt,
        .is_gated = shape_.is_gated,
        .has_silu = shape_.has_silu,
        .output = PoisonedBuffer(run_, Untouched(size_t{n_tokens} * shape_.n_channels))};
    run_.Run([&](CommandList& list) { return list.ShortConvolution(args); });
    const std::vector<double> expected = ShortConvolutionReference({.tokens = tokens,
                                                                    .input = input,
                                                                    .input_stride = shape_.input_stride(),
                                                                    .taps = taps_,
                                                                    .n_channels = shape_.n_channels,
                                                                    .n_taps = shape_.n_taps,
                                                                    .is_gated = shape_.is_gated,
                                                                    .has_silu = shape_.has_silu},
                                                                   expected_state_);
    // Of magnitudes up to 1 each, n_taps products and their sum; then the activation and a product.
    const double sum = shape_.n_taps * (shape_.n_taps + 2) * kRoundoff;
    const double tolerance = 1.2 * sum + shape_.n_taps * SigmoidRoundings(shape_.n_taps) * kRoundoff;
    EXPECT_TRUE(IsClose(run_, args.output, expected, tolerance)) << Name();
    return run_.Bytes(args.output, expected.size() * sizeof(float));
  }

  void CheckState() { EXPECT_TRUE(IsClose(run_, state_, expected_state_, kRoundoff)) << "state: " << Name(); }

 private:
  std::string Name() const {
    return ::testing::PrintToString(shape_.n_channels) + " channels, " +
           ::testing::PrintToString(shape_.n_taps) + " taps" + (shape_.is_gated ? ", gated" : "");
  }

  const ConvolutionShape& shape_;
  SelfTestRun run_;
  std::vector<float> taps_;
  std::vector<double> expected_state_;
  Buffer* state_ = nullptr;
  const Buffer* taps_buffer_ = nullptr;
};

std::vector<StepToken> Prompt(uint32_t position, uint32_t n_tokens, uint32_t sequence) {
  std::vector<StepToken> tokens;
  for (uint32_t t = 0; t < n_tokens; ++t) tokens.push_back(TokenAt(position + t, sequence));
  return tokens;
}

// A prompt in several steps, some with fewer rows than the state has; batches of sequences that begin, go on
// from a prompt, and go on from what was there; what has no row keeps its state.
TEST_P(LayersTest, ShortConvolution) {
  for (Device* device : devices_) {
    for (const ConvolutionShape& shape : kConvolutions) {
      ConvolutionRun run(*device, shape);
      uint32_t seed = 20;
      const auto step = [&](const std::vector<StepToken>& tokens, bool of_prompt) {
        run.Step(tokens, RandomFloats(tokens.size() * shape.input_stride(), seed++), of_prompt);
      };
      step(Prompt(0, 5, 1), true);
      step(Prompt(5, 1, 1), true);
      step(Prompt(6, 2, 1), true);
      step(Prompt(8, 17, 1), true);
      step({TokenAt(25, 1), TokenAt(0, 3), TokenAt(70, 0)}, false);
      step({TokenAt(71, 0), TokenAt(26, 1), TokenAt(1, 3)}, false);
      step(Prompt(0, 1, 3), true);
      step(Prompt(0, 2, 1), true);
      step({TokenAt(2, 1)}, false);
      run.CheckState();
    }
  }
}

// However it is cut into steps, the bits are the same.
TEST_P(HostLayersTest, ShortConvolutionOfPieces) {
  constexpr uint32_t kTokens = 40;
  for (Device* device : devices_) {
    for (const ConvolutionShape& shape : kConvolutions) {
      const size_t stride = shape.input_stride();
      const std::vector<float> input = RandomFloats(kTokens * stride, 30);
      ConvolutionRun whole(*device, shape);
      const std::vector<std::byte> expected = whole.Step(Prompt(0, kTokens, 2), input, true);
      for (const uint32_t piece : {1U, 2U, 3U, 13U}) {
        ConvolutionRun pieces(*device, shape);
        std::vector<std::byte> found;
        for (uint32_t t = 0; t < kTokens; t += piece) {
          const uint32_t n = std::min(piece, kTokens - t);
          const std::vector<float> rows(input.begin() + static_cast<ptrdiff_t>(t * stride),
                                        input.begin() + static_cast<ptrdiff_t>((t + n) * stride));
          const std::vector<std::byte> bytes = pieces.Step(Prompt(t, n, 2), rows, piece > 1);
          found.insert(found.end(), bytes.begin(), bytes.end());
        }
        EXPECT_EQ(found, expected) << shape.n_channels << " channels in pieces of " << piece;
      }
    }
  }
}

}  // namespace
}  // namespace kvrun::testing
