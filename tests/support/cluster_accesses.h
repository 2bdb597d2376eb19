// Which clusters the steps of decoding select, and how clusters change meanwhile: simulated, from a seed.
//
// A topic drifts over a circle on which each cluster has a place, and at times jumps. A step selects those
// whose scores are largest until their records are as many as may be: near the topic, with a noise that lasts
// for some steps, and small ones more often. Each step appends an entry to a cluster, which is then
// likelier to be selected for a while (DynaKV, Table 2), and now and then divides it.
#pragma once

#include <cstdint>
#include <vector>

#include "platform/base/random.h"

namespace kvrun::testing {

class ClusterAccesses {
 public:
  static constexpr uint32_t kRecordEntries = 4;
  static constexpr uint32_t kMostEntries = 64;
  static constexpr uint32_t kMostRecords = kMostEntries / kRecordEntries;  // of a cluster

  ClusterAccesses(uint32_t n_clusters, uint32_t max_records, uint64_t seed);

  struct Step {
    std::vector<uint32_t> clusters;    // selected, ascending
    uint32_t appended = 0;             // after the selection
    uint32_t divided_to = UINT32_MAX;  // the new cluster, which has the entries that `appended` gave up
  };
  Step Next();

  // Of a cluster, now.
  uint32_t n_records(uint32_t cluster) const {
    return (clusters_[cluster].n_entries + kRecordEntries - 1) / kRecordEntries;
  }
  uint32_t n_clusters() const { return static_cast<uint32_t>(clusters_.size()); }

 private:
  struct Simulated {
    uint32_t n_entries = 0;
    double angle = 0.0;
    double noise = 0.0;
    double boost = 0.0;  // since the last entry
    double score = 0.0;
  };

  double Fraction() { return static_cast<double>(random_.Next() >> 11) * 0x1p-53; }
  double Symmetric() { return 2 * Fraction() - 1; }
  void Score();
  std::vector<uint32_t> Select() const;
  void Append(Step& step);

  Random random_;
  uint32_t max_records_;
  double topic_ = 0.0;
  std::vector<Simulated> clusters_;
};

}  // namespace kvrun::testing
