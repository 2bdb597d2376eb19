#include <string>

#include "runtime/include/kvrun/kvrun.h"
#ifndef KVRUN_WITHOUT_VULKAN
#include "runtime/device/vulkan/shader_library.h"
#endif

#define KVRUN_STRING_INNER(x) #x
#define KVRUN_STRING(x) KVRUN_STRING_INNER(x)
#define KVRUN_VERSION_STRING        \
  KVRUN_STRING(KVRUN_VERSION_MAJOR) \
  "." KVRUN_STRING(KVRUN_VERSION_MINOR) "." KVRUN_STRING(KVRUN_VERSION_PATCH)

namespace {

std::string MakeVersion() {
#ifndef KVRUN_WITHOUT_VULKAN
  return KVRUN_VERSION_STRING " (" + std::string(kvrun::ShaderCompilerVersion()) + ")";
#else
  return KVRUN_VERSION_STRING " (without Vulkan)";
#endif
}

}  // namespace

extern "C" const char* kvrun_version(void) {
  try {
    static const std::string version = MakeVersion();
    return version.c_str();
  } catch (...) {
    return KVRUN_VERSION_STRING;
  }
}
