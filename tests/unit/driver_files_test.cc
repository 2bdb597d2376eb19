// Where the loader would look for drivers, and what a driver is as files.
#include "platform/vulkan/driver_files.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/program_runner.h"

namespace kvrun {
namespace {

using Paths = std::vector<std::string>;

Paths PlacesWith(const std::map<std::string, std::string>& variables) {
  return DriverPlaces([&](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

TEST(DriverPlaces, AreTheLoadersOrThoseNamed) {
  const Paths usual = {"/etc/xdg/vulkan/icd.d", "/usr/local/etc/vulkan/icd.d", "/etc/vulkan/icd.d",
                       "/usr/local/share/vulkan/icd.d", "/usr/share/vulkan/icd.d"};
  EXPECT_EQ(PlacesWith({}), usual);
  const Paths at_home = PlacesWith({{"HOME", "/home/a"}, {"VK_ADD_DRIVER_FILES", "/x.json"}});
  EXPECT_EQ(at_home, (Paths{"/x.json", "/home/a/.config/vulkan/icd.d", usual[0], usual[1], usual[2],
                            "/home/a/.local/share/vulkan/icd.d", usual[3], usual[4]}));
  EXPECT_EQ(PlacesWith({{"XDG_CONFIG_DIRS", "/c"},
                        {"XDG_DATA_DIRS", "/d::/e"},
                        {"XDG_DATA_HOME", "/f"},
                        {"XDG_CONFIG_HOME", "/g"}}),
            (Paths{"/g/vulkan/icd.d", "/c/vulkan/icd.d", usual[1], usual[2], "/f/vulkan/icd.d",
                   "/d/vulkan/icd.d", "/e/vulkan/icd.d"}));
  EXPECT_EQ(PlacesWith({{"VK_ICD_FILENAMES", "/a.json:/b"}, {"VK_ADD_DRIVER_FILES", "/x.json"}}),
            (Paths{"/a.json", "/b"}));
  EXPECT_EQ(PlacesWith({{"VK_ICD_FILENAMES", "/a.json"}, {"VK_DRIVER_FILES", "/c.json"}}), Paths{"/c.json"});
}

TEST(DriverFiles, AreManifestsWithTheirLibraries) {
  const TemporaryFolder folder;
  const std::string library = folder.Write("lib.so", "12345");
  const auto manifest = [](const std::string& path) {
    return R"({"ICD": {"library_path": ")" + path + "\"}}";
  };
  const std::string beside = folder.Write("a.json", manifest("./lib.so"));
  const std::string absolute = folder.Write("b.json", manifest(library));
  const std::string missing = folder.Write("c.json", manifest("libnowhere.so.7"));
  const std::string damaged = folder.Write("d.json", "{\"ICD\": [");
  const std::string other = folder.Write("e.json", R"({"ICD": {"library_path": 7}})");
  folder.Write("f.txt", manifest(library));
  const auto drivers = FindDriverFiles({absolute, folder.Path(""), "/nowhere", "/dev/null"});
  ASSERT_EQ(drivers.size(), 5U) << "b.json counts once";
  EXPECT_EQ(drivers[0].manifest, absolute);
  EXPECT_EQ(drivers[0].library, library);
  EXPECT_EQ(drivers[0].library_bytes, 5U);
  EXPECT_NE(drivers[0].library_mtime_ns, 0);
  for (const DriverFile& driver : drivers) {
    const bool has_library = driver.manifest.ends_with("a.json") || driver.manifest.ends_with("b.json");
    EXPECT_EQ(!driver.library.empty(), has_library) << driver.manifest;
    EXPECT_NE(driver.manifest_bytes, 0U) << driver.manifest;
  }
}

}  // namespace
}  // namespace kvrun
