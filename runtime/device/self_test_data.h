// Made-up numbers for self-tests: the same on every machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/model/tensor_type.h"

namespace kvrun {

// Uniform in [-1, 1), none closer to zero than 2^-13: halves of them are normal numbers, which devices may
// not flush to zero.
std::vector<float> RandomFloats(size_t count, uint32_t seed);

// As f16 holds them.
std::vector<float> RoundedToHalf(std::vector<float> values);

// `n_elements` of a GGUF tensor, any bits for quants and moderate scales. n_elements: whole blocks.
std::vector<std::byte> RandomTensor(TensorType type, size_t n_elements, uint32_t seed);

}  // namespace kvrun
