#include "runtime/device/vulkan/kernel_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cctype>

#include "platform/base/units.h"
#include "shaders/shared/op_params.h"

namespace kvrun {
namespace {

constexpr uint32_t kFloorLanes = 32;
constexpr uint32_t kMaxLocalSize = 128;
// Rows per lane of the variants.
constexpr uint32_t kMatVecRows = 8;
constexpr uint32_t kMatMulRows = 4;

uint32_t MatMulTokens(const DevicePlan& plan, uint32_t n_tokens) {
  if (n_tokens <= 2 || plan.few_accumulators) return std::min(n_tokens, 2U);
  return n_tokens <= 4 ? 4 : 8;
}

// Subgroups of one workgroup: as many as leave enough workgroups to keep a device busy.
uint32_t TilesPerGroup(uint32_t tiles, uint32_t lanes, uint32_t max_local_size) {
  constexpr uint32_t kEnoughGroups = 32;
  uint32_t per_group = 1;
  while (per_group * 2 * lanes <= std::min(max_local_size, 64U) && tiles / (per_group * 2) >= kEnoughGroups) {
    per_group *= 2;
  }
  return per_group;
}

// With fewer lanes each holds so much of a head that registers do not suffice, and SwiftShader compiles for
// minutes.
constexpr uint32_t kFewestAttendLanes = 8;

bool SubgroupAttendFits(uint32_t head_dim, uint32_t vector_dims, uint32_t lanes) {
  if (lanes < kFewestAttendLanes || head_dim % vector_dims != 0) return false;
  const uint32_t vectors = head_dim / vector_dims;
  return std::has_single_bit(vectors) && vectors <= 4 * lanes;
}

}  // namespace

std::string VariantTypeName(TensorType type) {
  std::string name(TensorTypeName(type));
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return name;
}

KernelChoice ChooseMatMul(const DevicePlan& plan, bool is_cpu, TensorType type, uint32_t n_rows,
                          uint32_t n_cols, uint32_t n_tokens) {
  const bool subgroup = plan.use_subgroup_shuffle;
  const uint32_t lanes = subgroup ? plan.subgroup_width : kFloorLanes;
  const uint32_t max_local = std::min(kMaxLocalSize, plan.max_workgroup_invocations);
  const uint32_t tokens = MatMulTokens(plan, n_tokens);
  // A GPU decodes faster with more invocations, a CPU with more work in each.
  const bool single_row = tokens == 1 && !is_cpu;
  uint32_t rows = tokens == 1 ? kMatVecRows : kMatMulRows;
  if (single_row) rows = 1;
  const uint32_t n_chunks = CeilDiv<uint32_t>(n_cols, KVRUN_CHUNK_COLUMNS);

  uint32_t splits = 1;
  if (single_row) {
    while (splits * 2 * lanes <= max_local && splits * 2 <= std::min(4U, n_chunks)) splits *= 2;
  }
  const uint32_t row_tiles = CeilDiv(n_rows, rows * lanes);
  const uint32_t tiles = splits > 1 ? 1 : TilesPerGroup(row_tiles, lanes, max_local);

  std::string op = "matvec";
  if (single_row) op = "matvec1";
  if (tokens > 1) op = fmt::format("matmul{}", tokens);
  return {.variant = fmt::format("{}_{}_{}", op, VariantTypeName(type), subgroup ? "subgroup" : "floor"),
          .constants = {lanes, splits, n_cols % 4 == 0 ? 1U : 0U, lanes * tiles * splits},
          .groups = {CeilDiv(row_tiles, tiles), CeilDiv(n_tokens, tokens), 1}};
}

AttendChoice ChooseAttend(const DevicePlan& plan, bool is_cpu, const KvShape& kv, uint32_t n_heads,
                          uint32_t n_tokens, bool of_prompt) {
  const uint32_t vector_dims = kv.type == KvType::kF16 ? 8 : 4;
  const uint32_t lanes = plan.subgroup_width;
  const bool subgroup = plan.use_subgroup_shuffle && SubgroupAttendFits(kv.head_dim, vector_dims, lanes);
  const uint32_t span_tokens = of_prompt ? n_tokens : 1;
  const uint32_t spans = of_prompt ? 1 : n_tokens;
  const uint32_t span_rows = span_tokens * (n_heads / kv.n_kv_heads);

  uint32_t max_rows = plan.few_accumulators || !subgroup ? 4 : 8;
  if (subgroup) max_rows = std::min(max_rows, 8 * lanes / vector_dims);  // what the lanes can share
  uint32_t rows = 1;
  while (rows < span_rows && rows < max_rows) rows *= 2;
  const uint32_t tiles = CeilDiv(span_rows, rows) * kv.n_kv_heads;

  AttendChoice choice;
  const uint32_t wanted = is_cpu ? 24 : 256;
  const uint32_t most = std::max(1U, kv.n_ctx / 128);
  choice.n_splits = std::clamp(wanted / (tiles * spans), 1U, std::min(most, 64U));
  choice.kernel.variant = fmt::format("attend{}_{}_{}", rows, kv.type == KvType::kF16 ? "f16" : "f32",
                                      subgroup ? "subgroup" : "floor");
  choice.kernel.groups = {tiles, choice.n_splits, spans};
  if (subgroup) {
    const uint32_t per_group =
        TilesPerGroup(tiles, lanes, std::min(kMaxLocalSize, plan.max_workgroup_invocations));
    choice.kernel.constants = {lanes, kv.head_dim, lanes * per_group};
    choice.kernel.groups[0] = CeilDiv(tiles, per_group);
  }
  return choice;
}

AttendChoice ChooseAttend(const DevicePlan& plan, bool is_cpu, const AttentionArgs& args) {
  KvShape kv = args.kv_shape;
  const bool has_window = args.window_tokens > 0;
  const bool has_cap = args.score_cap > 0.0F;
  const uint32_t rows_after_first = args.of_prompt ? args.n_tokens - 1 : 0;
  if (has_window) kv.n_ctx = std::min(kv.n_ctx, args.window_tokens + rows_after_first);
  AttendChoice choice = ChooseAttend(plan, is_cpu, kv, args.n_heads, args.n_tokens, args.of_prompt);
  if (has_window || has_cap) {
    choice.kernel.constants.push_back(has_cap ? 1 : 0);
    choice.kernel.constants.push_back(has_window ? 1 : 0);
  }
  return choice;
}

KernelChoice WithCap(KernelChoice kernel, float score_cap) {
  if (score_cap > 0.0F) kernel.constants.push_back(1);
  return kernel;
}

ExpertsChoice ChooseExpertMatMul(const DevicePlan& plan, bool is_cpu, TensorType type, uint32_t n_experts,
                                 uint32_t n_rows, uint32_t n_cols, uint32_t n_uses) {
  constexpr uint32_t kMostUses = 8;
  ExpertsChoice choice;
  // To bring them together is worth it where most experts have several.
  const uint32_t most = plan.few_accumulators ? kMostUses / 2 : kMostUses;
  while (choice.group_uses < most && n_uses >= choice.group_uses * 2 * n_experts) choice.group_uses *= 2;
  // An expert's last group may be no full one.
  choice.most_groups =
      std::min(n_uses, (n_uses + std::min(n_experts, n_uses) * (choice.group_uses - 1)) / choice.group_uses);
  uint32_t splits = 1;
  const uint32_t most_splits = std::min(kMaxLocalSize, plan.max_workgroup_invocations) / kFloorLanes;
  while (!is_cpu && splits * 2 <= std::min(most_splits, CeilDiv(n_cols, 32U))) splits *= 2;
  choice.kernel = {.variant = fmt::format("expert_matmul_{}_floor", VariantTypeName(type)),
                   .constants = {choice.group_uses, splits, choice.group_uses > 1 ? 1U : 0U,
                                 n_cols % 4 == 0 ? 1U : 0U, kFloorLanes * splits},
                   .groups = {CeilDiv(n_rows, kFloorLanes), choice.most_groups, 1}};
  return choice;
}

}  // namespace kvrun
