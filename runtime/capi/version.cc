// __has_include: the library builds without the Vulkan device, too.
#include <string>

#include "runtime/include/kvrun/kvrun.h"
#if __has_include("runtime/device/vulkan/shader_library.h")
#include "runtime/device/vulkan/shader_library.h"
#define KVRUN_HAS_SHADERS 1
#endif

#define KVRUN_STRING_INNER(x) #x
#define KVRUN_STRING(x) KVRUN_STRING_INNER(x)
#define KVRUN_VERSION_STRING        \
  KVRUN_STRING(KVRUN_VERSION_MAJOR) \
  "." KVRUN_STRING(KVRUN_VERSION_MINOR) "." KVRUN_STRING(KVRUN_VERSION_PATCH)

namespace {

std::string MakeVersion() {
#ifdef KVRUN_HAS_SHADERS
  return KVRUN_VERSION_STRING " (" + std::string(kvrun::ShaderCompilerVersion()) + ")";
#else
  return KVRUN_VERSION_STRING " (no shaders)";
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
