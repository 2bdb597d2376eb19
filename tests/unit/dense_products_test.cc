// Not grouped (cmake/KvrunCompile.cmake): its names are others', too.
#include "runtime/kv/math/dense_products.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <tuple>
#include <vector>

#include "tests/support/host_targets.h"

namespace kvrun {
namespace {

template <typename Number>
std::vector<Number> RandomNumbers(std::mt19937& random, size_t n) {
  std::uniform_real_distribution<Number> uniform(-1, 1);
  std::vector<Number> numbers(n);
  for (Number& number : numbers) number = uniform(random);
  return numbers;
}

struct Shape {
  size_t rows;
  size_t inner;
  size_t columns;
};

constexpr Shape kShapes[] = {{1, 1, 1}, {7, 19, 5}, {6, 256, 16}, {97, 257, 33}, {200, 40, 8}, {3, 600, 70}};

// Sums of `inner` products of numbers up to 1 are off by less than 2^-53 of as much for each of them.
double Tolerance(const Shape& shape) {
  const auto inner = static_cast<double>(shape.inner);
  return 0x1p-52 * inner * inner + 1e-15;
}

template <typename OfA, typename OfB>
void ExpectProducts(bool a_is_transposed, bool b_is_transposed, bool adds) {
  std::mt19937 random(7);
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(::testing::Message() << shape.rows << " x " << shape.inner << " x " << shape.columns);
    // Rows are longer than what is multiplied.
    const size_t a_stride = (a_is_transposed ? shape.rows : shape.inner) + 3;
    const size_t b_stride = (b_is_transposed ? shape.inner : shape.columns) + 1;
    const auto a = RandomNumbers<OfA>(random, a_stride * std::max(shape.rows, shape.inner));
    const auto b = RandomNumbers<OfB>(random, b_stride * std::max(shape.inner, shape.columns));
    const DenseView view_a(a.data(), a_stride);
    const DenseView view_b(b.data(), b_stride);
    const size_t stride = shape.columns + 2;
    const auto before = RandomNumbers<double>(random, stride * shape.rows);
    std::vector<double> c = before;
    MultiplyDense(a_is_transposed ? view_a.Transposed() : view_a,
                  b_is_transposed ? view_b.Transposed() : view_b, shape.rows, shape.inner, shape.columns,
                  {c.data(), stride, adds});
    for (size_t i = 0; i < shape.rows; ++i) {
      for (size_t j = 0; j < stride; ++j) {
        const double found = c[i * stride + j];
        double expected = before[i * stride + j];
        if (j >= shape.columns) {
          ASSERT_EQ(found, expected) << "beyond the columns, row " << i;
          continue;
        }
        if (!adds) expected = 0;
        for (size_t k = 0; k < shape.inner; ++k) {
          expected += double{a_is_transposed ? a[k * a_stride + i] : a[i * a_stride + k]} *
                      (b_is_transposed ? b[j * b_stride + k] : b[k * b_stride + j]);
        }
        ASSERT_NEAR(found, expected, Tolerance(shape)) << "row " << i << ", column " << j;
      }
    }
  }
}

TEST(DenseProducts, AreThoseOfScalars) {
  testing::ForEachHostTarget([](int64_t) {
    for (const bool adds : {false, true}) {
      ExpectProducts<double, double>(false, false, adds);
      ExpectProducts<double, float>(false, false, adds);
      ExpectProducts<float, float>(false, true, adds);
      ExpectProducts<double, double>(true, true, adds);
      ExpectProducts<float, double>(true, false, adds);
    }
  });
}

// What comes after a number that is none stays as it should be: nothing is read beyond a matrix.
TEST(DenseProducts, WhatLiesBeyondAMatrixIsOfNoMatter) {
  std::vector<double> a(3 * 5, 1.0);
  std::vector<float> b(5 * 4, 1.0F);
  std::vector<double> c(2 * 3);
  for (size_t k = 0; k < 5; ++k) b[k * 4 + 3] = std::nanf("");
  for (size_t k = 0; k < 5; ++k) a[2 * 5 + k] = NAN;
  MultiplyDense({a.data(), 5}, {b.data(), 4}, 2, 5, 3, {c.data(), 3});
  EXPECT_EQ(c, std::vector<double>(6, 5.0));
}

// Whole tiles for each thread, and what is left for the last one.
TEST(DenseProducts, ThreadsDoNotShow) {
  std::mt19937 random(9);
  constexpr size_t kRows = 40;
  constexpr size_t kInner = 700;
  for (const size_t columns : {size_t{1200}, size_t{1301}}) {
    const auto a = RandomNumbers<double>(random, kRows * kInner);
    const auto b = RandomNumbers<float>(random, kInner * columns);
    std::vector<double> one(kRows * columns);
    MultiplyDense({a.data(), kInner}, {b.data(), columns}, kRows, kInner, columns, {one.data(), columns});
    for (const uint32_t n_threads : {2U, 3U, 4U}) {
      ASSERT_EQ(DenseThreads(kRows, kInner, columns, n_threads), n_threads);
      std::vector<double> several(one.size());
      MultiplyDense({a.data(), kInner}, {b.data(), columns}, kRows, kInner, columns,
                    {several.data(), columns}, n_threads);
      EXPECT_EQ(several, one) << n_threads;
    }
  }
  EXPECT_EQ(DenseThreads(40, 192, 192, 4), 1U) << "not worth a thread";
  EXPECT_EQ(DenseThreads(160, 1024, 1024, 0), 1U);
}

}  // namespace
}  // namespace kvrun
