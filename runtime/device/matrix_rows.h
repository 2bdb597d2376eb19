// The rows of a matrix that is to be packed, one after another, whether they are in memory or read from a
// file.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "platform/base/status.h"
#include "runtime/device/device.h"

namespace kvrun {

// Bytes that are read at once: a piece is packed while it is in the processor's cache. Larger buffers would
// be mappings of their own, whose pages are new for every matrix.
constexpr uint64_t kRowPieceBytes = 64 * 1024;

// What ForEachRow reads into, of one thread. Empty where all sources are in memory.
inline std::vector<std::byte> RowBuffer(std::span<const MatrixSource> sources, uint64_t row_bytes) {
  const bool reads = std::any_of(sources.begin(), sources.end(),
                                 [](const MatrixSource& source) { return source.data.empty(); });
  return std::vector<std::byte>(reads ? std::max(kRowPieceBytes, row_bytes) : 0);
}

// pack(row, bytes) for rows [begin, end) of the sources, which lie one after another, of `row_bytes` each.
// Any thread, each with a `buffer` of RowBuffer's.
template <typename Pack>
Status ForEachRow(std::span<const MatrixSource> sources, uint64_t row_bytes, uint64_t begin, uint64_t end,
                  std::span<std::byte> buffer, const Pack& pack) {
  uint64_t first = 0;  // row of the source
  for (const MatrixSource& source : sources) {
    const uint64_t stop = std::min(end, first + source.n_rows);
    for (uint64_t row = std::max(begin, first); row < stop;) {
      uint64_t n_rows = stop - row;
      std::span<const std::byte> bytes = source.data;
      if (bytes.empty()) {
        n_rows = std::min(n_rows, buffer.size() / row_bytes);
        const std::span<std::byte> piece = buffer.first(n_rows * row_bytes);
        KVRUN_RETURN_IF_ERROR(source.read((row - first) * row_bytes, piece));
        bytes = piece;
      } else {
        bytes = bytes.subspan((row - first) * row_bytes, n_rows * row_bytes);
      }
      for (uint64_t i = 0; i < n_rows; ++i, ++row) pack(row, bytes.subspan(i * row_bytes, row_bytes));
    }
    first += source.n_rows;
  }
  return Status::Ok();
}

}  // namespace kvrun
