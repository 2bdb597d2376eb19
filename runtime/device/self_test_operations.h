// Self-tests of the operations that are neither attention's nor the index's: each against a small computation
// here, on any device.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/model/tensor_type.h"

namespace kvrun {

inline constexpr std::array kSelfTestTypes = {
    TensorType::kF32,  TensorType::kF16,  TensorType::kBF16, TensorType::kQ8_0,   TensorType::kQ4_0,
    TensorType::kQ4_1, TensorType::kQ5_0, TensorType::kQ5_1, TensorType::kQ2_K,   TensorType::kQ3_K,
    TensorType::kQ4_K, TensorType::kQ5_K, TensorType::kQ6_K, TensorType::kIQ4_NL, TensorType::kIQ4_XS};

// Sums of up to 512 products in 32-bit floats, taken in any order, are far closer than this.
inline constexpr double kSelfTestTolerance = 1e-4;

// On success a line of detail, else what is wrong. With a bias, and added to what is there. `tolerance`: a
// part of the largest value, more where a device rounds activations.
Result<std::string> CheckMatMul(Device& device, TensorType type, uint32_t n_rows, uint32_t n_cols,
                                uint32_t n_tokens, double tolerance = kSelfTestTolerance);
Result<std::string> CheckEmbed(Device& device, TensorType type);
Result<std::string> CheckRmsNorm(Device& device, uint32_t n_cols);
// Of one token, with a norm before and a gate after it: n_ff gates.
Result<std::string> CheckGatedProduct(Device& device, TensorType type, uint32_t n_ff, uint32_t n_cols);
Result<std::string> CheckSwiGlu(Device& device, uint32_t n_ff);
Result<std::string> CheckGather(Device& device);

}  // namespace kvrun
