// Each kernel at a model's shapes, beside what the device can do at most: multiply-adds without memory, and
// reads without arithmetic. Times are the device's own timestamps, medians of several runs.
//
//   kernel_bench [DEVICE [index]]   index: the operations on the index alone
//   kernel_bench DEVICE slots       attention over slots alone
//   kernel_bench DEVICE mass        attention with and without mass alone
//   kernel_bench DEVICE PART RUNS   of so many runs (9 without): more where the machine is not quiet
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "platform/base/check.h"
#include "runtime/device/encode_rows.h"
#include "runtime/device/open_device.h"
#include "runtime/device/self_test_data.h"
#include "runtime/kv/plan/kv_names.h"
#include "runtime/kv/plan/kv_plan.h"
#include "runtime/model/tensor_type.h"
#include "shaders/shared/step_params.h"
#include "tests/bench/mass_case.h"
#include "tests/support/or_die.h"

namespace kvrun {
namespace {

constexpr int kUsualRuns = 9;

using testing::OrDie;
using testing::RunOrDie;

// SmolLM2-135M: what the README's figures are about.
constexpr uint32_t kEmbd = 576;
constexpr uint32_t kFf = 1536;
constexpr uint32_t kHeads = 9;
constexpr uint32_t kKvHeads = 3;
constexpr uint32_t kHeadDim = 64;
constexpr uint32_t kVocab = 49152;

class Bench {
 public:
  Bench(std::unique_ptr<Device> device, int n_runs) : device_(std::move(device)), n_runs_(n_runs) {}

  // Median milliseconds of each variant that `record` records.
  std::vector<std::pair<double, std::string>> TimeEach(const std::function<Status(CommandList&)>& record) {
    const auto list = OrDie(device_->CreateCommandList());
    RunOrDie(record(*list));
    RunOrDie(list->Finish());
    std::map<std::string, std::vector<double>> times;
    for (int run = 0; run <= n_runs_; ++run) {
      RunOrDie(device_->Wait(OrDie(device_->Submit(*list))));
      for (const OperationTime& time : device_->TakeOperationTimes()) {
        if (run > 0) times[time.name].push_back(time.milliseconds);  // the first run compiles
      }
    }
    std::vector<std::pair<double, std::string>> medians;
    for (auto& [name, all] : times) {
      std::sort(all.begin(), all.end());
      medians.emplace_back(all[all.size() / 2], name);
    }
    return medians;
  }

  // All of them together.
  std::pair<double, std::string> Time(const std::function<Status(CommandList&)>& record) {
    std::pair<double, std::string> sum;
    for (const auto& [milliseconds, name] : TimeEach(record)) {
      sum.first += milliseconds;
      sum.second += (sum.second.empty() ? "" : " + ") + name;
    }
    return sum;
  }

  std::unique_ptr<Buffer> NewBuffer(uint64_t floats, BufferUse use = BufferUse::kDevice) {
    return OrDie(device_->CreateBuffer(floats * sizeof(float), use, "bench"));
  }

  std::unique_ptr<Buffer> RandomBuffer(uint64_t floats) {
    const std::vector<float> values = RandomFloats(floats, 1);
    return OrDie(device_->CreateConstants(std::as_bytes(std::span(values)), "bench"));
  }

  std::unique_ptr<Matrix> NewMatrix(TensorType type, uint32_t rows, uint32_t cols) {
    const TensorTypeInfo& info = GetTensorType(type);
    // Zeros: valid in every type, and arithmetic takes no notice of values.
    const std::vector<std::byte> data(uint64_t{rows} * cols / info.block_elements * info.block_bytes);
    const MatrixSource source{data, rows};
    return OrDie(device_->CreateMatrix(type, cols, {&source, 1}));
  }

