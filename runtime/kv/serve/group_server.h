// Reads groups, each of which is a record: those that were chosen, but for the exact ones, which lie with the
// window, and what is drawn besides. Entries of the static set do not count in slots.
//
// Threads: one at a time; during a step the KV thread alone.
#pragma once

#include "runtime/kv/groups/static_set.h"
#include "runtime/kv/serve/reading_server.h"

namespace kvrun {

class GroupServer final : public ReadingServer {
 public:
  // statics: may be null.
  GroupServer(const KvPlan& plan, uint32_t n_layers, RecentWindow& window, KvSlots& slots,
              KvSelector* selector, RecordFetcher& reader, StaticSet* statics)
      : ReadingServer(plan, n_layers, window, slots, selector, reader), statics_(statics) {}

 private:
  Wanted RecordsOf(const StreamStep& step, std::span<const uint32_t> chosen,
                   const GroupSample& sample) override;
  std::span<const GroupFetch> Reads(uint32_t layer, std::span<const GroupFetch> fetches) override;
  void NoteRead(uint32_t layer, std::span<const GroupFetch> fetches) override;
  bool IsRecord(const StreamStep& /*step*/, uint32_t record) override { return record < plan_.n_groups(); }
  uint32_t CountOf(const StreamStep& step, uint32_t record) const override;
  uint64_t SizeOf(const StreamStep& /*step*/, uint32_t /*record*/) const override { return 1; }
  void AddPositionsOf(const StreamStep& step, std::vector<uint32_t>* positions) override;

  StaticSet* statics_;
};

}  // namespace kvrun
