// Rows of an index, quantised on the host: where each lies, and what it stands for.
#include "runtime/kv/index/index_rows.h"

#include <gtest/gtest.h>

#include <vector>

#include "runtime/device/self_test_data.h"
#include "tests/support/index_reference.h"

namespace kvrun::testing {
namespace {

// Rows in pieces, at any of them: all become what was given, within half a code, and words around them stay.
void CheckRows(const IndexShape& shape, uint32_t begin, uint32_t n_rows) {
  SCOPED_TRACE(::testing::Message() << KvElementBits(shape.type) << " bits, groups of " << shape.group_tokens
                                    << " with " << shape.rows() << " rows, rows " << begin << " to "
                                    << begin + n_rows);
  const std::vector<float> rows = kvrun::RandomFloats(size_t{n_rows} * shape.rank, 41);
  const float largest =
      shape.type == KvType::kF16 ? 1.0F : static_cast<float>((1U << (KvElementBits(shape.type) - 1)) - 1);
  std::vector<float> scales(shape.rank, 1.0F / largest);
  scales[0] *= 2;  // by column
  if (shape.type == KvType::kF16) scales.assign(shape.rank, 1.0F);
  std::vector<uint32_t> words(shape.size_bytes() / sizeof(uint32_t));
  PackIndexRows(shape, begin, std::span(rows).first(shape.rank), scales, words);
  PackIndexRows(shape, begin + 1, std::span(rows).subspan(shape.rank), scales, words);
  for (uint32_t row = 0; row < shape.n_groups * shape.rows(); ++row) {
    for (uint32_t c = 0; c < shape.rank; ++c) {
      const float found = IndexValue(words, shape, 0, row, c) * scales[c];
      const bool is_given = row >= begin && row < begin + n_rows;
      const float expected = is_given ? rows[(row - begin) * shape.rank + c] : 0.0F;
      const float rounding = shape.type == KvType::kF16 ? 0x1p-11F : scales[c] * 0.5001F;
      ASSERT_NEAR(found, expected, is_given ? rounding : 0.0F) << "row " << row << ", column " << c;
    }
  }
}

TEST(IndexRows, OneForEachEntry) {
  for (const KvType type : {KvType::kF16, KvType::kInt8, KvType::kInt4}) {
    for (const uint32_t group : {1U, 3U, 4U}) CheckRows({type, 7, group, 9, 1}, 2, 5);
  }
}

TEST(IndexRows, OfWholeGroups) {
  for (const KvType type : {KvType::kF16, KvType::kInt8, KvType::kInt4}) {
    for (const uint32_t rows : {1U, 2U}) {
      for (const uint32_t group : {1U, 4U, 64U}) CheckRows({type, 7, group, 9, 1, rows}, 2, 5);
    }
  }
}

}  // namespace
}  // namespace kvrun::testing
