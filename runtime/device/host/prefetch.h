// Reads ahead of memory that will be streamed through once.
#pragma once

#include <hwy/base.h>

#include <cstddef>
#include <cstdint>

namespace kvrun::host {

// Into the second-level cache: more reads from memory are in flight there. A core of an AMD EPYC (Zen 4)
// reads 20 GB/s of weights so, and 11 with prefetches into the first level. Always inlined: GCC takes a
// function that does nothing else for one without effect, and leaves out calls of it.
HWY_INLINE void PrefetchFar(const void* at) { __builtin_prefetch(at, 0, 2); }

// Rows to be prefetched while others are computed with.
struct Ahead {
  static constexpr size_t kLineBytes = 64;

  size_t n_entries = 0;
  size_t row_bytes = 0;
  const std::byte* const* rows = nullptr;
  const std::byte* const* scales = nullptr;  // null: none

  HWY_INLINE void Prefetch(size_t entry) const {
    if (entry >= n_entries) return;
    // All lines that it touches: rows of a record of one entry begin anywhere in one.
    const auto in_line = reinterpret_cast<uintptr_t>(rows[entry]) % kLineBytes;
    for (size_t i = 0; i < in_line + row_bytes; i += kLineBytes) PrefetchFar(rows[entry] - in_line + i);
    if (scales != nullptr) PrefetchFar(scales[entry]);
  }
};

}  // namespace kvrun::host
