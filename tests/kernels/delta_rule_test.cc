// The gated delta rule against the scalar reference.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/support/layer_reference.h"
#include "tests/support/operations_fixture.h"
#include "tests/support/score_cases.h"

namespace kvrun::testing {
namespace {

class DeltaRuleTest : public OperationsTest {};

INSTANTIATE_TEST_SUITE_P(Modes, DeltaRuleTest,
                         ::testing::ValuesIn(ModesOf(Operations::kLayers,
                                                     {DeviceMode::kPlanned, DeviceMode::kFloor,
                                                      DeviceMode::kGpu, DeviceMode::kGpuFloor})),
                         ModeName);
constexpr uint32_t kSequences = 4;

// How much of a state a row leaves: nearly all, anything, next to nothing.
enum class Decays { kSlow, kMixed, kStrong };

struct DeltaShape {
  uint32_t n_key_heads = 0;
  uint32_t n_value_heads = 0;
  uint32_t head_dim = 0;
  Decays decays = Decays::kMixed;
  bool has_equal_keys = false;  // all rows', so that what one writes is what the next one finds
  bool are_gates_apart = false;

  uint32_t qkv_cols() const { return (2 * n_key_heads + n_value_heads) * head_dim; }
  uint32_t gates_stride() const { return are_gates_apart ? 2 * n_value_heads + 11 : 2 * n_value_heads; }
  uint32_t alpha_offset() const { return are_gates_apart ? n_value_heads + 5 : 0; }
  uint32_t beta_offset() const { return are_gates_apart ? 3 : n_value_heads; }
  size_t row_state() const { return size_t{n_value_heads} * head_dim * head_dim; }
  size_t output_cols() const { return size_t{n_value_heads} * head_dim; }
};

std::string Describe(const DeltaShape& shape) {
  return ::testing::PrintToString(shape.n_key_heads) + "/" + ::testing::PrintToString(shape.n_value_heads) +
         " heads of " + ::testing::PrintToString(shape.head_dim) + ", decays " +
         ::testing::PrintToString(static_cast<int>(shape.decays)) +
         (shape.has_equal_keys ? ", equal keys" : "");
}

struct DeltaRows {
  std::vector<float> qkv;
  std::vector<float> gates;
};

DeltaRows MakeRows(const DeltaShape& shape, size_t n_rows, uint32_t seed) {
  DeltaRows rows{RandomFloats(n_rows * shape.qkv_cols(), seed),
                 RandomFloats(n_rows * shape.gates_stride(), seed + 1)};
  for (float& value : rows.gates) value *= 4.0F;
  const size_t keys_begin = size_t{shape.n_key_heads} * shape.head_dim;
  for (size_t r = 1; shape.has_equal_keys && r < n_rows; ++r) {
    std::copy_n(&rows.qkv[keys_begin], keys_begin, &rows.qkv[r * shape.qkv_cols() + keys_begin]);
  }
  return rows;
}

DeltaRows Part(const DeltaShape& shape, const DeltaRows& rows, size_t first, size_t n_rows) {
  const auto part = [&](const std::vector<float>& from, size_t cols) {
    return std::vector<float>(from.begin() + static_cast<ptrdiff_t>(first * cols),
                              from.begin() + static_cast<ptrdiff_t>((first + n_rows) * cols));
  };
  return {part(rows.qkv, shape.qkv_cols()), part(rows.gates, shape.gates_stride())};
}

std::vector<float> Constants(const DeltaShape& shape) {
  std::vector<float> constants = RandomFloats(size_t{2} * shape.n_value_heads, 40);
  for (uint32_t h = 0; h < shape.n_value_heads; ++h) {
    float& a = constants[h];
    switch (shape.decays) {
      case Decays::kSlow: a = -0.002F * (1.1F + a); break;
      case Decays::kMixed: a = -std::exp(3.0F * a - 1.0F); break;
      case Decays::kStrong: a = -30.0F * (1.1F + a); break;
    }
  }
  return constants;
}

std::vector<StepToken> Prompt(uint32_t position, uint32_t n_tokens, uint32_t sequence) {
  std::vector<StepToken> tokens;
  for (uint32_t t = 0; t < n_tokens; ++t) tokens.push_back(TokenAt(position + t, sequence));
  return tokens;
}

// A sequence of steps over one state. Sequence 0 has one from the beginning, the others' is no number.
class DeltaRun {
 public:
  DeltaRun(Device& device, const DeltaShape& shape)
      : shape_(shape),
        run_(device),
        constants_(Constants(shape)),
        expected_state_(Untouched(kSequences * shape.row_state())) {
    const std::vector<float> before = RandomFloats(shape.row_state(), 41);
    std::copy(before.begin(), before.end(), expected_state_.begin());
    state_ = PoisonedBuffer(run_, expected_state_);
    constants_buffer_ = run_.Floats(constants_);
  }

