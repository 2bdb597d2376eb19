// The SPIR-V of every variant in shaders/variants.txt, embedded in the binary by the build.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace kvrun {

struct ShaderCode {
  std::string_view name;  // <op>_<type>_<path>
  std::span<const uint32_t> words;
};

// Nothing where no variant has this name.
const ShaderCode* FindShader(std::string_view name);
// The same kernel with what it only reads in texel buffers: its name with _texel after it; empty if there is
// none.
std::string TexelVariant(std::string_view name);
// Sorted by name.
std::span<const ShaderCode> AllShaders();
// One line that names the compiler: some drivers accept the code of some compilers only.
std::string_view ShaderCompilerVersion();
// Changes whenever a name or a word of any variant does; for keys of caches.
uint64_t ShaderSetHash();

}  // namespace kvrun
