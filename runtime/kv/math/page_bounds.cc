#include "runtime/kv/math/page_bounds.h"

#include <algorithm>
#include <cmath>

namespace kvrun {

void MinMaxBounds(std::span<const float> keys, std::span<float> upper, std::span<float> lower) {
  const size_t dim = upper.size();
  std::copy_n(keys.begin(), dim, upper.begin());
  std::copy_n(keys.begin(), dim, lower.begin());
  for (size_t i = dim; i < keys.size(); ++i) {
    upper[i % dim] = std::max(upper[i % dim], keys[i]);
    lower[i % dim] = std::min(lower[i % dim], keys[i]);
  }
}

void SpreadBounds(std::span<const float> keys, std::span<float> upper, std::span<float> lower) {
  const size_t dim = upper.size();
  const size_t n = keys.size() / dim;
  for (size_t c = 0; c < dim; ++c) {
    double sum = 0.0;
    double squares = 0.0;
    for (size_t i = 0; i < n; ++i) {
      const double key = keys[i * dim + c];
      sum += key;
      squares += key * key;
    }
    const double mean = sum / static_cast<double>(n);
    const double spread = std::sqrt(std::max(squares / static_cast<double>(n) - mean * mean, 0.0));
    upper[c] = static_cast<float>(mean + spread);
    lower[c] = static_cast<float>(mean - spread);
  }
}

}  // namespace kvrun
