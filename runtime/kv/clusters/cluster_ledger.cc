#include "runtime/kv/clusters/cluster_ledger.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "platform/base/check.h"
#include "runtime/device/record_codec.h"
#include "runtime/kv/math/key_division.h"

namespace kvrun {
namespace {

// Of a list whose first cluster has one key: those to come are larger than it, here and there.
constexpr float kScaleOfOneKey = 3.0F;

// Of the places for pending entries, those that are filled before anything is stored. The rest is for entries
// whose cluster is not chosen for a while: the fewer they are, the more clusters have to be loaded.
uint32_t WaitingEntries(uint32_t max_pending) { return max_pending / 4 * 3; }

}  // namespace

Result<std::unique_ptr<ClusterLedger>> ClusterLedger::Create(Device& device, const KvPlan& plan,
                                                             uint32_t n_layers, ClusterSet& clusters,
                                                             ClusterFiles& store, RecentWindow& window,
                                                             KvSlots& slots, ClusterIndex& index,
                                                             const EntrySpaces& spaces) {
  std::unique_ptr<ClusterLedger> ledger(
      new ClusterLedger(device, plan, n_layers, clusters, store, window, slots, index, spaces));
  KVRUN_ASSIGN_OR_RETURN(ledger->kept_, KeptEntries::Create(device, plan, n_layers));
  return ledger;
}

ClusterLedger::ClusterLedger(Device& device, const KvPlan& plan, uint32_t n_layers, ClusterSet& clusters,
                             ClusterFiles& store, RecentWindow& window, KvSlots& slots, ClusterIndex& index,
                             const EntrySpaces& spaces)
    : device_(device),
      plan_(plan),
      n_layers_(n_layers),
      clusters_(clusters),
      store_(store),
      window_(window),
      index_(index),
      spaces_(spaces),
      kept_(plan),
      upkeep_(plan, clusters, store, slots, index, kept_, spaces),
      lengths_(plan.n_sequences),
      settled_(size_t{n_layers} * plan.n_sequences),
      broken_(plan.n_sequences),
      centroid_(plan.record.head_dim),
      key_(plan.record.head_dim),
      has_scales_(size_t{n_layers} * plan.n_streams),
      is_new_(size_t{n_layers} * plan.n_streams * plan.of_clusters().n_clusters) {
  n_changed_.reserve(plan.n_sequences);
  places_.reserve(plan.of_clusters().n_kept());
}

// --- Forgetting.

void ClusterLedger::ForgetAll(uint32_t sequence) {
  for (uint32_t i = 0; i < n_layers_; ++i) {
    settled(i, sequence) = 0;
    for (uint32_t stream = sequence * heads(); stream < (sequence + 1) * heads(); ++stream) {
      clusters_.map(i, stream).SetThreshold(std::numeric_limits<float>::infinity());
      has_scales_[size_t{i} * plan_.n_streams + stream] = false;
    }
  }
  lengths_[sequence] = 0;
  broken_[sequence] = Status::Ok();
}

// Entries of a stream from `length` on are forgotten; those from `first` on go back to the window.
Status ClusterLedger::ForgetStream(const ClusterPlace& at, uint32_t sequence, uint32_t first,
                                   uint32_t length) {
  ClusterMap& map = clusters_.map(at.layer, at.stream);
  const uint32_t end_used = map.end_used();
  const auto take = [&](uint32_t position, std::span<const std::byte> record) {
    const bool is_there = window_.Holds(sequence, lengths_[sequence], position);
    if (position >= length || is_there) return Status::Ok();
    if (position < plan_.window.n_exact_groups) return window_.RestoreExact(at.layer, at.stream, position);
    return window_.Restore(at.layer, at.stream, position, record);
  };
  for (uint32_t sink = first; sink < std::min(plan_.of_clusters().n_sinks, settled(at.layer, sequence));
       ++sink) {
    KVRUN_RETURN_IF_ERROR(take(sink, kept_.Record(at.layer, at.stream, sink)));
  }
  for (const PendingEntry& pending : map.pending()) {
    if (pending.position < first) continue;
    KVRUN_RETURN_IF_ERROR(take(pending.position, kept_.Record(at.layer, at.stream, pending.place)));
  }
  for (uint32_t cluster = 0; cluster < end_used; ++cluster) {
    if (map.cluster(cluster).n_stored == 0 || map.cluster(cluster).end <= first) continue;
    KVRUN_RETURN_IF_ERROR(upkeep_.Truncate(at, cluster, first, take));
  }
  map.TruncatePending(first);
  // Clusters that had pending entries alone.
  for (uint32_t cluster = 0; cluster < end_used; ++cluster) {
    if (map.cluster(cluster).size() == 0) KVRUN_RETURN_IF_ERROR(index_.Clear(at.layer, at.stream, cluster));
  }
  return Status::Ok();
}

Status ClusterLedger::ForgetFrom(uint32_t sequence, uint32_t first, uint32_t length) {
  for (uint32_t i = 0; i < n_layers_; ++i) {
    if (settled(i, sequence) <= first) continue;
    const auto forget = [&] {
      for (uint32_t head = 0; head < heads(); ++head) {
        KVRUN_RETURN_IF_ERROR(ForgetStream({i, sequence * heads() + head}, sequence, first, length));
      }
      return Status::Ok();
    };
    KVRUN_RETURN_IF_ERROR(WithRows(i, sequence, forget));
    settled(i, sequence) = first;
  }
  return store_.Flush();
}

// Entries from `length` on are forgotten, and the window of what is left is whole. A sequence that cannot be
// restored has to be computed again, from its beginning, for which nothing is read.
Status ClusterLedger::Forget(uint32_t sequence, uint32_t length) {
  if (length == 0) {
    for (uint32_t i = 0; i < n_layers_; ++i) {
      for (uint32_t head = 0; head < heads(); ++head) {
        KVRUN_RETURN_IF_ERROR(upkeep_.Clear({i, sequence * heads() + head}));
      }
    }
    ForgetAll(sequence);
    window_.NoteFirstGroup(sequence, 0);
    return Status::Ok();
  }
  KVRUN_RETURN_IF_ERROR(broken_[sequence]);
  if (length >= lengths_[sequence]) return Status::Ok();
  const uint32_t first = window_.FirstGroup(length);
  broken_[sequence] = ForgetFrom(sequence, first, length);
  KVRUN_RETURN_IF_ERROR(broken_[sequence]);
  window_.NoteFirstGroup(sequence, first);
  lengths_[sequence] = length;
  return Status::Ok();
}

// --- Decode.

// Places of kept entries: sinks have those of their positions.
uint32_t ClusterLedger::FreePlace(const ClusterPlace& at) const {
  const std::span<const PendingEntry> pending = clusters_.map(at.layer, at.stream).pending();
  uint32_t place = plan_.of_clusters().n_sinks;
  const auto is_taken = [&](const PendingEntry& entry) { return entry.place == place; };
  while (std::any_of(pending.begin(), pending.end(), is_taken)) ++place;
  KVRUN_CHECK(place < plan_.of_clusters().n_kept());
  return place;
}

Status ClusterLedger::BeginStep(const KvStep& step) {
  KVRUN_RETURN_IF_ERROR(UndoPrefill());
  step_ = &step;
  n_changed_.assign(step.spans.size(), 0);
  for (const KvSpan& span : step.spans) {
    KVRUN_CHECK(span.first_position <= lengths_[span.sequence]);
    KVRUN_RETURN_IF_ERROR(Forget(span.sequence, span.first_position));
  }
  uint32_t end = 0;
  for (uint32_t i = 0; i < n_layers_; ++i) {
    for (uint32_t row = 0; row < step.spans.size(); ++row) {
      for (uint32_t head = 0; head < heads(); ++head) {
        const uint32_t stream = step.spans[row].sequence * heads() + head;
        end = std::max(end, clusters_.map(i, stream).end_used());
        const uint32_t position = leaving(step.spans[row]);
        if (position == kNoEntry) continue;
        KVRUN_ASSIGN_OR_RETURN(const auto record, window_.Read(i, stream, position));
        spaces_.DecodeKeys(i, stream, plan_.window.record, record, plan_.record.head_dim,
                           index_.Key(i, row, head));
      }
    }
    KVRUN_RETURN_IF_ERROR(index_.FlushKeys(i));
  }
  index_.SetEnd(end);
  return index_.BeginStep(step);
}

// The entry that leaves the window: kept in memory.
Status ClusterLedger::Arrive(const ClusterPlace& at, uint32_t position) {
  const uint32_t place = position < plan_.of_clusters().n_sinks ? position : FreePlace(at);
  KVRUN_ASSIGN_OR_RETURN(const auto record, window_.Read(at.layer, at.stream, position));
  const std::span<std::byte> kept = kept_.Record(at.layer, at.stream, place);
  TranscodeRecord(plan_.window.record, record, plan_.record, kept);
  if (position < plan_.window.n_exact_groups) {
    KVRUN_RETURN_IF_ERROR(window_.PutExact(at.layer, at.stream, position, record, kept));
  }
  return kept_.Flush(at.layer, at.stream, place);
}

Status ClusterLedger::NameKept(const ClusterPlace& at, uint32_t n_sinks, uint32_t arriving) {
  places_.clear();
  for (uint32_t sink = plan_.window.n_exact_groups; sink < n_sinks; ++sink) places_.push_back(sink);
  for (const PendingEntry& pending : clusters_.map(at.layer, at.stream).pending()) {
    places_.push_back(pending.place);
  }
  if (arriving != kNoEntry) places_.push_back(arriving);
  return kept_.Name(at.layer, at.stream, places_);
}

Status ClusterLedger::BeginLayer(uint32_t layer) {
  KVRUN_RETURN_IF_ERROR(index_.ReceiveNearest(layer));
  index_.KeepNearest(layer, *step_);
  for (const KvSpan& span : step_->spans) {
    const uint32_t position = leaving(span);
    const bool arrives = position != kNoEntry && settled(layer, span.sequence) <= position;
    const uint32_t end = position == kNoEntry ? 0 : position + 1;
    for (uint32_t head = 0; head < heads(); ++head) {
      const ClusterPlace at{layer, span.sequence * heads() + head};
      if (arrives) KVRUN_RETURN_IF_ERROR(Arrive(at, position));
      const bool is_sink = position < plan_.of_clusters().n_sinks;
      KVRUN_RETURN_IF_ERROR(NameKept(at, std::min(plan_.of_clusters().n_sinks, end),
                                     arrives && !is_sink ? FreePlace(at) : kNoEntry));
    }
  }
  return Status::Ok();
}

// By what the index holds of centroids; of clusters that have room.
Result<uint32_t> ClusterLedger::FindNearest(const ClusterPlace& at, std::span<const float> key) {
  const ClusterMap& map = clusters_.map(at.layer, at.stream);
  uint32_t nearest = kNoCluster;
  float least = std::numeric_limits<float>::infinity();
  for (uint32_t cluster = 0; cluster < map.end_cluster(); ++cluster) {
    if (!map.HasRoom(cluster)) continue;
    KVRUN_RETURN_IF_ERROR(index_.ReadCentroid(at.layer, at.stream, cluster, centroid_));
    const float distance = SquaredDistance(key, centroid_);
    if (nearest != kNoCluster && !(distance < least)) continue;
    nearest = cluster;
    least = distance;
  }
  return nearest;
}

// An entry that lies in memory, at `place`; `nearest` may have no room.
Status ClusterLedger::Settle(const ClusterPlace& at, uint32_t position, uint32_t place,
                             std::span<const float> key, uint32_t nearest) {
  ClusterMap& map = clusters_.map(at.layer, at.stream);
  if (is_local()) {
    const bool is_alone = map.pending().empty() && map.CanAdd();
    nearest = is_alone || map.pending().empty() ? kNoCluster : map.pending()[0].cluster;
    if (!is_alone && (nearest == kNoCluster || !map.HasRoom(nearest))) {
      KVRUN_ASSIGN_OR_RETURN(nearest, FindNearest(at, key));
    }
  } else if (nearest == kNoCluster || !map.HasRoom(nearest)) {
    KVRUN_ASSIGN_OR_RETURN(nearest, FindNearest(at, key));
  }
  if (nearest == kNoCluster) {
    if (map.n_free() == map.end_cluster()) {
      const float mean = std::sqrt(Dot(key, key) / static_cast<float>(key.size()));
      std::vector<float> larger(key.begin(), key.end());
      for (float& value : larger) value = kScaleOfOneKey * std::max(std::abs(value), mean);
      KVRUN_RETURN_IF_ERROR(index_.SetScales(at.layer, at.stream, larger));
    }
    const uint32_t cluster = map.Found(position, place);
    KVRUN_RETURN_IF_ERROR(index_.Set(at.layer, at.stream, cluster, key, 0, 0));
  } else {
    KVRUN_RETURN_IF_ERROR(index_.ReadCentroid(at.layer, at.stream, nearest, centroid_));
    map.Settle(position, place, nearest, SquaredDistance(key, centroid_));
  }
  const uint32_t full = map.MustLoad();
  if (full == kNoCluster) return Status::Ok();
  KVRUN_RETURN_IF_ERROR(upkeep_.Maintain(at, full).status());
  return is_local() ? DivideLocal(at, full) : Status::Ok();
}

// Into parts of the mean size at most, as far as there is room.
Status ClusterLedger::DivideLocal(const ClusterPlace& at, uint32_t cluster) {
  ClusterMap& map = clusters_.map(at.layer, at.stream);
  while (map.cluster(cluster).n_stored > plan_.of_clusters().mean_entries && map.CanAdd()) {
    map.Flag(cluster);
    KVRUN_ASSIGN_OR_RETURN(const uint32_t other, upkeep_.Maintain(at, cluster));
    KVRUN_RETURN_IF_ERROR(DivideLocal(at, other));
  }
  return Status::Ok();
}

uint32_t ClusterLedger::Allowed(const KvSpan& span, uint32_t layer) const {
  const uint64_t most = plan_.of_clusters().upkeep_clusters;
  const uint64_t phase = span.first_position * most % n_layers_;
  return static_cast<uint32_t>((most * (layer + 1) + phase) / n_layers_);
}

// Clusters that were chosen are in memory, in slots or (until the next layer but one) in the pool; which
// these are does not depend on how many slots there are. Those that are flagged are divided at once. What
// others gained waits while there is room, so that as much as possible is written with one page: it is
// attended to in any case. So does what there is no time for.
Status ClusterLedger::MaintainPending(const ClusterPlace& at, uint32_t row,
                                      std::span<const uint32_t> chosen) {
  const uint32_t allowed = Allowed(step_->spans[row], at.layer);
  const auto change_one = [&] {
    if (n_changed_[row] >= allowed) {
      ++n_put_off_;
      return false;
    }
    ++n_changed_[row];
    return true;
  };
  const ClusterMap& map = clusters_.map(at.layer, at.stream);
  const auto is_here = [&](uint32_t cluster) {
    const bool is_new = map.cluster(cluster).n_stored == 0 && !is_local();
    return is_new || std::binary_search(chosen.begin(), chosen.end(), cluster);
  };
  for (size_t i = 0; i < map.pending().size();) {
    const uint32_t cluster = map.pending()[i].cluster;
    if (!map.cluster(cluster).is_flagged() || !is_here(cluster)) {
      ++i;
      continue;
    }
    if (!change_one()) return Status::Ok();
    KVRUN_RETURN_IF_ERROR(upkeep_.Maintain(at, cluster).status());  // which takes its entries off the list
    i = 0;
  }
  while (map.pending().size() > WaitingEntries(plan_.of_clusters().max_pending)) {
    uint32_t most = kNoCluster;
    for (const PendingEntry& pending : map.pending()) {
      const uint32_t n_of_most = most == kNoCluster ? 0 : map.cluster(most).n_pending;
      if (map.cluster(pending.cluster).n_pending > n_of_most && is_here(pending.cluster)) {
        most = pending.cluster;
      }
    }
    if (most == kNoCluster || !change_one()) break;
    KVRUN_RETURN_IF_ERROR(upkeep_.Maintain(at, most).status());
  }
  return Status::Ok();
}

Status ClusterLedger::MaintainLayer(uint32_t layer, const KvSelector& selector) {
  for (uint32_t row = 0; row < step_->spans.size(); ++row) {
    Status& broken = broken_[step_->spans[row].sequence];
    broken = MaintainRow(layer, row, selector);
    KVRUN_RETURN_IF_ERROR(broken);
  }
  return Status::Ok();
}

// As the step wanted them, before anything is maintained.
void ClusterLedger::CountWanted(const ClusterPlace& at, std::span<const uint32_t> chosen) {
  const ClusterMap& map = clusters_.map(at.layer, at.stream);
  for (const uint32_t cluster : chosen) wanted_.entries += map.cluster(cluster).n_stored;
  wanted_.runs += store_.CountRuns(at.layer, at.stream, chosen);
  wanted_clusters_ += chosen.size();
}

Status ClusterLedger::MaintainRow(uint32_t layer, uint32_t row, const KvSelector& selector) {
  const KvSpan& span = step_->spans[row];
  const uint32_t sequence = span.sequence;
  const uint32_t position = leaving(span);
  const bool settles = position != kNoEntry && settled(layer, sequence) <= position;
  for (uint32_t i = 0; i < heads(); ++i) {
    const uint32_t head =
        (i + span.first_position) % heads();  // each is the first to change clusters in turn
    const ClusterPlace at{layer, sequence * heads() + head};
    const StreamStep step{.layer = layer, .row = row, .head = head, .stream = at.stream};
    CountWanted(at, selector.LastChoice(step));
    if (settles && position >= plan_.of_clusters().n_sinks) {
      const uint32_t place = FreePlace(at);
      spaces_.DecodeKeys(layer, at.stream, plan_.record, kept_.Record(layer, at.stream, place),
                         plan_.record.head_dim, key_);
      KVRUN_RETURN_IF_ERROR(Settle(at, position, place, key_, index_.Nearest(layer, row, head)));
    }
    KVRUN_RETURN_IF_ERROR(MaintainPending(at, row, selector.LastChoice(step)));
  }
  if (settles) settled(layer, sequence) = position + 1;
  return Status::Ok();
}

void ClusterLedger::AddKeptPositions(uint32_t layer, uint32_t row, uint32_t head,
                                     std::vector<uint32_t>* positions) const {
  const KvSpan& of = step_->spans[row];
  const uint32_t end = leaving(of) == kNoEntry ? 0 : leaving(of) + 1;
  for (uint32_t sink = 0; sink < std::min(plan_.of_clusters().n_sinks, end); ++sink)
    positions->push_back(sink);
  const uint32_t stream = of.sequence * heads() + head;
  for (const PendingEntry& pending : clusters_.map(layer, stream).pending()) {
    positions->push_back(pending.position);
  }
  const bool arrives = end > plan_.of_clusters().n_sinks && settled(layer, of.sequence) < end;
  if (arrives) positions->push_back(end - 1);
}

void ClusterLedger::EndStep() {
  for (const KvSpan& span : step_->spans) lengths_[span.sequence] = span.end();
}

ClusterReport ClusterLedger::clusters() const {
  ClusterReport report;
  report.moves = upkeep_.moves();
  report.records_read = store_.stats().records_read;
  report.runs = store_.stats().runs;
  report.put_off = n_put_off_;
  report.wanted = wanted_;
  report.wanted_clusters = wanted_clusters_;
  double variances = 0.0;
  double cluster_variances = 0.0;
  for (uint32_t i = 0; i < n_layers_; ++i) {
    for (uint32_t stream = 0; stream < plan_.n_streams; ++stream) {
      const ClusterMap& map = clusters_.map(i, stream);
      report.pending += map.pending().size();
      report.divisions += map.stats().divisions;
      report.forced_loads += map.stats().loads;
      report.joined_for_room += map.stats().joined_for_room;
      for (uint32_t cluster = 0; cluster < map.end_cluster(); ++cluster) {
        const Cluster& of = map.cluster(cluster);
        if (of.n_stored == 0) continue;
        ++report.clusters;
        report.entries += of.n_stored;
        cluster_variances += of.variance;
        variances += double{of.variance} * of.n_stored;
      }
    }
  }
  if (report.clusters == 0) return report;
  report.variance = variances / static_cast<double>(report.entries);
  report.cluster_variance = cluster_variances / static_cast<double>(report.clusters);
  return report;
}

}  // namespace kvrun
