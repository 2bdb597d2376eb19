// A layer of a prompt as it lies on the device once it was computed, for what is made of it.
#pragma once

#include <cstdint>
#include <span>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/engine/offloaded/prefill_spill.h"

namespace kvrun {

class LayerTiles {
 public:
  virtual ~LayerTiles() = default;

  virtual const KvTiling& tiling() const = 0;
  // K and V of a tile. The first is there all the time; the others take turns in one buffer.
  virtual Buffer* kv(uint32_t tile) const = 0;
  // Of entries before the window only those of these groups, ascending, are in the first tile, from its
  // beginning on; what the window holds follows them. Only with KvTiling::n_left_out.
  virtual std::span<const uint32_t> selected() const { return {}; }
  // These planes of a tile that is not the first come into its buffer; false: they were not put aside, but
  // are to be had where the tile is stored. Between layers.
  virtual Result<bool> Show(uint32_t tile, const TilePlanes& planes) = 0;
};

}  // namespace kvrun
