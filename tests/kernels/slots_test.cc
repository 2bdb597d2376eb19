// KV in slots: RoPE into the newest, and attention over mapping tables, against the scalar references.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "tests/support/check_sources.h"
#include "tests/support/operations_fixture.h"
#include "tests/support/scalar_reference.h"
#include "tests/support/slot_attention_cases.h"
#include "tests/support/slot_cases.h"
#include "tests/support/slot_reference.h"

namespace kvrun::testing {
namespace {

class SlotsTest : public OperationsTest {};
class RopeAndEncodeTest : public OperationsTest {};
// What is the CPU's alone.
class HostSlotsTest : public RoundingOperationsTest {};

INSTANTIATE_TEST_SUITE_P(Modes, SlotsTest,
                         ::testing::ValuesIn(ModesOf(
                             Operations::kSlots, {DeviceMode::kPlanned, DeviceMode::kFloor, DeviceMode::kGpu,
                                                  DeviceMode::kGpuFloor, DeviceMode::kSmallBuffers})),
                         ModeName);
INSTANTIATE_TEST_SUITE_P(Modes, RopeAndEncodeTest,
                         ::testing::ValuesIn(ModesOf(Operations::kSlots,
                                                     {DeviceMode::kPlanned, DeviceMode::kFloor,
                                                      DeviceMode::kGpu, DeviceMode::kSmallBuffers})),
                         ModeName);

INSTANTIATE_TEST_SUITE_P(Modes, HostSlotsTest, ::testing::ValuesIn(HostModes()), ModeName);

struct RopeOptions {
  bool halves = false;
  bool norms = false;
  uint32_t rotary_dim = 0;
};

// is_last: of two sources the second, and the first is left alone.
void CheckRopeAndEncode(Device& device, const SlotCase& c, const RopeOptions& options, bool is_last = false) {
  SelfTestRun run(device);
  const std::vector<float> qkv = RandomFloats(c.qkv_count(), 31);
  const std::vector<float> angles = RandomFloats(c.tokens.size() * options.rotary_dim, 32);
  const std::vector<float> norms = RandomFloats(size_t{2} * c.head_dim(), 33);
  const std::vector<uint32_t> before(c.shape.size_bytes() / sizeof(uint32_t) + kBeyond, kGarbage);
  std::vector<double> expected(qkv.begin(), qkv.end());
  SlotAttentionArgs args = c.args();
  args.attention.qkv = PoisonedBuffer(run, expected);
  args.attention.step = run.Step(c.tokens);
  args.attention.angles = run.Floats(angles);
  args.attention.norms = options.norms ? run.Floats(norms) : nullptr;
  std::vector<float> constants = SpaceConstants(c);
  std::copy(norms.begin(), norms.end(), constants.begin());
  if (c.in_space) args.space = EntrySpace::OfSequences(run.Floats(constants), c.head_dim());
  args.attention.norm_epsilon = 1e-5F;
  args.attention.rotary_dim = options.rotary_dim;
  args.attention.rope_halves = options.halves;
  Buffer* slots = Words(run, before);
  Buffer* others = is_last ? Words(run, before) : nullptr;
  if (is_last) args.Add({.slots = others, .shape = c.shape});
  args.Add({.slots = slots, .shape = c.shape});
  run.Run([&](CommandList& list) { return list.RopeAndEncode(args); });

  // Norms and rotation are RopeAndStore's: its reference leaves K and V in qkv.
  KvShape resident = args.attention.kv_shape;
  resident.n_ctx = 1 + std::max_element(c.tokens.begin(), c.tokens.end(), [](const auto& a, const auto& b) {
                         return a.position < b.position;
                       })->position;
  std::vector<double> ignored(resident.size_bytes() / KvElementBytes(resident.type));
  RopeAndStoreReference({.tokens = c.tokens,
                         .kv_shape = resident,
                         .n_heads = c.n_heads(),
                         .angles = angles,
                         .norms = options.norms ? std::span<const float>(norms) : std::span<const float>{},
                         .norm_epsilon = args.attention.norm_epsilon,
                         .rotary_dim = options.rotary_dim,
                         .rope_halves = options.halves},
                        expected, ignored);
  // As in the test of RopeAndStore.
  double tolerance = 2 * LargestMagnitude(expected) * (c.head_dim() + 24) * kRoundoff;
  std::vector<double> rows = expected;  // as records have them
  if (c.in_space) {
    // Errors of a row's elements add up to so much at most, and the space adds its own.
    tolerance = std::sqrt(c.head_dim()) * tolerance;
    for (size_t i = 0; i < rows.size() / c.head_dim(); ++i) {
      const size_t row = i % (c.n_heads() + 2 * c.n_kv_heads);
      const size_t sequence = c.tokens[i / (c.n_heads() + 2 * c.n_kv_heads)].sequence;
      const size_t head = row < c.n_heads() ? 0 : row - c.n_heads();
      const size_t plane = (sequence * c.n_kv_heads + head % c.n_kv_heads) * 2 + head / c.n_kv_heads;
      const std::vector<float> zeros(c.head_dim());
      const auto mean = row < c.n_heads() ? std::span<const float>(zeros)
                                          : std::span<const float>(constants).subspan(
                                                (plane + 2) * c.head_dim(), c.head_dim());
      const auto values = std::span(expected).subspan(i * c.head_dim(), c.head_dim());
      tolerance = std::max(tolerance, std::sqrt(c.head_dim()) * 2 * LargestMagnitude(values) *
                                              (c.head_dim() + 24) * kRoundoff +
                                          SpaceTolerance(values, mean));
      const std::vector<double> in_space = IntoSpaceRow(values, mean);
      std::copy(in_space.begin(), in_space.end(), rows.begin() + static_cast<ptrdiff_t>(i * c.head_dim()));
      if (row < c.n_heads()) std::copy(in_space.begin(), in_space.end(), values.begin());
    }
  }
  EXPECT_TRUE(IsClose(run, args.attention.qkv, expected, tolerance)) << Describe(c);

  const std::vector<uint32_t> found = WordsOf(run, slots, before.size());
  ASSERT_TRUE(run.status().ok()) << run.status().message();
  std::vector<uint32_t> expected_words = before;  // but for the rows of the step's entries
  const KvRecordShape& record = c.shape.record;
  for (size_t t = 0; t < c.tokens.size(); ++t) {
    for (uint32_t head = 0; head < 2 * c.n_kv_heads; ++head) {
      const uint32_t kv_head = head % c.n_kv_heads;
      const uint32_t stream = StreamOf(c.shape, c.n_kv_heads, c.tokens[t].sequence, kv_head);
      const WindowPlace place = PlaceOf(c.shape, stream, c.tokens[t].position);
      const RecordRow row{head / c.n_kv_heads, record.n_heads == 1 ? 0 : kv_head, place.entry};
      const size_t begin = (t * (c.n_heads() + 2 * c.n_kv_heads) + c.n_heads() + head) * c.head_dim();
      const auto words = std::span(found).subspan(place.record_begin, record.size_words());
      EXPECT_EQ(CheckRow(record, row, std::span(rows).subspan(begin, c.head_dim()), tolerance, words), "")
          << Describe(c);
      CopyRow(record, row, words, std::span(expected_words).subspan(place.record_begin, record.size_words()));
    }
  }
  EXPECT_EQ(found, expected_words) << Describe(c);
  if (is_last) {
    EXPECT_EQ(WordsOf(run, others, before.size()), before) << Describe(c);
  }
}

TEST_P(RopeAndEncodeTest, IntoTheWindow) {
  constexpr uint32_t kHeadDims[] = {66, 64, 80, 8, 128, 256};
  constexpr uint32_t kGroups[] = {1, 4, 3, 16, 8};
  for (Device* device : devices_) {
    uint32_t turn = 0;
    for (const auto& [k_type, v_type] : AllKvPairs()) {
      for (const bool together : {true, false}) {
        SlotCase c;
        c.n_sequences = 3;
        c.n_kv_heads = 1 + turn % 3;
        c.group = 1 + turn % 2;
        c.in_space = turn / 4 % 2 == 1;
        c.tokens = {TokenAt(19, 2), TokenAt(0, 0), TokenAt(6 + turn, 1)};
        c.shape.record = {
            k_type,       v_type, together ? c.n_kv_heads : 1, kHeadDims[turn % 6], kGroups[turn % 5],
            turn % 4 == 1};
        c.shape.n_streams = c.n_sequences * (together ? 1 : c.n_kv_heads);
        c.shape.n_window_slots = 1 + turn % 3;
        c.shape.n_slots = c.shape.n_window_slots + 1;
        c.shape.table_slots = c.shape.n_slots;
        const RopeOptions options{.halves = turn % 2 == 0,
                                  .norms = turn % 4 < 2,
                                  .rotary_dim = turn % 3 == 0 ? c.head_dim() : c.head_dim() / 4 * 2};
        ++turn;
        if (!Fits(*device, c.shape.size_bytes())) continue;
        CheckRopeAndEncode(*device, c, options, turn % 2 == 0);
      }
    }
  }
}

// Several entries of one group in one step, each of a sequence's own: halves of one word have several
// writers.
TEST_P(RopeAndEncodeTest, NeighbouringEntriesOfOneStep) {
  for (Device* device : devices_) {
    for (const KvType type : {KvType::kFp8, KvType::kInt8, KvType::kInt4}) {
      SlotCase c;
      c.n_kv_heads = 3;
      c.shape = {{type, type, 3, 64, 3}, 1, 4, 3, 4};
      for (uint32_t position = 4; position < 13; ++position) c.tokens.push_back(TokenAt(position, 0));
      if (!Fits(*device, c.shape.size_bytes())) continue;
      CheckRopeAndEncode(*device, c, {.rotary_dim = 64});
    }
  }
}

void CheckAttend(Device& device, const SlotCase& c, std::span<const TableLength> lengths,
                 bool uneven = false) {
  const SlotData data = MakeSlots(c.shape, lengths, uneven);
  CheckSources(device, c, {&c.shape, 1}, {&data, 1}, uneven);
}

void CheckBiases(Device& device, SlotCase c, std::span<const TableLength> lengths,
                 std::span<const float> biases) {
  c.shape.has_biases = true;
  const SlotData data = MakeSlots(c.shape, lengths, false, biases);
  CheckSources(device, c, {&c.shape, 1}, {&data, 1});
}

TEST_P(SlotsTest, AttendsToEveryPairOfTypes) {
  constexpr uint32_t kHeadDims[] = {64, 66, 128, 80, 8, 256};
  constexpr uint32_t kGroupTokens[] = {4, 1, 3, 8, 16};
  for (Device* device : devices_) {
    uint32_t turn = 0;
    for (const auto& [k_type, v_type] : AllKvPairs()) {
      const uint32_t group_tokens = kGroupTokens[turn % 5];
      SlotCase c = AttendCase(k_type, v_type, kHeadDims[turn % 6], group_tokens, 1 + turn % 4, turn % 2 == 0);
      c.shape.record.has_positions = turn % 3 == 0;
      c.in_space = turn / 3 % 2 == 1;
      ++turn;
      if (Fits(*device, c.shape.size_bytes())) CheckAttend(*device, c, Lengths(group_tokens));
    }
  }
}

// Heads of powers of two, which subgroups take, in every size of a tile.
TEST_P(SlotsTest, AttendsWithSharedHeads) {
  constexpr std::pair<KvType, KvType> kPairs[] = {
      {KvType::kF32, KvType::kF32},   {KvType::kF16, KvType::kF16},   {KvType::kFp8, KvType::kFp8},
      {KvType::kInt8, KvType::kInt8}, {KvType::kInt4, KvType::kInt4}, {KvType::kF16, KvType::kFp8},
      {KvType::kF16, KvType::kInt4},  {KvType::kFp8, KvType::kInt4},  {KvType::kInt8, KvType::kInt4}};
  for (Device* device : devices_) {
    const VulkanComputeDevice* vulkan = AsVulkan(*device);
    const bool is_floor =
        vulkan != nullptr && (!vulkan->plan().use_subgroup_shuffle || vulkan->plan().subgroup_width < 8);
    uint32_t turn = 0;
    for (const auto& [k_type, v_type] : kPairs) {
      // To the floor kernel types are constants, and every pair is in the test above: one will do.
      if (is_floor && (k_type != KvType::kFp8 || v_type != KvType::kInt4)) continue;
      for (const uint32_t group : {1U, 2U, 3U, 4U, 7U}) {
        const uint32_t group_tokens = turn % 2 == 0 ? 4 : 3;
        const SlotCase c = AttendCase(k_type, v_type, 64, group_tokens, group, turn % 3 == 0);
        ++turn;
        if (Fits(*device, c.shape.size_bytes())) CheckAttend(*device, c, Lengths(group_tokens), group == 2);
      }
      for (const uint32_t head_dim : {32U, 128U, 256U}) {
        SlotCase c = AttendCase(k_type, v_type, head_dim, 8, 8, head_dim == 128);
        c.shape.record.has_positions = head_dim != 256;
        if (Fits(*device, c.shape.size_bytes())) CheckAttend(*device, c, Lengths(8));
      }
    }
  }
}

// Every type with every number of rows, and more rows than lie along dimensions.
TEST_P(HostSlotsTest, AttendsWithSharedHeads) {
  for (Device* device : devices_) {
    uint32_t turn = 0;
    for (const KvType type : kAllKvTypes) {
      for (const uint32_t group : {1U, 2U, 3U, 4U, 7U, 8U, 9U}) {
        const uint32_t group_tokens = turn % 2 == 0 ? 4 : 3;
        const uint32_t head_dim = turn % 4 == 0 ? 80 : 64;
        CheckAttend(*device, AttendCase(type, type, head_dim, group_tokens, group, turn % 3 == 0),
                    Lengths(group_tokens), group == 2);
        ++turn;
      }
      for (const uint32_t head_dim : {10U, 32U, 128U, 256U}) {
        CheckAttend(*device, AttendCase(type, type, head_dim, 8, head_dim == 10 ? 12 : 8, head_dim == 128),
                    Lengths(8));
      }
    }
  }
}

// K and V of whole numbers, with every number of rows and heads that fill vectors in part; entries that do
// not come in pairs, biases, a space of their own, and other types beside.
TEST_P(HostSlotsTest, AttendsRounded) {
  constexpr std::pair<KvType, KvType> kPairs[] = {
      {KvType::kInt8, KvType::kInt4}, {KvType::kInt8, KvType::kInt8}, {KvType::kInt4, KvType::kInt4},
      {KvType::kInt4, KvType::kFp8},  {KvType::kF16, KvType::kInt4},  {KvType::kInt8, KvType::kF16}};
  for (const auto& device : rounding_) {
    uint32_t turn = 0;
    for (const auto& [k_type, v_type] : kPairs) {
      for (const uint32_t group : {1U, 2U, 3U, 4U, 7U, 8U, 9U}) {
        for (const uint32_t head_dim : {64U, 80U, 10U, 32U, 128U, 256U}) {
          const uint32_t group_tokens = 3 + turn % 2;
          SlotCase c = AttendCase(k_type, v_type, head_dim, group_tokens, group, turn % 3 == 0);
          c.in_space = turn % 5 == 1;
          ++turn;
          CheckAttend(*device, c, Lengths(group_tokens));
          if (turn % 4 == 0) CheckBiases(*device, c, Lengths(group_tokens), kBiases[turn / 4 % 5]);
        }
      }
    }
  }
}

// One token and a long table: entries are divided, and of short tables some parts are empty.
TEST_P(SlotsTest, AttendsInSplits) {
  for (Device* device : devices_) {
    for (const KvType type : {KvType::kF16, KvType::kFp8, KvType::kInt4}) {
      for (const uint32_t head_dim : {64U, 80U}) {
        SlotCase c;
        c.tokens = {TokenAt(2000, 0)};
        c.in_space = type == KvType::kInt4;
        c.shape = {{type, type, 1, head_dim, 4}, 1, 211, 3, 208};
        if (!Fits(*device, c.shape.size_bytes())) continue;
        for (const TableLength length :
             {TableLength{208, 4}, {208, 1}, {1, 1}, {8, 4}, {9, 1}, {17, 1}, {100, 3}}) {
          CheckAttend(*device, c, {&length, 1});
        }
      }
    }
  }
}

// What c attends to and a window in a buffer of its own: tables of slots may be empty, or there are no slots.
TEST_P(SlotsTest, AttendsToAWindowApart) {
  for (Device* device : devices_) {
    uint32_t turn = 0;
    for (const KvType type : {KvType::kFp8, KvType::kInt4, KvType::kF16, KvType::kInt8}) {
      const uint32_t group_tokens = 1 + 3 * (turn % 2);
      SlotCase c = AttendCase(type, type, turn % 2 == 0 ? 64 : 80, group_tokens, 3, turn % 3 != 0);
      const KvType window_type = ++turn == 3 ? KvType::kF32 : KvType::kF16;
      std::array shapes = {c.shape, SourceBeside(c, window_type, window_type, group_tokens,
                                                 c.shape.record.n_heads == c.n_kv_heads)};
      shapes[0].n_window_slots = 0;
      if (!Fits(*device, std::max(shapes[0].size_bytes(), shapes[1].size_bytes()))) continue;
      std::vector<TableLength> lengths = Lengths(group_tokens);
      lengths[1] = {0, group_tokens};  // nothing but the window
      const std::vector<TableLength> window_lengths = {{9, 1}, {1, group_tokens}, {4, 1}};
      std::array data = {MakeSlots(shapes[0], lengths, false), MakeSlots(shapes[1], window_lengths, false)};
      CheckSources(*device, c, shapes, data);
      shapes[0].n_slots = 0;
      data[0] = {};
      CheckSources(*device, c, shapes, data);
    }
  }
}

// Three and four sources that differ in all they may; some have no slots, tables of others may be empty, one
// has biases.
TEST_P(SlotsTest, AttendsToManySources) {
  for (Device* device : devices_) {
    uint32_t turn = 0;
    for (const auto& [k_type, v_type] : AllKvPairs()) {
      const uint32_t n_sources = 3 + turn % 2;
      const uint32_t head_dim = turn % 3 == 0 ? 80 : 64;
      const SlotCase c = AttendCase(k_type, v_type, head_dim, 1 + turn % 5, 1 + turn % 4, turn % 2 == 0);
      std::vector<SlotShape> shapes = {c.shape};
      std::vector<SlotData> data;
      for (uint32_t i = 1; i < n_sources; ++i) {
        const auto [k, v] = AllKvPairs()[(turn + i * 7) % AllKvPairs().size()];
        shapes.push_back(SourceBeside(c, k, v, 1 + (turn + 3 * i) % 8, (turn / 2 + i) % 2 == 0));
      }
      const uint32_t missing = turn % (2 * n_sources);  // in half of the turns
      const uint32_t biased = (missing + 1 + turn % 3) % n_sources;
      bool fits = true;
      for (uint32_t i = 0; i < n_sources; ++i) {
        if (i == missing) shapes[i].n_slots = 0;
        shapes[i].has_biases = i == biased;
        const uint32_t group_tokens = shapes[i].record.group_tokens;
        std::vector<TableLength> lengths = {{9, 1}, {5, group_tokens}, {1, 1}, {3, (group_tokens + 1) / 2}};
        lengths[(turn + i) % 4] = {i == (missing + 1) % n_sources ? 2U : 0U, group_tokens};
        data.push_back(i == missing ? SlotData() : MakeSlots(shapes[i], lengths, false, kBiases[turn % 5]));
        fits = fits && Fits(*device, shapes[i].size_bytes());
      }
      ++turn;
      if (fits) CheckSources(*device, c, shapes, data);
    }
  }
}

// Clusters of entries from anywhere, whose slots count entries of their own, a second source of such, single
// entries that were chosen, and a window of single entries: which of them have something differs.
TEST_P(SlotsTest, AttendsToClustersBesideSingleEntries) {
  for (Device* device : devices_) {
    uint32_t turn = 0;
    for (const KvType type : {KvType::kFp8, KvType::kInt4, KvType::kF16, KvType::kInt8}) {
      for (const uint32_t head_dim : {64U, 80U}) {
        SlotCase c = AttendCase(type, type, head_dim, 4, 3, false);
        c.shape.has_biases = true;
        c.shape.n_window_slots = 0;
        c.shape.record.has_positions = true;
        SlotShape second = SourceBeside(c, type, type, 4, turn % 2 == 1);
        SlotShape single = SourceBeside(c, type, type, 1, false);
        SlotShape window = SourceBeside(c, KvType::kF16, KvType::kF16, 1, turn % 4 < 2);
        second.record.has_positions = turn % 3 == 0;
        single.record.has_positions = turn % 3 == 1;
        second.n_window_slots = single.n_window_slots = 0;
        single.has_biases = window.has_biases = false;
        const std::array shapes = {c.shape, second, single, window};
        std::vector<TableLength> lengths = Lengths(4);
        lengths[turn % 5] = {0, 4};
        const std::vector<TableLength> few = {{9, 1}, {0, 1}, {1, 1}, {5, 1}};
        const std::array data = {MakeSlots(c.shape, lengths, false, kBiases[turn % 5]),
                                 MakeSlots(second, few, false, kBiases[(turn + 2) % 5]),
                                 MakeSlots(single, few, false), MakeSlots(window, {{{9, 1}, {1, 1}}}, false)};
        ++turn;
        const bool fits = std::all_of(shapes.begin(), shapes.end(), [&](const SlotShape& shape) {
          return Fits(*device, shape.size_bytes());
        });
        if (fits) CheckSources(*device, c, shapes, data);
      }
    }
  }
}

// All types, in streams of sequences and of KV heads; entries that count are one of a slot, some, all.
TEST_P(SlotsTest, AddsBiases) {
  constexpr uint32_t kHeadDims[] = {64, 66, 128, 80};
  constexpr uint32_t kGroupTokens[] = {4, 1, 3, 8, 16, 70};
  for (Device* device : devices_) {
    uint32_t turn = 0;
    for (const auto& [k_type, v_type] : AllKvPairs()) {
      const uint32_t group_tokens = kGroupTokens[turn % 6];
      SlotCase c =
          AttendCase(k_type, v_type, kHeadDims[turn % 4], group_tokens, 1 + turn / 2 % 4, turn % 2 == 0);
      c.shape.record.has_positions = turn % 3 != 0;
      const std::vector<float>& biases = kBiases[(turn + turn / 5) % 5];
      ++turn;
      if (Fits(*device, c.shape.size_bytes())) CheckBiases(*device, c, Lengths(group_tokens), biases);
    }
    // What subgroups take.
    for (const KvType type : {KvType::kFp8, KvType::kInt4}) {
      for (const std::vector<float>& biases : kBiases) {
        SlotCase c = AttendCase(type, type, 64, 4, 1 + turn % 4, turn % 2 == 0);
        c.shape.record.has_positions = turn % 3 == 1;
        ++turn;
        if (Fits(*device, c.shape.size_bytes())) CheckBiases(*device, c, Lengths(4), biases);
      }
    }
  }
}

// Whole splits without weight, and whole blocks: of a slot that is longer, little counts.
TEST_P(SlotsTest, AddsBiasesInSplits) {
  for (Device* device : devices_) {
    for (const KvType type : {KvType::kF16, KvType::kFp8}) {
      for (const uint32_t head_dim : {64U, 80U}) {
        SlotCase c;
        c.tokens = {TokenAt(2000, 0)};
        c.shape = {{type, type, 1, head_dim, 4}, 1, 211, 3, 208};
        if (!Fits(*device, c.shape.size_bytes())) continue;
        for (const uint32_t remaining : {0U, 100U, 207U}) {
          c.shape.record.has_positions = remaining == 100;
          std::vector<float> biases(208, kVanishes);
          biases[remaining] = -2.0F;
          const TableLength length{208, 4};
          CheckBiases(*device, c, {&length, 1}, biases);
        }
        c.shape = {{type, type, 1, head_dim, 256}, 1, 5, 1, 3};
        if (!Fits(*device, c.shape.size_bytes())) continue;
        const TableLength length{3, 1};
        CheckBiases(*device, c, {&length, 1}, kBiases[1]);
        CheckBiases(*device, c, {&length, 1}, kBiases[3]);
      }
    }
  }
}

// A source of which nothing remains, before and after one without biases.
TEST_P(SlotsTest, SourcesVanish) {
  for (Device* device : devices_) {
    for (const KvType type : {KvType::kFp8, KvType::kF16}) {
      const SlotCase c = AttendCase(type, type, 64, 4, 3, type == KvType::kF16);
      std::array shapes = {c.shape, SourceBeside(c, KvType::kF16, KvType::kF16, 4, true)};
      shapes[0].has_biases = true;
      if (!Fits(*device, std::max(shapes[0].size_bytes(), shapes[1].size_bytes()))) continue;
      const std::vector<TableLength> lengths = {{9, 1}, {1, 4}, {4, 1}};
      std::array data = {MakeSlots(shapes[0], Lengths(4), false, {&kVanishes, 1}),
                         MakeSlots(shapes[1], lengths, false)};
      CheckSources(*device, c, shapes, data);
      std::swap(shapes[0], shapes[1]);
      std::swap(data[0], data[1]);
      CheckSources(*device, c, shapes, data);
    }
  }
}

// Every type with every number of rows, and more rows than lie along dimensions.
TEST_P(HostSlotsTest, AddsBiases) {
  for (Device* device : devices_) {
    uint32_t turn = 0;
    for (const KvType type : kAllKvTypes) {
      for (const uint32_t group : {1U, 2U, 3U, 4U, 7U, 8U, 9U, 70U}) {
        const uint32_t group_tokens = turn % 2 == 0 ? 4 : 33;
        CheckBiases(*device,
                    AttendCase(type, type, turn % 4 == 0 ? 80 : 64, group_tokens, group, turn % 3 == 0),
                    Lengths(group_tokens), kBiases[(turn + turn / 8) % 5]);
        ++turn;
      }
    }
  }
}

}  // namespace
}  // namespace kvrun::testing
