// Choices for the operations on KV records.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <iterator>
#include <optional>
#include <span>
#include <utility>

#include "platform/base/units.h"
#include "runtime/device/vulkan/kernel_plan.h"
#include "shaders/shared/op_params.h"
#include "shaders/shared/slot_params.h"

namespace kvrun {
namespace {

static_assert(static_cast<uint32_t>(KvType::kF16) == KVRUN_KV_F16);
static_assert(static_cast<uint32_t>(KvType::kF32) == KVRUN_KV_F32);
static_assert(static_cast<uint32_t>(KvType::kFp8) == KVRUN_KV_FP8);
static_assert(static_cast<uint32_t>(KvType::kInt8) == KVRUN_KV_INT8);
static_assert(static_cast<uint32_t>(KvType::kInt4) == KVRUN_KV_INT4);
static_assert(kInt4BlockElements == KVRUN_INT4_BLOCK);
static_assert(kMaxSlotSources == KVRUN_MOST_ATTENDED_SOURCES);
static_assert([] {
  constexpr double kShared[KVRUN_N_INT4_FACTORS] = {KVRUN_INT4_FACTORS};
  return std::equal(std::begin(kShared), std::end(kShared), std::begin(kInt4Factors), std::end(kInt4Factors),
                    [](double shared, float factor) { return static_cast<float>(shared) == factor; });
}());

// Of attend_slots_subgroup.comp and attend_slots_floor.comp.
constexpr uint32_t kKeysPerLane = 4;
constexpr uint32_t kFloorBlock = 64;
constexpr uint32_t kFewestLanes = 8;
constexpr uint32_t kMostRows = 4;
constexpr uint64_t kScoresAtOnce = 4;          // read by slot_mass.comp
constexpr uint32_t kDecodedPerInvocation = 8;  // elements, of decode_records.comp
constexpr uint32_t kCopyLocalSize = 64;        // of encode_records.comp and decode_records.comp

// How variants name a pair that has its own; nothing for the others.
std::optional<std::string> PairName(KvType k_type, KvType v_type) {
  if (k_type == v_type) return std::string(VariantTypeName(k_type));
  constexpr std::array kPairs = {
      std::pair{KvType::kF16, KvType::kFp8}, std::pair{KvType::kF16, KvType::kInt4},
      std::pair{KvType::kFp8, KvType::kInt4}, std::pair{KvType::kInt8, KvType::kInt4}};
  if (std::find(kPairs.begin(), kPairs.end(), std::pair{k_type, v_type}) == kPairs.end()) return std::nullopt;
  return fmt::format("{}_{}", VariantTypeName(k_type), VariantTypeName(v_type));
}

// Elements of V whose sums a lane holds for each vector of it.
uint32_t ValueDims(KvType type) { return type == KvType::kInt4 ? 16 : 128 / KvElementBits(type); }

bool SubgroupFits(const KvRecordShape& record, uint32_t lanes) {
  if (lanes < kFewestLanes) return false;
  const uint32_t value_dims = ValueDims(record.v_type);
  if (record.head_dim % (128 / KvElementBits(record.k_type)) != 0) return false;
  if (record.head_dim % value_dims != 0) return false;
  const uint32_t vectors = record.head_dim / value_dims;
  return std::has_single_bit(vectors) && vectors <= (value_dims == 16 ? 2 : 4) * lanes;
}

// Query heads that share a KV head are divided among workgroups.
struct HeadTiles {
  uint32_t rows = 0;     // of a workgroup
  uint32_t n_tiles = 0;  // of all heads

