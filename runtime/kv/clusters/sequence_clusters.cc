#include "runtime/kv/clusters/sequence_clusters.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "platform/base/check.h"
#include "platform/base/units.h"
#include "runtime/kv/math/cluster_records.h"

namespace kvrun {
namespace {

// In place of an entry's cluster. kLoose: of the cluster that is being written, not found in it again yet.
constexpr uint32_t kNotThere = UINT32_MAX;
constexpr uint32_t kLoose = UINT32_MAX - 1;

// Of a layer's reads, or of one cluster.
uint64_t MostEntries(const KvPlan& plan) {
  const uint64_t of_a_layer =
      uint64_t{plan.n_streams} * plan.choice.n_chosen * plan.slots.record.group_tokens;
  return std::max<uint64_t>(of_a_layer, plan.of_clusters().max_entries);
}

}  // namespace

uint64_t SequenceClusters::MapBytes(const KvPlan& plan, uint32_t n_layers) {
  const uint64_t n_lists = uint64_t{n_layers} * plan.n_streams;
  const uint64_t map = n_lists * (uint64_t{plan.n_ctx} * 2 * sizeof(uint32_t) +
                                  plan.of_clusters().n_clusters * sizeof(Cluster));
  const uint64_t of_an_entry = plan.record.size_bytes() + sizeof(Wanted) + sizeof(GroupFetch);
  return sizeof(SequenceClusters) + map + MostEntries(plan) * of_an_entry;
}

GroupStoreShape SequenceClusters::StoreShape(const KvPlan& plan, uint32_t n_layers) {
  return {.n_layers = n_layers,
          .n_streams = plan.n_streams,
          .n_groups = plan.n_ctx,
          .record_bytes = static_cast<uint32_t>(plan.record.size_bytes())};
}

Result<std::unique_ptr<SequenceClusters>> SequenceClusters::Create(std::unique_ptr<BlockFile> file,
                                                                   const KvPlan& plan, uint32_t n_layers) {
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<GroupStore> store,
                         GroupStore::Create(std::move(file), StoreShape(plan, n_layers), plan.staging_bytes));
  return std::unique_ptr<SequenceClusters>(new SequenceClusters(std::move(store), plan, n_layers));
}

SequenceClusters::SequenceClusters(std::unique_ptr<GroupStore> store, const KvPlan& plan, uint32_t n_layers)
    : entry_shape_(plan.record),
      record_shape_(plan.slots.record),
      n_ctx_(plan.n_ctx),
      n_streams_(plan.n_streams),
      n_clusters_(plan.of_clusters().n_clusters),
      store_(std::move(store)),
      owners_(size_t{n_layers} * n_streams_ * n_ctx_, kNotThere),
      next_(owners_.size()),
      clusters_(size_t{n_layers} * n_streams_ * n_clusters_),
      entries_(MostEntries(plan) * entry_shape_.size_bytes()) {
  KVRUN_CHECK(entry_shape_.group_tokens == 1 && record_shape_.has_positions);
  wanted_.reserve(MostEntries(plan));
  fetches_.reserve(MostEntries(plan));
}

// Of the file, by the entries' places.
uint64_t SequenceClusters::PagesOf(size_t list, uint32_t first, uint32_t n) const {
  const uint64_t stride = RoundUp<uint64_t>(entry_bytes(), mode().alignment_bytes);
  const uint64_t begin = (uint64_t{list} * n_ctx_ + first) * stride;
  return (begin + n * stride - 1) / kFlashPageBytes - begin / kFlashPageBytes + 1;
}

void SequenceClusters::TakeStats(uint64_t records_read) {
  records_read_ += records_read;
  static_cast<StoreStats&>(stats_) = store_->stats();
  stats_.records_read = records_read_;
}

void SequenceClusters::Replace(size_t list, uint32_t owner, uint32_t by) {
  const auto begin = owners_.begin() + static_cast<ptrdiff_t>(list * n_ctx_);
  std::replace(begin, begin + n_ctx_, owner, by);
}

void SequenceClusters::Forget(uint32_t layer, uint32_t stream, uint32_t cluster) {
  const size_t list = List(layer, stream);
  if (At(list, cluster).n_entries == 0) return;
  Replace(list, cluster, kNotThere);
  At(list, cluster) = {};
}

