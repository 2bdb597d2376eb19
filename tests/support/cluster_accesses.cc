#include "tests/support/cluster_accesses.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

namespace kvrun::testing {
namespace {

constexpr double kDrift = 0.03;      // of the topic in a step, at most; radians
constexpr double kJumps = 0.012;     // so many of the steps
constexpr double kNoise = 0.8;       // beside a topic of 1
constexpr double kNoiseKept = 0.87;  // from one step to the next
constexpr double kSmallGain = 0.3;   // for half as many records
constexpr double kDivided = 0.03;    // so many of the clusters that get an entry
// For 16 steps, a cluster that got an entry has a greater score, and is now and then of interest by chance.
constexpr double kBoost = 1.0;
constexpr double kBoostKept = 0.93;
constexpr double kBoostEnd = 0.3;
constexpr double kInterest = 2.0;
constexpr double kInterested = 0.06;  // so many of the steps

}  // namespace

ClusterAccesses::ClusterAccesses(uint32_t n_clusters, uint32_t max_records, uint64_t seed)
    : random_(seed), max_records_(max_records), clusters_(n_clusters) {
  for (Simulated& cluster : clusters_) {
    cluster.n_entries = 1 + static_cast<uint32_t>(kMostEntries * std::pow(Fraction(), 3));
    cluster.angle = std::numbers::pi * Symmetric();
    cluster.noise = Symmetric();
  }
}

void ClusterAccesses::Score() {
  topic_ += Fraction() < kJumps ? std::numbers::pi * Symmetric() : kDrift * Symmetric();
  for (uint32_t id = 0; id < n_clusters(); ++id) {
    Simulated& cluster = clusters_[id];
    cluster.noise = kNoiseKept * cluster.noise + std::sqrt(1 - kNoiseKept * kNoiseKept) * Symmetric();
    cluster.boost *= kBoostKept;
    if (cluster.boost > kBoostEnd && Fraction() < kInterested) cluster.noise += kInterest;
    cluster.score = std::cos(topic_ - cluster.angle) + kNoise * cluster.noise + cluster.boost -
                    kSmallGain * std::log2(n_records(id));
  }
}

std::vector<uint32_t> ClusterAccesses::Select() const {
  std::vector<uint32_t> order(clusters_.size());
  std::iota(order.begin(), order.end(), 0U);
  std::sort(order.begin(), order.end(),
            [this](uint32_t a, uint32_t b) { return clusters_[a].score > clusters_[b].score; });
  uint32_t n = 0;
  uint32_t sum = 0;
  while (n < order.size() && sum + n_records(order[n]) <= max_records_) sum += n_records(order[n++]);
  order.resize(n);
  std::sort(order.begin(), order.end());
  return order;
}

void ClusterAccesses::Append(Step& step) {
  step.appended = random_.Below(n_clusters());
  Simulated& cluster = clusters_[step.appended];
  ++cluster.n_entries;
  cluster.boost = kBoost;
  if (cluster.n_entries <= kMostEntries && !(cluster.n_entries > 1 && Fraction() < kDivided)) return;
  step.divided_to = n_clusters();
  Simulated other = cluster;
  other.n_entries = 1 + random_.Below(cluster.n_entries - 1);
  cluster.n_entries -= other.n_entries;
  clusters_.push_back(other);
}

ClusterAccesses::Step ClusterAccesses::Next() {
  Score();
  Step step = {.clusters = Select()};
  Append(step);
  return step;
}

}  // namespace kvrun::testing
