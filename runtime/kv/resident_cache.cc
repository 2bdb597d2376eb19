#include "runtime/kv/resident_cache.h"

#include <fmt/format.h>

#include <utility>

#include "platform/base/units.h"

namespace kvrun {

Result<ResidentCache> ResidentCache::Create(Device& device, const KvShape& shape, uint32_t n_layers) {
  const uint64_t layer_bytes = shape.size_bytes();
  if (layer_bytes > device.info().max_buffer_bytes) {
    const uint64_t bytes_per_token = layer_bytes / shape.n_ctx;
    return Status(StatusCode::kOutOfMemory,
                  fmt::format("the KV of one layer takes {} for {} tokens in {}, and {} takes buffers of at "
                              "most {}; use a context of at most {} tokens, or fewer sequences",
                              FormatBytes(layer_bytes), shape.n_ctx, Counted(shape.n_sequences, "sequence"),
                              device.info().name, FormatBytes(device.info().max_buffer_bytes),
                              device.info().max_buffer_bytes / bytes_per_token));
  }
  ResidentCache cache;
  cache.shape_ = shape;
  for (uint32_t i = 0; i < n_layers; ++i) {
    auto buffer = device.CreateBuffer(layer_bytes, BufferUse::kDevice, "kv");
    if (!buffer.ok()) {
      return buffer.status().WithContext(fmt::format("allocating the KV cache of {} ({} tokens in {})",
                                                     FormatBytes(layer_bytes * n_layers), shape.n_ctx,
                                                     Counted(shape.n_sequences, "sequence")));
    }
    cache.layers_.push_back(std::move(buffer).value());
  }
  return cache;
}

}  // namespace kvrun
