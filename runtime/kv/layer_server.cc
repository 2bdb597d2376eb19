#include "runtime/kv/layer_server.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "runtime/kv/host_buffer.h"

namespace kvrun {
namespace {

using Clock = std::chrono::steady_clock;

double MillisecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

}  // namespace

LayerServer::LayerServer(const KvPlan& plan, uint32_t n_layers, RecentWindow& window, SlotPool& pool,
                         bool reloads)
    : plan_(plan), window_(window), pool_(pool), reloads_(reloads) {
  rows_.reserve(plan.n_sequences);
  fetches_.reserve(size_t{plan.n_streams} * plan.n_chosen);
  planned_.reserve(plan.n_streams);
  stats_.layer_fetch_ms.resize(n_layers);
  stats_.layer_loads.resize(n_layers);
}

void LayerServer::ResetStats() {
  const size_t n_layers = stats_.layer_loads.size();
  stats_ = {};
  stats_.layer_fetch_ms.resize(n_layers);
  stats_.layer_loads.resize(n_layers);
}

StreamStep LayerServer::StreamStepOf(uint32_t layer, uint32_t row, uint32_t head, uint32_t position) const {
  const uint32_t sequence = row < rows_.size() ? rows_[row].sequence : 0;
  return {layer, row, head, sequence * heads() + head, position, window_.FirstGroup(position + 1)};
}

Status LayerServer::Serve(uint32_t layer) {
  const Clock::time_point begin = Clock::now();
  Status status = PlanLayer(layer);
  if (status.ok()) status = ReadPlanned(layer);
  if (!status.ok()) {
    DropPlanned(layer);
    return status;
  }
  for (uint32_t row = 0; row < rows_.size(); ++row) {
    for (uint32_t head = 0; head < heads(); ++head) {
      KVRUN_RETURN_IF_ERROR(NameSlots(StreamStepOf(layer, row, head, rows_[row].position)));
    }
  }
  status = FlushAll(*pool_.table(layer));
  const double elapsed_ms = MillisecondsSince(begin);
  stats_.fetch_ms += elapsed_ms;
  stats_.layer_fetch_ms[layer] += elapsed_ms;
  return status;
}

// What is to be read of every stream, all of it at once, and where it lies now.
Status LayerServer::PlanLayer(uint32_t layer) {
  fetches_.clear();
  planned_.clear();
  for (uint32_t row = 0; row < rows_.size(); ++row) {
    for (uint32_t head = 0; head < heads(); ++head) {
      const StreamStep step = StreamStepOf(layer, row, head, rows_[row].position);
      const std::span<uint32_t> table = pool_.TableOf(layer, step.stream);
      table[0] = 0;
      table[1] = plan_.record.group_tokens;
      if (selector_ != nullptr) {
        KVRUN_RETURN_IF_ERROR(PlanChosen(step));
      } else if (reloads_) {
        PlanAll(step);
      }
    }
  }
  return Status::Ok();
}

void LayerServer::PlanAll(const StreamStep& step) {
  for (uint32_t group = 0; group < step.n_groups; ++group) {
    fetches_.push_back({step.stream, group, pool_.SlotBytes(step.layer, step.stream, group)});
  }
  stats_.layer_loads[step.layer] += step.n_groups;
}

Status LayerServer::PlanChosen(const StreamStep& step) {
  KVRUN_ASSIGN_OR_RETURN(const std::span<const uint32_t> chosen, selector_->Choose(step));
  planned_.push_back(pool_.cache(step.layer, step.stream).Plan(chosen));
  uint64_t n_loads = 0;  // pinned groups do not count
  for (const SlotLoad& load : planned_.back().loads) {
    fetches_.push_back({step.stream, load.extent, pool_.SlotBytes(step.layer, step.stream, load.slot)});
    if (load.extent >= plan_.n_pinned) ++n_loads;
  }
  const auto n_chosen = static_cast<uint64_t>(std::count_if(
      chosen.begin(), chosen.end(), [this](uint32_t group) { return group >= plan_.n_pinned; }));
  stats_.chosen_groups += n_chosen;
  stats_.least_groups = stats_.choices == 0 ? n_chosen : std::min(stats_.least_groups, n_chosen);
  stats_.most_groups = std::max(stats_.most_groups, n_chosen);
  ++stats_.choices;
  stats_.hit_groups += n_chosen - n_loads;
  stats_.layer_loads[step.layer] += n_loads;
  return Status::Ok();
}

// fetches_ into slots: one batch.
Status LayerServer::ReadPlanned(uint32_t layer) {
  if (selector_ == nullptr && !reloads_) return Status::Ok();  // everything is where it is attended to
  const Clock::time_point begin = Clock::now();
  const Status status = store_->Fetch(layer, fetches_);
  stats_.io_ms += MillisecondsSince(begin);
  return status.ok() ? FlushFetched(*pool_.slots(layer)) : status;
}

void LayerServer::DropPlanned(uint32_t layer) {
  for (size_t i = 0; i < planned_.size(); ++i) {
    const KvRow& row = rows_[i / heads()];
    const auto stream = static_cast<uint32_t>(row.sequence * heads() + i % heads());
    for (const SlotLoad& load : planned_[i].loads) pool_.cache(layer, stream).Drop(load.slot);
  }
}

// Records that lie side by side are flushed together.
Status LayerServer::FlushFetched(Buffer& slots) {
  const uint64_t record_bytes = plan_.record.size_bytes();
  const std::byte* const begin = slots.host().data();
  for (size_t i = 0; i < fetches_.size();) {
    size_t end = i + 1;
    while (end < fetches_.size() && fetches_[end].memory == fetches_[end - 1].memory + record_bytes) ++end;
    KVRUN_RETURN_IF_ERROR(
        slots.Flush(static_cast<uint64_t>(fetches_[i].memory - begin), (end - i) * record_bytes));
    i = end;
  }
  return Status::Ok();
}

// The groups of a row before its window.
Status LayerServer::NameSlots(const StreamStep& step) {
  const std::span<uint32_t> table = pool_.TableOf(step.layer, step.stream);
  if (selector_ != nullptr) {
    const std::span<const uint32_t> slots = planned_[size_t{step.row} * heads() + step.head].slots;
    std::copy(slots.begin(), slots.end(), table.begin() + 2);
    table[0] = static_cast<uint32_t>(slots.size());
  } else {
    table[0] = step.n_groups;
    std::iota(table.begin() + 2, table.begin() + 2 + table[0], 0U);
  }
  return window_.BeginEntry(step.layer, step.stream, rows_[step.row].position);
}

std::vector<std::vector<uint32_t>> LayerServer::GroupsBeforeWindow(uint32_t layer, uint32_t row,
                                                                   uint32_t position) const {
  std::vector<std::vector<uint32_t>> groups(heads());
  for (uint32_t head = 0; head < heads(); ++head) {
    const StreamStep step = StreamStepOf(layer, row, head, position);
    if (selector_ != nullptr) {
      const std::span<const uint32_t> chosen = selector_->LastChoice(step);
      groups[head].assign(chosen.begin(), chosen.end());
    } else {
      groups[head].resize(step.n_groups);
      std::iota(groups[head].begin(), groups[head].end(), 0U);
    }
  }
  return groups;
}

}  // namespace kvrun
