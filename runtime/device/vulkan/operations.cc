// One launcher per shader: an operation's arguments become bindings, push constants and workgroups.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "platform/base/check.h"
#include "platform/base/units.h"
#include "runtime/device/matmul_parts.h"
#include "runtime/device/vulkan/command_list.h"
#include "shaders/shared/op_params.h"

namespace kvrun {
namespace {

KernelChoice Linear(std::string variant, uint64_t invocations, uint32_t local_size,
                    std::vector<uint32_t> constants = {}) {
  return {.variant = std::move(variant),
          .constants = std::move(constants),
          .groups = {static_cast<uint32_t>(CeilDiv<uint64_t>(invocations, local_size)), 1, 1}};
}

std::string_view ElementName(KvType type) { return type == KvType::kF16 ? "f16" : "f32"; }

AttendParams ParamsOf(const AttentionArgs& args, const AttendChoice& choice, uint32_t first_stream,
                      uint32_t n_streams) {
  const KvShape& kv = args.kv_shape;
  return {.n_heads = args.n_heads,
          .n_kv_heads = kv.n_kv_heads,
          .head_dim = kv.head_dim,
          .n_ctx = kv.n_ctx,
          .span_tokens = args.of_prompt ? args.n_tokens : 1,
          .n_splits = choice.n_splits,
          .keeps_parts = choice.n_splits > 1 || args.goes_on() ? 1U : 0U,
          .qkv_stride = (args.n_heads + 2 * kv.n_kv_heads) * kv.head_dim,
          .scale = args.scale(),
          .first_stream = first_stream,
          .n_streams = n_streams,
          .window_tokens = args.window_tokens,
          .score_cap = args.score_cap};
}

// Push constants of a kernel of attention that takes new entries.
struct AttendNewParams {
  AttendParams attend;
  NewEntryParams entry;
};

NewEntryParams NewEntryOf(const AttentionArgs& args) {
  return {.rotary_dim = args.rotary_dim,
          .rope_halves = args.rope_halves ? 1U : 0U,
          .has_qk_norm = args.norms != nullptr ? 1U : 0U,
          .norm_epsilon = args.norm_epsilon};
}

}  // namespace

Status VulkanCommandList::Launch(const EmbedArgs& args) {
  for (const MatrixSlice& slice : static_cast<const VulkanMatrix&>(*args.table).slices()) {
    const EmbedParams params{.planes = slice.layout.planes,
                             .n_rows = slice.layout.n_rows,
                             .row_begin = slice.row_begin,
                             .n_cols = args.table->n_cols(),
                             .n_tokens = args.n_tokens,
                             .scale = args.scale};
    const KernelChoice kernel = Linear(fmt::format("embed_{}_floor", VariantTypeName(args.table->type())),
                                       uint64_t{args.n_tokens} * slice.layout.planes.n_chunks * 2, 64);
    const std::array storage = {Binding{&slice.memory, Access::kRead},
                                Binding{MemoryOrEmpty(args.out), Access::kWrite}};
    KVRUN_RETURN_IF_ERROR(Record(
        {.kernel = kernel, .storage = storage, .step = &AsVulkan(*args.step), .params = ParamBytes(params)}));
  }
  return Status::Ok();
}

Status VulkanCommandList::Launch(const RmsNormArgs& args) {
  const RmsNormParams params{.n_rows = args.n_rows, .n_cols = args.n_cols, .epsilon = args.epsilon};
  const KernelChoice kernel{.variant = "rms_norm_f32_floor",
                            .constants = {args.n_cols % 4 == 0 ? 1U : 0U, args.accumulate ? 1U : 0U},
                            .groups = {args.n_rows, 1, 1}};
  const std::array storage = {
      Binding{MemoryOrEmpty(args.x), Access::kRead}, Binding{MemoryOrEmpty(args.weight), Access::kRead},
      Binding{MemoryOrEmpty(args.out), args.accumulate ? Access::kReadWrite : Access::kWrite}};
  return Record({.kernel = kernel, .storage = storage, .params = ParamBytes(params)});
}

Status VulkanCommandList::Launch(const MatMulArgs& args) {
  const auto& weight = static_cast<const VulkanMatrix&>(*args.weight);
  const MatMulFusion fusion = FusionOf(args, weight.slices().size());
  if (IsWhole(args, fusion)) return Multiply(args);
  for (const Operation& part : PartsOf(args, fusion)) KVRUN_RETURN_IF_ERROR(Add(part));
  return Status::Ok();
}

Status VulkanCommandList::Multiply(const MatMulArgs& args) {
  const auto& weight = static_cast<const VulkanMatrix&>(*args.weight);
  const uint32_t wanted_rows = args.n_rows != 0 ? args.n_rows : weight.n_rows();
  const uint32_t stride = args.output_stride != 0 ? args.output_stride : wanted_rows;
  NoteHostBuffer(AsVulkan(*args.output), uint64_t{args.n_tokens} * stride * sizeof(float));
  KVRUN_CHECK(wanted_rows <= weight.n_rows());
  ProductEnds ends{.has_norm = args.norm.weight != nullptr};
  if (args.gate.gate_up != nullptr) {
    ends.gate = args.gate.activation == Activation::kSilu ? KVRUN_GATE_SILU : KVRUN_GATE_GELU;
  }
  for (const MatrixSlice& slice : weight.slices()) {
    if (slice.row_begin >= wanted_rows) break;
    uint32_t n_rows = std::min(slice.layout.n_rows, wanted_rows - slice.row_begin);
    if (ends.gate != 0) n_rows /= 2;
    const MatMulParams params{
        .planes = slice.layout.planes,
        .n_rows = n_rows,
        .n_cols = weight.n_cols(),
        .n_tokens = args.n_tokens,
        .output_stride = stride,
        .output_offset = args.output_offset + slice.row_begin,
        .bias_offset = args.bias_offset + slice.row_begin,
        .has_bias = args.bias != nullptr ? 1U : 0U,
        .accumulate = args.accumulate ? 1U : 0U,
        .norm_epsilon = args.norm.epsilon,
    };
    const KernelChoice kernel = ChooseMatMul(device_.plan(), device_.is_cpu(), weight.type(), n_rows,
                                             weight.n_cols(), args.n_tokens, ends);
    const Buffer* const constants = ends.has_norm ? args.norm.weight : args.bias;
    const std::array storage = {Binding{&slice.memory, Access::kRead},
                                Binding{MemoryOrEmpty(args.input), Access::kRead},
                                Binding{MemoryOrEmpty(args.output), Access::kReadWrite},
                                Binding{MemoryOrEmpty(constants), Access::kRead}};
    KVRUN_RETURN_IF_ERROR(Record({.kernel = kernel, .storage = storage, .params = ParamBytes(params)}));
  }
  return Status::Ok();
}

Status VulkanCommandList::Launch(const RopeAndStoreOp& op) {
  const AttentionArgs& args = op.args;
  const KvShape& kv = args.kv_shape;
  const KernelChoice kernel = Linear(fmt::format("rope_store_{}_floor", ElementName(kv.type)),
                                     uint64_t{args.n_tokens} * (args.n_heads + 2 * kv.n_kv_heads), 32);
  if (args.angles != nullptr) NoteHostBuffer(AsVulkan(*args.angles));
  for (const KvWindow& window : KvWindows(*args.kv, kv, Access::kWrite)) {
    const RopeStoreParams params{.n_heads = args.n_heads,
                                 .n_kv_heads = kv.n_kv_heads,
                                 .head_dim = kv.head_dim,
                                 .n_ctx = kv.n_ctx,
                                 .n_tokens = args.n_tokens,
                                 .rotary_dim = args.rotary_dim,
                                 .rope_halves = args.rope_halves ? 1U : 0U,
                                 .has_qk_norm = args.norms != nullptr ? 1U : 0U,
                                 .norm_epsilon = args.norm_epsilon,
                                 .first_stream = window.first_stream,
                                 .n_streams = window.n_streams,
                                 .is_rotated = window.first_stream > 0 ? 1U : 0U};
    const std::array storage = {Binding{MemoryOrEmpty(args.qkv), Access::kReadWrite}, window.binding,
                                Binding{MemoryOrEmpty(args.angles), Access::kRead},
                                Binding{MemoryOrEmpty(args.norms), Access::kRead}};
    KVRUN_RETURN_IF_ERROR(Record(
        {.kernel = kernel, .storage = storage, .step = &AsVulkan(*args.step), .params = ParamBytes(params)}));
  }
  return Status::Ok();
}

std::vector<VulkanCommandList::KvWindow> VulkanCommandList::KvWindows(const Buffer& buffer, const KvShape& kv,
                                                                      Access access) const {
  const DeviceBuffer* const memory = MemoryOrEmpty(&buffer);
  const uint32_t n_streams = kv.n_sequences * kv.n_kv_heads;
  const uint32_t at_once = std::max(device_.KvWindowStreams(kv), 1U);  // Record refuses what is too much
  if (at_once >= n_streams) return {{{memory, access}, 0, n_streams}};
  const uint64_t stream_bytes = kv.size_bytes() / n_streams;
  const uint64_t slack_bytes = memory->size_bytes() - kv.size_bytes();
  std::vector<KvWindow> windows;
  for (uint32_t first = 0; first < n_streams; first += at_once) {
    const uint32_t n = std::min(at_once, n_streams - first);
    windows.push_back({{memory, access, first * stream_bytes, n * stream_bytes + slack_bytes}, first, n});
  }
  return windows;
}

Status VulkanCommandList::Launch(const AttendOp& op) {
  const AttentionArgs& args = op.args;
  const KvShape& kv = args.kv_shape;
  KVRUN_CHECK(args.window_tokens == 0 || !args.goes_on());
  const AttendChoice choice = ChooseAttend(device_.plan(), device_.is_cpu(), args);
  const bool keeps_parts = choice.n_splits > 1 || args.goes_on();
  for (const KvWindow& window : KvWindows(*args.kv, kv, Access::kRead)) {
    const AttendParams params = ParamsOf(args, choice, window.first_stream, window.n_streams);
    const std::array storage = {Binding{MemoryOrEmpty(args.qkv), Access::kRead}, window.binding,
                                Binding{MemoryOrEmpty(args.output), Access::kWrite},
                                Binding{MemoryOrEmpty(args.scratch), Access::kWrite}};
    KVRUN_RETURN_IF_ERROR(Record({.kernel = choice.kernel,
                                  .storage = storage,
                                  .step = &AsVulkan(*args.step),
                                  .params = ParamBytes(params),
                                  .note = args.window_tokens == 0 ? "" : "_window"}));
  }
  if (!keeps_parts) return Status::Ok();
  const uint32_t n_rows = args.n_tokens * args.n_heads;
  if (!args.goes_on()) {
    return CombineSplits({args.scratch, 0}, choice.n_splits, n_rows, kv.head_dim, args.output);
  }
  const MergeParams merge{.n_rows = n_rows,
                          .head_dim = kv.head_dim,
                          .n_splits = choice.n_splits,
                          .has_before = args.parts_before.buffer != nullptr ? 1U : 0U,
                          .first_before = args.parts_before.first_row,
                          .first_after = args.parts_after.first_row};
  const std::array merge_storage = {Binding{MemoryOrEmpty(args.scratch), Access::kRead},
                                    Binding{MemoryOrEmpty(args.parts_before.buffer), Access::kRead},
                                    Binding{MemoryOrEmpty(args.parts_after.buffer), Access::kWrite}};
  return Record({.kernel = Linear("merge_splits_f32_floor", uint64_t{n_rows} * (kv.head_dim + 2), 64),
                 .storage = merge_storage,
                 .params = ParamBytes(merge)});
}

Status VulkanCommandList::Launch(const AttendNewOp& op) {
  const AttentionArgs& args = op.args;
  const std::optional<AttendChoice> choice = ChooseAttendNew(device_.plan(), device_.is_cpu(), args);
  const std::vector<KvWindow> windows = KvWindows(*args.kv, args.kv_shape, Access::kRead);
  if (!choice || windows.size() > 1) {
    KVRUN_RETURN_IF_ERROR(Launch(RopeAndStoreOp{args}));
    return Launch(AttendOp{args});
  }
  if (args.angles != nullptr) NoteHostBuffer(AsVulkan(*args.angles));
  const AttendNewParams params{ParamsOf(args, *choice, 0, windows.front().n_streams), NewEntryOf(args)};
  KVRUN_ASSIGN_OR_RETURN(const DeviceBuffer* const counters, Counters());
  Binding written = windows.front().binding;
  written.access = Access::kWrite;
  const std::array storage = {Binding{MemoryOrEmpty(args.qkv), Access::kRead},
                              windows.front().binding,
                              Binding{MemoryOrEmpty(args.output), Access::kWrite},
                              Binding{MemoryOrEmpty(args.scratch), Access::kReadWrite},
                              Binding{MemoryOrEmpty(args.angles), Access::kRead},
                              Binding{MemoryOrEmpty(args.norms), Access::kRead},
                              written,
                              Binding{counters, Access::kReadWrite}};
  static_assert(storage.size() == kAttendNewBuffers);
  return Record({.kernel = choice->kernel,
                 .storage = storage,
                 .step = &AsVulkan(*args.step),
                 .params = ParamBytes(params),
                 .note = args.window_tokens == 0 ? "" : "_window"});
}

Status VulkanCommandList::Launch(const AttendNewSlotsOp& op) {
  KVRUN_RETURN_IF_ERROR(Launch(RopeAndEncodeOp{op.args}));
  return Launch(AttendSlotsOp{op.args});
}

Status VulkanCommandList::Launch(const FinishAttentionOp& op) {
  const AttentionArgs& args = op.args;
  return CombineSplits(args.parts_after, 1, args.n_tokens * args.n_heads, args.kv_shape.head_dim,
                       args.output);
}

Status VulkanCommandList::CombineSplits(const AttentionParts& parts, uint32_t n_splits, uint32_t n_rows,
                                        uint32_t head_dim, Buffer* output) {
  const CombineParams combine{
      .n_rows = n_rows, .head_dim = head_dim, .n_splits = n_splits, .first_row = parts.first_row};
  const std::array storage = {Binding{MemoryOrEmpty(parts.buffer), Access::kRead},
                              Binding{MemoryOrEmpty(output), Access::kWrite}};
  return Record({.kernel = Linear("combine_splits_f32_floor", uint64_t{n_rows} * head_dim, 64),
                 .storage = storage,
                 .params = ParamBytes(combine)});
}

Status VulkanCommandList::Launch(const GatedUnitArgs& args) {
  const SwiGluParams params{.n_tokens = args.n_tokens, .n_ff = args.n_ff};
  const bool vector = args.n_ff % 4 == 0;
  const KernelChoice kernel =
      Linear("swiglu_f32_floor", uint64_t{args.n_tokens} * (vector ? args.n_ff / 4 : args.n_ff), 64,
             {vector ? 1U : 0U, args.activation == Activation::kGeluTanh ? 1U : 0U});
  const std::array storage = {Binding{MemoryOrEmpty(args.gate_up), Access::kRead},
                              Binding{MemoryOrEmpty(args.out), Access::kWrite}};
  return Record({.kernel = kernel, .storage = storage, .params = ParamBytes(params)});
}

Status VulkanCommandList::Launch(const GatherRowsArgs& args) {
  const GatherParams params{.n_rows = args.n_rows, .n_cols = args.n_cols};
  const std::array storage = {Binding{MemoryOrEmpty(args.x), Access::kRead},
                              Binding{MemoryOrEmpty(args.out), Access::kWrite}};
  return Record({.kernel = Linear("gather_rows_f32_floor", uint64_t{args.n_rows} * args.n_cols, 64),
                 .storage = storage,
                 .step = &AsVulkan(*args.step),
                 .params = ParamBytes(params)});
}

Status VulkanCommandList::Launch(const RateArgs& args) {
  const bool reads = args.kind == RateArgs::Kind::kReading;
  const RateParams params{.n_steps = args.n_steps, .stride = reads ? args.n_groups * 64 : 0};
  const KernelChoice kernel{.variant = reads ? "read_rate_u32_floor" : "alu_rate_f32_floor",
                            .constants = {},
                            .groups = {args.n_groups, 1, 1}};
  const std::array storage = {Binding{MemoryOrEmpty(args.values), Access::kReadWrite}};
  return Record({.kernel = kernel, .storage = storage, .params = ParamBytes(params)});
}

}  // namespace kvrun
