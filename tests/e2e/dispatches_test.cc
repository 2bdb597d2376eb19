// How many dispatches a decoded token takes on Vulkan: each costs a driver time, whatever it computes.
#include <gtest/gtest.h>

#include <array>
#include <string>

#include <nlohmann/json.hpp>

#include "runtime/capi/handles.h"
#include "runtime/device/vulkan/compute_device.h"
#include "runtime/device/vulkan/kernel_plan.h"
#include "runtime/device/vulkan/score_plan.h"
#include "runtime/model/synthetic_model.h"
#include "tests/support/capi_fixture.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/or_die.h"
#include "tests/support/program_runner.h"
#include "tests/support/tiny_shape.h"

namespace kvrun::testing {
namespace {

using Json = nlohmann::json;

// As many layers as SmolLM2-135M.
constexpr SyntheticShape kDeep = TinyShape(30);

class Dispatches : public ::testing::Test {
 protected:
  void SetUp() override {
    if (SharedDevice() == nullptr) GTEST_SKIP() << "no device";
    const auto* vulkan = dynamic_cast<const VulkanComputeDevice*>(SharedDevice());
    if (vulkan == nullptr) GTEST_SKIP() << "the CPU has no dispatches";
    if (!vulkan->plan().timestamps) GTEST_SKIP() << "dispatches are counted by their timestamps";
    projects_in_scores_ = MayProjectInScores(vulkan->plan(), vulkan->is_cpu());
    has_wide_kernels_ = vulkan->plan().max_storage_buffers >= kAttendSourcesBuffers &&
                        vulkan->plan().use_subgroup_shuffle && vulkan->plan().subgroup_width >= 8;
    model_.model = OrDie(MakeSyntheticModel(kDeep));
    kvrun_engine_options options = EngineOptionsHere();
    options.profile = 1;
    ASSERT_EQ(kvrun_engine_create(&model_, &options, &engine_), KVRUN_OK) << LastError();
  }
  void TearDown() override { kvrun_engine_destroy(engine_); }

  // At a depth of 300.
  double PerToken(const std::string& kv) {
    const std::array<uint32_t, 1> depths = {300};
    const std::string line = kv.empty() ? kv : kv + " --kv-tmpfs --kv-dir " + folder_.Path("kv");
    kvrun_bench_options options;
    kvrun_bench_options_init(&options);
    options.depths = depths.data();
    options.n_depths = depths.size();
    options.n_decode = 3;
    options.n_repetitions = 1;
    options.fill_random = 1;
    options.kv = line.c_str();
    char* json = nullptr;
    EXPECT_EQ(kvrun_bench_json(engine_, &options, &json), KVRUN_OK) << LastError();
    const Json results = ParseAndFree(json);
    double sum = 0.0;
    for (const Json& operation : results[0]["operations"]) sum += operation["per_token"].get<double>();
    return sum;
  }

  bool has_wide_kernels_ = false;
  bool projects_in_scores_ = false;
  TemporaryFolder folder_;
  kvrun_model model_ = {};
  kvrun_engine* engine_ = nullptr;
};

// Own slots, the pool, a static set and the window; each layer predicts a later one's choice.
TEST_F(Dispatches, KvswapTakesFiveMoreALayerThanFullOrFourOnACpu) {
  if (!has_wide_kernels_) GTEST_SKIP() << "kernels of this device take several steps for one";
  const double full = PerToken("");
  EXPECT_GT(full, 9 * kDeep.n_layers);
  for (const std::string types : {"int8,int4", "int4", "fp8"}) {
    const double kvswap = PerToken(
        "--kv-method kvswap --kv-group 4 --kv-select 80 --kv-reuse 60 --kv-static 0.25 --kv-window 16 "
        "--kv-sinks 4 --kv-rank 8 --kv-type " +
        types);
    EXPECT_GT(kvswap, full);
    EXPECT_LE(kvswap - full, projects_in_scores_ ? 120.0 : 150.0) << types;
  }
}

}  // namespace
}  // namespace kvrun::testing
