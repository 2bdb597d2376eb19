// What a shader binary says about its interface, to be compared with what C++ assumes.
//
// Names are not reported: optimised binaries carry none. Members come in the order of their declaration,
// which is the same in both languages, as both read shaders/shared/.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "platform/base/status.h"

namespace kvrun::testing {

// A scalar or vector; structs and arrays are flattened, offsets counted from the start of the block.
struct ReflectedMember {
  uint32_t offset = 0;
  uint32_t bytes = 0;

  bool operator==(const ReflectedMember&) const = default;
};

enum class BindingKind { kStorageBuffer, kUniformBuffer };

struct ReflectedBinding {
  BindingKind kind = BindingKind::kStorageBuffer;
  uint32_t set = 0;
  uint32_t binding = 0;
  std::vector<ReflectedMember> members;  // of uniform buffers only
};

struct ReflectedShader {
  // By set, then binding. Several views of one buffer (as words, as vectors) share a binding.
  std::vector<ReflectedBinding> bindings;
  std::vector<ReflectedMember> push_constants;
};

Result<ReflectedShader> ReflectShader(std::span<const uint32_t> words);

}  // namespace kvrun::testing