  void MeasureLimits() {
    const auto values = NewBuffer(16 * 1024 * 1024);
    const double alu_ms = Time([&](CommandList& list) { return list.AluRate(512, 32, values.get()); }).first;
    peak_flops_ = 512.0 * 64 * 32 * 256 * 2 / alu_ms / 1e6;
    const double read_ms =
        Time([&](CommandList& list) { return list.ReadRate(256, 256, values.get()); }).first;
    peak_bytes_ = 256.0 * 64 * 256 * 16 / read_ms / 1e6;
    fmt::print("{}\nlimits: {:.1f} GFLOP/s without memory, {:.2f} GB/s of reads without arithmetic\n\n",
               device_->info().name, peak_flops_, peak_bytes_);
    fmt::print("{:<34} {:<26} {:>9} {:>9} {:>6} {:>8} {:>6}\n", "variant", "shape", "ms", "GFLOP/s", "of it",
               "GB/s", "of it");
  }

  void Report(const std::pair<double, std::string>& timed, const std::string& shape, double flops,
              double bytes) {
    const double gflops = flops / timed.first / 1e6;
    const double gbytes = bytes / timed.first / 1e6;
    fmt::print("{:<34} {:<26} {:>9.3f} {:>9.2f} {:>5.0f}% {:>8.2f} {:>5.0f}%\n", timed.second, shape,
               timed.first, gflops, 100 * gflops / peak_flops_, gbytes, 100 * gbytes / peak_bytes_);
  }

  void MatMul(TensorType type, uint32_t rows, uint32_t cols, uint32_t tokens) {
    const auto weight = NewMatrix(type, rows, cols);
    const auto input = NewBuffer(uint64_t{tokens} * cols);
    const auto output = NewBuffer(uint64_t{tokens} * rows);
    const auto timed = Time([&](CommandList& list) {
      return list.MatMul(
          {.weight = weight.get(), .input = input.get(), .output = output.get(), .n_tokens = tokens});
    });
    Report(timed, fmt::format("[{} x {}] x {}", rows, cols, tokens), 2.0 * rows * cols * tokens,
           static_cast<double>(weight->size_bytes()));
  }

  void Attend(KvType type, uint32_t tokens, uint32_t depth) {
    const KvShape shape{.type = type,
                        .n_sequences = 1,
                        .n_kv_heads = kKvHeads,
                        .head_dim = kHeadDim,
                        .n_ctx = depth + tokens};
    const uint32_t qkv_dim = (kHeads + 2 * kKvHeads) * kHeadDim;
    const auto qkv = NewBuffer(uint64_t{tokens} * qkv_dim);
    const auto kv = OrDie(device_->CreateBuffer(shape.size_bytes(), BufferUse::kDevice, "bench"));
    const auto output = NewBuffer(uint64_t{tokens} * kHeads * kHeadDim);
    const auto step = OrDie(device_->CreateBuffer(sizeof(StepParams), BufferUse::kUpload, "bench"));
    auto* params = reinterpret_cast<StepParams*>(step->host().data());
    for (uint32_t t = 0; t < tokens; ++t) params->tokens[t] = {0, depth + t, 0, 0};
    AttentionArgs args{.qkv = qkv.get(),
                       .step = step.get(),
                       .kv = kv.get(),
                       .kv_shape = shape,
                       .n_heads = kHeads,
                       .n_tokens = tokens,
                       .output = output.get(),
                       .of_prompt = tokens > 1};
    const auto scratch =
        OrDie(device_->CreateBuffer(device_->AttendScratchBytes(args), BufferUse::kDevice, "bench"));
    args.scratch = scratch.get();
    const auto timed = Time([&](CommandList& list) { return list.Attend(args); });
    const double pairs = tokens * (depth + (tokens + 1) / 2.0);
    Report(timed, fmt::format("{} x {} rows, depth {}", tokens, kHeads, depth),
           4.0 * pairs * kHeads * kHeadDim,
           static_cast<double>(2 * (depth + tokens)) * kKvHeads * kHeadDim * KvElementBytes(type));
  }

