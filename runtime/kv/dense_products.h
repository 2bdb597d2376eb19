// Products of matrices in double precision on the host, with the best instructions that the processor has, on
// the thread that calls: what adapters are computed with.
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

// target = a b, of a [rows, inner] and b [inner, columns]. The target may be neither.
void MultiplyDense(const DenseView& a, const DenseView& b, size_t rows, size_t inner, size_t columns,
                   const DenseTarget& target);
// What it holds while it works.
uint64_t DenseWorkBytes();

}  // namespace kvrun
