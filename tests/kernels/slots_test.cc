// KV in slots: RoPE into the newest, and attention over mapping tables, against the scalar references.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/support/operations_fixture.h"
#include "tests/support/scalar_reference.h"
#include "tests/support/slot_cases.h"
#include "tests/support/slot_reference.h"

namespace kvrun::testing {
namespace {

class SlotsTest : public OperationsTest {};
class RopeAndEncodeTest : public OperationsTest {};
// What is the CPU's alone.
class HostSlotsTest : public OperationsTest {};

INSTANTIATE_TEST_SUITE_P(Modes, SlotsTest,
                         ::testing::ValuesIn(ModesOf(
                             Operations::kSlots, {DeviceMode::kPlanned, DeviceMode::kFloor, DeviceMode::kGpu,
                                                  DeviceMode::kGpuFloor, DeviceMode::kSmallBuffers})),
                         ModeName);
// The kernel does not depend on a plan's choices for GPUs.
INSTANTIATE_TEST_SUITE_P(Modes, RopeAndEncodeTest,
                         ::testing::ValuesIn(ModesOf(Operations::kSlots,
                                                     {DeviceMode::kPlanned, DeviceMode::kFloor,
                                                      DeviceMode::kSmallBuffers})),
                         ModeName);

INSTANTIATE_TEST_SUITE_P(Modes, HostSlotsTest, ::testing::ValuesIn(HostModes()), ModeName);

constexpr float kQueryScale = 3.0F;  // so that weights differ

StepToken TokenAt(uint32_t position, uint32_t sequence) {
  return {.id = 0, .position = position, .sequence = sequence, .output_row = 0};
}

struct SlotCase {
  SlotShape shape;
  uint32_t n_sequences = 1;
  uint32_t n_kv_heads = 1;
  uint32_t group = 1;  // query heads of a KV head
  std::vector<StepToken> tokens;

