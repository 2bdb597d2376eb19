#include "runtime/kv/groups/static_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

namespace kvrun {

StaticChoice::StaticChoice(const KvPlan& plan, uint32_t n_layers)
    : plan_(plan),
      n_layers_(n_layers),
      precisions_(plan, n_layers),
      has_share_(!plan.of_groups().statics.share.by_prompt),
      ranked_(size_t{n_layers} * plan.n_streams) {
  for (Lists& lists : tiers_) lists.resize(ranked_.size());
}

// Until prompts have said the share, all that it could be.
uint32_t StaticChoice::most_entries() const {
  return has_share_ ? plan_.of_groups().statics.most_entries
                    : plan_.of_groups().statics.n_total * plan_.record.group_tokens;
}

// mass: [n_moments, n_kv_heads, end], of which the stream's heads are added up.
void StaticChoice::ScoreStream(uint32_t head, uint32_t end, std::span<const float> mass, uint32_t n_rows,
                               std::span<float> scores) const {
  std::fill(scores.begin(), scores.end(), 0.0F);
  const size_t squares = size_t{model_heads()} * end;
  for (uint32_t i = head * plan_.record.n_heads; i < (head + 1) * plan_.record.n_heads; ++i) {
    for (uint32_t position = 0; position < end; ++position) {
      const size_t at = size_t{i} * end + position;
      double score = mass[at];
      if (precisions_.go_by_score()) {
        score = HeavyHitterScore(score, mass[squares + at], n_rows, ArkvConstants().gamma);
      }
      // What is no number would have no order.
      scores[position] += std::isfinite(score) ? static_cast<float>(score) : 0.0F;
    }
  }
}

// The n positions with the largest scores of [begin, scores.size()), by rank.
void StaticChoice::KeepLargest(std::span<const float> scores, uint32_t begin, uint32_t n,
                               std::vector<uint32_t>* kept) {
  const auto end = static_cast<uint32_t>(scores.size());
  // What has no score is many entries, where a prompt has attended to a part of the text.
  order_.clear();
  for (uint32_t position = begin; position < end; ++position) {
    if (scores[position] > 0.0F) order_.push_back(position);
  }
  if (order_.size() < n) {
    order_.resize(end - std::min(begin, end));
    std::iota(order_.begin(), order_.end(), begin);
  }
  n = std::min(n, static_cast<uint32_t>(order_.size()));
  std::partial_sort(order_.begin(), order_.begin() + n, order_.end(), [&](uint32_t a, uint32_t b) {
    return scores[a] != scores[b] ? scores[a] > scores[b] : a > b;
  });
  kept->assign(order_.begin(), order_.begin() + n);
}

Status StaticChoice::Choose(uint32_t layer, const KvRange& prompt, PromptEntries& entries) {
  const uint32_t heads = plan_.heads_per_sequence();
  const uint32_t first_stream = prompt.sequence * heads;
  const uint32_t end = plan_.FirstWindowGroup(prompt.end) * plan_.record.group_tokens;
  const uint32_t begin = plan_.choice.n_pinned * plan_.record.group_tokens;
  for (uint32_t stream = first_stream; stream < first_stream + heads; ++stream) {
    ranked_[ListOf(layer, stream)].clear();
    Split(layer, stream, {});
  }
  if (end <= begin) return Status::Ok();
  KVRUN_RETURN_IF_ERROR(Rank(layer, prompt, begin, end, entries));
  return has_share_ ? Status::Ok() : MeasureOverlap(end, entries);
}

Status StaticChoice::Rank(uint32_t layer, const KvRange& prompt, uint32_t begin, uint32_t end,
                          PromptEntries& entries) {
  const uint32_t heads = plan_.heads_per_sequence();
  const uint32_t first_stream = prompt.sequence * heads;
  const MassForm form = precisions_.mass_form();
  std::vector<float> mass(size_t{form.n_moments} * model_heads() * end);
  KVRUN_RETURN_IF_ERROR(entries.Mass(form, end, PromptEntries::Rows::kAll, mass));
  const uint32_t n_rows = entries.observed().n_rows;
  if (precisions_.go_by_score()) precisions_.NoteAttention(layer, prompt.sequence, end, mass, n_rows);
  std::vector<float> scores(end);
  for (uint32_t head = 0; head < heads; ++head) {
    ScoreStream(head, end, mass, n_rows, scores);
    KeepLargest(scores, begin, most_entries(), &ranked_[ListOf(layer, first_stream + head)]);
    if (has_share_ && !precisions_.go_by_score())
      Split(layer, first_stream + head, precisions_.CountsOf(layer, {}));
  }
  order_ = {};
  return Status::Ok();
}

// Where a selection would hold all of it, rows do not differ, and say nothing.
Status StaticChoice::MeasureOverlap(uint32_t end, PromptEntries& entries) {
  const uint32_t k = plan_.of_groups().statics.n_total * plan_.record.group_tokens;
  if (end <= k) return Status::Ok();
  std::vector<uint32_t> of_rows[2];
  std::vector<float> mass[2];
  for (const bool is_last : {false, true}) {
    mass[is_last].resize(size_t{model_heads()} * end);
    const auto rows = is_last ? PromptEntries::Rows::kLast : PromptEntries::Rows::kFirst;
    KVRUN_RETURN_IF_ERROR(entries.Mass(MassForm(), end, rows, mass[is_last]));
    for (float& value : mass[is_last]) value = std::isfinite(value) ? value : 0.0F;
  }
  if (!overlap_) overlap_.emplace();
  for (uint32_t head = 0; head < model_heads(); ++head) {
    for (const bool is_last : {false, true}) {
      KeepLargest(std::span(mass[is_last]).subspan(size_t{head} * end, end), 0, k, &of_rows[is_last]);
      std::sort(of_rows[is_last].begin(), of_rows[is_last].end());
    }
    std::vector<uint32_t> both;
    std::set_intersection(of_rows[0].begin(), of_rows[0].end(), of_rows[1].begin(), of_rows[1].end(),
                          std::back_inserter(both));
    overlap_->sum += both.size();
    overlap_->n_entries += k;
    ++overlap_->n_heads;
  }
  order_ = {};
  return Status::Ok();
}

std::optional<double> StaticChoice::measured_share() const {
  if (!overlap_ || overlap_->n_heads == 0 || overlap_->n_entries == 0) return std::nullopt;
  const auto n_heads = static_cast<double>(overlap_->n_heads);
  const double group = plan_.record.group_tokens;
  const double mean = group * std::floor(static_cast<double>(overlap_->sum) / n_heads / group);
  return mean * n_heads / static_cast<double>(overlap_->n_entries);
}

std::vector<PrecisionShares> StaticChoice::Settle() {
  has_share_ = !plan_.of_groups().statics.share.by_prompt || measured_share();
  const std::vector<double> shares = precisions_.original_shares();
  std::vector<PrecisionShares> counts(n_layers_);
  for (uint32_t layer = 0; layer < n_layers_; ++layer) {
    counts[layer] = precisions_.CountsOf(layer, shares);
    for (uint32_t stream = 0; stream < plan_.n_streams; ++stream) Split(layer, stream, counts[layer]);
  }
  return counts;
}

// The best keep their precision, the next have fewer bits.
void StaticChoice::Split(uint32_t layer, uint32_t stream, const PrecisionShares& counts) {
  const std::span<const uint32_t> ranked = ranked_[ListOf(layer, stream)];
  size_t first = 0;
  for (const KeptTier tier : kKeptTiers) {
    const uint32_t most = tier == KeptTier::kLow ? counts.n_quantised : counts.n_original;
    const auto some = ranked.subspan(first, std::min<size_t>(most, ranked.size() - first));
    std::vector<uint32_t>& positions = tiers_[static_cast<size_t>(tier)][ListOf(layer, stream)];
    positions.assign(some.begin(), some.end());
    std::sort(positions.begin(), positions.end());
    first += some.size();
  }
}

std::vector<uint32_t> StaticChoice::AllPositions(uint32_t layer, uint32_t stream) const {
  std::vector<uint32_t> all;
  const auto originals = positions(layer, stream, KeptTier::kOriginal);
  const auto lows = positions(layer, stream, KeptTier::kLow);
  std::merge(originals.begin(), originals.end(), lows.begin(), lows.end(), std::back_inserter(all));
  return all;
}

void StaticChoice::ChooseEvenly(uint32_t sequence, uint32_t end) {
  const uint32_t heads = plan_.heads_per_sequence();
  const uint32_t begin = std::min(plan_.choice.n_pinned * plan_.record.group_tokens, end);
  const uint32_t n = std::min(plan_.of_groups().statics.most_entries, end - begin);
  for (uint32_t layer = 0; layer < n_layers_; ++layer) {
    for (uint32_t stream = sequence * heads; stream < (sequence + 1) * heads; ++stream) {
      std::vector<uint32_t>& ranked = ranked_[ListOf(layer, stream)];
      ranked.resize(n);
      for (uint32_t i = 0; i < n; ++i) {
        ranked[i] = begin + static_cast<uint32_t>(uint64_t{i} * (end - begin) / n);
      }
      if (has_share_ && !precisions_.go_by_score()) Split(layer, stream, precisions_.CountsOf(layer, {}));
    }
  }
}

void StaticChoice::Truncate(uint32_t sequence, uint32_t end) {
  const uint32_t heads = plan_.heads_per_sequence();
  const auto is_gone = [end](uint32_t position) { return position >= end; };
  for (uint32_t layer = 0; layer < n_layers_; ++layer) {
    for (uint32_t stream = sequence * heads; stream < (sequence + 1) * heads; ++stream) {
      std::erase_if(ranked_[ListOf(layer, stream)], is_gone);
      for (Lists& lists : tiers_) std::erase_if(lists[ListOf(layer, stream)], is_gone);
    }
  }
}

Status StaticChoice::VisitState(StateVisitor& visitor) {
  enum Item : uint16_t { kHasShare = 100, kOverlap, kRanked, kTiers };  // a number for each tier
  std::vector<bool> has_share{has_share_};
  KVRUN_RETURN_IF_ERROR(visitor.Flags({StatePart::kStaticSet, kHasShare}, &has_share));
  has_share_ = has_share[0];
  std::vector<uint64_t> overlap;
  if (overlap_) overlap = {overlap_->sum, overlap_->n_heads, overlap_->n_entries};
  KVRUN_RETURN_IF_ERROR(visitor.Vector({StatePart::kStaticSet, kOverlap}, &overlap, 3));
  if (overlap.size() == 3) overlap_ = Overlap{overlap[0], overlap[1], overlap[2]};
  for (uint32_t layer = 0; layer < n_layers_; ++layer) {
    for (uint32_t stream = 0; stream < plan_.n_streams; ++stream) {
      const size_t list = ListOf(layer, stream);
      const auto key = [&](uint16_t item) { return StateKey{StatePart::kStaticSet, item, layer, stream}; };
      KVRUN_RETURN_IF_ERROR(visitor.Vector(key(kRanked), &ranked_[list], plan_.n_ctx));
      std::vector<uint32_t> ranked = ranked_[list];
      std::sort(ranked.begin(), ranked.end());
      if (!AreAscending(ranked, plan_.n_ctx)) {
        return {StatusCode::kCorrupt,
                fmt::format("the static set of layer {}, stream {} has an entry twice", layer, stream)};
      }
      for (size_t tier = 0; tier < tiers_.size(); ++tier) {
        std::vector<uint32_t>& positions = tiers_[tier][list];
        KVRUN_RETURN_IF_ERROR(
            visitor.Vector(key(static_cast<uint16_t>(kTiers + tier)), &positions, plan_.n_ctx));
        if (AreAscending(positions, plan_.n_ctx)) continue;
        return {StatusCode::kCorrupt,
                fmt::format("the static set of layer {}, stream {} is in no order", layer, stream)};
      }
    }
  }
  return precisions_.VisitState(visitor);
}

}  // namespace kvrun
