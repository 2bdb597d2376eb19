// How fast flash is read, what is read is opened, and a layer computed.
#pragma once

#include <cstdint>

namespace kvrun {

// Of units that are encrypted, on one core.
struct OpeningTimes {
  double unit_us = 0.0;  // of each, whatever its size
  double bytes_per_s = 0.0;

  // 0: nothing is encrypted.
  double Microseconds(uint64_t bytes) const;
  bool operator==(const OpeningTimes&) const = default;
};

struct FlashTimes {
  double reads_per_s = 0.0;  // of 4 KiB at random, many in flight
  double bytes_per_s = 0.0;  // of longer ones; 0: as many bytes as those of 4 KiB
  double layer_us = 0.0;     // of one token
  // The device computes on the cores that read: reads take its time, however well they are hidden.
  bool share_cores = false;
  OpeningTimes opening{};

  // Of one record, until it is open: the slower of both where the core that opens has nothing else to do,
  // else both. n_helpers: threads that open beside the one that reads.
  double ReadMicroseconds(uint64_t bytes, uint32_t n_helpers = 0) const;
  // Of one of many that lie one after another.
  double SequenceMicroseconds(uint64_t bytes, uint32_t n_helpers = 0) const;
  // As many helpers as it takes for flash to be the slower one, of cores that have nothing else to do.
  uint32_t HelpersFor(uint64_t bytes, uint32_t spare_cores) const;

 private:
  double FlashMicroseconds(uint64_t bytes) const;
  double WithOpening(double flash_us, uint64_t bytes, uint32_t n_helpers) const;
};

}  // namespace kvrun
