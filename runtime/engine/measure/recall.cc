#include "runtime/engine/measure/recall.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "platform/base/check.h"
#include "runtime/model/tensor_type.h"

namespace kvrun {
namespace {

constexpr uint32_t kEntriesAtOnce = 256;

// The n of [first, end) with the largest scores, all in front: [0, first) too.
std::vector<uint32_t> Largest(std::span<const float> scores, uint32_t first, size_t n) {
  std::vector<uint32_t> groups(scores.size());
  std::iota(groups.begin(), groups.end(), 0U);
  n = std::clamp<size_t>(n, first, groups.size());
  std::nth_element(groups.begin() + first, groups.begin() + static_cast<std::ptrdiff_t>(n), groups.end(),
                   [&](uint32_t a, uint32_t b) { return scores[a] > scores[b]; });
  groups.resize(n);
  return groups;
}

}  // namespace

Result<HostKeys> HostKeys::Read(Device& device, const ModelConfig& config,
                                std::span<const Buffer* const> layers, const KvShape& shape,
                                uint32_t n_entries) {
  HostKeys keys;
  keys.n_entries_ = n_entries;
  keys.n_kv_heads_ = config.n_kv_heads;
  keys.head_dim_ = config.head_dim;
  // One entry to a record: K of each head, then V.
  const KvRecordShape record{KvType::kF16, KvType::kF16, config.n_kv_heads, config.head_dim, 1};
  KVRUN_ASSIGN_OR_RETURN(
      const std::unique_ptr<Buffer> records,
      device.CreateBuffer(kEntriesAtOnce * record.size_bytes(), BufferUse::kShared, "activations"));
  for (const Buffer* layer : layers) {
    std::vector<uint16_t> halves(size_t{config.kv_dim()} * n_entries);
    for (uint32_t begin = 0; begin < n_entries; begin += kEntriesAtOnce) {
      const uint32_t n = std::min(kEntriesAtOnce, n_entries - begin);
      KVRUN_ASSIGN_OR_RETURN(const std::unique_ptr<CommandList> list, device.CreateCommandList());
      KVRUN_RETURN_IF_ERROR(list->EncodeRecords(*layer, shape, begin, n, record, {}, records.get()));
      KVRUN_RETURN_IF_ERROR(list->Finish());
      KVRUN_RETURN_IF_ERROR(device.Execute(*list));
      KVRUN_RETURN_IF_ERROR(records->Invalidate(0, n * record.size_bytes()));
      for (uint32_t i = 0; i < n; ++i) {
        const auto* row = reinterpret_cast<const uint16_t*>(records->host().data() + i * record.size_bytes());
        for (uint32_t head = 0; head < config.n_kv_heads; ++head) {
          std::copy_n(row + 2 * head * record.row_words(KvType::kF16), config.head_dim,
                      halves.begin() + (size_t{head} * n_entries + begin + i) * config.head_dim);
        }
      }
    }
    keys.layers_.push_back(std::move(halves));
  }
  return keys;
}

void HostKeys::Load(uint32_t layer, uint32_t kv_head, uint32_t n_entries, std::span<float> keys) const {
  KVRUN_CHECK(n_entries <= n_entries_ && keys.size() >= size_t{n_entries} * head_dim_);
  const auto begin =
      layers_[layer].begin() + static_cast<std::ptrdiff_t>(size_t{kv_head} * n_entries_ * head_dim_);
  std::transform(begin, begin + static_cast<std::ptrdiff_t>(size_t{n_entries} * head_dim_), keys.begin(),
                 HalfToFloat);
}

// Appends the weights of the KV head's query heads.
void RecallMeter::AttendExactly(uint32_t layer, uint32_t kv_head, std::span<const float> queries,
                                uint32_t n_entries) {
  const uint32_t dim = config_.head_dim;
  const uint32_t group = config_.n_heads / config_.n_kv_heads;
  const float scale = 1.0F / std::sqrt(static_cast<float>(dim));
  key_rows_.resize(size_t{n_entries} * dim);
  keys_.Load(layer, kv_head, n_entries, key_rows_);
  for (uint32_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    const float* query = &queries[size_t{head} * dim];
    weights_.resize(weights_.size() + n_entries);
    const std::span<float> weights = std::span(weights_).last(n_entries);
    for (uint32_t entry = 0; entry < n_entries; ++entry) {
      const float* key = &key_rows_[size_t{entry} * dim];
      weights[entry] = scale * std::inner_product(query, query + dim, key, 0.0F);
    }
    const float maximum = *std::max_element(weights.begin(), weights.end());
    double sum = 0.0;
    for (float& weight : weights) sum += weight = std::exp(weight - maximum);
    for (float& weight : weights) weight = static_cast<float>(weight / sum);
  }
}

// Of what weights_ holds.
void RecallMeter::AddStream(std::span<const uint32_t> chosen, uint32_t n_entries, uint32_t n_before_window) {
  const uint32_t group_tokens = plan_.told_tokens();
  const auto n_heads = static_cast<uint32_t>(weights_.size() / n_entries);
  const auto n_pinned =
      std::min(plan_.choice.n_pinned * plan_.record.group_tokens / group_tokens, n_before_window);
  const uint32_t window_begin = n_before_window * group_tokens;

  std::vector<float> masses(n_before_window);  // of a group, over all heads
  std::vector<float> scores(n_before_window);  // its largest entry's
  double window_mass = 0.0;
  std::vector<float> entries(n_entries);
  for (uint32_t head = 0; head < n_heads; ++head) {
    for (uint32_t i = 0; i < n_entries; ++i) entries[i] += weights_[size_t{head} * n_entries + i];
  }
  for (uint32_t i = 0; i < window_begin; ++i) {
    masses[i / group_tokens] += entries[i];
    scores[i / group_tokens] = std::max(scores[i / group_tokens], entries[i]);
  }
  for (uint32_t i = window_begin; i < n_entries; ++i) window_mass += entries[i];

  const auto mass_of = [&](std::span<const uint32_t> groups) {
    double mass = window_mass;
    for (const uint32_t group : groups) mass += masses[group];
    return mass;
  };
  sums_.method += mass_of(chosen);
  sums_.oracle += mass_of(Largest(scores, n_pinned, chosen.size()));
  for (float& score : scores) score = static_cast<float>(random_());
  sums_.random += mass_of(Largest(scores, n_pinned, chosen.size()));
  const auto n_recent = std::min<size_t>(n_entries, chosen.size() * group_tokens + n_entries - window_begin);
  sums_.recent += std::accumulate(entries.end() - static_cast<std::ptrdiff_t>(n_recent), entries.end(), 0.0);
  n_heads_counted_ += n_heads;
}

void RecallMeter::Add(const StepProbe& probe) {
  const uint32_t n_entries = probe.position + 1;
  const uint32_t n_before_window =
      plan_.FirstWindowGroup(n_entries) * plan_.record.group_tokens / plan_.told_tokens();
  for (uint32_t layer = 0; layer < probe.queries.size(); ++layer) {
    const auto n_streams = static_cast<uint32_t>(probe.chosen[layer].size());
    for (uint32_t stream = 0; stream < n_streams; ++stream) {
      const uint32_t kv_heads = config_.n_kv_heads / n_streams;
      weights_.clear();
      for (uint32_t head = stream * kv_heads; head < (stream + 1) * kv_heads; ++head) {
        AttendExactly(layer, head, probe.queries[layer], n_entries);
      }
      AddStream(probe.chosen[layer][stream], n_entries, n_before_window);
    }
  }
  ++n_steps_;
}

Recall RecallMeter::Mean() const {
  const double n = static_cast<double>(std::max<uint64_t>(n_heads_counted_, 1));
  const auto mean = [n](double sum) { return std::min(sum / n, 1.0); };  // sums are rounded
  return {mean(sums_.method), mean(sums_.oracle), mean(sums_.recent), mean(sums_.random)};
}

}  // namespace kvrun