  std::vector<std::byte> Step(const std::vector<StepToken>& tokens, const DeltaRows& rows, bool of_prompt,
                              bool is_checked = true) {
    const auto n_tokens = static_cast<uint32_t>(tokens.size());
    const DeltaRuleArgs args{.qkv = run_.Floats(rows.qkv),
                             .gates = run_.Floats(rows.gates),
                             .gates_stride = shape_.gates_stride(),
                             .alpha_offset = shape_.alpha_offset(),
                             .beta_offset = shape_.beta_offset(),
                             .constants = constants_buffer_,
                             .state = state_,
                             .step = run_.Step(tokens),
                             .n_tokens = n_tokens,
                             .n_key_heads = shape_.n_key_heads,
                             .n_value_heads = shape_.n_value_heads,
                             .head_dim = shape_.head_dim,
                             .epsilon = kEpsilon,
                             .of_prompt = of_prompt,
                             .output = PoisonedBuffer(run_, Untouched(n_tokens * shape_.output_cols()))};
    run_.Run([&](CommandList& list) { return list.DeltaRule(args); });
    if (is_checked) {
      const std::vector<double> expected = DeltaRuleReference({.tokens = tokens,
                                                               .qkv = rows.qkv,
                                                               .gates = rows.gates,
                                                               .gates_stride = shape_.gates_stride(),
                                                               .alpha_offset = shape_.alpha_offset(),
                                                               .beta_offset = shape_.beta_offset(),
                                                               .constants = constants_,
                                                               .n_key_heads = shape_.n_key_heads,
                                                               .n_value_heads = shape_.n_value_heads,
                                                               .head_dim = shape_.head_dim,
                                                               .epsilon = kEpsilon},
                                                              expected_state_);
      // What is left where values of about 1 cancel each other is no better than these.
      const double tolerance = std::max(kTolerance * LargestMagnitude(expected), 1e-7);
      EXPECT_TRUE(IsClose(run_, args.output, expected, tolerance))
          << Describe(shape_) << ", " << n_tokens << " rows from " << tokens[0].position
          << (of_prompt ? " of a prompt" : "");
    }
    return run_.Bytes(args.output, n_tokens * shape_.output_cols() * sizeof(float));
  }

  void CheckState() {
    double largest = 0.0;
    for (const double value : expected_state_) largest = std::fmax(largest, std::abs(value));
    EXPECT_TRUE(IsClose(run_, state_, expected_state_, kTolerance * largest))
        << "state: " << Describe(shape_);
  }

  std::vector<std::byte> State() {
    return run_.Bytes(state_, kSequences * shape_.row_state() * sizeof(float));
  }

 private:
  static constexpr float kEpsilon = 1e-6F;
  static constexpr double kTolerance = 1e-4;

