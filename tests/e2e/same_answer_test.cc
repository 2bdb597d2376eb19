// On the CPU itself a token's logits are the same bits whatever is computed beside it: other sequences of a
// batch, any number of threads, a prompt in any chunks; rounded and exact.
// Not grouped (cmake/KvrunCompile.cmake): its names are others', too.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <regex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/device/host/host_device.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/or_die.h"
#include "tests/support/program_runner.h"
#include "tests/support/real_program.h"
#include "tests/support/reference_files.h"
#include "tests/support/small_models.h"
#include "tests/support/tiny_model_file.h"

namespace kvrun::testing {
namespace {

constexpr uint32_t kContext = 1024;
constexpr uint32_t kPrompts = 16;
constexpr size_t kSteps = 4;

// Lengths on both sides of blocks, chunks and spans; two prompts are the same.
constexpr size_t kLengths[kPrompts] = {2,   3,   17,  63,  64,  65,  100, 128,
                                       129, 200, 255, 256, 257, 300, 900, 900};

struct Way {
  uint32_t n_threads;
  size_t chunk;
  bool alone;  // each sequence by itself
};

// Logits of the end of each prompt and of kSteps greedy steps, [kPrompts][1 + kSteps, n_vocab].
using Answers = std::vector<std::vector<float>>;

class SameAnswer : public ::testing::TestWithParam<SmallModel> {
 protected:
  Answers Answer(const Way& way, bool exact) {
    const std::unique_ptr<host::HostDevice> device =
        OrDie(host::HostDevice::Create({.n_threads = way.n_threads, .exact_activations = exact, .note = {}}));
    const LoadedModel loaded = LoadSmallModel(GetParam(), folder_, device.get());
    Answers answers(kPrompts);
    if (!way.alone) {
      const auto pass = loaded.NewPass({kPrompts, kContext, KvType::kF16});
      for (uint32_t s = 0; s < kPrompts; ++s) answers[s] = Prompt(*pass, s, s, way.chunk);
      for (size_t step = 0; step < kSteps; ++step) Step(*pass, step, 0, kPrompts, answers);
      return answers;
    }
    for (uint32_t s = 0; s < kPrompts; ++s) {
      const auto pass = loaded.NewPass({1, kContext, KvType::kF16});
      answers[s] = Prompt(*pass, s, 0, way.chunk);
      for (size_t step = 0; step < kSteps; ++step) Step(*pass, step, s, s + 1, answers);
    }
    return answers;
  }

 private:
  static std::vector<float> Prompt(ForwardPass& pass, uint32_t nth, uint32_t sequence, size_t chunk) {
    const std::vector<int> ids = SomeIds(kLengths[nth], std::min(nth, kPrompts - 2), pass.n_vocab());
    std::vector<float> logits(pass.n_vocab());
    for (size_t begin = 0; begin < ids.size(); begin += chunk) {
      ForwardStep rows;
      for (size_t i = begin; i < std::min(begin + chunk, ids.size()); ++i)
        rows.Add(SpanKind::kPrompt, {ids[i], static_cast<uint32_t>(i), sequence});
      const auto last = static_cast<uint32_t>(rows.size() - 1);
      const Status status = pass.Run(rows, std::span(&last, 1), logits);
      if (!status.ok()) ADD_FAILURE() << status.message();
    }
    return logits;
  }

  // Of prompts [begin, end), in sequences from 0 on, in one step.
  static void Step(ForwardPass& pass, size_t step, uint32_t begin, uint32_t end, Answers& answers) {
    const size_t n_vocab = pass.n_vocab();
    ForwardStep rows;
    std::vector<uint32_t> outputs;
    for (uint32_t s = begin; s < end; ++s) {
      const auto last = answers[s].end() - static_cast<ptrdiff_t>(n_vocab);
      const auto best = std::max_element(last, answers[s].end()) - last;
      rows.Add(SpanKind::kDecode,
               {static_cast<TokenId>(best), static_cast<uint32_t>(kLengths[s] + step), s - begin});
      outputs.push_back(s - begin);
    }
    std::vector<float> logits(rows.size() * n_vocab);
    const Status status = pass.Run(rows, outputs, logits);
    if (!status.ok()) ADD_FAILURE() << status.message();
    for (uint32_t s = begin; s < end; ++s) {
      const auto from = logits.begin() + static_cast<ptrdiff_t>((s - begin) * n_vocab);
      answers[s].insert(answers[s].end(), from, from + static_cast<ptrdiff_t>(n_vocab));
    }
  }

