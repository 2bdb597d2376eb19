// Structs of shaders/shared/ lie in memory as the shaders read them, and interfaces keep to the floor.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "runtime/device/vulkan/shader_library.h"
#include "shaders/shared/fill.h"
#include "shaders/shared/index_params.h"
#include "shaders/shared/layer_params.h"
#include "shaders/shared/mass_params.h"
#include "shaders/shared/op_params.h"
#include "shaders/shared/sample_params.h"
#include "shaders/shared/slot_params.h"
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

std::vector<size_t> RecordThen(std::vector<size_t> rest) {
  std::vector<size_t> offsets = {
      offsetof(KvRecordLayout, n_heads),       offsetof(KvRecordLayout, head_dim),
      offsetof(KvRecordLayout, group_tokens),  offsetof(KvRecordLayout, size_words),
      offsetof(KvRecordLayout, k_row_words),   offsetof(KvRecordLayout, v_row_words),
      offsetof(KvRecordLayout, k_row_scales),  offsetof(KvRecordLayout, v_row_scales),
      offsetof(KvRecordLayout, v_begin),       offsetof(KvRecordLayout, k_scales_begin),
      offsetof(KvRecordLayout, v_scales_begin)};
  offsets.insert(offsets.end(), rest.begin(), rest.end());
  return offsets;
}

std::vector<size_t> PlanesThen(std::vector<size_t> rest) {
  std::vector<size_t> offsets = {offsetof(PackedPlanes, high), offsetof(PackedPlanes, scales),
                                 offsetof(PackedPlanes, extra), offsetof(PackedPlanes, n_chunks)};
  offsets.insert(offsets.end(), rest.begin(), rest.end());
  return offsets;
}

std::vector<size_t> SourcesThen(std::vector<size_t> rest) {
  std::vector<size_t> offsets;
  for (size_t source = 0; source < KVRUN_MOST_ATTENDED_SOURCES; ++source) {
    for (const size_t member :
         {offsetof(AttendedSource, record_heads), offsetof(AttendedSource, group_tokens),
          offsetof(AttendedSource, record_words), offsetof(AttendedSource, n_slots),
          offsetof(AttendedSource, table_stride)}) {
      offsets.push_back(offsetof(AttendSourcesParams, sources) + source * sizeof(AttendedSource) + member);
    }
  }
  offsets.insert(offsets.end(), rest.begin(), rest.end());
  return offsets;
}

// Of the operations on KV records.
std::map<std::string, OffsetTable> RecordOperationOffsets() {
  static_assert(offsetof(RopeEncodeParams, record) == 0 && offsetof(AttendSlotsParams, record) == 0 &&
                offsetof(RecordCopyParams, record) == 0);
  const OffsetTable copy{
      sizeof(RecordCopyParams),
      RecordThen({offsetof(RecordCopyParams, n_kv_heads), offsetof(RecordCopyParams, n_ctx),
                  offsetof(RecordCopyParams, first_token), offsetof(RecordCopyParams, n_groups),
                  offsetof(RecordCopyParams, means_begin), offsetof(RecordCopyParams, first_head)})};
  return {
      {"encode_records", copy},
      {"decode_records", copy},
      {"rope_encode",
       {sizeof(RopeEncodeParams),
        RecordThen({offsetof(RopeEncodeParams, n_heads), offsetof(RopeEncodeParams, n_kv_heads),
                    offsetof(RopeEncodeParams, n_tokens), offsetof(RopeEncodeParams, rotary_dim),
                    offsetof(RopeEncodeParams, rope_halves), offsetof(RopeEncodeParams, has_qk_norm),
                    offsetof(RopeEncodeParams, norm_epsilon), offsetof(RopeEncodeParams, n_slots),
                    offsetof(RopeEncodeParams, n_window_slots), offsetof(RopeEncodeParams, means_begin)})}},
      {"attend_sources",
       {sizeof(AttendSourcesParams),
        SourcesThen({offsetof(AttendSourcesParams, n_heads), offsetof(AttendSourcesParams, n_kv_heads),
                     offsetof(AttendSourcesParams, n_splits), offsetof(AttendSourcesParams, split_block),
                     offsetof(AttendSourcesParams, keeps_parts), offsetof(AttendSourcesParams, qkv_stride),
                     offsetof(AttendSourcesParams, scale), offsetof(AttendSourcesParams, score_cap),
                     offsetof(AttendSourcesParams, means_begin)})}},
      {"attend_slots",
       {sizeof(AttendSlotsParams),
        RecordThen({offsetof(AttendSlotsParams, n_heads), offsetof(AttendSlotsParams, n_kv_heads),
                    offsetof(AttendSlotsParams, n_slots), offsetof(AttendSlotsParams, table_stride),
                    offsetof(AttendSlotsParams, n_splits), offsetof(AttendSlotsParams, split_block),
                    offsetof(AttendSlotsParams, first_part), offsetof(AttendSlotsParams, n_parts),
                    offsetof(AttendSlotsParams, keeps_parts), offsetof(AttendSlotsParams, qkv_stride),
                    offsetof(AttendSlotsParams, scale), offsetof(AttendSlotsParams, scores_begin),
                    offsetof(AttendSlotsParams, scores_stride), offsetof(AttendSlotsParams, score_cap)})}},
  };
}

