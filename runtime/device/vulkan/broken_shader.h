// Shader code made wrong on purpose, to see that self-tests notice.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvrun {

// The same interface and the same memory accesses, but wrong results: scalars are added, or mixed, where they
// should be multiplied. Code that multiplies no floats loses its stores instead.
std::vector<uint32_t> BreakShader(std::span<const uint32_t> spirv);

}  // namespace kvrun
