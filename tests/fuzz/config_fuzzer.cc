// Reads arbitrary bytes as a config of kvadapt tune; what is read is written, and must be the same when read
// again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "runtime/engine/config/config_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size_bytes);

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size_bytes) {
  const std::string_view text(reinterpret_cast<const char*>(data), size_bytes);
  const auto config = kvrun::ConfigFromToml(text, "fuzz.toml");
  if (!config.ok()) return 0;
  const std::string written = kvrun::ConfigToToml(*config);
  const auto again = kvrun::ConfigFromToml(written, "again.toml");
  if (!again.ok() || kvrun::ConfigToToml(*again) != written) std::abort();
  return 0;
}