std::vector<size_t> FormThen(std::vector<size_t> rest) {
  std::vector<size_t> offsets = {offsetof(MassFormParams, n_moments), offsetof(MassFormParams, heads),
                                 offsetof(MassFormParams, rows)};
  offsets.insert(offsets.end(), rest.begin(), rest.end());
  return offsets;
}

// Those of shaders/shared/mass_params.h.
std::map<std::string, OffsetTable> MassOperationOffsets() {
  static_assert(offsetof(SlotMassParams, form) == 0 && offsetof(RowMassParams, form) == 0);
  const OffsetTable of_rows{
      sizeof(RowMassParams),
      FormThen({offsetof(RowMassParams, n_rows), offsetof(RowMassParams, n_heads),
                offsetof(RowMassParams, n_kv_heads), offsetof(RowMassParams, head_dim),
                offsetof(RowMassParams, n_ctx), offsetof(RowMassParams, tile_begin),
                offsetof(RowMassParams, n_entries), offsetof(RowMassParams, is_first),
                offsetof(RowMassParams, mass_stride), offsetof(RowMassParams, mass_begin),
                offsetof(RowMassParams, scale), offsetof(RowMassParams, score_cap)})};
  return {
      {"slot_mass",
       {sizeof(SlotMassParams),
        FormThen({offsetof(SlotMassParams, n_heads), offsetof(SlotMassParams, n_kv_heads),
                  offsetof(SlotMassParams, head_dim), offsetof(SlotMassParams, n_parts),
                  offsetof(SlotMassParams, scores_begin), offsetof(SlotMassParams, scores_stride),
                  offsetof(SlotMassParams, record_heads), offsetof(SlotMassParams, group_tokens),
                  offsetof(SlotMassParams, table_stride), offsetof(SlotMassParams, list_entries),
                  offsetof(SlotMassParams, n_lists)})}},
      {"sum_weights", of_rows},
      {"attention_mass", of_rows},
  };
}

