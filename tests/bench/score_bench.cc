#include "tests/bench/score_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

#include "runtime/device/encode_rows.h"
#include "runtime/device/host/host_device.h"
#include "runtime/device/host/operations.h"
#include "runtime/device/self_test_data.h"
#include "runtime/kv/planner/kv_plan_candidates.h"
#include "shaders/shared/step_params.h"
#include "tests/support/or_die.h"

namespace kvrun::host {
namespace {

using testing::OrDie;

constexpr int kRuns = 9;
constexpr uint32_t kGroupTokens = 4;
constexpr uint32_t kChosenShare = 16;  // one entry of so many is chosen
// So many layers' rows at 8,192 entries do not stay in a second-level cache, and at 32,768 not in a third.
constexpr uint32_t kTimedLayers = 8;

struct Shape {
  std::string_view name;
  uint32_t n_layers;
  uint32_t n_heads;
  uint32_t n_kv_heads;
  uint32_t head_dim;
  uint32_t rank;
};
constexpr Shape kShapes[] = {{"135M", 30, 9, 3, 64, 24},
                             {"1B", 16, 32, 8, 64, 64},
                             {"3B", 28, 24, 8, 128, 128},
                             {"8B", 32, 32, 8, 128, 128}};

class ScoreBench {
 public:
  explicit ScoreBench(uint32_t n_threads) : pool_(n_threads) {}

  void Run(const Shape& shape, uint32_t n_entries) {
    const auto query = Floats(size_t{shape.n_heads} * shape.head_dim, 1.0F);
    const auto angles = Floats(shape.head_dim, 1.0F);
    const auto halves =
        ToFiniteHalves(RandomFloats(size_t{shape.n_kv_heads} * shape.head_dim * shape.rank, 1));
    const auto side = NewBuffer(halves.size() * sizeof(uint16_t));
    std::memcpy(side->host().data(), halves.data(), halves.size() * sizeof(uint16_t));
    const auto scales = Floats(shape.rank, 0.02F);
    const auto step = NewBuffer(sizeof(StepParams));
    reinterpret_cast<StepParams*>(step->host().data())->tokens[0] = {0, n_entries - 1, 0, 0};
    ScoreArgs args;
    args.query = query.get();
    args.attention = {.step = step.get(),
                      .kv_shape = {.n_kv_heads = shape.n_kv_heads, .head_dim = shape.head_dim},
                      .n_heads = shape.n_heads,
                      .n_tokens = 1,
                      .angles = angles.get(),
                      .rotary_dim = shape.head_dim};
    args.sides = {.are_halves = true, .query_side = side.get(), .scales = scales.get()};
    args.index_shape = {KvType::kInt4, shape.rank, kGroupTokens, n_entries / kGroupTokens, 1};
    args.rule = ChooseByMass{};
    args.window_tokens = 64;
    args.n_pinned = 1;
    args.n_chosen = n_entries / kGroupTokens / kChosenShare;
    const auto chosen = NewBuffer(uint64_t{args.choice_list().words()} * 4);
    args.chosen = chosen.get();
    std::vector<std::unique_ptr<Buffer>> layers;
    for (uint32_t layer = 0; layer < kTimedLayers; ++layer) {
      layers.push_back(NewBuffer(args.index_shape.size_bytes()));
      uint32_t bits = layer + 1;
      for (size_t i = 0; i + 4 <= layers.back()->size_bytes(); i += 4) {
        bits = bits * 1664525U + 1013904223U;
        std::memcpy(layers.back()->host().data() + i, &bits, 4);
      }
    }
    const double one_ms = Milliseconds(args, layers, shape.n_layers);
    const CandidatePlan two = PlanCandidates({.n_queries = shape.n_heads,
                                              .n_kv_heads = shape.n_kv_heads,
                                              .rank = shape.rank,
                                              .group_tokens = kGroupTokens,
                                              .n_groups = args.index_shape.n_groups,
                                              .n_chosen = args.n_chosen});
    fmt::print("{:<5} {:>7} entries: {:>8.2f} ms a token", shape.name, n_entries, one_ms);
    if (two.n_groups == 0) {
      fmt::print("\n");
      return;
    }
    args.rule = ChooseByMass{.stages = ScoreStages{two.n_groups, two.first_columns}};
    const double two_ms = Milliseconds(args, layers, shape.n_layers);
    fmt::print("; {} columns first, {} candidates: {:>7.2f} ms ({:.1f} times)\n", two.first_columns,
               two.n_groups * kGroupTokens, two_ms, one_ms / two_ms);
  }

 private:
  std::unique_ptr<Buffer> NewBuffer(uint64_t size_bytes) {
    return std::make_unique<HostBuffer>(OrDie(HostMemory::Allocate(account_, "bench", size_bytes)),
                                        size_bytes, BufferUse::kShared);
  }

  std::unique_ptr<Buffer> Floats(size_t count, float factor) {
    std::vector<float> values = RandomFloats(count, 1);
    for (float& value : values) value *= factor;
    auto buffer = NewBuffer(count * sizeof(float));
    std::memcpy(buffer->host().data(), values.data(), count * sizeof(float));
    return buffer;
  }

  // Of a token's layers, by those that there are: the median.
  double Milliseconds(ScoreArgs args, const std::vector<std::unique_ptr<Buffer>>& layers, uint32_t n_layers) {
    const auto scratch = NewBuffer(ScoreScratchBytes(args));
    args.scratch = scratch.get();
    const std::vector<std::byte> query(args.query->host().begin(), args.query->host().end());
    std::vector<double> times;
    for (int run = 0; run <= kRuns; ++run) {
      double sum = 0.0;
      for (const auto& layer : layers) {
        // It is rotated where it is, again and again.
        std::copy(query.begin(), query.end(), args.query->host().begin());
        args.index = layer.get();
        const auto begin = std::chrono::steady_clock::now();
        ScoreAndSelect(pool_, args, /*exact=*/false);
        sum += std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
      }
      if (run > 0) times.push_back(sum * n_layers / static_cast<double>(layers.size()));
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }

  ThreadPool pool_;
  std::shared_ptr<MemoryAccount> account_ = std::make_shared<MemoryAccount>();
};

}  // namespace

void BenchScores(uint32_t n_threads) {
  fmt::print("scores and choice of 1/{} of the entries\n", kChosenShare);
  for (const Shape& shape : kShapes) {
    for (const uint32_t n_entries : {8192U, 32768U, 131072U}) ScoreBench(n_threads).Run(shape, n_entries);
  }
}

}  // namespace kvrun::host
