#include "runtime/kv/clusters/cluster_prompt.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "platform/base/check.h"
#include "platform/base/units.h"
#include "runtime/device/entry_space.h"
#include "runtime/device/record_codec.h"
#include "runtime/kv/math/cluster_placement.h"
#include "runtime/kv/math/key_division.h"
#include "runtime/kv/memory/host_buffer.h"

namespace kvrun {
namespace {

// Centroids change little afterwards.
constexpr uint32_t kMeansPasses = 4;
constexpr uint32_t kKeysOfPiece = 128;
// Fewer have nothing to be placed beside; of more, pairs would take too much time and memory.
constexpr uint32_t kClustersToPlace = 4;
constexpr uint32_t kMostClustersToPlace = 2048;

uint64_t PlacementBytes(uint32_t n_clusters, uint32_t dim) {
  const uint32_t n = std::min(n_clusters, kMostClustersToPlace);
  return CoRetrieval::MemoryBytes(n) + PlaceClustersBytes(n, dim) + uint64_t{4} * n * sizeof(float);
}

PromptClusterShape PromptShapeOf(const KvPlan& plan, uint32_t n_entries, uint32_t n_means, uint32_t room) {
  return {.dim = plan.record.head_dim,
          .n_entries = n_entries,
          .n_means = n_means,
          .max_entries = plan.of_clusters().max_entries,
          .room = room};
}

uint64_t SideFloats(const KvPlan& plan) {
  return (uint64_t{plan.record.head_dim} + 1) * plan.of_clusters().n_clusters;
}

}  // namespace

// First keys and means, with the sample, then with pieces, then with what is found; then what is found, with
// what places it, then with records.
uint64_t ClusterPrompt::MemoryBytes(const KvPlan& plan) {
  const uint32_t dim = plan.record.head_dim;
  const uint32_t n_clusters = plan.of_clusters().n_clusters;
  const uint64_t sample =
      std::min<uint64_t>(uint64_t{KMeans::kSampleOfCluster} * n_clusters, plan.n_ctx) * dim * sizeof(float);
  const uint64_t keys = KeyRows::MemoryBytes(plan.record, plan.n_ctx);
  const uint64_t means = KMeans::MemoryBytes(dim, n_clusters, plan.n_ctx);
  const uint64_t pieces = (SideFloats(plan) + uint64_t{kKeysOfPiece} * (dim + n_clusters)) * sizeof(float);
  const uint64_t found = FindPromptClustersBytes(PromptShapeOf(plan, plan.n_ctx, n_clusters, n_clusters));
  const uint64_t records = plan.n_ctx * plan.record.size_bytes();
  return std::max(keys + means + std::max({sample, pieces, found}),
                  found + std::max(PlacementBytes(n_clusters, dim), records));
}

Status ClusterPrompt::MakePieces() {
  const auto make = [&](std::unique_ptr<Buffer>& buffer, uint64_t n_floats) -> Status {
    KVRUN_ASSIGN_OR_RETURN(buffer, device_.CreateBuffer(n_floats * sizeof(float), BufferUse::kShared, "kv"));
    return Status::Ok();
  };
  const uint64_t n_clusters = plan_.of_clusters().n_clusters;
  KVRUN_RETURN_IF_ERROR(make(pieces_.key_side, dim() * n_clusters));
  KVRUN_RETURN_IF_ERROR(make(pieces_.bias, n_clusters));
  KVRUN_RETURN_IF_ERROR(make(pieces_.keys, uint64_t{kKeysOfPiece} * dim()));
  return make(pieces_.products, kKeysOfPiece * n_clusters);
}

std::span<const std::byte> ClusterPrompt::Record(uint32_t entry) const {
  const uint64_t bytes = plan_.record.size_bytes();
  return std::span(records_).subspan(entry * bytes, bytes);
}

void ClusterPrompt::Keys(uint32_t first, uint32_t n, std::span<float> keys) {
  for (uint32_t i = 0; i < n; ++i) {
    const std::span<float> key = keys.subspan(size_t{i} * dim(), dim());
    rows_.Decode(first + i, key);
    if (!mean_key_.empty()) OutOfSpace(mean_key_, key);
  }
}

void ClusterPrompt::Start(KMeans& means) {
  const std::span<const uint32_t> sample = means.sample();
  std::vector<float> keys(sample.size() * dim());
  for (size_t i = 0; i < sample.size(); ++i) Keys(sample[i], 1, std::span(keys).subspan(i * dim(), dim()));
  means.Start(keys);
}

Status ClusterPrompt::WriteSides(const KMeans& means) {
  const size_t n = means.n_clusters();
  const std::span<float> side = Floats(*pieces_.key_side);
  for (size_t cluster = 0; cluster < n; ++cluster) {
    for (size_t c = 0; c < dim(); ++c) side[c * n + cluster] = means.centroids()[cluster * dim() + c];
  }
  std::copy(means.half_norms().begin(), means.half_norms().end(), Floats(*pieces_.bias).begin());
  KVRUN_RETURN_IF_ERROR(FlushAll(*pieces_.key_side));
  return FlushAll(*pieces_.bias);
}

Result<std::span<const float>> ClusterPrompt::Products(uint32_t n, uint32_t n_clusters) {
  const KvShape keys{
      .type = KvType::kF32, .n_sequences = 1, .n_kv_heads = 1, .head_dim = dim(), .n_ctx = kKeysOfPiece};
  const IndexSides sides{.key_side = pieces_.key_side.get(), .bias = pieces_.bias.get()};
  KVRUN_RETURN_IF_ERROR(FlushAll(*pieces_.keys));
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<CommandList> list, device_.CreateCommandList());
  KVRUN_RETURN_IF_ERROR(
      list->ProjectKeys(*pieces_.keys, keys, 0, n, sides, n_clusters, pieces_.products.get()));
  KVRUN_RETURN_IF_ERROR(list->Finish());
  KVRUN_RETURN_IF_ERROR(device_.Execute(*list));
  const uint64_t count = uint64_t{n} * n_clusters;
  KVRUN_RETURN_IF_ERROR(pieces_.products->Invalidate(0, count * sizeof(float)));
  return std::span<const float>(Floats(*pieces_.products).first(count));
}

