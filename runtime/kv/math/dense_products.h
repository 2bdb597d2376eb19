// Products of matrices in double precision on the host, with the best instructions that the processor has:
// what adapters are computed with.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvrun {

// Element (row, column) is values[row * row_stride + column * column_stride]; floats are taken as doubles.
class DenseView {
 public:
  DenseView(const float* values, size_t row_stride, size_t column_stride = 1)
      : floats_(values), row_stride_(row_stride), column_stride_(column_stride) {}
  DenseView(const double* values, size_t row_stride, size_t column_stride = 1)
      : doubles_(values), row_stride_(row_stride), column_stride_(column_stride) {}

  DenseView Transposed() const {
    DenseView view = *this;
    view.row_stride_ = column_stride_;
    view.column_stride_ = row_stride_;
    return view;
  }

  DenseView FromColumn(size_t column) const {
    DenseView view = *this;
    if (floats_ != nullptr) view.floats_ += column * column_stride_;
    if (doubles_ != nullptr) view.doubles_ += column * column_stride_;
    return view;
  }

  const float* floats() const { return floats_; }  // null: there are doubles
  const double* doubles() const { return doubles_; }
  size_t row_stride() const { return row_stride_; }
  size_t column_stride() const { return column_stride_; }

 private:
  const float* floats_ = nullptr;
  const double* doubles_ = nullptr;
  size_t row_stride_;
  size_t column_stride_;
};

// Row-major.
struct DenseTarget {
  double* values = nullptr;
  size_t row_stride = 0;
  bool adds = false;  // to what is there
};

// target = a b, of a [rows, inner] and b [inner, columns]. The target may be neither. Each thread computes
// some of the columns: how many there are does not show in them.
void MultiplyDense(const DenseView& a, const DenseView& b, size_t rows, size_t inner, size_t columns,
                   const DenseTarget& target, uint32_t most_threads = 1);
// How many it takes: one where others are not worth their start.
uint32_t DenseThreads(size_t rows, size_t inner, size_t columns, uint32_t most_threads);
// What a thread holds while it works.
uint64_t DenseWorkBytes(size_t rows, size_t inner);

}  // namespace kvrun