  HeadTiles(const DevicePlan& plan, bool subgroup, uint32_t n_heads, uint32_t n_kv_heads) {
    const uint32_t group = n_heads / n_kv_heads;
    const uint32_t max_rows = plan.few_accumulators && subgroup ? kMostRows / 2 : kMostRows;
    const uint32_t tiles_per_head = CeilDiv(group, max_rows);
    rows = CeilDiv(group, tiles_per_head);
    n_tiles = tiles_per_head * n_kv_heads;
  }
};

uint32_t TableEntries(const SlotShape& slots) { return slots.table_slots * slots.record.group_tokens; }

// Enough workgroups for the device. `block`: the entries that a workgroup of so many lanes goes through at
// once. A CPU's splits have a few blocks. A GPU waits long for entries that lie in the host's memory, and
// hardly longer for a block of which most is masked than for a full one: its splits have an entry for each
// lane.
void ChooseSplits(bool is_cpu, uint32_t n_workgroups, uint32_t n_entries, uint32_t block, uint32_t lanes,
                  AttendChoice* choice) {
  constexpr uint32_t kFewestEntries = 32;
  choice->split_block = is_cpu ? block : std::max(lanes, kFewestEntries);
  const uint32_t most = CeilDiv(n_entries, is_cpu ? std::max(block, 128U) : choice->split_block);
  const uint32_t wanted = is_cpu ? 24 : 256;
  choice->n_splits = std::clamp(wanted / n_workgroups, 1U, std::clamp(most, 1U, 64U));
}

// Each pair takes a megabyte of a program: those that budgets choose, and what is usual.
bool HasMergedVariants(KvType k_type, KvType v_type) {
  return k_type == v_type ? k_type != KvType::kF32 : k_type == KvType::kInt8 && v_type == KvType::kInt4;
}

// What attend_sources_subgroup.comp takes: all sources but the last have one pair of types, the last has f16.
bool CanMerge(const DevicePlan& plan, std::span<const SlotSource> sources) {
  if (sources.size() < 2 || !plan.use_subgroup_shuffle || plan.max_storage_buffers < kAttendSourcesBuffers)
    return false;
  const KvRecordShape& first = sources.front().shape.record;
  const KvRecordShape& last = sources.back().shape.record;
  if (last.k_type != KvType::kF16 || last.v_type != KvType::kF16) return false;
  if (!HasMergedVariants(first.k_type, first.v_type)) return false;
  return std::all_of(sources.begin(), sources.end(), [&](const SlotSource& source) {
    const KvRecordShape& record = source.shape.record;
    const bool is_like_first = record.k_type == first.k_type && record.v_type == first.v_type;
    return source.mass == nullptr && SubgroupFits(record, plan.subgroup_width) &&
           (is_like_first || &source == &sources.back());
  });
}

std::optional<AttendSlotsPlan::Merged> ChooseAttendSources(const DevicePlan& plan, bool is_cpu,
                                                           const SlotAttentionArgs& args) {
  std::vector<SlotSource> sources;
  std::vector<uint32_t> numbers;
  for (uint32_t nth = 0; nth < args.n_sources; ++nth) {
    if (args.sources.at(nth).shape.n_slots == 0) continue;
    sources.push_back(args.sources.at(nth));
    numbers.push_back(nth);
  }
  if (!CanMerge(plan, sources)) return std::nullopt;
  AttendSlotsPlan::Merged merged;
  uint32_t n_entries = 0;
  uint32_t biased = 0;
  for (size_t i = 0; i < sources.size(); ++i) {
    const size_t place = i + 1 == sources.size() ? kMaxSlotSources - 1 : i;
    merged.places.at(place) = numbers[i];
    n_entries += TableEntries(sources[i].shape);
    if (sources[i].shape.has_biases) biased |= 1U << place;
  }
  const AttentionArgs& attention = args.attention;
  const KvRecordShape& record = sources.front().shape.record;
  const uint32_t lanes = plan.subgroup_width;
  const HeadTiles tiles(plan, true, attention.n_heads, attention.kv_shape.n_kv_heads);
  if (tiles.n_tiles * attention.n_tokens > KVRUN_WORKGROUP_COUNTERS) return std::nullopt;
  ChooseSplits(is_cpu, tiles.n_tiles * attention.n_tokens, n_entries, kKeysPerLane * lanes, lanes,
               &merged.choice);
  merged.choice.kernel = {.variant = fmt::format("attend_sources{}_{}_subgroup", tiles.rows,
                                                 *PairName(record.k_type, record.v_type)),
                          .constants = {lanes, record.head_dim, lanes, static_cast<uint32_t>(sources.size()),
                                        biased, args.space.is_used() ? 1U : 0U},
                          .groups = {tiles.n_tiles, merged.choice.n_splits, attention.n_tokens}};
  return merged;
}

std::vector<uint32_t> TypeConstants(const KvRecordShape& record) {
  return {static_cast<uint32_t>(record.k_type), static_cast<uint32_t>(record.v_type)};
}
std::vector<uint32_t> SpaceConstants(const KvRecordShape& record, bool in_space) {
  std::vector<uint32_t> constants = TypeConstants(record);
  constants.push_back(in_space ? 1 : 0);
  return constants;
}

// Numbered through x and y, as x alone may not suffice.
std::array<uint32_t, 3> LinearGroups(uint64_t invocations) {
  constexpr uint64_t kMostInRow = 32768;
  const auto groups = CeilDiv<uint64_t>(invocations, kCopyLocalSize);
  return {static_cast<uint32_t>(std::min(groups, kMostInRow)),
          static_cast<uint32_t>(CeilDiv(groups, kMostInRow)), 1};
}

KernelChoice ChooseCopy(std::string_view operation, const KvRecordShape& record, KvType type, bool in_space,
                        uint64_t invocations) {
  return {.variant = fmt::format("{}_{}_floor", operation, VariantTypeName(type)),
          .constants = SpaceConstants(record, in_space),
          .groups = LinearGroups(invocations)};
}

}  // namespace

std::string_view VariantTypeName(KvType type) {
  switch (type) {
    case KvType::kF32: return "f32";
    case KvType::kF16: return "f16";
    case KvType::kFp8: return "fp8";
    case KvType::kInt8: return "int8";
    case KvType::kInt4: return "int4";
  }
  return "";
}

AttendChoice ChooseAttendSlots(const DevicePlan& plan, bool is_cpu, const SlotShape& slots, uint32_t n_heads,
                               uint32_t n_kv_heads, uint32_t n_tokens, bool keeps_scores) {
  const KvRecordShape& record = slots.record;
  const uint32_t lanes = plan.subgroup_width;
  const std::optional<std::string> pair = PairName(record.k_type, record.v_type);
  const bool subgroup = pair && plan.use_subgroup_shuffle && SubgroupFits(record, lanes);
  const HeadTiles tiles(plan, subgroup, n_heads, n_kv_heads);

  AttendChoice choice;
  ChooseSplits(is_cpu, tiles.n_tiles * n_tokens, TableEntries(slots),
               subgroup ? kKeysPerLane * lanes : kFloorBlock, subgroup ? lanes : kFloorBlock, &choice);
  choice.kernel.variant = subgroup ? fmt::format("attend_slots{}_{}_subgroup", tiles.rows, *pair)
                                   : fmt::format("attend_slots{}_any_floor", tiles.rows);
  choice.kernel.constants =
      subgroup ? std::vector<uint32_t>{lanes, record.head_dim, lanes} : TypeConstants(record);
  choice.kernel.constants.push_back(slots.has_biases ? 1 : 0);
  choice.kernel.constants.push_back(keeps_scores ? 1 : 0);
  choice.kernel.groups = {tiles.n_tiles, choice.n_splits, n_tokens};
  return choice;
}

AttendSlotsPlan PlanAttendSlots(const DevicePlan& plan, bool is_cpu, const SlotAttentionArgs& args) {
  const AttentionArgs& attention = args.attention;
  const uint64_t n_rows = uint64_t{attention.n_tokens} * attention.n_heads;
  AttendSlotsPlan planned;
  planned.merged = ChooseAttendSources(plan, is_cpu, args);
  if (planned.merged) planned.n_parts = planned.merged->choice.n_splits;
  for (uint32_t nth = 0; nth < args.n_sources && !planned.merged; ++nth) {
    const SlotSource& source = args.sources.at(nth);
    if (source.shape.n_slots == 0) continue;
    AttendSlotsPlan::Source& to = planned.sources.at(nth);
    to.keeps_scores = source.mass != nullptr;
    to.choice = ChooseAttendSlots(plan, is_cpu, source.shape, attention.n_heads,
                                  attention.kv_shape.n_kv_heads, attention.n_tokens, to.keeps_scores);
    to.first_part = planned.n_parts;
    planned.n_parts += to.choice.n_splits;
    planned.keeps_parts = planned.keeps_parts || to.keeps_scores;
  }
  // Only what joins parts brings them out of a space.
  planned.keeps_parts = planned.keeps_parts || planned.n_parts != 1 || args.space.is_used();
  if (planned.keeps_parts)
    planned.scratch_floats = n_rows * planned.n_parts * (attention.kv_shape.head_dim + 2);
  for (uint32_t nth = 0; nth < args.n_sources; ++nth) {
    AttendSlotsPlan::Source& to = planned.sources.at(nth);
    if (!to.keeps_scores) continue;
    const SlotShape& shape = args.sources.at(nth).shape;
    to.scores_begin = RoundUp(planned.scratch_floats, kScoresAtOnce);
    to.scores_stride = RoundUp(uint64_t{shape.table_slots} * shape.record.group_tokens, kScoresAtOnce);
    planned.scratch_floats = to.scores_begin + n_rows * to.scores_stride;
  }
  return planned;
}

KernelChoice ChooseRopeAndEncode(const DevicePlan& plan, bool is_cpu, const KvRecordShape& record,
                                 bool in_space, uint32_t n_rows) {
  constexpr uint32_t kLocalSize = 32;
  const bool wide = !is_cpu && n_rows <= plan.max_workgroup_count_x;
  return {.variant = wide ? "rope_encode_any_wide" : "rope_encode_any_floor",
          .constants = SpaceConstants(record, in_space),
          .groups = {wide ? n_rows : CeilDiv(n_rows, kLocalSize), 1, 1}};
}

KernelChoice ChooseEncodeRecords(const KvRecordShape& record, KvType type, bool in_space, uint32_t n_kv_heads,
                                 uint32_t n_groups) {
  const uint64_t rows = uint64_t{2} * n_kv_heads * n_groups * record.group_tokens;
  return ChooseCopy("encode_records", record, type, in_space, rows);
}

KernelChoice ChooseDecodeRecords(const KvRecordShape& record, KvType type, bool in_space, uint32_t n_kv_heads,
                                 uint32_t n_groups) {
  const uint64_t rows = uint64_t{2} * n_kv_heads * n_groups * record.group_tokens;
  const uint32_t parts = in_space ? 1 : CeilDiv(record.head_dim, kDecodedPerInvocation);
  return ChooseCopy("decode_records", record, type, in_space, rows * parts);
}

}  // namespace kvrun