  // One token over `slots` slots of group_tokens entries, as offloaded decoding attends.
  void AttendSlots(KvType k_type, KvType v_type, uint32_t slots, uint32_t group_tokens,
                   bool has_biases = false) {
    const SlotShape shape{.record = {.k_type = k_type,
                                     .v_type = v_type,
                                     .n_heads = kKvHeads,
                                     .head_dim = kHeadDim,
                                     .group_tokens = group_tokens},
                          .n_streams = 1,
                          .n_slots = slots,
                          .n_window_slots = 1,
                          .table_slots = slots,
                          .has_biases = has_biases};
    SlotAttentionArgs args;
    AttentionArgs& attention = args.attention;
    attention.kv_shape = {KvType::kF16, 1, kKvHeads, kHeadDim, 0};
    attention.n_heads = kHeads;
    attention.n_tokens = 1;
    const auto qkv = NewBuffer(uint64_t{kHeads + 2 * kKvHeads} * kHeadDim);
    const auto output = NewBuffer(uint64_t{kHeads} * kHeadDim);
    const auto memory = OrDie(device_->CreateBuffer(shape.size_bytes(), BufferUse::kShared, "bench"));
    const auto step = OrDie(device_->CreateBuffer(sizeof(StepParams), BufferUse::kUpload, "bench"));
    const auto table = OrDie(device_->CreateBuffer(shape.table_bytes(), BufferUse::kShared, "bench"));
    auto* words = reinterpret_cast<uint32_t*>(table->host().data());
    words[0] = slots;
    words[1] = group_tokens;
    for (uint32_t s = 0; s < slots; ++s)
      words[2 + s] = has_biases ? SlotShape::BiasedSlot((s * 7) % slots, group_tokens) : (s * 7) % slots;
    RunOrDie(table->Flush(0, shape.table_bytes()));
    attention.qkv = qkv.get();
    attention.step = step.get();
    attention.output = output.get();
    args.Add({memory.get(), shape, table.get()});
    const auto scratch =
        OrDie(device_->CreateBuffer(device_->AttendSlotsScratchBytes(args), BufferUse::kDevice, "bench"));
    attention.scratch = scratch.get();
    const auto timed = Time([&](CommandList& list) { return list.AttendSlots(args); });
    Report(timed,
           fmt::format("1 x {} rows, {} slots of {}, {} and {}{}", kHeads, slots, group_tokens,
                       KvTypeName(k_type), KvTypeName(v_type), has_biases ? ", biases" : ""),
           4.0 * slots * group_tokens * kHeads * kHeadDim, static_cast<double>(shape.size_bytes()));
  }

  void AttendSlotsAll() {
    for (const KvType type : {KvType::kFp8, KvType::kF16, KvType::kInt4}) AttendSlots(type, type, 208, 4);
    AttendSlots(KvType::kInt8, KvType::kInt4, 208, 4);
    AttendSlots(KvType::kFp8, KvType::kFp8, 208, 4, true);
    AttendSlots(KvType::kInt8, KvType::kInt4, 208, 4, true);
  }

  struct ScoreShape {
    const char* name;
    uint32_t n_heads;
    uint32_t n_kv_heads;
    uint32_t head_dim;
    uint32_t rank;
  };
  static constexpr ScoreShape kSmolLm2 = {"", kHeads, kKvHeads, kHeadDim, 24};

