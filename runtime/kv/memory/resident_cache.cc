#include "runtime/kv/memory/resident_cache.h"

#include <fmt/format.h>

#include <utility>

#include "platform/base/units.h"

namespace kvrun {
namespace {

// In whole steps.
uint32_t MostTokens(const Device& device, KvShape shape) {
  constexpr uint32_t kStepTokens = 256;
  shape.n_ctx = shape.n_ctx / kStepTokens * kStepTokens;
  while (shape.n_ctx > 0 && !device.FitsKv(shape)) shape.n_ctx -= kStepTokens;
  return shape.n_ctx;
}

}  // namespace

Result<ResidentCache> ResidentCache::Create(Device& device, const KvShape& shape, uint32_t n_layers) {
  const uint64_t layer_bytes = shape.size_bytes();
  if (!device.FitsKv(shape)) {
    return Status(
        StatusCode::kOutOfMemory,
        fmt::format("the KV of one layer takes {} for {} tokens in {}, and {} takes at most {} tokens; use "
                    "a context of no more, or fewer sequences",
                    FormatBytes(layer_bytes), shape.n_ctx, Counted(shape.n_sequences, "sequence"),
                    device.info().name, MostTokens(device, shape)));
  }
  ResidentCache cache;
  cache.shape_ = shape;
  for (uint32_t i = 0; i < n_layers; ++i) {
    auto buffer = device.CreateBuffer(layer_bytes, BufferUse::kKv, "kv");
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
