#include "runtime/kv/clusters/cluster_extents.h"

#include <algorithm>

#include "platform/base/check.h"

namespace kvrun {

ClusterSet::ClusterSet(const KvPlan& plan, uint32_t n_layers, std::span<const float> factors)
    : plan_(plan), workspace_(plan.of_clusters().map_shape(plan)), factors_(factors.begin(), factors.end()) {
  KVRUN_CHECK(factors.empty() || factors.size() == size_t{n_layers} * plan.heads_per_sequence());
  maps_.reserve(size_t{n_layers} * plan.n_streams);  // copies would lose the room that maps have reserved
  while (maps_.size() < maps_.capacity()) maps_.emplace_back(plan.of_clusters().map_shape(plan), workspace_);
}

ClusterExtents::ClusterExtents(const KvPlan& plan, const ClusterSet& clusters, ClusterFiles& store)
    : plan_(plan),
      clusters_(clusters),
      store_(store),
      records_(size_t{plan.n_streams} * plan.choice.n_chosen),
      weights_(records_.size()),
      n_records_(plan.n_streams) {
  // A cluster that is read has one record at least that found no slot, and is read with all of them.
  memory_.reserve(size_t{plan.n_streams} * plan.choice.n_chosen);
  fetches_.reserve(size_t{plan.n_streams} * plan.choice.n_chosen);
}

std::span<const uint32_t> ClusterExtents::Records(const StreamStep& step, std::span<const uint32_t> extents) {
  const size_t begin = (size_t{step.row} * plan_.heads_per_sequence() + step.head) * plan_.choice.n_chosen;
  size_t n = 0;
  for (const uint32_t cluster : extents) {
    const uint32_t n_records = clusters_.n_records(step.layer, step.stream, cluster);
    KVRUN_CHECK(n + n_records <= plan_.choice.n_chosen);  // what clusters weigh in the choice
    for (uint32_t i = 0; i < n_records; ++i) {
      weights_[begin + n] = n_records;
      records_[begin + n++] = cluster * plan_.records_per_extent() + i;
    }
  }
  n_records_[step.row * plan_.heads_per_sequence() + step.head] = static_cast<uint32_t>(n);
  return std::span(records_).subspan(begin, n);
}

std::span<const uint32_t> ClusterExtents::Weights(const StreamStep& step) const {
  const size_t stream = size_t{step.row} * plan_.heads_per_sequence() + step.head;
  return std::span(weights_).subspan(stream * plan_.choice.n_chosen, n_records_[stream]);
}

uint32_t ClusterExtents::n_entries(const StreamStep& step, uint32_t record) const {
  const uint32_t n_stored =
      clusters_.map(step.layer, step.stream).cluster(record / plan_.records_per_extent()).n_stored;
  const uint32_t before = record % plan_.records_per_extent() * plan_.slots.record.group_tokens;
  return std::min(plan_.slots.record.group_tokens, n_stored - before);
}

Status ClusterExtents::Fetch(uint32_t layer, std::span<const GroupFetch> fetches) {
  fetches_.clear();
  memory_.clear();
  for (const GroupFetch& fetch : fetches) {
    const uint32_t cluster = fetch.group / plan_.records_per_extent();
    if (fetches_.empty() || fetches_.back().stream != fetch.stream || fetches_.back().cluster != cluster) {
      const uint32_t n_records = clusters_.n_records(layer, fetch.stream, cluster);
      KVRUN_CHECK(memory_.size() + n_records <= memory_.capacity());  // so that spans stay
      const size_t begin = memory_.size();
      memory_.resize(begin + n_records, nullptr);
      fetches_.push_back({fetch.stream, cluster, n_records, std::span(memory_).subspan(begin, n_records)});
    }
    const auto begin = static_cast<size_t>(fetches_.back().memory.data() - memory_.data());
    memory_[begin + fetch.group % plan_.records_per_extent()] = fetch.memory;
  }
  return store_.Fetch(layer, fetches_);
}

}  // namespace kvrun
