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

Status OffloadedCache::FetchLayer(uint32_t layer_index) {
  const Clock::time_point begin = Clock::now();
  Layer& layer = layers_[layer_index];
  if (selects()) KVRUN_RETURN_IF_ERROR(layer.chosen->Invalidate(0, layer.chosen->size_bytes()));
  for (uint32_t row = 0; row < rows_.size(); ++row) {
    for (uint32_t head = 0; head < heads(); ++head) {
      KVRUN_RETURN_IF_ERROR(FetchStream(layer_index, row, head));
    }
  }
  const Status status = FlushAll(*layer.table);
  const double elapsed_ms = MillisecondsSince(begin);
  stats_.fetch_ms += elapsed_ms;
  stats_.layer_fetch_ms[layer_index] += elapsed_ms;
  return status;
}

// The groups of a row before its window into slots, and the row's mapping tables. After an error the table
// names nothing: the device reads it nevertheless.
Status OffloadedCache::FetchStream(uint32_t layer_index, uint32_t row, uint32_t head) {
  Layer& layer = layers_[layer_index];
  const KvRow& entry = rows_[row];
  const uint32_t stream = entry.sequence * heads() + head;
  const uint32_t n_before_window = window_.FirstGroup(entry.position + 1);
  const SlotShape shape = slot_shape();
  const std::span<uint32_t> table =
      Words(*layer.table).subspan(size_t{stream} * (2 + shape.table_slots), 2 + shape.table_slots);
  table[0] = 0;
  table[1] = group_tokens();
  if (!selects()) {
    if (reloads_all()) KVRUN_RETURN_IF_ERROR(ReadAll(layer_index, stream, n_before_window));
    for (uint32_t n = 0; n < n_before_window; ++n) table[2 + n] = n;
    table[0] = n_before_window;
    return window_.BeginEntry(layer_index, stream, entry.position);
  }
  const std::span<const uint32_t> list =
      Words(*layer.chosen).subspan((size_t{row} * heads() + head) * (1 + plan_.n_chosen), 1 + plan_.n_chosen);
  const uint32_t count = std::min(list[0], plan_.n_chosen);
  if (count != list[0] || (count > 0 && list[count] >= n_before_window)) {
    return {StatusCode::kDevice,
            fmt::format(
                "layer {}: the device chose {} groups up to number {}, and there are {}; run kvrun doctor",
                layer_index, list[0], count > 0 ? list[count] : 0, n_before_window)};
  }
  const std::span<const uint32_t> chosen =
      replayed_.empty() ? list.subspan(1, count)
                        : replayed_[size_t{layer_index} * plan_.n_streams + stream].Next(n_before_window);
  KVRUN_ASSIGN_OR_RETURN(const std::span<const uint32_t> slots, ReadChosen(layer_index, stream, chosen));
  std::copy(slots.begin(), slots.end(), table.begin() + 2);
  table[0] = static_cast<uint32_t>(slots.size());
  return window_.BeginEntry(layer_index, stream, entry.position);
}

// Answers the slots of the chosen groups.
Result<std::span<const uint32_t>> OffloadedCache::ReadChosen(uint32_t layer_index, uint32_t stream,
                                                             std::span<const uint32_t> chosen) {
  Layer& layer = layers_[layer_index];
  const SlotCache::PlanResult plan = layer.caches[stream].Plan(chosen);
  fetches_.clear();
  for (const SlotLoad& load : plan.loads)
    fetches_.push_back({load.extent, SlotBytes(layer, stream, load.slot)});
  const Status status = FetchIntoSlots(layer_index, stream);
  if (!status.ok()) {
    for (const SlotLoad& load : plan.loads) layer.caches[stream].Drop(load.slot);
    return status;
  }
  for (const GroupFetch& fetch : fetches_) {
    KVRUN_RETURN_IF_ERROR(
        layer.slots->Flush(static_cast<uint64_t>(fetch.memory - layer.slots->host().data()), record_bytes()));
  }
  const auto chosen_count = static_cast<uint64_t>(std::count_if(
      chosen.begin(), chosen.end(), [this](uint32_t group) { return group >= plan_.n_pinned; }));
  const auto loaded_count =
      static_cast<uint64_t>(std::count_if(plan.loads.begin(), plan.loads.end(), [this](const SlotLoad& load) {
        return load.extent >= plan_.n_pinned;
      }));
  stats_.chosen_groups += chosen_count;
  stats_.hit_groups += chosen_count - loaded_count;
  stats_.layer_loads[layer_index] += loaded_count;
  return plan.slots;
}

Status OffloadedCache::FetchIntoSlots(uint32_t layer_index, uint32_t stream) {
  if (read_log_) {
    read_log_->reads.push_back({layer_index, stream, read_log_->fetches.size(), fetches_.size()});
    read_log_->fetches.insert(read_log_->fetches.end(), fetches_.begin(), fetches_.end());
  }
  const Clock::time_point begin = Clock::now();
  const Status status = store_->Fetch(layer_index, stream, fetches_);
  stats_.io_ms += MillisecondsSince(begin);
  return status;
}

Status OffloadedCache::ReadAll(uint32_t layer_index, uint32_t stream, uint32_t n_groups) {
  Layer& layer = layers_[layer_index];
  fetches_.clear();
  for (uint32_t group = 0; group < n_groups; ++group)
    fetches_.push_back({group, SlotBytes(layer, stream, group)});
  KVRUN_RETURN_IF_ERROR(FetchIntoSlots(layer_index, stream));
  stats_.layer_loads[layer_index] += n_groups;
  return layer.slots->Flush(static_cast<uint64_t>(SlotBytes(layer, stream, 0) - layer.slots->host().data()),
                            n_groups * record_bytes());
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
