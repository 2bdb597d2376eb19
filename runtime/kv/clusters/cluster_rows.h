// Rows of an index of clusters: int8, of each layer and stream a *list* of one for each cluster. In memory
// they lie in a *part* for each layer; on flash (RowStore) there are only as many parts as a step looks
// ahead, and two more: a ring, in which layer l has part l % n. The device scores a layer in its part.
//
// While decoding, a layer's lists are brought into the ring before the device scores them: each is read
// by itself, a layer's time before it is needed. Rows that change afterwards, when the
// ring holds other layers, are *changed* rows: kept in memory, a few for each list, and put over the list
// when it is read the next time. When there are many, the list is written then.
//
// Threads: one at a time; during a step the KV thread alone. Nothing is allocated after Create, but for
// messages of errors.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/kv/plan/kv_plan.h"
#include "runtime/kv/plan/kv_step.h"
#include "runtime/store/row_store.h"
#include "runtime/store/state_visitor.h"

namespace kvrun {

class ClusterRows {
 public:
  // The plan and the store must outlive it; null: all rows are in memory. No cluster is there.
  static Result<std::unique_ptr<ClusterRows>> Create(Device& device, const KvPlan& plan, uint32_t n_layers,
                                                     RowStore* store);
  // The store that the plan asks for, where it has rows on flash.
  static RowStoreShape StoreShape(const KvPlan& plan, uint32_t n_layers);
  // What lies in memory, but for the store's.
  static uint64_t MemoryBytes(const KvPlan& plan, uint32_t n_layers);

  // kShared, KvPlan::index: where the device scores the layer.
  Buffer* part(uint32_t layer) const { return parts_[layer % parts_.size()].rows.get(); }

  // --- Any row, at any time; not of a list that the device scores. A row that is not in memory costs a read.
  // Valid until the next call.
  Result<std::span<const int8_t>> Read(uint32_t layer, uint32_t stream, uint32_t cluster);
  // `pack` changes it; it holds what the row was where `keeps`, else zeros or that. Where a change fails, the
  // stream's rows are not what they should be.
  template <typename Pack>
  Status Change(uint32_t layer, uint32_t stream, uint32_t cluster, bool keeps, const Pack& pack) {
    KVRUN_ASSIGN_OR_RETURN(const std::span<int8_t> row, Edit(layer, stream, cluster, keeps));
    pack(row);
    return Commit(layer, stream, cluster, row);
  }
  // No cluster is there. Whatever was the matter with the list is over.
  Status ClearAll(uint32_t layer, uint32_t stream);
  // Many changes of a layer's lists [first, first + n): they are read at once, and written by Close.
  Status Open(uint32_t layer, uint32_t first, uint32_t n);
  Status Close();

  // --- Decode. Lists of the step's rows of the layers that the step predicts first are there.
  Status BeginStep(const KvStep& step);
  // As KvIndex has them: what is predicted when a layer is carried out is there when that is served.
  Status EndLayer(uint32_t layer);
  Status PrepareStep();
  // The row can be read without flash until it changes: the layer is there.
  void Keep(uint32_t layer, uint32_t stream, uint32_t cluster);

  // Saves, loads or counts all rows but those that the store has; writes nothing, but has no read or write
  // under way afterwards. As KvIndex::VisitState.
  Status VisitState(StateVisitor& visitor);

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr uint32_t kMostChanged = 16;  // rows of a list

  struct Part {
    std::unique_ptr<Buffer> rows;
    uint32_t layer = kNone;
  };

  ClusterRows(const KvPlan& plan, uint32_t n_layers, RowStore* store);

  static uint32_t NumParts(const KvPlan& plan, uint32_t n_layers);
  static uint32_t NumChanged(const KvPlan& plan);
  size_t List(uint32_t layer, uint32_t stream) const { return size_t{layer} * n_streams() + stream; }
  uint32_t n_streams() const { return plan_.n_streams; }
  uint32_t n_clusters() const { return plan_.index.n_groups; }
  uint32_t rank() const { return plan_.index.rank; }
  uint32_t row_bytes() const { return plan_.index.group_words() * 4; }
  uint64_t list_bytes() const { return uint64_t{n_clusters()} * row_bytes(); }

  // In the layer's part.
  std::span<std::byte> ListBytes(uint32_t layer, uint32_t stream) const;
  std::span<int8_t> Row(uint32_t layer, uint32_t stream, uint32_t cluster) const;
  bool IsThere(uint32_t layer, uint32_t stream) const;
  uint8_t& there(uint32_t layer, uint32_t stream) {
    return there_[layer % parts_.size() * n_streams() + stream];
  }
  uint8_t& dirty(uint32_t layer, uint32_t stream) {
    return dirty_[layer % parts_.size() * n_streams() + stream];
  }
  bool IsOpen(uint32_t layer, uint32_t stream) const {
    return layer == open_layer_ && stream - open_first_ < open_n_;
  }
  std::span<int8_t> ChangedRow(size_t list, uint32_t i) {
    return std::span(changed_rows_).subspan((list * n_changed_room_ + i) * row_bytes(), rank());
  }
  uint32_t& n_filled(uint32_t layer, uint32_t stream) {
    return n_filled_[layer % parts_.size() * n_streams() + stream];
  }
  uint32_t FindChanged(size_t list, uint32_t cluster) const;

  Result<std::span<int8_t>> Edit(uint32_t layer, uint32_t stream, uint32_t cluster, bool keeps);
  Status Commit(uint32_t layer, uint32_t stream, uint32_t cluster, std::span<int8_t> row);
  // The list has `n` rows; those behind are of no cluster.
  void Shorten(uint32_t layer, uint32_t stream, uint32_t n);
  Status Claim(uint32_t layer);
  Status Load(uint32_t layer, uint32_t stream);
  Status LoadNow(uint32_t layer, uint32_t stream);
  Status VisitList(StateVisitor& visitor, uint32_t layer, uint32_t stream);
  Status VisitChanged(StateVisitor& visitor, uint32_t layer, uint32_t stream);
  Status WriteBack(uint32_t layer, uint32_t stream);
  bool MustRead(uint32_t layer, uint32_t stream) const;
  bool IsAtHand(uint32_t layer, uint32_t stream) const;
  // Begins to read the lists of the step's rows, where they have to be read. One layer each time: requests of
  // slots wait behind larger ones (docs/methods/dynakv.md).
  Status Begin(uint32_t layer);
  // They are in the layer's part, which the device scores no more for another layer.
  Status Fetch(uint32_t layer);
  Status FetchLists(uint32_t layer);

  const KvPlan& plan_;
  uint32_t n_layers_;
  RowStore* store_;
  std::vector<Part> parts_;
  uint32_t n_changed_room_;
  // Of lists in their parts, [parts, n_streams]: the list is the layer's; the file does not have it.
  std::vector<uint8_t> there_;
  std::vector<uint8_t> dirty_;
  std::vector<uint32_t> n_filled_;  // rows from it on are of no cluster
  std::vector<uint8_t> wanted_;     // [n_streams]: of the step's rows
  uint32_t open_layer_ = kNone;
  uint32_t open_first_ = 0;
  uint32_t open_n_ = 0;
  // Of all lists of all layers; none where rows are in memory.
  std::vector<uint32_t> n_changed_;
  std::vector<uint32_t> changed_clusters_;  // [lists, n_changed_room_]
  std::vector<int8_t> changed_rows_;        // the same, row_bytes() each
  std::vector<uint32_t> kept_clusters_;     // [lists]; kNone
  std::vector<int8_t> kept_rows_;           // [lists], row_bytes() each
};

}  // namespace kvrun