  uint32_t n_heads() const { return n_kv_heads * group; }
  uint32_t head_dim() const { return shape.record.head_dim; }
  size_t qkv_count() const { return tokens.size() * (n_heads() + 2 * n_kv_heads) * head_dim(); }
  SlotReferenceArgs reference() const {
    return {.tokens = tokens, .shape = shape, .n_heads = n_heads(), .n_kv_heads = n_kv_heads};
  }
  SlotAttentionArgs args() const {
    SlotAttentionArgs args;
    args.shape = shape;
    args.attention.kv_shape = {KvType::kF16, n_sequences, n_kv_heads, head_dim(), 0};
    args.attention.n_heads = n_heads();
    args.attention.n_tokens = static_cast<uint32_t>(tokens.size());
    return args;
  }
};

std::string Describe(const SlotCase& c) {
  return fmt::format("{}; {}/{} heads, {} tokens, {} streams, tables of {}",
                     testing::Describe(c.shape.record), c.n_heads(), c.n_kv_heads, c.tokens.size(),
                     c.shape.n_streams, c.shape.table_slots);
}

struct RopeOptions {
  bool halves = false;
  bool norms = false;
  uint32_t rotary_dim = 0;
};

// is_apart: into a window in a buffer of its own.
void CheckRopeAndEncode(Device& device, const SlotCase& c, const RopeOptions& options,
                        bool is_apart = false) {
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
  args.attention.norm_epsilon = 1e-5F;
  args.attention.rotary_dim = options.rotary_dim;
  args.attention.rope_halves = options.halves;
  Buffer* slots = Words(run, before);
  if (is_apart) {
    args.window_shape = c.shape;
    args.window = slots;
    args.shape.n_slots = args.shape.n_window_slots = 0;
  } else {
    args.slots = slots;
  }
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
  const double tolerance = 2 * LargestMagnitude(expected) * (c.head_dim() + 24) * kRoundoff;
  EXPECT_TRUE(IsClose(run, args.attention.qkv, expected, tolerance)) << Describe(c);

  const std::vector<uint32_t> found = WordsOf(run, slots, before.size());
  ASSERT_TRUE(run.status().ok()) << run.status().message();
  std::vector<uint32_t> expected_words = before;  // but for the rows of the step's entries
  const KvRecordShape& record = c.shape.record;
  for (size_t t = 0; t < c.tokens.size(); ++t) {
    for (uint32_t head = 0; head < 2 * c.n_kv_heads; ++head) {
      const uint32_t kv_head = head % c.n_kv_heads;
      const WindowPlace place = PlaceOf(c.reference(), StreamOf(c.reference(), c.tokens[t].sequence, kv_head),
                                        c.tokens[t].position);
      const RecordRow row{head / c.n_kv_heads, record.n_heads == 1 ? 0 : kv_head, place.entry};
      const size_t begin = (t * (c.n_heads() + 2 * c.n_kv_heads) + c.n_heads() + head) * c.head_dim();
      const auto words = std::span(found).subspan(place.record_begin, record.size_words());
      EXPECT_EQ(CheckRow(record, row, std::span(expected).subspan(begin, c.head_dim()), tolerance, words), "")
          << Describe(c);
      CopyRow(record, row, words, std::span(expected_words).subspan(place.record_begin, record.size_words()));
    }
  }
  EXPECT_EQ(found, expected_words) << Describe(c);
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
        c.tokens = {TokenAt(19, 2), TokenAt(0, 0), TokenAt(6 + turn, 1)};
        c.shape.record = {k_type, v_type, together ? c.n_kv_heads : 1, kHeadDims[turn % 6],
                          kGroups[turn % 5]};
        c.shape.n_streams = c.n_sequences * (together ? 1 : c.n_kv_heads);
        c.shape.n_window_slots = 1 + turn % 3;
        c.shape.n_slots = c.shape.n_window_slots + 1;
        c.shape.table_slots = c.shape.n_slots;
        const RopeOptions options{.halves = turn % 2 == 0,
                                  .norms = turn % 4 < 2,
                                  .rotary_dim = turn % 3 == 0 ? c.head_dim() : c.head_dim() / 4 * 2};
        ++turn;
        if (!Fits(*device, c.shape.size_bytes())) continue;
        CheckRopeAndEncode(*device, c, options);
        if (IsHost(GetParam())) CheckRopeAndEncode(*device, c, options, true);
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
      if (IsHost(GetParam())) CheckRopeAndEncode(*device, c, {.rotary_dim = 64}, true);
    }
  }
}

// Slots and tables for a case: what no table names, and what comes after a last slot's entries, is garbage.
struct SlotData {
  std::vector<uint32_t> slots;
  std::vector<uint32_t> tables;
  uint32_t most_entries = 0;
};

struct TableLength {
  uint32_t slots = 0;
  uint32_t last_entries = 0;
};

