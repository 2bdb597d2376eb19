// What kvadapt inspect says of each kind of file.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "offline/inspect_file.h"
#include "runtime/engine/measure/calibration_sums.h"
#include "tests/support/program_runner.h"
#include "tests/support/tiny_model_file.h"

namespace kvrun::offline {
namespace {

using Json = nlohmann::json;

TEST(InspectFile, AnAdapterIsToldFromItsContent) {
  const TemporaryFolder folder;
  Adapter adapter;
  adapter.kind = AdapterKind::kPlain;
  adapter.fingerprint = "0123";
  adapter.layers.push_back({2, 1, {1.0F, 0.5F}, {1.0F, 0.5F}, {0.0F, 0.0F}, {0.75F}});
  adapter.reuse = {{"lru", 4, 96, 1000, 24, 0.5F}};
  adapter.cluster_thresholds = {1.0F, 2.0F};
  adapter.made_from = "9 tokens";
  adapter.measured_on = "reuse rates: 1 of 20 settings";
  const std::string path = folder.Path("kvrun.toml");
  ASSERT_TRUE(WriteAdapter(adapter, path).ok());
  const auto text = InspectFile(path);
  ASSERT_TRUE(text.ok()) << text.status().message();
  const Json object = Json::parse(*text);
  EXPECT_EQ(object["what"], "adapter");
  EXPECT_EQ(object["kind"], "plain");
  EXPECT_EQ(object["rank"], 1);
  EXPECT_EQ(object["n_layers"], 1);
  EXPECT_EQ(object["key_dim"], 2);
  EXPECT_EQ(object["fingerprint"], "0123");
  EXPECT_EQ(object["bytes"], ReadWholeFile(path).size());
  EXPECT_EQ(object["layers"][0]["energy"][0], 0.75);
  ASSERT_EQ(object["reuse"]["rates"].size(), 1U);
  const Json row = {{"policy", "lru"}, {"group", 4},     {"select", 96},
                    {"ctx", 1000},     {"capacity", 24}, {"rate", 0.5}};
  EXPECT_EQ(object["reuse"]["rates"][0], row);
  EXPECT_EQ(object["cluster_thresholds"], 2);
  EXPECT_EQ(object["made_from"], "9 tokens");
  EXPECT_EQ(object["measured_on"], "reuse rates: 1 of 20 settings");
}

TEST(InspectFile, WhatIsNoneOfOursIsRefused) {
  const TemporaryFolder folder;
  EXPECT_EQ(InspectFile(folder.Path("missing")).status().code(), StatusCode::kNotFound);
  for (const std::string& bytes : {std::string(), std::string(" \n"), std::string("a\0b", 3)}) {
    const Status status = InspectFile(folder.Write("file", bytes)).status();
    EXPECT_EQ(status.code(), StatusCode::kCorrupt) << status.message();
    EXPECT_NE(status.message().find("is none of kvrun's files"), std::string::npos) << status.message();
  }
  EXPECT_EQ(InspectFile(folder.Write("file", "GGUF")).status().code(), StatusCode::kCorrupt);
}

TEST(InspectFile, WhatIsThereInsteadIsSaid) {
  const TemporaryFolder folder;
  const auto message = [&](const std::string& text) {
    const std::string path = folder.Write("file", text);
    const std::string said = InspectFile(path).status().message();
    EXPECT_TRUE(said.starts_with(path)) << said;
    return said.substr(std::min(said.size(), path.size()));
  };
  const std::string shown = "; an adapter, a configuration or a device's profile can be shown";
  const std::string none = " is none of kvrun's files: ";
  EXPECT_EQ(message(""), none + "it is empty" + shown);
  for (const char* list : {"[1, 2]", " \n[\n {\"a\": 1}]", "[]", "[[\"a\"]]"}) {
    EXPECT_EQ(message(list), none + "it is a JSON list" + shown) << list;
  }
  EXPECT_EQ(message("{\"a\": 1}"),
            ": it is not a device's profile but JSON of another kind (format is missing): name a file that "
            "kvadapt probe wrote");
  EXPECT_EQ(message("[[solution]]\n"), ":1:1: the file lacks the key \"version\"") << "a configuration";
  const Status status = InspectFile(folder.Path("")).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), folder.Path("") + " is a folder: name a file in it");
}

