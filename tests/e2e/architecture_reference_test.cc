// Models of every architecture against another runtime's logits (../shared/reference/arch), and against
// themselves: a text at once, in parts, one by one, four at a time, and after going back.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tests/support/engine_fixture.h"
#include "tests/support/reference_files.h"

namespace kvrun::testing {
namespace {

constexpr uint32_t kRoom = 512;  // context: long factors are chosen by it, as the reference did
constexpr uint32_t kFirstPart = 130;

struct Case {
  std::string model;
  std::string ids;
  std::string logits;
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  const auto folder = SharedPath("reference/arch");
  if (!folder) return cases;
  for (const auto& entry : std::filesystem::directory_iterator(*folder)) {
    if (entry.path().extension() != ".gguf") continue;
    const std::string stem = entry.path().stem().string();
    const std::string base = *folder + "/" + stem.substr(0, stem.rfind('-'));
    cases.push_back({entry.path().string(), base + ".ids", *folder + "/" + stem + ".logits"});
  }
  std::sort(cases.begin(), cases.end(), [](const Case& a, const Case& b) { return a.model < b.model; });
  return cases;
}

class ArchitectureReference : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (SharedDevice() == nullptr) GTEST_SKIP() << "no device";
    loaded_ = LoadModelOrDie(GetParam().model);
    ids_ = ReadIds(GetParam().ids);
    reference_ = ReadFloats(GetParam().logits);
    n_vocab_ = loaded_.model->config.n_vocab;
  }

  std::unique_ptr<ForwardPass> NewPass(KvType type = KvType::kF32, uint32_t n_sequences = 1) const {
    return loaded_.NewPass({.n_sequences = n_sequences, .n_ctx = kRoom, .kv_type = type});
  }
  size_t n_reference() const { return reference_.size() / n_vocab_; }

  // Logits of the rows of one span; all, or the last alone.
  std::vector<float> RunSpan(ForwardPass& pass, SpanKind kind, size_t begin, size_t end,
                             uint32_t sequence = 0, size_t n_outputs = 1) const {
    std::vector<float> logits;
    for (size_t at = begin; at < end;) {
      const size_t n = std::min<size_t>(end - at, pass.max_rows());
      ForwardStep step;
      for (size_t i = at; i < at + n; ++i) step.Add(kind, {ids_[i], static_cast<uint32_t>(i), sequence});
      std::vector<uint32_t> outputs;
      for (size_t i = at; i < at + n; ++i) {
        if (i + n_outputs >= end) outputs.push_back(static_cast<uint32_t>(i - at));
      }
      std::vector<float> some(outputs.size() * n_vocab_);
      const size_t most = pass.max_output_rows();
      const size_t n_first = std::min(outputs.size(), most);
      Status status =
          pass.Run(step, std::span(outputs).first(n_first), std::span(some).first(n_first * n_vocab_));
      for (size_t done = n_first; status.ok() && done < outputs.size(); done += most) {
        const size_t n_more = std::min(outputs.size() - done, most);
        status = pass.MoreLogits(std::span(outputs).subspan(done, n_more),
                                 std::span(some).subspan(done * n_vocab_, n_more * n_vocab_));
      }
      if (!status.ok()) ADD_FAILURE() << status.message();
      logits.insert(logits.end(), some.begin(), some.end());
      at += n;
    }
    return logits;
  }
  std::vector<float> AtOnce(ForwardPass& pass, size_t n_outputs) const {
    return RunSpan(pass, SpanKind::kPrompt, 0, ids_.size(), 0, n_outputs);
  }
  double Difference(std::span<const float> expected, std::span<const float> found) const {
    return CompareLogits(expected, std::vector<float>(found.begin(), found.end()), n_vocab_).max_absolute;
  }

  LoadedModel loaded_;
  std::vector<int> ids_;
  std::vector<float> reference_;
  size_t n_vocab_ = 0;
};
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
      EXPECT_LE(Difference(expected, std::span(logits).subspan(s * n_vocab_, n_vocab_)), 1e-4) << s;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shared, ArchitectureReference, ::testing::ValuesIn(Cases()), [](const auto& param) {
  std::string name = std::filesystem::path(param.param.model).stem().string();
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return name;
});

}  // namespace
}  // namespace kvrun::testing
