// Models of every architecture against another runtime's logits (../shared/reference/arch), and against
// themselves: a text at once, in parts, one by one, four at a time, and after going back.
#include <gtest/gtest.h>

#include <span>
#include <string>
#include <vector>

#include "tests/support/architecture_fixture.h"

namespace kvrun::testing {
namespace {

class ArchitectureReference : public ArchitectureFixture {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ArchitectureReference);

TEST_P(ArchitectureReference, Float32KvAgrees) {
  const std::vector<float> logits = AtOnce(*NewPass(), n_reference());
  const double difference = Difference(reference_, logits);
  RecordProperty("max_absolute", std::to_string(difference));
  EXPECT_LE(difference, 1e-3);
}

TEST_P(ArchitectureReference, Float16KvAgrees) {
  EXPECT_LE(Difference(reference_, AtOnce(*NewPass(KvType::kF16), n_reference())), 0.03);
}

TEST_P(ArchitectureReference, InPartsAndOneByOneIsAtOnce) {
  const auto whole = NewPass();
  const std::vector<float> expected = AtOnce(*whole, 1);
  const auto parts = NewPass();
  RunSpan(*parts, SpanKind::kPrompt, 0, kFirstPart);
  EXPECT_LE(Difference(expected, RunSpan(*parts, SpanKind::kPrompt, kFirstPart, ids_.size())), 1e-4);
  const auto singly = NewPass();
  RunSpan(*singly, SpanKind::kPrompt, 0, kFirstPart);
  std::vector<float> last;
  for (size_t i = kFirstPart; i < ids_.size(); ++i) last = RunSpan(*singly, SpanKind::kDecode, i, i + 1);
  EXPECT_LE(Difference(expected, last), 1e-3);
}

// What a state has read is not taken back: it is read again, up to there.
TEST_P(ArchitectureReference, GoesBackToAnyLength) {
  const auto pass = NewPass();
  AtOnce(*pass, 1);
  for (const size_t length : {size_t{200}, size_t{kFirstPart}, size_t{1}, size_t{64}, size_t{0}}) {
    const auto fresh = NewPass();
    if (length > 0) RunSpan(*fresh, SpanKind::kPrompt, 0, length);
    const std::vector<float> expected = RunSpan(*fresh, SpanKind::kDecode, length, length + 1);
    EXPECT_LE(Difference(expected, RunSpan(*pass, SpanKind::kDecode, length, length + 1)), 1e-3) << length;
    RunSpan(*pass, SpanKind::kPrompt, length + 1, ids_.size());
  }
}

// Four sequences that differ in length: each is what it is alone.
TEST_P(ArchitectureReference, ABatchIsEachAlone) {
  constexpr uint32_t kSequences = 4;
  const auto together = NewPass(KvType::kF32, kSequences);
  std::vector<size_t> lengths;
  for (uint32_t s = 0; s < kSequences; ++s) {
    lengths.push_back(60 + 35 * s);
    RunSpan(*together, SpanKind::kPrompt, 0, lengths[s], s);
  }
  for (int round = 0; round < 3; ++round) {
    ForwardStep step;
    std::vector<uint32_t> outputs;
    for (uint32_t s = 0; s < kSequences; ++s) {
      step.Add(SpanKind::kDecode, {ids_[lengths[s]], static_cast<uint32_t>(lengths[s]), s});
      outputs.push_back(s);
      ++lengths[s];
    }
    std::vector<float> logits(kSequences * n_vocab_);
    const Status status = together->Run(step, outputs, logits);
    ASSERT_TRUE(status.ok()) << status.message();
    for (uint32_t s = 0; s < kSequences && round == 2; ++s) {
      const auto alone = NewPass();
      RunSpan(*alone, SpanKind::kPrompt, 0, lengths[s] - 3);
      std::vector<float> expected;
      for (size_t i = lengths[s] - 3; i < lengths[s]; ++i)
        expected = RunSpan(*alone, SpanKind::kDecode, i, i + 1);
      EXPECT_LE(Difference(expected, std::span(logits).subspan(s * n_vocab_, n_vocab_)), 3e-4) << s;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shared, ArchitectureReference, ::testing::ValuesIn(ArchitectureCases()),
                         ArchitectureName);

}  // namespace
}  // namespace kvrun::testing
