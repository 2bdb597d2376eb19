// The test model against another runtime: 48 rows of logits and the likelihood of every token of a long text.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "tests/support/engine_fixture.h"
#include "tests/support/or_die.h"
#include "tests/support/reference_files.h"

namespace kvrun::testing {
namespace {

constexpr size_t kShort = 2048;  // ids of the text that the quick tests read
constexpr size_t kLong = 8192;

// Positions whose logits the file holds, in its order.
struct Rows {
  size_t begin;
  size_t end;
  size_t at;  // in the file
};
constexpr Rows kFirstRows{2032, 2048, 0};
constexpr Rows kLastRows{8160, 8192, 16};

double Perplexity(std::span<const float> nll) {
  return std::exp(std::accumulate(nll.begin(), nll.end(), 0.0) / static_cast<double>(nll.size()));
}

float NegativeLogLikelihood(std::span<const float> logits, int id) {
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
  return static_cast<float>(std::log(sum) - static_cast<double>(logits[static_cast<size_t>(id)]));
}

struct Evaluation {
  std::vector<float> nll;         // of ids 1, 2, ...
  std::vector<float> first_rows;  // logits of kFirstRows
  std::vector<float> last_rows;   // of kLastRows
};

class Evaluator {
 public:
  Evaluator(ForwardPass& pass, std::span<const int> ids) : pass_(pass), ids_(ids) {}

  Evaluation Run() {
    for (size_t begin = 0; begin < ids_.size(); begin += pass_.max_rows()) {
      const size_t n = std::min<size_t>(pass_.max_rows(), ids_.size() - begin);
      ForwardStep rows;
      for (size_t i = 0; i < n; ++i)
        rows.Add(n == 1 ? SpanKind::kDecode : SpanKind::kPrompt,
                 {ids_[begin + i], static_cast<uint32_t>(begin + i), 0});
      const Status status = pass_.Run(rows, {}, {});
      if (!status.ok()) ADD_FAILURE() << status.message();
      TakeLogits(begin, static_cast<uint32_t>(n));
    }
    return std::move(result_);
  }

 private:
  void TakeLogits(size_t begin, uint32_t n) {
    std::vector<float> logits;
    for (uint32_t at = 0; at < n; at += pass_.max_output_rows()) {
      std::vector<uint32_t> outputs(std::min(pass_.max_output_rows(), n - at));
      std::iota(outputs.begin(), outputs.end(), at);
      logits.resize(outputs.size() * pass_.n_vocab());
      const Status status = pass_.MoreLogits(outputs, logits);
      if (!status.ok()) ADD_FAILURE() << status.message();
      for (size_t i = 0; i < outputs.size(); ++i) {
        TakeRow(begin + outputs[i], std::span(logits).subspan(i * pass_.n_vocab(), pass_.n_vocab()));
      }
    }
  }

  void TakeRow(size_t position, std::span<const float> logits) {
    const auto append = [&](const Rows& rows, std::vector<float>* to) {
      if (position >= rows.begin && position < rows.end) to->insert(to->end(), logits.begin(), logits.end());
    };
    append(kFirstRows, &result_.first_rows);
    append(kLastRows, &result_.last_rows);
    if (position + 1 < ids_.size()) result_.nll.push_back(NegativeLogLikelihood(logits, ids_[position + 1]));
  }

  ForwardPass& pass_;
  std::span<const int> ids_;
  Evaluation result_;
};

class SmolLm2Reference : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto folder = SharedPath("reference/smollm2");
    const auto model = TestModelPath();
    if (!folder || !model) GTEST_SKIP() << "the test model or its reference is not here";
    device_ = OpenOrSkip();
    if (device_ == nullptr) GTEST_SKIP() << "no device";
    ids_ = ReadIds(*folder + "/moby.ids");
    nll_ = ReadFloats(*folder + "/moby.nll");
    logits_ = ReadFloats(*folder + "/moby.logits");
    loaded_ = LoadModelOrDie(*model, device_);
    n_vocab_ = loaded_.model->config.n_vocab;
    ASSERT_EQ(ids_.size(), kLong);
    ASSERT_EQ(nll_.size(), kLong - 1);
    ASSERT_EQ(logits_.size(), size_t{48} * n_vocab_);
  }

