// The program itself on a real device: what it computes, and what it says where it cannot.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/support/engine_fixture.h"
#include "tests/support/real_program.h"
#include "tests/support/reference_files.h"
#include "tests/support/tiny_model_file.h"

namespace kvrun::testing {
namespace {

using Json = nlohmann::json;
using Arguments = std::vector<std::string>;

ProgramResult Cli(const Arguments& arguments, const std::vector<std::string>& environment = {},
                  const std::string& stdin_text = "") {
  ProgramInput input = WithDrivers(environment);
  input.stdin_text = stdin_text;
  ProgramResult result = RunProgram(RealProgram(), arguments, input);
  EXPECT_EQ(result.err.find("vulkan validation"), std::string::npos) << result.err;
  return result;
}

std::vector<float> Floats(const std::string& path) { return ReadFloats(path); }

// Exit code 1, nothing on standard output, one line on standard error that holds `part`.
void ExpectFailure(const ProgramResult& result, const std::string& part) {
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  EXPECT_TRUE(result.err.starts_with("kvrun: ")) << result.err;
  EXPECT_NE(result.err.find(part), std::string::npos) << result.err;
}

class CliReal : public ::testing::Test {
 protected:
  void SetUp() override { path_ = WriteModel(folder_, "tiny.gguf", TalkingModel().Build()); }

  static bool NoDevice() { return SharedDevice() == nullptr; }

  std::string Write(const std::string& name, const Bytes& bytes) const {
    return WriteModel(folder_, name, bytes);
  }

