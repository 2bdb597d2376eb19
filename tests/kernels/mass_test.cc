// How much attention entries receive: of slots, and of tiles of a prompt's KV, against the scalar references.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "tests/support/mass_reference.h"
#include "tests/support/operations_fixture.h"
#include "tests/support/slot_attention_cases.h"
#include "tests/support/slot_cases.h"
#include "tests/support/slot_reference.h"

namespace kvrun::testing {
namespace {

class SlotsMassTest : public OperationsTest {};
class RowMassTest : public OperationsTest {};

INSTANTIATE_TEST_SUITE_P(Modes, SlotsMassTest,
                         ::testing::ValuesIn(ModesOf(
                             Operations::kMass, {DeviceMode::kPlanned, DeviceMode::kFloor, DeviceMode::kGpu,
                                                 DeviceMode::kGpuFloor, DeviceMode::kSmallBuffers})),
                         ModeName);
// The kernels do not depend on a plan's choices for GPUs.
INSTANTIATE_TEST_SUITE_P(Modes, RowMassTest,
                         ::testing::ValuesIn(ModesOf(Operations::kMass,
                                                     {DeviceMode::kPlanned, DeviceMode::kFloor,
                                                      DeviceMode::kSmallBuffers})),
                         ModeName);

// Every combination in 12 turns.
MassForm SlotFormOf(uint32_t turn) {
  constexpr MassForm::Rows kRows[] = {MassForm::Rows::kAdd, MassForm::Rows::kLargest,
                                      MassForm::Rows::kReplace};
  return {.n_moments = 1 + turn % 2,
          .heads = turn / 2 % 2 == 0 ? MassForm::Heads::kMean : MassForm::Heads::kLargest,
          .rows = kRows[turn % 3]};
}

std::string Describe(const MassForm& form) {
  constexpr const char* kRows[] = {"added", "the largest", "replaced"};
  return fmt::format("{} moments, {} of heads, rows {}", form.n_moments,
                     form.heads == MassForm::Heads::kMean ? "mean" : "largest",
                     kRows[static_cast<size_t>(form.rows)]);
}

// Not larger than what is given is by much, so that it does not hide it; or, where it must not be read,
// poison.
std::vector<double> MassBefore(const MassForm& form, size_t count) {
  if (form.rows == MassForm::Rows::kReplace) return Untouched(count);
  std::vector<double> before;
  for (const float value : RandomFloats(count, 51)) before.push_back(0x1p-6F * std::abs(value));
  return before;
}

// Of masses to which `given` was given n times by sums of n_terms each, with weights that are off by
// weight_tolerance, relatively. What is not given anything is as it was.
std::vector<double> MassTolerance(const MassForm& form, std::span<const double> given,
                                  std::span<const double> expected, double weight_tolerance, uint32_t n_terms,
                                  uint32_t n) {
  std::vector<double> tolerance(given.size());
  for (size_t i = 0; i < given.size(); ++i) {
    if (given[i] == 0.0) continue;
    const auto exponent = static_cast<double>(1 + i / (given.size() / form.n_moments));
    const double relative =
        exponent * (weight_tolerance + 2 * kRoundoff) + (8 * std::sqrt(n_terms) + 4) * kRoundoff;
    // What is less may be flushed to zero.
    tolerance[i] = n * (relative * given[i] + 2 * kRoundoff * expected[i] + 0x1p-120);
  }
  return tolerance;
}

// A source, and whether its mass is wanted.
struct MassSource {
  SlotShape shape;
  SlotData data;
  bool has_mass = true;
};

MassSource SourceOf(const SlotShape& shape, std::span<const TableLength> lengths,
                    std::span<const float> biases = kBiases[1], bool has_mass = true) {
  return {shape, shape.n_slots == 0 ? SlotData() : MakeSlots(shape, lengths, false, biases), has_mass};
}

// A case whose rows are of different sequences.
SlotCase MassCase(KvType k_type, KvType v_type, uint32_t head_dim, uint32_t group_tokens, uint32_t group,
                  bool together) {
  SlotCase c = AttendCase(k_type, v_type, head_dim, group_tokens, group, together);
  c.tokens.pop_back();
  return c;
}

bool AllFits(const Device& device, const SlotCase& c, std::span<const MassSource> sources) {
  SlotAttentionArgs args = c.args();
  for (const MassSource& source : sources) args.Add({.shape = source.shape});
  // Of scores, the most there can be.
  uint64_t scratch_bytes = device.AttendSlotsScratchBytes(args);
  for (const MassSource& source : sources) {
    scratch_bytes += uint64_t{c.n_heads()} * c.tokens.size() * source.shape.table_slots *
                     source.shape.record.group_tokens * sizeof(float);
  }
  return Fits(device, scratch_bytes) &&
         std::all_of(sources.begin(), sources.end(),
                     [&](const MassSource& source) { return Fits(device, source.shape.size_bytes()); });
}

// Attends twice: mass is joined again.
void CheckMass(Device& device, const SlotCase& c, std::span<const MassSource> sources, const MassForm& form) {
  constexpr uint32_t kTimes = 2;
  if (!AllFits(device, c, sources)) return;
  SelfTestRun run(device);
  std::vector<float> qkv = RandomFloats(c.qkv_count(), 42);
  for (float& value : qkv) value *= kSlotQueryScale;
  SlotAttentionArgs args = c.args();
  args.mass_form = form;
  std::vector<SlotReferenceSource> references;
  std::vector<std::vector<double>> before;
  uint32_t most_entries = 0;
  bool has_biases = false;
  for (const MassSource& source : sources) {
    const bool is_there = source.shape.n_slots != 0;
    references.push_back({source.shape, source.data.slots, source.data.tables});
    SlotSource added{.slots = is_there ? Words(run, source.data.slots) : nullptr,
                     .shape = source.shape,
                     .table = is_there ? Words(run, source.data.tables) : nullptr};
    before.push_back(MassBefore(form, added.mass_bytes(args.attention.kv_shape, form) / sizeof(float)));
    if (source.has_mass) added.mass = PoisonedBuffer(run, before.back());
    args.Add(added);
    most_entries += source.data.most_entries;
    has_biases = has_biases || source.shape.has_biases;
  }
  std::vector<RowWeights> weights;
  const std::vector<double> expected = AttendSlotsReference(c.reference(references), qkv, &weights);
  args.attention.qkv = run.Floats(qkv);
  args.attention.step = run.Step(c.tokens);
  args.attention.output = PoisonedBuffer(run, Untouched(expected.size()));
  const size_t scratch_floats = device.AttendSlotsScratchBytes(args) / sizeof(float);
  args.attention.scratch = PoisonedBuffer(run, Untouched(scratch_floats));
  run.Run([&](CommandList& list) -> Status {
    for (uint32_t time = 0; time < kTimes; ++time) KVRUN_RETURN_IF_ERROR(list.AttendSlots(args));
    return Status::Ok();
  });
  const std::string how = Describe(c) + "; " + Describe(form);
  EXPECT_TRUE(
      IsClose(run, args.attention.output, expected, AttendTolerance(c, most_entries, has_biases, false)))
      << how;
  const std::vector<uint32_t> scratch = WordsOf(run, args.attention.scratch, scratch_floats + kBeyond);
  EXPECT_TRUE(std::all_of(scratch.end() - kBeyond, scratch.end(), [](uint32_t w) { return w == kPoison; }))
      << "scratch: " << how;

  const double tolerance = WeightTolerance(c, most_entries, has_biases);
  for (uint32_t nth = 0; nth < sources.size(); ++nth) {
    if (!sources[nth].has_mass) continue;
    std::vector<double> given(before[nth].size());
    SlotMassReference(c.reference(references), c.n_sequences, weights, nth, form, given);
    std::vector<double>& mass = before[nth];
    for (uint32_t time = 0; time < kTimes; ++time)
      SlotMassReference(c.reference(references), c.n_sequences, weights, nth, form, mass);
    EXPECT_TRUE(IsClose(run, args.sources.at(nth).mass, mass,
                        MassTolerance(form, given, mass, tolerance, c.group, kTimes)))
        << "mass of source " << nth << ": " << how;
  }
}

// So that all tables have slots of their own: prime, and more than 3 sequences, 2 KV heads and tables ask
// for.
constexpr uint32_t kSharedSlots = 131;

void Share(SlotShape* shape) {
  shape->is_shared = true;
  shape->n_window_slots = 0;
  shape->n_slots = kSharedSlots;
}

// All types, among them pairs that no subgroup takes; with biases, in slots that streams share, in all forms.
TEST_P(SlotsMassTest, OfEveryType) {
  constexpr std::pair<KvType, KvType> kPairs[] = {
      {KvType::kF16, KvType::kF16},  {KvType::kFp8, KvType::kInt4},  {KvType::kInt8, KvType::kInt8},
      {KvType::kF32, KvType::kFp8},  {KvType::kInt4, KvType::kInt4}, {KvType::kFp8, KvType::kFp8},
      {KvType::kF32, KvType::kF32},  {KvType::kInt8, KvType::kF16},  {KvType::kF16, KvType::kInt4},
      {KvType::kInt4, KvType::kF32}, {KvType::kF16, KvType::kFp8},   {KvType::kFp8, KvType::kFp8}};
  constexpr uint32_t kHeadDims[] = {64, 66, 128, 80, 64, 256};
  constexpr uint32_t kGroupTokens[] = {4, 1, 3, 8, 16};
  constexpr uint32_t kGroups[] = {3, 2, 1, 4, 9, 7, 8};
  for (Device* device : devices_) {
    uint32_t turn = 0;
    for (const auto& [k_type, v_type] : kPairs) {
      const uint32_t group_tokens = kGroupTokens[turn % 5];
      SlotCase c =
          MassCase(k_type, v_type, kHeadDims[turn % 6], group_tokens, kGroups[turn % 7], turn % 2 == 0);
      c.shape.record.has_positions = turn % 5 == 0;
      c.shape.has_biases = turn % 4 == 1;
      if (turn % 4 == 3) Share(&c.shape);
      const std::array sources = {SourceOf(c.shape, Lengths(group_tokens), kBiases[turn % 5])};
      CheckMass(*device, c, sources, SlotFormOf(turn));
      ++turn;
    }
  }
}

// More heads of a KV head than a kernel attends with at once, and than an invocation can sum up at once.
TEST_P(SlotsMassTest, OfManyHeads) {
  for (Device* device : devices_) {
    uint32_t turn = 0;
    for (const uint32_t group : {9U, 16U, 12U, 70U}) {
      const KvType type = turn % 2 == 0 ? KvType::kF16 : KvType::kFp8;
      const SlotCase c = MassCase(type, type, turn % 2 == 0 ? 80 : 64, 4, group, turn < 2);
      CheckMass(*device, c, std::array{SourceOf(c.shape, Lengths(4))}, SlotFormOf(turn * 5 + 1));
      ++turn;
    }
  }
}

// Entries that are divided, and a table of which some parts are empty.
TEST_P(SlotsMassTest, OfSplits) {
  for (Device* device : devices_) {
    uint32_t turn = 0;
    for (const uint32_t head_dim : {64U, 80U}) {
      for (const TableLength length : {TableLength{208, 3}, {1, 1}, {100, 4}}) {
        SlotCase c;
        c.group = 3;
        c.tokens = {TokenAt(2000, 0)};
        c.shape = {{KvType::kF16, KvType::kF16, 1, head_dim, 4}, 1, 211, 3, 208, turn % 2 == 1};
        CheckMass(*device, c, std::array{SourceOf(c.shape, {&length, 1}, kBiases[3])}, SlotFormOf(turn * 7));
        ++turn;
      }
    }
  }
}

// Sources that differ in all they may: with and without mass, without slots, with tables that are empty.
TEST_P(SlotsMassTest, OfManySources) {
  for (Device* device : devices_) {
    for (uint32_t turn = 0; turn < 6; ++turn) {
      const SlotCase c = MassCase(KvType::kF16, KvType::kFp8, turn % 2 == 0 ? 64 : 80, 4, 3, turn % 2 == 0);
      SlotShape second = SourceBeside(c, KvType::kInt8, KvType::kInt8, 3, turn % 3 != 0);
      second.has_biases = true;
      SlotShape third = SourceBeside(c, KvType::kFp8, KvType::kFp8, 5, false);
      Share(&third);
      if (turn % 3 == 2) second.n_slots = 0;
      SlotShape window = SourceBeside(c, KvType::kF16, KvType::kF16, 1, turn % 4 < 2);
      const std::vector<TableLength> some = {{9, 1}, {0, 3}, {2, 3}, {5, 2}};
      const std::vector<TableLength> empty = {{0, 3}, {4, 2}};
      const std::array sources = {
          SourceOf(c.shape, Lengths(4), {}, turn != 1),
          SourceOf(second, some, kBiases[turn % 5], second.n_slots != 0 && turn != 3),
          SourceOf(third, turn % 2 == 0 ? some : empty),
          SourceOf(window, std::vector<TableLength>{{9, 1}, {1, 1}}, {}, turn % 2 == 1)};
      CheckMass(*device, c, sources, SlotFormOf(turn * 7 + 2));
    }
  }
}

// Tables name slots that all streams share in any order; with records of all heads, whose mass is not wanted,
// too.
TEST_P(SlotsMassTest, OfSharedSlots) {
  for (Device* device : devices_) {
    for (uint32_t turn = 0; turn < 6; ++turn) {
      const bool together = turn % 3 == 2;
      const KvType type = turn % 2 == 0 ? KvType::kF16 : KvType::kInt4;
      SlotCase c = MassCase(type, type, 64, 1 + turn, 1 + turn % 4, together);
      Share(&c.shape);
      c.shape.has_biases = turn == 1;
      const SlotShape window = SourceBeside(c, KvType::kF16, KvType::kF16, 2, true);
      SlotShape own = window;
      own.is_shared = false;
      own.n_slots = own.n_window_slots = 11;
      std::vector<TableLength> lengths = Lengths(c.shape.record.group_tokens);
      lengths[turn % 5] = {0, 1};
      const std::array sources = {SourceOf(c.shape, lengths, kBiases[2], !together),
                                  SourceOf(own, std::vector<TableLength>{{9, 2}, {1, 1}})};
      CheckMass(*device, c, sources, SlotFormOf(turn * 5));
    }
  }
}

// A prompt's rows, and its KV in tiles.
struct RowMassCase {
  KvType type = KvType::kF16;
  uint32_t head_dim = 64;
  uint32_t n_kv_heads = 2;
  uint32_t group = 1;
  uint32_t n_rows = 1;
  MassForm form;
  float score_cap = 0.0F;    // as in AttentionArgs
  float score_scale = 0.0F;  // likewise; at most 1 / sqrt(head_dim)

