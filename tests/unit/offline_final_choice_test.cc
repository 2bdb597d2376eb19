// Which of a search's best is taken: confirmed on other text, and by times in turns.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "offline/final_choice.h"

namespace kvrun::offline {
namespace {

// A point by its group: what the search found of it, and what is found afterwards.
struct Case {
  uint32_t group = 0;
  double kl = 0.0;
  double likely_ms = 0.0;
  double held_out_kl = 0.0;
  std::vector<double> turns_ms;  // the last for all that follow
};

constexpr uint32_t kOwn = 4;

class OfflineFinalChoice : public ::testing::Test {
 protected:
  // The first is kvrun's own choice.
  Result<FinalChoice> Choose(const std::vector<Case>& cases, bool own_is_accepted = true,
                             double limit = 0.0) {
    n_turns_.clear();
    SolverAnswer answer;
    for (const Case& one : cases) {
      cases_[one.group] = one;
      Measured measured;
      measured.sized.candidate.group_tokens = one.group;
      measured.quality.kl = one.kl;
      measured.quality.step_ms = one.likely_ms;
      measured.predicted_ms = one.likely_ms;
      if (one.group == kOwn) answer.own = measured;
      if (one.group != kOwn || own_is_accepted) answer.accepted.push_back(measured);
    }
    FinalChoiceInput input;
    input.kl_limit = limit;
    input.measure_held_out = [this](const SizedCandidate& sized) -> Result<Quality> {
      ++n_held_out_;
      return Quality{.kl = cases_[sized.candidate.group_tokens].held_out_kl};
    };
    input.measure_ms = [this](const Measured& measured) -> Result<double> {
      const uint32_t group = measured.sized.candidate.group_tokens;
      const std::vector<double>& turns = cases_[group].turns_ms;
      return turns[std::min(n_turns_[group]++, turns.size() - 1)];
    };
    input.best_policy = [](const SizedCandidate&) { return std::string("fifo"); };
    input.is_late = [this] { return is_late_; };
    input.tell = [this](const std::string&, uint64_t done, uint64_t total) {
      EXPECT_LT(done, total);
      return told_;
    };
    return ChooseFinally(answer, input);
  }

