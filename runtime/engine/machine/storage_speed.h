// How fast the storage under the KV is, as far as kvswap's default depends on it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "platform/base/status.h"
#include "platform/io/block_file.h"

namespace kvrun {

// Random reads of 4 KiB per second, 16 in flight. Below the first, storage is slow in the way of eMMC and SD
// cards (a few thousand; SATA and NVMe disks do 50,000 and more), below the second in that of hard disks (a
// hundred to a few hundred).
inline constexpr double kFlashReadsPerSecond = 15000.0;
inline constexpr double kCardReadsPerSecond = 1500.0;

// Entries in a group of kvswap where none is given: 4, on eMMC and cards 8, as in the paper, on hard
// disks 16. Where each read costs the same whatever its length, half as many of twice the length bring the
// same entries in half the time; where reads are cheap, small groups select better.
uint32_t GroupTokensFor(double reads_per_s);

// "flash reads 4,200 blocks of 4 KiB a second: groups of 8, as on eMMC". For groups that are not of 4.
std::string GroupNote(double reads_per_s);

// Writes a few MiB to a file of which nothing is used yet, and reads from it: 0.1 seconds where storage is
// fast, three times that where it is slow, as that is kept and so must not be a busy machine's doing; a
// second or two on a hard disk. The best of several windows (BestReadsPerSecond).
Result<double> MeasureReadsPerSecond(BlockFile& file);

struct SpeedQuestion {
  std::string folder;   // of the KV; it need not be there
  std::string version;  // of kvrun
  bool may_measure = true;
  std::optional<std::string> path;  // where speeds are kept between runs; nothing: nowhere
};

// Of the storage under a folder, read in the mode of `file`, which lies there: what this process was told
// before, else what is kept, else what is measured with `file`, and then kept. Nothing where all of these
// fail. A process is told the same whenever it asks. Any thread.
std::optional<double> ReadsPerSecondOf(BlockFile& file, const SpeedQuestion& question);

// $XDG_CACHE_HOME/kvrun/storage_speed.json; nothing where there is no folder for it.
std::optional<std::string> SpeedsPath();

}  // namespace kvrun
