// Self-tests of what layers consist of beside attention and plain products (runtime/device/layer_args.h):
// each against a small computation here, on any device.
#pragma once

#include <cstdint>
#include <string>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/model/tensor_type.h"

namespace kvrun {

// On success a line of detail, else what is wrong. RmsNorm that adds to what is there.
Result<std::string> CheckRmsNormThatAdds(Device& device, uint32_t n_cols);
// With tanh.
Result<std::string> CheckGelu(Device& device, uint32_t n_ff);
Result<std::string> CheckSigmoidGate(Device& device, uint32_t n_cols);
Result<std::string> CheckCopy(Device& device);
Result<std::string> CheckChooseExperts(Device& device, uint32_t n_experts, uint32_t n_used);

// Of kExperts experts; the products of a token are added up where `adds_up`. Many tokens share experts, so
// that a device may bring them together.
struct ExpertsCase {
  static constexpr uint32_t kExperts = 5;
  static constexpr uint32_t kUsed = 2;
  static constexpr uint32_t kRows = 40;  // of an expert

  TensorType type = TensorType::kF32;
  uint32_t n_cols = 512;
  uint32_t n_tokens = 1;
  bool adds_up = false;
};
// `tolerance`: a part of the largest value, more where a device rounds activations.
Result<std::string> CheckExpertMatMul(Device& device, const ExpertsCase& c, double tolerance);

// Two steps of a sequence, which begins with the first, on one state.
Result<std::string> CheckShortConvolution(Device& device, bool of_prompt, bool is_gated);
Result<std::string> CheckDeltaRule(Device& device, uint32_t head_dim, bool of_prompt);
Result<std::string> CheckGatedNorm(Device& device, uint32_t head_dim);

}  // namespace kvrun
