#include "runtime/engine/pass/step_parts.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

namespace kvrun {
namespace {

constexpr uint32_t kPartsVocab = 3;

// Says which parts there were; a row's logits are its token id.
struct PartsSeen {
  std::string text;
  int fail_at = -1;
  int n = 0;

  StepParts::Compute compute() {
    return [this](const StepPart& part, std::span<const uint32_t> outputs, std::span<float> logits) {
      text +=
          (part.is_prompt ? "prompt" : "rows") + std::string(" after ") + std::to_string(part.n_before) + ":";
      for (const StepRow& row : part.rows) {
        text += " " + std::to_string(row.sequence) + "/" + std::to_string(row.position);
      }
      text += "\n";
      EXPECT_EQ(logits.size(), outputs.size() * kPartsVocab);
      for (size_t i = 0; i < logits.size(); ++i) {
        logits[i] = static_cast<float>(part.rows[outputs[i / kPartsVocab]].id);
      }
      return n++ == fail_at ? Status(StatusCode::kIo, "the part failed") : Status::Ok();
    };
  }
};

ForwardStep StepOfAllKinds() {
  ForwardStep step;
  step.Add(SpanKind::kVerify, std::vector<TokenId>{10, 11, 12}, 40, 4);
  step.Add(SpanKind::kPrompt, std::vector<TokenId>{20, 21}, 0, 1);
  step.Add(SpanKind::kDecode, {30, 7, 0});
  step.Add(SpanKind::kPrompt, std::vector<TokenId>{50, 51}, 9, 2);
  step.Add(SpanKind::kVerify, std::vector<TokenId>{60, 61}, 5, 3);
  return step;
}

TEST(ForwardStep, RowsThatGoOnAreOneSpan) {
  ForwardStep step;
  step.Add(SpanKind::kPrompt, {1, 5, 0});
  step.Add(SpanKind::kPrompt, {2, 6, 0});
  step.Add(SpanKind::kPrompt, {3, 8, 0});  // leaves a gap
  step.Add(SpanKind::kVerify, {4, 9, 0});  // another kind
  step.Add(SpanKind::kVerify, {4, 10, 1});
  ASSERT_EQ(step.kv().spans.size(), 4U);
  EXPECT_EQ(step.kv().spans[0].n_rows, 2U);
  EXPECT_EQ(step.kv().spans[0].end(), 7U);
  EXPECT_EQ(step.kv().n_rows(), step.size());
  EXPECT_FALSE(step.is_one_prompt());
  step.Clear();
  EXPECT_TRUE(step.empty() && step.kv().spans.empty());
}

TEST(StepParts, PromptsComeFirstAndThenTheOthersRowByRow) {
  PartsSeen seen;
  std::vector<float> logits(6 * kPartsVocab);
  const std::vector<uint32_t> outputs = {9, 0, 4, 5, 2, 7};  // in an order of their own
  ASSERT_TRUE(StepParts(kPartsVocab).Run(StepOfAllKinds(), outputs, logits, seen.compute()).ok());
  EXPECT_EQ(seen.text,
            "prompt after 0: 1/0 1/1\n"
            "prompt after 2: 2/9 2/10\n"
            "rows after 4: 4/40 0/7 3/5\n"
            "rows after 7: 4/41 3/6\n"
            "rows after 9: 4/42\n");
  std::vector<float> expected;
  for (const float id : {61.0F, 10.0F, 21.0F, 30.0F, 12.0F, 51.0F})
    expected.insert(expected.end(), kPartsVocab, id);
  EXPECT_EQ(logits, expected);
}

TEST(StepParts, WhatIsOnePartIsHandedOnAsItIs) {
  ForwardStep prompt;
  prompt.Add(SpanKind::kPrompt, std::vector<TokenId>{1, 2}, 0, 0);
  ForwardStep tokens(SpanKind::kDecode, {1, 3, 0});
  tokens.Add(SpanKind::kVerify, {2, 4, 1});
  for (const ForwardStep& step : {prompt, tokens}) {
    std::vector<float> logits(kPartsVocab);
    const uint32_t output = 1;
    bool is_same = false;
    const Status status =
        StepParts(kPartsVocab)
            .Run(step, {&output, 1}, logits,
                 [&](const StepPart& part, std::span<const uint32_t> outputs, std::span<float> to) {
                   is_same = part.rows.data() == step.rows().data() && part.rows.size() == 2 &&
                             outputs.data() == &output && to.data() == logits.data();
                   return Status::Ok();
                 });
    EXPECT_TRUE(status.ok());
    EXPECT_TRUE(is_same);
  }
}

TEST(StepParts, SayHowFarTheStepIs) {
  const ForwardStep step = StepOfAllKinds();
  size_t n_done = 0;
  const auto compute = [&](const StepPart& part, std::span<const uint32_t>, std::span<float>) {
    EXPECT_EQ(part.n_before, n_done);
    EXPECT_EQ(part.n_of_step, step.size());
    n_done += part.rows.size();
    return Status::Ok();
  };
  ASSERT_TRUE(StepParts(kPartsVocab).Run(step, {}, {}, compute).ok());
  EXPECT_EQ(n_done, step.size());
}

TEST(StepParts, TheFirstErrorEndsIt) {
  PartsSeen seen;
  seen.fail_at = 2;
  EXPECT_EQ(StepParts(kPartsVocab).Run(StepOfAllKinds(), {}, {}, seen.compute()).code(), StatusCode::kIo);
  EXPECT_EQ(seen.n, 3);
}

}  // namespace
}  // namespace kvrun
