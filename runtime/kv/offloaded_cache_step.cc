// A decode step's share of OffloadedCache: what the KV thread does for each layer.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <numeric>

#include "platform/base/check.h"
#include "runtime/kv/host_buffer.h"
#include "runtime/kv/offloaded_cache.h"

namespace kvrun {
namespace {

using Clock = std::chrono::steady_clock;

double MillisecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

}  // namespace

// After an error the tables name nothing: the device reads them nevertheless.
Status OffloadedCache::FetchLayer(uint32_t layer_index) {
  const Clock::time_point begin = Clock::now();
  Layer& layer = layers_[layer_index];
  if (selects()) KVRUN_RETURN_IF_ERROR(layer.chosen->Invalidate(0, layer.chosen->size_bytes()));
  fetches_.clear();
  planned_.clear();
  Status status;
  for (uint32_t row = 0; row < rows_.size() && status.ok(); ++row) {
    for (uint32_t head = 0; head < heads() && status.ok(); ++head)
      status = PlanStream(layer_index, row, head);
  }
  if (status.ok()) status = ReadPlanned(layer_index);
  if (!status.ok()) {
    DropPlanned(layer_index);
    return status;
  }
  for (uint32_t row = 0; row < rows_.size(); ++row) {
    for (uint32_t head = 0; head < heads(); ++head) KVRUN_RETURN_IF_ERROR(NameSlots(layer_index, row, head));
  }
  status = FlushAll(*layer.table);
  const double elapsed_ms = MillisecondsSince(begin);
  stats_.fetch_ms += elapsed_ms;
  stats_.layer_fetch_ms[layer_index] += elapsed_ms;
  return status;
}

std::span<uint32_t> OffloadedCache::TableOf(const Layer& layer, uint32_t stream) const {
  const size_t words = 2 + slot_shape().table_slots;
  return Words(*layer.table).subspan(stream * words, words);
}

Status OffloadedCache::PlanStream(uint32_t layer_index, uint32_t row, uint32_t head) {
  Layer& layer = layers_[layer_index];
  const uint32_t stream = StreamOf(row, head);
  const std::span<uint32_t> table = TableOf(layer, stream);
  table[0] = 0;
  table[1] = group_tokens();
  if (reloads_all()) {
    const uint32_t n_groups = window_.FirstGroup(rows_[row].position + 1);
    for (uint32_t group = 0; group < n_groups; ++group)
      fetches_.push_back({stream, group, SlotBytes(layer, stream, group)});
    stats_.layer_loads[layer_index] += n_groups;
  }
  if (!selects()) return Status::Ok();
  KVRUN_ASSIGN_OR_RETURN(const std::span<const uint32_t> chosen, ChosenGroups(layer_index, row, head));
  planned_.push_back(layer.caches[stream].Plan(chosen));
  uint64_t n_loads = 0;  // pinned groups do not count
  for (const SlotLoad& load : planned_.back().loads) {
    fetches_.push_back({stream, load.extent, SlotBytes(layer, stream, load.slot)});
    if (load.extent >= plan_.n_pinned) ++n_loads;
  }
  const auto n_chosen = static_cast<uint64_t>(std::count_if(
      chosen.begin(), chosen.end(), [this](uint32_t group) { return group >= plan_.n_pinned; }));
  stats_.chosen_groups += n_chosen;
  stats_.hit_groups += n_chosen - n_loads;
  stats_.layer_loads[layer_index] += n_loads;
  return Status::Ok();
}

// What the device chose, or what takes its place; ascending.
Result<std::span<const uint32_t>> OffloadedCache::ChosenGroups(uint32_t layer_index, uint32_t row,
                                                               uint32_t head) {
  const uint32_t n_before_window = window_.FirstGroup(rows_[row].position + 1);
  const std::span<const uint32_t> list =
      Words(*layers_[layer_index].chosen)
          .subspan((size_t{row} * heads() + head) * (1 + plan_.n_chosen), 1 + plan_.n_chosen);
  const uint32_t count = std::min(list[0], plan_.n_chosen);
  if (count != list[0] || (count > 0 && list[count] >= n_before_window)) {
    return Status(StatusCode::kDevice,
                  fmt::format("layer {}: the device chose {} groups up to number {}, and there are {}; run "
                              "kvrun doctor",
                              layer_index, list[0], count > 0 ? list[count] : 0, n_before_window));
  }
  if (replayed_.empty()) return list.subspan(1, count);
  return replayed_[size_t{layer_index} * plan_.n_streams + StreamOf(row, head)].Next(n_before_window);
}

// fetches_ into slots: one batch.
Status OffloadedCache::ReadPlanned(uint32_t layer_index) {
  if (flash_ == nullptr) return Status::Ok();  // everything is where it is attended to
  if (read_log_) {
    read_log_->reads.push_back({layer_index, read_log_->fetches.size(), fetches_.size()});
    read_log_->fetches.insert(read_log_->fetches.end(), fetches_.begin(), fetches_.end());
  }
  const Clock::time_point begin = Clock::now();
  const Status status = flash_->Fetch(layer_index, fetches_);
  stats_.io_ms += MillisecondsSince(begin);
  return status.ok() ? FlushFetched(*layers_[layer_index].slots) : status;
}

void OffloadedCache::DropPlanned(uint32_t layer_index) {
  for (size_t i = 0; i < planned_.size(); ++i) {
    const auto row = static_cast<uint32_t>(i) / heads();
    SlotCache& cache = layers_[layer_index].caches[StreamOf(row, static_cast<uint32_t>(i) % heads())];
    for (const SlotLoad& load : planned_[i].loads) cache.Drop(load.slot);
  }
}

// Records that lie side by side are flushed together.
Status OffloadedCache::FlushFetched(Buffer& slots) {
  const std::byte* const begin = slots.host().data();
  for (size_t i = 0; i < fetches_.size();) {
    size_t end = i + 1;
    while (end < fetches_.size() && fetches_[end].memory == fetches_[end - 1].memory + record_bytes()) ++end;
    KVRUN_RETURN_IF_ERROR(
        slots.Flush(static_cast<uint64_t>(fetches_[i].memory - begin), (end - i) * record_bytes()));
    i = end;
  }
  return Status::Ok();
}

// The groups of a row before its window: where there are no caches, each lies in its own slot.
Status OffloadedCache::NameSlots(uint32_t layer_index, uint32_t row, uint32_t head) {
  const uint32_t stream = StreamOf(row, head);
  const uint32_t position = rows_[row].position;
  const std::span<uint32_t> table = TableOf(layers_[layer_index], stream);
  if (selects()) {
    const std::span<const uint32_t> slots = planned_[size_t{row} * heads() + head].slots;
    std::copy(slots.begin(), slots.end(), table.begin() + 2);
    table[0] = static_cast<uint32_t>(slots.size());
  } else {
    table[0] = window_.FirstGroup(position + 1);
    std::iota(table.begin() + 2, table.begin() + 2 + table[0], 0U);
  }
  return window_.BeginEntry(layer_index, stream, position);
}

std::vector<std::vector<uint32_t>> OffloadedCache::GroupsBeforeWindow(uint32_t layer, uint32_t row,
                                                                      uint32_t position) const {
  std::vector<std::vector<uint32_t>> groups(heads());
  for (uint32_t head = 0; head < heads(); ++head) {
    if (!selects()) {
      groups[head].resize(window_.FirstGroup(position + 1));
      std::iota(groups[head].begin(), groups[head].end(), 0U);
      continue;
    }
    const std::span<const uint32_t> list =
        Words(*layers_[layer].chosen)
            .subspan((size_t{row} * heads() + head) * (1 + plan_.n_chosen), 1 + plan_.n_chosen);
    groups[head].assign(list.begin() + 1, list.begin() + 1 + list[0]);
  }
  return groups;
}

Status OffloadedCache::EndStep() {
  for (const KvRow& row : rows_) lengths_[row.sequence] = row.position + 1;
  return Status::Ok();
}

}  // namespace kvrun
