// Which variant runs an operation, with which constants and workgroups: pure functions of the device's plan
// and the operation's shape, tested without a device.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "platform/vulkan/device_plan.h"
#include "runtime/device/device.h"
#include "runtime/device/matmul_parts.h"
#include "runtime/model/tensor_type.h"

namespace kvrun {

// Storage buffers of kernels that do more at once, where the device has so many
// (DevicePlan::max_storage_buffers); else others do the same in several steps.
inline constexpr uint32_t kAttendNewBuffers = 8;
inline constexpr uint32_t kRotateProjectBuffers = 6;
inline constexpr uint32_t kProjectScoreBuffers = 7;
inline constexpr uint32_t kAttendSourcesBuffers = 5 + 2 * kMaxSlotSources;

struct KernelChoice {
  std::string variant;  // of shaders/variants.txt
  // Of constant_id 0, 1, ...: for matrix products lanes (matvec.comp: splits), whether there is a norm,
  // whether inputs are read as vectors, workgroup size, the gate; for attend_subgroup and
  // attend_slots_subgroup lanes, head_dim, workgroup size; for the other operations on KV records the types
  // of K and V; for attention over slots then whether there are biases, and whether scores are kept; for
  // attend_sources, after the first three, how many sources there are, which have biases, and whether records
  // have a space; for a prompt's mass whether a head is whole vectors. Then, of all that computes scores,
  // whether they have a cap, and of resident KV whether it is a ring: nothing where neither is so.
  std::vector<uint32_t> constants;
  std::array<uint32_t, 3> groups = {1, 1, 1};
};

// What a product of one token computes beside.
struct ProductEnds {
  bool has_norm = false;
  uint32_t gate = 0;  // KVRUN_GATE_...; 0: none
};
// n_rows: of the output.
KernelChoice ChooseMatMul(const DevicePlan& plan, bool is_cpu, TensorType type, uint32_t n_rows,
                          uint32_t n_cols, uint32_t n_tokens, const ProductEnds& ends = {});
// Of a weight that is in so many slices. Whether there is a norm in it does not depend on the weight.
MatMulFusion FusionOf(const MatMulArgs& args, size_t n_slices);

struct AttendChoice {
  KernelChoice kernel;
  uint32_t n_splits = 1;     // of every row's positions; more than 1: joined by combine_splits
  uint32_t split_block = 0;  // of attention over slots: entries of a split come in multiples of it
};

// Without a window and a cap of scores.
AttendChoice ChooseAttend(const DevicePlan& plan, bool is_cpu, const KvShape& kv, uint32_t n_heads,
                          uint32_t n_tokens, bool of_prompt);
AttendChoice ChooseAttend(const DevicePlan& plan, bool is_cpu, const AttentionArgs& args);

// What AttendNew does in one step, where the device can; else RopeAndStore and Attend.
std::optional<AttendChoice> ChooseAttendNew(const DevicePlan& plan, bool is_cpu, const AttentionArgs& args);

// Of one of the others that compute scores, with a cap on these if it is above 0.
KernelChoice WithCap(KernelChoice kernel, float score_cap);

// Products with experts: how many uses of an expert share a workgroup, and so its weights; 1: they are not
// brought together. KernelChoice::constants as expert_matmul.comp has them.
struct ExpertsChoice {
  uint32_t group_uses = 1;
  uint32_t most_groups = 0;  // of the uses
  KernelChoice kernel;
};
ExpertsChoice ChooseExpertMatMul(const DevicePlan& plan, bool is_cpu, TensorType type, uint32_t n_experts,
                                 uint32_t n_rows, uint32_t n_cols, uint32_t n_uses);

// The entries are the mapping table's, which is data: what is chosen depends on how many it may name.
AttendChoice ChooseAttendSlots(const DevicePlan& plan, bool is_cpu, const SlotShape& slots, uint32_t n_heads,
                               uint32_t n_kv_heads, uint32_t n_tokens, bool keeps_scores = false);

// What attention to all sources needs in scratch, in floats: the rows' parts, if there are any, then the
// scores of each source whose mass is wanted.
struct AttendSlotsPlan {
  struct Source {
    AttendChoice choice;
    uint32_t first_part = 0;
    bool keeps_scores = false;
    uint64_t scores_begin = 0;
    uint64_t scores_stride = 0;  // of a row
  };
  // One dispatch for all sources that have slots.
  struct Merged {
    AttendChoice choice;
    // Of the kernel's places, which source of the arguments; the last one is at the last place.
    std::array<std::optional<uint32_t>, kMaxSlotSources> places;
  };
  std::array<Source, kMaxSlotSources> sources;  // of those without slots, nothing; with merged, of all
  std::optional<Merged> merged;
  uint32_t n_parts = 0;      // of a row
  bool keeps_parts = false;  // else the output is written
  uint64_t scratch_floats = 0;
};
AttendSlotsPlan PlanAttendSlots(const DevicePlan& plan, bool is_cpu, const SlotAttentionArgs& args);

// A workgroup per token, KV head and so many of the entries that a table may name; KernelChoice::constants as
// slot_mass.comp has them.
KernelChoice ChooseSlotMass(bool is_cpu, const SlotShape& slots, const MassForm& form, uint32_t n_heads,
                            uint32_t n_kv_heads, uint32_t n_tokens);
// A workgroup per KV head and a few of the query heads of rows that share it.
KernelChoice ChooseSumWeights(const KvShape& kv, uint32_t n_heads, uint32_t n_rows);
// One invocation per KV head and entry.
KernelChoice ChooseAttentionMass(const KvShape& kv, uint32_t n_entries);

// An invocation, or on GPUs a workgroup, per head of Q, K and V.
KernelChoice ChooseRopeAndEncode(const DevicePlan& plan, bool is_cpu, const KvRecordShape& record,
                                 bool in_space, uint32_t n_rows);
// `type` of the KV: f16 or f32.
KernelChoice ChooseEncodeRecords(const KvRecordShape& record, KvType type, bool in_space, uint32_t n_kv_heads,
                                 uint32_t n_groups);
KernelChoice ChooseDecodeRecords(const KvRecordShape& record, KvType type, bool in_space, uint32_t n_kv_heads,
                                 uint32_t n_groups);

// "q4_1": how variants name a tensor type.
std::string VariantTypeName(TensorType type);
std::string_view VariantTypeName(KvType type);

}  // namespace kvrun
