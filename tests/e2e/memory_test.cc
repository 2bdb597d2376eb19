// What a loaded model occupies, seen from outside of the process. On a driver that computes on the CPU,
// device memory is resident memory too.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/support/engine_fixture.h"
#include "tests/support/program_runner.h"
#include "tests/support/real_program.h"
#include "tests/support/reference_files.h"
#include "tests/support/sanitized.h"
#include "tests/support/tiny_model_file.h"

namespace kvrun::testing {
namespace {

constexpr uint64_t kMiB = 1 << 20;

// Of a line "VmRSS:   123 kB" of /proc/PID/status. 0: there is none, as of a program that has ended.
uint64_t StatusBytesOrNone(pid_t pid, const std::string& key) {
  std::istringstream status(ReadWholeFile(fmt::format("/proc/{}/status", pid)));
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(key + ":")) return std::stoull(line.substr(key.size() + 1)) * 1024;
  }
  return 0;
}

uint64_t StatusBytes(pid_t pid, const std::string& key) {
  const uint64_t bytes = StatusBytesOrNone(pid, key);
  EXPECT_GT(bytes, 0U) << "no " << key;
  return bytes;
}

// What it has needed at most, asked again and again until it ends.
uint64_t PeakBytes(const RunningProgram& program) {
  uint64_t peak = 0;
  while (const uint64_t bytes = StatusBytesOrNone(program.pid(), "VmHWM")) {
    peak = bytes;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return peak;
}

// Of one token in one layer: K and V, f16.
constexpr uint64_t kEntryBytes = uint64_t{2} * 4 * 128 * 2;

TinyModelOptions WideKv(const std::string& architecture) {
  return {.architecture = architecture,
          .n_layers = 12,
          .n_embd = 64,
          .n_ff = 64,
          .n_heads = 4,
          .n_kv_heads = 4,
          .head_dim = 128,
          .n_ctx_train = 8192,
          .has_qk_norm = true,
          .has_tied_output = true};
}

std::string LayerTensor(uint32_t layer, const std::string& name) {
  return fmt::format("blk.{}.{}", layer, name);
}

// Layers 5 and 11 attend to the whole text, the others to 40 tokens.
GgufBuilder WindowedModel() {
  const TinyModelOptions options = WideKv("gemma3");
  GgufBuilder model = TinyModel(options);
  model.Set("gemma3.attention.sliding_window", uint32_t{40});
  const std::vector<float> ones(options.n_embd, 1.0F);
  for (uint32_t i = 0; i < options.n_layers; ++i) {
    model.AddTensor(LayerTensor(i, "post_attention_norm.weight"), {options.n_embd}, ones);
    model.AddTensor(LayerTensor(i, "post_ffw_norm.weight"), {options.n_embd}, ones);
  }
  return model;
}

// Layers 2, 5, 8 and 11 attend, the others are convolutions.
GgufBuilder ConvolvingModel() {
  const TinyModelOptions options = WideKv("lfm2");
  const uint64_t n_embd = options.n_embd;
  GgufBuilder model = TinyModel(options);
  std::vector<uint32_t> n_kv_heads;
  for (uint32_t i = 0; i < options.n_layers; ++i) {
    n_kv_heads.push_back(i % 3 == 2 ? options.n_kv_heads : 0);
    if (n_kv_heads.back() > 0) continue;
    for (const char* name : {"attn_q.weight", "attn_k.weight", "attn_v.weight", "attn_output.weight",
                             "attn_q_norm.weight", "attn_k_norm.weight"})
      model.EraseTensor(LayerTensor(i, name));
    model.AddTensor(LayerTensor(i, "shortconv.in_proj.weight"), {n_embd, 3 * n_embd},
                    RandomFloats(3 * n_embd * n_embd, 0.2F, i));
    model.AddTensor(LayerTensor(i, "shortconv.conv.weight"), {3, n_embd}, RandomFloats(3 * n_embd, 1.0F, i));
    model.AddTensor(LayerTensor(i, "shortconv.out_proj.weight"), {n_embd, n_embd},
                    RandomFloats(n_embd * n_embd, 0.2F, i));
  }
  model.SetArray("lfm2.attention.head_count_kv", n_kv_heads);
  model.Set("lfm2.shortconv.l_cache", uint32_t{3});
  model.EraseTensor("output_norm.weight");
  model.AddTensor("token_embd_norm.weight", {n_embd}, std::vector<float>(n_embd, 1.0F));
  return model;
}

TEST(Memory, WeightsAreNotHeldTwice) {
  const auto model = TestModelPath();
  if (!model) GTEST_SKIP() << "the test model is not here";
  if (SharedDevice() == nullptr) GTEST_SKIP() << "no device";
  if (!SharedDevice()->info().is_cpu) GTEST_SKIP() << "device memory is not resident memory";
  constexpr uint64_t kContext = 2048;
  const ProgramResult info =
      RunProgram(RealProgram(), {"info", "-m", *model, "--ctx", std::to_string(kContext), "--json"});
  ASSERT_EQ(info.exit_code, 0) << info.err;
  const uint64_t kv_bytes = nlohmann::json::parse(info.out)["kv_bytes"].get<uint64_t>();

  ProgramInput input = WithDrivers();
  // The validation layer has memory of its own.
  std::erase_if(input.environment,
                [](const std::string& text) { return text.starts_with("KVRUN_VALIDATION="); });
  RunningProgram chat(RealProgram(),
                      {"chat", "-m", *model, "--ctx", std::to_string(kContext), "-n", "1", "-q"}, input);
  chat.Type("Hello\n");
  ASSERT_TRUE(chat.WaitForOutput("\n"));
  const uint64_t resident = StatusBytes(chat.pid(), "VmRSS");
  const uint64_t peak = StatusBytes(chat.pid(), "VmHWM");
  EXPECT_EQ(chat.Finish().exit_code, 0);

  const uint64_t bound = std::filesystem::file_size(*model) + kv_bytes + 150 * kMiB;
  EXPECT_LE(resident, bound) << "resident " << resident / kMiB << " MiB, bound " << bound / kMiB << " MiB";
  RecordProperty("resident_mib", std::to_string(resident / kMiB));
  RecordProperty("peak_mib", std::to_string(peak / kMiB));
  RecordProperty("bound_mib", std::to_string(bound / kMiB));
}

// A prompt of `n_tokens` and a few tokens after it, on the CPU itself: what a driver's compiler takes differs
// from run to run by more.
uint64_t PeakOfPrompt(const std::string& model, uint32_t n_tokens) {
  RunningProgram bench(RealProgram(),
                       {"bench", "-m", model, "-p", "0", "-n", "2", "-r", "1", "-q", "--device", "cpu", "-d",
                        std::to_string(n_tokens)},
                       {});
  const uint64_t peak = PeakBytes(bench);
  const ProgramResult result = bench.Finish();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return peak;
}

// A text that is ten times as long takes more memory for layers that attend to all of it, and for no others:
// those would take several times as much.
TEST(Memory, WindowsAndStatesDoNotGrowWithTheText) {
  if (kIsSanitized) GTEST_SKIP() << "sanitizers keep memory that was given back";
  constexpr uint64_t kShort = 400;  // ten windows
  constexpr uint64_t kLong = 4000;
  const TemporaryFolder folder;
  const std::pair<GgufBuilder, uint64_t> models[] = {{WindowedModel(), 2}, {ConvolvingModel(), 4}};
  for (const auto& [builder, n_full_layers] : models) {
    const std::string path = WriteModel(folder, fmt::format("{}.gguf", n_full_layers), builder.Build());
    const uint64_t few = PeakOfPrompt(path, kShort);
    const uint64_t many = PeakOfPrompt(path, kLong);
    const uint64_t full_bytes = n_full_layers * (kLong - kShort) * kEntryBytes;
    EXPECT_GT(many, few + full_bytes / 2);  // it is seen at all
    EXPECT_LT(many, few + full_bytes + 12 * kMiB) << (many - few) / kMiB << " MiB";
    EXPECT_GT((12 - n_full_layers) * (kLong - kShort) * kEntryBytes, 2 * 12 * kMiB);
    RecordProperty(fmt::format("grown_mib_of_{}", n_full_layers), std::to_string((many - few) / kMiB));
  }
}

}  // namespace
}  // namespace kvrun::testing