// Those of shaders/shared/index_params.h.
std::map<std::string, OffsetTable> IndexOperationOffsets() {
  const std::vector<size_t> of_query = {
      offsetof(ProjectQueryParams, n_heads),     offsetof(ProjectQueryParams, n_kv_heads),
      offsetof(ProjectQueryParams, head_dim),    offsetof(ProjectQueryParams, rank),
      offsetof(ProjectQueryParams, n_rows),      offsetof(ProjectQueryParams, z_begin),
      offsetof(ProjectQueryParams, scale),       offsetof(ProjectQueryParams, is_affine),
      offsetof(ProjectQueryParams, rotary_dim),  offsetof(ProjectQueryParams, rope_halves),
      offsetof(ProjectQueryParams, norm_epsilon)};
  const OffsetTable project_query{sizeof(ProjectQueryParams), of_query};
  const std::vector<size_t> of_score = {
      offsetof(ScoreParams, n_groups),        offsetof(ScoreParams, group_words),
      offsetof(ScoreParams, group_tokens),    offsetof(ScoreParams, window_tokens),
      offsetof(ScoreParams, n_rows),          offsetof(ScoreParams, list_rows),
      offsetof(ScoreParams, first_row),       offsetof(ScoreParams, n_units),
      offsetof(ScoreParams, n_workgroups),    offsetof(ScoreParams, z_begin),
      offsetof(ScoreParams, softmaxes_begin), offsetof(ScoreParams, totals_begin),
      offsetof(ScoreParams, scores_begin),    offsetof(ScoreParams, scores_stride),
      offsetof(ScoreParams, kept_begin),      offsetof(ScoreParams, candidates_begin),
      offsetof(ScoreParams, candidate_words)};
  std::vector<size_t> of_both = of_score;
  for (const size_t offset : of_query) of_both.push_back(offsetof(ProjectScoreParams, query) + offset);
  return {
      {"rotate_query",
       {sizeof(RotateQueryParams),
        {offsetof(RotateQueryParams, n_heads), offsetof(RotateQueryParams, head_dim),
         offsetof(RotateQueryParams, rotary_dim), offsetof(RotateQueryParams, rope_halves),
         offsetof(RotateQueryParams, has_norm), offsetof(RotateQueryParams, norm_epsilon)}}},
      {"project_query", project_query},
      {"rotate_project_query", project_query},
      {"sign_query",
       {sizeof(SignQueryParams),
        {offsetof(SignQueryParams, n_heads), offsetof(SignQueryParams, n_kv_heads),
         offsetof(SignQueryParams, head_dim), offsetof(SignQueryParams, n_rows),
         offsetof(SignQueryParams, n_added), offsetof(SignQueryParams, z_begin),
         offsetof(SignQueryParams, scale)}}},
      {"mean_queries",
       {sizeof(MeanQueriesParams),
        {offsetof(MeanQueriesParams, n_rows), offsetof(MeanQueriesParams, n_first_rows),
         offsetof(MeanQueriesParams, rank), offsetof(MeanQueriesParams, first_columns),
         offsetof(MeanQueriesParams, z_begin), offsetof(MeanQueriesParams, first_z_begin)}}},
      {"score", {sizeof(ScoreParams), of_score}},
      {"project_score_rows", {sizeof(ProjectScoreParams), of_both}},
      {"select_",
       {sizeof(SelectGroupsParams),
        {offsetof(SelectGroupsParams, n_groups), offsetof(SelectGroupsParams, group_tokens),
         offsetof(SelectGroupsParams, window_tokens), offsetof(SelectGroupsParams, n_lists),
         offsetof(SelectGroupsParams, n_pinned), offsetof(SelectGroupsParams, n_chosen),
         offsetof(SelectGroupsParams, list_words), offsetof(SelectGroupsParams, tell_at),
         offsetof(SelectGroupsParams, scores_begin), offsetof(SelectGroupsParams, scores_stride),
         offsetof(SelectGroupsParams, mass_share), offsetof(SelectGroupsParams, mass_scale),
         offsetof(SelectGroupsParams, most_weight), offsetof(SelectGroupsParams, per_weight),
         offsetof(SelectGroupsParams, stage), offsetof(SelectGroupsParams, candidates_begin),
         offsetof(SelectGroupsParams, candidate_words), offsetof(SelectGroupsParams, chosen_begin)}}},
      {"sample_groups",
       {sizeof(SampleGroupsParams),
        {offsetof(SampleGroupsParams, n_groups), offsetof(SampleGroupsParams, group_tokens),
         offsetof(SampleGroupsParams, window_tokens), offsetof(SampleGroupsParams, n_lists),
         offsetof(SampleGroupsParams, n_chosen), offsetof(SampleGroupsParams, n_sampled),
         offsetof(SampleGroupsParams, scores_begin), offsetof(SampleGroupsParams, scores_stride),
         offsetof(SampleGroupsParams, seed)}}},
      {"accumulate_gram",
       {sizeof(AccumulateGramParams),
        {offsetof(AccumulateGramParams, n_vectors), offsetof(AccumulateGramParams, first_row),
         offsetof(AccumulateGramParams, row_stride), offsetof(AccumulateGramParams, first_column),
         offsetof(AccumulateGramParams, dim), offsetof(AccumulateGramParams, n_blocks),
         offsetof(AccumulateGramParams, sums_offset)}}},
      {"project_keys",
       {sizeof(ProjectKeysParams),
        {offsetof(ProjectKeysParams, n_tokens), offsetof(ProjectKeysParams, n_dims),
         offsetof(ProjectKeysParams, rank), offsetof(ProjectKeysParams, first_token),
         offsetof(ProjectKeysParams, head_dim), offsetof(ProjectKeysParams, n_ctx)}}},
  };
}

