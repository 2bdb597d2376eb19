// Quantised blocks and models by a rule, so that another runtime's values and logits of the same ones can be
// kept: tests/data/quantised, whose make.py follows the rule too.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "runtime/model/tensor_type.h"
#include "tests/support/gguf_builder.h"

namespace kvrun::testing {

// Those that another runtime's values and logits are kept of.
inline constexpr std::array kKeptTypes = {TensorType::kQ2_K, TensorType::kQ3_K, TensorType::kIQ4_NL,
                                          TensorType::kIQ4_XS};

// Blocks of zeros, of ones and of random bits, with scales that are large, subnormal, negative and zero.
Bytes EdgeBlocks(TensorType type);

// A model all of whose matrices are of the type, and what was fed to it for the logits that are kept.
GgufBuilder QuantisedModel(TensorType type);
std::vector<int> QuantisedModelIds();

// Where the kept data of a type lie; what: "values", "logits".
std::string KeptPath(TensorType type, const std::string& what);

}  // namespace kvrun::testing
