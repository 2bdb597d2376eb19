#include "runtime/device/host/rounded_queries.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvrun::host {

void RoundedQueries::Round(const float* z, size_t rank) const {
  std::fill_n(quants, n_rows * stride(), int8_t{0});
  for (size_t row = 0; row < n_rows; ++row, z += rank) {
    float largest = 0.0F;
    bool is_finite = true;
    for (size_t i = 0; i < rank; ++i) {
      largest = std::max(largest, std::abs(z[i]));
      is_finite = is_finite && std::isfinite(z[i]);
    }
    steps[row] = is_finite ? largest / 127.0F : std::numeric_limits<float>::quiet_NaN();
    starts[row] = 0;
    const float inverse = is_finite && largest > 1e-30F ? 127.0F / largest : 0.0F;
    if (inverse == 0.0F) continue;
    for (size_t i = 0; i < rank; ++i) {
      const auto quant = static_cast<int32_t>(std::lround(z[i] * inverse));
      const size_t in_word = i % kWordColumns;
      quants[row * stride() + i - in_word + in_word % 2 * 4 + in_word / 2] = static_cast<int8_t>(quant);
      starts[row] -= 8 * quant;
    }
  }
}

}  // namespace kvrun::host
