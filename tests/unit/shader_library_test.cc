#include "runtime/device/vulkan/shader_library.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/reference_files.h"

namespace kvrun {
namespace {

constexpr uint32_t kSpirvMagic = 0x07230203;
constexpr uint32_t kSpirv13 = 0x00010300;
constexpr size_t kHeaderWords = 5;
constexpr uint32_t kOpCapability = 17;
constexpr uint32_t kCapabilityShader = 1;

std::vector<std::string> ListedVariants() {
  std::istringstream list(testing::ReadFileOrDie(KVRUN_SOURCE_DIR "/shaders/variants.txt"));
  std::vector<std::string> names;
  for (std::string line; std::getline(list, line);) {
    std::istringstream fields(line);
    std::string name;
    if (!(fields >> name) || name.front() == '#') continue;
    names.push_back(name);
    for (std::string field; fields >> field;) {
      if (field == "+texel") names.push_back(name + "_texel");
    }
  }
  return names;
}

// <op>_<type>_<path>. A type has the name of its tensor type in lower case.
bool IsVariantName(const std::string& name) {
  static const std::regex pattern(
      "[a-z][a-z0-9_]*_(any|u32|i32|f32|f16|bf16|fp8|int8|int4|q8_0|q4_0|q4_1|q5_0|q5_1|q2_k|q3_k|q4_k|q5_k|"
      "q6_k|iq4_nl|iq4_xs)_("
      "floor|"
      "wide|"
      "subgroup)(_texel)?");
  return std::regex_match(name, pattern);
}

std::set<uint32_t> Capabilities(std::span<const uint32_t> words) {
  std::set<uint32_t> capabilities;
  for (size_t i = kHeaderWords; i < words.size() && (words[i] & 0xffff) == kOpCapability; i += 2) {
    capabilities.insert(words[i + 1]);
  }
  return capabilities;
}

TEST(ShaderLibrary, HoldsExactlyTheListedVariants) {
  std::vector<std::string> listed = ListedVariants();
  std::sort(listed.begin(), listed.end());
  std::vector<std::string> embedded;
  for (const ShaderCode& shader : AllShaders()) embedded.emplace_back(shader.name);
  ASSERT_FALSE(listed.empty());
  EXPECT_EQ(embedded, listed);  // also: the table is sorted, which FindShader needs
}

TEST(ShaderLibrary, FindsEachByItsNameAlone) {
  for (const std::string& name : ListedVariants()) {
    const ShaderCode* shader = FindShader(name);
    ASSERT_NE(shader, nullptr) << name;
    EXPECT_EQ(shader->name, name);
    EXPECT_EQ(FindShader(name + "x"), nullptr);
  }
  EXPECT_EQ(FindShader(""), nullptr);
  EXPECT_EQ(FindShader("zzz"), nullptr);
}

TEST(ShaderLibrary, EachIsSpirv13) {
  for (const ShaderCode& shader : AllShaders()) {
    ASSERT_GT(shader.words.size(), kHeaderWords) << shader.name;
    EXPECT_EQ(shader.words[0], kSpirvMagic) << shader.name;
    EXPECT_LE(shader.words[1], kSpirv13) << shader.name;
  }
}

TEST(ShaderLibrary, NamesSayOperationTypeAndPath) {
  for (const ShaderCode& shader : AllShaders()) {
    EXPECT_TRUE(IsVariantName(std::string(shader.name))) << shader.name;
  }
  EXPECT_TRUE(IsVariantName("score_low_rank_q4_k_subgroup"));
  EXPECT_FALSE(IsVariantName("fill_floor"));
  EXPECT_FALSE(IsVariantName("fill_u33_floor"));
  EXPECT_FALSE(IsVariantName("Fill_u32_floor"));
}

TEST(ShaderLibrary, FloorVariantsNeedNoCapabilityBeyondShader) {
  for (const ShaderCode& shader : AllShaders()) {
    if (!shader.name.ends_with("_floor")) continue;
    EXPECT_EQ(Capabilities(shader.words), std::set<uint32_t>{kCapabilityShader}) << shader.name;
  }
}

TEST(ShaderLibrary, SaysWhichCompilerAndWhichSet) {
  EXPECT_NE(ShaderCompilerVersion().find("shaderc"), std::string_view::npos);
  EXPECT_EQ(ShaderCompilerVersion().find('\n'), std::string_view::npos);
  EXPECT_NE(ShaderSetHash(), 0U);
  EXPECT_EQ(ShaderSetHash(), ShaderSetHash());
}

}  // namespace
}  // namespace kvrun
