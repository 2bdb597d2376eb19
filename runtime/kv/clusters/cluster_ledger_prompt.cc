// Prompts: what becomes of their entries, what one that fails leaves, and what they attend to of earlier
// ones.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "platform/base/check.h"
#include "platform/base/units.h"
#include "runtime/device/record_codec.h"
#include "runtime/kv/clusters/cluster_ledger.h"
#include "runtime/kv/math/key_division.h"

namespace kvrun {
namespace {

// Of fewer clusters, a threshold would be that of chance.
constexpr uint32_t kClustersOfThreshold = 4;
// A prompt reads earlier entries of a layer so many times over at most, each time to have some in order.
constexpr uint32_t kMostImages = 16;
constexpr uint32_t kLeastImageEntries = 256;

float MeanOf(std::span<const float> values) {
  double sum = 0.0;
  for (const float value : values) sum += value;
  return static_cast<float>(sum / static_cast<double>(values.size()));
}

}  // namespace

// Of a layer, after a prefill that has failed: clusters that it has added go.
Status ClusterLedger::UndoStreams(uint32_t layer, uint32_t sequence, bool* is_mixed) {
  const uint32_t first = settled_before_[size_t{layer} * lengths_.size() + sequence];
  Status undone = Status::Ok();
  for (uint32_t stream = sequence * heads(); stream < (sequence + 1) * heads(); ++stream) {
    const ClusterMap& map = clusters_.map(layer, stream);
    for (uint32_t cluster = 0; cluster < map.end_cluster(); ++cluster) {
      const size_t at = (size_t{layer} * plan_.n_streams + stream) * map.end_cluster() + cluster;
      if (is_new_[at] && map.cluster(cluster).n_stored > 0) {
        const Status removed = upkeep_.Remove({layer, stream}, cluster);
        if (undone.ok()) undone = removed;
      }
      *is_mixed = *is_mixed || map.cluster(cluster).end > first;
    }
    for (const PendingEntry& pending : map.pending()) *is_mixed = *is_mixed || pending.position >= first;
  }
  settled(layer, sequence) = std::min(settled(layer, sequence), first);
  return undone;
}

// After a prefill that has failed: what the sequence had before.
Status ClusterLedger::UndoPrefill() {
  if (!window_.in_prefill()) return Status::Ok();
  const uint32_t sequence = window_.prefilled_sequence();
  prompt_.reset();
  image_ = {};
  bool is_mixed = false;
  for (uint32_t i = 0; i < n_layers_; ++i) {
    // Where the index cannot be read or written, the rest is undone all the same.
    Status undone = UndoStreams(i, sequence, &is_mixed);
    if (broken_[sequence].ok()) broken_[sequence] = std::move(undone);
  }
  if (is_mixed && broken_[sequence].ok()) {
    // Unread, entries that were added to earlier clusters cannot be told from those that were there.
    broken_[sequence] = Status(
        StatusCode::kCorrupt,
        fmt::format(
            "a prompt that was not finished has left entries in clusters of earlier ones (all layers, from "
            "stream {} on): the sequence has to be computed again",
            sequence * heads()));
  }
  return window_.UndoPrefill();
}

Status ClusterLedger::BeginPrefill(uint32_t sequence, uint32_t begin) {
  KVRUN_RETURN_IF_ERROR(UndoPrefill());
  KVRUN_RETURN_IF_ERROR(Forget(sequence, begin));
  std::fill(is_new_.begin(), is_new_.end(), false);
  settled_before_ = settled_;
  return window_.BeginPrefill(sequence, begin, window_.FirstGroup(begin));
}

Status ClusterLedger::KeepSinks(const ClusterPlace& at, uint32_t head, uint32_t begin, uint32_t end,
                                PromptEntries& entries) {
  if (begin >= end) return Status::Ok();
  const uint64_t bytes = plan_.record.size_bytes();
  return entries.VisitRecords(
      head, begin, end, PromptEntries::Want::kKeysAndValues,
      [&](uint32_t first, std::span<const std::byte> records) {
        for (uint32_t i = 0; i * bytes < records.size(); ++i) {
          KVRUN_RETURN_IF_ERROR(kept_.Put(at.layer, at.stream, first + i, records.subspan(i * bytes, bytes)));
        }
        return Status::Ok();
      });
}

// What prompt_ has divided, from entry `begin` on, numbered in this order where the stream has no clusters
// yet.
Status ClusterLedger::AddClusters(const ClusterPlace& at, uint32_t begin, std::span<const uint32_t> order) {
  const PromptClusters& made = prompt_->clusters();
  ClusterMap& map = clusters_.map(at.layer, at.stream);
  KVRUN_RETURN_IF_ERROR(SetScales(at, made.centroids));
  const Status added = AddAll(at, begin, order);
  for (uint32_t cluster = 0; cluster < map.end_cluster(); ++cluster) {
    if (map.cluster(cluster).n_stored == 0 || map.cluster(cluster).end <= begin) continue;
    is_new_[(size_t{at.layer} * plan_.n_streams + at.stream) * map.end_cluster() + cluster] = true;
  }
  if (std::isinf(map.threshold()) && made.n_clusters() >= kClustersOfThreshold) {
    map.SetThreshold(clusters_.threshold_factor(at.layer, at.stream) * MeanOf(made.variances));
  }
  return added;
}

// Column scales for a prompt's centroids, the first that the stream has: rows that are there are packed anew.
Status ClusterLedger::SetScales(const ClusterPlace& at, std::span<const float> centroids) {
  const size_t nth = size_t{at.layer} * plan_.n_streams + at.stream;
  if (has_scales_[nth]) return Status::Ok();
  const ClusterMap& map = clusters_.map(at.layer, at.stream);
  const size_t dim = plan_.record.head_dim;
  std::vector<float> all(centroids.begin(), centroids.end());
  for (uint32_t cluster = 0; cluster < map.end_cluster(); ++cluster) {
    if (map.cluster(cluster).size() == 0) continue;
    KVRUN_RETURN_IF_ERROR(index_.ReadCentroid(at.layer, at.stream, cluster, centroid_));
    all.insert(all.end(), centroid_.begin(), centroid_.end());
  }
  KVRUN_RETURN_IF_ERROR(index_.SetScales(at.layer, at.stream, all));
  size_t next = centroids.size();
  for (uint32_t cluster = 0; cluster < map.end_cluster(); ++cluster) {
    if (map.cluster(cluster).size() == 0) continue;
    KVRUN_RETURN_IF_ERROR(index_.Set(at.layer, at.stream, cluster, std::span(all).subspan(next, dim),
                                     map.cluster(cluster).n_stored,
                                     clusters_.n_records(at.layer, at.stream, cluster)));
    next += dim;
  }
  has_scales_[nth] = true;
  return Status::Ok();
}

Status ClusterLedger::AddAll(const ClusterPlace& at, uint32_t begin, std::span<const uint32_t> order) {
  const PromptClusters& made = prompt_->clusters();
  const size_t dim = plan_.record.head_dim;
  std::vector<uint32_t> positions;
  for (const uint32_t i : order) {
    const std::span<const uint32_t> entries = made.entries(i);
    positions.assign(entries.begin(), entries.end());
    for (uint32_t& position : positions) position += begin;
    KVRUN_RETURN_IF_ERROR(upkeep_.Add(
        at, positions, [&](size_t entry) { return prompt_->Record(entries[entry]); },
        std::span(made.centroids).subspan(i * dim, dim), made.variances[i]));
  }
  return Status::Ok();
}

// Where the index has no room for clusters of their own.
Status ClusterLedger::SettleOneByOne(const ClusterPlace& at, uint32_t head, uint32_t begin, uint32_t end,
                                     PromptEntries& entries) {
  const uint64_t bytes = plan_.record.size_bytes();
  return entries.VisitRecords(head, begin, end, PromptEntries::Want::kKeysAndValues,
                              [&](uint32_t first, std::span<const std::byte> records) {
                                for (uint32_t i = 0; i * bytes < records.size(); ++i) {
                                  const std::span<const std::byte> record = records.subspan(i * bytes, bytes);
                                  const uint32_t place = FreePlace(at);
                                  KVRUN_RETURN_IF_ERROR(kept_.Put(at.layer, at.stream, place, record));
                                  spaces_.DecodeKeys(at.layer, at.stream, plan_.record, record,
                                                     plan_.record.head_dim, key_);
                                  KVRUN_ASSIGN_OR_RETURN(const uint32_t nearest, FindNearest(at, key_));
                                  KVRUN_RETURN_IF_ERROR(Settle(at, first + i, place, key_, nearest));
                                }
                                return Status::Ok();
                              });
}

Status ClusterLedger::StoreLayer(uint32_t layer, const KvRange& prompt, PromptEntries& entries) {
  image_ = {};
  return WithRows(layer, prompt.sequence, [&] { return StoreStreams(layer, prompt, entries); });
}

Status ClusterLedger::StoreStreams(uint32_t layer, const KvRange& prompt, PromptEntries& entries) {
  const uint32_t begin = settled(layer, prompt.sequence);
  const uint32_t end = window_.FirstGroup(prompt.end);
  prompt_ = std::make_unique<ClusterPrompt>(device_, plan_);
  for (uint32_t head = 0; head < heads() && begin < end; ++head) {
    const ClusterPlace at{layer, prompt.sequence * heads() + head};
    const ClusterMap& map = clusters_.map(layer, at.stream);
    const uint32_t sinks_end = std::min(end, std::max(begin, plan_.of_clusters().n_sinks));
    KVRUN_RETURN_IF_ERROR(KeepSinks(at, head, begin, sinks_end, entries));
    if (sinks_end == end) continue;
    const uint32_t room = map.n_room();
    if (uint64_t{room} * plan_.of_clusters().max_entries < end - sinks_end) {
      KVRUN_RETURN_IF_ERROR(SettleOneByOne(at, head, sinks_end, end, entries));
      continue;
    }
    const uint64_t seed = (uint64_t{layer} << 32) + at.stream;
    const ClusterPrompt::EntryRange range{sinks_end, end};
    KVRUN_RETURN_IF_ERROR(
        prompt_->Divide(entries, head, range, room, seed, spaces_.MeanKey(layer, at.stream)));
    const std::vector<uint32_t> order = prompt_->Order(entries, head);
    KVRUN_RETURN_IF_ERROR(prompt_->LoadRecords(entries, head, range));
    KVRUN_RETURN_IF_ERROR(AddClusters(at, sinks_end, order));
  }
  prompt_.reset();
  settled(layer, prompt.sequence) = std::max(begin, end);
  return Status::Ok();
}

Status ClusterLedger::EndPrefill(uint32_t sequence, uint32_t length) {
  KVRUN_RETURN_IF_ERROR(store_.Flush());
  KVRUN_RETURN_IF_ERROR(window_.EndPrefill(length));
  lengths_[sequence] = length;
  image_ = {};
  return Status::Ok();
}

Status ClusterLedger::StoreRepeated(uint32_t layer, uint32_t sequence, uint32_t length,
                                    std::span<const std::byte> records) {
  return WithRows(layer, sequence, [&] { return RepeatStreams(layer, sequence, length, records); });
}

Status ClusterLedger::RepeatStreams(uint32_t layer, uint32_t sequence, uint32_t length,
                                    std::span<const std::byte> records) {
  const uint64_t bytes = plan_.record.size_bytes();
  const auto n_records = static_cast<uint32_t>(records.size() / bytes);
  const uint32_t end = window_.FirstGroup(length);
  const uint32_t begin = std::min(end, plan_.of_clusters().n_sinks);
  const uint32_t most = std::min(plan_.of_clusters().mean_entries, plan_.of_clusters().max_entries);
  const uint32_t n_clusters = std::max(1U, CeilDiv(end - begin, most));
  const auto record = [&](uint32_t position) { return records.subspan(position % n_records * bytes, bytes); };
  std::vector<uint32_t> positions;
  std::vector<float> keys;
  for (uint32_t stream = sequence * heads(); stream < (sequence + 1) * heads(); ++stream) {
    for (uint32_t sink = 0; sink < begin; ++sink) {
      KVRUN_RETURN_IF_ERROR(kept_.Put(layer, stream, sink, record(sink)));
    }
    for (uint32_t cluster = 0; cluster < n_clusters && begin < end; ++cluster) {
      positions.clear();
      keys.clear();
      for (uint32_t position = begin + cluster; position < end; position += n_clusters) {
        positions.push_back(position);
        spaces_.DecodeKeys(layer, stream, plan_.record, record(position + stream), plan_.record.head_dim,
                           key_);
        keys.insert(keys.end(), key_.begin(), key_.end());
      }
      if (cluster == 0) KVRUN_RETURN_IF_ERROR(SetScales({layer, stream}, keys));
      const float variance = FindSpread(keys, centroid_);
      KVRUN_RETURN_IF_ERROR(upkeep_.Add(
          {layer, stream}, positions, [&](size_t i) { return record(positions[i] + stream); }, centroid_,
          variance));
      clusters_.map(layer, stream).SetThreshold(clusters_.threshold_factor(layer, stream) * variance);
    }
  }
  settled(layer, sequence) = end;
  return Status::Ok();
}

uint32_t ClusterLedger::ImageEntries(const KvPlan& plan) {
  return RoundUp(std::max(plan.n_ctx / kMostImages, kLeastImageEntries), kLeastImageEntries);
}

uint64_t ClusterLedger::ImageBytes(const KvPlan& plan) {
  return uint64_t{std::min(ImageEntries(plan), plan.n_ctx)} * plan.heads_per_sequence() *
         plan.record.size_bytes();
}

// Of all streams of a sequence, from `begin` on, as many as a tile has.
Status ClusterLedger::MakeImage(uint32_t layer, uint32_t sequence, uint32_t begin) {
  const uint32_t end = std::min(settled(layer, sequence), begin + ImageEntries(plan_));
  const uint64_t bytes = plan_.record.size_bytes();
  image_.layer = kNoEntry;
  image_.records.resize(uint64_t{heads()} * (end - begin) * bytes);
  for (uint32_t head = 0; head < heads(); ++head) {
    const ClusterPlace at{layer, sequence * heads() + head};
    const ClusterMap& map = clusters_.map(layer, at.stream);
    const auto put = [&](uint32_t position, std::span<const std::byte> record) {
      if (position < begin || position >= end) return Status::Ok();
      const uint64_t place = uint64_t{head} * (end - begin) + position - begin;
      std::memcpy(image_.records.data() + place * bytes, record.data(), bytes);
      return Status::Ok();
    };
    for (uint32_t sink = 0; sink < plan_.of_clusters().n_sinks; ++sink) {
      KVRUN_RETURN_IF_ERROR(put(sink, kept_.Record(layer, at.stream, sink)));
    }
    for (const PendingEntry& pending : map.pending()) {
      KVRUN_RETURN_IF_ERROR(put(pending.position, kept_.Record(layer, at.stream, pending.place)));
    }
    for (uint32_t cluster = 0; cluster < map.end_cluster(); ++cluster) {
      if (map.cluster(cluster).n_stored == 0 || map.cluster(cluster).end <= begin) continue;
      KVRUN_RETURN_IF_ERROR(upkeep_.Visit(at, cluster, put));
    }
  }
  image_.layer = layer;
  image_.sequence = sequence;
  image_.begin = begin;
  image_.end = end;
  return Status::Ok();
}

Status ClusterLedger::ReadGroups(uint32_t layer, uint32_t stream, uint32_t first_group, uint32_t n_groups,
                                 std::span<std::byte> records) {
  const uint32_t sequence = stream / heads();
  const bool is_there = image_.layer == layer && image_.sequence == sequence && first_group >= image_.begin &&
                        first_group + n_groups <= image_.end;
  if (!is_there) KVRUN_RETURN_IF_ERROR(MakeImage(layer, sequence, first_group));
  KVRUN_CHECK(first_group + n_groups <= image_.end);
  const uint64_t bytes = plan_.record.size_bytes();
  const uint64_t place =
      uint64_t{stream % heads()} * (image_.end - image_.begin) + first_group - image_.begin;
  std::memcpy(records.data(), image_.records.data() + place * bytes, n_groups * bytes);
  return Status::Ok();
}

// No index of clusters learns from stored keys.
Status ClusterLedger::Visit(uint32_t /*layer*/, uint32_t /*sequence*/, uint32_t /*begin*/,
                            const KeysFn& /*visit*/) {
  return {StatusCode::kUnsupported, "keys of clusters are not visited in order"};
}

}  // namespace kvrun
