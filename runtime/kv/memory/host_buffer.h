// A kShared buffer as the host sees it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/store/state_visitor.h"

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

// Bytes of a kShared buffer from offset_bytes on, as an item of a state.
inline Status VisitBytes(StateVisitor& visitor, const StateKey& key, Buffer& buffer, uint64_t offset_bytes,
                         uint64_t size_bytes) {
  if (!visitor.is_loading()) KVRUN_RETURN_IF_ERROR(buffer.Invalidate(offset_bytes, size_bytes));
  KVRUN_RETURN_IF_ERROR(visitor.Bytes(key, buffer.host().subspan(offset_bytes, size_bytes)));
  return visitor.is_loading() ? buffer.Flush(offset_bytes, size_bytes) : Status::Ok();
}

}  // namespace kvrun
