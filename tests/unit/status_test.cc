#include "platform/base/status.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace kvrun {
namespace {

Result<int> Half(int value) {
  if (value % 2 != 0) return Status(StatusCode::kInvalidArgument, "odd");
  return value / 2;
}

Result<int> Quarter(int value) {
  KVRUN_ASSIGN_OR_RETURN(const int half, Half(value));
  return Half(half);
}

TEST(Status, ErrorsPropagateThroughTheMacro) {
  ASSERT_TRUE(Quarter(8).ok());
  EXPECT_EQ(*Quarter(8), 2);
  EXPECT_EQ(Quarter(6).status().code(), StatusCode::kInvalidArgument);
}

TEST(Status, ContextComesFirst) {
  const Status status = Status(StatusCode::kIo, "disk gone").WithContext("reading a.gguf");
  EXPECT_EQ(status.message(), "reading a.gguf: disk gone");
  EXPECT_EQ(status.code(), StatusCode::kIo);
  EXPECT_TRUE(Status::Ok().WithContext("x").ok());
}

TEST(Status, ErrnoNamesTheReason) {
  const Status status = StatusFromErrno(ENOENT, "cannot open a.gguf");
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_NE(status.message().find("No such file"), std::string::npos);
}

}  // namespace
}  // namespace kvrun
