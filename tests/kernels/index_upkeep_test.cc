// What fills an index, and the sums that adapters are made of, against the scalar reference.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/support/index_reference.h"
#include "tests/support/operations_fixture.h"

namespace kvrun::testing {
namespace {

constexpr uint32_t kRanks[] = {1, 6, 12, 24, 33};

// A sum of n products in any order and the bias: at most n + 1 roundings of the sum of the magnitudes.
double ProjectTolerance(std::span<const float> rows, uint32_t n_dims, double largest_side) {
  return (n_dims + 2) * kRoundoff *
         (LargestMagnitude(std::vector<double>(rows.begin(), rows.end())) * n_dims + 1) * largest_side;
}

class IndexUpkeepTest : public OperationsTest {};

INSTANTIATE_TEST_SUITE_P(Modes, IndexUpkeepTest,
                         ::testing::ValuesIn(ModesOf(Operations::kIndexUpkeep,
                                                     {DeviceMode::kPlanned, DeviceMode::kFloor,
                                                      DeviceMode::kGpu, DeviceMode::kGpuFloor})),
                         ModeName);

void CheckProject(Device& device, const KvShape& kv, uint32_t first_token, uint32_t n_tokens, uint32_t rank,
                  bool are_halves) {
  SelfTestRun run(device);
  const uint32_t n_dims = kv.n_kv_heads * kv.head_dim;
  std::vector<float> values = RandomFloats(kv.size_bytes() / KvElementBytes(kv.type), 41);
  std::vector<float> stored = values;
  if (kv.type == KvType::kF16) {
    std::vector<uint16_t> halves(values.size());
    std::transform(values.begin(), values.end(), halves.begin(), FloatToHalf);
    std::transform(halves.begin(), halves.end(), values.begin(), HalfToFloat);
    stored.resize(values.size() / 2);
    std::memcpy(stored.data(), halves.data(), kv.size_bytes());
  }
  std::vector<float> keys;
  for (uint32_t token = first_token; token < first_token + n_tokens; ++token) {
    for (uint32_t head = 0; head < kv.n_kv_heads; ++head) {
      const size_t begin = (size_t{head} * 2 * kv.n_ctx + token) * kv.head_dim;
      keys.insert(keys.end(), values.begin() + static_cast<std::ptrdiff_t>(begin),
                  values.begin() + static_cast<std::ptrdiff_t>(begin + kv.head_dim));
    }
  }
  const std::vector<float> key_side = RoundedToHalf(RandomFloats(size_t{n_dims} * rank, 42));
  const std::vector<float> bias = RandomFloats(rank, 43);
  const std::vector<double> expected = ProjectReference(keys, n_dims, key_side, bias);
  Buffer* out = PoisonedBuffer(run, Untouched(expected.size()));
  const Buffer* buffer = run.Floats(stored);
  const IndexSides sides{.are_halves = are_halves,
                         .key_side = are_halves ? run.Halves(key_side) : run.Floats(key_side),
                         .bias = run.Floats(bias)};
  run.Run([&](CommandList& list) {
    return list.ProjectKeys(*buffer, kv, first_token, n_tokens, sides, rank, out);
  });
  EXPECT_TRUE(IsClose(run, out, expected, ProjectTolerance(keys, n_dims, 1.0)))
      << n_tokens << " tokens, rank " << rank << ", " << n_dims << " dimensions, "
      << (are_halves ? "f16" : "f32");
}

TEST_P(IndexUpkeepTest, ProjectsKeys) {
  for (Device* device : devices_) {
    for (const KvType type : {KvType::kF16, KvType::kF32}) {
      for (const uint32_t rank : kRanks) {
        CheckProject(*device, {type, 1, 3, 64, 130}, 0, 130, rank, type == KvType::kF16);
        CheckProject(*device, {type, 1, 2, 10, 50}, 7, 33, rank, type == KvType::kF32);
        CheckProject(*device, {type, 1, 1, 80, 9}, 8, 1, rank, true);
        CheckProject(*device, {type, 1, 1, 80, 9}, 0, 8, rank, false);
      }
    }
  }
}

struct GramCase {
  uint32_t n_rows;
  uint32_t row_stride;
  uint32_t first_column;
  uint32_t dim;
  uint32_t n_blocks;
  uint32_t skip_rows;
  uint32_t sums_offset;
};

void CheckGram(Device& device, const GramCase& c) {
  SelfTestRun run(device);
  std::vector<float> rows = RandomFloats(size_t{c.n_rows} * c.row_stride, 51);
  const std::vector<float> before = RandomFloats(size_t{c.dim + 1} * c.dim, 52);
  std::vector<double> sums = Untouched(c.sums_offset);
  sums.insert(sums.end(), before.begin(), before.end());
  GramArgs args{.n_rows = c.n_rows,
                .row_stride = c.row_stride,
                .first_column = c.first_column,
                .dim = c.dim,
                .n_blocks = c.n_blocks,
                .skip_rows = c.skip_rows,
                .sums_offset = c.sums_offset};
  std::vector<double> expected = sums;
  const std::vector<double> added = GramReference(args, rows);
  for (size_t i = 0; i < added.size(); ++i) expected[c.sums_offset + i] += added[i];
  // What is left out must not be read.
  std::fill_n(rows.begin(), size_t{std::min(c.skip_rows, c.n_rows)} * c.row_stride, std::nanf(""));
  args.rows = run.Floats(rows);
  args.sums = PoisonedBuffer(run, sums);
  run.Run([&](CommandList& list) { return list.AccumulateGram(args); });
  // Sums of n values of at most 1: the errors of partial sums of at most n.
  const double n = c.n_blocks * (c.n_rows - std::min(c.n_rows, c.skip_rows)) + 1.0;
  EXPECT_TRUE(IsClose(run, args.sums, expected, (n + 2) * kRoundoff * n))
      << c.n_rows << " rows, " << c.n_blocks << " blocks of " << c.dim;
}

TEST_P(IndexUpkeepTest, AddsUpProducts) {
  for (Device* device : devices_) {
    for (const GramCase& c : {GramCase{1, 1, 0, 1, 1, 0, 0},
                              {100, 192, 0, 192, 1, 4, 0},
                              {37, 70, 3, 66, 1, 0, 5},
                              {50, 9 * 16, 16, 16, 3, 0, 16 * 17},
                              {33, 131, 1, 10, 13, 1, 2},
                              {5, 300, 0, 260, 1, 0, 0},
                              {3, 64, 0, 64, 1, 3, 0},
                              {3, 64, 0, 64, 1, 7, 0}}) {
      CheckGram(*device, c);
    }
  }
}

// Adding up twice is adding up all.
TEST_P(IndexUpkeepTest, AddsUpMoreProducts) {
  for (Device* device : devices_) {
    SelfTestRun run(*device);
    const std::vector<float> rows = RandomFloats(size_t{40} * 20, 53);
    const GramArgs all{.n_rows = 40, .row_stride = 20, .dim = 20};
    const std::vector<double> expected = GramReference(all, rows);
    GramArgs half = all;
    half.rows = run.Floats(rows);
    half.n_rows = 15;
    half.sums = PoisonedBuffer(run, std::vector<double>(expected.size(), 0.0));
    GramArgs rest = half;
    rest.n_rows = 40;
    rest.skip_rows = 15;
    run.Run([&](CommandList& list) -> Status {
      KVRUN_RETURN_IF_ERROR(list.AccumulateGram(half));
      return list.AccumulateGram(rest);
    });
    EXPECT_TRUE(IsClose(run, half.sums, expected, 42 * kRoundoff * 40));
  }
}

}  // namespace
}  // namespace kvrun::testing
