#pragma once

#include <cstddef>

namespace kvrun::testing {

// Floats beyond every output that must stay untouched.
inline constexpr size_t kBeyond = 64;

}  // namespace kvrun::testing