  uint32_t n_heads() const { return n_kv_heads * group; }
};

struct Tile {
  uint32_t begin = 0;
  uint32_t n_entries = 0;
};
// Rows are at positions 0 to kLastPosition: some see nothing, some a tile's first entry or its last one.
constexpr std::array kTiles = {Tile{80, 5}, Tile{10, 70}, Tile{85, 66}};
constexpr uint32_t kLastPosition = 150;
constexpr uint32_t kTilePadding = 3;  // entries of a tile's buffer that do not count
constexpr uint32_t kMostSeen = 141;

std::string Describe(const RowMassCase& c) {
  return fmt::format("{}, {}/{} heads of {}, {} rows; {}", KvTypeText(c.type), c.n_heads(), c.n_kv_heads,
                     c.head_dim, c.n_rows, Describe(c.form));
}

KvShape TileShape(const RowMassCase& c, const Tile& tile) {
  return {c.type, 1, c.n_kv_heads, c.head_dim, tile.n_entries + kTilePadding};
}

// A tile's KV, as numbers and as a device stores it; values, and what does not count, are NaN.
struct TileData {
  std::vector<float> kv;
  std::vector<uint32_t> words;
};

TileData MakeTile(const RowMassCase& c, const Tile& tile) {
  const KvShape shape = TileShape(c, tile);
  TileData data;
  data.kv = RandomFloats(shape.size_bytes() / KvElementBytes(c.type), 61 + tile.begin);
  data.words.assign(shape.size_bytes() / sizeof(uint32_t), 0xffffffffU);
  for (size_t i = 0; i < data.kv.size(); ++i) {
    const size_t plane = i / c.head_dim / shape.n_ctx;
    if (plane % 2 != 0 || i / c.head_dim % shape.n_ctx >= tile.n_entries) continue;
    if (c.type == KvType::kF32) {
      std::memcpy(&data.words[i], &data.kv[i], sizeof(float));
    } else {
      const uint16_t half = FloatToHalf(data.kv[i]);
      data.kv[i] = HalfToFloat(half);
      const auto shift = static_cast<uint32_t>(16 * (i % 2));
      data.words[i / 2] = (data.words[i / 2] & ~(0xffffU << shift)) | uint32_t{half} << shift;
    }
  }
  return data;
}

// Scores are as in attention (slot_attention_cases.cc). Between an entry's weight in its lane and the sum of
// all tiles there is an exponential for each of two blocks of a tile, and for the joins of lanes and tiles.
struct RowTolerances {
  double score = 0.0;   // absolute
  double sum = 0.0;     // relative
  double weight = 0.0;  // relative
};
RowTolerances TolerancesOf(const RowMassCase& c) {
  constexpr double kExponentials = 8;
  const double dims = c.head_dim;
  const double largest_score = 0.5 * kSlotQueryScale * std::sqrt(dims);
  const double score = (8 * std::sqrt(dims) + 4) * kRoundoff * largest_score + CapTolerance(c.score_cap);
  const double exponential = 2 * kRoundoff * (3 + 4 * largest_score);
  const double sum = 2 * score + kExponentials * exponential + 8 * std::sqrt(kMostSeen) * kRoundoff;
  return {score, sum, score + exponential + sum + 2 * kRoundoff};
}

class RowMassRun {
 public:
  RowMassRun(Device& device, const RowMassCase& c)
      : c_(c), run_(device), queries_(RandomFloats(size_t{c.n_rows} * c.n_heads() * c.head_dim, 71)) {
    for (float& value : queries_) value *= kSlotQueryScale;
    for (uint32_t row = 0; row < c.n_rows; ++row)
      rows_.push_back(TokenAt((row * 37 + 85) % (kLastPosition + 1), 0));
    for (const Tile& tile : kTiles) tiles_.push_back(MakeTile(c, tile));
    args_.queries = run_.Floats(queries_);
    args_.step = run_.Step(rows_);
    args_.n_rows = c.n_rows;
    args_.n_heads = c.n_heads();
    args_.score_cap = c.score_cap;
    args_.score_scale = c.score_scale;
    expected_sums_ = Untouched(size_t{c.n_rows} * c.n_heads() * 2);
    args_.sums = PoisonedBuffer(run_, expected_sums_);
    for (const TileData& tile : tiles_) buffers_.push_back(Words(run_, tile.words));
  }