  TemporaryFolder folder_;
};

TEST_P(SameAnswer, ForAnyBatchThreadsAndChunks) {
  constexpr Way kWays[] = {{1, 64, false}, {2, 256, false}, {3, 100, false}, {7, 64, true}, {2, 1, true}};
  for (const bool exact : {false, true}) {
    const Answers expected = Answer({1, 256, true}, exact);
    for (const Way& way : kWays) {
      const Answers found = Answer(way, exact);
      for (uint32_t s = 0; s < kPrompts; ++s) {
        EXPECT_TRUE(found[s] == expected[s])
            << "a prompt of " << kLengths[s] << " tokens, " << (exact ? "exact" : "rounded") << ", "
            << way.n_threads << " threads, chunks of " << way.chunk
            << (way.alone ? ", alone" : ", in a batch");
      }
    }
    EXPECT_TRUE(expected[kPrompts - 1] == expected[kPrompts - 2]) << "the same prompt twice";
  }
}

INSTANTIATE_TEST_SUITE_P(Models, SameAnswer, ::testing::ValuesIn(SmallModels()),
                         [](const auto& param) { return param.param.name; });

// The program, with what depends on selection: tokens and log-probabilities as they are printed.
class SameAnswerOfTheProgram : public ::testing::Test {
 protected:
  void SetUp() override {
    model_ = WriteModel(folder_, "tiny.gguf", TalkingModel().Build());
    for (const size_t length : {5, 40, 200, 257, 400, 400}) {
      std::string text;
      for (size_t i = 0; i < length; ++i) text += static_cast<char>('a' + (i * i + i / 7 + length) % 26);
      lines_.push_back(fmt::format("{{\"prompt\": \"{}\"}}\n", text));
    }
  }

  std::string Run(const std::vector<std::string>& options, const std::string& lines,
                  uint32_t n_threads) const {
    std::vector<std::string> arguments = {"run",
                                          "-m",
                                          model_,
                                          "--batch",
                                          "-",
                                          "-n",
                                          "6",
                                          "--ignore-end",
                                          "--logprobs",
                                          "3",
                                          "-q",
                                          "--ctx",
                                          "512",
                                          "--device",
                                          "host",
                                          "--temp",
                                          "0",
                                          "--threads",
                                          std::to_string(n_threads)};
    arguments.insert(arguments.end(), options.begin(), options.end());
    ProgramInput input = WithDrivers();
    input.stdin_text = lines;
    const ProgramResult result = RunProgram(RealProgram(), arguments, input);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return std::regex_replace(result.out, std::regex("\"index\":[0-9]+,"), "");
  }

  void ExpectSame(const std::vector<std::string>& options) const {
    std::string all;
    std::string alone;
    for (const std::string& line : lines_) {
      all += line;
      alone += Run(options, line, 1);
    }
    EXPECT_TRUE(Run(options, all, 1) == alone);
    EXPECT_TRUE(Run(options, all, 2) == alone) << "2 threads";
    EXPECT_TRUE(Run(options, all, 3) == alone) << "3 threads";
    EXPECT_TRUE(Run(options, all, 7) == alone) << "7 threads";
  }

  TemporaryFolder folder_;
  std::string model_;
  std::vector<std::string> lines_;
};

TEST_F(SameAnswerOfTheProgram, WithAllKv) {
  ExpectSame({});
  ExpectSame({"--exact-activations"});
}

TEST_F(SameAnswerOfTheProgram, WithAnAdapterAndChosenGroups) {
  const std::string adapter = folder_.Path("adapter.gguf");
  std::string text;
  for (size_t i = 0; i < 3000; ++i) text += static_cast<char>('a' + (i * i + i / 5) % 26);
  const std::string kvadapt = std::filesystem::path(RealProgram()).replace_filename("kvadapt");
  const ProgramResult made =
      RunProgram(kvadapt,
                 {"calibrate", "-m", model_, "-o", adapter, "--device", "host", "--rank", "8",
                  "--no-reuse-rates", "-f", folder_.Write("text", text)},
                 WithDrivers());
  ASSERT_EQ(made.exit_code, 0) << made.err;
  const std::vector<std::string> options = {
      "--kv-method", "kvswap",         "--kv-adapter", adapter,       "--kv-select",
      "32",          "--kv-reuse",     "16",           "--kv-group",  "4",
      "--kv-dir",    folder_.Path(""), "--kv-tmpfs",   "--kv-window", "16"};
  ExpectSame(options);
  std::vector<std::string> exact = options;
  exact.push_back("--exact-activations");
  ExpectSame(exact);
}

}  // namespace
}  // namespace kvrun::testing