SlotData MakeSlots(const SlotCase& c, std::span<const TableLength> lengths, bool uneven) {
  const SlotShape& shape = c.shape;
  const KvRecordShape& record = shape.record;
  const size_t count = size_t{shape.n_streams} * shape.n_slots * 2 * record.n_rows() * record.head_dim;
  std::vector<float> values = RandomFloats(count, 41);
  for (size_t i = 0; uneven && i < count; ++i)
    values[i] = std::ldexp(values[i], -static_cast<int>(i * 5 % 23));
  // All bits set: NaN as f32 and f16, as a scale too.
  SlotData data{std::vector<uint32_t>(shape.size_bytes() / sizeof(uint32_t), 0xffffffffU),
                std::vector<uint32_t>(shape.table_bytes() / sizeof(uint32_t)), 0};
  size_t at = 0;
  for (uint32_t stream = 0; stream < shape.n_streams; ++stream) {
    const TableLength length = lengths[stream % lengths.size()];
    data.most_entries = std::max(data.most_entries, length.slots * record.group_tokens);
    uint32_t* table = &data.tables[size_t{stream} * (2 + shape.table_slots)];
    table[0] = length.slots;
    table[1] = length.last_entries;
    for (uint32_t s = 0; s < shape.table_slots; ++s) {
      // A permutation, as the step is prime to the number of slots; beyond the length: slots that must not be
      // read.
      table[2 + s] = (stream + s * 7) % shape.n_slots;
      if (s >= length.slots) continue;
      const auto words = std::span(data.slots)
                             .subspan((size_t{stream} * shape.n_slots + table[2 + s]) * record.size_words(),
                                      record.size_words());
      for (uint32_t entry = 0; entry < (s + 1 == length.slots ? length.last_entries : record.group_tokens);
           ++entry) {
        for (uint32_t row = 0; row < 2 * record.n_heads; ++row, at += record.head_dim) {
          EncodeRow(record, {row % 2, row / 2, entry}, std::span(values).subspan(at, record.head_dim), words);
        }
      }
    }
  }
  return data;
}

// As for attention over resident KV (attention_test.cc), with one rounding more for each scale. What an fp8
// kernel may flush to zero is below 2^-15 of a row's largest, which is below 1: there is such only in uneven
// values.
double AttendTolerance(Device& device, const SlotCase& c, uint32_t n_entries, bool uneven = false) {
  const double dims = c.head_dim();
  const double largest_score = 0.5 * kQueryScale * std::sqrt(dims);
  const double score = (8 * std::sqrt(dims) + 4) * kRoundoff * largest_score;
  const double exponential = 2 * kRoundoff * (3 + 4 * largest_score) * 4;
  const double flushed = uneven && AsHost(device) == nullptr ? 0x1p-15 : 0.0;
  return 2 * (score + exponential + flushed * kQueryScale * std::sqrt(dims)) +
         2 * 8 * std::sqrt(n_entries + 1.0) * kRoundoff + flushed;
}

void CheckAttend(Device& device, const SlotCase& c, std::span<const TableLength> lengths,
                 bool uneven = false) {
  SelfTestRun run(device);
  std::vector<float> qkv = RandomFloats(c.qkv_count(), 42);
  for (float& value : qkv) value *= kQueryScale;
  const SlotData data = MakeSlots(c, lengths, uneven);
  const std::vector<double> expected = AttendSlotsReference(c.reference(), qkv, data.slots, data.tables);
  SlotAttentionArgs args = c.args();
  args.attention.qkv = run.Floats(qkv);
  args.attention.step = run.Step(c.tokens);
  args.attention.output = PoisonedBuffer(run, Untouched(expected.size()));
  args.slots = Words(run, data.slots);
  args.table = Words(run, data.tables);
  const size_t scratch_floats = device.AttendSlotsScratchBytes(args) / sizeof(float);
  args.attention.scratch = PoisonedBuffer(run, Untouched(scratch_floats));
  run.Run([&](CommandList& list) { return list.AttendSlots(args); });
  EXPECT_TRUE(
      IsClose(run, args.attention.output, expected, AttendTolerance(device, c, data.most_entries, uneven)))
      << Describe(c);
  std::vector<float> beyond(scratch_floats + kBeyond);
  std::memcpy(beyond.data(), run.Bytes(args.attention.scratch, beyond.size() * sizeof(float)).data(),
              beyond.size() * sizeof(float));
  EXPECT_TRUE(std::all_of(beyond.end() - kBeyond, beyond.end(), [](float v) { return std::isnan(v); }))
      << "scratch: " << Describe(c);
}

constexpr uint32_t kPrimeSlots = 23;

