#include "platform/base/real_number.h"

#include <gtest/gtest.h>

namespace kvrun {
namespace {

TEST(ParseReal, ReadsAllOfTheText) {
  EXPECT_EQ(ParseReal("0.5"), 0.5);
  EXPECT_EQ(ParseReal("12"), 12.0);
  EXPECT_EQ(ParseReal("-1e-3"), -1e-3);
  EXPECT_EQ(ParseReal(".25"), 0.25);
  EXPECT_EQ(ParseReal("0.1"), 0.1);  // the nearest
}

TEST(ParseReal, TakesNothingElse) {
  for (const char* text :
       {"", " 1", "1 ", "+1", "0x10", "1x", "1,5", "inf", "nan", "1e", "e5", ".", "-", "1e999", "1.2.3"}) {
    EXPECT_EQ(ParseReal(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace kvrun