  // Tile after tile: the first one is not the lowest, so that rows see nothing, then something.
  void CheckSums() {
    run_.Run([&](CommandList& list) { return list.SumWeights(ArgsOf(0)); });
    SumWeightsReference(ReferenceOf(0), true, expected_sums_);
    EXPECT_TRUE(SumsAreClose()) << "first tile: " << Describe(c_);
    run_.Run([&](CommandList& list) -> Status {
      KVRUN_RETURN_IF_ERROR(list.SumWeights(ArgsOf(1)));
      return list.SumWeights(ArgsOf(2));
    });
    SumWeightsReference(ReferenceOf(1), false, expected_sums_);
    SumWeightsReference(ReferenceOf(2), false, expected_sums_);
    EXPECT_TRUE(SumsAreClose()) << Describe(c_);
  }

  // One tile twice, another beside it, and nothing of the first.
  void CheckMass() {
    constexpr uint32_t kBegin = 7;
    constexpr uint32_t kStride = 160;
    const std::array<uint32_t, 2> begins = {kBegin, kBegin + kTiles[1].n_entries + 4};
    std::vector<double> mass = Untouched(size_t{c_.form.n_moments} * c_.n_kv_heads * kStride);
    std::vector<double> given(mass.size());
    const std::vector<double> before = MassBefore(c_.form, mass.size());
    for (size_t i = 0; i < mass.size(); ++i) {
      for (const uint32_t nth : {0U, 1U}) {
        const uint32_t begin = begins[nth];
        if (i % kStride >= begin && i % kStride < begin + kTiles[nth + 1].n_entries) mass[i] = before[i];
      }
    }
    args_.mass = PoisonedBuffer(run_, mass);
    args_.mass_stride = kStride;
    args_.form = c_.form;
    run_.Run([&](CommandList& list) -> Status {
      for (const uint32_t nth : {0U, 1U, 0U}) {
        RowMassArgs args = ArgsOf(nth + 1);
        args.mass_begin = begins[nth];
        KVRUN_RETURN_IF_ERROR(list.AttentionMass(args));
      }
      return Status::Ok();
    });
    for (const uint32_t nth : {0U, 1U, 0U})
      AttentionMassReference(ReferenceOf(nth + 1), expected_sums_, c_.form, kStride, begins[nth], mass);
    for (const uint32_t nth : {0U, 1U})
      AttentionMassReference(ReferenceOf(nth + 1), expected_sums_, c_.form, kStride, begins[nth], given);
    EXPECT_TRUE(
        IsClose(run_, args_.mass, mass,
                MassTolerance(c_.form, given, mass, TolerancesOf(c_).weight, c_.group * c_.n_rows, 2)))
        << Describe(c_);
  }

