// How fast storage was measured to be, kept between runs: docs/formats/storage_speed.md.
#pragma once

#include <string>
#include <vector>

#include "platform/base/status.h"
#include "platform/io/block_file.h"

namespace kvrun {

// What was measured: another one in any field is measured anew.
struct SpeedKey {
  std::string storage;  // StorageName of the folder
  std::string device;   // its number, "254:1"
  std::string mode;     // how sessions read: "io_uring direct"
  std::string kvrun;    // version

  bool operator==(const SpeedKey&) const = default;
};
// Of a folder, or the nearest above it that is there.
Result<SpeedKey> SpeedKeyOf(const std::string& folder, const IoMode& mode, const std::string& version);

struct SpeedEntry {
  SpeedKey key;
  double reads_per_s = 0.0;  // random, of 4 KiB, 16 in flight

  bool operator==(const SpeedEntry&) const = default;
};

// As runtime/engine/machine/measurement_file.h says of all such files. Speeds that are no speeds are refused.
Result<std::vector<SpeedEntry>> ReadSpeeds(const std::string& path);
Result<double> FindSpeed(const std::string& path, const SpeedKey& key);
Status WriteSpeed(const std::string& path, const SpeedEntry& entry);

}  // namespace kvrun
