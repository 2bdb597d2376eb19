// Structs of shaders/shared/ lie in memory as the shaders read them, and interfaces keep to the floor.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <set>
#include <vector>

#include "runtime/device/vulkan/shader_library.h"
#include "shaders/shared/fill.h"
#include "tests/support/spirv_reflect.h"

namespace kvrun {
namespace {

using testing::BindingKind;
using testing::ReflectedMember;
using testing::ReflectedShader;
using testing::ReflectShader;

constexpr size_t kFloorPushConstantBytes = 128;
constexpr ptrdiff_t kFloorStorageBuffers = 4;

// Only 32-bit scalars without gaps: then C++ and GLSL cannot disagree about where a member lies.
bool IsPackedWords(const std::vector<ReflectedMember>& members) {
  for (size_t i = 0; i < members.size(); ++i) {
    if (members[i] != ReflectedMember{static_cast<uint32_t>(4 * i), 4}) return false;
  }
  return true;
}

ReflectedShader Reflect(const ShaderCode& shader) {
  Result<ReflectedShader> reflected = ReflectShader(shader.words);
  EXPECT_TRUE(reflected.ok()) << shader.name << ": " << reflected.status().message();
  return reflected.ok() ? *std::move(reflected) : ReflectedShader{};
}

std::vector<size_t> Offsets(const std::vector<ReflectedMember>& members) {
  std::vector<size_t> offsets;
  for (const ReflectedMember& member : members) offsets.push_back(member.offset);
  return offsets;
}

TEST(ShaderShared, PushConstantsLieWhereCppPutsThem) {
  const ShaderCode* fill = FindShader("fill_u32_floor");
  ASSERT_NE(fill, nullptr);
  const ReflectedShader reflected = Reflect(*fill);
  using shaders::FillParams;
  EXPECT_EQ(Offsets(reflected.push_constants),
            (std::vector<size_t>{offsetof(FillParams, first), offsetof(FillParams, count),
                                 offsetof(FillParams, value)}));
  EXPECT_EQ(reflected.push_constants.size() * 4, sizeof(FillParams));
  ASSERT_EQ(reflected.bindings.size(), 1U);
  EXPECT_EQ(reflected.bindings[0].kind, BindingKind::kStorageBuffer);
  EXPECT_EQ(reflected.bindings[0].set, 0U);
  EXPECT_EQ(reflected.bindings[0].binding, 0U);
}

TEST(ShaderShared, EveryVariantSharesOnlyPackedWords) {
  for (const ShaderCode& shader : AllShaders()) {
    const ReflectedShader reflected = Reflect(shader);
    EXPECT_TRUE(IsPackedWords(reflected.push_constants)) << shader.name;
    EXPECT_LE(reflected.push_constants.size() * 4, kFloorPushConstantBytes) << shader.name;
    for (const auto& binding : reflected.bindings) {
      EXPECT_TRUE(IsPackedWords(binding.members)) << shader.name << ", binding " << binding.binding;
    }
  }
  EXPECT_FALSE(IsPackedWords({{0, 4}, {8, 4}}));
  EXPECT_FALSE(IsPackedWords({{0, 4}, {4, 8}}));
}

TEST(ShaderShared, BindingsAreInOneSetAndFitTheFloor) {
  for (const ShaderCode& shader : AllShaders()) {
    const ReflectedShader reflected = Reflect(shader);
    std::set<uint32_t> numbers;
    for (const auto& binding : reflected.bindings) {
      EXPECT_EQ(binding.set, 0U) << shader.name;
      EXPECT_TRUE(numbers.insert(binding.binding).second) << shader.name << ", binding " << binding.binding;
    }
    if (!shader.name.ends_with("_floor")) continue;
    EXPECT_LE(
        std::ranges::count(reflected.bindings, BindingKind::kStorageBuffer, &testing::ReflectedBinding::kind),
        kFloorStorageBuffers)
        << shader.name;
  }
}

TEST(ShaderShared, ReflectionRefusesWhatIsNoShader) {
  const std::vector<uint32_t> words(8, 0xdeadbeef);
  EXPECT_FALSE(ReflectShader(words).ok());
}

}  // namespace
}  // namespace kvrun