 private:
  RowMassArgs ArgsOf(uint32_t nth) const {
    RowMassArgs args = args_;
    args.kv = buffers_[nth];
    args.kv_shape = TileShape(c_, kTiles.at(nth));
    args.tile_begin = kTiles.at(nth).begin;
    args.n_entries = kTiles.at(nth).n_entries;
    args.is_first = nth == 0;
    return args;
  }
  RowMassReferenceArgs ReferenceOf(uint32_t nth) const {
    return {.queries = queries_,
            .rows = rows_,
            .n_heads = c_.n_heads(),
            .kv_shape = TileShape(c_, kTiles.at(nth)),
            .kv = tiles_[nth].kv,
            .tile_begin = kTiles.at(nth).begin,
            .n_entries = kTiles.at(nth).n_entries,
            .score_cap = c_.score_cap,
            .score_scale = c_.score_scale};
  }
  ::testing::AssertionResult SumsAreClose() {
    const RowTolerances tolerances = TolerancesOf(c_);
    std::vector<double> tolerance;
    for (size_t i = 0; i < expected_sums_.size(); i += 2) {
      const bool is_seen = expected_sums_[i + 1] != 0.0;  // else it is as said
      tolerance.push_back(is_seen ? tolerances.score : 0.0);
      tolerance.push_back(tolerances.sum * expected_sums_[i + 1]);
    }
    return IsClose(run_, args_.sums, expected_sums_, tolerance);
  }

