// Reads arbitrary bytes as a device profile of kvadapt probe.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "offline/device_profile.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size_bytes);

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size_bytes) {
  (void)kvrun::offline::ProfileFromJson(std::string_view(reinterpret_cast<const char*>(data), size_bytes));
  return 0;
}
