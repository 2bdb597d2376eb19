#include "runtime/kv/serve/reading_server.h"

#include <algorithm>
#include <chrono>

namespace kvrun {

ReadingServer::ReadingServer(const KvPlan& plan, uint32_t n_layers, RecentWindow& window, KvSlots& slots,
                             KvSelector* selector, RecordFetcher& reader)
    : LayerServer(plan, n_layers, window, slots),
      all_(selector == nullptr ? plan.n_groups() : 0),
      selector_(selector == nullptr ? &all_ : selector),
      reader_(&reader) {
  // Where a prompt says the static set's share, all may be chosen.
  const uint32_t most_needed = std::max(plan.n_needed(), plan.n_total());
  fetches_.reserve(size_t{plan.n_streams} * most_needed);
  planned_.reserve(plan.n_streams);
  samples_.reserve(plan.n_streams);
  if (plan.choice.n_sampled > 0) {
    with_samples_.reserve(size_t{plan.n_streams} * most_needed);
    is_drawn_.reserve(most_needed);
  }
  if (plan.limits_reads()) read_limit_.emplace(plan.slots.reads_per_layer, plan.n_streams);
}

void ReadingServer::BeginStep(const KvStep& step) {
  LayerServer::BeginStep(step);
  if (read_limit_) read_limit_->DropStep();  // what a step that was given up has left
}

void ReadingServer::EndStep() {
  if (read_limit_) read_limit_->EndStep();
}

Status ReadingServer::VisitState(StateVisitor& visitor) {
  enum Item : uint16_t { kThresholds = 100 };
  const StateKey key{StatePart::kSlots, kThresholds};
  if (read_limit_ && (!visitor.is_loading() || visitor.Has(key))) {
    std::vector<float> thresholds(plan_.n_streams);
    for (uint32_t i = 0; i < plan_.n_streams; ++i) thresholds[i] = read_limit_->threshold(i);
    KVRUN_RETURN_IF_ERROR(visitor.Array(key, std::span(thresholds)));
    for (uint32_t i = 0; i < plan_.n_streams; ++i) {
      if (!(thresholds[i] > 0.0F)) return {StatusCode::kCorrupt, "a threshold of reads is not above 0"};
      read_limit_->SetThreshold(i, thresholds[i]);
    }
  }
  return slots_.VisitState(visitor);
}

// As many at once as a step may read, whatever clusters they are of.
Status ReadingServer::RecallSlots() {
  const size_t most = std::max(1U, plan_.n_streams * plan_.choice.n_chosen / plan_.records_per_extent());
  const auto is_there = [this](uint32_t layer, uint32_t stream, uint32_t record) {
    return IsRecord({.layer = layer, .stream = stream}, record);
  };
  const auto fill = [&](uint32_t layer, std::span<const GroupFetch> fetches) -> Status {
    for (; !fetches.empty(); fetches = fetches.subspan(std::min(most, fetches.size()))) {
      const std::span<const GroupFetch> some = fetches.first(std::min(most, fetches.size()));
      KVRUN_RETURN_IF_ERROR(reader_->Fetch(layer, Reads(layer, some)));
      NoteRead(layer, some);
      KVRUN_RETURN_IF_ERROR(slots_.FlushFetched(layer, some));
    }
    return Status::Ok();
  };
  return slots_.Recall({is_there, fill});
}

// What is to be read of every stream, all of it at once, and where it lies now.
Status ReadingServer::Bring(uint32_t layer) {
  fetches_.clear();
  planned_.clear();
  samples_.clear();
  with_samples_.clear();
  KVRUN_RETURN_IF_ERROR(selector_->Receive(layer));
  for (uint32_t row = 0; row < step().spans.size(); ++row) {
    for (uint32_t head = 0; head < heads(); ++head) {
      KVRUN_RETURN_IF_ERROR(PlanStream(StreamStepOf(layer, row, head)));
    }
  }
  return ReadPlanned(layer);
}

Status ReadingServer::PlanStream(const StreamStep& step) {
  is_drawn_.clear();
  KVRUN_ASSIGN_OR_RETURN(const std::span<const uint32_t> chosen, selector_->Choose(step));
  KVRUN_ASSIGN_OR_RETURN(const GroupSample sample, selector_->Sample(step));
  samples_.push_back(sample);
  const Wanted wanted = RecordsOf(step, chosen, sample);
  SlotCache* const cache = slots_.cache(step.layer, step.stream);
  planned_.push_back(cache != nullptr ? cache->Plan(wanted.records, wanted.weights, is_drawn_,
                                                    {wanted.may_stay_unread, step.n_groups})
                                      : SlotCache::PlanResult{.rest = wanted.records});
  FetchPlanned(step, planned_.back());
  Count(step, wanted.records, planned_.back());
  return Status::Ok();
}

std::span<const uint8_t> ReadingServer::MayStayUnread(const StreamStep& step, size_t n_first) {
  if (!read_limit_) return {};
  const std::span<const float> scores = selector_->Scores(step);
  return scores.empty() ? std::span<const uint8_t>()
                        : read_limit_->MayStayUnread(step.stream, scores.subspan(n_first));
}

// Both ascend. is_drawn_ says which are of the sample.
std::span<const uint32_t> ReadingServer::WithSample(std::span<const uint32_t> chosen,
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
void ReadingServer::FetchPlanned(const StreamStep& step, const SlotCache::PlanResult& plan) {
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
void ReadingServer::Count(const StreamStep& step, std::span<const uint32_t> records,
                          const SlotCache::PlanResult& plan) {
  const auto unpinned = [&](std::span<const uint32_t> of) {
    uint64_t n = 0;
    for (const uint32_t record : of) n += record >= plan_.choice.n_pinned ? SizeOf(step, record) : 0;
    return n;
  };
  const uint64_t n_chosen = unpinned(records);
  const uint64_t n_rest = unpinned(plan.rest);
  uint64_t n_loads = 0;
  for (const SlotLoad& load : plan.loads)
    n_loads += load.extent >= plan_.choice.n_pinned ? SizeOf(step, load.extent) : 0;
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
Status ReadingServer::ReadPlanned(uint32_t layer) {
  if (fetches_.empty()) return Status::Ok();
  const auto begin = std::chrono::steady_clock::now();
  const Status status = reader_->Fetch(layer, Reads(layer, fetches_));
  const std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - begin;
  stats_.io_ms += elapsed.count();
  if (!status.ok()) return status;
  NoteRead(layer, fetches_);
  return slots_.FlushFetched(layer, fetches_);
}

void ReadingServer::DropBrought(uint32_t layer) {
  for (size_t i = 0; i < planned_.size(); ++i) {
    const KvSpan& span = step().spans[i / heads()];
    const auto stream = static_cast<uint32_t>(span.sequence * heads() + i % heads());
    for (const SlotLoad& load : planned_[i].loads) slots_.cache(layer, stream)->Drop(load.slot);
  }
}

// The groups of a row before its window.
Status ReadingServer::NameSlots(const StreamStep& step) {
  const SlotCache::PlanResult& plan = planned(step.row, step.head);
  if (plan_.has_slot_biases()) {
    NameBiased(step, plan);
    return Status::Ok();
  }
  if (const SlotBuffers* own = slots_.own(step.layer); own != nullptr) own->Name(step.stream, plan.slots);
  if (const SlotBuffers* pool = slots_.pool(step.layer); pool != nullptr) {
    pool->NameFirst(step.stream, static_cast<uint32_t>(plan.rest.size()));
  }
  return Status::Ok();
}

// Records of which not all entries count, or that stand for others. Those that have none are not named.
void ReadingServer::NameBiased(const StreamStep& step, const SlotCache::PlanResult& plan) {
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
std::vector<uint32_t> ReadingServer::LastAttended(const StreamStep& step) const {
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

}  // namespace kvrun