  // One token's choice among n_entries.
  void Score(const ScoreShape& heads, HeadReduction reduction, const char* name, KvType type,
             uint32_t n_entries, const ChoiceRule& rule = ChooseByLargest{}) {
    constexpr uint32_t kGroupTokens = 4;
    constexpr uint32_t kWindow = 64;
    const uint32_t n_chosen = n_entries / 13 / kGroupTokens;
    const auto query = RandomBuffer(uint64_t{heads.n_heads} * heads.head_dim);
    const auto angles = RandomBuffer(heads.head_dim);
    const auto halves =
        ToFiniteHalves(RandomFloats(size_t{heads.n_kv_heads} * heads.head_dim * heads.rank, 1));
    const auto side = OrDie(device_->CreateConstants(std::as_bytes(std::span(halves)), "bench"));
    const auto scales = RandomBuffer(heads.rank);
    const auto step = OrDie(device_->CreateBuffer(sizeof(StepParams), BufferUse::kUpload, "bench"));
    reinterpret_cast<StepParams*>(step->host().data())->tokens[0] = {0, n_entries + kWindow - 1, 0, 0};
    const auto chosen = NewBuffer(uint64_t{heads.n_kv_heads} * (n_chosen + 1), BufferUse::kReadback);
    ScoreArgs args{
        .query = query.get(), .attention = {}, .sides = {}, .index_shape = {}, .reduction = reduction};
    args.attention = {.step = step.get(),
                      .kv_shape = {.n_kv_heads = heads.n_kv_heads, .head_dim = heads.head_dim},
                      .n_heads = heads.n_heads,
                      .n_tokens = 1,
                      .angles = angles.get(),
                      .rotary_dim = heads.head_dim};
    args.sides = {.are_halves = true, .query_side = side.get(), .scales = scales.get()};
    args.index_shape = {
        .type = type, .rank = heads.rank, .group_tokens = kGroupTokens, .n_groups = n_entries / kGroupTokens};
    args.window_tokens = kWindow;
    args.n_pinned = 1;
    args.n_chosen = n_chosen;
    args.rule = rule;
    args.chosen = chosen.get();
    const auto index = RandomBuffer(args.index_shape.size_bytes() / sizeof(float));
    args.index = index.get();
    const auto scratch =
        OrDie(device_->CreateBuffer(device_->ScoreScratchBytes(args), BufferUse::kDevice, "bench"));
    args.scratch = scratch.get();
    const double rows = reduction == HeadReduction::kSum   ? 1
                        : reduction == HeadReduction::kGqa ? heads.n_kv_heads
                                                           : heads.n_heads;
    const auto timed = TimeEach([&](CommandList& list) { return list.ScoreAndSelect(args); });
    const std::string shape = fmt::format("{}{}, {} entries", heads.name, name, n_entries);
    double total = 0.0;
    for (const auto& [milliseconds, variant] : timed) {
      total += milliseconds;
      const bool multiplies = variant.starts_with("score_") || variant.starts_with("project_score");
      if (!multiplies || variant.starts_with("score_kept") || StagesOf(rule) != nullptr) {
        fmt::print("{:<34} {:<26} {:>9.3f}\n", variant, shape, milliseconds);
      } else {
        Report({milliseconds, variant}, shape, 2.0 * rows * n_entries * heads.rank,
               static_cast<double>(args.index_shape.size_bytes()));
      }
    }
    fmt::print("{:<34} {:<26} {:>9.3f}\n", "all of it", shape, total);
  }

  void ScoreAll() {
    for (const uint32_t n_entries : {7680U, 32768U}) {
      const auto score = [&](HeadReduction reduction, const char* name, const ChoiceRule& rule) {
        Score(kSmolLm2, reduction, name, KvType::kInt4, n_entries, rule);
      };
      score(HeadReduction::kSoftmax, "softmax", ChooseByLargest{});
      score(HeadReduction::kGqa, "gqa", ChooseByLargest{});
      score(HeadReduction::kSum, "sum", ChooseByLargest{});
      score(HeadReduction::kSoftmax, "mass", ChooseByMass{});
      score(HeadReduction::kSoftmax, "share of mass", ChooseByMass{.mass_share = 0.9F});
    }
    Score(kSmolLm2, HeadReduction::kSoftmax, "softmax, f16", KvType::kF16, 7680);
    // Llama 3.2 and 3.1.
    for (const ScoreShape& heads : {ScoreShape{"1B, ", 32, 8, 64, 64}, ScoreShape{"3B, ", 24, 8, 128, 128},
                                    ScoreShape{"8B, ", 32, 8, 128, 128}}) {
      for (const uint32_t n_entries : {8192U, 32768U}) {
        Score(heads, HeadReduction::kSoftmax, "mass", KvType::kInt4, n_entries, ChooseByMass{});
        // A quarter of the groups are candidates, by half of the columns.
        Score(heads, HeadReduction::kSoftmax, "in stages", KvType::kInt4, n_entries,
              ChooseByMass{.stages = ScoreStages{n_entries / 16, heads.rank / 2}});
      }
    }
  }

