// Configs as files: what is written is read again, and what is wrong in one is said with its place.
#include "runtime/engine/config/config_file.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <cstddef>
#include <fstream>
#include <limits>
#include <string>
#include <utility>

#include "tests/support/config_cases.h"
#include "tests/support/program_runner.h"
#include "tests/support/reference_files.h"

namespace kvrun::testing::configs {
namespace {

// A config that is right, with `line` in place of the line that begins with `key`, or after the last.
std::string With(const std::string& key, const std::string& line) {
  const std::string right =
      "version = 1\n"           // 1
      "[model]\n"               // 2
      "fingerprint = \"ab\"\n"  // 3
      "[machine]\n"             // 4
      "device = \"GPU\"\n"      // 5
      "[kv]\n"                  // 6
      "method = \"kvswap\"\n"   // 7
      "[[solution]]\n"          // 8
      "batch = 2\n"             // 9
      "ctx = 4096\n"            // 10
      "budget_bytes = 1000\n";  // 11
  if (key.empty()) return right + line;
  const size_t begin = right.find(key);
  const size_t end = right.find('\n', begin) + 1;
  return right.substr(0, begin) + line + right.substr(end);
}

std::string ErrorOf(const std::string& text) {
  const Result<KvConfig> config = ConfigFromToml(text, "c.toml");
  return config.ok() ? "no error" : config.status().message();
}

void ExpectError(const std::string& text, const std::string& begin, const std::string& part = "") {
  const std::string error = ErrorOf(text);
  EXPECT_TRUE(error.starts_with(begin)) << error << "\n not " << begin;
  EXPECT_NE(error.find(part), std::string::npos) << error << "\n without " << part;
}

TEST(ConfigFile, WhatIsWrittenIsReadAgain) {
  const KvConfig config = Example();
  const Result<KvConfig> read = ConfigFromToml(ConfigToToml(config), "c.toml");
  ASSERT_TRUE(read.ok()) << read.status().message() << "\n" << ConfigToToml(config);
  EXPECT_EQ(*read, config) << ConfigToToml(config);
}

TEST(ConfigFile, EachKeyIsExplainedWhereItStandsFirst) {
  const std::string text = ConfigToToml(Example());
  const auto count = [&text](const std::string& part) {
    size_t n = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
    return n;
  };
  EXPECT_EQ(count("# tokens of each"), 1U) << text;
  EXPECT_EQ(count("\nctx = "), 2U);
  EXPECT_EQ(count("# newest entries"), 1U);
  EXPECT_EQ(count("window = 64 "), 1U);
  EXPECT_EQ(count("predicted_ms"), 1U);
}

TEST(ConfigFile, BytesThatAreNoTextAreRepaired) {
  KvConfig config = Example();
  config.model =
      "a\xFF"
      "b";
  const Result<KvConfig> read = ConfigFromToml(ConfigToToml(config), "c.toml");
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->model,
            "a\xEF\xBF\xBD"
            "b");
}

TEST(ConfigFile, FiguresThatWouldBeRefusedAreLeftOut) {
  for (const double figure : {std::nan(""), std::numeric_limits<double>::infinity(), -1.0, 1.1e12}) {
    KvConfig config = Example();
    config.solutions[0].predicted_ms = figure;
    const Result<KvConfig> read = ConfigFromToml(ConfigToToml(config), "c.toml");
    ASSERT_TRUE(read.ok()) << read.status().message();
    EXPECT_EQ(read->solutions[0].predicted_ms, 0.0);
  }
}

TEST(ConfigFile, WhatNeedNotBeSaidHasADefault) {
  const Result<KvConfig> read = ConfigFromToml(With("batch", ""), "c.toml");
  ASSERT_TRUE(read.ok()) << read.status().message();
  KvConfig config;
  config.model_fingerprint = "ab";
  config.device = "GPU";
  config.solutions = {Solution(1, 4096, 1000)};
  EXPECT_EQ(*read, config);
  EXPECT_EQ(config.method, "kvswap");
}

TEST(ConfigFile, UnknownKeysAreErrorsEverywhere) {
  ExpectError(With("version", "version = 1\ncolour = 2\n"),
              "c.toml:2:1: there is no key \"colour\"; known: ", "version, model, machine, kv, solution");
  ExpectError(With("fingerprint", "fingerprint = \"ab\"\n  files = 2\n"),
              "c.toml:4:3: there is no key \"files\" in [model]; known: name, fingerprint");
  ExpectError(With("device", "gpu = 1\n"),
              "c.toml:5:1: there is no key \"gpu\" in [machine]; known: device, ");
  ExpectError(With("method", "dir = \"/\"\n"), "c.toml:7:1: there is no key \"dir\" in [kv]; known: method");
  ExpectError(With("", "zoo = 1\nkv-group = 4\n"), "c.toml:12:1: there is no key \"zoo\" in [[solution]]; ",
              "budget_bytes, type, group, select, hide, reads, adapt, sample, seed, mass, window, sinks, "
              "reuse, rank, index, heads, static, policy, adapter, adapter_kind, predicted_ms, measured_ms, "
              "kl, bound");
}

TEST(ConfigFile, ValuesOfAWrongTypeSayWhichIsMeant) {
  ExpectError(With("version", "version = \"1\"\n"),
              "c.toml:1:11: version is a text; it must be a whole number");
  ExpectError(With("fingerprint", "fingerprint = 7\n"),
              "c.toml:3:15: fingerprint is a whole number; it must be a text in quotes");
  ExpectError(With("device", "device = \"GPU\"\nexact_activations = 1\n"),
              "c.toml:6:21: exact_activations is a whole number; it must be true or false");
  ExpectError(With("ctx", "ctx = 4096.5\n"),
              "c.toml:10:7: ctx is a number with decimals; it must be a whole number");
  ExpectError(With("", "group = \"4\"\n"), "c.toml:12:9: group is a text; it must be a whole number");
  ExpectError(With("", "type = [\"fp8\", \"int4\"]\n"),
              "c.toml:12:8: type is a list; it must be a text in quotes");
  ExpectError(With("", "kl = true\n"), "c.toml:12:6: kl is true or false; it must be a number");
  ExpectError(With("", "bound = 2026-11-22\n"), "c.toml:12:9: bound is a date or a time; it must be a text");
  ExpectError(With("[[solution]]", "[solution]\n"),
              "c.toml:8:1: solution is a single table: write [[solution]], in double brackets");
  ExpectError("version = 1\nmodel = 3\n", "c.toml:2:9: model is a whole number; it must be a table, [model]");
}

TEST(ConfigFile, ValuesThatAnOptionRefusesAreRefused) {
  ExpectError(With("", "group = 257\n"),
              "c.toml:12:9: KV option group: \"257\" is not a number from 1 to 256");
  ExpectError(With("", "sinks = -1\n"), "c.toml:12:9: KV option sinks: \"-1\" is not a number from 0");
  ExpectError(With("", "type = \"fp7\"\n"), "c.toml:12:8: KV option type: \"fp7\" is not one of f32, f16");
  ExpectError(With("", "adapter_kind = \"\"\n"), "c.toml:12:16: KV option adapter-kind: \"\" is not one of");
  ExpectError(With("method", "method = \"swap\"\n"), "c.toml:7:10: KV option method: \"swap\" is not one of");
  ExpectError(With("", "adapter = \"\"\n"), "c.toml:12:11: KV option adapter: \"\" is not a path");
}

TEST(ConfigFile, NumbersHaveRanges) {
  ExpectError(With("batch", "batch = 0\n"), "c.toml:9:9: batch is 0; it must be from 1 to 16");
  ExpectError(With("batch", "batch = 17\n"), "c.toml:9:9: batch is 17; it must be from 1 to 16");
  ExpectError(With("ctx", "ctx = 4294967296\n"), "c.toml:10:7: ctx is 4294967296; it must be from 1 to ");
  // As docs/config.md has it: to 2^40.
  for (const char* bytes : {"0", "-1", "1099511627777", "9007199254740993"}) {
    ExpectError(With("budget", fmt::format("budget_bytes = {}\n", bytes)),
                fmt::format("c.toml:11:16: budget_bytes is {}; it must be from 1 to 1099511627776", bytes));
  }
  EXPECT_EQ(ErrorOf(With("budget", "budget_bytes = 1099511627776\n")), "no error");
  ExpectError(With("", "kl = -0.1\n"), "c.toml:12:6: kl is -0.1; it must be from 0");
  ExpectError(With("", "measured_ms = nan\n"), "c.toml:12:15: measured_ms is nan; it must be from 0");
  ExpectError(With("", "predicted_ms = inf\n"), "c.toml:12:16: predicted_ms is inf; it must be from 0");
  EXPECT_EQ(ErrorOf(With("", "measured_ms = 3\nkl = 0\n")), "no error");
}

TEST(ConfigFile, WhatLacksIsNamed) {
  ExpectError("", "c.toml:1:1: the file lacks the key \"version\"");
  ExpectError(With("version", ""), "c.toml:1:1: the file lacks the key \"version\"");
  ExpectError("version = 1\n", "c.toml:1:1: the file lacks the key \"model\"");
  ExpectError(With("fingerprint", ""), "c.toml:2:1: [model] lacks the key \"fingerprint\"");
  ExpectError(With("fingerprint", "fingerprint = \"\"\n"), "c.toml:3:15: fingerprint is empty");
  ExpectError(With("device", "cpu = \"a\"\n"), "c.toml:4:1: [machine] lacks the key \"device\"");
  ExpectError(With("ctx", ""), "c.toml:8:1: [[solution]] lacks the key \"ctx\"");
  ExpectError(With("budget", ""), "c.toml:8:1: [[solution]] lacks the key \"budget_bytes\"");
  const std::string head = With("", "").substr(0, With("", "").find("[[solution]]"));
  ExpectError(head, "c.toml:1:1: the file has no [[solution]]");
  const std::string advice = ": begin each solution with a line [[solution]], in double brackets";
  ExpectError("solution = []\n" + head, "c.toml:1:12: the list of solutions is empty" + advice);
  ExpectError("solution = [3]\n" + head,
              "c.toml:1:13: solution is a list with a whole number in it" + advice);
  ExpectError("solution = 3\n" + head, "c.toml:1:12: solution is a whole number" + advice);
}

TEST(ConfigFile, TwoOfAKindAreErrors) {
  ExpectError(With("batch", "batch = 1\nbatch = 2\n"), "c.toml:10:", "batch");
  ExpectError(With("", "[machine]\n"), "c.toml:12:", "machine");
  ExpectError(With("", "[[solution]]\nbatch = 2\nctx = 4096\nbudget_bytes = 7\n"),
              "c.toml:12:1: this is the second solution for batch 2 and ctx 4096");
}

TEST(ConfigFile, AnotherVersionIsUnsupportedWhateverItHolds) {
  const Result<KvConfig> config = ConfigFromToml("future = {}\nversion = 2\n", "c.toml");
  EXPECT_EQ(config.status().code(), StatusCode::kUnsupported);
  ExpectError("future = {}\nversion = 2\n", "c.toml:2:11: the config is of version 2, and this kvrun reads");
  EXPECT_EQ(ConfigFromToml("version = 0\n", "c.toml").status().code(), StatusCode::kInvalidArgument);
  ExpectError("version = 0\n", "c.toml:1:11: there is no version 0 of configs: write version = 1");
  ExpectError("\n  version = -3\n", "c.toml:2:13: there is no version -3 of configs: write version = 1");
}

// toml++ takes some of them for what cannot be. In comments and between quotes they are what users write.
TEST(ConfigFile, LettersBeyondAsciiBelongInQuotes) {
  const auto refused = [](const std::string& text) {
    const auto config = ConfigFromToml(text, "c.toml");
    return config.status().message().find("a letter that is not ASCII stands outside quotes and comments") !=
           std::string::npos;
  };
  EXPECT_TRUE(
      refused("x = \xcd\xa2"
              "176\n"));
  EXPECT_TRUE(
      refused("x = 0061e':\xc6\x8c"
              "f'\n"));
  EXPECT_TRUE(refused("x = \"a\"\"\xc6\x8c\"\n"));
  EXPECT_TRUE(refused("\xc3\xa4 = 1\n"));
  EXPECT_FALSE(refused(
      "\xef\xbb\xbf# \xcd\xa2\nx = \"\xcd\xa2\" # \xc6\x8c\ny = ['\xc3\xa4', \"\"\"\n\xc3\xa4\"\"\"]\n"));
}

TEST(ConfigFile, KeysOfManyPartsAreRefusedBeforeTheyFillTheStack) {
  std::string key = "b";
  for (int i = 0; i < 300000; ++i) key += ".b";
  key += "=1";
  const std::string dots(400, '.');
  const std::pair<std::string, int> cases[] = {
      {"\n# a.b.c." + dots + "\n" + key + "\n", 3},
      {"x = {a = 'it.s', " + key + "}\n", 1},
      {R"("\"".)" + key + "\n", 1},
      {R"(x = {a = "\"", )" + key + "}\n", 1},
      {R"(x = {a = "", b = 'it\', )" + key + "}\n", 1},
      {"x = \"\"\"\n# '\n\"\"\"\n" + key + "\n", 4},
      {"x = [\"\"\"\n\"'\"\"\", {" + key + "}]\n", 2},
      {"x = ['''\n\"''''', {" + key + "}]\n", 2},
  };
  for (const auto& [text, line] : cases) {
    const auto config = ConfigFromToml(text, "deep.toml");
    ASSERT_FALSE(config.ok());
    EXPECT_EQ(config.status().message(),
              "deep.toml:" + std::to_string(line) + ":1: this key has more parts than any key of a config");
  }
}

