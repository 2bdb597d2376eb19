// Structs of shaders/shared/ lie in memory as the shaders read them, and interfaces keep to the floor.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "runtime/device/vulkan/shader_library.h"
#include "shaders/shared/fill.h"
#include "shaders/shared/op_params.h"
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

// Every member of a struct of push constants, in the order of its declaration.
struct OffsetTable {
  size_t size_bytes;
  std::vector<size_t> offsets;
};

std::vector<size_t> PlanesThen(std::vector<size_t> rest) {
  std::vector<size_t> offsets = {offsetof(PackedPlanes, high), offsetof(PackedPlanes, scales),
                                 offsetof(PackedPlanes, extra), offsetof(PackedPlanes, n_chunks)};
  offsets.insert(offsets.end(), rest.begin(), rest.end());
  return offsets;
}

// By the operation that a variant's name begins with, without the digits of its tile.
std::map<std::string, OffsetTable> OperationOffsets() {
  static_assert(offsetof(EmbedParams, planes) == 0 && offsetof(MatMulParams, planes) == 0);
  const OffsetTable matmul{
      sizeof(MatMulParams),
      PlanesThen({offsetof(MatMulParams, n_rows), offsetof(MatMulParams, n_cols),
                  offsetof(MatMulParams, n_tokens), offsetof(MatMulParams, output_stride),
                  offsetof(MatMulParams, output_offset), offsetof(MatMulParams, bias_offset),
                  offsetof(MatMulParams, has_bias), offsetof(MatMulParams, accumulate)})};
  return {
      {"embed",
       {sizeof(EmbedParams), PlanesThen({offsetof(EmbedParams, n_rows), offsetof(EmbedParams, row_begin),
                                         offsetof(EmbedParams, n_cols), offsetof(EmbedParams, n_tokens)})}},
      {"matvec", matmul},
      {"matmul", matmul},
      {"rms_norm",
       {sizeof(RmsNormParams),
        {offsetof(RmsNormParams, n_rows), offsetof(RmsNormParams, n_cols),
         offsetof(RmsNormParams, epsilon)}}},
      {"rope_store",
       {sizeof(RopeStoreParams),
        {offsetof(RopeStoreParams, n_heads), offsetof(RopeStoreParams, n_kv_heads),
         offsetof(RopeStoreParams, head_dim), offsetof(RopeStoreParams, n_ctx),
         offsetof(RopeStoreParams, n_tokens), offsetof(RopeStoreParams, rotary_dim),
         offsetof(RopeStoreParams, rope_halves), offsetof(RopeStoreParams, has_qk_norm),
         offsetof(RopeStoreParams, norm_epsilon)}}},
      {"attend",
       {sizeof(AttendParams),
        {offsetof(AttendParams, n_heads), offsetof(AttendParams, n_kv_heads),
         offsetof(AttendParams, head_dim), offsetof(AttendParams, n_ctx), offsetof(AttendParams, span_tokens),
         offsetof(AttendParams, n_splits), offsetof(AttendParams, qkv_stride),
         offsetof(AttendParams, scale)}}},
      {"combine_splits",
       {sizeof(CombineParams),
        {offsetof(CombineParams, n_rows), offsetof(CombineParams, head_dim),
         offsetof(CombineParams, n_splits)}}},
      {"swiglu", {sizeof(SwiGluParams), {offsetof(SwiGluParams, n_tokens), offsetof(SwiGluParams, n_ff)}}},
      {"alu_rate", {sizeof(RateParams), {offsetof(RateParams, n_steps), offsetof(RateParams, stride)}}},
      {"read_rate", {sizeof(RateParams), {offsetof(RateParams, n_steps), offsetof(RateParams, stride)}}},
      {"gather_rows",
       {sizeof(GatherParams), {offsetof(GatherParams, n_rows), offsetof(GatherParams, n_cols)}}},
  };
}

TEST(ShaderShared, EveryOperationsParametersLieWhereCppPutsThem) {
  const std::map<std::string, OffsetTable> operations = OperationOffsets();
  std::map<std::string, size_t> seen;
  for (const ShaderCode& shader : AllShaders()) {
    const std::string_view name = shader.name;
    if (name.starts_with("fill_")) continue;  // the test above
    const auto operation =
        std::ranges::find_if(operations, [&](const auto& entry) { return name.starts_with(entry.first); });
    ASSERT_NE(operation, operations.end()) << name << " needs its struct's offsets here";
    ++seen[operation->first];
    const ReflectedShader reflected = Reflect(shader);
    EXPECT_EQ(Offsets(reflected.push_constants), operation->second.offsets) << name;
    EXPECT_EQ(reflected.push_constants.size() * 4, operation->second.size_bytes) << name;
  }
  EXPECT_EQ(seen.size(), operations.size());
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
  std::vector<size_t> expected = {offsetof(StepParams, n_tokens), offsetof(StepParams, n_outputs),
                                  offsetof(StepParams, padding0), offsetof(StepParams, padding1)};
  for (size_t token = 0; token < KVRUN_MAX_STEP_TOKENS; ++token) {
    const size_t begin = offsetof(StepParams, tokens) + token * sizeof(StepToken);
    for (const size_t member : {offsetof(StepToken, id), offsetof(StepToken, position),
                                offsetof(StepToken, sequence), offsetof(StepToken, output_row)}) {
      expected.push_back(begin + member);
    }
  }
  ASSERT_EQ(expected.size() * 4, sizeof(StepParams));
  size_t n_seen = 0;
  for (const ShaderCode& shader : AllShaders()) {
    for (const auto& binding : Reflect(shader).bindings) {
      if (binding.kind != BindingKind::kUniformBuffer) continue;
      ++n_seen;
      EXPECT_EQ(Offsets(binding.members), expected) << shader.name;
    }
  }
  EXPECT_GT(n_seen, 0U);
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
