#include "runtime/kv/clusters/cluster_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "platform/base/check.h"
#include "runtime/kv/math/centroid_row.h"
#include "runtime/kv/memory/host_buffer.h"

namespace kvrun {

// A layer's choice is known: its part is free when the layer before it is attended to, and those that are
// predicted until then have to be there.
uint32_t ClusterRows::NumParts(const KvPlan& plan, uint32_t n_layers) {
  return plan.of_clusters().rows_on_flash ? std::min(plan.method.lookahead + 2, n_layers) : n_layers;
}

uint32_t ClusterRows::NumChanged(const KvPlan& plan) {
  return plan.of_clusters().rows_on_flash ? std::min(kMostChanged, plan.index.n_groups) : 0;
}

RowStoreShape ClusterRows::StoreShape(const KvPlan& plan, uint32_t n_layers) {
  return {.n_layers = n_layers,
          .n_lists = plan.n_streams,
          .list_bytes = plan.index.size_bytes() / plan.index.n_sequences};
}

uint64_t ClusterRows::MemoryBytes(const KvPlan& plan, uint32_t n_layers) {
  const uint64_t of_a_list_there = 2 * sizeof(uint8_t) + sizeof(uint32_t);
  const uint64_t parts =
      NumParts(plan, n_layers) * (plan.index.size_bytes() + plan.n_streams * of_a_list_there) +
      plan.n_streams;
  if (!plan.of_clusters().rows_on_flash) return parts;
  const uint64_t row_bytes = plan.index.group_words() * 4;
  const uint64_t of_a_list = (NumChanged(plan) + 1) * (row_bytes + sizeof(uint32_t)) + sizeof(uint32_t);
  return parts + uint64_t{n_layers} * plan.n_streams * of_a_list;
}

ClusterRows::ClusterRows(const KvPlan& plan, uint32_t n_layers, RowStore* store)
    : plan_(plan),
      n_layers_(n_layers),
      store_(store),
      parts_(NumParts(plan, n_layers)),
      n_changed_room_(NumChanged(plan)),
      there_(parts_.size() * plan.n_streams),
      dirty_(there_.size()),
      n_filled_(there_.size(), plan.index.n_groups),
      wanted_(plan.n_streams) {
  if (store == nullptr) return;
  const size_t n_lists = size_t{n_layers} * plan.n_streams;
  n_changed_.resize(n_lists);
  changed_clusters_.resize(n_lists * n_changed_room_);
  changed_rows_.resize(n_lists * n_changed_room_ * row_bytes());
  kept_clusters_.resize(n_lists, kNone);
  kept_rows_.resize(n_lists * row_bytes());
}

Result<std::unique_ptr<ClusterRows>> ClusterRows::Create(Device& device, const KvPlan& plan,
                                                         uint32_t n_layers, RowStore* store) {
  KVRUN_CHECK(plan.of_clusters().rows_on_flash == (store != nullptr));
  std::unique_ptr<ClusterRows> rows(new ClusterRows(plan, n_layers, store));
  for (uint32_t i = 0; i < rows->parts_.size(); ++i) {
    Part& part = rows->parts_[i];
    KVRUN_ASSIGN_OR_RETURN(part.rows, device.CreateBuffer(plan.index.size_bytes(), BufferUse::kShared, "kv"));
    part.layer = i;
    for (uint32_t stream = 0; stream < plan.n_streams; ++stream) {
      rows->there(i, stream) = 1;
      rows->Shorten(i, stream, 0);
    }
    KVRUN_RETURN_IF_ERROR(part.rows->Flush(0, part.rows->size_bytes()));
  }
  return rows;
}

// --- Places.

std::span<std::byte> ClusterRows::ListBytes(uint32_t layer, uint32_t stream) const {
  return part(layer)->host().subspan(stream * list_bytes(), list_bytes());
}

std::span<int8_t> ClusterRows::Row(uint32_t layer, uint32_t stream, uint32_t cluster) const {
  std::byte* const row = ListBytes(layer, stream).data() + size_t{cluster} * row_bytes();
  return {reinterpret_cast<int8_t*>(row), rank()};
}

bool ClusterRows::IsThere(uint32_t layer, uint32_t stream) const {
  const size_t i = layer % parts_.size();
  return parts_[i].layer == layer && there_[i * n_streams() + stream] != 0;
}

uint32_t ClusterRows::FindChanged(size_t list, uint32_t cluster) const {
  const auto first = changed_clusters_.begin() + static_cast<ptrdiff_t>(list * n_changed_room_);
  return static_cast<uint32_t>(std::find(first, first + n_changed_[list], cluster) - first);
}

// --- Rows.

Result<std::span<const int8_t>> ClusterRows::Read(uint32_t layer, uint32_t stream, uint32_t cluster) {
  if (!IsThere(layer, stream)) {
    const size_t list = List(layer, stream);
    const uint32_t changed = FindChanged(list, cluster);
    if (changed < n_changed_[list]) return std::span<const int8_t>(ChangedRow(list, changed));
    if (kept_clusters_[list] == cluster) {
      return std::span<const int8_t>(kept_rows_).subspan(list * row_bytes(), rank());
    }
    KVRUN_RETURN_IF_ERROR(LoadNow(layer, stream));
  }
  return std::span<const int8_t>(Row(layer, stream, cluster));
}

Result<std::span<int8_t>> ClusterRows::Edit(uint32_t layer, uint32_t stream, uint32_t cluster, bool keeps) {
  if (store_ == nullptr || IsOpen(layer, stream)) return Row(layer, stream, cluster);
  const size_t list = List(layer, stream);
  uint32_t at = FindChanged(list, cluster);
  if (at < n_changed_[list]) return ChangedRow(list, at);
  if (at == n_changed_room_) {
    KVRUN_RETURN_IF_ERROR(LoadNow(layer, stream));
    KVRUN_RETURN_IF_ERROR(WriteBack(layer, stream));
    at = 0;
  }
  const std::span<int8_t> row = ChangedRow(list, at);
  std::fill_n(row.data(), row_bytes(), int8_t{0});
  if (keeps) {
    KVRUN_ASSIGN_OR_RETURN(const std::span<const int8_t> is, Read(layer, stream, cluster));
    std::copy(is.begin(), is.end(), row.begin());
  }
  changed_clusters_[list * n_changed_room_ + at] = cluster;
  ++n_changed_[list];
  return row;
}

Status ClusterRows::Commit(uint32_t layer, uint32_t stream, uint32_t cluster, std::span<int8_t> row) {
  if (store_ != nullptr) {
    const size_t list = List(layer, stream);
    if (kept_clusters_[list] == cluster) kept_clusters_[list] = kNone;
    if (IsOpen(layer, stream)) dirty(layer, stream) = 1;
  }
  if (!IsThere(layer, stream)) return Status::Ok();
  n_filled(layer, stream) = std::max(n_filled(layer, stream), cluster + 1);
  const std::span<int8_t> in_part = Row(layer, stream, cluster);
  if (in_part.data() != row.data()) std::copy(row.begin(), row.end(), in_part.begin());
  return part(layer)->Flush(stream * list_bytes() + uint64_t{cluster} * row_bytes(), row_bytes());
}

void ClusterRows::Shorten(uint32_t layer, uint32_t stream, uint32_t n) {
  for (uint32_t cluster = n; cluster < n_filled(layer, stream); ++cluster) {
    const std::span<int8_t> row = Row(layer, stream, cluster);
    std::fill_n(row.data(), row_bytes(), int8_t{0});
    PackNoCentroid(row);
  }
  n_filled(layer, stream) = n;
}

Status ClusterRows::ClearAll(uint32_t layer, uint32_t stream) {
  if (store_ != nullptr) {
    store_->Forget(layer, stream);
    n_changed_[List(layer, stream)] = 0;
    kept_clusters_[List(layer, stream)] = kNone;
  }
  if (!IsThere(layer, stream)) return Status::Ok();
  dirty(layer, stream) = 0;
  Shorten(layer, stream, 0);
  return part(layer)->Flush(stream * list_bytes(), list_bytes());
}

// --- Lists.

// The layer's part is the layer's; what it held of another one stays.
Status ClusterRows::Claim(uint32_t layer) {
  Part& claimed = parts_[layer % parts_.size()];
  if (claimed.layer == layer) return Status::Ok();
  for (uint32_t stream = 0; stream < n_streams(); ++stream) {
    if (dirty(layer, stream) != 0) KVRUN_RETURN_IF_ERROR(WriteBack(claimed.layer, stream));
    there(layer, stream) = 0;
  }
  if (open_layer_ == claimed.layer) open_layer_ = kNone;
  claimed.layer = layer;
  return Status::Ok();
}

bool ClusterRows::MustRead(uint32_t layer, uint32_t stream) const {
  return !IsThere(layer, stream) && store_->IsWritten(layer, stream);
}

bool ClusterRows::IsAtHand(uint32_t layer, uint32_t stream) const {
  return !MustRead(layer, stream) || store_->HasBegun(layer, stream);
}

// Into the claimed part; a list that is to be read was begun.
Status ClusterRows::Load(uint32_t layer, uint32_t stream) {
  uint32_t n_read = 0;
  if (store_->IsWritten(layer, stream)) {
    const uint32_t n_before = std::exchange(n_filled(layer, stream), n_clusters());  // until that is known
    KVRUN_ASSIGN_OR_RETURN(const uint64_t bytes, store_->Copy(layer, stream, ListBytes(layer, stream)));
    n_read = static_cast<uint32_t>(bytes / row_bytes());
    n_filled(layer, stream) = std::max(n_before, n_read);
  }
  Shorten(layer, stream, n_read);
  const size_t list = List(layer, stream);
  for (uint32_t i = 0; i < n_changed_[list]; ++i) {
    const uint32_t cluster = changed_clusters_[list * n_changed_room_ + i];
    std::copy_n(ChangedRow(list, i).data(), row_bytes(), Row(layer, stream, cluster).data());
    n_filled(layer, stream) = std::max(n_filled(layer, stream), cluster + 1);
  }
  there(layer, stream) = 1;
  return part(layer)->Flush(stream * list_bytes(), list_bytes());
}

Status ClusterRows::LoadNow(uint32_t layer, uint32_t stream) {
  KVRUN_RETURN_IF_ERROR(Claim(layer));
  if (IsThere(layer, stream)) return Status::Ok();
  KVRUN_RETURN_IF_ERROR(store_->End());
  if (MustRead(layer, stream)) KVRUN_RETURN_IF_ERROR(store_->Begin(layer, stream, 1));
  const Status loaded = Load(layer, stream);
  const Status ended = store_->End();
  return loaded.ok() ? ended : loaded;
}

Status ClusterRows::WriteBack(uint32_t layer, uint32_t stream) {
  dirty(layer, stream) = 0;
  n_changed_[List(layer, stream)] = 0;
  uint32_t& n_rows = n_filled(layer, stream);
  while (n_rows > 0 && !IsCentroid(Row(layer, stream, n_rows - 1))) --n_rows;
  return store_->Write(layer, stream,
                       ListBytes(layer, stream).first(uint64_t{std::max(n_rows, 1U)} * row_bytes()));
}

Status ClusterRows::Open(uint32_t layer, uint32_t first, uint32_t n) {
  if (store_ == nullptr) return Status::Ok();
  KVRUN_RETURN_IF_ERROR(Close());
  for (uint32_t stream = first; stream < first + n; ++stream) {
    KVRUN_RETURN_IF_ERROR(LoadNow(layer, stream));
  }
  open_layer_ = layer;
  open_first_ = first;
  open_n_ = n;
  return Status::Ok();
}

Status ClusterRows::Close() {
  if (open_layer_ == kNone) return Status::Ok();
  const uint32_t layer = open_layer_;
  open_layer_ = kNone;
  for (uint32_t stream = open_first_; stream < open_first_ + open_n_; ++stream) {
    if (dirty(layer, stream) != 0) KVRUN_RETURN_IF_ERROR(WriteBack(layer, stream));
  }
  return Status::Ok();
}

// --- Decode.

Status ClusterRows::BeginStep(const KvStep& step) {
  if (store_ == nullptr) return Status::Ok();
  KVRUN_RETURN_IF_ERROR(Close());
  std::fill(wanted_.begin(), wanted_.end(), uint8_t{0});
  const uint32_t heads = plan_.heads_per_sequence();
  for (const KvSpan& span : step.spans)
    std::fill_n(wanted_.begin() + span.sequence * heads, heads, uint8_t{1});
  for (uint32_t layer = 0; layer < std::min(1 + plan_.method.lookahead, n_layers_); ++layer) {
    KVRUN_RETURN_IF_ERROR(Fetch(layer));
  }
  return Status::Ok();
}

Status ClusterRows::EndLayer(uint32_t layer) { return Fetch(layer + 1 + plan_.method.lookahead); }

Status ClusterRows::PrepareStep() { return Begin(0); }

Status ClusterRows::Begin(uint32_t layer) {
  if (store_ == nullptr || layer >= n_layers_) return Status::Ok();
  KVRUN_RETURN_IF_ERROR(store_->End());
  uint32_t first = n_streams();
  uint32_t end = 0;
  for (uint32_t stream = 0; stream < n_streams(); ++stream) {
    if (wanted_[stream] == 0 || !MustRead(layer, stream)) continue;
    first = std::min(first, stream);
    end = stream + 1;
  }
  return first < end ? store_->Begin(layer, first, end - first) : Status::Ok();
}

// Then the next layer's read begins, which has a layer's time.
Status ClusterRows::Fetch(uint32_t layer) {
  if (store_ == nullptr || layer >= n_layers_) return Status::Ok();
  Status fetched = FetchLists(layer);
  const Status ended = store_->End();
  if (!fetched.ok()) return fetched;  // the first error is the one to tell
  return ended.ok() ? Begin(layer + 1) : ended;
}

Status ClusterRows::FetchLists(uint32_t layer) {
  KVRUN_RETURN_IF_ERROR(Claim(layer));
  bool all_at_hand = true;
  for (uint32_t stream = 0; stream < n_streams(); ++stream) {
    all_at_hand = all_at_hand && (wanted_[stream] == 0 || IsAtHand(layer, stream));
  }
  if (!all_at_hand) KVRUN_RETURN_IF_ERROR(Begin(layer));  // as for other rows, or none
  for (uint32_t stream = 0; stream < n_streams(); ++stream) {
    if (wanted_[stream] == 0) continue;
    if (!IsThere(layer, stream)) KVRUN_RETURN_IF_ERROR(Load(layer, stream));
    // Before there is no room for those of a step; not all lists with as many, as a write may have to wait
    // for others.
    const uint32_t least = n_changed_room_ / 2;
    const uint32_t many = least + static_cast<uint32_t>(List(layer, stream) % (least / 2 + 1));
    if (n_changed_[List(layer, stream)] > many) KVRUN_RETURN_IF_ERROR(WriteBack(layer, stream));
  }
  return Status::Ok();
}

void ClusterRows::Keep(uint32_t layer, uint32_t stream, uint32_t cluster) {
  if (store_ == nullptr || !IsThere(layer, stream)) return;
  const size_t list = List(layer, stream);
  kept_clusters_[list] = cluster;
  const std::span<const int8_t> row = Row(layer, stream, cluster);
  std::copy(row.begin(), row.end(), kept_rows_.begin() + static_cast<ptrdiff_t>(list * row_bytes()));
}

// --- States.

// In memory: up to the last that is of a cluster, or was.
Status ClusterRows::VisitList(StateVisitor& visitor, uint32_t layer, uint32_t stream) {
  enum Item : uint16_t { kRows = 10 };
  const StateKey key{StatePart::kIndex, kRows, layer, stream};
  KVRUN_ASSIGN_OR_RETURN(
      const uint64_t n_bytes,
      visitor.Size(key, uint64_t{n_filled(layer, stream)} * row_bytes(), list_bytes(), row_bytes()));
  n_filled(layer, stream) = static_cast<uint32_t>(n_bytes / row_bytes());
  return VisitBytes(visitor, key, *part(layer), stream * list_bytes(), n_bytes);
}

// On flash: what the store does not have.
Status ClusterRows::VisitChanged(StateVisitor& visitor, uint32_t layer, uint32_t stream) {
  enum Item : uint16_t { kChangedClusters = 11, kChangedRows };
  const size_t list = List(layer, stream);
  const auto room = std::span(changed_clusters_).subspan(list * n_changed_room_, n_changed_room_);
  std::vector<uint32_t> clusters(room.begin(), room.begin() + n_changed_[list]);
  KVRUN_RETURN_IF_ERROR(
      visitor.Vector({StatePart::kIndex, kChangedClusters, layer, stream}, &clusters, n_changed_room_));
  std::copy(clusters.begin(), clusters.end(), room.begin());
  n_changed_[list] = static_cast<uint32_t>(clusters.size());
  std::sort(clusters.begin(), clusters.end());
  if (!AreAscending(clusters, n_clusters())) {
    return {StatusCode::kCorrupt,
            fmt::format("changed rows of the KV index of layer {}, stream {} contradict themselves", layer,
                        stream)};
  }
  const auto rows =
      std::span(changed_rows_).subspan(list * n_changed_room_ * row_bytes(), clusters.size() * row_bytes());
  return visitor.Array({StatePart::kIndex, kChangedRows, layer, stream}, rows);
}

Status ClusterRows::VisitState(StateVisitor& visitor) {
  if (store_ != nullptr) {
    KVRUN_RETURN_IF_ERROR(Close());
    KVRUN_RETURN_IF_ERROR(store_->End());  // lists of the next step are read when it begins
    KVRUN_RETURN_IF_ERROR(store_->Flush());
    // What is loaded is not in the parts yet.
    if (visitor.is_loading()) std::fill(there_.begin(), there_.end(), uint8_t{0});
  }
  for (uint32_t layer = 0; layer < n_layers_; ++layer) {
    for (uint32_t stream = 0; stream < n_streams(); ++stream) {
      KVRUN_RETURN_IF_ERROR(store_ == nullptr ? VisitList(visitor, layer, stream)
                                              : VisitChanged(visitor, layer, stream));
    }
  }
  return Status::Ok();
}

}  // namespace kvrun
