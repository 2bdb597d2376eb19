// How fast flash is read, and a layer computed.
#pragma once

#include <cstdint>

namespace kvrun {

struct FlashTimes {
  double reads_per_s = 0.0;  // of 4 KiB at random, many in flight
  double bytes_per_s = 0.0;  // of longer ones; 0: as many bytes as those of 4 KiB
  double layer_us = 0.0;     // of one token
  // The device computes on the cores that read: reads take its time, however well they are hidden.
  bool share_cores = false;

  // Of one record.
  double ReadMicroseconds(uint64_t bytes) const;
};

}  // namespace kvrun
