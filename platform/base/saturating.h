// Sums and products of sizes that may be anything: UINT64_MAX, "more than can be", where 64 bits do not
// suffice.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace kvrun {

inline uint64_t SaturatingProduct(std::initializer_list<uint64_t> factors) {
  uint64_t product = 1;
  for (const uint64_t factor : factors) {
    if (__builtin_mul_overflow(product, factor, &product)) return UINT64_MAX;
  }
  return product;
}

inline uint64_t SaturatingSum(std::initializer_list<uint64_t> terms) {
  uint64_t sum = 0;
  for (const uint64_t term : terms) {
    if (__builtin_add_overflow(sum, term, &sum)) return UINT64_MAX;
  }
  return sum;
}

}  // namespace kvrun
