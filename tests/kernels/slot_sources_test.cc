// Attention over several sources of slots, which Vulkan devices that can do in one dispatch.
#include <algorithm>
#include <array>
#include <vector>

#include "runtime/device/vulkan/kernel_plan.h"
#include "tests/support/check_sources.h"
#include "tests/support/operations_fixture.h"
#include "tests/support/slot_attention_cases.h"
#include "tests/support/slot_cases.h"

namespace kvrun::testing {
namespace {

class SlotSourcesTest : public OperationsTest {};

INSTANTIATE_TEST_SUITE_P(Modes, SlotSourcesTest,
                         ::testing::ValuesIn(ModesOf(Operations::kSlots,
                                                     {DeviceMode::kPlanned, DeviceMode::kFloor,
                                                      DeviceMode::kGpu})),
                         ModeName);

// In the order in which a token's attention has them: slots of sequences or KV heads, a pool that all streams
// share, single entries; and a window of halves.
struct Sources {
  SlotCase c;
  std::vector<SlotShape> shapes;
  std::vector<SlotData> data;
};

constexpr uint32_t kPoolSlots = 101;
constexpr uint32_t kWindow = 3;

SlotShape PoolBeside(const SlotCase& c) {
  SlotShape pool = SourceBeside(c, c.shape.record.k_type, c.shape.record.v_type, 4, false);
  pool.is_shared = true;
  pool.record.has_positions = true;
  pool.n_window_slots = 0;
  pool.n_slots = kPoolSlots;
  return pool;
}

// has, biased: of slots, pool, single entries and window, bit by bit. What it has not is there without slots.
Sources MakeSources(const SlotCase& c, uint32_t has, uint32_t biased) {
  const KvRecordShape& record = c.shape.record;
  const std::array all = {c.shape, PoolBeside(c), SourceBeside(c, record.k_type, record.v_type, 1, true),
                          SourceBeside(c, KvType::kF16, KvType::kF16, 4, record.n_heads == 1)};
  // Of each source another sequence has nothing; of the window, all have something.
  const std::array<std::vector<TableLength>, 4> lengths = {
      Lengths(record.group_tokens),
      std::vector<TableLength>{{9, 4}, {7, 2}, {0, 4}, {1, 1}, {3, 3}},
      {{5, 1}, {0, 1}, {9, 1}},
      {{9, 1}, {2, 4}, {1, 2}, {4, 3}, {8, 4}}};
  Sources sources{c, {}, {}};
  for (uint32_t i = 0; i < all.size(); ++i) {
    SlotShape shape = all.at(i);
    const bool is_there = (has >> i & 1) != 0;
    shape.has_biases = (biased >> i & 1) != 0;
    if (!is_there) shape.n_slots = 0;
    if (i != kWindow || !is_there) shape.n_window_slots = 0;
    const std::vector<float>& biases = kBiases[1 + (i + biased) % 4];
    sources.shapes.push_back(shape);
    sources.data.push_back(is_there ? MakeSlots(shape, lengths.at(i), false, biases) : SlotData());
  }
  return sources;
}

bool IsMerged(const Device& device, const Sources& sources) {
  const VulkanComputeDevice* vulkan = AsVulkan(device);
  SlotAttentionArgs args = sources.c.args();
  for (const SlotShape& shape : sources.shapes) args.Add({.shape = shape});
  return PlanAttendSlots(vulkan->plan(), vulkan->is_cpu(), args).merged.has_value();
}

void Check(Device& device, const Sources& sources) {
  if (const VulkanComputeDevice* vulkan = AsVulkan(device)) {
    const DevicePlan& plan = vulkan->plan();
    const bool can = plan.use_subgroup_shuffle && plan.subgroup_width >= 8 &&
                     plan.max_storage_buffers >= kAttendSourcesBuffers;
    EXPECT_EQ(IsMerged(device, sources), can);
  }
  CheckSources(device, sources.c, sources.shapes, sources.data);
}

// Every pair of types that has a kernel, in every size of a tile: two sources, three and four, with any of
// them biased.
TEST_P(SlotSourcesTest, AttendsToAllAtOnce) {
  constexpr std::pair<KvType, KvType> kPairs[] = {{KvType::kF16, KvType::kF16},
                                                  {KvType::kFp8, KvType::kFp8},
                                                  {KvType::kInt8, KvType::kInt8},
                                                  {KvType::kInt4, KvType::kInt4},
                                                  {KvType::kInt8, KvType::kInt4}};
  constexpr std::array kHas = {0b1111U, 0b1011U, 0b1001U, 0b1110U, 0b1101U, 0b1100U, 0b1010U};
  for (Device* device : devices_) {
    uint32_t turn = 0;
    for (const auto& [k_type, v_type] : kPairs) {
      for (const uint32_t group : {1U, 2U, 3U, 4U}) {
        SlotCase c =
            AttendCase(k_type, v_type, turn % 3 == 1 ? 128 : 64, turn % 4 == 3 ? 1 : 4, group, turn % 2 == 0);
        c.in_space = turn % 5 == 2;
        c.shape.record.has_positions = turn % 7 < 3;
        const Sources sources = MakeSources(c, kHas[turn % kHas.size()], turn * 5 % 16);
        ++turn;
        Check(*device, sources);
      }
    }
  }
}

// One after another, so that what a kernel does for another source is not taken for its own.
TEST_P(SlotSourcesTest, EachMayHaveBiases) {
  for (Device* device : devices_) {
    for (const uint32_t biased : {0U, 1U, 2U, 4U, 8U, 15U}) {
      SlotCase c = AttendCase(KvType::kInt8, KvType::kInt4, 64, 4, 1, biased % 2 == 0);
      Check(*device, MakeSources(c, 0b1111, biased));
    }
  }
}

// A row per sequence and more tokens than one, long tables of one token, and parts that get nothing of a
// source.
TEST_P(SlotSourcesTest, DividesEachSource) {
  for (Device* device : devices_) {
    for (const uint32_t head_dim : {64U, 128U}) {
      SlotCase c;
      c.group = 3;
      c.tokens = {TokenAt(2000, 0)};
      c.shape = {{KvType::kInt8, KvType::kInt4, 1, head_dim, 4}, 1, 211, 0, 208};
      SlotShape single = SourceBeside(c, KvType::kInt8, KvType::kInt4, 1, true);
      single.n_slots = 640;
      single.table_slots = 600;
      SlotShape window = SourceBeside(c, KvType::kF16, KvType::kF16, 1, true);
      single.n_window_slots = 0;
      for (const uint32_t n_single : {0U, 1U, 33U, 600U}) {
        const TableLength many{n_single == 33 ? 0 : 208U, 3};
        const TableLength some{n_single, 1};
        const TableLength few{9, 1};
        Sources sources{c, {c.shape, single, window}, {}};
        sources.data = {MakeSlots(c.shape, {&many, 1}, false), MakeSlots(single, {&some, 1}, false),
                        MakeSlots(window, {&few, 1}, false)};
        Check(*device, sources);
      }
    }
  }
}

// Of a source nothing remains, before and after others: its entries take part in the running maximum.
TEST_P(SlotSourcesTest, OneVanishes) {
  for (Device* device : devices_) {
    for (const uint32_t gone : {0U, 1U, 3U}) {
      const SlotCase c = AttendCase(KvType::kInt4, KvType::kInt4, 64, 4, 3, false);
      Sources sources = MakeSources(c, 0b1111, 1U << gone);
      const std::vector<TableLength> lengths = {{9, 1}, {1, 4}, {4, 1}};
      sources.data.at(gone) = MakeSlots(sources.shapes.at(gone), lengths, false, {&kVanishes, 1});
      Check(*device, sources);
    }
  }
}

}  // namespace
}  // namespace kvrun::testing
