// What may be said of entries that stay: how they are shared out, and which keep their precision.
#pragma once

#include <cstdint>

namespace kvrun {

// How methods that evict share their entries out. kEven: each list has as many. kHeads: a layer's KV heads
// share by their scores (Ada-KV). kLayers: layers share by the entropy of their scores, and heads as before
// (LAVa).
enum class KeptShares : uint8_t { kEven, kHeads, kLayers };
// Of ARKV: what of a layer's entries keeps its precision. kBytes: a share of the layer's memory, as the
// layer's attention says, and as many of 8 bits as fit into the rest. kEntries: a share of the entries, as
// the paper counts. kOriginal, kQuantised: all or none, to compare with (with kQuantised the window alone is
// exact).
enum class KeptPrecisions : uint8_t { kBytes, kEntries, kOriginal, kQuantised };
// How ARKV reads its Eq. 4 and 5: moments over keys (the paper), or over rows (the authors' code).
enum class AttentionMoments : uint8_t { kKeys, kRows };

}  // namespace kvrun