Status SequenceClusters::Write(uint32_t layer, uint32_t stream, uint32_t cluster, uint32_t /*first_changed*/,
                               std::span<const std::byte> records) {
  const size_t list = List(layer, stream);
  const bool was_there = At(list, cluster).n_entries > 0;
  if (was_there) Replace(list, cluster, kLoose);
  At(list, cluster) = {};
  Status status = WriteNew(layer, stream, cluster, records);
  // What the cluster has lost: another one has taken it before, or nothing has.
  if (was_there) Replace(list, kLoose, kNotThere);
  if (!status.ok()) Forget(layer, stream, cluster);
  TakeStats(0);
  return status;
}

// Entries that lie on flash, in this cluster or in one that was divided, stay where they are.
Status SequenceClusters::WriteNew(uint32_t layer, uint32_t stream, uint32_t cluster,
                                  std::span<const std::byte> records) {
  const size_t list = List(layer, stream);
  Cluster& of = At(list, cluster);
  const uint64_t record_bytes = record_shape_.size_bytes();
  uint32_t last = 0;
  uint32_t run_begin = 0;
  uint32_t run_length = 0;
  for (size_t i = 0; i < records.size() / record_bytes * record_shape_.group_tokens; ++i) {
    const std::span<const std::byte> record =
        records.subspan(i / record_shape_.group_tokens * record_bytes, record_bytes);
    const auto entry = static_cast<uint32_t>(i % record_shape_.group_tokens);
    const uint32_t position = PositionOf(record_shape_, record, entry);
    if (position == kNoPosition) break;
    KVRUN_CHECK(position < n_ctx_);
    const bool is_new = Owner(list, position) == kNotThere;
    Owner(list, position) = cluster;
    (of.n_entries == 0 ? of.first : Next(list, last)) = position;
    ++of.n_entries;
    last = position;
    if (!is_new) continue;
    if (run_length > 0 && position != run_begin + run_length) {
      KVRUN_RETURN_IF_ERROR(AppendRun(layer, stream, run_begin, std::exchange(run_length, 0)));
    }
    if (run_length == 0) run_begin = position;
    std::memset(Entry(run_length).data(), 0, entry_bytes());
    CopyEntry(record_shape_, record, entry, entry_shape_, Entry(run_length++), 0);
  }
  return run_length > 0 ? AppendRun(layer, stream, run_begin, run_length) : Status::Ok();
}

Status SequenceClusters::AppendRun(uint32_t layer, uint32_t stream, uint32_t first, uint32_t n) {
  stats_.pages_written += PagesOf(List(layer, stream), first, n);
  return store_->Append(layer, stream, first, std::span(entries_).first(n * entry_bytes()));
}

void SequenceClusters::AddWanted(size_t list, const ClusterFetch& fetch) {
  const Cluster& of = At(list, fetch.cluster);
  uint32_t position = of.first;
  for (uint32_t i = 0; i < of.n_entries; ++i) {
    std::byte* const record = fetch.memory[i / record_shape_.group_tokens];
    const uint32_t entry = i % record_shape_.group_tokens;
    if (record != nullptr && entry == 0) std::memset(record, 0, record_shape_.size_bytes());
    KVRUN_CHECK(wanted_.size() < wanted_.capacity());
    wanted_.push_back({fetch.stream, position, record, entry});
    position = Next(list, position);
  }
}

// Runs, and the pages of each.
void SequenceClusters::CountFetch() {
  for (size_t begin = 0; begin < wanted_.size();) {
    size_t end = begin + 1;
    while (end < wanted_.size() && wanted_[end].stream == wanted_[begin].stream &&
           wanted_[end].position == wanted_[end - 1].position + 1) {
      ++end;
    }
    ++stats_.runs;
    stats_.pages_read += PagesOf(List(layer_, wanted_[begin].stream), wanted_[begin].position,
                                 static_cast<uint32_t>(end - begin));
    begin = end;
  }
}

