#include "runtime/device/self_test_mass.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <span>
#include <vector>

#include "runtime/device/self_test_data.h"
#include "runtime/device/self_test_run.h"
#include "runtime/device/self_test_slot_data.h"

namespace kvrun {
namespace {

constexpr double kMassTolerance = 3e-4;

// Joins what query heads with these weights give to an entry. Its moments lie `stride` apart.
void JoinGift(const MassForm& form, std::span<const double> weights, size_t stride, double* mass) {
  for (uint32_t moment = 0; moment < form.n_moments; ++moment) {
    double sum = 0.0;
    double largest = 0.0;
    for (const double weight : weights) {
      const double power = std::pow(weight, moment + 1);
      sum += power;
      largest = std::max(largest, power);
    }
    const double given =
        form.heads == MassForm::Heads::kMean ? sum / static_cast<double>(weights.size()) : largest;
    double& to = mass[moment * stride];
    switch (form.rows) {
      case MassForm::Rows::kAdd: to += given; break;
      case MassForm::Rows::kLargest: to = std::max(to, given); break;
      case MassForm::Rows::kReplace: to = given; break;
    }
  }
}

// What there is before: small, so that it hides nothing.
std::vector<float> RandomMass(size_t count) {
  std::vector<float> mass = RandomFloats(count, 21);
  for (float& value : mass) value = std::abs(value) / 64;
  return mass;
}

// Each moment by itself: the second one's values are much smaller.
Result<std::string> CompareMoments(SelfTestRun& run, const MassForm& form, std::span<const double> expected,
                                   const Buffer* found) {
  KVRUN_RETURN_IF_ERROR(run.status());
  std::vector<float> floats(expected.size());
  const std::vector<std::byte> bytes = run.Bytes(found, floats.size() * sizeof(float));
  std::memcpy(floats.data(), bytes.data(), bytes.size());
  const size_t stride = expected.size() / form.n_moments;
  Result<std::string> outcome = std::string();
  for (uint32_t moment = 0; moment < form.n_moments; ++moment) {
    outcome = run.Compare(expected.subspan(moment * stride, stride),
                          std::span(floats).subspan(moment * stride, stride), kMassTolerance);
    if (outcome.ok()) continue;
    return Status(outcome.status().code(),
                  fmt::format("mass, moment {}: {}", moment + 1, outcome.status().message()));
  }
  return outcome;
}

constexpr uint32_t kTileEntries = 45;
constexpr uint32_t kTiles = 2;

// A prompt's rows and KV. K lies before V in each tile; V is nothing that is read.
class PromptData {
 public:
  explicit PromptData(const RowMassCase& c)
      : c_(c),
        queries_(RandomFloats(size_t{RowMassCase::kRows} * c.n_heads() * c.head_dim, 22)),
        keys_(RandomFloats(size_t{kTiles} * RowMassCase::kKvHeads * kTileEntries * c.head_dim, 23)) {
    for (float& value : queries_) value *= 4.0F;  // so that some entries weigh much more than others
    if (c.type != KvType::kF16) return;
    for (float& key : keys_) key = HalfToFloat(FloatToHalf(key));
  }

  KvShape tile_shape() const { return {c_.type, 1, RowMassCase::kKvHeads, c_.head_dim, kTileEntries}; }
  // One sees all but one of the first tile, one all of it, the others of the second, too.
  uint32_t Position(uint32_t row) const { return kTileEntries - 2 + row * row; }
  bool Sees(uint32_t row, uint32_t entry) const { return entry <= Position(row); }
  std::span<const float> queries() const { return queries_; }
  std::vector<StepToken> Rows() const {
    std::vector<StepToken> rows;
    for (uint32_t row = 0; row < RowMassCase::kRows; ++row)
      rows.push_back({.id = 0, .position = Position(row), .sequence = 0, .output_row = 0});
    return rows;
  }

  // As the device stores it.
  std::vector<float> Tile(uint32_t tile) const {
    const size_t plane = size_t{kTileEntries} * c_.head_dim;
    std::vector<float> values(RowMassCase::kKvHeads * 2 * plane);
    for (uint32_t kv_head = 0; kv_head < RowMassCase::kKvHeads; ++kv_head)
      std::copy_n(&keys_[(tile * RowMassCase::kKvHeads + kv_head) * plane], plane,
                  &values[2 * kv_head * plane]);
    if (c_.type == KvType::kF32) return values;
    std::vector<uint16_t> halves(values.size());
    std::transform(values.begin(), values.end(), halves.begin(), FloatToHalf);
    std::vector<float> stored(values.size() / 2);
    std::memcpy(stored.data(), halves.data(), stored.size() * sizeof(float));
    return stored;
  }

  double Score(uint32_t row, uint32_t head, uint32_t entry) const {
    const uint32_t tile = entry / kTileEntries;
    const size_t key =
        (size_t{tile * RowMassCase::kKvHeads + head / c_.group} * kTileEntries + entry % kTileEntries) *
        c_.head_dim;
    const size_t query = (size_t{row} * c_.n_heads() + head) * c_.head_dim;
    double score = 0.0;
    for (uint32_t i = 0; i < c_.head_dim; ++i) score += double{queries_[query + i]} * keys_[key + i];
    return score / std::sqrt(c_.head_dim);
  }

