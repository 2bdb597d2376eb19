// Logits against another runtime's, computed from the same weights in float32.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "tests/support/engine_fixture.h"
#include "tests/support/program_runner.h"
#include "tests/support/quantised_model.h"
#include "tests/support/reference_files.h"
#include "tests/support/tiny_model_file.h"

namespace kvrun::testing {
namespace {

struct Case {
  std::string model;
  std::string ids;
  std::string logits;
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  if (const auto folder = SharedPath("reference/tiny")) {
    for (const auto& entry : std::filesystem::directory_iterator(*folder)) {
      if (entry.path().extension() != ".gguf") continue;
      const std::string stem = entry.path().stem().string();
      const std::string base = *folder + "/" + stem.substr(0, stem.rfind('-'));
      cases.push_back({entry.path().string(), base + ".ids", *folder + "/" + stem + ".logits"});
    }
  }
  if (const auto model = SharedPath("models/stories260K.gguf")) {
    cases.push_back({*model, *SharedPath("reference/stories260K/stories.ids"),
                     *SharedPath("reference/stories260K/stories.logits")});
  }
  std::sort(cases.begin(), cases.end(), [](const Case& a, const Case& b) { return a.model < b.model; });
  return cases;
}

class ReferenceLogits : public ::testing::TestWithParam<Case> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ReferenceLogits);

TEST_P(ReferenceLogits, Float32KvAgreesClosely) {
  if (SharedDevice() == nullptr) GTEST_SKIP() << "no device";
  const LoadedModel loaded = LoadModelOrDie(GetParam().model);
  const std::vector<int> ids = ReadIds(GetParam().ids);
  const std::vector<float> reference = ReadFloats(GetParam().logits);
  const size_t n_vocab = loaded.model->config.n_vocab;
  const auto pass = loaded.NewPass({.n_ctx = static_cast<uint32_t>(ids.size()), .kv_type = KvType::kF32});
  const LogitsDifference difference =
      CompareLogits(reference, LogitsOf(*pass, ids, reference.size() / n_vocab), n_vocab);
  EXPECT_LE(difference.max_absolute, 0.02);
  EXPECT_LE(difference.mean_kl, 1e-5);
  EXPECT_EQ(difference.wrong_top1, 0U);
  RecordProperty("max_absolute", std::to_string(difference.max_absolute));
  RecordProperty("mean_kl", std::to_string(difference.mean_kl));
}

TEST_P(ReferenceLogits, Float16KvAgrees) {
  if (SharedDevice() == nullptr) GTEST_SKIP() << "no device";
  const LoadedModel loaded = LoadModelOrDie(GetParam().model);
  const std::vector<int> ids = ReadIds(GetParam().ids);
  const std::vector<float> reference = ReadFloats(GetParam().logits);
  const size_t n_vocab = loaded.model->config.n_vocab;
  const auto pass = loaded.NewPass({.n_ctx = static_cast<uint32_t>(ids.size()), .kv_type = KvType::kF16});
  const LogitsDifference difference =
      CompareLogits(reference, LogitsOf(*pass, ids, reference.size() / n_vocab), n_vocab);
  EXPECT_LE(difference.mean_kl, 1e-3);
}

INSTANTIATE_TEST_SUITE_P(Shared, ReferenceLogits, ::testing::ValuesIn(Cases()), [](const auto& param) {
  std::string name = std::filesystem::path(param.param.model).stem().string();
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
  return name;
});

// Of self-made models, whose matrices (the embedding and the output among them) are all of one type.
class TypeReferenceLogits : public ::testing::TestWithParam<TensorType> {
 protected:
  // Of the model on a device.
  LogitsDifference Difference(Device* device = nullptr) const {
    const TemporaryFolder folder;
    const LoadedModel loaded =
        LoadModelOrDie(WriteModel(folder, "model.gguf", QuantisedModel(GetParam()).Build()), device);
    const std::vector<int> ids = QuantisedModelIds();
    const std::vector<float> reference = ReadFloats(KeptPath(GetParam(), "logits"));
    const size_t n_vocab = loaded.model->config.n_vocab;
    const auto pass = loaded.NewPass({.n_ctx = static_cast<uint32_t>(ids.size()), .kv_type = KvType::kF32});
    // The prompt in one step, then one token a step: products with many tokens and with one.
    const size_t last = reference.size() / n_vocab;
    const size_t prompt = ids.size() - last / 2;
    const auto first = std::span(ids).first(prompt);
    std::vector<float> logits = LogitsOf(*pass, first, last - last / 2);
    for (size_t i = prompt; i < ids.size(); ++i) {
      const ForwardStep row(SpanKind::kDecode, {ids[i], static_cast<uint32_t>(i), 0});
      const uint32_t output = 0;
      std::vector<float> one(n_vocab);
      const Status status = pass->Run(row, {&output, 1}, one);
      if (!status.ok()) ADD_FAILURE() << status.message();
      logits.insert(logits.end(), one.begin(), one.end());
    }
    const LogitsDifference difference = CompareLogits(reference, logits, n_vocab);
    RecordProperty("max_absolute", std::to_string(difference.max_absolute));
    RecordProperty("mean_kl", std::to_string(difference.mean_kl));
    return difference;
  }
};

TEST_P(TypeReferenceLogits, Float32KvAgreesClosely) {
  if (SharedDevice() == nullptr) GTEST_SKIP() << "no device";
  const LogitsDifference difference = Difference();
  EXPECT_LE(difference.max_absolute, 0.02);
  EXPECT_LE(difference.mean_kl, 1e-5);
  EXPECT_EQ(difference.wrong_top1, 0U);
}

// What rounded activations cost.
TEST_P(TypeReferenceLogits, RoundedActivationsAgree) {
  OpenDeviceOptions options;
  options.device = "host";
  auto device = OpenDevice(options);
  ASSERT_TRUE(device.ok()) << device.status().message();
  const LogitsDifference difference = Difference(device->get());
  EXPECT_LE(difference.mean_kl, 1e-3);
}

INSTANTIATE_TEST_SUITE_P(Types, TypeReferenceLogits, ::testing::ValuesIn(kKeptTypes),
                         [](const auto& param) { return std::string(TensorTypeName(param.param)); });

}  // namespace
}  // namespace kvrun::testing
