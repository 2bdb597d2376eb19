// Whatever the tests of this program do, the validation layer must have nothing to say about it.
#include <gtest/gtest.h>

#include "platform/vulkan/instance.h"

namespace kvrun::testing {
namespace {

class NoValidationMessages : public ::testing::Environment {
 public:
  void TearDown() override {
    EXPECT_EQ(VulkanInstance::AllValidationMessages(), 0U)
        << "the validation layer reported messages: see above";
  }
};

[[maybe_unused]] const ::testing::Environment* const g_environment =
    ::testing::AddGlobalTestEnvironment(new NoValidationMessages);

TEST(Validation, LayerIsThereWhereItIsAskedFor) {
  const InstanceOptions options = InstanceOptions::FromEnvironment();
  if (!options.validation) GTEST_SKIP() << "KVRUN_VALIDATION is not set";
  const auto instance = VulkanInstance::Create(options);
  ASSERT_TRUE(instance.ok()) << instance.status().message();
  EXPECT_TRUE((*instance)->validation_enabled());
}

}  // namespace
}  // namespace kvrun::testing
