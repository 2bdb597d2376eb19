#include "runtime/kv/serve/record_cache.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "platform/base/check.h"
#include "runtime/kv/planner/kv_plan_statics.h"
#include "runtime/kv/replay/replayed_selector.h"
#include "runtime/kv/serve/kv_parts.h"

namespace kvrun {

RecordCache::RecordCache(Device& device, const KvPlan& plan, uint32_t n_layers, KvStores stores)
    : plan_(plan),
      n_layers_(n_layers),
      stores_(std::move(stores)),
      window_(plan_),
      slots_(device, plan_, n_layers),
      server_(plan_, n_layers, window_, slots_) {
  step_.spans.reserve(plan_.n_sequences);
}

Result<std::unique_ptr<RecordCache>> RecordCache::Create(Device& device, const KvPlan& plan,
                                                         uint32_t n_layers, KvStores stores,
                                                         const Adapter* adapter) {
  std::unique_ptr<RecordCache> cache(new RecordCache(device, plan, n_layers, std::move(stores)));
  KVRUN_RETURN_IF_ERROR(cache->CreateParts(device, adapter));
  return cache;
}

Status RecordCache::CreateParts(Device& device, const Adapter* adapter) {
  const auto means = adapter != nullptr ? std::span(adapter->entry_means) : std::span<const float>();
  KVRUN_ASSIGN_OR_RETURN(spaces_, EntrySpaces::Create(device, plan_, n_layers_, means));
  KVRUN_ASSIGN_OR_RETURN(window_, RecentWindow::Create(device, plan_, n_layers_));
  KVRUN_ASSIGN_OR_RETURN(index_, MakeIndex(device, plan_, n_layers_, adapter, stores_.rows.get(), spaces_));
  selector_ = MakeSelector(device, plan_, n_layers_);
  KVRUN_ASSIGN_OR_RETURN(parts_, MakeLedger({.device = device,
                                             .plan = plan_,
                                             .n_layers = n_layers_,
                                             .adapter = adapter,
                                             .stores = stores_,
                                             .window = window_,
                                             .slots = slots_,
                                             .index = index_.get(),
                                             .spaces = spaces_}));
  ledger_ = parts_.ledger.get();
  server_.SetSelector(selector_.get());
  server_.SetReader(parts_.reader);
  server_.SetExtents(parts_.extents.get());
  server_.SetStatics(parts_.statics.get());
  return Status::Ok();
}

const IoMode* RecordCache::store_mode() const {
  if (stores_.clusters != nullptr) return &stores_.clusters->mode();
  return stores_.groups != nullptr ? &stores_.groups->mode() : nullptr;
}

GroupStoreStats RecordCache::store_stats() const {
  if (stores_.clusters != nullptr) {
    GroupStoreStats stats = stores_.clusters->stats();
    if (stores_.rows != nullptr) stats.Add(stores_.rows->stats());
    return stats;
  }
  return stores_.groups != nullptr ? stores_.groups->stats() : GroupStoreStats();
}

bool RecordCache::NeedsLearning() const {
  if (index_ == nullptr || index_->is_ready()) return false;
  return std::any_of(step_.spans.begin(), step_.spans.end(), [this](const KvSpan& span) {
    return span.first_position >= index_->min_entries_to_learn() &&
           window_.FirstGroup(span.end()) > plan_.least_chosen();
  });
}

Status RecordCache::SetMeans(uint32_t layer, uint32_t sequence, std::span<const float> means) {
  const std::vector<float> shifts = spaces_.ShiftsTo(layer, sequence, means);
  KVRUN_RETURN_IF_ERROR(spaces_.SetMeans(layer, sequence, means));
  return length(sequence) > 0 ? ledger_->Shift(layer, sequence, shifts) : Status::Ok();
}

Status RecordCache::SetMeansFromStored(uint32_t sequence) {
  for (uint32_t layer = 0; layer < n_layers_; ++layer) {
    if (!spaces_.are_used() || spaces_.has_means(layer, sequence)) continue;
    KVRUN_ASSIGN_OR_RETURN(std::vector<float> means, ledger_->MeansInRecords(layer, sequence));
    if (means.empty()) continue;
    spaces_.TakeBack(layer, sequence, means);
    KVRUN_RETURN_IF_ERROR(SetMeans(layer, sequence, means));
  }
  return Status::Ok();
}

Status RecordCache::LearnFromStored(uint32_t sequence) {
  KVRUN_RETURN_IF_ERROR(WriteCompletedGroups());
  if (has_store()) LeaveDecode();  // their room is for the work on adapters, as in prefill
  KVRUN_RETURN_IF_ERROR(SetMeansFromStored(sequence));
  return index_->LearnFromStored(sequence, *ledger_);
}

Status RecordCache::BeginPrefill(uint32_t sequence, uint32_t begin) {
  KVRUN_RETURN_IF_ERROR(ledger_->BeginPrefill(sequence, begin));
  if (begin == 0) KVRUN_RETURN_IF_ERROR(spaces_.Forget(sequence));
  if (parts_.in_memory != nullptr) return BeginDecode();  // the slots are where everything is
  LeaveDecode();
  return Status::Ok();
}

Status RecordCache::PutExact(uint32_t layer, uint32_t sequence, uint32_t first_group, uint32_t n_groups,
                             std::span<const std::byte> records, std::span<const std::byte> stored) {
  const uint64_t bytes = plan_.window.record.size_bytes();
  const uint64_t stored_bytes = plan_.record.size_bytes();
  const uint32_t heads = plan_.heads_per_sequence();
  for (uint32_t i = 0; i < heads * n_groups; ++i) {
    KVRUN_RETURN_IF_ERROR(window_.PutExact(layer, sequence * heads + i / n_groups, first_group + i % n_groups,
                                           records.subspan(i * bytes, bytes),
                                           stored.subspan(i * stored_bytes, stored_bytes)));
  }
  return Status::Ok();
}

Status RecordCache::ReadWindow(uint32_t layer, uint32_t stream, uint32_t first_group, uint32_t n_groups,
                               std::span<std::byte> records) {
  const uint64_t bytes = plan_.window.record.size_bytes();
  for (uint32_t i = 0; i < n_groups; ++i) {
    const uint32_t group = first_group + i;
    std::span<const std::byte> record;
    if (group < plan_.window.n_exact_groups &&
        !window_.Holds(stream / plan_.heads_per_sequence(), length(stream / plan_.heads_per_sequence()),
                       group)) {
      record = window_.Exact(layer, stream, group);
    } else {
      KVRUN_ASSIGN_OR_RETURN(record, window_.Read(layer, stream, group));
    }
    std::memcpy(records.data() + i * bytes, record.data(), bytes);
  }
  return Status::Ok();
}

Status RecordCache::BeginDecode() {
  if (in_decode()) return Status::Ok();
  SettleStaticShare();
  KVRUN_RETURN_IF_ERROR(slots_.Make());
  for (uint32_t i = 0; parts_.in_memory != nullptr && i < n_layers_; ++i) {
    parts_.in_memory->SetSlots(i, slots_.own(i)->slots());
  }
  Status begun = selector_ != nullptr ? selector_->BeginDecode() : Status::Ok();
  const uint64_t written_before = parts_.pages != nullptr ? store_stats().written_bytes : 0;
  if (begun.ok()) begun = ledger_->BeginDecode();
  if (parts_.pages != nullptr) repaged_bytes_ += store_stats().written_bytes - written_before;
  if (!begun.ok()) LeaveDecode();
  return begun;
}

// Once: the first prompts have said it.
void RecordCache::SettleStaticShare() {
  if (!plan_.static_share().by_prompt || has_static_share_) return;
  const std::optional<double> share = ledger_->measured_static_share();
  if (!share) return;
  ChangeStaticShare(*share, plan_);
  has_static_share_ = true;
}

void RecordCache::LeaveDecode() {
  for (uint32_t i = 0; parts_.in_memory != nullptr && i < n_layers_; ++i)
    parts_.in_memory->SetSlots(i, nullptr);
  slots_.Drop();
  if (selector_ != nullptr) selector_->EndDecode();
  ledger_->LeaveDecode();
}

void RecordCache::AddSources(uint32_t layer, SlotAttentionArgs* args) {
  if (const SlotBuffers* own = slots_.own(layer); own != nullptr) args->Add(own->source());
  if (const SlotBuffers* pool = slots_.pool(layer); pool != nullptr) args->Add(pool->source());
  ledger_->AddSources(layer, args);
  args->space = spaces_.space(layer);
  args->Add({window_.records(layer), window_.shape(), window_.table(layer), ledger_->window_mass(layer)});
}

Status RecordCache::BeginStep(const KvStep& step) {
  for (const KvSpan& span : step.spans) KVRUN_CHECK(span.n_rows == 1);
  step_ = step;
  notes_attended_ = false;
  counts_text_runs_ = std::exchange(counts_next_, false);
  KVRUN_RETURN_IF_ERROR(ledger_->BeginStep(step_));
  for (const KvSpan& span : step_.spans) {
    if (span.first_position == 0) KVRUN_RETURN_IF_ERROR(spaces_.Forget(span.sequence));
  }
  server_.BeginStep(step_);
  return Status::Ok();
}

void RecordCache::CountInText(uint32_t layer) {
  for (uint32_t head = 0; head < plan_.heads_per_sequence(); ++head) {
    wanted_.clear();
    server_.AddPositions(layer, 0, head, &wanted_);
    std::sort(wanted_.begin(), wanted_.end());
    for (size_t i = 0; i < wanted_.size(); ++i) {
      wanted_in_text_.runs += i == 0 || wanted_[i] != wanted_[i - 1] + 1 ? 1 : 0;
    }
    wanted_in_text_.entries += wanted_.size();
  }
}

std::optional<ClusterReport> RecordCache::clusters() const {
  std::optional<ClusterReport> report = ledger_->clusters();
  if (report) report->wanted_in_text = wanted_in_text_;
  return report;
}

Status RecordCache::FetchLayer(uint32_t layer) {
  KVRUN_RETURN_IF_ERROR(ledger_->BeginLayer(layer));
  KVRUN_RETURN_IF_ERROR(server_.Serve(layer));
  if (index_ != nullptr) KVRUN_RETURN_IF_ERROR(index_->EndLayer(layer));
  if (counts_text_runs_) CountInText(layer);
  if (!notes_attended_) return Status::Ok();
  const uint32_t heads = plan_.heads_per_sequence();
  attended_.resize(size_t{n_layers_} * heads);
  for (uint32_t head = 0; head < heads; ++head) {
    std::vector<uint32_t>& positions = attended_[size_t{layer} * heads + head];
    positions.clear();
    if (parts_.reader != nullptr) server_.AddPositions(layer, 0, head, &positions);
    ledger_->AddKeptPositions(layer, 0, head, &positions);
    std::sort(positions.begin(), positions.end());
  }
  return Status::Ok();
}

std::vector<std::vector<uint32_t>> RecordCache::GroupsBeforeWindow(uint32_t layer, uint32_t row,
                                                                   uint32_t position) const {
  if (!tells_entries()) return server_.GroupsBeforeWindow(layer, row, position);
  const auto first = attended_.begin() + static_cast<ptrdiff_t>(size_t{layer} * plan_.heads_per_sequence());
  return {first, first + plan_.heads_per_sequence()};
}

void RecordCache::ReplaySelection(double repeated_share) {
  if (selector_ == nullptr || parts_.extents != nullptr || plan_.static_share().by_prompt) return;
  // What is replayed has no scores: it repeats as much as the limit would have it.
  if (plan_.limits_reads() && plan_.choice.n_chosen > plan_.choice.n_pinned) {
    const double unpinned = plan_.choice.n_chosen - plan_.choice.n_pinned;
    repeated_share = std::max(repeated_share, 1.0 - plan_.slots.reads_per_layer / unpinned);
  }
  selector_ = std::make_unique<ReplayedSelector>(std::move(selector_), plan_, n_layers_, repeated_share);
  server_.SetSelector(selector_.get());
}

void RecordCache::BeginReadLog() {
  if (parts_.reader != nullptr && parts_.extents == nullptr)
    server_.SetReader(&read_log_.emplace(*parts_.reader));
}

Result<RepeatedReads> RecordCache::RepeatReads() {
  if (!read_log_ || !has_store()) return RepeatedReads();
  server_.SetReader(parts_.reader);
  KVRUN_CHECK(in_decode());  // the slots that were read into are there
  const GroupStoreStats before = store_stats();
  const auto begin = std::chrono::steady_clock::now();
  KVRUN_ASSIGN_OR_RETURN(const uint64_t n_batches, read_log_->Repeat());
  const std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - begin;
  read_log_.reset();
  return RepeatedReads{.fetches = n_batches,
                       .reads = store_stats().reads - before.reads,
                       .read_bytes = store_stats().read_bytes - before.read_bytes,
                       .milliseconds = elapsed.count()};
}

}  // namespace kvrun
