// The CPU as a device, opened: that needs neither a loader nor a driver.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <string>
#include <vector>

#include "runtime/device/host/instruction_sets.h"
#include "runtime/device/host/matmul_kernels.h"
#include "runtime/device/open_device.h"

namespace kvrun {
namespace {

TEST(OpenHost, OptionsReachTheDevice) {
  const auto device = OpenDevice({.device = "Host", .n_threads = 3});
  ASSERT_TRUE(device.ok()) << device.status().message();
  const DeviceInfo& info = (*device)->info();
  EXPECT_EQ(info.kind, "cpu");
  EXPECT_EQ(info.driver, "kvrun host");
  EXPECT_TRUE(info.is_cpu);
  EXPECT_TRUE(info.notes.empty()) << info.notes[0];
  EXPECT_NE(info.plan.find("3 threads"), std::string::npos) << info.plan;
  EXPECT_NE(info.plan.find("activations of 8 bits"), std::string::npos) << info.plan;
  const auto exact = OpenDevice({.device = "host", .n_threads = 1, .exact_activations = true});
  ASSERT_TRUE(exact.ok()) << exact.status().message();
  EXPECT_NE((*exact)->info().plan.find("1 thread,"), std::string::npos) << (*exact)->info().plan;
  EXPECT_NE((*exact)->info().plan.find("float activations"), std::string::npos);
}

// Of all that the processor has, down to the least; at the end again the best.
TEST(OpenHost, ComputesWithTheNamedInstructionSet) {
  const std::string best = host::InstructionSetName();
  const std::vector<std::string> names = host::NamedInstructionSets();
  ASSERT_FALSE(names.empty());
  for (const std::string& name : names) {
    SCOPED_TRACE(name);
    const auto device = OpenDevice({.device = "host", .n_threads = 1, .instruction_set = name});
    ASSERT_TRUE(device.ok()) << device.status().message();
    std::string target = name.substr(0, name.find('-'));
    if (target == "amx" || target == "avx512") target = "avx3";
    std::string used = host::InstructionSetName();
    std::transform(used.begin(), used.end(), used.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    EXPECT_TRUE(used.starts_with(target)) << used;
    EXPECT_EQ(host::GetMatMulKernels().begin_int8 != nullptr, name == "amx");
    const host::Int8Products products = host::GetMatMulKernels().products;
    if (name == "amx" || name == "neon-i8mm") {
      EXPECT_EQ(products, host::Int8Products::kTiles);
    }
    if (name.ends_with("-vnni") || name.ends_with("-dot")) {
      EXPECT_EQ(products, host::Int8Products::kDot);
    }
    if (name == "avx2" || name == "sse4" || name == "neon") {
      EXPECT_EQ(products, host::Int8Products::kPlain);
    }
    EXPECT_EQ(host::NamedInstructionSets(), names) << "what there is does not depend on what is used";
  }
  ASSERT_TRUE(host::UseInstructionSet("").ok());
  EXPECT_EQ(host::InstructionSetName(), best);
}

TEST(OpenHost, AnInstructionSetThatIsNotThereIsRefused) {
  const auto unknown = OpenDevice({.device = "host", .instruction_set = "avx3"});
  EXPECT_EQ(unknown.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(unknown.status().message().find("there is no instruction set \"avx3\"; this processor has "),
            std::string::npos)
      << unknown.status().message();
  const std::vector<std::string> names = host::NamedInstructionSets();
  for (const std::string name : {"amx", "avx2-vnni", "neon"}) {
    if (std::find(names.begin(), names.end(), name) != names.end()) continue;
    const auto missing = OpenDevice({.device = "host", .instruction_set = name});
    EXPECT_EQ(missing.status().code(), StatusCode::kUnsupported) << name;
    EXPECT_NE(missing.status().message().find(names.back()), std::string::npos) << missing.status().message();
  }
}

TEST(OpenHost, TooManyThreadsAreRefused) {
  const auto device = OpenDevice({.device = "host", .n_threads = kMaxThreads + 1});
  ASSERT_FALSE(device.ok());
  EXPECT_EQ(device.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(device.status().message().find("1025"), std::string::npos) << device.status().message();
}

}  // namespace
}  // namespace kvrun