// Those of shaders/shared/layer_params.h.
std::map<std::string, OffsetTable> LayerOperationOffsets() {
  static_assert(offsetof(ExpertMatMulParams, planes) == 0);
  return {
      {"sigmoid_gate", {sizeof(SigmoidGateParams), {offsetof(SigmoidGateParams, n_values)}}},
      {"choose_experts",
       {sizeof(ChooseExpertsParams),
        {offsetof(ChooseExpertsParams, n_experts), offsetof(ChooseExpertsParams, n_used)}}},
      {"group_experts",
       {sizeof(GroupExpertsParams),
        {offsetof(GroupExpertsParams, first_use), offsetof(GroupExpertsParams, n_uses),
         offsetof(GroupExpertsParams, n_experts), offsetof(GroupExpertsParams, group_uses),
         offsetof(GroupExpertsParams, uses_begin)}}},
      {"expert_matmul",
       {sizeof(ExpertMatMulParams),
        PlanesThen({offsetof(ExpertMatMulParams, slice_rows), offsetof(ExpertMatMulParams, row_begin),
                    offsetof(ExpertMatMulParams, n_rows), offsetof(ExpertMatMulParams, n_cols),
                    offsetof(ExpertMatMulParams, first_use), offsetof(ExpertMatMulParams, input_uses),
                    offsetof(ExpertMatMulParams, uses_begin)})}},
      {"sum_experts",
       {sizeof(SumExpertsParams),
        {offsetof(SumExpertsParams, n_used), offsetof(SumExpertsParams, n_rows),
         offsetof(SumExpertsParams, first_token)}}},
      {"short_convolution",
       {sizeof(ShortConvolutionParams),
        {offsetof(ShortConvolutionParams, n_channels), offsetof(ShortConvolutionParams, input_stride),
         offsetof(ShortConvolutionParams, span_tokens)}}},
      {"delta_gates",
       {sizeof(DeltaGatesParams),
        {offsetof(DeltaGatesParams, n_key_heads), offsetof(DeltaGatesParams, n_value_heads),
         offsetof(DeltaGatesParams, head_dim), offsetof(DeltaGatesParams, gates_stride),
         offsetof(DeltaGatesParams, alpha_offset), offsetof(DeltaGatesParams, beta_offset),
         offsetof(DeltaGatesParams, epsilon)}}},
      {"delta_rule",
       {sizeof(DeltaRuleParams),
        {offsetof(DeltaRuleParams, n_key_heads), offsetof(DeltaRuleParams, n_value_heads),
         offsetof(DeltaRuleParams, span_tokens)}}},
      {"gated_norm",
       {sizeof(GatedNormParams),
        {offsetof(GatedNormParams, n_heads), offsetof(GatedNormParams, head_dim),
         offsetof(GatedNormParams, gate_stride), offsetof(GatedNormParams, gate_offset),
         offsetof(GatedNormParams, epsilon)}}},
  };
}