TEST(InspectFile, TextThatIsNoConfigurationIsSaidToBeNone) {
  const TemporaryFolder folder;
  const std::string shown = "; an adapter, a configuration or a device's profile can be shown";
  const auto refusal = [&](const std::string& text) {
    const std::string path = folder.Write("file", text);
    const Status status = InspectFile(path).status();
    EXPECT_FALSE(status.ok());
    EXPECT_TRUE(status.message().starts_with(path)) << status.message();
    return status.message().substr(path.size());
  };
  const std::string none =
      " is none of kvrun's files: it is text, but not a configuration (" + folder.Path("file");
  const std::string prose = "# A title\n\nA version = 1 of prose\n";
  const std::string texts[] = {prose,
                               "hello",
                               "<svg>\n",
                               "modelling = 1\n",
                               "kv",
                               "[package]\nname = \"a\"\n",
                               std::string(2 << 20, 'a')};
  for (const std::string& text : texts) {
    const std::string message = refusal(text);
    EXPECT_TRUE(message.starts_with(none)) << message;
    EXPECT_TRUE(message.ends_with(")" + shown)) << message;
  }
  EXPECT_TRUE(refusal(prose).starts_with(none + ":3:3: ")) << refusal(prose);
  // What is meant as a configuration has its place at once.
  for (const char* begin : {"", "# of kvrun\n\n  # more\n", "\xEF\xBB\xBF"}) {
    for (const char* broken : {"version = 1\n[model\n", "version = 2 3\n", "[model]\nfingerprint\n",
                               "[ kv ]\n= 3", "[[solution]]\n[[", "model.name = a\n"}) {
      const std::string message = refusal(std::string(begin) + broken);
      EXPECT_TRUE(message.size() > 4 && message[0] == ':' && message[1] >= '1' && message[1] <= '9')
          << message;
      EXPECT_EQ(message.find("can be shown"), std::string::npos) << message;
    }
  }
  EXPECT_TRUE(refusal("# of kvrun\n").starts_with(":")) << "comments alone";
}

TEST(InspectFile, OtherFilesOfGgufAreSaidToBeWhatTheyAre) {
  const TemporaryFolder folder;
  const std::string shown = "; an adapter, a configuration or a device's profile can be shown";
  const std::string model = testing::WriteModel(folder, "model.gguf", testing::TinyModel().Build());
  const Status of_model = InspectFile(model).status();
  EXPECT_EQ(of_model.code(), StatusCode::kCorrupt);
  EXPECT_EQ(of_model.message(),
            model + " is none of kvrun's files: it is a GGUF file of \"llama\", and kvrun info -m " + model +
                " shows it if it is a model" + shown);
  CalibrationSums sums;
  sums.layers.push_back({1, 2, 3, 3, std::vector<double>(6, 1.0), std::vector<double>(4, 1.0)});
  const std::string path = folder.Path("sums");
  ASSERT_TRUE(WriteSums(sums, path).ok());
  EXPECT_EQ(InspectFile(path).status().message(), path +
                                                      " holds the sums of a calibration: those of kvadapt "
                                                      "calibrate --dump-gram, or what an interrupted one "
                                                      "goes on from (OUTPUT.partial)" +
                                                      shown);
  testing::GgufBuilder nameless;
  nameless.Set("a", uint32_t{1});
  const std::string other = testing::WriteModel(folder, "other", nameless.Build());
  EXPECT_EQ(InspectFile(other).status().message(),
            other + " is none of kvrun's files: it is a GGUF file that does not say what it holds" + shown);
  const std::string cut = folder.Write("cut", ReadWholeFile(model).substr(0, 100));
  EXPECT_NE(InspectFile(cut).status().message().find("cut short or damaged"), std::string::npos);
}

TEST(InspectObjects, AConfigurationHasItsSolutions) {
  KvConfig config;
  config.model = "toy";
  ConfigSolution solution;
  solution.batch = 2;
  solution.ctx = 4096;
  solution.budget_bytes = 1 << 20;
  solution.options = {{"group", "4"}, {"type", "fp8"}, {"adapter", "a.gguf"}};
  solution.bound = "I/O";
  solution.measured_ms = 8.5;
  config.solutions = {solution, {.batch = 1, .ctx = 512, .options = {}, .bound = {}}};
  const Json object = Json::parse(ConfigObject(config));
  EXPECT_EQ(object["what"], "config");
  EXPECT_EQ(object["model"], "toy");
  EXPECT_EQ(object["method"], "kvswap");
  EXPECT_EQ(object["exact_activations"], false);
  EXPECT_EQ(object["solutions"][0]["batch"], 2);
  EXPECT_EQ(object["solutions"][0]["options"],
            Json({{"group", "4"}, {"type", "fp8"}, {"adapter", "a.gguf"}}));
  EXPECT_EQ(object["solutions"][0]["bound"], "I/O");
  EXPECT_EQ(object["solutions"][0]["measured_ms"], 8.5);
  EXPECT_EQ(object["solutions"][0]["predicted_ms"], nullptr);
  for (const char* key : {"predicted_ms", "measured_ms", "kl", "bound"}) {
    ASSERT_TRUE(object["solutions"][1].contains(key)) << key;
    EXPECT_EQ(object["solutions"][1][key], nullptr) << key;
  }
}

TEST(InspectObjects, AProfileHasItsStorage) {
  DeviceProfile profile;
  profile.machine.device = "Toy \xFF";  // names come from drivers
  profile.storage.alignment_bytes = 512;
  profile.operations.resize(2);
  profile.storage.rates = {{"aio", true, 4096, 8, 1e8, 90.0, 300.0}};
  const Json object = Json::parse(ProfileObject(profile));
  EXPECT_EQ(object["what"], "profile");
  EXPECT_EQ(object["device"], "Toy \xEF\xBF\xBD");
  EXPECT_EQ(object["alignment_bytes"], 512);
  EXPECT_EQ(object["rates"][0]["block_bytes"], 4096);
  EXPECT_EQ(object["n_operations"], 2);
}

}  // namespace
}  // namespace kvrun::offline
