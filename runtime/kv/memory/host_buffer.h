// A kShared buffer as the host sees it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "platform/base/status.h"
#include "runtime/device/device.h"

namespace kvrun {

inline std::span<uint32_t> Words(Buffer& buffer) {
  const std::span<std::byte> bytes = buffer.host();
  return {reinterpret_cast<uint32_t*>(bytes.data()), bytes.size() / sizeof(uint32_t)};
}

inline std::span<float> Floats(Buffer& buffer) {
  const std::span<std::byte> bytes = buffer.host();
  return {reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float)};
}

inline Status FlushAll(Buffer& buffer) { return buffer.Flush(0, buffer.size_bytes()); }

}  // namespace kvrun
