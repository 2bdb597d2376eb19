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

namespace {

// On a GPU, of one token. More rows for a lane take fewer instructions, as the input is loaded once for them;
// more splits of a row have more of the weights in flight.
KernelChoice ChooseMatVec(const DevicePlan& plan, TensorType type, uint32_t n_rows, uint32_t n_cols,
                          const ProductEnds& ends) {
  constexpr uint32_t kLanes = KVRUN_ROW_INTERLEAVE;
  // Where a processor shares the GPU's memory, the GPU has few cores.
  const uint32_t rows_for_two = plan.unified_memory ? 1024 : 16384;
  const uint32_t rows = ends.gate != 0 || n_rows >= rows_for_two ? 2 : 1;
  const uint32_t group_rows = ends.gate != 0 ? kLanes : rows * kLanes;
  const uint32_t n_groups = CeilDiv(n_rows, group_rows);
  const uint32_t loads = CeilDiv<uint32_t>(n_cols, 4 * 32);  // of four blocks
  constexpr uint32_t kEnoughLanes = 128 * 1024;
  const uint32_t most_lanes = std::min<uint32_t>(KVRUN_MATVEC_LOCAL_SIZE, plan.max_workgroup_invocations);
  uint32_t splits = 1;
  while (splits * 2 * kLanes <= most_lanes && splits * 2 <= loads &&
         n_groups * splits * kLanes < kEnoughLanes) {
    splits *= 2;
  }
  return {
      .variant = fmt::format("matvec{}_{}_floor", rows, VariantTypeName(type)),
      .constants = {splits, ends.has_norm ? 1U : 0U, n_cols % 4 == 0 ? 1U : 0U, kLanes * splits, ends.gate},
      .groups = {n_groups, 1, 1}};
}

}  // namespace

KernelChoice ChooseMatMul(const DevicePlan& plan, bool is_cpu, TensorType type, uint32_t n_rows,
                          uint32_t n_cols, uint32_t n_tokens, const ProductEnds& ends) {
  if (n_tokens == 1 && !is_cpu) return ChooseMatVec(plan, type, n_rows, n_cols, ends);
  const bool subgroup = plan.use_subgroup_shuffle;
  const uint32_t lanes = subgroup ? plan.subgroup_width : kFloorLanes;
  const uint32_t max_local = std::min(kMaxLocalSize, plan.max_workgroup_invocations);
  const uint32_t tokens = MatMulTokens(plan, n_tokens);
  uint32_t rows = tokens == 1 ? kMatVecRows : kMatMulRows;
  if (ends.gate != 0) rows /= 2;  // and as many that these gate
  const uint32_t row_tiles = CeilDiv(n_rows, rows * lanes);
  const uint32_t tiles = TilesPerGroup(row_tiles, lanes, max_local);
  const std::string op = tokens == 1 ? "matvec" : fmt::format("matmul{}", tokens);
  return {.variant = fmt::format("{}_{}_{}", op, VariantTypeName(type), subgroup ? "subgroup" : "floor"),
          .constants = {lanes, ends.has_norm ? 1U : 0U, n_cols % 4 == 0 ? 1U : 0U, lanes * tiles, ends.gate},
          .groups = {CeilDiv(row_tiles, tiles), CeilDiv(n_tokens, tokens), 1}};
}

MatMulFusion FusionOf(const MatMulArgs& args, size_t n_slices) {
  // One buffer has the norm's weights and biases.
  const bool one_buffer = args.bias == nullptr || args.bias == args.norm.weight;
  return {.norm = args.n_tokens == 1 && one_buffer, .gate = args.n_tokens == 1 && n_slices == 1};
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

std::optional<AttendChoice> ChooseAttendNew(const DevicePlan& plan, bool is_cpu, const AttentionArgs& args) {
  AttendChoice choice = ChooseAttend(plan, is_cpu, args);
  KernelChoice& kernel = choice.kernel;
  if (args.of_prompt || args.goes_on() || plan.max_storage_buffers < kAttendNewBuffers ||
      !kernel.variant.ends_with("_subgroup") || args.kv_shape.head_dim > KVRUN_MAX_NEW_HEAD_DIM ||
      args.kv_shape.head_dim % 8 != 0 || args.rotary_dim % 8 != 0) {
    return std::nullopt;
  }
  // A workgroup is one subgroup, so that tiles can be counted.
  const uint32_t lanes = kernel.constants[0];
  kernel.groups[0] *= kernel.constants[2] / lanes;
  kernel.constants[2] = lanes;
  if (kernel.groups[0] * args.n_tokens > KVRUN_WORKGROUP_COUNTERS) return std::nullopt;
  kernel.variant.insert(std::string_view("attend").size(), "_new");
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
