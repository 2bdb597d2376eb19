// Structs of shaders/shared/ lie in memory as the shaders read them, and interfaces keep to the floor.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <vector>

#include "runtime/device/vulkan/shader_library.h"
#include "shaders/shared/fill.h"
#include "shaders/shared/step_params.h"
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

TEST(ShaderShared, UniformBuffersLieWhereCppPutsThem) {
  const ShaderCode* embed = FindShader("embed_f32_floor");
  ASSERT_NE(embed, nullptr);
  const ReflectedShader reflected = Reflect(*embed);
  const auto step =
      std::ranges::find(reflected.bindings, BindingKind::kUniformBuffer, &testing::ReflectedBinding::kind);
  ASSERT_NE(step, reflected.bindings.end());
  const std::vector<size_t> offsets = Offsets(step->members);
  ASSERT_EQ(offsets.size() * 4, sizeof(StepParams));
  EXPECT_EQ(offsets[1], offsetof(StepParams, n_outputs));
  EXPECT_EQ(offsets[4], offsetof(StepParams, tokens));
  EXPECT_EQ(offsets[4 + 4 + 1],
            offsetof(StepParams, tokens) + sizeof(StepToken) + offsetof(StepToken, position));
}

TEST(ShaderShared, BindingsAreInOneSetAndFitTheFloor) {
  for (const ShaderCode& shader : AllShaders()) {
    const ReflectedShader reflected = Reflect(shader);
    std::map<uint32_t, BindingKind> kinds;  // several views of a buffer count once
    for (const auto& binding : reflected.bindings) {
      EXPECT_EQ(binding.set, 0U) << shader.name;
      const auto [known, is_new] = kinds.emplace(binding.binding, binding.kind);
      EXPECT_EQ(known->second, binding.kind) << shader.name << ", binding " << binding.binding;
    }
    if (!shader.name.ends_with("_floor")) continue;
    const auto is_storage = [](const auto& entry) { return entry.second == BindingKind::kStorageBuffer; };
    EXPECT_LE(std::ranges::count_if(kinds, is_storage), kFloorStorageBuffers) << shader.name;
  }
}

TEST(ShaderShared, ReflectionRefusesWhatIsNoShader) {
  const std::vector<uint32_t> words(8, 0xdeadbeef);
  EXPECT_FALSE(ReflectShader(words).ok());
}

}  // namespace
}  // namespace kvrun
