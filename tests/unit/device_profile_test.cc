#include "offline/device_profile.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "offline/probe.h"
#include "tests/support/capi_fixture.h"
#include "tests/support/program_runner.h"
#include "tests/support/reference_files.h"

namespace kvrun::offline {
namespace {

using Json = nlohmann::json;

DeviceProfile Example() {
  return {
      .machine = {.device = "Intel(R) Xeon(R) Processor",
                  .driver = "kvrun host",
                  .cpu = "Intel(R) Xeon(R) Processor",
                  .n_cpus = 2,
                  .storage = "ext4 on vda",
                  .kvrun = "0.1.0"},
      .model = "SmolLM2-135M-Instruct",
      .model_fingerprint = "dcc20bc97a506d8d380175447010336b",
      .storage = {.folder = "/home/user/.cache/kvrun/kv",
                  .alignment_bytes = 4096,
                  .rates = {{.backend = "io_uring",
                             .direct = true,
                             .block_bytes = 4096,
                             .depth = 16,
                             .bytes_per_s = 181403648.0,
                             .latency_us = 352.25,
                             .latency_p99_us = 512.5}}},
      .operations = {{.operation = "attend_slots",
                      .shape = {{"batch", 1}, {"ctx", 8192}, {"entries", 400}, {"k_type", 3}, {"v_type", 3}},
                      .us = 812.5}}};
}

std::string MessageOf(const std::string& text) {
  const Result<DeviceProfile> profile = ProfileFromJson(text);
  return profile.ok() ? "" : profile.status().message();
}

TEST(DeviceProfile, TheDocumentsExampleIsRead) {
  const std::string document =
      testing::ReadFileOrDie(std::string(KVRUN_SOURCE_DIR) + "/docs/formats/device_profile.md");
  const size_t begin = document.find("```json\n") + 8;
  const std::string text = document.substr(begin, document.find("```", begin) - begin);
  const Result<DeviceProfile> profile = ProfileFromJson(text);
  ASSERT_TRUE(profile.ok()) << profile.status().message();
  EXPECT_EQ(*profile, Example());
  // And it is what is written, but for the space in it.
  EXPECT_EQ(nlohmann::ordered_json::parse(ProfileToJson(Example())), nlohmann::ordered_json::parse(text));
}

TEST(DeviceProfile, WhatIsWrittenIsReadToTheBit) {
  DeviceProfile profile = Example();
  profile.operations[0].us = 1e6 / 3.0;
  profile.storage.rates.push_back(profile.storage.rates[0]);
  profile.storage.rates[1].direct = false;
  EXPECT_EQ(ProfileFromJson(ProfileToJson(profile)).value(), profile);
  EXPECT_EQ(ProfileFromJson(ProfileToJson({})).value(), DeviceProfile{}) << "lists may be empty";
  profile.machine.driver = "no UTF-8: \xff";
  EXPECT_TRUE(ProfileFromJson(ProfileToJson(profile)).ok());
}

// Such as the list "steps" that earlier ones had.
TEST(DeviceProfile, OtherKeysArePassedOver) {
  Json file = Json::parse(ProfileToJson(Example()));
  EXPECT_FALSE(file.contains("steps"));
  file["steps"] = {{{"batch", 0}, {"step_us", -1}}};
  file["storage"]["more"] = "text";
  const Result<DeviceProfile> profile = ProfileFromJson(file.dump());
  ASSERT_TRUE(profile.ok()) << profile.status().message();
  EXPECT_EQ(*profile, Example());
}

using MachineIdentityTest = testing::CapiFixture;

// The fake device's driver is no UTF-8.
TEST_F(MachineIdentityTest, IsTheSameOnceItIsKept) {
  DeviceProfile profile = Example();
  profile.machine = IdentifyMachine(engine_, "").value();
  EXPECT_EQ(profile.machine.driver, "fake 1.0 \xEF\xBF\xBD");
  EXPECT_EQ(ProfileFromJson(ProfileToJson(profile))->machine, profile.machine);
}

TEST(DeviceProfile, EveryKeyMustBeThere) {
  const Json whole = Json::parse(ProfileToJson(Example()));
  size_t n_keys = 0;
  const Json flat = whole.flatten();
  for (const auto& [path, value] : flat.items()) {
    if (path.find("/shape/") != std::string::npos) continue;
    const Json::json_pointer pointer(path);
    Json damaged = whole;
    damaged[pointer.parent_pointer()].erase(pointer.back());
    EXPECT_NE(MessageOf(damaged.dump()).find(pointer.back() + " is missing"), std::string::npos) << path;
    damaged = whole;
    damaged[pointer] = Json::array();
    EXPECT_NE(MessageOf(damaged.dump()), "") << path;
    ++n_keys;
  }
  EXPECT_EQ(n_keys, 21U);
  Json without = whole;
  without.erase("operations");
  EXPECT_NE(MessageOf(without.dump()).find("operations is missing"), std::string::npos);
}

TEST(DeviceProfile, NumbersThatAreNoneAreRefusedByName) {
  const std::vector<std::pair<std::string, Json>> cases = {
      {"/version", 2},
      {"/format", "kvrun device times"},
      {"/machine/n_cpus", -1},
      {"/machine/device", std::string(5000, 'x')},
      {"/storage/alignment_bytes", 0},
      {"/storage/rates/0/bytes_per_s", -1.0},
      {"/storage/rates/0/bytes_per_s", 0.0},
      {"/storage/rates/0/latency_us", 1e16},
      {"/storage/rates/0/latency_p99_us", nullptr},
      {"/storage/rates/0/depth", 0},
      {"/storage/rates/0/depth", 1.5},
      {"/storage/rates/0/block_bytes", uint64_t{1} << 40},
      {"/storage/rates/0/block_bytes", std::numeric_limits<uint64_t>::max()},
      {"/storage/rates/0/direct", 1},
      {"/operations/0/us", "fast"},
      {"/operations/0/us", -0.5},
      {"/operations/0/shape/batch", -1},
      {"/operations/0/shape", Json::array()},
  };
  for (const auto& [path, value] : cases) {
    Json damaged = Json::parse(ProfileToJson(Example()));
    const Json::json_pointer pointer(path);
    damaged[pointer] = value;
    const std::string message = MessageOf(damaged.dump());
    const std::string name = path == "/format" ? "another kind" : pointer.back();
    EXPECT_NE(message.find(name), std::string::npos) << path << ": " << message;
    EXPECT_NE(message.find("kvadapt probe"), std::string::npos) << message;
    EXPECT_LT(message.size(), 250U) << message;
  }
  DeviceProfile profile = Example();
  profile.operations[0].us = std::numeric_limits<double>::quiet_NaN();
  EXPECT_NE(MessageOf(ProfileToJson(profile)).find("operations[0].us is null"), std::string::npos);
}

TEST(DeviceProfile, TooManyRowsAreRefused) {
  DeviceProfile profile = Example();
  profile.operations.assign(100'001, {.operation = "x", .shape = {}, .us = 1});
  EXPECT_NE(MessageOf(ProfileToJson(profile)).find("operations has more than 100000 rows"),
            std::string::npos);
}

TEST(DeviceProfile, WhatIsNoProfileIsRefused) {
  const std::string whole = ProfileToJson(Example());
  for (size_t length = 0; length + 2 < whole.size(); length += 7) {
    EXPECT_NE(MessageOf(whole.substr(0, length)), "") << length;
  }
  for (const char* text : {"[]", "null", "3", "{}", "\xff\xfe", "{\"format\": 1e999}"}) {
    EXPECT_NE(MessageOf(text), "") << text;
  }
  EXPECT_NE(MessageOf("{\"format\":" + std::string(1'000'000, '[') + std::string(1'000'000, ']') + "}"), "");
}

TEST(DeviceProfile, FilesAreNamedInMessages) {
  const TemporaryFolder folder;
  EXPECT_EQ(ReadProfile(folder.Write("good", ProfileToJson(Example()))).value(), Example());
  const std::string missing = folder.Path("missing");
  EXPECT_EQ(ReadProfile(missing).status().code(), StatusCode::kNotFound);
  EXPECT_NE(ReadProfile(missing).status().message().find(missing), std::string::npos);
  const std::string bad = folder.Write("bad", "{}");
  EXPECT_EQ(ReadProfile(bad).status().code(), StatusCode::kCorrupt);
  EXPECT_EQ(ReadProfile(bad).status().message().find(bad), 0U);
  const std::string large = folder.Write("large", std::string((16U << 20) + 1, ' '));
  EXPECT_NE(ReadProfile(large).status().message().find("longer than 16.0 MiB"), std::string::npos);
  EXPECT_FALSE(ReadProfile(folder.Path("")).ok());
}

}  // namespace
}  // namespace kvrun::offline