SlotCase AttendCase(KvType k_type, KvType v_type, uint32_t head_dim, uint32_t group_tokens, uint32_t group,
                    bool together) {
  SlotCase c;
  c.n_sequences = 3;
  c.n_kv_heads = 2;
  c.group = group;
  c.tokens = {TokenAt(50, 1), TokenAt(51, 2), TokenAt(52, 0), TokenAt(53, 1)};
  c.shape.record = {k_type, v_type, together ? c.n_kv_heads : 1, head_dim, group_tokens};
  c.shape.n_streams = c.n_sequences * (together ? 1 : c.n_kv_heads);
  c.shape.n_slots = kPrimeSlots;
  c.shape.n_window_slots = 2;
  c.shape.table_slots = kPrimeSlots - 2;
  return c;
}

// Full, nearly empty, and anything between; the last slot full or not.
std::vector<TableLength> Lengths(uint32_t group_tokens) {
  return {{kPrimeSlots - 2, 1},
          {1, 1},
          {kPrimeSlots - 2, group_tokens},
          {7, (group_tokens + 1) / 2},
          {2, group_tokens}};
}

TEST_P(SlotsTest, AttendsToEveryPairOfTypes) {
  constexpr uint32_t kHeadDims[] = {64, 66, 128, 80, 8, 256};
  constexpr uint32_t kGroupTokens[] = {4, 1, 3, 8, 16};
  for (Device* device : devices_) {
    uint32_t turn = 0;
    for (const auto& [k_type, v_type] : AllKvPairs()) {
      const uint32_t group_tokens = kGroupTokens[turn % 5];
      const SlotCase c =
          AttendCase(k_type, v_type, kHeadDims[turn % 6], group_tokens, 1 + turn % 4, turn % 2 == 0);
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
      {KvType::kF16, KvType::kInt4},  {KvType::kFp8, KvType::kInt4}};
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
        const SlotCase c = AttendCase(k_type, v_type, head_dim, 8, 8, head_dim == 128);
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

// One token and a long table: entries are divided, and of short tables some parts are empty.
TEST_P(SlotsTest, AttendsInSplits) {
  for (Device* device : devices_) {
    for (const KvType type : {KvType::kF16, KvType::kFp8, KvType::kInt4}) {
      for (const uint32_t head_dim : {64U, 80U}) {
        SlotCase c;
        c.tokens = {TokenAt(2000, 0)};
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

// All entries of both sources, one to a record of floats: what the reference takes.
void AppendAsFloats(const SlotCase& c, const SlotData& data, SlotCase* all, std::vector<uint32_t>* words,
                    std::vector<std::vector<uint32_t>>* tables) {
  const KvRecordShape& record = c.shape.record;
  for (uint32_t stream = 0; stream < c.shape.n_streams; ++stream) {
    const uint32_t* table = &data.tables[size_t{stream} * (2 + c.shape.table_slots)];
    for (uint32_t s = 0; s < table[0]; ++s) {
      const auto source =
          std::span(data.slots)
              .subspan((size_t{stream} * c.shape.n_slots + table[2 + s]) * record.size_words(),
                       record.size_words());
      for (uint32_t entry = 0; entry < (s + 1 == table[0] ? table[1] : record.group_tokens); ++entry) {
        const auto nth = static_cast<uint32_t>((*tables)[stream].size());
        (*tables)[stream].push_back(nth);
        const auto to = std::span(*words).subspan(
            (size_t{stream} * all->shape.n_slots + nth) * all->shape.record.size_words(),
            all->shape.record.size_words());
        for (uint32_t row = 0; row < 2 * record.n_heads; ++row) {
          const std::vector<double> values = DecodeRow(record, source, {row % 2, row / 2, entry});
          EncodeRow(all->shape.record, {row % 2, row / 2, 0},
                    std::vector<float>(values.begin(), values.end()), to);
        }
      }
    }
  }
}

// The window in a buffer of its own, with its own types; tables of slots may be empty, or there are no slots.
void CheckAttendWithWindow(Device& device, const SlotCase& c, std::span<const TableLength> lengths,
                           KvType window_type, bool has_slots) {
  SlotCase w = c;
  w.shape.record.k_type = w.shape.record.v_type = window_type;
  w.shape.n_slots = w.shape.n_window_slots = 11;
  w.shape.table_slots = 9;
  if (!Fits(device, w.shape.size_bytes())) return;
  const std::vector<TableLength> window_lengths = {{9, 1}, {1, c.shape.record.group_tokens}, {4, 1}};
  const SlotData slots = MakeSlots(c, lengths, false);
  const SlotData window = MakeSlots(w, window_lengths, false);

  SlotCase all = c;
  all.shape.record = {KvType::kF32, KvType::kF32, c.shape.record.n_heads, c.head_dim(), 1};
  all.shape.n_slots = all.shape.table_slots =
      (c.shape.table_slots + w.shape.table_slots) * c.shape.record.group_tokens;
  std::vector<uint32_t> words(all.shape.size_bytes() / sizeof(uint32_t));
  std::vector<std::vector<uint32_t>> lists(c.shape.n_streams);
  AppendAsFloats(c, slots, &all, &words, &lists);
  AppendAsFloats(w, window, &all, &words, &lists);
  std::vector<uint32_t> tables(all.shape.table_bytes() / sizeof(uint32_t));
  for (uint32_t stream = 0; stream < c.shape.n_streams; ++stream) {
    uint32_t* table = &tables[size_t{stream} * (2 + all.shape.table_slots)];
    table[0] = static_cast<uint32_t>(lists[stream].size());
    table[1] = 1;
    std::copy(lists[stream].begin(), lists[stream].end(), table + 2);
  }

  SelfTestRun run(device);
  std::vector<float> qkv = RandomFloats(c.qkv_count(), 43);
  for (float& value : qkv) value *= kQueryScale;
  const std::vector<double> expected = AttendSlotsReference(all.reference(), qkv, words, tables);
  SlotAttentionArgs args = c.args();
  args.shape.n_window_slots = 0;
  args.attention.qkv = run.Floats(qkv);
  args.attention.step = run.Step(c.tokens);
  args.attention.output = PoisonedBuffer(run, Untouched(expected.size()));
  if (has_slots) {
    args.slots = Words(run, slots.slots);
    args.table = Words(run, slots.tables);
  } else {
    args.shape.n_slots = 0;
  }
  args.window = Words(run, window.slots);
  args.window_shape = w.shape;
  args.window_table = Words(run, window.tables);
  args.attention.scratch =
      PoisonedBuffer(run, Untouched(device.AttendSlotsScratchBytes(args) / sizeof(float)));
  run.Run([&](CommandList& list) { return list.AttendSlots(args); });
  EXPECT_TRUE(IsClose(run, args.attention.output, expected,
                      AttendTolerance(device, c, slots.most_entries + window.most_entries)))
      << Describe(c);
}

TEST_P(SlotsTest, AttendsToAWindowApart) {
  for (Device* device : devices_) {
    uint32_t turn = 0;
    for (const KvType type : {KvType::kFp8, KvType::kInt4, KvType::kF16, KvType::kInt8}) {
      const SlotCase c =
          AttendCase(type, type, turn % 2 == 0 ? 64 : 80, 1 + 3 * (turn % 2), 3, turn % 3 != 0);
      ++turn;
      if (!Fits(*device, c.shape.size_bytes())) continue;
      std::vector<TableLength> lengths = Lengths(c.shape.record.group_tokens);
      lengths[1] = {0, c.shape.record.group_tokens};  // nothing but the window
      const KvType window_type = turn == 3 ? KvType::kF32 : KvType::kF16;
      CheckAttendWithWindow(*device, c, lengths, window_type, true);
      const std::vector<TableLength> none = {{0, 0}};
      if (IsHost(GetParam())) CheckAttendWithWindow(*device, c, none, window_type, false);
    }
  }
}

}  // namespace
}  // namespace kvrun::testing