 private:
  const RowMassCase& c_;
  std::vector<float> queries_;
  std::vector<float> keys_;  // [kTiles, kKvHeads, kTileEntries, head_dim]
};

// [kRows, n_heads, 2].
std::vector<double> ExpectedSums(const RowMassCase& c, const PromptData& data) {
  std::vector<double> sums;
  for (uint32_t row = 0; row < RowMassCase::kRows; ++row) {
    for (uint32_t head = 0; head < c.n_heads(); ++head) {
      double largest = -INFINITY;
      double sum = 0.0;
      for (uint32_t entry = 0; data.Sees(row, entry); ++entry)
        largest = std::max(largest, data.Score(row, head, entry));
      for (uint32_t entry = 0; data.Sees(row, entry); ++entry)
        sum += std::exp(data.Score(row, head, entry) - largest);
      sums.push_back(largest);
      sums.push_back(sum);
    }
  }
  return sums;
}

// Joins into [n_moments, kKvHeads, kTiles * kTileEntries].
void JoinRows(const RowMassCase& c, const PromptData& data, std::span<const double> sums,
              std::span<double> mass) {
  constexpr uint32_t kEntries = kTiles * kTileEntries;
  for (uint32_t row = 0; row < RowMassCase::kRows; ++row) {
    for (uint32_t kv_head = 0; kv_head < RowMassCase::kKvHeads; ++kv_head) {
      for (uint32_t entry = 0; data.Sees(row, entry); ++entry) {
        std::vector<double> weights;
        for (uint32_t head = kv_head * c.group; head < (kv_head + 1) * c.group; ++head) {
          const double* sum = &sums[(size_t{row} * c.n_heads() + head) * 2];
          weights.push_back(std::exp(data.Score(row, head, entry) - sum[0]) / sum[1]);
        }
        JoinGift(c.form, weights, size_t{RowMassCase::kKvHeads} * kEntries,
                 &mass[kv_head * kEntries + entry]);
      }
    }
  }
}

}  // namespace

std::string MassFormText(const MassForm& form) {
  constexpr std::array kRowTexts = {"added", "largest of rows", "replaced"};
  return fmt::format("{}, {}", form.heads == MassForm::Heads::kMean ? "mean" : "largest of heads",
                     kRowTexts.at(static_cast<size_t>(form.rows)));
}

Result<std::string> CheckSlotMass(Device& device, const SlotCase& c, const MassForm& form) {
  SelfTestRun run(device);
  const SlotTestData data(c);
  SlotAttentionArgs args = data.Args(run);
  args.mass_form = form;
  SlotSource& source = args.sources[0];
  const std::vector<float> before =
      RandomMass(source.mass_bytes(args.attention.kv_shape, form) / sizeof(float));
  source.mass = run.Floats(before);
  args.attention.scratch = run.Zeros(device.AttendSlotsScratchBytes(args));
  if (!run.status().ok()) return run.status();
  run.Run([&](CommandList& list) { return list.AttendSlots(args); });
  const auto attended = run.Compare(data.Output(), args.attention.output, kMassTolerance);
  if (!attended.ok()) return attended;

  constexpr uint32_t kListEntries = SlotCase::kSlots * SlotCase::kGroupTokens;
  std::vector<double> expected(before.begin(), before.end());
  for (uint32_t kv_head = 0; kv_head < SlotCase::kKvHeads; ++kv_head) {
    std::vector<std::vector<double>> of_heads;
    for (uint32_t head = kv_head * c.group; head < (kv_head + 1) * c.group; ++head)
      of_heads.push_back(data.Weights(head));
    for (size_t e = 0; e < data.entries().size(); ++e) {
      std::vector<double> weights;
      for (const std::vector<double>& of_head : of_heads) weights.push_back(of_head[e]);
      const TestedEntry& entry = data.entries()[e];
      JoinGift(form, weights, size_t{SlotCase::kKvHeads} * kListEntries,
               &expected[kv_head * kListEntries + entry.slot * SlotCase::kGroupTokens + entry.in_slot]);
    }
  }
  return CompareMoments(run, form, expected, source.mass);
}

Result<std::string> CheckRowMass(Device& device, const RowMassCase& c) {
  SelfTestRun run(device);
  const PromptData data(c);
  const std::vector<double> expected_sums = ExpectedSums(c, data);
  const size_t mass_count = size_t{c.form.n_moments} * RowMassCase::kKvHeads * kTiles * kTileEntries;
  const std::vector<float> before = RandomMass(mass_count);
  RowMassArgs args{.queries = run.Floats(data.queries()),
                   .step = run.Step(data.Rows()),
                   .n_rows = RowMassCase::kRows,
                   .n_heads = c.n_heads(),
                   .kv_shape = data.tile_shape(),
                   .n_entries = kTileEntries,
                   .sums = run.Poisoned(expected_sums.size()),
                   .mass = run.Floats(before),
                   .mass_stride = kTiles * kTileEntries,
                   .form = c.form};
  const std::array<const Buffer*, kTiles> tiles = {run.Floats(data.Tile(0)), run.Floats(data.Tile(1))};
  if (!run.status().ok()) return run.status();
  run.Run([&](CommandList& list) -> Status {
    const auto with_tile = [&](uint32_t tile) {
      RowMassArgs of_tile = args;
      of_tile.kv = tiles.at(tile);
      of_tile.is_first = tile == 0;
      of_tile.tile_begin = of_tile.mass_begin = tile * kTileEntries;
      return of_tile;
    };
    for (uint32_t tile = 0; tile < kTiles; ++tile) KVRUN_RETURN_IF_ERROR(list.SumWeights(with_tile(tile)));
    for (uint32_t tile = 0; tile < kTiles; ++tile) KVRUN_RETURN_IF_ERROR(list.AttentionMass(with_tile(tile)));
    return Status::Ok();
  });
  const auto summed = run.Compare(expected_sums, args.sums, kMassTolerance);
  if (!summed.ok()) return Status(summed.status().code(), "sums: " + summed.status().message());
  std::vector<double> expected(before.begin(), before.end());
  JoinRows(c, data, expected_sums, expected);
  return CompareMoments(run, c.form, expected, args.mass);
}

}  // namespace kvrun
