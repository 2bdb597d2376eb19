// What types and choices of the KV cache are called, in options, descriptions and reports.
#pragma once

#include <string_view>

#include "runtime/device/device.h"
#include "runtime/kv/math/cluster_map.h"
#include "runtime/kv/plan/kept_choices.h"
#include "runtime/store/cluster_store.h"

namespace kvrun {

std::string_view KvTypeName(KvType type);                     // "f16", "f32", "fp8", "int8", "int4"
std::string_view HeadReductionName(HeadReduction reduction);  // "sum", "softmax", "gqa", "per-kv-head"
std::string_view ClusterLayoutName(ClusterLayout layout);     // "dual-head", "cluster"
std::string_view ClusterUpdateName(ClusterUpdate update);     // "adaptive", "static", "local"
std::string_view KeptSharesName(KeptShares shares);           // "even", "heads", "layers"
std::string_view KeptPrecisionsName(
    KeptPrecisions precisions);  // "bytes", "entries", "original", "quantised"
std::string_view AttentionMomentsName(AttentionMoments moments);  // "keys", "rows"

}  // namespace kvrun
