// How much attention a layer's entries receive from some of a prompt's rows, over tiles of its KV.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/model/model_config.h"

namespace kvrun {

class RowMass {
 public:
  // Both must outlive it.
  RowMass(Device& device, const ModelConfig& config) : device_(device), config_(config) {}

  // A tile of a layer's KV, on the device: entries from position `begin` on.
  struct Keys {
    const Buffer* kv = nullptr;
    KvShape shape;
    uint32_t begin = 0;
    uint32_t n_entries = 0;
  };
  using TileFn = std::function<Result<Keys>(uint32_t tile)>;

  // queries: float [n_rows, n_heads * head_dim], rotated, each at its position. `tiles` is asked for each of
  // n_tiles tiles in order, twice. mass: [n_moments, n_kv_heads, end], of entries before `end`.
  Status Run(std::span<const float> queries, std::span<const uint32_t> positions, uint32_t n_tiles,
             const TileFn& tiles, const MassForm& form, uint32_t end, std::span<float> mass);

 private:
  Result<std::unique_ptr<Buffer>> MakeBuffer(uint64_t size_bytes, BufferUse use) {
    return device_.CreateBuffer(size_bytes, use, "kv");
  }

  Device& device_;
  const ModelConfig& config_;
};

}  // namespace kvrun
