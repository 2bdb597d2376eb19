#include "runtime/device/vulkan/shader_library.h"

#include <xxhash.h>

#include <algorithm>

namespace kvrun {

// AllShaders and ShaderCompilerVersion are in the file that the build makes from shaders/variants.txt.

const ShaderCode* FindShader(std::string_view name) {
  const std::span<const ShaderCode> shaders = AllShaders();
  const auto found = std::lower_bound(
      shaders.begin(), shaders.end(), name,
      [](const ShaderCode& shader, std::string_view wanted) { return shader.name < wanted; });
  return found != shaders.end() && found->name == name ? &*found : nullptr;
}

std::string TexelVariant(std::string_view name) {
  std::string texel = std::string(name) + "_texel";
  return FindShader(texel) != nullptr ? texel : "";
}

uint64_t ShaderSetHash() {
  static const uint64_t hash = [] {
    XXH64_hash_t chained = 0;
    for (const ShaderCode& shader : AllShaders()) {
      chained = XXH64(shader.name.data(), shader.name.size(), chained);
      chained = XXH64(shader.words.data(), shader.words.size_bytes(), chained);
    }
    return chained;
  }();
  return hash;
}

}  // namespace kvrun
