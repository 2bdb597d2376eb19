// The program itself on files that have a vocabulary and no weights, or weights that it does not run. Needs
// no device.
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/model/gguf.h"
#include "tests/support/real_program.h"
#include "tests/support/reference_files.h"
#include "tests/support/tiny_model_file.h"

namespace kvrun::testing {
namespace {

ProgramResult RunOn(const std::string& command, const std::string& path, std::vector<std::string> more = {}) {
  more.insert(more.begin(), {command, "-m", path});
  return RunProgram(RealProgram(), more, WithDrivers());
}

void ExpectRefusal(const ProgramResult& result, const std::string& part) {
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  EXPECT_NE(result.err.find(part), std::string::npos) << result.err;
}

std::string IdsText(const std::string& line) {  // without what is around the numbers
  std::istringstream in(line);
  std::string ids;
  for (std::string id; in >> id;) ids += (ids.empty() ? "" : " ") + id;
  return ids;
}

GgufBuilder WithoutWeights(GgufBuilder model) {
  const Bytes whole = model.Build();
  const auto file = GgufFile::Parse(whole, "whole");
  EXPECT_TRUE(file.ok());
  for (const GgufTensor& tensor : (*file)->tensors()) model.EraseTensor(tensor.name);
  return model;
}

class VocabularyFiles : public ::testing::TestWithParam<const char*> {};

TEST_P(VocabularyFiles, AreTokenizedWithAndShown) {
  const auto path = SharedPath(std::string("reference/tokenizer/ggml-vocab-") + GetParam() + ".gguf");
  if (!path) GTEST_SKIP() << "reference/tokenizer is not there";
  const std::string separator = "\n__ggml_vocab_test__\n";
  std::istringstream lines(ReadFileOrDie(*path + ".out"));
  std::string texts = ReadFileOrDie(*path + ".inp");
  std::string line;
  for (size_t n = 0; n < 12 && std::getline(lines, line); ++n) {
    const std::string text = texts.substr(0, texts.find(separator));
    texts.erase(0, text.size() + separator.size());
    const ProgramResult result = RunOn("tokenize", *path, {"-p", text});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.err, "");
    EXPECT_EQ(IdsText(result.out), IdsText(line)) << text;
  }
  const ProgramResult shown = RunOn("info", *path);
  EXPECT_EQ(shown.exit_code, 0) << shown.err;
  EXPECT_TRUE(shown.out.starts_with(
      "holds                     a vocabulary alone, no weights: kvrun tokenize takes it\n"));
  const auto json = nlohmann::json::parse(RunOn("info", *path, {"--json"}).out);
  EXPECT_GT(json["vocabulary"]["tokens"], 30000);
  EXPECT_EQ(json["vocabulary"]["tokens"], json["n_vocab"]);
  EXPECT_TRUE(json["vocabulary"]["eos"].is_number());
  EXPECT_FALSE(json["vocabulary"]["ends"].empty());
  ExpectRefusal(RunOn("run", *path, {"-p", "x"}), "it holds no tensors");
}

INSTANTIATE_TEST_SUITE_P(All, VocabularyFiles, ::testing::Values("gpt-2", "llama-bpe", "llama-spm", "qwen2"),
                         [](const auto& vocab) {
                           std::string name = vocab.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(Vocabulary, WithoutWeightsIsEnoughToTokenize) {
  const TemporaryFolder folder;
  const std::string whole = WriteModel(folder, "whole.gguf", TalkingModel().Build());
  const std::string bare = WriteModel(folder, "bare.gguf", WithoutWeights(TalkingModel()).Build());
  const ProgramResult ids = RunOn("tokenize", bare, {"-p", "hello", "--bos"});
  EXPECT_EQ(ids.exit_code, 0) << ids.err;
  EXPECT_EQ(ids.out, RunOn("tokenize", whole, {"-p", "hello", "--bos"}).out);
  EXPECT_EQ(ids.err, "");
  const ProgramResult shown = RunOn("info", bare);
  EXPECT_EQ(shown.exit_code, 0) << shown.err;
  EXPECT_TRUE(shown.out.starts_with("holds                     a vocabulary alone"));
  EXPECT_NE(shown.out.find("  tokens                  300\n"), std::string::npos) << shown.out;
  EXPECT_NE(shown.out.find("cannot be run"), std::string::npos);
  for (const std::string command : {"run", "chat", "bench", "eval"}) {
    const std::vector<std::string> text = {"-f", bare};
    const ProgramResult refused =
        RunOn(command, bare, command == "bench" ? std::vector<std::string>() : text);
    ExpectRefusal(refused, "bare.gguf: it holds no tensors");
  }
}

TEST(Vocabulary, OfAModelThatIsNotRunComesWithANote) {
  const TemporaryFolder folder;
  GgufBuilder model = TalkingModel().Set("general.architecture", "gpt2");
  const std::string path = WriteModel(folder, "gpt2.gguf", model.Build());
  const ProgramResult ids = RunOn("tokenize", path, {"-p", "hello"});
  EXPECT_EQ(ids.exit_code, 0) << ids.err;
  EXPECT_NE(ids.out, "");
  EXPECT_TRUE(ids.err.starts_with("kvrun: note: kvrun does not run this model: " + path + ": ")) << ids.err;
  const ProgramResult shown = RunOn("info", path);
  EXPECT_EQ(shown.exit_code, 0) << shown.err;
  EXPECT_EQ(shown.out.find("holds"), std::string::npos);
  EXPECT_NE(shown.out.find("cannot be run"), std::string::npos) << shown.out;
  EXPECT_NE(shown.out.find("  tokens                  300\n"), std::string::npos) << shown.out;
  ExpectRefusal(RunOn("run", path, {"-p", "x"}), "gpt2");
}

TEST(Vocabulary, ThatIsIncompleteIsNamed) {
  const TemporaryFolder folder;
  for (const char* key : {"tokenizer.ggml.model", "tokenizer.ggml.tokens", "tokenizer.ggml.token_type",
                          "tokenizer.ggml.scores"}) {
    const std::string path =
        WriteModel(folder, "broken.gguf", WithoutWeights(TalkingModel()).Erase(key).Build());
    const ProgramResult refused = RunOn("tokenize", path, {"-p", "x"});
    ExpectRefusal(refused, path + ": key \"" + key + "\" is missing");
    EXPECT_NE(refused.err.find("convert the model again"), std::string::npos) << refused.err;
    const ProgramResult shown = RunOn("info", path);
    EXPECT_EQ(shown.exit_code, 0) << shown.err;
    EXPECT_EQ(shown.out.find("kvrun tokenize takes it\n"), std::string::npos) << shown.out;
  }
  GgufBuilder bytes = WithoutWeights(TalkingModel());
  bytes.Set("tokenizer.ggml.model", "gpt2").Set("tokenizer.ggml.pre", "qwen2");
  ExpectRefusal(RunOn("tokenize", WriteModel(folder, "bpe.gguf", bytes.Build()), {"-p", "x"}),
                "key \"tokenizer.ggml.merges\" is missing");
  bytes.Set("tokenizer.ggml.pre", "klingon");
  ExpectRefusal(RunOn("tokenize", WriteModel(folder, "pre.gguf", bytes.Build()), {"-p", "x"}),
                "tokenizer.ggml.pre is \"klingon\"");
}

}  // namespace
}  // namespace kvrun::testing
