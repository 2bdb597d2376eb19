// Reads records of the clusters that were chosen.
//
// Threads: one at a time; during a step the KV thread alone.
#pragma once

#include "runtime/kv/contracts/extent_map.h"
#include "runtime/kv/serve/reading_server.h"

namespace kvrun {

class ClusterServer final : public ReadingServer {
 public:
  ClusterServer(const KvPlan& plan, uint32_t n_layers, RecentWindow& window, KvSlots& slots,
                KvSelector* selector, RecordFetcher& reader, ExtentMap& extents)
      : ReadingServer(plan, n_layers, window, slots, selector, reader), extents_(extents) {}

 private:
  Wanted RecordsOf(const StreamStep& step, std::span<const uint32_t> chosen,
                   const GroupSample& sample) override;
  bool IsRecord(const StreamStep& step, uint32_t record) override;
  uint32_t CountOf(const StreamStep& step, uint32_t record) const override {
    return extents_.n_entries(step, record);
  }
  uint64_t SizeOf(const StreamStep& step, uint32_t record) const override {
    return extents_.n_entries(step, record);
  }
  uint32_t n_extents(const StreamStep& step) const override { return extents_.n_extents(step); }
  void AddPositionsOf(const StreamStep& step, std::vector<uint32_t>* positions) override;

  ExtentMap& extents_;
};

}  // namespace kvrun
