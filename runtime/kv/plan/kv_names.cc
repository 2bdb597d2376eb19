#include "runtime/kv/plan/kv_names.h"

namespace kvrun {

std::string_view KvTypeName(KvType type) {
  switch (type) {
    case KvType::kF16: return "f16";
    case KvType::kF32: return "f32";
    case KvType::kFp8: return "fp8";
    case KvType::kInt8: return "int8";
    case KvType::kInt4: return "int4";
  }
  return "unknown";
}

std::string_view HeadReductionName(HeadReduction reduction) {
  switch (reduction) {
    case HeadReduction::kSum: return "sum";
    case HeadReduction::kSoftmax: return "softmax";
    case HeadReduction::kGqa: return "gqa";
    case HeadReduction::kPerKvHead: return "per-kv-head";
  }
  return "unknown";
}

std::string_view ClusterLayoutName(ClusterLayout layout) {
  switch (layout) {
    case ClusterLayout::kDualHead: return "dual-head";
    case ClusterLayout::kCluster: return "cluster";
    case ClusterLayout::kSequence: return "sequence";
  }
  return "unknown";
}

std::string_view ClusterUpdateName(ClusterUpdate update) {
  switch (update) {
    case ClusterUpdate::kAdaptive: return "adaptive";
    case ClusterUpdate::kStatic: return "static";
    case ClusterUpdate::kLocal: return "local";
  }
  return "unknown";
}

std::string_view KeptSharesName(KeptShares shares) {
  switch (shares) {
    case KeptShares::kEven: return "even";
    case KeptShares::kHeads: return "heads";
    case KeptShares::kLayers: return "layers";
  }
  return "unknown";
}

std::string_view KeptPrecisionsName(KeptPrecisions precisions) {
  switch (precisions) {
    case KeptPrecisions::kBytes: return "bytes";
    case KeptPrecisions::kEntries: return "entries";
    case KeptPrecisions::kOriginal: return "original";
    case KeptPrecisions::kQuantised: return "quantised";
  }
  return "unknown";
}

std::string_view AttentionMomentsName(AttentionMoments moments) {
  switch (moments) {
    case AttentionMoments::kKeys: return "keys";
    case AttentionMoments::kRows: return "rows";
  }
  return "unknown";
}

}  // namespace kvrun
