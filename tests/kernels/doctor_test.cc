// The self-tests notice kernels that miscalculate, and name them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "runtime/device/open_device.h"
#include "runtime/device/vulkan/broken_shader.h"
#include "runtime/device/vulkan/found_devices.h"
#include "runtime/device/vulkan/kernel_plan.h"
#include "runtime/device/vulkan/score_plan.h"
#include "runtime/device/vulkan/self_test.h"
#include "runtime/device/vulkan/shader_library.h"
#include "tests/support/vulkan_devices.h"

namespace kvrun {
namespace {

using testing::OpenTestDevices;
using testing::TestInstance;

// The variant of a check's name that begins with `prefix`; empty if there is none.
std::string VariantIn(const std::string& name, std::string_view prefix) {
  const size_t begin = name.find(prefix);
  if (begin == std::string::npos) return "";
  return name.substr(begin, name.find_first_of(" ,", begin) - begin);
}

void ExpectCaught(VulkanComputeDevice& device, const std::vector<KernelCheck>& checks,
                  std::string_view prefix) {
  for (const KernelCheck& check : checks) {
    const std::string variant = VariantIn(check.name, prefix);
    if (variant.empty()) continue;
    const Result<std::string> sound = check.run(device);
    EXPECT_TRUE(sound.ok()) << check.name << ": " << sound.status().message();
    const ShaderCode* code = FindShader(variant);
    ASSERT_NE(code, nullptr) << variant;
    device.pipelines().OverrideShader(variant, BreakShader(code->words));
    EXPECT_FALSE(check.run(device).ok()) << check.name;
    device.pipelines().OverrideShader(variant, {code->words.begin(), code->words.end()});
    EXPECT_TRUE(check.run(device).ok()) << check.name;
    return;
  }
  ADD_FAILURE() << "no self-test runs a kernel named " << prefix;
}

TEST(Doctor, ABrokenKernelIsCaughtByTheTestThatNamesIt) {
  auto devices = OpenTestDevices();
  if (devices.empty()) GTEST_SKIP() << "no Vulkan device";
  const uint64_t messages_before = TestInstance()->validation_messages();
  for (auto& vulkan : devices) {
    auto device = VulkanComputeDevice::Create(std::move(vulkan), false, "");
    ASSERT_TRUE(device.ok()) << device.status().message();
    const auto checks = KernelChecks((*device)->plan(), (*device)->is_cpu());
    for (const char* prefix : {"embed_f32",          "embed_q4_1",
                               "embed_q6_k",         "matvec",
                               "matmul2_q4_0",       "matmul8_f16",
                               "rms_norm",           "swiglu",
                               "gather_rows",        "rope_store_f16",
                               "rope_store_f32",     "attend1_f16",
                               "attend4_f32_floor",  "combine_splits",
                               "rope_encode",        "encode_records_f16",
                               "encode_records_f32", "decode_records_f16",
                               "decode_records_f32", "attend_slots1_",
                               "attend_slots3_",     "attend_slots4_any_floor",
                               "rotate_query",       "score_groups9_f16",
                               "score_groups3_int8", "score_sum_int8",
                               "select_groups",      "project_keys_f16",
                               "accumulate_gram",    "sign_query",
                               "slot_mass",          "sum_weights_f16",
                               "attention_mass_f32", "score_kept",
                               "mean_queries",       "sigmoid_gate",
                               "choose_experts",     "expert_matmul_q4_k",
                               "sum_experts",        "short_convolution",
                               "delta_gates",        "delta_rule",
                               "gated_norm"}) {
      ExpectCaught(**device, checks, prefix);
    }
    const DevicePlan& plan = (*device)->plan();
    const bool merges = plan.use_subgroup_shuffle && plan.subgroup_width >= 8 &&
                        plan.max_storage_buffers >= kAttendSourcesBuffers;
    if (merges) ExpectCaught(**device, checks, "attend_sources");
    if (merges) ExpectCaught(**device, checks, "attend_new4_f16");
    const bool rotates = plan.max_storage_buffers >= kRotateProjectBuffers;
    ExpectCaught(**device, checks, rotates ? "rotate_project_query" : "project_query");
    const bool projects = MayProjectInScores(plan, (*device)->is_cpu());
    ExpectCaught(**device, checks, projects ? "project_score_rows9_int4" : "score_rows9_int4");
  }
  EXPECT_EQ(TestInstance()->validation_messages(), messages_before);
}

TEST(Doctor, EveryVariantIsMadeWrong) {
  for (const ShaderCode& shader : AllShaders()) {
    const std::vector<uint32_t> broken = BreakShader(shader.words);
    EXPECT_EQ(broken.size(), shader.words.size());
    EXPECT_FALSE(std::equal(broken.begin(), broken.end(), shader.words.begin())) << shader.name;
  }
}

TEST(Doctor, SubgroupsThatMiscalculateAreNotUsed) {
  const auto found = FindDevices(true);
  if (!found.ok()) GTEST_SKIP() << found.status().message();
  const auto fails = [](VulkanComputeDevice&) -> Result<std::string> {
    return Status(StatusCode::kDevice, "off by one");
  };
  for (size_t i = 0; i < found->facts.size(); ++i) {
    if (!PlanDevice(found->facts[i], {}).ok()) continue;
    const auto sound = OpenCheckedDevice(*found, i, false, "", CheckSubgroups);
    ASSERT_TRUE(sound.ok()) << sound.status().message();
    const auto wrong = OpenCheckedDevice(*found, i, false, "a note", fails);
    ASSERT_TRUE(wrong.ok()) << wrong.status().message();
    if (!(*sound)->plan().use_subgroup_shuffle) continue;
    EXPECT_FALSE((*wrong)->plan().use_subgroup_shuffle);
    EXPECT_NE((*wrong)->info().notes.at(0).find("off by one; a note"), std::string::npos);
    const DeviceCheck broken = [](VulkanComputeDevice& device) -> Result<std::string> {
      for (const char* name : {"matmul2_f32_subgroup", "matmul2_f32_subgroup_texel"}) {
        device.pipelines().OverrideShader(name, BreakShader(FindShader(name)->words));
      }
      return CheckSubgroups(device);
    };
    const auto caught = OpenCheckedDevice(*found, i, false, "", broken);
    ASSERT_TRUE(caught.ok()) << caught.status().message();
    EXPECT_FALSE((*caught)->plan().use_subgroup_shuffle);
  }
}

TEST(Doctor, CanBeCancelled) {
  if (OpenTestDevices().empty()) GTEST_SKIP() << "no Vulkan device";
  size_t calls = 0;
  const auto reports = RunDoctor("", [&](size_t done, size_t total) {
    EXPECT_LT(done, total);
    return ++calls == 2;
  });
  ASSERT_FALSE(reports.ok());
  EXPECT_EQ(reports.status().code(), StatusCode::kCancelled);
  EXPECT_EQ(calls, 2U);
}

// How many tests a device has, without running more than the first.
size_t CountTests(const std::string& device) {
  size_t count = 0;
  const auto reports = RunDoctor(device, [&](size_t, size_t total) {
    count = total;
    return true;
  });
  EXPECT_EQ(reports.status().code(), StatusCode::kCancelled) << device;
  return count;
}

TEST(Doctor, ExaminesTheCpuAfterTheOthers) {
  const auto devices = ListDevices();
  ASSERT_TRUE(devices.ok()) << devices.status().message();
  size_t total = 0;
  for (const DeviceListing& device : *devices) total += CountTests(fmt::format("{}", device.index));
  EXPECT_EQ(CountTests(""), total);
  EXPECT_EQ(CountTests(fmt::format("{}", devices->back().index)), CountTests("host"));
  EXPECT_GT(CountTests("host"), 100U);
}

TEST(Doctor, RefusesToBreakWhatIsNoKernel) {
  if (OpenTestDevices().empty()) GTEST_SKIP() << "no Vulkan device";
  setenv("KVRUN_BREAK_KERNEL", "nonsense", 1);
  const auto reports = RunDoctor("0", {});
  unsetenv("KVRUN_BREAK_KERNEL");
  ASSERT_FALSE(reports.ok());
  EXPECT_NE(reports.status().message().find("nonsense"), std::string::npos);
}

}  // namespace
}  // namespace kvrun
