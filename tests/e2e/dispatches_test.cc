// How many dispatches and barriers a decoded token takes on Vulkan: each costs a driver and a GPU time,
// whatever it computes.
#include <gtest/gtest.h>

#include <string>

#include "runtime/device/vulkan/compute_device.h"
#include "runtime/device/vulkan/kernel_plan.h"
#include "runtime/device/vulkan/score_plan.h"
#include "runtime/engine/forward/create_forward_pass.h"
#include "runtime/model/synthetic_model.h"
#include "tests/support/operations_fixture.h"
#include "tests/support/or_die.h"
#include "tests/support/program_runner.h"
#include "tests/support/small_models.h"
#include "tests/support/tiny_shape.h"

namespace kvrun::testing {
namespace {

using Counts = VulkanComputeDevice::WorkCounts;

constexpr uint32_t kContext = 512;
constexpr uint32_t kPromptTokens = 300;
// As many layers as SmolLM2-135M.
constexpr SyntheticShape kDeep = TinyShape(30);

// Of the second token after a prompt. options: of the KV cache; empty: all of it in memory.
Counts OfAToken(Device& device, const SyntheticShape& shape, const std::string& options) {
  LoadedModel loaded{&device, OrDie(MakeSyntheticModel(shape)), nullptr};
  loaded.weights = OrDie(LoadDeviceWeights(*loaded.model, device, {}));
  const TemporaryFolder folder;
  ForwardPassOptions with{.n_ctx = kContext};
  if (!options.empty()) with.offloaded = OffloadedOptionsOrDie(loaded, folder, options, kContext);
  const std::unique_ptr<ForwardPass> pass =
      OrDie(CreateForwardPass(*loaded.model, loaded.weights, device, with));
  auto& vulkan = dynamic_cast<VulkanComputeDevice&>(device);
  const std::vector<int> ids = SomeIds(kPromptTokens + 2, 1, shape.n_vocab);
  std::vector<float> logits(shape.n_vocab);
  const uint32_t output = 0;
  Feed(*pass, ids, 0, kPromptTokens, 100);
  Counts counts;
  for (uint32_t position = kPromptTokens; position < ids.size(); ++position) {
    const Counts before = vulkan.work_counts();
    RunOrDie(pass->Run(ForwardStep(SpanKind::kDecode, {ids[position], position, 0}), {&output, 1}, logits));
    const Counts now = vulkan.work_counts();
    counts = {now.lists - before.lists, now.dispatches - before.dispatches, now.barriers - before.barriers};
  }
  return counts;
}

// Several operations are one dispatch.
bool HasWideKernels(const Device& device) {
  const DevicePlan& plan = AsVulkan(device)->plan();
  return plan.max_storage_buffers >= kAttendSourcesBuffers && plan.use_subgroup_shuffle &&
         plan.subgroup_width >= 8;
}

class DispatchesTest : public OperationsTest {};

INSTANTIATE_TEST_SUITE_P(Modes, DispatchesTest,
                         ::testing::Values(DeviceMode::kPlanned, DeviceMode::kGpu, DeviceMode::kFloor),
                         ModeName);

// A layer is five: Q, K and V with their norm; attention, which rotates and stores what is new; what brings
// it back; gate and up, with their norm and their product; and down.
TEST_P(DispatchesTest, FullTakesFiveALayer) {
  for (const Device* device : devices_) {
    const Counts counts = OfAToken(const_cast<Device&>(*device), kDeep, "");
    EXPECT_EQ(counts.dispatches, (HasWideKernels(*device) ? 5U : 7U) * kDeep.n_layers + 2)
        << device->info().name;
    EXPECT_EQ(counts.lists, 1U);
    EXPECT_LE(counts.barriers, counts.dispatches);
  }
}

// Own slots, the pool, a static set and the window; each layer predicts a later one's choice.
TEST_P(DispatchesTest, KvswapTakesMore) {
  for (Device* device : devices_) {
    if (!HasWideKernels(*device)) continue;
    const VulkanComputeDevice* vulkan = AsVulkan(*device);
    for (const std::string types : {"int8,int4", "int4", "fp8"}) {
      const Counts counts = OfAToken(
          *device, kDeep,
          "--kv-method kvswap --kv-group 4 --kv-select 80 --kv-reuse 60 --kv-static 0.25 --kv-window 16 "
          "--kv-sinks 4 --kv-rank 8 --kv-type " +
              types);
      std::printf("%s %s: %d %d %d\n", device->info().name.c_str(), types.c_str(), int(counts.dispatches),
                  int(counts.barriers), int(counts.lists));
      EXPECT_LE(counts.dispatches,
                2 + (MayProjectInScores(vulkan->plan(), vulkan->is_cpu()) ? 11U : 12U) * kDeep.n_layers)
          << types;
    }
  }
}

}  // namespace
}  // namespace kvrun::testing
