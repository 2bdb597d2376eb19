// Queries of an index, rounded to 8 bits, in the order of its words' columns.
#pragma once

#include <cstddef>
#include <cstdint>

#include "platform/base/units.h"

namespace kvrun::host {

struct RoundedQueries {
  static constexpr size_t kWordColumns = 8;  // of an index of int4

  // memory: Bytes(n_rows, rank), 64-byte aligned.
  RoundedQueries(std::byte* memory, size_t rows, size_t rank)
      : n_rows(rows), n_words(CeilDiv(rank, kWordColumns)) {
    steps = reinterpret_cast<float*>(memory);
    starts = reinterpret_cast<int32_t*>(steps + rows);
    quants = reinterpret_cast<int8_t*>(starts + rows);
  }
  static size_t Bytes(size_t rows, size_t rank) {
    return rows * (sizeof(float) + sizeof(int32_t) + RoundUp(rank, kWordColumns));
  }
  // Of z, [n_rows, rank].
  void Round(const float* z, size_t rank) const;
  size_t stride() const { return n_words * kWordColumns; }

  size_t n_rows;
  size_t n_words;   // of a row of the index
  float* steps;     // [n_rows]: what one stands for; not a number where a query has such, or infinities
  int32_t* starts;  // [n_rows]: what sums begin with, as rows of the index have 8 added to their numbers
  int8_t* quants;   // [n_rows, n_words, 2, 4]: of a word's columns the even ones, then the others; then zeros
};

}  // namespace kvrun::host
