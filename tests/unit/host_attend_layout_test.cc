// A worker's memory for attention of rows ends where its last part does.
#include <gtest/gtest.h>

#include <vector>

#include "runtime/device/host/attend_layout.h"

namespace kvrun::host {
namespace {

TEST(AttendLayout, CountsWhatItsPartsTake) {
  for (const uint32_t head_dim : {48U, 64U, 128U, 256U}) {
    std::vector<float> memory(AttendRowsBytes(head_dim) / sizeof(float));
    const AttendRows rows{.n_rows = kMaxAttendRows,
                          .head_dim = head_dim,
                          .memory = reinterpret_cast<std::byte*>(memory.data())};
    const FewLayout few(rows);
    EXPECT_EQ(few.query_pairs() + kFewRows * 2 * few.pairs_of_four(),
              reinterpret_cast<int32_t*>(memory.data() + few.count()));
    EXPECT_GE(reinterpret_cast<float*>(few.query_pairs()), few.weight_steps() + kFewRows * kMaxRowScales);
    EXPECT_EQ(few.rounded_queries() + kFewRows * few.rounded_dims(),
              reinterpret_cast<int16_t*>(few.query_steps()));
    EXPECT_EQ((reinterpret_cast<std::byte*>(few.rounded_queries()) - rows.memory) % 64, 0);
    const ManyLayout many(rows);
    EXPECT_EQ(many.query_steps(many.n_tiles() - 1) + kTileRows, memory.data() + many.count());
  }
}

}  // namespace
}  // namespace kvrun::host
