// Matrix products of the CPU device at a model's shapes. One token: bytes of weights per second, beside what
// the same threads read of the same memory without arithmetic. A prompt's 256 tokens: operations per second.
// Results are compared with sums in double before anything is timed. The best of several runs. And attention
// with and without mass, in turn, and a decoded token's attention at shapes of models.
//
//   host_bench [THREADS [SET]]   SET: an instruction set as `kvrun bench --isa` has it; default: the best
//   host_bench THREADS read      plain reading alone
//   host_bench THREADS mass      attention with and without mass alone
//   host_bench THREADS scores [SET]   scores and choice by an index alone
//   host_bench THREADS attend [SET [SHAPE]]   a decoded token's attention alone
#include <fmt/format.h>

#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/bench/host_bench.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace kvrun::host::HWY_NAMESPACE {

// All bytes from `from` on, a multiple of 64, once. What is answered depends on all of them.
inline uint64_t ReadAll(const unsigned char* from, size_t n_bytes) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::CappedTag<uint64_t, 8> d;
  const size_t lanes = hn::Lanes(d);
  const auto* words = reinterpret_cast<const uint64_t*>(from);
  auto sum0 = hn::Zero(d);
  auto sum1 = hn::Zero(d);
  size_t i = 0;
  for (; i + 2 * lanes <= n_bytes / 8; i += 2 * lanes) {
    sum0 = hn::Xor(sum0, hn::LoadU(d, words + i));
    sum1 = hn::Xor(sum1, hn::LoadU(d, words + i + lanes));
  }
  for (; i < n_bytes / 8; i += lanes) sum0 = hn::Xor(sum0, hn::LoadU(d, words + i));
  return hn::GetLane(hn::SumOfLanes(d, hn::Xor(sum0, sum1)));
}

}  // namespace kvrun::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string_view>
#include <tuple>
#include <vector>

#include "platform/base/check.h"
#include "runtime/device/host/instruction_sets.h"
#include "runtime/device/host/matmul_kernels.h"
#include "runtime/device/host/matrix.h"
#include "runtime/device/host/operations.h"
#include "runtime/device/self_test_data.h"
#include "runtime/model/tensor_type.h"
#include "tests/bench/attend_case.h"
#include "tests/bench/mass_case.h"
#include "tests/bench/score_bench.h"
#include "tests/support/or_die.h"