  const DeltaShape& shape_;
  SelfTestRun run_;
  std::vector<float> constants_;
  std::vector<double> expected_state_;
  Buffer* state_ = nullptr;
  const Buffer* constants_buffer_ = nullptr;
};

constexpr DeltaShape kShapes[] = {
    {2, 4, 128, Decays::kMixed, false, true},   {1, 2, 64, Decays::kSlow, false, false},
    {3, 3, 20, Decays::kStrong, false, true},   {2, 4, 32, Decays::kSlow, true, false},
    {1, 1, 4, Decays::kMixed, false, false},    {1, 3, 36, Decays::kMixed, true, true},
    {1, 1, 256, Decays::kMixed, false, false},  {1, 1, 128, Decays::kStrong, true, false},
    {16, 32, 128, Decays::kMixed, false, false}};  // the last is Qwen3.5's

// Prompts in steps of any length, batches of sequences that begin, go on from a prompt, and from what was
// there; what has no row keeps its state.
TEST_P(DeltaRuleTest, PromptsAndBatches) {
  for (Device* device : devices_) {
    for (const DeltaShape& shape : kShapes) {
      const bool is_large = shape.n_value_heads > 16;
      DeltaRun run(*device, shape);
      uint32_t seed = 50;
      const auto step = [&](const std::vector<StepToken>& tokens, bool of_prompt) {
        run.Step(tokens, MakeRows(shape, tokens.size(), seed += 2), of_prompt);
      };
      step(Prompt(0, is_large ? 70 : 150, 1), true);
      step(Prompt(150, 3, 1), true);
      step(Prompt(153, 1, 1), true);
      step({TokenAt(154, 1), TokenAt(0, 3), TokenAt(70, 0)}, false);
      step({TokenAt(71, 0), TokenAt(155, 1), TokenAt(1, 3)}, false);
      step({TokenAt(2, 3)}, false);
      if (!is_large) step(Prompt(72, 65, 0), true);
      run.CheckState();
    }
  }
}

// Errors do not grow: of as many rows as this, by and by, in a prompt, and both.
TEST_P(DeltaRuleTest, ManyRows) {
  constexpr uint32_t kRows = 300;
  for (Device* device : devices_) {
    for (const DeltaShape& shape : {DeltaShape{1, 2, 64, Decays::kSlow},
                                    {1, 2, 64, Decays::kMixed, true},
                                    {1, 1, 128, Decays::kMixed},
                                    {1, 1, 128, Decays::kStrong}}) {
      const DeltaRows rows = MakeRows(shape, kRows, 70);
      for (const uint32_t of_prompt : {0U, 100U, kRows}) {
        DeltaRun run(*device, shape);
        if (of_prompt > 0) run.Step(Prompt(0, of_prompt, 2), Part(shape, rows, 0, of_prompt), true);
        for (uint32_t r = of_prompt; r < kRows; ++r)
          run.Step({TokenAt(r, 2)}, Part(shape, rows, r, 1), false);
        run.CheckState();
      }
    }
  }
}

// Keys of zeros write nothing, and queries of zeros find nothing.
TEST_P(DeltaRuleTest, Zeros) {
  for (Device* device : devices_) {
    for (const bool of_prompt : {false, true}) {
      const DeltaShape shape{1, 2, 32, Decays::kMixed};
      DeltaRun run(*device, shape);
      DeltaRows rows = MakeRows(shape, 1, 60);
      run.Step({TokenAt(9, 0)}, rows, of_prompt);
      std::fill_n(rows.qkv.begin(), size_t{2} * shape.head_dim, 0.0F);
      run.Step({TokenAt(10, 0)}, rows, of_prompt);
      run.CheckState();
    }
  }
}

// Steps of whole 64 rows are the same bits however many there are in a step; rows of a batch, however many
// others there are.
TEST_P(DeltaRuleTest, DoesNotDependOnHowItIsCut) {
  constexpr uint32_t kRows = 256;
  for (Device* device : devices_) {
    for (const DeltaShape& shape : {DeltaShape{1, 2, 64, Decays::kMixed}, {2, 2, 36, Decays::kSlow}}) {
      const DeltaRows rows = MakeRows(shape, kRows, 80);
      DeltaRun whole(*device, shape);
      const std::vector<std::byte> expected = whole.Step(Prompt(0, kRows, 1), rows, true, false);
      for (const uint32_t piece : {64U, 128U}) {
        DeltaRun run(*device, shape);
        std::vector<std::byte> found;
        for (uint32_t first = 0; first < kRows; first += piece) {
          const std::vector<std::byte> bytes =
              run.Step(Prompt(first, piece, 1), Part(shape, rows, first, piece), true, false);
          found.insert(found.end(), bytes.begin(), bytes.end());
        }
        EXPECT_EQ(found, expected) << Describe(shape) << " in pieces of " << piece;
        EXPECT_EQ(run.State(), whole.State()) << Describe(shape) << " in pieces of " << piece;
      }
      // Of a pair, so many that all are one device's.
      std::vector<StepToken> tokens = {TokenAt(0, 3), TokenAt(0, 1), TokenAt(5, 0)};
      if (GetParam() == DeviceMode::kPair) tokens.resize(kPairDecodeRows);
      const auto n_tokens = static_cast<uint32_t>(tokens.size());
      DeltaRun batch(*device, shape);
      const std::vector<std::byte> together =
          batch.Step(tokens, Part(shape, rows, 0, n_tokens), false, false);
      DeltaRun alone(*device, shape);
      std::vector<std::byte> each;
      for (uint32_t row = 0; row < n_tokens; ++row) {
        const std::vector<std::byte> bytes =
            alone.Step({tokens[row]}, Part(shape, rows, row, 1), false, false);
        each.insert(each.end(), bytes.begin(), bytes.end());
      }
      EXPECT_EQ(together, each) << Describe(shape);
      EXPECT_EQ(batch.State(), alone.State()) << Describe(shape);
    }
  }
}

// The CPU's results do not depend on the number of threads.
TEST(DeltaRuleThreadsTest, IsTheSameForAnyThreads) {
  const DeltaShape shape{2, 6, 64, Decays::kMixed};
  std::vector<std::vector<std::byte>> outputs;
  for (const uint32_t n_threads : {1U, 2U, 5U}) {
    auto device = host::HostDevice::Create({.n_threads = n_threads, .exact_activations = true, .note = {}});
    ASSERT_TRUE(device.ok()) << device.status().message();
    DeltaRun run(**device, shape);
    outputs.push_back(run.Step(Prompt(0, 130, 1), MakeRows(shape, 130, 90), true));
    outputs.back() = run.Step({TokenAt(130, 1), TokenAt(4, 0)}, MakeRows(shape, 2, 92), false);
  }
  EXPECT_EQ(outputs[1], outputs[0]);
  EXPECT_EQ(outputs[2], outputs[0]);
}

}  // namespace
}  // namespace kvrun::testing
