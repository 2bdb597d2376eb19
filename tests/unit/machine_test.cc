#include "runtime/engine/machine/machine.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "tests/support/program_runner.h"

namespace kvrun {
namespace {

constexpr const char* kMountinfo =
    "22 27 0:21 / /proc rw,relatime - proc proc rw\n"
    "25 24 0:23 / /dev/shm rw,relatime - tmpfs tmpfs rw,size=24684096k\n"
    "27 1 254:1 / / rw,relatime shared:1 master:2 - ext4 /dev/vda1 rw,discard\n"
    "30 27 259:3 / /data rw - f2fs /dev/nvme0n1p3 rw\n"
    "31 27 0:40 /@home /home rw - btrfs /dev/sdb2 rw,subvol=/@home\n"
    "32 27 0:41 / /mnt/net rw - nfs4 server:/export rw\n"
    "33 27 8:1 / /mnt/two\\040words rw - vfat /dev/sda1 rw\n"
    "37 27 0:44 / /mnt/odd rw - nfs4 server:/\xfcml rw\n"
    "34 27 0:42 / /layers rw - overlay overlay rw,lowerdir=/a\n"
    "not a mount\n"
    "35 30 0:43 / /data/covered rw - tmpfs none rw\n"
    "36 30 8:2 / /data/covered rw - xfs /dev/sda2 rw\n";

std::string NameOf(std::string_view path) {
  return StorageNameFrom(kMountinfo, path, [](const std::string& number) -> std::string {
    static const std::map<std::string, std::string> disks = {
        {"254:1", "vda"}, {"259:3", "nvme0n1"}, {"8:1", "sda"}, {"8:2", "sda"}};
    const auto found = disks.find(number);
    return found == disks.end() ? "" : found->second;
  });
}

TEST(StorageName, IsOfTheDeepestMountAboveThePath) {
  EXPECT_EQ(NameOf("/"), "ext4 on vda");
  EXPECT_EQ(NameOf("/var/tmp/kv"), "ext4 on vda");
  EXPECT_EQ(NameOf("/data"), "f2fs on nvme0n1");
  EXPECT_EQ(NameOf("/data/kv"), "f2fs on nvme0n1");
  EXPECT_EQ(NameOf("/database"), "ext4 on vda");
  EXPECT_EQ(NameOf("/mnt/two words/kv"), "vfat on sda");
}

TEST(StorageName, OfTwoMountsAtOnePointTheLastCounts) { EXPECT_EQ(NameOf("/data/covered/kv"), "xfs on sda"); }

TEST(StorageName, WithoutABlockDeviceTheSourceIsNamedIfItSaysAnything) {
  EXPECT_EQ(NameOf("/home/me"), "btrfs on sdb2");
  EXPECT_EQ(NameOf("/mnt/net/kv"), "nfs4 on server:/export");
  EXPECT_EQ(NameOf("/dev/shm/kv"), "tmpfs");
  EXPECT_EQ(NameOf("/layers"), "overlay");
  EXPECT_EQ(NameOf("/mnt/odd"), "nfs4 on server:/\xEF\xBF\xBDml") << "a name that files can keep";
}

TEST(StorageName, IsUnknownWhereTheSystemDoesNotSay) {
  const auto no_disk = [](const std::string&) -> std::string { return ""; };
  EXPECT_EQ(StorageNameFrom("", "/", no_disk), "unknown");
  EXPECT_EQ(StorageNameFrom("30 27 259:3 / /data rw - f2fs /dev/a rw\n", "/", no_disk), "unknown");
  EXPECT_EQ(StorageNameFrom("27 1 254:1 / / rw -\n27 1 - ext4 /dev/vda rw\n", "/", no_disk), "unknown");
}

TEST(StorageName, AFolderThatIsNotThereYetLiesWhereTheOneAboveItDoes) {
  const TemporaryFolder folder;
  const std::string there = StorageName(folder.Path(""));
  EXPECT_NE(there, "unknown");
  EXPECT_EQ(StorageName(folder.Path("not/there")), there);
  EXPECT_EQ(StorageName("/proc/self"), "proc");
}

TEST(CpuName, IsNotEmpty) { EXPECT_FALSE(CpuName().empty()); }

}  // namespace
}  // namespace kvrun
