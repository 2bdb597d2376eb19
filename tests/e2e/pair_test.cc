// A Vulkan device and the CPU as one: prompts on the first, decoding on the second, in one conversation.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "runtime/device/open_device.h"
#include "runtime/engine/forward/create_forward_pass.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/or_die.h"
#include "tests/support/reference_files.h"
#include "tests/support/small_models.h"

namespace kvrun::testing {
namespace {

constexpr const char* kPair = "vulkan+host";

uint64_t BytesOf(const Device& device, const std::string& name) {
  uint64_t bytes = 0;
  for (const Device::MemoryPart& part : device.MemoryInUse()) bytes += part.part == name ? part.bytes : 0;
  return bytes;
}

// A device with a model on it.
struct Loaded {
  std::unique_ptr<Device> device;
  std::unique_ptr<Model> model;
  std::shared_ptr<const DeviceWeights> weights;

  std::unique_ptr<ForwardPass> NewPass(const ForwardPassOptions& options) const {
    return OrDie(CreateForwardPass(*model, weights, *device, options));
  }
};

Loaded Load(const std::string& device, const std::string& path) {
  Loaded loaded;
  loaded.device = OrDie(OpenDevice({.device = device, .profile = true, .exact_activations = true}));
  loaded.model = OrDie(OpenModel(path));
  loaded.weights = OrDie(LoadDeviceWeights(*loaded.model, *loaded.device, {}));
  return loaded;
}

struct Case {
  std::string name;
  std::string model;
  std::string ids;
  std::string logits;
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  const auto add = [&cases](const std::string& name, const std::string& model, const std::string& ids,
                            const std::string& logits) {
    const auto path = SharedPath(model);
    if (path) cases.push_back({name, *path, *SharedPath(ids), *SharedPath(logits)});
  };
  add("stories260K", "models/stories260K.gguf", "reference/stories260K/stories.ids",
      "reference/stories260K/stories.logits");
  add("llama_odd", "reference/tiny/llama-odd-Q4_1.gguf", "reference/tiny/llama-odd.ids",
      "reference/tiny/llama-odd-Q4_1.logits");
  return cases;
}

class Pair : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!OpenDevice({.device = "vulkan"}).ok()) GTEST_SKIP() << "no Vulkan driver";
  }
};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Pair);
INSTANTIATE_TEST_SUITE_P(Shared, Pair, ::testing::ValuesIn(Cases()),
                         [](const auto& param) { return param.param.name; });

// Two turns, each a prompt and then some tokens: what either device writes, the other reads. Logits of the
// last row of each step that the reference has.
TEST_P(Pair, TwoTurnsAgreeWithTheReference) {
  const Loaded loaded = Load(kPair, GetParam().model);
  const std::vector<int> ids = ReadIds(GetParam().ids);
  const std::vector<float> reference = ReadFloats(GetParam().logits);
  const size_t n_vocab = loaded.model->config.n_vocab;
  const size_t first_known = ids.size() - reference.size() / n_vocab;
  const size_t turn = ids.size() / 2;
  constexpr size_t kReply = 12;
  ASSERT_GT(turn, kReply + 2 * 16);
  const auto pass = loaded.NewPass({.n_ctx = static_cast<uint32_t>(ids.size()), .kv_type = KvType::kF32});

  std::vector<float> expected;
  std::vector<float> found;
  size_t n_prompts_known = 0;
  const auto feed = [&](size_t begin, size_t end) {
    const std::vector<float> logits = Feed(*pass, ids, begin, end, pass->max_rows());
    if (end - 1 < first_known) return false;
    const auto row = reference.begin() + static_cast<std::ptrdiff_t>((end - 1 - first_known) * n_vocab);
    expected.insert(expected.end(), row, row + static_cast<std::ptrdiff_t>(n_vocab));
    found.insert(found.end(), logits.begin(), logits.end());
    return true;
  };
  for (const size_t begin : {size_t{0}, turn}) {
    const size_t end = begin == 0 ? turn : ids.size();
    n_prompts_known += feed(begin, end - kReply) ? 1 : 0;
    for (size_t i = end - kReply; i < end; ++i) feed(i, i + 1);
  }
  EXPECT_GE(n_prompts_known, 1U) << "nothing was said of a prompt's logits";
  ASSERT_GE(found.size() / n_vocab, kReply + n_prompts_known);
  const LogitsDifference difference = CompareLogits(expected, found, n_vocab);
  EXPECT_LE(difference.max_absolute, 0.02);
  EXPECT_LE(difference.mean_kl, 1e-5);
  EXPECT_EQ(difference.wrong_top1, 0U);

  uint64_t decoding = 0;
  uint64_t prefill = 0;
  for (const OperationTime& time : loaded.device->TakeOperationTimes()) {
    (time.name.starts_with("decode: ") ? decoding : prefill) += time.count;
  }
  EXPECT_GT(decoding, 0U);
  EXPECT_GT(prefill, 0U);
}

TEST_P(Pair, WeightsAreHeldTwiceAndSaidSo) {
  const Loaded pair = Load(kPair, GetParam().model);
  const Loaded vulkan = Load("vulkan", GetParam().model);
  const Loaded host = Load("host", GetParam().model);
  const uint64_t of_both = BytesOf(*vulkan.device, "weights") + BytesOf(*host.device, "weights");
  // Norms and biases are buffers, of which there is one.
  EXPECT_LE(BytesOf(*pair.device, "weights"), of_both);
  EXPECT_GE(BytesOf(*pair.device, "weights"), of_both * 9 / 10);
  const auto& notes = pair.device->info().notes;
  EXPECT_TRUE(std::any_of(notes.begin(), notes.end(), [](const std::string& note) {
    return note.find("weights are held twice") != std::string::npos;
  }));

  const ForwardPassOptions options{.n_ctx = 512, .kv_type = KvType::kF16};
  const auto pair_pass = pair.NewPass(options);
  const auto vulkan_pass = vulkan.NewPass(options);
  EXPECT_GT(BytesOf(*vulkan.device, "kv"), 0U);
  EXPECT_EQ(BytesOf(*pair.device, "kv"), BytesOf(*vulkan.device, "kv"));
}

}  // namespace
}  // namespace kvrun::testing
