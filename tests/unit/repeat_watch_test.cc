// Which answers count as repeating themselves.
#include "runtime/engine/text/repeat_watch.h"

#include <gtest/gtest.h>

#include <vector>

#include "platform/base/random.h"

namespace kvrun {
namespace {

// After how many tokens of the answer it counts as repeating itself; 0: it never does.
size_t EndOf(const std::vector<TokenId>& answer, uint32_t limit) {
  RepeatWatch watch(limit);
  for (size_t i = 0; i < answer.size(); ++i) {
    if (watch.Note(answer[i])) return i + 1;
  }
  return 0;
}

// So many times the tokens 100, 101, ... after `before` others that are all different.
std::vector<TokenId> Repeated(uint32_t before, uint32_t length, uint32_t times) {
  std::vector<TokenId> answer;
  for (uint32_t i = 0; i < before; ++i) answer.push_back(static_cast<TokenId>(10000 + i));
  for (uint32_t i = 0; i < length * times; ++i) answer.push_back(static_cast<TokenId>(100 + i % length));
  return answer;
}

TEST(RepeatWatch, TheSameTextOftenEnoughEndsIt) {
  for (const uint32_t length : {32U, 33U, 57U, 200U, RepeatWatch::kLongestText}) {
    for (const uint32_t before : {0U, 1U, 300U, 700U}) {
      EXPECT_EQ(EndOf(Repeated(before, length, 6), 4), before + 4 * length) << length << " " << before;
      EXPECT_EQ(EndOf(Repeated(before, length, 6), 6), before + 6 * length) << length << " " << before;
      EXPECT_EQ(EndOf(Repeated(before, length, 3), 4), 0U) << length << " " << before;
    }
  }
}

TEST(RepeatWatch, ShortTextsMayBeRepeatedForAWhile) {
  for (const uint32_t length : {1U, 2U, 7U, 31U}) {
    const uint32_t times = (RepeatWatch::kMeantTokens + length - 1) / length;
    EXPECT_EQ(EndOf(Repeated(5, length, times - 1), 4), 0U) << length;
    const size_t end = EndOf(Repeated(5, length, times + 1), 4);
    EXPECT_EQ(end, 5 + RepeatWatch::kMeantTokens) << length;
  }
}

TEST(RepeatWatch, LongerTextsAreNotSeen) {
  EXPECT_EQ(EndOf(Repeated(0, RepeatWatch::kLongestText + 1, 6), 4), 0U);
}

TEST(RepeatWatch, WhatDiffersByATokenIsNoRepetition) {
  std::vector<TokenId> answer = Repeated(0, 50, 6);
  for (uint32_t i = 0; i < 6; ++i) answer[i * 50 + 20] = static_cast<TokenId>(20000 + i);
  EXPECT_EQ(EndOf(answer, 4), 0U);
}

TEST(RepeatWatch, NothingEndsItWhereNobodyAsksAndTextsByChanceDoNot) {
  EXPECT_EQ(EndOf(Repeated(0, 10, 1000), 0), 0U);
  Random random(7);
  std::vector<TokenId> answer;
  for (uint32_t i = 0; i < 20000; ++i) answer.push_back(static_cast<TokenId>(random.Below(3)));
  EXPECT_EQ(EndOf(answer, 4), 0U);
}

}  // namespace
}  // namespace kvrun
