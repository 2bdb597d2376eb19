// Reads arbitrary bytes as the files of the cache folder: times of devices and of computing, speeds of
// storage, and as times that one process hands to another.
#include <cstddef>
#include <cstdint>
#include <string>

#include "runtime/engine/device/device_times_file.h"
#include "runtime/engine/machine/compute_time_file.h"
#include "runtime/engine/machine/storage_speed_file.h"
#include "tests/fuzz/input_as_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size_bytes);

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size_bytes) {
  (void)kvrun::TimesFromText(std::string(reinterpret_cast<const char*>(data), size_bytes));
  const std::string path = kvrun::fuzz::InputAsFile(data, size_bytes);
  if (path.empty()) return 0;
  (void)kvrun::ReadTimes(path);
  (void)kvrun::ReadSpeeds(path);
  (void)kvrun::ReadComputeTimes(path);
  return 0;
}
