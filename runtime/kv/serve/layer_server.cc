#include "runtime/kv/serve/layer_server.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "runtime/kv/math/cluster_records.h"

namespace kvrun {
namespace {

using Clock = std::chrono::steady_clock;

double MillisecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

}  // namespace

LayerServer::LayerServer(const KvPlan& plan, uint32_t n_layers, RecentWindow& window, KvSlots& slots)
    : plan_(plan), window_(window), slots_(slots), reads_(plan.method.is_on_flash()) {
  if (reads_ && !plan.method.selects()) {
    all_.resize(plan.n_groups());
    std::iota(all_.begin(), all_.end(), 0U);
  }
  // Where a prompt says the static set's share, all may be chosen.
  const uint32_t most_needed = std::max(plan.n_needed(), plan.n_total());
  if (reads_) fetches_.reserve(size_t{plan.n_streams} * most_needed);
  planned_.reserve(plan.n_streams);
  samples_.reserve(plan.n_streams);
  if (plan.choice.n_sampled > 0) {
    with_samples_.reserve(size_t{plan.n_streams} * most_needed);
    is_drawn_.reserve(most_needed);
  }
  if (plan.limits_reads()) read_limit_.emplace(plan.slots.reads_per_layer, plan.n_streams);
  stats_.layer_fetch_ms.resize(n_layers);
  stats_.layer_loads.resize(n_layers);
}

void LayerServer::BeginStep(const KvStep& step) {
  step_ = &step;
  if (read_limit_) read_limit_->DropStep();  // what a step that was given up has left
}

void LayerServer::EndStep() {
  if (read_limit_) read_limit_->EndStep();
}

void LayerServer::ResetStats() {
  const size_t n_layers = stats_.layer_loads.size();
  stats_ = {};
  stats_.layer_fetch_ms.resize(n_layers);
  stats_.layer_loads.resize(n_layers);
}

StreamStep LayerServer::StreamStepOf(uint32_t layer, uint32_t row, uint32_t head, uint32_t position) const {
  const bool has_row = step_ != nullptr && row < step_->spans.size();
  const uint32_t sequence = has_row ? step_->spans[row].sequence : 0;
  StreamStep step{layer, row, head, sequence * heads() + head, position, window_.FirstGroup(position + 1)};
  if (extents_ != nullptr) step.n_groups = extents_->n_extents(step);
  return step;
}

Status LayerServer::Serve(uint32_t layer) {
  const Clock::time_point begin = Clock::now();
  const Status status = FillTables(layer);
  if (!status.ok()) {
    DropPlanned(layer);
    EmptyTables(layer);
    return status;
  }
  const double elapsed_ms = MillisecondsSince(begin);
  stats_.fetch_ms += elapsed_ms;
  stats_.layer_fetch_ms[layer] += elapsed_ms;
  return Status::Ok();
}

Status LayerServer::FillTables(uint32_t layer) {
  KVRUN_RETURN_IF_ERROR(PlanLayer(layer));
  KVRUN_RETURN_IF_ERROR(ReadPlanned(layer));
  for (uint32_t row = 0; row < step_->spans.size(); ++row) {
    for (uint32_t head = 0; head < heads(); ++head) {
      KVRUN_RETURN_IF_ERROR(NameSlots(StreamStepOf(layer, row, head, step_->spans[row].first_position)));
    }
  }
  return slots_.FlushTables(layer);
}

void LayerServer::EmptyTables(uint32_t layer) {
  for (const KvSpan& span : step_->spans) {
    for (uint32_t head = 0; head < heads(); ++head) slots_.Empty(layer, span.sequence * heads() + head);
  }
  (void)slots_.FlushTables(layer);  // the first error is the one to tell
}

// What is to be read of every stream, all of it at once, and where it lies now.
Status LayerServer::PlanLayer(uint32_t layer) {
  fetches_.clear();
  planned_.clear();
  samples_.clear();
  with_samples_.clear();
  if (!reads_) return Status::Ok();  // everything is where it is attended to
  if (selector_ != nullptr) KVRUN_RETURN_IF_ERROR(selector_->Receive(layer));
  for (uint32_t row = 0; row < step_->spans.size(); ++row) {
    for (uint32_t head = 0; head < heads(); ++head) {
      KVRUN_RETURN_IF_ERROR(PlanStream(StreamStepOf(layer, row, head, step_->spans[row].first_position)));
    }
  }
  return Status::Ok();
}

Status LayerServer::PlanStream(const StreamStep& step) {
  std::span<const uint32_t> chosen = std::span(all_).first(selector_ != nullptr ? 0 : step.n_groups);
  GroupSample sample;
  is_drawn_.clear();
  std::span<const uint8_t> may_stay_unread;
  if (selector_ != nullptr) {
    KVRUN_ASSIGN_OR_RETURN(chosen, selector_->Choose(step));
    KVRUN_ASSIGN_OR_RETURN(sample, selector_->Sample(step));
  }
  // The exact groups, which come first, are attended to in the window's records.
  if (extents_ == nullptr) {
    const auto others = std::lower_bound(chosen.begin(), chosen.end(), plan_.window.n_exact_groups);
    const auto n_first = static_cast<size_t>(others - chosen.begin());
    chosen = chosen.subspan(n_first);
    may_stay_unread = MayStayUnread(step, n_first);
  }
  samples_.push_back(sample);
  if (!sample.groups.empty()) chosen = WithSample(chosen, sample);
  const std::span<const uint32_t> records = extents_ != nullptr ? extents_->Records(step, chosen) : chosen;
  SlotCache* const cache = slots_.cache(step.layer, step.stream);
  const std::span<const uint32_t> weights =
      extents_ != nullptr ? extents_->Weights(step) : std::span<const uint32_t>();
  planned_.push_back(cache != nullptr
                         ? cache->Plan(records, weights, is_drawn_, {may_stay_unread, step.n_groups})
                         : SlotCache::PlanResult{.rest = records});
  FetchPlanned(step, planned_.back());
  Count(step, records, planned_.back());
  return Status::Ok();
}

// Of what was chosen, from the n_first on. Empty: all is read.
std::span<const uint8_t> LayerServer::MayStayUnread(const StreamStep& step, size_t n_first) {
  if (!read_limit_ || selector_ == nullptr) return {};
  const std::span<const float> scores = selector_->Scores(step);
  return scores.empty() ? std::span<const uint8_t>()
                        : read_limit_->MayStayUnread(step.stream, scores.subspan(n_first));
}

// Both ascend. is_drawn_ says which are of the sample.
std::span<const uint32_t> LayerServer::WithSample(std::span<const uint32_t> chosen,
                                                  const GroupSample& sample) {
  const size_t begin = with_samples_.size();
  const auto add = [this](uint32_t group, bool is_drawn) {
    with_samples_.push_back(group);
    is_drawn_.push_back(is_drawn ? 1 : 0);
  };
  auto next = chosen.begin();
  for (const uint32_t group : sample.groups) {
    for (; next != chosen.end() && *next < group; ++next) add(*next, false);
    if (next == chosen.end() || *next != group) add(group, true);
  }
  for (; next != chosen.end(); ++next) add(*next, false);
  return std::span(with_samples_).subspan(begin);
}

// Loads and rest both ascend: so do the fetches.
void LayerServer::FetchPlanned(const StreamStep& step, const SlotCache::PlanResult& plan) {
  auto load = plan.loads.begin();
  for (size_t i = 0; load != plan.loads.end() || i < plan.rest.size();) {
    if (i == plan.rest.size() || (load != plan.loads.end() && load->extent < plan.rest[i])) {
      std::byte* const slot = slots_.own(step.layer)->Record(step.stream, load->slot);
      fetches_.push_back({step.stream, load->extent, slot});
      ++load;
    } else {
      std::byte* const slot = slots_.pool(step.layer)->Record(step.stream, static_cast<uint32_t>(i));
      fetches_.push_back({step.stream, plan.rest[i], slot});
      ++i;
    }
  }
}

// Pinned groups do not count: every step chooses them. Of clusters, entries are counted.
void LayerServer::Count(const StreamStep& step, std::span<const uint32_t> records,
                        const SlotCache::PlanResult& plan) {
  const auto size = [&](uint32_t record) {
    return extents_ != nullptr ? uint64_t{extents_->n_entries(step, record)} : 1;
  };
  const auto unpinned = [&](std::span<const uint32_t> of) {
    uint64_t n = 0;
    for (const uint32_t record : of) n += record >= plan_.choice.n_pinned ? size(record) : 0;
    return n;
  };
  const uint64_t n_chosen = unpinned(records);
  const uint64_t n_rest = unpinned(plan.rest);
  uint64_t n_loads = 0;
  for (const SlotLoad& load : plan.loads)
    n_loads += load.extent >= plan_.choice.n_pinned ? size(load.extent) : 0;
  stats_.chosen_groups += n_chosen;
  stats_.drawn_groups += samples_.back().groups.size();
  stats_.least_groups = stats_.choices == 0 ? n_chosen : std::min(stats_.least_groups, n_chosen);
  stats_.most_groups = std::max(stats_.most_groups, n_chosen);
  ++stats_.choices;
  stats_.hit_groups += n_chosen - n_loads - n_rest - plan.stand_ins;
  stats_.stand_in_groups += plan.stand_ins;
  if (read_limit_) {
    const auto replaces = [](const SlotLoad& load) { return load.victim != kNoExtent; };
    read_limit_->Note(step.stream,
                      static_cast<uint32_t>(std::count_if(plan.loads.begin(), plan.loads.end(), replaces)));
  }
  stats_.pool_groups += n_rest;
  stats_.layer_loads[step.layer] += n_loads + n_rest;
}

// fetches_ into slots and pool: one batch.
Status LayerServer::ReadPlanned(uint32_t layer) {
  if (fetches_.empty()) return Status::Ok();
  const Clock::time_point begin = Clock::now();
  const Status status =
      reader_->Fetch(layer, statics_ != nullptr ? statics_->Reads(layer, fetches_) : fetches_);
  stats_.io_ms += MillisecondsSince(begin);
  if (!status.ok()) return status;
  if (statics_ != nullptr) CompactFetched(layer);
  return slots_.FlushFetched(layer, fetches_);
}

void LayerServer::CompactFetched(uint32_t layer) {
  for (const GroupFetch& fetch : fetches_) {
    statics_->Compact(layer, fetch.stream, fetch.group, {fetch.memory, plan_.slots.record.size_bytes()});
  }
}

void LayerServer::DropPlanned(uint32_t layer) {
  for (size_t i = 0; i < planned_.size(); ++i) {
    const KvSpan& span = step_->spans[i / heads()];
    const auto stream = static_cast<uint32_t>(span.sequence * heads() + i % heads());
    for (const SlotLoad& load : planned_[i].loads) slots_.cache(layer, stream)->Drop(load.slot);
  }
}

// The groups of a row before its window.
Status LayerServer::NameSlots(const StreamStep& step) {
  const SlotBuffers* const own = slots_.own(step.layer);
  if (!reads_) {
    const uint32_t n_exact = std::min(plan_.window.n_exact_groups, step.n_groups);
    if (own != nullptr) own->NameFirst(step.stream, step.n_groups, n_exact);
  } else {
    const SlotCache::PlanResult& plan = planned_[size_t{step.row} * heads() + step.head];
    if (plan_.has_slot_biases()) {
      NameBiased(step, plan);
      return window_.BeginEntry(step.layer, step.stream, step.position);
    }
    if (own != nullptr) own->Name(step.stream, plan.slots);
    if (const SlotBuffers* pool = slots_.pool(step.layer); pool != nullptr) {
      pool->NameFirst(step.stream, static_cast<uint32_t>(plan.rest.size()));
    }
  }
  return window_.BeginEntry(step.layer, step.stream, step.position);
}

// Of a record, the entries that count.
uint32_t LayerServer::CountOf(const StreamStep& step, uint32_t record) const {
  if (extents_ != nullptr) return extents_->n_entries(step, record);
  if (statics_ != nullptr && plan_.has_statics()) {
    return statics_->CountOthers(step.layer, step.stream, record);
  }
  return plan_.record.group_tokens;
}

// Records of which not all entries count, or that stand for others. Those that have none are not named.
void LayerServer::NameBiased(const StreamStep& step, const SlotCache::PlanResult& plan) {
  const GroupSample& sample = samples_[size_t{step.row} * heads() + step.head];
  size_t next = 0;  // of the sample
  const auto add = [&](const SlotBuffers& slots, uint32_t slot, uint32_t record) {
    while (next < sample.groups.size() && sample.groups[next] < record) ++next;
    const bool is_drawn = next < sample.groups.size() && sample.groups[next] == record;
    const uint32_t n = CountOf(step, record);
    if (n > 0) slots.Add(step.stream, slot, n, is_drawn ? sample.biases[next] : 0.0F);
  };
  if (const SlotBuffers* own = slots_.own(step.layer); own != nullptr) {
    const SlotCache& cache = *slots_.cache(step.layer, step.stream);
    own->Empty(step.stream);
    for (const uint32_t slot : plan.slots) add(*own, slot, cache.extent(slot));
  }
  if (const SlotBuffers* pool = slots_.pool(step.layer); pool != nullptr) {
    next = 0;
    pool->Empty(step.stream);
    for (uint32_t i = 0; i < plan.rest.size(); ++i) add(*pool, i, plan.rest[i]);
  }
}

// Ascending. With a limit of reads, not only what was chosen.
std::vector<uint32_t> LayerServer::LastAttended(const StreamStep& step) const {
  const std::span<const uint32_t> chosen = selector_->LastChoice(step);
  if (!read_limit_) return {chosen.begin(), chosen.end()};
  const SlotCache& cache = *slots_.cache(step.layer, step.stream);
  std::vector<uint32_t> groups;
  for (const uint32_t group : chosen) {
    if (group < plan_.window.n_exact_groups) groups.push_back(group);
  }
  for (const uint32_t slot : cache.planned_slots()) groups.push_back(cache.extent(slot));
  std::sort(groups.begin(), groups.end());
  return groups;
}

void LayerServer::AddGroupPositions(const StreamStep& step, std::vector<uint32_t>* positions) {
  for (const uint32_t group : LastAttended(step)) {
    statics_->AddOthers(step.layer, step.stream, group, positions);
  }
}

void LayerServer::AddPositions(uint32_t layer, uint32_t row, uint32_t head,
                               std::vector<uint32_t>* positions) {
  const StreamStep step = StreamStepOf(layer, row, head, step_->spans[row].first_position);
  if (extents_ == nullptr) return AddGroupPositions(step, positions);
  const SlotCache::PlanResult& plan = planned_[size_t{row} * heads() + head];
  const auto add = [&](uint32_t record, const std::byte* at) {
    const std::span<const std::byte> bytes(at, plan_.slots.record.size_bytes());
    for (uint32_t i = 0; i < extents_->n_entries(step, record); ++i) {
      positions->push_back(PositionOf(plan_.slots.record, bytes, i));
    }
  };
  for (const uint32_t slot : plan.slots) {
    add(slots_.cache(layer, step.stream)->extent(slot), slots_.own(layer)->Record(step.stream, slot));
  }
  for (uint32_t i = 0; i < plan.rest.size(); ++i) {
    add(plan.rest[i], slots_.pool(layer)->Record(step.stream, i));
  }
}

std::vector<std::vector<uint32_t>> LayerServer::GroupsBeforeWindow(uint32_t layer, uint32_t row,
                                                                   uint32_t position) const {
  std::vector<std::vector<uint32_t>> groups(heads());
  for (uint32_t head = 0; head < heads(); ++head) {
    const StreamStep step = StreamStepOf(layer, row, head, position);
    if (selector_ != nullptr) {
      groups[head] = LastAttended(step);
    } else {
      groups[head].resize(step.n_groups);
      std::iota(groups[head].begin(), groups[head].end(), 0U);
    }
  }
  return groups;
}

}  // namespace kvrun