// By the operation that a variant's name begins with, without the digits of its tile.
std::map<std::string, OffsetTable> OperationOffsets() {
  static_assert(offsetof(EmbedParams, planes) == 0 && offsetof(MatMulParams, planes) == 0);
  const OffsetTable rms_norm{
      sizeof(RmsNormParams),
      {offsetof(RmsNormParams, n_rows), offsetof(RmsNormParams, n_cols), offsetof(RmsNormParams, epsilon)}};
  const OffsetTable matmul{
      sizeof(MatMulParams),
      PlanesThen({offsetof(MatMulParams, n_rows), offsetof(MatMulParams, n_cols),
                  offsetof(MatMulParams, n_tokens), offsetof(MatMulParams, output_stride),
                  offsetof(MatMulParams, output_offset), offsetof(MatMulParams, bias_offset),
                  offsetof(MatMulParams, has_bias), offsetof(MatMulParams, accumulate),
                  offsetof(MatMulParams, norm_epsilon)})};
  const std::vector<size_t> attend = {
      offsetof(AttendParams, n_heads),     offsetof(AttendParams, n_kv_heads),
      offsetof(AttendParams, head_dim),    offsetof(AttendParams, n_ctx),
      offsetof(AttendParams, span_tokens), offsetof(AttendParams, n_splits),
      offsetof(AttendParams, keeps_parts), offsetof(AttendParams, qkv_stride),
      offsetof(AttendParams, scale),       offsetof(AttendParams, first_stream),
      offsetof(AttendParams, n_streams),   offsetof(AttendParams, window_tokens),
      offsetof(AttendParams, score_cap)};
  std::vector<size_t> attend_new = attend;
  for (const size_t member :
       {offsetof(NewEntryParams, rotary_dim), offsetof(NewEntryParams, rope_halves),
        offsetof(NewEntryParams, has_qk_norm), offsetof(NewEntryParams, norm_epsilon)}) {
    attend_new.push_back(sizeof(AttendParams) + member);
  }
  std::map<std::string, OffsetTable> operations = {
      {"embed",
       {sizeof(EmbedParams), PlanesThen({offsetof(EmbedParams, n_rows), offsetof(EmbedParams, row_begin),
                                         offsetof(EmbedParams, n_cols), offsetof(EmbedParams, n_tokens),
                                         offsetof(EmbedParams, scale)})}},
      {"matvec", matmul},
      {"matmul", matmul},
      {"rms_norm", rms_norm},
      {"rope_store",
       {sizeof(RopeStoreParams),
        {offsetof(RopeStoreParams, n_heads), offsetof(RopeStoreParams, n_kv_heads),
         offsetof(RopeStoreParams, head_dim), offsetof(RopeStoreParams, n_ctx),
         offsetof(RopeStoreParams, n_tokens), offsetof(RopeStoreParams, rotary_dim),
         offsetof(RopeStoreParams, rope_halves), offsetof(RopeStoreParams, has_qk_norm),
         offsetof(RopeStoreParams, norm_epsilon), offsetof(RopeStoreParams, first_stream),
         offsetof(RopeStoreParams, n_streams), offsetof(RopeStoreParams, is_rotated)}}},
      {"attend", {sizeof(AttendParams), attend}},
      {"attend_new", {sizeof(AttendParams) + sizeof(NewEntryParams), attend_new}},
      {"combine_splits",
       {sizeof(CombineParams),
        {offsetof(CombineParams, n_rows), offsetof(CombineParams, head_dim),
         offsetof(CombineParams, n_splits), offsetof(CombineParams, first_row)}}},
      {"combine_in_space",
       {sizeof(CombineInSpaceParams),
        {offsetof(CombineInSpaceParams, head_dim), offsetof(CombineInSpaceParams, n_splits),
         offsetof(CombineInSpaceParams, n_heads), offsetof(CombineInSpaceParams, n_kv_heads),
         offsetof(CombineInSpaceParams, means_begin)}}},
      {"merge_splits",
       {sizeof(MergeParams),
        {offsetof(MergeParams, n_rows), offsetof(MergeParams, head_dim), offsetof(MergeParams, n_splits),
         offsetof(MergeParams, has_before), offsetof(MergeParams, first_before),
         offsetof(MergeParams, first_after)}}},
      {"swiglu", {sizeof(SwiGluParams), {offsetof(SwiGluParams, n_tokens), offsetof(SwiGluParams, n_ff)}}},
      {"alu_rate", {sizeof(RateParams), {offsetof(RateParams, n_steps), offsetof(RateParams, stride)}}},
      {"read_rate", {sizeof(RateParams), {offsetof(RateParams, n_steps), offsetof(RateParams, stride)}}},
      {"gather_rows",
       {sizeof(GatherParams), {offsetof(GatherParams, n_rows), offsetof(GatherParams, n_cols)}}},
  };
  operations.merge(IndexOperationOffsets());
  return operations;
}

TEST(ShaderShared, EveryOperationsParametersLieWhereCppPutsThem) {
  std::map<std::string, OffsetTable> operations = OperationOffsets();
  operations.merge(RecordOperationOffsets());
  operations.merge(MassOperationOffsets());
  operations.merge(LayerOperationOffsets());
  std::map<std::string, size_t> seen;
  for (const ShaderCode& shader : AllShaders()) {
    const std::string_view name = shader.name;
    if (name.starts_with("fill_")) continue;  // the test above
    // From the back: of two prefixes, as attend and attend_slots, the longer one.
    const auto operation = std::find_if(operations.rbegin(), operations.rend(),
                                        [&](const auto& entry) { return name.starts_with(entry.first); });
    ASSERT_NE(operation, operations.rend()) << name << " needs its struct's offsets here";
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
                                  offsetof(StepParams, most_chosen), offsetof(StepParams, padding)};
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
    EXPECT_LE(std::count_if(kinds.begin(), kinds.end(), is_storage), kFloorStorageBuffers) << shader.name;
  }
}

TEST(ShaderShared, ReflectionRefusesWhatIsNoShader) {
  const std::vector<uint32_t> words(8, 0xdeadbeef);
  EXPECT_FALSE(ReflectShader(words).ok());
}

}  // namespace
}  // namespace kvrun
