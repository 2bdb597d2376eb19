// A device whose memory does not suffice, at each of its allocations, one after another: a clear error, after
// which the same pass, or a new one where there is none yet, says what is said without it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/engine/forward/create_forward_pass.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/failing_device.h"
#include "tests/support/or_die.h"
#include "tests/support/program_runner.h"
#include "tests/support/small_models.h"

namespace kvrun::testing {
namespace {

constexpr uint32_t kAllocationContext = 400;
// Positions that are given in one step: a prompt, tokens, a further prompt, tokens.
constexpr std::pair<uint32_t, uint32_t> kAllocationSteps[] = {{0, 100},   {100, 101}, {101, 102}, {102, 103},
                                                              {103, 140}, {140, 141}, {141, 142}};
// So many more in the first prompt are more than a tile.
constexpr uint32_t kMoreOfTiles = 200;
constexpr uint32_t kTileTokens = 256;

struct AllocationCase {
  const char* name;
  const char* options;  // null: resident
  // After an error within a further prompt the window is as it is stored: rounded, where that is in few bits.
  float tolerance = 0.0F;
  bool begins_anew = false;  // what a further prompt has evicted cannot come back
  bool is_tiled = false;     // prompts are computed in tiles and put aside, as a small budget would have it
};

class AllocationFaults : public ::testing::TestWithParam<AllocationCase> {
 protected:
  void SetUp() override {
    if (SharedDevice() == nullptr) GTEST_SKIP() << "no device";
    device_ = std::make_unique<FailingDevice>(*SharedDevice());
    loaded_ = LoadSmallModel({"SelfMade", ""}, folder_, device_.get());
  }

  // One error that says what is missing.
  void ExpectClear(const Status& status) {
    EXPECT_EQ(status.code(), StatusCode::kOutOfMemory) << status.message();
    EXPECT_NE(status.message().find(FailingDevice::kMessage), std::string::npos) << status.message();
    EXPECT_EQ(status.message().find('\n'), std::string::npos) << status.message();
    ++n_errors_;
  }

  void ExpectNear(std::span<const float> said, std::span<const float> expected) {
    ASSERT_EQ(said.size(), expected.size());
    float difference = 0.0F;
    for (size_t i = 0; i < said.size(); ++i) {
      difference = std::max(difference, std::abs(said[i] - expected[i]));
    }
    EXPECT_LE(difference, GetParam().tolerance) << "wrong logits";
  }

  std::shared_ptr<OffloadedPassOptions> NewOptions(const std::string& text) const {
    auto options = OffloadedOptionsOrDie(loaded_, folder_, text, kAllocationContext);
    if (!GetParam().is_tiled) return options;
    const auto new_file = [this] {
      return OrDie(CreateBlockFile({.folder = folder_.Path("kv"), .allow_tmpfs = true}));
    };
    options->plan.prefill.tile_tokens = kTileTokens;
    options->plan.prefill.spills_hidden = true;
    options->stores = OrDie(MakeKvStores(options->plan, loaded_.model->config.n_layers, new_file(), nullptr));
    options->spill = new_file();
    return options;
  }

  // Another one, where the first could not be made.
  std::unique_ptr<ForwardPass> NewPass() {
    const auto make = [this] {
      ForwardPassOptions options{.n_ctx = kAllocationContext};
      if (GetParam().options != nullptr) {
        options.offloaded = NewOptions(std::string("--kv-method ") + GetParam().options);
      }
      return CreateForwardPass(*loaded_.model, loaded_.weights, *device_, options);
    };
    auto made = make();
    if (made.ok()) return std::move(made).value();
    ExpectClear(made.status());
    return OrDie(make());
  }

  // The logits after each step; what has failed is done again. After a further prompt has failed, its first
  // token is decoded alone before that; `detours`: likewise where nothing fails.
  std::vector<float> Say(bool detours) {
    const size_t n_vocab = loaded_.model->config.n_vocab;
    const std::vector<int> ids = SomeIds(kAllocationContext, 3, n_vocab);
    const auto pass = NewPass();
    std::vector<float> said;
    const auto run = [&](uint32_t begin, uint32_t end) {
      ForwardStep rows;
      rows.Add(end - begin > 1 ? SpanKind::kPrompt : SpanKind::kDecode,
               std::span(ids).subspan(begin, end - begin), begin, 0);
      const uint32_t last = end - begin - 1;
      std::vector<float> logits(n_vocab);
      Status status = pass->Run(rows, {&last, 1}, logits);
      if (status.ok()) said.insert(said.end(), logits.begin(), logits.end());
      return status;
    };
    for (size_t step = 0; step < std::size(kAllocationSteps); ++step) {
      const uint32_t more = GetParam().is_tiled ? kMoreOfTiles : 0;
      const uint32_t begin = step == 0 ? 0 : kAllocationSteps[step].first + more;
      const uint32_t end = kAllocationSteps[step].second + more;
      const bool is_further_prompt = begin > 0 && end - begin > 1;
      Status status = detours && is_further_prompt ? run(begin, begin + 1) : Status::Ok();
      if (status.ok()) status = run(begin, end);
      if (status.code() == StatusCode::kOutOfMemory) {
        ExpectClear(status);
        status = is_further_prompt ? run(begin, begin + 1) : Status::Ok();
        if (status.ok()) status = run(begin, end);
      }
      if (GetParam().begins_anew && status.code() == StatusCode::kUnsupported) {
        EXPECT_NE(status.message().find("begin anew"), std::string::npos) << status.message();
        said.clear();
        step = static_cast<size_t>(-1);
        continue;
      }
      if (!status.ok()) {
        ADD_FAILURE() << "done again: " << status.message();
        break;
      }
    }
    return said;
  }