  // One token's attention at a depth of 8,000 with and without mass, layers and ways in turn; what a run
  // takes beside a run without mass just before or after it.
  void SlotMass() {
    const testing::SlotMassCase slots([&](uint64_t size_bytes, BufferUse use) {
      return OrDie(device_->CreateBuffer(size_bytes, use, "bench"));
    });
    const uint64_t scratch_bytes = std::max(device_->AttendSlotsScratchBytes(slots.Slots(0, 2)),
                                            device_->AttendScratchBytes(slots.Memory(0)));
    const auto scratch = OrDie(device_->CreateBuffer(scratch_bytes, BufferUse::kDevice, "bench"));
    const auto attend = [&](CommandList& list, SlotAttentionArgs args) {
      args.attention.scratch = scratch.get();
      return list.AttendSlots(args);
    };
    for (const uint32_t n_moments : {0U, 1U, 2U}) {
      slots.Check(n_moments, [&](const SlotAttentionArgs& args) {
        RunOnce([&](CommandList& list) { return attend(list, args); });
      });
    }
    const std::vector<const char*> names = {"no mass", "no mass again", "1 moment", "2 moments", "in memory"};
    std::vector<std::unique_ptr<CommandList>> lists;
    for (const uint32_t n_moments : {0U, 0U, 1U, 2U}) {
      lists.push_back(ListOfLayers(
          [&](CommandList& list, uint32_t layer) { return attend(list, slots.Slots(layer, n_moments)); }));
    }
    lists.push_back(ListOfLayers([&](CommandList& list, uint32_t layer) {
      AttentionArgs args = slots.Memory(layer);
      args.scratch = scratch.get();
      return list.Attend(args);
    }));
    const std::vector<std::vector<double>> times = TimeInTurn(lists);
    for (size_t i = 0; i < lists.size(); ++i) {
      fmt::print("{:<34} {:<26} {:>9.3f}   beside no mass (90 %): {}\n", "attention, 8,000 entries", names[i],
                 testing::Median(times[i]) / testing::kMassLayers,
                 testing::Text(testing::ComparePairs(times[i], times[0])));
    }
  }

  // What 32 rows of a prompt cost at a depth of 8,000.
  void RowMass() {
    const testing::RowMassCase rows([&](uint64_t size_bytes, BufferUse use) {
      return OrDie(device_->CreateBuffer(size_bytes, use, "bench"));
    });
    for (const uint32_t n_moments : {1U, 2U, 4U}) {
      rows.Check(n_moments, [&](const RowMassArgs& args) {
        RunOnce([&](CommandList& list) -> Status {
          KVRUN_RETURN_IF_ERROR(list.SumWeights(args));
          return list.AttentionMass(args);
        });
      });
    }
    const double bytes = static_cast<double>(testing::kMassLayerBytes) / 2;
    Report(Time([&](CommandList& list) { return list.SumWeights(rows.Args(1)); }), "32 rows, 8,000 entries",
           testing::RowMassCase::Flops(), bytes);
    for (const uint32_t n_moments : {1U, 2U, 4U}) {
      Report(Time([&](CommandList& list) { return list.AttentionMass(rows.Args(n_moments)); }),
             fmt::format("the same, {} moments", n_moments), testing::RowMassCase::Flops(), bytes);
    }
  }

  void Elementwise() {
    const uint32_t tokens = 256;
    const auto x = NewBuffer(uint64_t{tokens} * 2 * kFf);
    const auto y = NewBuffer(uint64_t{tokens} * kFf);
    const auto weight = NewBuffer(kEmbd);
    Report(Time([&](CommandList& list) { return list.RmsNorm(*x, *weight, 1e-5F, tokens, kEmbd, y.get()); }),
           fmt::format("{} x {}", tokens, kEmbd), 4.0 * tokens * kEmbd, 8.0 * tokens * kEmbd);
    Report(Time([&](CommandList& list) { return list.SwiGlu(*x, tokens, kFf, y.get()); }),
           fmt::format("{} x {}", tokens, kFf), 5.0 * tokens * kFf, 12.0 * tokens * kFf);
  }