  virtual Device* OpenOrSkip() { return SharedDevice(); }

  // Checks the perplexity of the first n ids, relative to the reference's.
  Evaluation Evaluate(size_t n, KvType kv_type, double tolerance = 1e-3) {
    const auto pass = loaded_.NewPass({.n_ctx = static_cast<uint32_t>(n), .kv_type = kv_type});
    Evaluation result = Evaluator(*pass, std::span(ids_).first(n)).Run();
    const double ours = Perplexity(result.nll);
    const double reference = Perplexity(std::span(nll_).first(result.nll.size()));
    EXPECT_NEAR(ours / reference, 1.0, tolerance) << "perplexity " << ours << ", reference " << reference;
    RecordProperty("perplexity", std::to_string(ours));
    RecordProperty("perplexity_reference", std::to_string(reference));
    return result;
  }

  LogitsDifference Difference(const Rows& rows, const std::vector<float>& ours) {
    const auto reference =
        std::span<const float>(logits_).subspan(rows.at * n_vocab_, (rows.end - rows.begin) * n_vocab_);
    const LogitsDifference difference = CompareLogits(reference, ours, n_vocab_);
    const std::string name = "from_" + std::to_string(rows.begin);
    RecordProperty("max_absolute_" + name, std::to_string(difference.max_absolute));
    RecordProperty("mean_kl_" + name, fmt::format("{:.3g}", difference.mean_kl));
    return difference;
  }

  void ExpectClose(const Rows& rows, const std::vector<float>& ours) {
    const LogitsDifference difference = Difference(rows, ours);
    EXPECT_LE(difference.max_absolute, 0.02);
    EXPECT_LE(difference.mean_kl, 1e-5);
    EXPECT_EQ(difference.wrong_top1, 0U);
  }

  static bool IsLongRun() {
    const char* value = std::getenv("KVRUN_LONG_TESTS");
    return value != nullptr && std::string(value) == "1";
  }

  Device* device_ = nullptr;
  std::vector<int> ids_;
  std::vector<float> nll_;
  std::vector<float> logits_;
  LoadedModel loaded_;
  size_t n_vocab_ = 0;
};

TEST_F(SmolLm2Reference, TwoThousandTokens) {
  if (IsLongRun()) GTEST_SKIP() << "the whole text is read instead";
  ExpectClose(kFirstRows, Evaluate(kShort, KvType::kF32).first_rows);
}

TEST_F(SmolLm2Reference, EightThousandTokens) {
  if (!IsLongRun()) GTEST_SKIP() << "takes minutes: set KVRUN_LONG_TESTS=1";
  const Evaluation ours = Evaluate(kLong, KvType::kF32);
  ExpectClose(kFirstRows, ours.first_rows);
  ExpectClose(kLastRows, ours.last_rows);
}

TEST_F(SmolLm2Reference, TwoThousandTokensInFloat16) {
  if (!IsLongRun()) GTEST_SKIP() << "takes a minute: set KVRUN_LONG_TESTS=1";
  EXPECT_LE(Difference(kFirstRows, Evaluate(kShort, KvType::kF16).first_rows).mean_kl, 1e-3);
}

// The CPU as a device with what it does by default, KV as float16 included.
class SmolLm2RoundedActivations : public SmolLm2Reference {
 protected:
  Device* OpenOrSkip() override {
    OpenDeviceOptions options = DeviceOptionsHere();
    if (options.device != "host") return nullptr;
    options.exact_activations = false;
    own_device_ = OrDie(OpenDevice(options));
    return own_device_.get();
  }
  void TearDown() override { loaded_ = {}; }

  std::unique_ptr<Device> own_device_;
};

TEST_F(SmolLm2RoundedActivations, ReferenceLogits) {
  const Evaluation ours = Evaluate(kLong, KvType::kF16, 5e-3);
  for (const auto& [rows, logits] :
       {std::pair(kFirstRows, &ours.first_rows), std::pair(kLastRows, &ours.last_rows)}) {
    const LogitsDifference difference = Difference(rows, *logits);
    EXPECT_LE(difference.mean_kl, 2e-3);
    EXPECT_GT(difference.mean_kl, 1e-5) << "nothing was rounded";
  }
}

}  // namespace
}  // namespace kvrun::testing
