#include "runtime/kv/plan/kv_plan.h"

#include <algorithm>

namespace kvrun {
namespace {

uint64_t Sum(const std::vector<KvPart>& parts, bool KvPart::*counts) {
  uint64_t bytes = 0;
  for (const KvPart& part : parts) bytes += part.*counts ? part.bytes : 0;
  return bytes;
}

}  // namespace

bool KeepsRecordsInMemory(const KvOptions& options) {
  const KvType k_type = options.k_type.value_or(options.v_type.value_or(KvType::kF16));
  return k_type != options.v_type.value_or(k_type) || (k_type != KvType::kF16 && k_type != KvType::kF32);
}

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

double FlashTimes::ReadMicroseconds(uint64_t bytes) const {
  constexpr double kBlockBytes = 4096.0;
  const double rate = bytes_per_s > 0.0 ? bytes_per_s : reads_per_s * kBlockBytes;
  return 1e6 * std::max(1.0 / reads_per_s, static_cast<double>(bytes) / rate);
}

uint64_t KvPlan::prefill_bytes() const { return Sum(parts, &KvPart::in_prefill); }

uint64_t KvPlan::decode_bytes() const { return Sum(parts, &KvPart::in_decode); }

uint32_t KvPlan::n_choosable() const {
  if (extents_are_groups()) return n_groups();
  // Each cluster leaves one record unfilled at most.
  const uint64_t slot_tokens = slot_record.group_tokens;
  return static_cast<uint32_t>((n_ctx + clusters.n_clusters * (slot_tokens - 1)) / slot_tokens);
}

uint32_t KvPlan::EntriesOfSlots(uint32_t n_slots) const {
  const uint64_t most = uint64_t{n_slots} * slot_record.group_tokens;
  if (extents_are_groups()) return static_cast<uint32_t>(std::min<uint64_t>(most, n_ctx));
  if (n_slots == n_choosable()) return n_ctx;
  const double filled = 1.0 / (1.0 + (slot_record.group_tokens - 1) / (2.0 * clusters.mean_entries));
  return static_cast<uint32_t>(
      std::min(static_cast<double>(most) * filled + 0.5, static_cast<double>(n_ctx)));
}

uint32_t KvPlan::least_chosen() const {
  if (layer_extra.empty()) return n_chosen;
  return n_chosen + static_cast<uint32_t>(*std::min_element(layer_extra.begin(), layer_extra.end()));
}

uint32_t KvPlan::most_chosen() const {
  if (layer_extra.empty()) return n_chosen;
  return n_chosen + static_cast<uint32_t>(*std::max_element(layer_extra.begin(), layer_extra.end()));
}

uint32_t KvPlan::selected_entries() const {
  if (!extents_are_groups()) return EntriesOfSlots(n_chosen);
  return (n_chosen - n_pinned) * record.group_tokens + statics.n_entries;
}

std::vector<std::string> KvPlan::AllNotes() const {
  std::vector<std::string> all = notes;
  all.insert(all.end(), details.begin(), details.end());
  return all;
}

}  // namespace kvrun