Status ClusterPrompt::Pass(KMeans& means, uint32_t n_entries) {
  KVRUN_RETURN_IF_ERROR(WriteSides(means));
  means.BeginPass();
  for (uint32_t first = 0; first < n_entries; first += kKeysOfPiece) {
    const uint32_t n = std::min(kKeysOfPiece, n_entries - first);
    const std::span<float> keys = Floats(*pieces_.keys).first(size_t{n} * dim());
    Keys(first, n, keys);
    KVRUN_ASSIGN_OR_RETURN(const std::span<const float> products, Products(n, means.n_clusters()));
    means.Add(first, keys, products);
  }
  return Status::Ok();
}

// As the device would: by mass for each slot, until the slots are spent.
void ClusterPrompt::Select(std::span<const float> heads, std::vector<float>* masses,
                           std::vector<uint32_t>* selected) const {
  const uint32_t n = clusters_.n_clusters();
  const auto n_records = [this](uint32_t cluster) {
    return CeilDiv(clusters_.size(cluster), plan_.slots.record.group_tokens);
  };
  masses->assign(n, 0.0F);
  std::vector<float> weights(n);
  for (size_t first = 0; first < heads.size(); first += dim()) {
    const std::span<const float> query = heads.subspan(first, dim());
    float largest = -std::numeric_limits<float>::infinity();
    for (uint32_t i = 0; i < n; ++i) {
      weights[i] = Dot(query, std::span(clusters_.centroids).subspan(size_t{i} * dim(), dim())) /
                       std::sqrt(static_cast<float>(dim())) +
                   std::log(static_cast<float>(clusters_.size(i)));
      largest = std::max(largest, weights[i]);
    }
    float sum = 0.0F;
    for (float& weight : weights) sum += weight = std::exp(weight - largest);
    for (uint32_t i = 0; i < n; ++i) (*masses)[i] += weights[i] / sum / static_cast<float>(n_records(i));
  }
  std::vector<uint32_t> best(n);
  std::iota(best.begin(), best.end(), 0U);
  std::sort(best.begin(), best.end(), [masses](uint32_t a, uint32_t b) {
    return (*masses)[a] != (*masses)[b] ? (*masses)[a] > (*masses)[b] : a < b;
  });
  selected->clear();
  uint32_t n_slots = 0;
  for (const uint32_t cluster : best) {
    n_slots += n_records(cluster);
    if (n_slots > plan_.choice.n_chosen) break;
    selected->push_back(cluster);
  }
  std::sort(selected->begin(), selected->end());
}