  TemporaryFolder folder_;
  std::unique_ptr<FailingDevice> device_;
  LoadedModel loaded_;
  uint64_t n_errors_ = 0;
};

INSTANTIATE_TEST_SUITE_P(
    Methods, AllocationFaults,
    ::testing::Values(
        AllocationCase{"full", nullptr}, AllocationCase{"fullInt8", "full --kv-type int8", 0.05F},
        AllocationCase{"kvswap", "kvswap --kv-select 40 --kv-window 6 --kv-sinks 2 --kv-rank 4"},
        AllocationCase{"kvswapTiled", "kvswap --kv-select 40 --kv-window 6 --kv-sinks 2 --kv-rank 4", 0.0F,
                       false, true},
        AllocationCase{"dynakv",
                       "dynakv --kv-select 40 --kv-window 6 --kv-sinks 2 --kv-cluster 8 --kv-pending 2"},
        AllocationCase{"h2o", "h2o --kv-select 40 --kv-window 6", 0.0F, true}),
    [](const ::testing::TestParamInfo<AllocationCase>& source) { return source.param.name; });

// On a driver all of the first ones; of the others, which are lists for most of it, every seventh.
TEST_P(AllocationFaults, AreErrorsAndThenNothing) {
  const uint64_t n_all = DeviceOptionsHere().device == "host" ? UINT64_MAX : 40;
  constexpr uint64_t kStep = 7;
  const std::vector<float> expected = Say(false);
  ASSERT_EQ(expected, Say(false)) << "a run is not repeatable";
  const std::vector<float> expected_of_detour = Say(true);
  ASSERT_EQ(n_errors_, 0U);
  const uint64_t in_use = KvBytesInUse(loaded_);
  uint64_t n_runs = 0;
  for (uint64_t n = 0;; n += n < n_all ? 1 : kStep) {
    SCOPED_TRACE(fmt::format("allocation {}", n));
    device_->FailAt(n);
    n_errors_ = 0;
    const std::vector<float> said = Say(false);
    if (!device_->has_failed()) break;
    EXPECT_EQ(n_errors_, 1U);
    ExpectNear(said, said.size() == expected.size() ? expected : expected_of_detour);
    EXPECT_EQ(KvBytesInUse(loaded_), in_use) << "something is left of what has failed";
    ++n_runs;
  }
  device_->FailNever();
  EXPECT_GT(n_runs, 8U);
  RecordProperty("runs", std::to_string(n_runs));
}

TEST(AllocationFaultsOfWeights, AreErrorsAndThenNothing) {
  if (SharedDevice() == nullptr) GTEST_SKIP() << "no device";
  const TemporaryFolder folder;
  FailingDevice device(*SharedDevice());
  const LoadedModel loaded = LoadSmallModel({"SelfMade", ""}, folder, &device);
  const auto bytes = [&device] {
    uint64_t sum = 0;
    for (const Device::MemoryPart& part : device.MemoryInUse()) sum += part.bytes;
    return sum;
  };
  const uint64_t in_use = bytes();
  uint64_t n = 0;
  for (;; ++n) {
    SCOPED_TRACE(fmt::format("allocation {}", n));
    device.FailAt(n);
    const auto weights = LoadDeviceWeights(*loaded.model, device, {});
    if (!device.has_failed()) break;
    ASSERT_FALSE(weights.ok());
    EXPECT_EQ(weights.status().code(), StatusCode::kOutOfMemory);
    EXPECT_NE(weights.status().message().find(FailingDevice::kMessage), std::string::npos)
        << weights.status().message();
    EXPECT_EQ(bytes(), in_use) << "something is left of what has failed";
  }
  device.FailNever();
  EXPECT_GT(n, loaded.model->config.n_layers);
}

}  // namespace
}  // namespace kvrun::testing
