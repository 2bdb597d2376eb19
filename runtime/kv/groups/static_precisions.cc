#include "runtime/kv/groups/static_precisions.h"

#include <algorithm>
#include <cstddef>

namespace kvrun {

StaticPrecisions::StaticPrecisions(const KvPlan& plan, uint32_t n_layers)
    : plan_(plan), n_layers_(n_layers), entry_record_(plan.entry_record()), has_attention_(plan.n_sequences) {
  if (go_by_score()) attention_.resize(size_t{n_layers} * plan.n_sequences);
}

MassForm StaticPrecisions::mass_form() const {
  if (!go_by_score()) return {};
  return {.n_moments = plan_.of_groups().statics.moments == AttentionMoments::kRows ? 4U : 2U};
}

void StaticPrecisions::NoteAttention(uint32_t layer, uint32_t sequence, uint32_t end,
                                     std::span<const float> mass, uint32_t n_rows) {
  const size_t n_first = size_t{model_heads()} * end;
  attention_[size_t{sequence} * n_layers_ + layer] =
      plan_.of_groups().statics.moments == AttentionMoments::kRows
          ? AttentionOverRows(mass, model_heads(), n_rows)
          : AttentionOverKeys(mass.first(n_first), model_heads());
  has_attention_[sequence] = true;
}

std::vector<double> StaticPrecisions::original_shares() const {
  std::vector<double> shares;
  if (!go_by_score()) return shares;
  uint32_t n = 0;
  for (uint32_t sequence = 0; sequence < plan_.n_sequences; ++sequence) {
    if (!has_attention_[sequence]) continue;
    const std::vector<double> of_sequence = OriginalShares(
        std::span(attention_).subspan(size_t{sequence} * n_layers_, n_layers_), ArkvConstants());
    shares.resize(n_layers_);
    for (uint32_t layer = 0; layer < n_layers_; ++layer) shares[layer] += of_sequence[layer];
    ++n;
  }
  for (double& share : shares) share = std::min(share / n, 1.0);
  return shares;
}

PrecisionShares StaticPrecisions::CountsOf(uint32_t layer, std::span<const double> original_shares) const {
  const uint32_t n = plan_.of_groups().statics.n_entries;
  if (!go_by_score()) return {.n_original = n};
  const double share = original_shares.empty() ? 1.0 : original_shares[layer];
  switch (plan_.of_groups().statics.precisions) {
    case KeptPrecisions::kOriginal: return {.n_original = n};
    case KeptPrecisions::kQuantised: return {.n_quantised = n};
    case KeptPrecisions::kEntries: return SharesOfEntries(share, n);
    case KeptPrecisions::kBytes: break;
  }
  return SharesOfBytes(share, n, entry_record_.size_bytes(),
                       plan_.of_groups().statics.low_record.size_bytes());
}

Status StaticPrecisions::VisitState(StateVisitor& visitor) {
  enum Item : uint16_t { kHasAttention = 200, kAttention };
  if (!go_by_score()) return Status::Ok();
  KVRUN_RETURN_IF_ERROR(visitor.Flags({StatePart::kStaticSet, kHasAttention}, &has_attention_));
  std::vector<double> values;  // [n_sequences, n_layers, 3]
  for (const LayerAttention& one : attention_) {
    values.insert(values.end(), {one.entropy, one.variance, one.kurtosis});
  }
  KVRUN_RETURN_IF_ERROR(visitor.Array({StatePart::kStaticSet, kAttention}, std::span(values)));
  for (size_t i = 0; i < attention_.size(); ++i) {
    attention_[i] = {values[3 * i], values[3 * i + 1], values[3 * i + 2]};
  }
  return Status::Ok();
}

}  // namespace kvrun
