// The KV of the method `full`: every entry of every layer in device memory, one buffer per layer.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "platform/base/status.h"
#include "runtime/device/device.h"

namespace kvrun {

class ResidentCache {
 public:
  // A layer that exceeds what a device can bind is refused with the number of tokens that would fit; the sum
  // over layers fails when the driver has no more memory.
  static Result<ResidentCache> Create(Device& device, const KvShape& shape, uint32_t n_layers);

  const KvShape& shape() const { return shape_; }
  Buffer* layer(uint32_t index) { return layers_[index].get(); }
  uint64_t size_bytes() const { return shape_.size_bytes() * layers_.size(); }

 private:
  KvShape shape_;
  std::vector<std::unique_ptr<Buffer>> layers_;
};

}  // namespace kvrun