std::vector<uint32_t> ClusterPrompt::Order(const PromptEntries& entries, uint32_t head) const {
  const uint32_t n = clusters_.n_clusters();
  std::vector<uint32_t> order(n);
  std::iota(order.begin(), order.end(), 0U);
  const std::span<const float> queries = entries.queries();
  if (queries.empty() || n < kClustersToPlace || n > kMostClustersToPlace) return order;
  const size_t n_queries = entries.n_queries();
  const size_t columns = queries.size() / n_queries;
  const size_t group = columns / plan_.heads_per_sequence();
  CoRetrieval together(n);
  std::vector<float> masses;
  std::vector<uint32_t> selected;
  for (size_t i = 0; i < n_queries; ++i) {
    Select(queries.subspan(i * columns + head * group, group), &masses, &selected);
    together.Add(selected);
  }
  return PlaceClusters(together, clusters_.centroids);
}

Status ClusterPrompt::Divide(PromptEntries& entries, uint32_t head, const EntryRange& range, uint32_t room,
                             uint64_t seed, std::span<const float> mean_key) {
  const uint32_t n = range.end - range.begin;
  const ClustersPlan& plan = plan_.of_clusters();
  KVRUN_CHECK(n > 0 && uint64_t{room} * plan.max_entries >= n);
  clusters_ = {};
  records_ = {};
  mean_key_.assign(mean_key.begin(), mean_key.end());
  rows_.Reset(n);
  KVRUN_RETURN_IF_ERROR(entries.VisitRecords(head, range.begin, range.end, PromptEntries::Want::kKeys,
                                             [&](uint32_t first, std::span<const std::byte> records) {
                                               rows_.Put(first - range.begin, records);
                                               return Status::Ok();
                                             }));
  KMeans means(dim(), std::min(CeilDiv(n, plan.mean_entries), room), n, seed);
  Start(means);
  KVRUN_RETURN_IF_ERROR(MakePieces());
  for (uint32_t pass = 0; pass < kMeansPasses; ++pass) {
    if (pass > 0) means.EndPass();
    KVRUN_RETURN_IF_ERROR(Pass(means, n));
  }
  pieces_ = {};
  clusters_ = FindPromptClusters(PromptShapeOf(plan_, n, means.n_clusters(), room), means.nearest(),
                                 [this](std::span<const uint32_t> of, std::span<float> keys) {
                                   for (size_t i = 0; i < of.size(); ++i)
                                     Keys(of[i], 1, keys.subspan(i * dim(), dim()));
                                 });
  rows_.Drop();
  return Status::Ok();
}

Status ClusterPrompt::LoadRecords(PromptEntries& entries, uint32_t head, const EntryRange& range) {
  const uint64_t bytes = plan_.record.size_bytes();
  records_.resize((range.end - range.begin) * bytes);
  return entries.VisitRecords(head, range.begin, range.end, PromptEntries::Want::kKeysAndValues,
                              [&](uint32_t first, std::span<const std::byte> records) {
                                std::copy(
                                    records.begin(), records.end(),
                                    records_.begin() + static_cast<ptrdiff_t>((first - range.begin) * bytes));
                                return Status::Ok();
                              });
}

}  // namespace kvrun
