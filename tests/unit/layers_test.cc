#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/support/layer_checker.h"

namespace kvrun {
namespace {

namespace fs = std::filesystem;
using testing::LayerViolations;

TEST(Layers, IncludesPointOnlyDownwardAndVulkanStaysInItsFolders) {
  const std::vector<std::string> violations = LayerViolations(KVRUN_SOURCE_DIR);
  std::string text;
  for (const std::string& violation : violations) text += violation + "\n";
  EXPECT_TRUE(violations.empty()) << text;
}

// A made-up tree, to see that the check can fail.
class LayerChecker : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(::testing::TempDir()) / ("kvrun_layers_" + std::to_string(::getpid()));
    fs::remove_all(root_);
  }
  void TearDown() override { fs::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    fs::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }

  // The one violation that is expected.
  void ExpectOne(const std::string& part) {
    const std::vector<std::string> violations = LayerViolations(root_);
    ASSERT_EQ(violations.size(), 1U) << (violations.empty() ? "none" : violations.back());
    EXPECT_NE(violations[0].find(part), std::string::npos) << violations[0];
  }

  fs::path root_;
};

TEST_F(LayerChecker, AcceptsIncludesThatPointDown) {
  Write("platform/base/status.h", "#include <string>\n");
  Write("platform/vulkan/device.h", "#include <vulkan/vulkan.h>\n#include \"platform/base/status.h\"\n");
  Write("runtime/engine/engine.h",
        "#include \"platform/base/status.h\"\n#include \"runtime/device/device.h\"\n");
  Write("apps/kvrun/main.cc", "#include <kvrun/kvrun.h>\n#include \"apps/common/options.h\"\n");
  EXPECT_TRUE(LayerViolations(root_).empty());
}

TEST_F(LayerChecker, RefusesAnIncludeThatPointsUp) {
  Write("platform/base/a.h", "  #  include \"runtime/engine/engine.h\"\n");
  ExpectOne("platform/base may not include");
}

TEST_F(LayerChecker, RefusesAnIncludeThatPointsSideways) {
  Write("runtime/store/a.cc", "#include \"runtime/device/device.h\"\n");
  ExpectOne("runtime/store may not include");
}

TEST_F(LayerChecker, AppsSeeThePublicHeaderOnly) {
  Write("apps/kvrun/main.cc", "#include \"runtime/model/gguf.h\"\n");
  ExpectOne("apps may not include");
}

TEST_F(LayerChecker, RefusesPathsThatAreNotFromTheRoot) {
  Write("runtime/model/a.cc", "#include \"../engine/engine.h\"\n");
  ExpectOne("not a path from the root");
}

TEST_F(LayerChecker, RefusesFilesOutsideOfTheLayers) {
  Write("runtime/misc/a.cc", "\n");
  ExpectOne("lies in no layer");
}

TEST_F(LayerChecker, RefusesVulkanHeadersOutsideOfItsFolders) {
  Write("runtime/capi/a.cc", "#include <volk.h>\n");
  ExpectOne("Vulkan folders only");
}

TEST_F(LayerChecker, RefusesComparisonsWithAMethodsName) {
  Write("runtime/engine/a.cc", "const bool is_resident = plan.method.name == \"full\";\n");
  ExpectOne("runtime/engine/a.cc:1: compares a KV method's name");
  Write("runtime/engine/a.cc", "const bool selects = \"kvswap\" != method;\n");
  ExpectOne("runtime/engine/a.cc:1: compares a KV method's name");
  Write("runtime/engine/a.cc", "settings.kv.method = \"kvswap\";  // == is what this is not\n");
  Write("offline/a.cc", "const bool is_resident = method == \"full\";\n");
  EXPECT_TRUE(LayerViolations(root_).empty());
}

TEST_F(LayerChecker, RefusesPartsOfOneKindInTheEngine) {
  for (const char* header : {"index/low_rank_index", "select/random_selector", "clusters/cluster_extents"}) {
    Write("runtime/engine/offloaded/a.cc", "#include \"runtime/kv/" + std::string(header) + ".h\"\n");
    ExpectOne("runtime/engine/offloaded may not include");
  }
  Write("runtime/engine/offloaded/a.cc",
        "#include \"runtime/kv/contracts/kv_index.h\"\n#include \"runtime/kv/contracts/kv_selector.h\"\n");
  Write("runtime/kv/serve/kv_parts.cc", "#include \"runtime/kv/index/low_rank_index.h\"\n");
  EXPECT_TRUE(LayerViolations(root_).empty());
}

TEST_F(LayerChecker, RefusesArrowsBetweenFamiliesAndUpwardWithinAFolder) {
  Write("runtime/kv/groups/a.cc", "#include \"runtime/kv/clusters/cluster_rows.h\"\n");
  ExpectOne("runtime/kv/groups may not include");
  Write("runtime/kv/groups/a.cc", "#include \"runtime/kv/serve/kv_thread.h\"\n");
  ExpectOne("runtime/kv/groups may not include");
  Write("runtime/kv/groups/a.cc", "#include \"runtime/kv/memory/kv_slots.h\"\n");
  Write("runtime/engine/session/a.cc", "#include \"runtime/engine/measure/recall.h\"\n");
  ExpectOne("runtime/engine/session may not include");
  Write("runtime/engine/session/a.cc", "");
  Write("runtime/kv/a.h", "");
  ExpectOne("runtime/kv/a.h: lies in no layer");
}

TEST_F(LayerChecker, RefusesAMentionOfVulkanInTheEngine) {
  Write("runtime/engine/a.h", "struct Token;\nvoid Submit(VkQueue queue);\n");
  ExpectOne("runtime/engine/a.h:2: mentions Vulkan");
}

TEST_F(LayerChecker, RefusesVulkanThatIsReachedThroughAnotherHeader) {
  Write("runtime/device/device.h", "#include \"runtime/device/extra.h\"\n");
  Write("runtime/device/vulkan/pipelines.h", "\n");
  Write("runtime/device/extra.h", "#include \"runtime/device/vulkan/pipelines.h\"\n");
  Write("runtime/kv/plan/a.cc", "#include \"runtime/device/device.h\"\n");
  const std::vector<std::string> violations = LayerViolations(root_);
  ASSERT_EQ(violations.size(), 2U);  // extra.h itself, and what a.cc reaches
  EXPECT_NE(violations[1].find("runtime/kv/plan/a.cc: reaches runtime/device/vulkan/pipelines.h"),
            std::string::npos)
      << violations[1];
}

}  // namespace
}  // namespace kvrun
