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

  // What rows give is a share of what they give in all: their sums, over all tiles. They may be added up
  // while tiles are there for others, and are kept until Run or Drop. queries: float [n_rows, n_heads *
  // head_dim], rotated, each at its position.
  Status BeginSums(std::span<const float> queries, std::span<const uint32_t> positions);
  Status AddSums(const Keys& tile);
  bool has_sums() const { return rows_ != nullptr; }

  // `tiles` is asked for each tile in order until one begins at `end`. mass: [n_moments, n_kv_heads, end], of
  // entries before `end`. Takes what has been added up.
  Status Run(const TileFn& tiles, const MassForm& form, uint32_t end, std::span<float> mass);
  void Drop();

 private:
  RowMassArgs ArgsOf(const Keys& tile) const;
  Status Execute(Status (CommandList::*operation)(const RowMassArgs&), const RowMassArgs& args);
  // Adds what a tile's entries before `end` receive to `given`, which is Run's mass on the device.
  Status GiveTile(const Keys& tile, uint32_t end, const MassForm& form, Buffer& given);
  Result<std::unique_ptr<Buffer>> MakeBuffer(uint64_t size_bytes, BufferUse use) {
    return device_.CreateBuffer(size_bytes, use, "kv");
  }

  Device& device_;
  const ModelConfig& config_;
  uint32_t n_rows_ = 0;
  bool is_first_ = true;          // tile of the sums
  std::unique_ptr<Buffer> rows_;  // their queries
  std::unique_ptr<Buffer> step_;
  std::unique_ptr<Buffer> sums_;
};

}  // namespace kvrun