namespace kvrun::host {
namespace {

HWY_EXPORT(ReadAll);

using testing::OrDie;

constexpr int kRuns = 31;
constexpr uint32_t kPromptTokens = 256;
// Copies of a matrix take at least so much: the weights of SmolLM2-135M in Q4_1, so that they lie where a
// model's lie. 24 MiB would stay in a last-level cache of 32.
constexpr uint64_t kWorkingSetBytes = uint64_t{92} << 20;

template <typename F>
double SecondsOf(const F& run) {
  const auto begin = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// The shortest: others use this machine too, and a product takes as long as its slowest worker.
template <typename F>
double LeastSeconds(const F& run) {
  double least = 1e9;
  for (int i = 0; i < kRuns; ++i) least = std::min(least, SecondsOf(run));
  return least;
}

std::unique_ptr<Buffer> NewHostBuffer(const std::shared_ptr<MemoryAccount>& account, uint64_t size_bytes,
                                      BufferUse use) {
  return std::make_unique<HostBuffer>(OrDie(HostMemory::Allocate(account, "bench", size_bytes)), size_bytes,
                                      use);
}

class Bench {
 public:
  Bench(uint32_t n_threads, bool reads_only) : pool_(n_threads), reads_only_(reads_only) {}

  void Shape(TensorType type, uint32_t n_rows, uint32_t n_cols) {
    const std::vector<std::byte> data = RandomTensor(type, size_t{n_rows} * n_cols, 1);
    const MatrixSource source{data, n_rows};
    std::vector<std::unique_ptr<Matrix>> copies;
    uint64_t bytes = 0;
    do {
      copies.push_back(OrDie(PackMatrix(account_, pool_, type, n_cols, {&source, 1})));
      bytes += copies.back()->size_bytes();
    } while (bytes < kWorkingSetBytes);

    const auto x = NewBuffer(RandomFloats(size_t{kPromptTokens} * n_cols, 2));
    const auto y = NewBuffer(std::vector<float>(size_t{kPromptTokens} * n_rows));
    MatMulArgs args{.weight = copies[0].get(), .input = x.get(), .output = y.get(), .n_tokens = 19};
    for (const bool exact : {true, false}) {
      MatMul(pool_, args, exact);
      Compare(type, data, args, exact);
    }

    const double read = static_cast<double>(bytes) / 1e9 / LeastSeconds([&] {
                          for (const auto& matrix : copies) Read(*matrix);
                        });
    if (reads_only_) {
      fmt::print("{:<6} {:>14} {:>8.2f}\n", TensorTypeName(type), fmt::format("[{} x {}]", n_rows, n_cols),
                 read);
      return;
    }
    args.n_tokens = 1;
    const auto decode = [&](bool exact) {
      return static_cast<double>(bytes) / 1e9 / LeastSeconds([&] {
               for (const auto& matrix : copies) {
                 args.weight = matrix.get();
                 MatMul(pool_, args, exact);
               }
             });
    };
    const double decode_gbytes = decode(false);
    const double exact_gbytes = decode(true);
    args.n_tokens = kPromptTokens;
    const auto prompt = [&](bool exact) {
      return 2.0 * n_rows * n_cols * kPromptTokens / 1e9 / LeastSeconds([&] { MatMul(pool_, args, exact); });
    };
    fmt::print("{:<6} {:>14} {:>8.2f} {:>8.2f} {:>5.0f}% {:>8.2f} {:>5.0f}% {:>9.1f} {:>9.1f}\n",
               TensorTypeName(type), fmt::format("[{} x {}]", n_rows, n_cols), read, decode_gbytes,
               100 * decode_gbytes / read, exact_gbytes, 100 * exact_gbytes / read, prompt(false),
               prompt(true));
  }

 private:
  std::unique_ptr<Buffer> NewBuffer(const std::vector<float>& values) {
    const uint64_t bytes = values.size() * sizeof(float);
    auto buffer = NewHostBuffer(account_, bytes, BufferUse::kShared);
    std::memcpy(buffer->host().data(), values.data(), bytes);
    return buffer;
  }

  // Every packed byte, by the workers that multiply with it.
  void Read(const Matrix& matrix) {
    const auto& host = static_cast<const HostMatrix&>(matrix);
    pool_.ParallelFor(matrix.n_rows(), kPanelRows, [&](size_t begin, size_t end, uint32_t worker) {
      const auto* from = reinterpret_cast<const unsigned char*>(host.panel(begin / kPanelRows));
      const auto* last =
          reinterpret_cast<const unsigned char*>(host.panel((end + kPanelRows - 1) / kPanelRows));
      sink_[worker % 16 * 8] += HWY_DYNAMIC_DISPATCH(ReadAll)(from, static_cast<size_t>(last - from));
    });
  }

  // Bounds as in tests/support/host_matmul_cases.cc, less exact: what is timed is not something else.
  static void Compare(TensorType type, std::span<const std::byte> data, const MatMulArgs& args, bool exact) {
    const uint32_t n_cols = args.weight->n_cols();
    const uint32_t n_rows = args.weight->n_rows();
    const TensorTypeInfo& info = GetTensorType(type);
    std::vector<float> row(n_cols);
    for (uint32_t r = 0; r < n_rows; r += r % 16 == 15 ? 240 : 1) {
      DecodeTensor(type, data.subspan(size_t{r} * n_cols / info.block_elements * info.block_bytes), row);
      for (uint32_t t = 0; t < args.n_tokens; ++t) {
        const float* x = Data<float>(args.input) + size_t{t} * n_cols;
        double expected = 0.0;
        double magnitude = 0.0;
        for (uint32_t c = 0; c < n_cols; ++c) {
          expected += double{row[c]} * x[c];
          magnitude += std::abs(double{row[c]});  // activations are below one
        }
        const double found = Data<float>(args.output)[size_t{t} * n_rows + r];
        KVRUN_CHECK(std::abs(found - expected) <= magnitude * (exact ? 1e-4 : 0.51 / 127));
      }
    }
  }

  ThreadPool pool_;
  bool reads_only_;
  std::shared_ptr<MemoryAccount> account_ = std::make_shared<MemoryAccount>();
  uint64_t sink_[16 * 8] = {};
};

// One token's attention at a depth of 8,000, of layers in turn, and what a prompt's last rows cost. Medians;
// what a run takes beside a run without mass just before or after it.
class MassBench {
 public:
  explicit MassBench(uint32_t n_threads) : pool_(n_threads), slots_(make_), rows_(make_) {
    scratch_ = make_(AttendSlotsScratchBytes(slots_.Slots(0, 2)), BufferUse::kShared);
    for (const uint32_t n_moments : {0U, 1U, 2U}) {
      slots_.Check(n_moments, [&](const SlotAttentionArgs& args) { Attend(args); });
    }
    for (const uint32_t n_moments : {1U, 2U, 4U}) {
      rows_.Check(n_moments, [&](const RowMassArgs& args) {
        SumWeights(pool_, args);
        AttentionMass(pool_, args);
      });
    }
  }

  void DecodedToken() {
    fmt::print("\n{:<26} {:>10} {:>8}  {}\n", "1 token, 8,000 entries", "ms a layer", "GB/s",
               "beside no mass (90 %)");
    const std::vector<Way> ways = {
        {"slots, no mass", [&](uint32_t layer) { Attend(slots_.Slots(layer, 0)); }},
        {"slots, no mass again", [&](uint32_t layer) { Attend(slots_.Slots(layer, 0)); }},
        {"slots, 1 moment", [&](uint32_t layer) { Attend(slots_.Slots(layer, 1)); }},
        {"slots, 2 moments", [&](uint32_t layer) { Attend(slots_.Slots(layer, 2)); }},
        {"in memory", [&](uint32_t layer) { AttendInMemory(layer); }}};
    std::vector<std::vector<double>> seconds(ways.size());
    for (int run = 0; run < kMassRuns; ++run) {
      for (size_t i = 0; i < ways.size(); ++i) {
        seconds[i].push_back(SecondsOf([&] {
          for (uint32_t layer = 0; layer < testing::kMassLayers; ++layer) ways[i].attend(layer);
        }));
      }
    }
    for (size_t i = 0; i < ways.size(); ++i) {
      const double of_layer = testing::Median(seconds[i]) / testing::kMassLayers;
      fmt::print("{:<26} {:>10.3f} {:>8.2f}  {}\n", ways[i].name, of_layer * 1e3,
                 testing::kMassLayerBytes / of_layer / 1e9,
                 testing::Text(testing::ComparePairs(seconds[i], seconds[0])));
    }
  }

  void PromptRows() {
    fmt::print("\n{:<26} {:>10} {:>8}\n", "32 rows, 8,000 entries", "ms", "GFLOP/s");
    const auto print = [&](std::string_view name, const std::function<void()>& run) {
      const double seconds = LeastSeconds(run);
      fmt::print("{:<26} {:>10.2f} {:>8.1f}\n", name, seconds * 1e3,
                 testing::RowMassCase::Flops() / seconds / 1e9);
    };
    print("sums of weights", [&] { SumWeights(pool_, rows_.Args(1)); });
    print("mass, 1 moment", [&] { AttentionMass(pool_, rows_.Args(1)); });
    print("mass, 2 moments", [&] { AttentionMass(pool_, rows_.Args(2)); });
    print("mass, 4 moments", [&] { AttentionMass(pool_, rows_.Args(4)); });
  }

 private:
  static constexpr int kMassRuns = 101;

  struct Way {
    std::string_view name;
    std::function<void(uint32_t layer)> attend;
  };

  void Attend(SlotAttentionArgs args) {
    args.attention.scratch = scratch_.get();
    AttendSlots(pool_, args, /*exact=*/false);
  }
  void AttendInMemory(uint32_t layer) {
    AttentionArgs args = slots_.Memory(layer);
    args.scratch = scratch_.get();
    host::Attend(pool_, args, /*exact=*/false);
  }

  ThreadPool pool_;
  std::shared_ptr<MemoryAccount> account_ = std::make_shared<MemoryAccount>();
  testing::BufferMaker make_ = [this](uint64_t size_bytes, BufferUse use) {
    return NewHostBuffer(account_, size_bytes, use);
  };
  testing::SlotMassCase slots_;
  testing::RowMassCase rows_;
  std::unique_ptr<Buffer> scratch_;
};

void BenchMass(uint32_t n_threads) {
  MassBench bench(n_threads);
  bench.DecodedToken();
  bench.PromptRows();
}

// Attention of one token, layer after layer, and all of the same memory read without arithmetic. The best of
// several runs.
class AttendBench {
 public:
  explicit AttendBench(uint32_t n_threads) : pool_(n_threads) {}

  void Run(const testing::AttendShape& shape) {
    for (const uint32_t n_entries : {8192U, 32768U})
      Time(shape, "f16 in memory", n_entries, testing::AttendCase::InMemory(make_, shape, n_entries));
    for (const uint32_t n_entries : {1040U, 4400U}) {
      for (const auto& [k_type, v_type, name] : {std::tuple{KvType::kF16, KvType::kF16, "f16 in slots"},
                                                 {KvType::kFp8, KvType::kFp8, "fp8 in slots"},
                                                 {KvType::kInt8, KvType::kInt8, "int8 in slots"},
                                                 {KvType::kInt8, KvType::kInt4, "int8, int4 in slots"},
                                                 {KvType::kInt4, KvType::kInt4, "int4 in slots"}}) {
        Time(shape, name, n_entries, testing::AttendCase::InSlots(make_, shape, n_entries, k_type, v_type));
      }
    }
  }

  static void PrintHead() {
    fmt::print("\n{:<6} {:<20} {:>8} {:>9} {:>9} {:>9} {:>9} {:>9}\n", "shape", "KV", "entries", "ms/token",
               "ns/entry", "GB/s", "read", "exact ms");
  }

 private:
  static constexpr int kAttendRuns = 15;

  // An entry's time is one of a core's and a KV head's.
  void Time(const testing::AttendShape& shape, std::string_view name, uint32_t n_entries,
            const testing::AttendCase& of) {
    Check(of);
    const double read = Seconds(of, [&](uint32_t layer) {
      for (Buffer* buffer : of.Memory(layer)) Read(*buffer);
    });
    uint64_t read_bytes = 0;
    for (Buffer* buffer : of.Memory(0)) read_bytes += buffer->size_bytes();
    const double seconds = Seconds(of, [&](uint32_t layer) { Attend(of, layer, false); });
    const double exact = Seconds(of, [&](uint32_t layer) { Attend(of, layer, true); });
    fmt::print("{:<6} {:<20} {:>8} {:>9.2f} {:>9.1f} {:>9.1f} {:>9.1f} {:>9.2f}\n", shape.name, name,
               n_entries, seconds * shape.n_layers * 1e3,
               seconds * pool_.size() / n_entries / shape.n_kv_heads * 1e9,
               static_cast<double>(of.layer_bytes()) / seconds / 1e9,
               static_cast<double>(read_bytes) / read / 1e9, exact * shape.n_layers * 1e3);
  }

  // Of a layer.
  template <typename F>
  static double Seconds(const testing::AttendCase& of, const F& run) {
    double least = 1e9;
    for (int i = 0; i < kAttendRuns; ++i) {
      least = std::min(least, SecondsOf([&] {
                         for (uint32_t layer = 0; layer < of.n_layers(); ++layer) run(layer);
                       }));
    }
    return least / of.n_layers();
  }

  void Attend(const testing::AttendCase& of, uint32_t layer, bool exact) {
    SlotAttentionArgs args = of.Args(layer);
    const uint64_t bytes =
        of.has_slots() ? AttendSlotsScratchBytes(args) : AttendScratchBytes(args.attention);
    if (scratch_ == nullptr || scratch_->size_bytes() < bytes) scratch_ = make_(bytes, BufferUse::kShared);
    args.attention.scratch = scratch_.get();
    if (of.has_slots())
      AttendSlots(pool_, args, exact);
    else
      host::Attend(pool_, args.attention, exact);
  }

  // Rounded results beside exact ones; tests compare these with references.
  void Check(const testing::AttendCase& of) {
    const std::span<const float> output(Data<float>(&of.output()), of.output().size_bytes() / sizeof(float));
    Attend(of, 0, /*exact=*/true);
    const std::vector<float> expected(output.begin(), output.end());
    Attend(of, 0, /*exact=*/false);
    double error = 0.0;
    double magnitude = 0.0;
    for (size_t i = 0; i < expected.size(); ++i) {
      error += std::pow(output[i] - expected[i], 2);
      magnitude += std::pow(expected[i], 2);
    }
    KVRUN_CHECK(error <= magnitude * 1e-4);
  }

  void Read(Buffer& buffer) {
    const std::span<std::byte> bytes = buffer.host();
    pool_.ParallelFor(bytes.size() / 64, 64, [&](size_t begin, size_t end, uint32_t worker) {
      const auto* from = reinterpret_cast<const unsigned char*>(bytes.data());
      sink_[worker % 16 * 8] += HWY_DYNAMIC_DISPATCH(ReadAll)(from + begin * 64, (end - begin) * 64);
    });
  }

  ThreadPool pool_;
  std::shared_ptr<MemoryAccount> account_ = std::make_shared<MemoryAccount>();
  testing::BufferMaker make_ = [this](uint64_t size_bytes, BufferUse use) {
    return NewHostBuffer(account_, size_bytes, use);
  };
  std::unique_ptr<Buffer> scratch_;
  uint64_t sink_[16 * 8] = {};
};

// shape_name: empty for all.
void BenchAttention(uint32_t n_threads, std::string_view shape_name) {
  constexpr testing::AttendShape kShapes[] = {
      {"135m", 30, 9, 3, 64}, {"1b", 16, 32, 8, 64}, {"3b", 28, 24, 8, 128}, {"8b", 32, 32, 8, 128}};
  AttendBench bench(n_threads);
  AttendBench::PrintHead();
  for (const testing::AttendShape& shape : kShapes) {
    if (shape_name.empty() || shape.name == shape_name) bench.Run(shape);
  }
}

int Main(int argc, char** argv) {
  const uint32_t n_threads = argc > 1 ? static_cast<uint32_t>(std::atoi(argv[1])) : 2;
  const bool reads_only = argc > 2 && std::string_view(argv[2]) == "read";
  const bool mass_only = argc > 2 && std::string_view(argv[2]) == "mass";
  const bool scores_only = argc > 2 && std::string_view(argv[2]) == "scores";
  const bool attend_only = argc > 2 && std::string_view(argv[2]) == "attend";
  const int set_at = scores_only || attend_only ? 3 : 2;
  const char* const set = argc > set_at ? argv[set_at] : nullptr;
  if (set != nullptr && !reads_only && !mass_only) {
    const Status status = UseInstructionSet(set);
    if (!status.ok()) {
      fmt::print(stderr, "host_bench: {}\n", status.message());
      return 1;
    }
  }
  const MatMulKernels kernels = GetMatMulKernels();
  fmt::print("{} threads, {}{}\n", n_threads, kernels.target,
             kernels.products == Int8Products::kTiles ? " with tiles of bytes"
             : kernels.products == Int8Products::kDot ? " with a dot instruction"
                                                      : "");
  if (mass_only || scores_only) {
    (mass_only ? BenchMass : BenchScores)(n_threads);
    return 0;
  }
  if (attend_only) {
    BenchAttention(n_threads, argc > 4 ? argv[4] : "");
    return 0;
  }
  fmt::print("{:<6} {:>14} {:>8} {:>8} {:>6} {:>8} {:>6} {:>9} {:>9}\n", "", "", "read", "1 token", "",
             "exact", "", "256 tok", "exact");
  fmt::print("{:<6} {:>14} {:>8} {:>8} {:>6} {:>8} {:>6} {:>9} {:>9}\n", "type", "shape", "GB/s", "GB/s",
             "of it", "GB/s", "of it", "GFLOP/s", "GFLOP/s");
  Bench bench(n_threads, reads_only);
  // SmolLM2-135M: QKV, output of attention, gate and up, down, logits.
  bench.Shape(TensorType::kQ4_1, 960, 576);
  bench.Shape(TensorType::kQ4_1, 576, 576);
  bench.Shape(TensorType::kQ4_1, 3072, 576);
  bench.Shape(TensorType::kQ4_1, 576, 1536);
  bench.Shape(TensorType::kQ8_0, 49152, 576);
  for (const TensorType type :
       {TensorType::kF32, TensorType::kF16, TensorType::kBF16, TensorType::kQ8_0, TensorType::kQ4_0,
        TensorType::kQ5_0, TensorType::kQ5_1, TensorType::kQ2_K, TensorType::kQ3_K, TensorType::kQ4_K,
        TensorType::kQ5_K, TensorType::kQ6_K, TensorType::kIQ4_NL, TensorType::kIQ4_XS}) {
    bench.Shape(type, 3072, 768);
  }
  if (!reads_only) {
    BenchMass(n_threads);
    BenchAttention(n_threads, "");
  }
  return 0;
}

}  // namespace
}  // namespace kvrun::host

int main(int argc, char** argv) { return kvrun::host::Main(argc, argv); }
#endif
