// What becomes of a prompt's K and V while they are computed.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "platform/base/status.h"
#include "runtime/device/device.h"

namespace kvrun {

// The calls of one layer come in this order; LoadEarlier, Tap and StoreTile for each tile in turn. Later,
// too, LoadEarlier may be called for a tile that ends before the window that the prompt begins with.
class PrefillSink {
 public:
  virtual ~PrefillSink() = default;
  virtual Status BeginLayer(uint32_t layer) = 0;
  // The tile's entries before the prompt come into a buffer.
  virtual Status LoadEarlier(uint32_t layer, uint32_t tile, Buffer* to) = 0;
  // Which rows of a chunk GatherRows gathers, in ascending order; `first` is the position of the chunk's
  // first row. Where there are none, the next chunk need not wait for what was gathered before.
  virtual void ChooseTapped(uint32_t first, uint32_t n_rows, std::vector<uint32_t>* tapped) = 0;
  struct TappedChunk {
    const Buffer* step = nullptr;  // names the rows that were chosen
    const Buffer* qkv = nullptr;   // StepPlace::qkv
    uint32_t n_tapped = 0;
    uint32_t n_rows = 0;
    uint32_t skip_rows = 0;  // the first rows are sinks
  };
  // Records what is to be done with a chunk's Q, K and V, as RopeAndStore has left them.
  virtual Status Tap(CommandList& list, const TappedChunk& chunk) = 0;
  // What Tap adds up over the layer's chunks is there, while the device still computes the last of them:
  // before its EndTap. Not where the plan has several tiles, whose attention takes the room of what follows a
  // layer.
  virtual Status NoteSums(uint32_t /*layer*/) { return Status::Ok(); }
  // What Tap has recorded was carried out for one more chunk: which rows ChooseTapped had chosen.
  virtual Status EndTap(uint32_t first, std::span<const uint32_t> tapped) = 0;
  // The tile's entries up to the prompt's end are there.
  virtual Status StoreTile(uint32_t layer, uint32_t tile) = 0;
};

}  // namespace kvrun