  Json RunJson(Arguments arguments) const {
    arguments.insert(arguments.begin(), {"run", "-m", path_, "--json", "--ignore-end"});
    const ProgramResult result = Cli(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return Json::parse(result.out, nullptr, false);
  }

  TemporaryFolder folder_;
  std::string path_;
};

TEST_F(CliReal, RunAnswersWithTextTokensAndStatistics) {
  if (NoDevice()) GTEST_SKIP() << "no device";
  const Json object = RunJson({"-p", "hello", "-n", "7"});
  ASSERT_TRUE(object.is_object());
  EXPECT_EQ(object["tokens"].size(), 7U);
  EXPECT_TRUE(object["text"].is_string());
  EXPECT_EQ(object["finish"], "length");
  for (const char* key : {"prefill_tps", "decode_tps", "ttft_ms"})
    EXPECT_GT(object[key].get<double>(), 0.0) << key;
  EXPECT_EQ(object["device"], SharedDevice()->info().name);
  for (const char* part : {"weights", "kv", "activations", "total"}) {
    EXPECT_GT(object["memory"][part].get<uint64_t>(), 0U) << part;
  }
  const ProgramResult plain = Cli({"run", "-m", path_, "-p", "hello", "-n", "7", "--ignore-end"});
  EXPECT_EQ(plain.out, object["text"].get<std::string>() + "\n");
  EXPECT_NE(plain.err.find(", answer "), std::string::npos) << plain.err;
}

TEST_F(CliReal, RunsAreRepeatable) {
  if (NoDevice()) GTEST_SKIP() << "no device";
  const Arguments sampled = {"-p", "abc", "-n", "12", "--temp", "2", "--seed", "7"};
  const Json tokens = RunJson(sampled)["tokens"];
  EXPECT_EQ(RunJson(sampled)["tokens"], tokens);
  Arguments other = sampled;
  other.back() = "8";
  EXPECT_NE(RunJson(other)["tokens"], tokens);
}

TEST_F(CliReal, ABatchAnswersAsEachPromptAlone) {
  if (NoDevice()) GTEST_SKIP() << "no device";
  std::string lines;
  std::vector<std::string> prompts;
  for (int i = 0; i < 18; ++i) {  // more than fit in one group
    prompts.push_back(fmt::format("prompt {} {}", i, std::string(static_cast<size_t>(i * 3), 'x')));
    lines += Json({{"prompt", prompts.back()}}).dump() + "\n";
  }
  const ProgramResult result =
      Cli({"run", "-m", path_, "--batch", "-", "-n", "6", "--ignore-end", "--kv-type", "f32"}, {}, lines);
  ASSERT_EQ(result.exit_code, 0) << result.err;
  std::istringstream out(result.out);
  std::vector<Json> objects;
  for (std::string line; std::getline(out, line);) objects.push_back(Json::parse(line, nullptr, false));
  ASSERT_EQ(objects.size(), prompts.size());
  for (const size_t i : {0, 3, 15, 17}) {
    const Json alone = RunJson({"-p", prompts[i], "-n", "6", "--kv-type", "f32"});
    EXPECT_EQ(objects[i]["tokens"], alone["tokens"]) << i;
    EXPECT_EQ(objects[i]["text"], alone["text"]) << i;
    EXPECT_EQ(objects[i]["index"], i);
  }
}

TEST_F(CliReal, LogitsAndLikelihoodsAreOfTheGivenIds) {
  if (NoDevice()) GTEST_SKIP() << "no device";
  const std::string ids = folder_.Write("ids", "1 5\n7\t9 11 13 260 299\n");
  const std::string all = folder_.Path("all.f32");
  const std::string last = folder_.Path("last.f32");
  const std::string nll = folder_.Path("nll.f32");
  ASSERT_EQ(Cli({"logits", "-m", path_, "--ids", ids, "--out", all, "--nll", nll}).exit_code, 0);
  ASSERT_EQ(Cli({"logits", "-m", path_, "--ids", ids, "--last", "3", "--out", last}).exit_code, 0);
  const std::vector<float> logits = Floats(all);
  ASSERT_EQ(logits.size(), 8U * 300);
  ASSERT_EQ(Floats(nll).size(), 7U);
  const LogitsDifference difference =
      CompareLogits(std::span<const float>(logits).last(3U * 300), Floats(last), 300);
  EXPECT_LE(difference.max_absolute, 1e-3);
  double sum = 0.0;
  for (size_t i = 0; i < 300; ++i) sum += std::exp(static_cast<double>(logits[i]));
  EXPECT_NEAR(Floats(nll)[0], std::log(sum) - static_cast<double>(logits[5]), 1e-4);
}

TEST_F(CliReal, TokenizeAndInfoNeedNoDevice) {
  const std::vector<std::string> none = {"VK_DRIVER_FILES=/nonexistent.json",
                                         "VK_ICD_FILENAMES=/nonexistent.json"};
  EXPECT_EQ(Cli({"tokenize", "-m", path_, "-f", "-"}, none, "ab").out,
            Cli({"tokenize", "-m", path_, "-p", "ab"}, none).out);
  const ProgramResult info = Cli({"info", "-m", path_, "--ctx", "64", "--json"}, none);
  ASSERT_EQ(info.exit_code, 0) << info.err;
  // Two layers, keys and values, 64 tokens, two heads of eight halves.
  EXPECT_EQ(Json::parse(info.out)["kv_bytes"], 2 * 2 * 64 * 2 * 8 * 2);
}

TEST_F(CliReal, DevicesNamesTheDevice) {
  if (NoDevice()) GTEST_SKIP() << "no device";
  const ProgramResult devices = Cli({"devices", "--json"});
  ASSERT_EQ(devices.exit_code, 0) << devices.err;
  EXPECT_NE(devices.out.find(SharedDevice()->info().name), std::string::npos) << devices.out;
}

TEST_F(CliReal, NoDriverIsSaid) {
  const std::vector<std::string> none = {"VK_DRIVER_FILES=/nonexistent.json",
                                         "VK_ICD_FILENAMES=/nonexistent.json", "KVRUN_VALIDATION="};
  ExpectFailure(Cli({"run", "-m", path_, "-p", "x", "--device", "vulkan"}, none),
                "no Vulkan driver is installed");
  ExpectFailure(Cli({"doctor", "--device", "vulkan"}, none), "no Vulkan driver is installed");
}

// No Vulkan is no lack: the CPU is there.
TEST_F(CliReal, TheCpuIsListedWithoutADriver) {
  const std::vector<std::string> none = {"VK_DRIVER_FILES=/dev/null", "VK_ICD_FILENAMES=/dev/null",
                                         "KVRUN_VALIDATION="};
  const ProgramResult listed = Cli({"devices", "--json"}, none);
  ASSERT_EQ(listed.exit_code, 0) << listed.err;
  const Json devices = Json::parse(listed.out);
  ASSERT_EQ(devices.size(), 1U) << listed.out;
  EXPECT_EQ(devices[0]["index"], 0);
  EXPECT_EQ(devices[0]["kind"], "cpu");
  EXPECT_EQ(devices[0]["driver"], "kvrun host");
  EXPECT_EQ(devices[0]["api_version"], "");
  EXPECT_EQ(devices[0]["usable"], true);
  EXPECT_GT(devices[0]["memory_bytes"].get<uint64_t>(), uint64_t{1} << 26);
  EXPECT_EQ(Cli({"devices"}, none).out.find("Vulkan"), std::string::npos);
  ExpectFailure(Cli({"run", "-m", path_, "-p", "x", "--device", "nonsense"}, none),
                devices[0]["name"].get<std::string>());
}

TEST_F(CliReal, TheCpuIsExaminedWithoutADriver) {
  const std::vector<std::string> none = {"VK_DRIVER_FILES=/dev/null", "VK_ICD_FILENAMES=/dev/null",
                                         "KVRUN_VALIDATION=", "KVRUN_DEVICE="};
  for (const std::vector<std::string>& device :
       {std::vector<std::string>{}, {"--device", "host"}, {"--device", "0"}}) {
    std::vector<std::string> arguments = {"doctor", "--json"};
    arguments.insert(arguments.end(), device.begin(), device.end());
    const ProgramResult result = Cli(arguments, none);
    ASSERT_EQ(result.exit_code, 0) << result.out << result.err;
    const Json report = Json::parse(result.out);
    EXPECT_EQ(report["passed"], true);
    ASSERT_EQ(report["devices"].size(), 1U) << result.out;
    EXPECT_EQ(report["devices"][0]["driver"], "kvrun host");
    EXPECT_GT(report["devices"][0]["tests"].size(), 100U);
    // Who asked for all devices hears why there are no others.
    EXPECT_EQ(result.out.find("no Vulkan driver") != std::string::npos, device.empty()) << result.out;
  }
}

TEST_F(CliReal, TheCpuIsListedLast) {
  const ProgramResult listed = Cli({"devices", "--json"});
  ASSERT_EQ(listed.exit_code, 0) << listed.err;
  const Json devices = Json::parse(listed.out);
  for (size_t i = 0; i < devices.size(); ++i) {
    EXPECT_EQ(devices[i]["index"], i);
    EXPECT_EQ(devices[i]["driver"] == "kvrun host", i + 1 == devices.size()) << devices[i];
  }
}

TEST_F(CliReal, ADeviceThatIsNotThereIsNamed) {
  if (NoDevice()) GTEST_SKIP() << "no device";
  for (const char* device : {"nonsense", "99", "-1", "18446744073709551616"}) {
    ExpectFailure(Cli({"run", "-m", path_, "-p", "x", fmt::format("--device={}", device)}), device);
  }
}

TEST_F(CliReal, APromptLongerThanTheContextIsRefused) {
  const std::string file = folder_.Write("long", std::string(3000, 'a'));
  ExpectFailure(Cli({"run", "-m", path_, "-f", file, "--ctx", "100"}), "more than the context of 100");
  ExpectFailure(Cli({"run", "-m", path_, "-f", file}), "the model was trained with");
}

TEST_F(CliReal, TheContextsEndIsAnEnd) {
  if (NoDevice()) GTEST_SKIP() << "no device";
  const Json object = RunJson({"-p", "0123456789", "-n", "0", "--ctx", "40"});
  EXPECT_EQ(object["finish"], "context_full");
  EXPECT_GE(object["prompt_tokens"].get<size_t>() + object["tokens"].size(), 40U);
}

TEST_F(CliReal, FilesThatAreNoModelsAreRefused) {
  ExpectFailure(Cli({"info", "-m", folder_.Path("missing")}), "missing");
  ExpectFailure(Cli({"info", "-m", folder_.Path("")}), "not a regular file");
  ExpectFailure(Cli({"info", "-m", "/dev/null"}), "not a regular file");
  const std::string pipe = folder_.Path("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  ExpectFailure(Cli({"run", "-m", pipe, "-p", "x"}), "not a regular file");
  ExpectFailure(Cli({"info", "-m", folder_.Write("text", "hello")}), "not a GGUF file");
}

TEST_F(CliReal, CutFilesAreRefused) {
  const Bytes whole = TalkingModel().Build();
  const size_t header_bytes = TalkingModel().HeaderBytes();
  std::vector<size_t> cuts = {
      0, 1, 4, 8, 16, 24, header_bytes - 1, header_bytes, header_bytes + 1, whole.size() - 1};
  for (size_t cut = 97; cut < whole.size(); cut += whole.size() / 40 / 97 * 97 + 97) cuts.push_back(cut);
  for (const size_t cut : cuts) {
    SCOPED_TRACE(cut);
    const std::string path =
        Write("cut.gguf", Bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(cut)));
    ExpectFailure(Cli({"info", "-m", path}), "cut.gguf");
  }
}

TEST_F(CliReal, FlippedHeaderBytesAreRefusedOrHarmless) {
  const Bytes whole = TalkingModel().Build();
  const size_t header_bytes = TalkingModel().HeaderBytes();
  for (size_t at = 3; at < header_bytes; at += header_bytes / 60 + 1) {
    SCOPED_TRACE(at);
    Bytes flipped = whole;
    flipped[at] ^= std::byte{0xFF};
    const ProgramResult result = Cli({"tokenize", "-p", "abc", "-m", Write("flipped.gguf", flipped)});
    if (result.exit_code != 0) ExpectFailure(result, "flipped.gguf");
  }
}

TEST_F(CliReal, UnknownArchitecturesTypesAndHugeLengthsAreNamed) {
  GgufBuilder mamba = TalkingModel();
  mamba.Set("general.architecture", "mamba");
  ExpectFailure(Cli({"run", "-p", "x", "-m", Write("a.gguf", mamba.Build())}), "mamba");
  GgufBuilder type = TalkingModel();
  type.AddTensor("output.weight", 16, {32, 300}, Bytes(32 * 300));
  ExpectFailure(Cli({"run", "-p", "x", "-m", Write("t.gguf", type.Build())}), "output.weight");
  GgufBuilder count = TalkingModel();
  count.ClaimTensorCount((uint64_t{1} << 63) - 1);
  ExpectFailure(Cli({"run", "-p", "x", "-m", Write("c.gguf", count.Build())}), "c.gguf");
  GgufBuilder offset = TalkingModel();
  offset.ClaimOffset("output.weight", (uint64_t{1} << 63) - 32);
  ExpectFailure(Cli({"run", "-p", "x", "-m", Write("o.gguf", offset.Build())}), "output.weight");
}

TEST_F(CliReal, BadUsageIsExitCodeTwo) {
  for (const Arguments& arguments :
       {Arguments{}, Arguments{"nonsense"}, Arguments{"run"}, Arguments{"run", "-m", path_},
        Arguments{"run", "-m", path_, "-p", "x", "--kv-type", "q8"},
        Arguments{"run", "-m", path_, "-p", "x", "-n", "-3"}, Arguments{"logits", "-m", path_},
        Arguments{"tokenize", "-m", path_}, Arguments{"info"}}) {
    const ProgramResult result = Cli(arguments);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_EQ(result.out, "");
    EXPECT_NE(result.err, "");
  }
}

TEST_F(CliReal, AChatEqualsItsTokensFedAtOnce) {
  if (NoDevice()) GTEST_SKIP() << "no device";
  const ProgramResult chat =
      Cli({"chat", "-m", path_, "-n", "4", "--temp", "0", "--ignore-end", "--quiet", "--kv-type", "f32"}, {},
          "hi there\nand more\n");
  ASSERT_EQ(chat.exit_code, 0) << chat.err;
  const std::string first = RunJson({"-p", "hi there", "--chat", "-n", "4", "--kv-type", "f32"})["text"];
  EXPECT_TRUE(chat.out.starts_with(first)) << chat.out;
  EXPECT_GT(chat.out.size(), first.size() + 1);
}

// A seed of a line's own gives the answer that it gives alone, wherever the line stands.
TEST_F(CliReal, ALineOfABatchIsSampledAsItAsks) {
  if (NoDevice()) GTEST_SKIP() << "no device";
  const std::string lines = R"({"prompt": "abc", "max_tokens": 3})"
                            "\n{}\n"
                            R"({"prompt": "abc", "temperature": 2, "seed": 7, "id": "x"})"
                            "\n";
  const ProgramResult result =
      Cli({"run", "-m", path_, "--batch", "-", "-n", "12", "--ignore-end", "--kv-type", "f32"}, {}, lines);
  EXPECT_EQ(result.exit_code, 1) << "a line is bad";
  std::istringstream out(result.out);
  std::vector<Json> objects;
  for (std::string line; std::getline(out, line);) objects.push_back(Json::parse(line, nullptr, false));
  ASSERT_EQ(objects.size(), 3U) << result.out << result.err;
  EXPECT_EQ(objects[0]["tokens"].size(), 3U);
  EXPECT_TRUE(objects[1].contains("error"));
  EXPECT_EQ(objects[2]["id"], "x");
  const Json alone =
      RunJson({"-p", "abc", "-n", "12", "--temp", "2", "--seed", "7", "--kv-type", "f32"})["tokens"];
  EXPECT_EQ(objects[2]["tokens"], alone);
}

// The prompt has as many tokens as there is room for, but for those that a cut where a line ends costs.
TEST(CliLongDocument, IsCutOrAskedInParts) {
  const auto model = TestModelPath();
  if (!model) GTEST_SKIP() << "the test model is not here";
  if (SharedDevice() == nullptr) GTEST_SKIP() << "no device";
  std::string text = "The ship is called Pequod.\n";
  for (int i = 0; i < 45; ++i)
    text += fmt::format("On day {} the sea was calm, \u2014 and nobody spoke.\n", i);
  const TemporaryFolder folder;
  const Arguments run = {"run",
                         "-m",
                         *model,
                         "-f",
                         folder.Write("log.txt", text),
                         "-p",
                         "What is the ship called?",
                         "-n",
                         "16",
                         "-c",
                         "384",
                         "--chat",
                         "--json",
                         "--long"};
  const auto with = [&](const char* way) {
    Arguments arguments = run;
    arguments.push_back(way);
    return Cli(arguments);
  };
  const ProgramResult cut = with("cut");
  ASSERT_EQ(cut.exit_code, 0) << cut.err;
  const Json object = Json::parse(cut.out, nullptr, false);
  EXPECT_LE(object["prompt_tokens"], 368);
  EXPECT_GE(object["prompt_tokens"], 368 - 48);
  EXPECT_NE(object["text"].get<std::string>().find("Pequod"), std::string::npos) << object["text"];
  EXPECT_NE(cut.err.find("tokens, in its middle, are left out"), std::string::npos) << cut.err;
  const ProgramResult split = with("split");
  ASSERT_EQ(split.exit_code, 0) << split.err;
  const Json parts = Json::parse(split.out, nullptr, false)["parts"];
  ASSERT_GE(parts.size(), 2U) << split.out;
  for (const Json& part : parts) EXPECT_LE(part["prompt_tokens"], 368);
  EXPECT_NE(parts[0]["text"].get<std::string>().find("Pequod"), std::string::npos) << parts[0];
  EXPECT_NE(split.err.find("part 2 of "), std::string::npos) << split.err;
}

TEST(CliStories, GreedyTextIsThatOfTheModel) {
  const auto model = SharedPath("models/stories260K.gguf");
  if (!model) GTEST_SKIP() << "the model is not here";
  if (SharedDevice() == nullptr) GTEST_SKIP() << "no device";
  const ProgramResult result = Cli({"run", "-m", *model, "-p", "Once upon a time", "-n", "20", "-q"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, ", there was a little girl named Lily. She loved to play outsid\n");
}

TEST(CliStories, TokenizesTheReferencesText) {
  const auto model = SharedPath("models/stories260K.gguf");
  if (!model) GTEST_SKIP() << "the model is not here";
  const ProgramResult result =
      Cli({"tokenize", "--bos", "-m", *model, "-f", *SharedPath("reference/stories260K/stories.txt")});
  std::istringstream words(result.out);
  const std::vector<int> ids{std::istream_iterator<int>(words), {}};
  EXPECT_EQ(ids, ReadIds(*SharedPath("reference/stories260K/stories.ids")));
}

// Three chunks, whose hidden states lie on flash between layers: they are read ahead and written behind, in
// memory that has the logits afterwards. With one tile, each attends to its entries in the order that full
// has: the same bits.
TEST_F(CliReal, APromptThatIsSpilledHasTheLogitsOfOneInMemory) {
  const std::optional<std::string> model = TestModelPath();
  if (NoDevice() || !model) GTEST_SKIP() << "no device, or no test model";
  constexpr uint32_t kTokens = 540;
  std::string ids;
  for (uint32_t i = 0; i < kTokens; ++i) ids += fmt::format("{} ", i * 7919 % 49000);
  const std::string file = folder_.Path("ids");
  std::ofstream(file) << ids;
  const auto logits = [&](const std::string& name, const Arguments& more) {
    const std::string out = folder_.Path(name);
    Arguments arguments = {"logits", "-m",     *model, "--ids", file, "--ctx",
                           "540",    "--last", "540",  "--out", out};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ProgramResult result = Cli(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return std::pair(Floats(out), result.err);
  };
  const auto [in_memory, in_memory_err] = logits("full", {"--kv-method", "full"});
  const auto [spilled, err] = logits("spilled", {"--kv-method", "kvswap", "--kv-budget", "3700KiB",
                                                 "--kv-dir", folder_.Path("kv"), "--kv-tmpfs"});
  ASSERT_NE(err.find("prefill in tiles of 540, hidden states on flash"), std::string::npos) << err;
  ASSERT_EQ(spilled.size(), in_memory.size());
  EXPECT_TRUE(spilled == in_memory);
}

}  // namespace
}  // namespace kvrun::testing