Status SequenceClusters::Fetch(uint32_t layer, std::span<const ClusterFetch> fetches) {
  layer_ = layer;
  wanted_.clear();
  fetches_.clear();
  uint64_t n_records = 0;
  for (const ClusterFetch& fetch : fetches) {
    const size_t list = List(layer, fetch.stream);
    if (CeilDiv(At(list, fetch.cluster).n_entries, record_shape_.group_tokens) != fetch.n_records) {
      return {StatusCode::kIo, fmt::format("layer {}, stream {}, cluster {} of the KV cache is not on flash: "
                                           "the sequence has to be computed again",
                                           layer, fetch.stream, fetch.cluster)};
    }
    AddWanted(list, fetch);
    n_records += fetch.n_records;
  }
  std::sort(wanted_.begin(), wanted_.end(), [](const Wanted& a, const Wanted& b) {
    return a.stream != b.stream ? a.stream < b.stream : a.position < b.position;
  });
  for (const Wanted& wanted : wanted_) {
    fetches_.push_back({wanted.stream, wanted.position, Entry(fetches_.size()).data()});
  }
  CountFetch();
  const Status status = store_->Fetch(layer, fetches_);
  TakeStats(n_records);
  KVRUN_RETURN_IF_ERROR(status);
  for (size_t i = 0; i < wanted_.size(); ++i) {
    if (wanted_[i].record == nullptr) continue;
    const std::span<std::byte> record(wanted_[i].record, record_shape_.size_bytes());
    CopyEntry(entry_shape_, Entry(i), 0, record_shape_, record, wanted_[i].entry);
    SetPosition(record_shape_, record, wanted_[i].entry, wanted_[i].position);
  }
  return Status::Ok();
}

uint64_t SequenceClusters::CountRuns(uint32_t layer, uint32_t stream,
                                     std::span<const uint32_t> clusters) const {
  const size_t list = List(layer, stream);
  uint64_t n_runs = 0;
  for (const uint32_t cluster : clusters) {
    const Cluster& of = clusters_[list * n_clusters_ + cluster];
    uint32_t position = of.first;
    for (uint32_t i = 0; i < of.n_entries; ++i) {
      const uint32_t before = position == 0 ? kNotThere : owners_[list * n_ctx_ + position - 1];
      n_runs += std::binary_search(clusters.begin(), clusters.end(), before) ? 0 : 1;
      position = next_[list * n_ctx_ + position];
    }
  }
  return n_runs;
}

bool SequenceClusters::IsWhole(size_t list, uint32_t n_positions) {
  uint64_t n_owned = 0;
  for (uint32_t position = 0; position < n_positions; ++position) {
    n_owned += Owner(list, position) != kNotThere ? 1 : 0;
  }
  std::vector<bool> is_found(n_positions);
  for (uint32_t id = 0; id < n_clusters_; ++id) {
    uint32_t position = At(list, id).first;
    for (uint32_t i = 0; i < At(list, id).n_entries; ++i) {
      if (position >= n_positions || Owner(list, position) != id || is_found[position]) return false;
      is_found[position] = true;
      --n_owned;
      position = Next(list, position);
    }
  }
  return n_owned == 0;
}

Status SequenceClusters::VisitState(StateVisitor& visitor) {
  enum Item : uint16_t { kOwners = 10, kNext, kClusters };  // beside GroupStore's
  for (uint32_t list = 0; list < clusters_.size() / n_clusters_; ++list) {
    const auto key = [&](Item item) {
      return StateKey{StatePart::kStore, item, list / n_streams_, list % n_streams_};
    };
    const auto all = std::span(owners_).subspan(size_t{list} * n_ctx_, n_ctx_);
    const auto is_there = [](uint32_t owner) { return owner != kNotThere; };
    const auto n = static_cast<size_t>(std::find_if(all.rbegin(), all.rend(), is_there).base() - all.begin());
    const auto of = std::span(clusters_).subspan(size_t{list} * n_clusters_, n_clusters_);
    const auto has_entries = [](const Cluster& cluster) { return cluster.n_entries > 0; };
    std::vector<uint32_t> owners(all.begin(), all.begin() + static_cast<ptrdiff_t>(n));
    std::vector<uint32_t> next(&Next(list, 0), &Next(list, 0) + n);
    std::vector<Cluster> clusters(of.begin(), std::find_if(of.rbegin(), of.rend(), has_entries).base());
    KVRUN_RETURN_IF_ERROR(visitor.Vector(key(kOwners), &owners, n_ctx_));
    KVRUN_RETURN_IF_ERROR(visitor.Vector(key(kNext), &next, n_ctx_));
    KVRUN_RETURN_IF_ERROR(visitor.Vector(key(kClusters), &clusters, n_clusters_));
    if (!visitor.is_loading()) continue;
    std::copy(owners.begin(), owners.end(), all.begin());
    std::copy(next.begin(), next.end(), &Next(list, 0));
    std::copy(clusters.begin(), clusters.end(), of.begin());
    if (owners.size() == next.size() && IsWhole(list, static_cast<uint32_t>(owners.size()))) continue;
    return {StatusCode::kCorrupt,
            fmt::format("clusters of layer {}, stream {} in the order of the text contradict themselves",
                        list / n_streams_, list % n_streams_)};
  }
  return store_->VisitState(visitor, n_ctx_);
}

}  // namespace kvrun
