// The scalar references of what layers consist of beside attention (runtime/device/layer_args.h): plain loops
// that follow the contracts, one row after another, sums in double.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/device/device.h"
#include "shaders/shared/step_params.h"
#include "tests/support/scalar_reference.h"

namespace kvrun::testing {

std::vector<double> GatedUnitReference(Activation activation, std::span<const float> gate_up,
                                       uint32_t n_tokens, uint32_t n_ff);
std::vector<double> SigmoidGateReference(std::span<const float> gate, std::span<const float> values);
void CopyReference(std::span<const CopyArgs::Piece> pieces, std::span<const std::byte> from,
                   std::span<std::byte> to);

struct ChosenExperts {
  std::vector<uint32_t> ids;
  std::vector<double> weights;
};
ChosenExperts ChooseExpertsReference(std::span<const float> logits, uint32_t n_experts, uint32_t n_used);

// The fields of ExpertMatMulArgs; there are as many tokens as n_used divides ids into.
struct ExpertMatMulReferenceArgs {
  std::span<const float> input;
  std::span<const uint32_t> ids;
  std::span<const float> weights;  // empty: none
  uint32_t n_used = 0;
  uint32_t n_rows = 0;
};
// Writes to `output`, or, with weights, adds to it.
void ExpertMatMulReference(const ReferenceMatrix& weight, const ExpertMatMulReferenceArgs& args,
                           std::span<double> output);

struct ShortConvolutionReferenceArgs {
  std::span<const StepToken> tokens;
  std::span<const float> input;
  uint32_t input_stride = 0;
  std::span<const float> taps;
  uint32_t n_channels = 0;
  uint32_t n_taps = 0;
  bool is_gated = false;
  bool has_silu = false;
};
// Changes the state.
std::vector<double> ShortConvolutionReference(const ShortConvolutionReferenceArgs& args,
                                              std::span<double> state);

struct DeltaRuleReferenceArgs {
  std::span<const StepToken> tokens;
  std::span<const float> qkv;
  std::span<const float> gates;
  uint32_t gates_stride = 0;
  uint32_t alpha_offset = 0;
  uint32_t beta_offset = 0;
  std::span<const float> constants;
  uint32_t n_key_heads = 0;
  uint32_t n_value_heads = 0;
  uint32_t head_dim = 0;
  float epsilon = 0.0F;
};
// Changes the state.
std::vector<double> DeltaRuleReference(const DeltaRuleReferenceArgs& args, std::span<double> state);

struct GatedNormReferenceArgs {
  std::span<const float> values;
  std::span<const float> weight;
  std::span<const float> gate;
  uint32_t gate_stride = 0;
  uint32_t gate_offset = 0;
  float epsilon = 0.0F;
  uint32_t n_heads = 0;
  uint32_t head_dim = 0;
};
std::vector<double> GatedNormReference(const GatedNormReferenceArgs& args);

}  // namespace kvrun::testing
