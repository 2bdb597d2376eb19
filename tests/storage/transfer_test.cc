#include "platform/io/transfer.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace kvrun {
namespace {

char g_memory[64];

TEST(Transfer, AShortAnswerGoesOnWhereItEnded) {
  const iovec segments[] = {{g_memory, 10}, {g_memory + 20, 0}, {g_memory + 30, 6}};
  Transfer transfer;
  ASSERT_EQ(BeginTransfer({IoKind::kRead, 100, segments, 5}, 1, transfer), std::nullopt);
  EXPECT_EQ(transfer.remaining_bytes, 16U);
  EXPECT_EQ(transfer.left().size(), 2U);  // without the empty one
  EXPECT_EQ(AdvanceTransfer(transfer, 3, 1), std::nullopt);
  EXPECT_EQ(transfer.offset, 103U);
  EXPECT_EQ(transfer.left()[0].iov_base, g_memory + 3);
  EXPECT_EQ(transfer.left()[0].iov_len, 7U);
  EXPECT_EQ(AdvanceTransfer(transfer, 9, 1), std::nullopt);  // across the border of segments
  EXPECT_EQ(transfer.offset, 112U);
  ASSERT_EQ(transfer.left().size(), 1U);
  EXPECT_EQ(transfer.left()[0].iov_base, g_memory + 32);
  EXPECT_EQ(AdvanceTransfer(transfer, 4, 1), 0);
}

TEST(Transfer, DirectIoGoesOnAtWholeBlocks) {
  alignas(16) static char memory[64];
  const iovec segment{memory, 64};
  Transfer transfer;
  ASSERT_EQ(BeginTransfer({IoKind::kRead, 16, {&segment, 1}, 5}, 16, transfer), std::nullopt);
  EXPECT_EQ(AdvanceTransfer(transfer, 47, 16), std::nullopt);
  EXPECT_EQ(transfer.offset, 48U);
  EXPECT_EQ(transfer.remaining_bytes, 32U);
  EXPECT_EQ(AdvanceTransfer(transfer, 15, 16), ENODATA);  // the file ends within a block
}

TEST(Transfer, TheEndOfTheFileIsAnError) {
  const iovec segment{g_memory, 8};
  Transfer transfer;
  ASSERT_EQ(BeginTransfer({IoKind::kRead, 0, {&segment, 1}, 5}, 1, transfer), std::nullopt);
  EXPECT_EQ(AdvanceTransfer(transfer, 5, 1), std::nullopt);
  EXPECT_EQ(AdvanceTransfer(transfer, 0, 1), ENODATA);
}

TEST(Transfer, InterruptedIsTriedAgainButNotForEver) {
  const iovec segment{g_memory, 8};
  struct {
    IoKind kind;
    int64_t answer;
    int error_number;
  } const cases[] = {
      {IoKind::kRead, -EINTR, EINTR}, {IoKind::kWrite, -EAGAIN, EAGAIN}, {IoKind::kWrite, 0, EIO}};
  for (const auto& c : cases) {
    Transfer transfer;
    ASSERT_EQ(BeginTransfer({c.kind, 0, {&segment, 1}, 5}, 1, transfer), std::nullopt);
    for (uint32_t i = 0; i < kMaxTransferRetries; ++i) {
      ASSERT_EQ(AdvanceTransfer(transfer, c.answer, 1), std::nullopt);
    }
    EXPECT_EQ(AdvanceTransfer(transfer, c.answer, 1), c.error_number);
  }
}

TEST(Transfer, ErrorsEndIt) {
  const iovec segment{g_memory, 8};
  Transfer transfer;
  ASSERT_EQ(BeginTransfer({IoKind::kWrite, 0, {&segment, 1}, 5}, 1, transfer), std::nullopt);
  EXPECT_EQ(AdvanceTransfer(transfer, 4, 1), std::nullopt);
  EXPECT_EQ(AdvanceTransfer(transfer, -ENOSPC, 1), ENOSPC);
}

TEST(Transfer, LengthsThatOverflowAreRefused) {
  const iovec segments[] = {{g_memory, SIZE_MAX / 2}, {g_memory, SIZE_MAX / 2}};
  Transfer transfer;
  EXPECT_EQ(BeginTransfer({IoKind::kRead, 0, segments, 5}, 1, transfer), EINVAL);
  EXPECT_EQ(BeginTransfer({IoKind::kRead, UINT64_MAX, {segments, 1}, 5}, 1, transfer), EINVAL);
}

}  // namespace
}  // namespace kvrun
