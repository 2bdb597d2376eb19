// Reads arbitrary bytes as a file of adapters.
#include <cstddef>
#include <cstdint>
#include <string>

#include "runtime/kv/math/adapter.h"
#include "tests/fuzz/input_as_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size_bytes);

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size_bytes) {
  const std::string path = kvrun::fuzz::InputAsFile(data, size_bytes);
  if (path.empty()) return 0;
  (void)kvrun::ReadWholeAdapter(path);
  return 0;
}
