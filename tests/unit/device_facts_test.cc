#include "platform/vulkan/device_facts.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "platform/vulkan/device_facts_fields.h"

namespace kvrun {
namespace {

// Every field differs from its default, so that a field that is lost shows.
DeviceFacts Distinct() {
  DeviceFacts facts;
  uint32_t next = 1000;
  VisitDeviceFacts(facts, [&](std::string_view name, ClampRule, auto& field) {
    using Field = std::remove_reference_t<decltype(field)>;
    ++next;
    if constexpr (std::is_same_v<Field, bool>) {
      field = true;
    } else if constexpr (std::is_same_v<Field, std::string>) {
      field = std::string(name) + " \"quoted\" \u00fc";
    } else {
      field = static_cast<Field>(next);
    }
  });
  facts.api_version = (1u << 22) | (3u << 12) | 250;
  facts.type = DeviceType::kDiscreteGpu;
  facts.memory_heaps = {{uint64_t{1} << 40, 1}, {77, 0}};
  facts.memory_types = {{0, 1}, {1, 6}};
  facts.queue_families = {{7, 16, 36}};
  return facts;
}

TEST(DeviceFacts, JsonKeepsEveryField) {
  const DeviceFacts facts = Distinct();
  const std::string json = DeviceFactsToJson(facts);
  const auto read = DeviceFactsFromJson(json, "test");
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(DeviceFactsToJson(*read), json);
  EXPECT_EQ(read->memory_heaps[0].size_bytes, uint64_t{1} << 40);
  EXPECT_EQ(read->queue_families[0].timestamp_valid_bits, 36u);
  EXPECT_EQ(read->type, DeviceType::kDiscreteGpu);
  EXPECT_NE(json, DeviceFactsToJson({}));
}

TEST(DeviceFacts, EveryMissingOrWrongMemberIsNamed) {
  const auto good = nlohmann::json::parse(DeviceFactsToJson(Distinct()));
  for (const auto& [key, value] : good.items()) {
    auto missing = good;
    missing.erase(key);
    const auto without = DeviceFactsFromJson(missing.dump(), "phone.json");
    ASSERT_FALSE(without.ok()) << key;
    EXPECT_NE(without.status().message().find("phone.json"), std::string::npos);
    EXPECT_NE(without.status().message().find(key), std::string::npos) << without.status().message();
    auto wrong = good;
    wrong[key] = nlohmann::json::object();
    EXPECT_FALSE(DeviceFactsFromJson(wrong.dump(), "phone.json").ok()) << key;
  }
}

TEST(DeviceFacts, BadFilesAreErrors) {
  const std::string good = DeviceFactsToJson(Distinct());
  for (size_t length = 0; length + 2 < good.size(); length += 7) {
    EXPECT_FALSE(DeviceFactsFromJson(good.substr(0, length), "cut").ok()) << length;
  }
  EXPECT_FALSE(DeviceFactsFromJson("[]", "list").ok());
  EXPECT_FALSE(DeviceFactsFromJson("\"text\"", "string").ok());
  auto json = nlohmann::json::parse(good);
  json["surprise"] = 1;
  EXPECT_NE(DeviceFactsFromJson(json.dump(), "x").status().message().find("surprise"), std::string::npos);
  json.erase("surprise");
  json["memory_types"][0]["heap_index"] = 2;
  EXPECT_FALSE(DeviceFactsFromJson(json.dump(), "x").ok());
  json["memory_types"][0]["heap_index"] = 0;
  json["max_shared_memory_bytes"] = uint64_t{1} << 33;
  EXPECT_FALSE(DeviceFactsFromJson(json.dump(), "x").ok());
  const auto absent = LoadDeviceFacts("/no/such/file.json");
  ASSERT_FALSE(absent.ok());
  EXPECT_EQ(absent.status().code(), StatusCode::kNotFound);
}

TEST(DeviceFacts, SavesAndLoads) {
  const std::string path = ::testing::TempDir() + "/facts-" + std::to_string(::getpid()) + ".json";
  ASSERT_TRUE(SaveDeviceFacts(Distinct(), path).ok());
  const auto read = LoadDeviceFacts(path);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(DeviceFactsToJson(*read), DeviceFactsToJson(Distinct()));
  EXPECT_FALSE(SaveDeviceFacts(Distinct(), "/no/such/folder/facts.json").ok());
}

TEST(ClampFacts, OnlyEverMakesWorse) {
  DeviceFacts facts = Distinct();
  facts.max_shared_memory_bytes = 32768;
  facts.min_storage_buffer_offset_alignment_bytes = 64;
  facts.subgroup_ops = 0xff;
  const auto lower = ClampFacts(facts,
                                "max_shared_memory_bytes=16384,min_storage_buffer_offset_alignment_bytes=256,"
                                "timeline=0,subgroup_ops=17,api_version=1.1");
  ASSERT_TRUE(lower.ok()) << lower.status().message();
  EXPECT_EQ(lower->max_shared_memory_bytes, 16384u);
  EXPECT_EQ(lower->min_storage_buffer_offset_alignment_bytes, 256u);
  EXPECT_FALSE(lower->timeline);
  EXPECT_TRUE(lower->shader_float16);
  EXPECT_EQ(lower->subgroup_ops, 17u);
  EXPECT_EQ(FormatApiVersion(lower->api_version), "1.1.0");
  const auto higher = ClampFacts(*lower,
                                 "max_shared_memory_bytes=99999,min_storage_buffer_offset_alignment_bytes=4,"
                                 "timeline=1,subgroup_ops=255,api_version=1.3");
  ASSERT_TRUE(higher.ok());
  EXPECT_EQ(DeviceFactsToJson(*higher), DeviceFactsToJson(*lower));
  EXPECT_EQ(DeviceFactsToJson(*ClampFacts(facts, "")), DeviceFactsToJson(facts));
}

TEST(ClampFacts, MistakesAreExplained) {
  const auto unknown = ClampFacts({}, "floor,shared_memory=3");
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(unknown.status().message().find("shared_memory"), std::string::npos);
  EXPECT_NE(unknown.status().message().find("max_shared_memory_bytes"), std::string::npos);
  for (const char* bad : {"timeline", "timeline=", "timeline=no", "timeline=-1", "vendor_id=3", "name=x",
                          "api_version=one", "api_version=1.1.1.1", "max_allocations=99999999999999999999"}) {
    EXPECT_FALSE(ClampFacts({}, bad).ok()) << bad;
  }
}

}  // namespace
}  // namespace kvrun