  std::map<uint32_t, Case> cases_;
  std::map<uint32_t, size_t> n_turns_;
  size_t n_held_out_ = 0;
  bool is_late_ = false;
  Status told_;
};

TEST_F(OfflineFinalChoice, TheFastestInTurnsIsTaken) {
  const FinalChoice choice = Choose({{kOwn, 0.010, 10, 0.012, {10}},
                                     {8, 0.009, 8, 0.010, {7, 9, 9, 9, 7}},
                                     {16, 0.009, 9, 0.010, {8, 8, 30, 8, 1}}})
                                 .value();
  EXPECT_EQ(choice.chosen.sized.candidate.group_tokens, 16U) << "by medians, not by what seemed likely";
  EXPECT_EQ(choice.measured_ms, 8.0);
  EXPECT_EQ(choice.own_measured_ms, 10.0);
  EXPECT_EQ(choice.held_out_kl, 0.010);
  EXPECT_EQ(choice.own_held_out_kl, 0.012);
  EXPECT_DOUBLE_EQ(choice.kl_limit, 0.95 * 0.011) << "of what own has on all parts";
  EXPECT_EQ(choice.chosen.quality.kl, 0.009);
  EXPECT_EQ(choice.chosen.sized.candidate.policy, "fifo");
  EXPECT_FALSE(choice.is_own);
  EXPECT_EQ(n_turns_[8], 5U);
}

TEST_F(OfflineFinalChoice, WhatWasLuckyInTheSearchIsRefused) {
  const FinalChoice choice =
      Choose({{kOwn, 0.010, 10, 0.010, {10}}, {8, 0.0090, 8, 0.0101, {8}}, {16, 0.0093, 9, 0.0096, {9}}})
          .value();
  EXPECT_EQ(choice.chosen.sized.candidate.group_tokens, 16U) << "0.955 of the own choice is more than 0.95";
  EXPECT_EQ(n_turns_[8], 0U);
  EXPECT_EQ(n_held_out_, 3U);
  EXPECT_EQ(choice.n_refused, 1U);
  EXPECT_TRUE(choice.is_within_limit);
}

TEST_F(OfflineFinalChoice, AKlThatIsNegligibleIsNotCompared) {
  const std::vector<Case> cases = {
      {kOwn, 1e-8, 10, 1e-8, {10}}, {8, 5e-5, 8, 9e-5, {8}}, {16, 5e-5, 7, 3e-4, {7}}};
  EXPECT_EQ(Choose(cases)->chosen.sized.candidate.group_tokens, 8U);
}

TEST_F(OfflineFinalChoice, WhereNoneIsConfirmedOrFasterTheOwnChoiceIsTaken) {
  const std::vector<Case> unlucky = {{kOwn, 0.010, 10, 0.010, {10}}, {8, 0.009, 8, 0.0110, {8}}};
  EXPECT_TRUE(Choose(unlucky)->is_own);
  const std::vector<Case> slow = {{kOwn, 0.010, 10, 0.010, {10}}, {8, 0.009, 8, 0.0090, {10.1}}};
  const FinalChoice choice = Choose(slow).value();
  EXPECT_TRUE(choice.is_own);
  EXPECT_EQ(choice.measured_ms, 10.0);
  EXPECT_NE(choice.chosen.sized.candidate.policy, "fifo") << "it stays what it is";
}

TEST_F(OfflineFinalChoice, OfThoseThatAreHardlySlowerTheOneOfLeastKlIsTaken) {
  const FinalChoice choice = Choose({{kOwn, 0.010, 10, 0.010, {10}},
                                     {8, 0.0094, 9, 0.0094, {9.0}},
                                     {16, 0.0080, 9, 0.0080, {9.2}},
                                     {32, 0.0010, 9, 0.0010, {9.9}}})
                                 .value();
  EXPECT_EQ(choice.chosen.sized.candidate.group_tokens, 16U);
}

TEST_F(OfflineFinalChoice, AGivenLimitIsForTheMeanOfAllParts) {
  const std::vector<Case> cases = {
      {kOwn, 0.030, 10, 0.030, {5}}, {8, 0.018, 8, 0.023, {8}}, {16, 0.018, 9, 0.021, {9}}};
  const FinalChoice choice = Choose(cases, false, 0.02).value();
  EXPECT_EQ(choice.chosen.sized.candidate.group_tokens, 16U) << "own is faster, but not within the limit";
  EXPECT_EQ(choice.kl_limit, 0.02);
  EXPECT_EQ(choice.own_measured_ms, 5.0);
  const FinalChoice nearest = Choose(cases, false, 0.019).value();
  EXPECT_FALSE(nearest.is_within_limit);
  EXPECT_EQ(nearest.n_refused, 2U);
  EXPECT_EQ(nearest.chosen.sized.candidate.group_tokens, 16U)
      << "none is: the one of least KL, whatever the own choice has";
}

TEST_F(OfflineFinalChoice, AGivenLimitHoldsForTheOwnChoiceToo) {
  const FinalChoice choice =
      Choose({{kOwn, 0.010, 5, 0.050, {5}}, {8, 0.012, 8, 0.012, {8}}}, true, 0.02).value();
  EXPECT_EQ(choice.chosen.sized.candidate.group_tokens, 8U) << "own's mean is 0.03";
  EXPECT_TRUE(choice.is_within_limit);
  const FinalChoice own =
      Choose({{kOwn, 0.010, 5, 0.020, {5}}, {8, 0.012, 8, 0.012, {8}}}, true, 0.02).value();
  EXPECT_TRUE(own.is_own);
  EXPECT_TRUE(own.is_within_limit);
  const FinalChoice none =
      Choose({{kOwn, 0.010, 5, 0.050, {5}}, {8, 0.012, 8, 0.060, {8}}}, true, 0.02).value();
  EXPECT_TRUE(none.is_own) << "its mean is the least";
  EXPECT_FALSE(none.is_within_limit);
}

TEST_F(OfflineFinalChoice, WhereNoneOfTheFastestKeepsALimitThoseOfLeastKlAreTried) {
  std::vector<Case> cases = {{kOwn, 0.030, 10, 0.030, {10}}};
  for (uint32_t i = 0; i < 10; ++i) cases.push_back({100 + i, 0.0199 - 1e-4 * i, 5.0 + i, 0.021, {5.0 + i}});
  cases.push_back({7, 0.010, 15, 0.012, {15}});
  const FinalChoice choice = Choose(cases, false, 0.02).value();
  EXPECT_TRUE(choice.is_within_limit);
  EXPECT_EQ(choice.chosen.sized.candidate.group_tokens, 7U);
  EXPECT_EQ(choice.n_refused, 6U);
  EXPECT_EQ(n_held_out_, 8U);
  // Where the own choice keeps it, the slower ones are not needed.
  cases[0] = {kOwn, 0.015, 10, 0.015, {10}};
  n_held_out_ = 0;
  EXPECT_TRUE(Choose(cases, true, 0.02)->is_own);
  EXPECT_EQ(n_held_out_, 7U);
}

TEST_F(OfflineFinalChoice, FewTakeTurnsAndFewerTurnsWhereItIsLate) {
  std::vector<Case> cases = {{kOwn, 0.010, 10, 0.010, {10}}};
  for (uint32_t group = 100; group < 120; ++group)
    cases.push_back({group, 0.005, group / 10.0, group < 104 ? 0.02 : 0.005, {8}});
  ASSERT_TRUE(Choose(cases).ok());
  EXPECT_EQ(n_held_out_, 7U) << "the own choice and the six that seem fastest";
  EXPECT_EQ(n_turns_[104], 5U);
  EXPECT_EQ(n_turns_[105], 5U);
  is_late_ = true;
  ASSERT_TRUE(Choose(cases).ok());
  EXPECT_EQ(n_held_out_, 7U + 6U) << "none after the first that is confirmed";
  EXPECT_EQ(n_turns_[104], 1U);
  EXPECT_EQ(n_turns_[105], 0U);
  EXPECT_EQ(n_turns_[103], 0U);
  EXPECT_EQ(n_turns_[106], 0U);
}

TEST_F(OfflineFinalChoice, CancellingEndsIt) {
  told_ = Status(StatusCode::kCancelled, "cancelled");
  EXPECT_EQ(Choose({{kOwn, 0.010, 10, 0.010, {10}}}).status().code(), StatusCode::kCancelled);
  EXPECT_EQ(n_held_out_, 0U);
}

}  // namespace
}  // namespace kvrun::offline