 private:
  static constexpr int kRunsInTurn = 31;

  void RunOnce(const std::function<Status(CommandList&)>& record) {
    const auto list = OrDie(device_->CreateCommandList());
    RunOrDie(record(*list));
    RunOrDie(list->Finish());
    RunOrDie(device_->Execute(*list));
    device_->TakeOperationTimes();
  }

  std::unique_ptr<CommandList> ListOfLayers(
      const std::function<Status(CommandList&, uint32_t layer)>& record) {
    auto list = OrDie(device_->CreateCommandList());
    for (uint32_t layer = 0; layer < testing::kMassLayers; ++layer) RunOrDie(record(*list, layer));
    RunOrDie(list->Finish());
    return list;
  }

  // [list, run]: milliseconds of all operations of each.
  std::vector<std::vector<double>> TimeInTurn(const std::vector<std::unique_ptr<CommandList>>& lists) {
    std::vector<std::vector<double>> times(lists.size());
    for (int run = 0; run <= kRunsInTurn; ++run) {
      for (size_t i = 0; i < lists.size(); ++i) {
        RunOrDie(device_->Execute(*lists[i]));
        double sum = 0.0;
        for (const OperationTime& time : device_->TakeOperationTimes()) sum += time.milliseconds;
        if (run > 0) times[i].push_back(sum);  // the first run compiles
      }
    }
    return times;
  }

  std::unique_ptr<Device> device_;
  int n_runs_;
  double peak_flops_ = 0.0;  // GFLOP/s
  double peak_bytes_ = 0.0;  // GB/s
};

void Run(const std::string& name, std::string_view part, int n_runs) {
  Bench bench(OrDie(OpenDevice({.device = name, .validation = false, .profile = true})), n_runs);
  bench.MeasureLimits();
  if (part == "slots") return bench.AttendSlotsAll();
  if (part != "mass") bench.ScoreAll();
  if (part == "index") return;
  if (part == "mass") {
    bench.SlotMass();
    bench.RowMass();
    return;
  }
  for (const TensorType type : {TensorType::kQ4_1, TensorType::kQ4_0, TensorType::kQ8_0, TensorType::kQ5_1,
                                TensorType::kF16, TensorType::kF32}) {
    bench.MatMul(type, 2 * kFf, kEmbd, 1);
    bench.MatMul(type, 2 * kFf, kEmbd, 256);
  }
  for (const TensorType type : {TensorType::kQ2_K, TensorType::kQ3_K, TensorType::kQ4_K, TensorType::kQ5_K,
                                TensorType::kQ6_K, TensorType::kIQ4_NL, TensorType::kIQ4_XS}) {
    bench.MatMul(type, 2048, 512, 1);
    bench.MatMul(type, 2048, 512, 256);
  }
  bench.MatMul(TensorType::kQ4_1, 2 * kFf, kEmbd, 2);
  bench.MatMul(TensorType::kQ4_1, 2 * kFf, kEmbd, 4);
  bench.MatMul(TensorType::kQ8_0, kVocab, kEmbd, 1);
  bench.Attend(KvType::kF16, 1, 8191);
  bench.Attend(KvType::kF16, 1, 831);
  bench.AttendSlotsAll();
  bench.Attend(KvType::kF16, 256, 1792);
  bench.Attend(KvType::kF32, 256, 1792);
  bench.Elementwise();
  bench.SlotMass();
  bench.RowMass();
}

}  // namespace
}  // namespace kvrun

int main(int argc, char** argv) {
  kvrun::Run(argc > 1 ? argv[1] : "auto", argc > 2 ? argv[2] : "",
             argc > 3 ? std::atoi(argv[3]) : kvrun::kUsualRuns);
  return 0;
}