TEST(ConfigFile, DotsInQuotesAreNoParts) {
  const std::string dots(200, '.');
  for (const std::string& text :
       {"\"" + dots + "\"", "'" + dots + "'", "\"\"\"\n" + dots + "\"\"\"\"", "\"\\\"" + dots + "\""}) {
    const Status status = ConfigFromToml("x = " + text + "\n", "c.toml").status();
    EXPECT_EQ(status.message().find("more parts"), std::string::npos) << status.message();
  }
}

TEST(ConfigFile, WhatIsNoTomlIsSaidByItsParser) {
  ExpectError("version = 1\n[model\n", "c.toml:2:7: ");
  ExpectError("{\"json\": 1}", "c.toml:1:1: ");
  ExpectError(With("device", "device = GPU\n"), "c.toml:5:10: ");
  ExpectError(std::string("a = \"\xFF\"\n"), "c.toml:1:");
  ExpectError(std::string(3, '\0'), "c.toml:1:");
  ExpectError("a = " + std::string(10000, '['), "c.toml:1:");
}

TEST(ConfigFile, FilesThatCannotBeReadAreErrors) {
  const TemporaryFolder folder;
  EXPECT_EQ(ReadConfig(folder.Path("missing.toml")).status().code(), StatusCode::kNotFound);
  const std::string a_folder = ReadConfig(folder.Path("")).status().message();
  EXPECT_NE(a_folder.find("is not a regular file"), std::string::npos) << a_folder;

  const std::string path = folder.Path("config.toml");
  std::ofstream(path) << ConfigToToml(Example());
  const Result<KvConfig> read = ReadConfig(path);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(*read, Example());

  std::ofstream(path, std::ios::app) << "# " << std::string(1 << 20, '-') << "\n";
  const std::string too_large = ReadConfig(path).status().message();
  EXPECT_TRUE(too_large.starts_with(path + " is too large for a config: it has 1.0 MiB")) << too_large;

  std::ofstream(path) << "version = 1\nx\n";
  EXPECT_TRUE(ReadConfig(path).status().message().starts_with(path + ":2:"));
  std::ofstream(path) << "";
  EXPECT_TRUE(ReadConfig(path).status().message().starts_with(path + ":1:1: "));
  if (geteuid() == 0) return;  // whom nothing is forbidden
  ASSERT_EQ(chmod(path.c_str(), 0), 0);
  EXPECT_EQ(ReadConfig(path).status().code(), StatusCode::kIo);
}

// docs/config.md shows a file and names every key.
TEST(ConfigFile, TheDocumentIsTrue) {
  const std::string document = testing::ReadFileOrDie(std::string(KVRUN_SOURCE_DIR) + "/docs/config.md");
  const std::string fence = "```toml\n";
  const size_t begin = document.find(fence);
  ASSERT_NE(begin, std::string::npos);
  const size_t end = document.find("\n```", begin + fence.size());
  const std::string example = document.substr(begin + fence.size(), end + 1 - begin - fence.size());
  const Result<KvConfig> config = ConfigFromToml(example, "docs/config.md");
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->solutions.size(), 2U);
  // The example is what is written: comments and order are the writer's.
  EXPECT_EQ(ConfigToToml(*config), example);
  const std::string all = ConfigToToml(Example());
  for (size_t at = 0; at < all.size(); at = all.find('\n', at) + 1) {
    const std::string line = all.substr(at, all.find('\n', at) - at);
    const size_t equals = line.find(" = ");
    if (equals == std::string::npos || line[0] == '#') continue;
    EXPECT_NE(document.find("`" + line.substr(0, equals) + "`"), std::string::npos) << line;
  }
}

}  // namespace
}  // namespace kvrun::testing::configs
