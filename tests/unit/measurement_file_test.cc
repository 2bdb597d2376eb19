#include "runtime/engine/machine/measurement_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/program_runner.h"

namespace kvrun {
namespace {

using Json = nlohmann::json;

Json Entry(const std::string& name, int size = 1) { return {{"key", {{"name", name}}}, {"size", size}}; }

constexpr MeasurementForm kForm{
    .format = "toy sizes", .version = 3, .holds = "sizes of toys", .known = [](const Json& json) {
      return Entry(json.at("key").at("name").get<std::string>(), json.at("size").get<int>());
    }};

class MeasurementFile : public ::testing::Test {
 protected:
  Status Keep(const Json& entry) const { return KeepMeasurement(kForm, path_, entry); }
  std::vector<Json> Kept() const {
    Result<std::vector<Json>> entries = ReadMeasurements(kForm, path_);
    EXPECT_TRUE(entries.ok()) << entries.status().message();
    return entries.ok() ? *entries : std::vector<Json>();
  }
  StatusCode CodeOf(const std::string& text) const {
    return ReadMeasurements(kForm, folder_.Write("other.json", text)).status().code();
  }

  TemporaryFolder folder_;
  std::string path_ = folder_.Path("cache/kvrun/sizes.json");
};

TEST_F(MeasurementFile, WhatIsKeptIsFound) {
  EXPECT_EQ(ReadMeasurements(kForm, path_).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(FindMeasurement(kForm, path_, {{"name", "a"}}).status().code(), StatusCode::kNotFound);
  ASSERT_TRUE(Keep(Entry("a", 5)).ok());
  ASSERT_TRUE(Keep(Entry("b")).ok());
  EXPECT_EQ(Kept(), (std::vector<Json>{Entry("a", 5), Entry("b")}));
  EXPECT_EQ(FindMeasurement(kForm, path_, {{"name", "a"}}).value(), Entry("a", 5));
  EXPECT_EQ(FindMeasurement(kForm, path_, {{"name", "c"}}).status().code(), StatusCode::kNotFound);
  struct stat info {};
  ASSERT_EQ(::stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
}

TEST_F(MeasurementFile, ANewEntryTakesTheOldOnesPlaceAndGoesLast) {
  for (const Json& entry : {Entry("a"), Entry("b"), Entry("a", 7)}) ASSERT_TRUE(Keep(entry).ok());
  EXPECT_EQ(Kept(), (std::vector<Json>{Entry("b"), Entry("a", 7)}));
}

TEST_F(MeasurementFile, TheOldestEntriesGo) {
  for (size_t i = 0; i < kMaxMeasurements + 3; ++i) ASSERT_TRUE(Keep(Entry(std::to_string(i))).ok());
  const std::vector<Json> entries = Kept();
  ASSERT_EQ(entries.size(), kMaxMeasurements);
  EXPECT_EQ(entries.front(), Entry("3"));
  EXPECT_EQ(entries.back(), Entry(std::to_string(kMaxMeasurements + 2)));
}

TEST_F(MeasurementFile, NamesNeedNotBeText) {
  const std::string name = "a\xff\"\\\n";
  for (const int size : {1, 2, 3}) ASSERT_TRUE(Keep(Entry(name, size)).ok());
  EXPECT_EQ(Kept().size(), 1U);
  const Result<Json> found = FindMeasurement(kForm, path_, {{"name", name}});
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_EQ((*found)["size"], 3);
}

// Not in the words of the JSON library.
TEST_F(MeasurementFile, DamageIsExplained) {
  const auto message = [this](const std::string& text) {
    return ReadMeasurements(kForm, folder_.Write("other.json", text)).status().message();
  };
  const std::string wrong = R"({"format": "toy sizes", "version": 3, "entries": [{"name": 1}]})";
  EXPECT_TRUE(message(wrong).ends_with("a value is missing or has another type")) << message(wrong);
  EXPECT_TRUE(message("[1, 2").ends_with("it is not JSON (byte 6)")) << message("[1, 2");
  EXPECT_EQ(message("[]").find("json.exception"), std::string::npos) << message("[]");
}

TEST_F(MeasurementFile, DamageIsRefused) {
  const auto file = [](const Json& entries) {
    return Json{{"format", "toy sizes"}, {"version", 3}, {"entries", entries}};
  };
  const std::string good = file({Entry("a"), Entry("b")}).dump();
  EXPECT_EQ(CodeOf(good), StatusCode::kOk);
  for (size_t length = 0; length < good.size(); ++length) {
    EXPECT_EQ(CodeOf(good.substr(0, length)), StatusCode::kCorrupt) << length;
  }
  Json other_format = file({Entry("a")});
  other_format["format"] = "toy prices";
  Json other_version = file({Entry("a")});
  other_version["version"] = 4;
  for (const Json& json : {other_format, other_version, file({Entry("a"), Json::object()}),
                           file({Entry("a"), {{"key", {{"name", 7}}}, {"size", 1}}}),
                           file(std::vector<Json>(kMaxMeasurements + 1, Entry("a"))), file(1)}) {
    EXPECT_EQ(CodeOf(json.dump()), StatusCode::kCorrupt) << json;
  }
  for (const std::string text : {"[]", "null", "\xff\xfe"}) EXPECT_EQ(CodeOf(text), StatusCode::kCorrupt);
  EXPECT_EQ(CodeOf(std::string(2 << 20, ' ') + good), StatusCode::kCorrupt);
  std::filesystem::resize_file(folder_.Path("other.json"), uint64_t{1} << 42);  // more than memory has
  EXPECT_EQ(ReadMeasurements(kForm, folder_.Path("other.json")).status().code(), StatusCode::kCorrupt);
}

TEST_F(MeasurementFile, DamageIsNamedAndReplaced) {
  path_ = folder_.Write("sizes.json", "half a fi");
  const auto damaged = FindMeasurement(kForm, path_, {{"name", "a"}});
  EXPECT_EQ(damaged.status().code(), StatusCode::kCorrupt);
  EXPECT_NE(damaged.status().message().find(path_), std::string::npos) << damaged.status().message();
  EXPECT_NE(damaged.status().message().find("no readable sizes of toys"), std::string::npos);
  ASSERT_TRUE(Keep(Entry("b")).ok());
  EXPECT_EQ(Kept(), std::vector<Json>{Entry("b")});
}

// Else a file that nests deep would be read, and fill the stack when it is written.
TEST_F(MeasurementFile, WhatIsNotKnownOfAnEntryGoes) {
  constexpr size_t kDepth = 400'000;
  ASSERT_TRUE(Keep(Entry("a")).ok());
  std::string text = ReadWholeFile(path_);
  const size_t at = text.find("\"key\"");
  ASSERT_NE(at, std::string::npos) << text;
  text.insert(at, "\"more\": " + std::string(kDepth, '[') + std::string(kDepth, ']') + ", ");
  path_ = folder_.Write("deep.json", text);
  ASSERT_TRUE(Keep(Entry("b")).ok());
  EXPECT_EQ(Kept(), (std::vector<Json>{Entry("a"), Entry("b")}));
  EXPECT_EQ(ReadWholeFile(path_).find("more"), std::string::npos);
}

TEST_F(MeasurementFile, AFolderThatCannotBeMadeIsAnError) {
  path_ = folder_.Write("file", "") + "/kvrun/sizes.json";
  EXPECT_FALSE(Keep(Entry("a")).ok());
  EXPECT_FALSE(ReadMeasurements(kForm, path_).ok());
}

TEST_F(MeasurementFile, WhoWritesAtTheSameTimeLeavesAWholeFile) {
  constexpr int kWriters = 4;
  constexpr int kEntriesEach = 50;
  ASSERT_TRUE(Keep(Entry("first")).ok());
  std::atomic<int> n_writing = kWriters;
  std::atomic<int> n_failed = 0;
  std::vector<std::thread> writers;
  for (int writer = 0; writer < kWriters; ++writer) {
    writers.emplace_back([&, writer] {
      for (int i = 0; i < kEntriesEach; ++i) {
        // Of another length each time: what is written over another's file shows.
        const std::string name =
            std::to_string(writer) + std::string(static_cast<size_t>(1 + i * writer), 'x');
        if (!Keep(Entry(name)).ok()) ++n_failed;
      }
      --n_writing;
    });
  }
  while (n_writing > 0) {
    const Result<std::vector<Json>> seen = ReadMeasurements(kForm, path_);
    if (!seen.ok()) ++n_failed;
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(n_failed, 0);
  EXPECT_GT(Kept().size(), 1U);
  const std::filesystem::path folder = std::filesystem::path(path_).parent_path();
  const std::filesystem::directory_iterator files(folder);
  EXPECT_EQ(std::distance(begin(files), end(files)), 1) << "something is left beside it";
}

}  // namespace
}  // namespace kvrun
