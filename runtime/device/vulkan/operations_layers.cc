// Launchers of what layers consist of beside attention and plain products.
#include <algorithm>
#include <array>
#include <vector>

#include "platform/base/check.h"
#include "platform/base/units.h"
#include "runtime/device/vulkan/command_list.h"
#include "shaders/shared/layer_params.h"

namespace kvrun {
namespace {

constexpr uint32_t kLinearLocalSize = 64;
// Experts' products that are there at once before they are added up.
constexpr uint64_t kMostProductBytes = 16 * kMiB;
constexpr uint32_t kMostTaps = 8;
constexpr uint32_t kMostStateDims = 256;

// Of rows that are one sequence's; and how many such spans a step has.
struct StepSpans {
  uint32_t tokens = 0;
  uint32_t count = 0;

  StepSpans(bool of_prompt, uint32_t n_tokens)
      : tokens(of_prompt ? n_tokens : 1), count(of_prompt ? 1 : n_tokens) {}
};

}  // namespace

Result<const DeviceBuffer*> VulkanCommandList::TakeWorkspace(Workspace which, uint64_t size_bytes) {
  KVRUN_ASSIGN_OR_RETURN(const std::shared_ptr<const VulkanBuffer> buffer,
                         device_.GetWorkspace(which, size_bytes));
  if (std::find(workspaces_.begin(), workspaces_.end(), buffer) == workspaces_.end())
    workspaces_.push_back(buffer);
  return &buffer->memory();
}

Result<const DeviceBuffer*> VulkanCommandList::Counters() {
  return TakeWorkspace(Workspace::kCounters, KVRUN_WORKGROUP_COUNTERS * sizeof(uint32_t));
}

Status VulkanCommandList::Launch(const SigmoidGateArgs& args) {
  const SigmoidGateParams params{.n_values = args.n_rows * args.n_cols};
  const bool vectors = params.n_values % 4 == 0;
  const uint32_t invocations = vectors ? params.n_values / 4 : params.n_values;
  const KernelChoice kernel{.variant = "sigmoid_gate_f32_floor",
                            .constants = {vectors ? 1U : 0U},
                            .groups = {CeilDiv(invocations, kLinearLocalSize), 1, 1}};
  const std::array storage = {Binding{MemoryOrEmpty(args.gate), Access::kRead},
                              Binding{MemoryOrEmpty(args.values), Access::kReadWrite}};
  return Record({.kernel = kernel, .storage = storage, .params = ParamBytes(params)});
}

// Copies are few, so that they need no account of their own of what was read and written before.
Status VulkanCommandList::Launch(const CopyArgs& args) {
  std::vector<VkBufferCopy> regions;
  for (const CopyArgs::Piece& piece : args.pieces) {
    if (piece.size_bytes == 0) continue;
    KVRUN_CHECK(piece.from_bytes + piece.size_bytes <= args.from->size_bytes());
    KVRUN_CHECK(piece.to_bytes + piece.size_bytes <= args.to->size_bytes());
    regions.push_back({.srcOffset = piece.from_bytes, .dstOffset = piece.to_bytes, .size = piece.size_bytes});
  }
  if (regions.empty()) return Status::Ok();
  RecordFullBarrier(device_.vulkan(), commands_);
  device_.vulkan().vk().vkCmdCopyBuffer(commands_, AsVulkan(*args.from).memory().handle(),
                                        AsVulkan(*args.to).memory().handle(),
                                        static_cast<uint32_t>(regions.size()), regions.data());
  RecordFullBarrier(device_.vulkan(), commands_);
  read_.clear();
  written_.clear();
  NoteTime("copy");
  return Status::Ok();
}

Status VulkanCommandList::Launch(const ChooseExpertsArgs& args) {
  KVRUN_CHECK(args.n_experts <= KVRUN_MAX_EXPERTS);
  KVRUN_CHECK(args.n_used <= std::min<uint32_t>(args.n_experts, KVRUN_MAX_USED_EXPERTS));
  const ChooseExpertsParams params{.n_experts = args.n_experts, .n_used = args.n_used};
  const KernelChoice kernel{
      .variant = "choose_experts_f32_floor", .constants = {}, .groups = {args.n_tokens, 1, 1}};
  const std::array storage = {Binding{MemoryOrEmpty(args.logits), Access::kRead},
                              Binding{MemoryOrEmpty(args.ids), Access::kWrite},
                              Binding{MemoryOrEmpty(args.weights), Access::kWrite}};
  return Record({.kernel = kernel, .storage = storage, .params = ParamBytes(params)});
}

Status VulkanCommandList::GroupExperts(const ExpertMatMulArgs& args, uint32_t first_use, uint32_t n_uses,
                                       const ExpertsChoice& choice, const DeviceBuffer* groups) {
  const GroupExpertsParams params{.first_use = first_use,
                                  .n_uses = n_uses,
                                  .n_experts = args.weight->n_rows() / args.n_rows,
                                  .group_uses = choice.group_uses,
                                  .uses_begin = 4 + 2 * choice.most_groups};
  KVRUN_CHECK(params.n_experts <= KVRUN_MAX_EXPERTS);
  const KernelChoice kernel{.variant = "group_experts_u32_floor", .constants = {}, .groups = {1, 1, 1}};
  const std::array storage = {Binding{MemoryOrEmpty(args.ids), Access::kRead},
                              Binding{groups, Access::kWrite}};
  return Record({.kernel = kernel, .storage = storage, .params = ParamBytes(params)});
}

Status VulkanCommandList::ExpertProducts(const ExpertMatMulArgs& args, uint32_t first, uint32_t n,
                                         const DeviceBuffer* output) {
  const auto& weight = static_cast<const VulkanMatrix&>(*args.weight);
  const uint32_t first_use = first * args.n_used;
  const uint32_t n_uses = n * args.n_used;
  const ExpertsChoice choice =
      ChooseExpertMatMul(device_.plan(), device_.is_cpu(), weight.type(), weight.n_rows() / args.n_rows,
                         args.n_rows, weight.n_cols(), n_uses);
  const DeviceBuffer* uses = MemoryOrEmpty(args.ids);
  if (choice.group_uses > 1) {
    const uint64_t words = 4 + 2 * uint64_t{choice.most_groups} + n_uses;
    KVRUN_ASSIGN_OR_RETURN(uses, TakeWorkspace(Workspace::kGroups, words * sizeof(uint32_t)));
    KVRUN_RETURN_IF_ERROR(GroupExperts(args, first_use, n_uses, choice, uses));
  }
  for (const MatrixSlice& slice : weight.slices()) {
    const ExpertMatMulParams params{.planes = slice.layout.planes,
                                    .slice_rows = slice.layout.n_rows,
                                    .row_begin = slice.row_begin,
                                    .n_rows = args.n_rows,
                                    .n_cols = weight.n_cols(),
                                    .first_use = first_use,
                                    .input_uses = args.weights != nullptr ? 1 : args.n_used,
                                    .uses_begin = 4 + 2 * choice.most_groups};
    const std::array storage = {Binding{&slice.memory, Access::kRead},
                                Binding{MemoryOrEmpty(args.input), Access::kRead},
                                Binding{uses, Access::kRead}, Binding{output, Access::kWrite}};
    KVRUN_RETURN_IF_ERROR(
        Record({.kernel = choice.kernel, .storage = storage, .params = ParamBytes(params)}));
  }
  return Status::Ok();
}

Status VulkanCommandList::Launch(const ExpertMatMulArgs& args) {
  KVRUN_CHECK(args.n_rows != 0 && args.weight->n_rows() % args.n_rows == 0);
  if (args.weights == nullptr) return ExpertProducts(args, 0, args.n_tokens, MemoryOrEmpty(args.output));
  const uint64_t token_bytes = uint64_t{args.n_used} * args.n_rows * sizeof(float);
  const uint64_t most_bytes = std::min(kMostProductBytes, device_.info().max_buffer_bytes);
  const auto at_once =
      static_cast<uint32_t>(std::clamp<uint64_t>(most_bytes / token_bytes, 1, std::max(args.n_tokens, 1U)));
  for (uint32_t first = 0; first < args.n_tokens; first += at_once) {
    const uint32_t n = std::min(at_once, args.n_tokens - first);
    KVRUN_ASSIGN_OR_RETURN(const DeviceBuffer* const products,
                           TakeWorkspace(Workspace::kValues, n * token_bytes));
    KVRUN_RETURN_IF_ERROR(ExpertProducts(args, first, n, products));
    const SumExpertsParams params{.n_used = args.n_used, .n_rows = args.n_rows, .first_token = first};
    const KernelChoice kernel{.variant = "sum_experts_f32_floor",
                              .constants = {},
                              .groups = {CeilDiv(args.n_rows, kLinearLocalSize), n, 1}};
    const std::array storage = {Binding{products, Access::kRead},
                                Binding{MemoryOrEmpty(args.weights), Access::kRead},
                                Binding{MemoryOrEmpty(args.output), Access::kReadWrite}};
    KVRUN_RETURN_IF_ERROR(Record({.kernel = kernel, .storage = storage, .params = ParamBytes(params)}));
  }
  return Status::Ok();
}

Status VulkanCommandList::Launch(const ShortConvolutionArgs& args) {
  KVRUN_CHECK(args.n_taps >= 2 && args.n_taps <= kMostTaps);
  const StepSpans spans(args.of_prompt, args.n_tokens);
  const ShortConvolutionParams params{
      .n_channels = args.n_channels, .input_stride = args.input_stride, .span_tokens = spans.tokens};
  const KernelChoice kernel{.variant = "short_convolution_f32_floor",
                            .constants = {args.n_taps, args.is_gated ? 1U : 0U, args.has_silu ? 1U : 0U},
                            .groups = {CeilDiv(args.n_channels, kLinearLocalSize),
                                       CeilDiv<uint32_t>(spans.tokens, KVRUN_CONVOLVED_ROWS), spans.count}};
  const std::array storage = {Binding{MemoryOrEmpty(args.input), Access::kRead},
                              Binding{MemoryOrEmpty(args.taps), Access::kRead},
                              Binding{MemoryOrEmpty(args.state), Access::kReadWrite},
                              Binding{MemoryOrEmpty(args.output), Access::kWrite}};
  return Record(
      {.kernel = kernel, .storage = storage, .step = &AsVulkan(*args.step), .params = ParamBytes(params)});
}

Status VulkanCommandList::Launch(const DeltaRuleArgs& args) {
  KVRUN_CHECK(args.head_dim % 4 == 0 && args.head_dim <= kMostStateDims);
  const uint64_t gates_bytes =
      uint64_t{args.n_tokens} * args.n_value_heads * KVRUN_DELTA_GATES * sizeof(float);
  KVRUN_ASSIGN_OR_RETURN(const DeviceBuffer* const gates, TakeWorkspace(Workspace::kValues, gates_bytes));
  const DeltaGatesParams gates_params{.n_key_heads = args.n_key_heads,
                                      .n_value_heads = args.n_value_heads,
                                      .head_dim = args.head_dim,
                                      .gates_stride = args.gates_stride,
                                      .alpha_offset = args.alpha_offset,
                                      .beta_offset = args.beta_offset,
                                      .epsilon = args.epsilon};
  const KernelChoice gates_kernel{
      .variant = "delta_gates_f32_floor", .constants = {}, .groups = {args.n_value_heads, args.n_tokens, 1}};
  const std::array gates_storage = {
      Binding{MemoryOrEmpty(args.qkv), Access::kRead}, Binding{MemoryOrEmpty(args.gates), Access::kRead},
      Binding{MemoryOrEmpty(args.constants), Access::kRead}, Binding{gates, Access::kWrite}};
  KVRUN_RETURN_IF_ERROR(
      Record({.kernel = gates_kernel, .storage = gates_storage, .params = ParamBytes(gates_params)}));
  const StepSpans spans(args.of_prompt, args.n_tokens);
  const DeltaRuleParams params{
      .n_key_heads = args.n_key_heads, .n_value_heads = args.n_value_heads, .span_tokens = spans.tokens};
  const KernelChoice kernel{
      .variant = "delta_rule_f32_floor",
      .constants = {args.head_dim},
      .groups = {CeilDiv<uint32_t>(args.head_dim, KVRUN_DELTA_COLUMNS), args.n_value_heads, spans.count}};
  const std::array storage = {Binding{MemoryOrEmpty(args.qkv), Access::kRead}, Binding{gates, Access::kRead},
                              Binding{MemoryOrEmpty(args.state), Access::kReadWrite},
                              Binding{MemoryOrEmpty(args.output), Access::kWrite}};
  return Record(
      {.kernel = kernel, .storage = storage, .step = &AsVulkan(*args.step), .params = ParamBytes(params)});
}

Status VulkanCommandList::Launch(const GatedNormArgs& args) {
  const GatedNormParams params{.n_heads = args.n_heads,
                               .head_dim = args.head_dim,
                               .gate_stride = args.gate_stride,
                               .gate_offset = args.gate_offset,
                               .epsilon = args.epsilon};
  const KernelChoice kernel{
      .variant = "gated_norm_f32_floor", .constants = {}, .groups = {args.n_heads, args.n_tokens, 1}};
  const std::array storage = {Binding{MemoryOrEmpty(args.values), Access::kReadWrite},
                              Binding{MemoryOrEmpty(args.weight), Access::kRead},
                              Binding{MemoryOrEmpty(args.gate), Access::kRead}};
  return Record({.kernel = kernel, .storage = storage, .params = ParamBytes(params)});
}

}  // namespace kvrun
