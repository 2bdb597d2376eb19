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

// What one layer more takes.
Counts OfALayer(Device& device, SyntheticShape shape, const std::string& options) {
  shape.n_layers = 3;
  const Counts few = OfAToken(device, shape, options);
  shape.n_layers = 4;
  const Counts more = OfAToken(device, shape, options);
  return {more.lists - few.lists, more.dispatches - few.dispatches, more.barriers - few.barriers};
}

// The heads of models of 1B and 3B; other columns change nothing of this.
constexpr SyntheticShape WithHeads(uint32_t n_heads, uint32_t head_dim) {
  SyntheticShape shape = kTinyShape;
  shape.n_heads = n_heads;
  shape.n_kv_heads = 8;
  shape.head_dim = head_dim;
  return shape;
}
constexpr SyntheticShape kModelHeads[] = {WithHeads(32, 64), WithHeads(24, 128)};

class DispatchesTest : public OperationsTest {};

INSTANTIATE_TEST_SUITE_P(Modes, DispatchesTest,
                         ::testing::Values(DeviceMode::kPlanned, DeviceMode::kGpu, DeviceMode::kFloor),
                         ModeName);

// A layer is five: Q, K and V with their norm; attention, which rotates and stores what is new; what brings
// it back; gate and up, with their norm and their product; and down.
TEST_P(DispatchesTest, FullTakesFiveALayer) {
  for (Device* device : devices_) {
    const uint32_t of_a_layer = HasWideKernels(*device) ? 5 : 7;
    const Counts counts = OfAToken(*device, kDeep, "");
    EXPECT_EQ(counts.dispatches, of_a_layer * kDeep.n_layers + 2) << device->info().name;
    EXPECT_EQ(counts.lists, 1U);
    EXPECT_LE(counts.barriers, counts.dispatches);
    for (const SyntheticShape& shape : kModelHeads) {
      EXPECT_EQ(OfALayer(*device, shape, "").dispatches, of_a_layer) << device->info().name;
    }
  }
}

// Own slots, the pool, a static set and the window; each layer predicts a later one's choice.
TEST_P(DispatchesTest, KvswapTakesSixMoreOrFiveOnACpu) {
  const std::string options =
      "--kv-method kvswap --kv-group 4 --kv-select 80 --kv-reuse 60 --kv-static 0.25 --kv-window 16 "
      "--kv-sinks 4 --kv-rank 8 --kv-type ";
  for (Device* device : devices_) {
    if (!HasWideKernels(*device)) continue;
    const VulkanComputeDevice* vulkan = AsVulkan(*device);
    const uint32_t of_a_layer = MayProjectInScores(vulkan->plan(), vulkan->is_cpu()) ? 10 : 11;
    for (const std::string types : {"int8,int4", "int4", "fp8"}) {
      const Counts counts = OfAToken(*device, kDeep, options + types);
      EXPECT_EQ(counts.dispatches, of_a_layer * kDeep.n_layers + 2) << device->info().name << ", " << types;
      EXPECT_EQ(counts.lists, kDeep.n_layers + 2);
      EXPECT_LE(counts.barriers, counts.dispatches);
    }
    for (const SyntheticShape& shape : kModelHeads) {
      EXPECT_EQ(OfALayer(*device, shape, options + "int8,int4").dispatches, of_a_layer)
          << device->info().name;
    }
  }
}

}  // namespace
}  // namespace kvrun::testing