  const RowMassCase& c_;
  SelfTestRun run_;
  std::vector<float> queries_;
  std::vector<StepToken> rows_;
  std::vector<TileData> tiles_;
  std::vector<Buffer*> buffers_;
  RowMassArgs args_;
  std::vector<double> expected_sums_;
};

bool AllFits(const Device& device, const RowMassCase& c) {
  return std::all_of(kTiles.begin(), kTiles.end(),
                     [&](const Tile& tile) { return Fits(device, TileShape(c, tile).size_bytes()); }) &&
         Fits(device, uint64_t{c.n_rows} * c.n_heads() * c.head_dim * sizeof(float));
}

// Several tiles, of which rows see all, a part or nothing; as many rows as a pair gives to the CPU, and more.
TEST_P(RowMassTest, OfTiles) {
  constexpr uint32_t kHeadDims[] = {64, 66, 80, 128, 256};
  constexpr uint32_t kGroups[] = {3, 1, 9, 4, 2};
  for (Device* device : devices_) {
    uint32_t turn = 0;
    for (const KvType type : {KvType::kF16, KvType::kF32}) {
      for (uint32_t i = 0; i < 5; ++i, ++turn) {
        RowMassCase c{.type = type, .head_dim = kHeadDims[i], .group = kGroups[i], .form = {}};
        c.n_rows = turn % 4 == 1 ? kPairDecodeRows : 21;
        c.n_kv_heads = 1 + turn % 3;
        c.form = {.n_moments = 1 + turn % 4,
                  .heads = turn / 2 % 2 == 0 ? MassForm::Heads::kMean : MassForm::Heads::kLargest,
                  .rows = turn % 3 != 1 ? MassForm::Rows::kAdd : MassForm::Rows::kLargest};
        if (turn % 2 == 1) c.score_scale = 0.7F / std::sqrt(static_cast<float>(c.head_dim));
        if (turn % 3 == 1) c.score_cap = 2.0F;
        if (!AllFits(*device, c)) continue;
        RowMassRun run(*device, c);
        run.CheckSums();
        run.CheckMass();
      }
    }
  }
}

}  // namespace
}  // namespace kvrun::testing
