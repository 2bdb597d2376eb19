// A server of layers that asks which extents were chosen, and brings those records that are not in slots from
// the store in one batch, into the layer's slots or into the pool.
//
// Threads: one at a time; during a step the KV thread alone.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "runtime/kv/math/read_limit.h"
#include "runtime/kv/select/all_selector.h"
#include "runtime/kv/serve/layer_server.h"

namespace kvrun {

class ReadingServer : public LayerServer {
 public:
  // All must outlive it. `selector` null: everything before the window is attended to.
  ReadingServer(const KvPlan& plan, uint32_t n_layers, RecentWindow& window, KvSlots& slots,
                KvSelector* selector, RecordFetcher& reader);

  void BeginStep(const KvStep& step) override;
  Status VisitState(StateVisitor& visitor) override;
  Status RecallSlots() override;
  void EndStep() override;
  void SetSelector(KvSelector& selector) override { selector_ = &selector; }
  void SetReader(RecordFetcher& reader) override { reader_ = &reader; }

 protected:
  // What is to be read of what a stream has chosen (ascending): its records, and of each, where such records
  // differ, how many its extent has, and which may stay unread (SlotCache::Plan).
  struct Wanted {
    std::span<const uint32_t> records;
    std::span<const uint32_t> weights = {};
    std::span<const uint8_t> may_stay_unread = {};
  };
  virtual Wanted RecordsOf(const StreamStep& step, std::span<const uint32_t> chosen,
                           const GroupSample& sample) = 0;
  // What is to be read of the store for `fetches`; valid until the next call. Then: they were read.
  virtual std::span<const GroupFetch> Reads(uint32_t /*layer*/, std::span<const GroupFetch> fetches) {
    return fetches;
  }
  virtual void NoteRead(uint32_t /*layer*/, std::span<const GroupFetch> /*fetches*/) {}
  // Whether the stream has such a record; any number.
  virtual bool IsRecord(const StreamStep& step, uint32_t record) = 0;
  // Of a record: its entries that count; what it is in statistics.
  virtual uint32_t CountOf(const StreamStep& step, uint32_t record) const = 0;
  virtual uint64_t SizeOf(const StreamStep& step, uint32_t record) const = 0;

  std::vector<uint32_t> LastAttended(const StreamStep& step) const override;
  // Scores of what was chosen, from the n_first on. Empty: all is read.
  std::span<const uint8_t> MayStayUnread(const StreamStep& step, size_t n_first);
  std::span<const uint32_t> WithSample(std::span<const uint32_t> chosen, const GroupSample& sample);
  const SlotCache::PlanResult& planned(uint32_t row, uint32_t head) const {
    return planned_[size_t{row} * heads() + head];
  }

 private:
  Status Bring(uint32_t layer) override;
  void DropBrought(uint32_t layer) override;
  Status NameSlots(const StreamStep& step) override;
  Status PlanStream(const StreamStep& step);
  void FetchPlanned(const StreamStep& step, const SlotCache::PlanResult& plan);
  void Count(const StreamStep& step, std::span<const uint32_t> records, const SlotCache::PlanResult& plan);
  Status ReadPlanned(uint32_t layer);
  void NameBiased(const StreamStep& step, const SlotCache::PlanResult& plan);

  AllSelector all_;
  KvSelector* selector_;
  RecordFetcher* reader_;
  std::optional<ReadLimit> read_limit_;         // where the plan has one
  std::vector<GroupFetch> fetches_;             // of a layer: at most n_streams * KvPlan::n_needed()
  std::vector<SlotCache::PlanResult> planned_;  // of a layer's rows and heads
  std::vector<GroupSample> samples_;            // of a layer's rows and heads
  std::vector<uint32_t> with_samples_;          // of a layer: what streams need, one after another
  std::vector<uint8_t> is_drawn_;               // of what a stream needs
};

}  // namespace kvrun
