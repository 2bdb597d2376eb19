#include "runtime/kv/offloaded_cache.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "platform/base/check.h"
#include "runtime/kv/kv_parts.h"
#include "runtime/kv/replayed_selector.h"

namespace kvrun {

OffloadedCache::OffloadedCache(Device& device, const KvPlan& plan, uint32_t n_layers,
                               std::unique_ptr<GroupStore> flash)
    : plan_(plan),
      n_layers_(n_layers),
      flash_(flash.get()),
      window_(plan_),
      slots_(device, plan_, n_layers),
      server_(plan_, n_layers, window_, slots_) {
  if (flash != nullptr) {
    store_ = std::move(flash);
  } else {
    auto in_memory = std::make_unique<SlotRecordStore>(slots_.own_shape(), n_layers);
    in_memory_ = in_memory.get();
    store_ = std::move(in_memory);
  }
}

Result<std::unique_ptr<OffloadedCache>> OffloadedCache::Create(Device& device, const KvPlan& plan,
                                                               uint32_t n_layers,
                                                               std::unique_ptr<GroupStore> store,
                                                               const Adapter* adapter) {
  std::unique_ptr<OffloadedCache> cache(new OffloadedCache(device, plan, n_layers, std::move(store)));
  KVRUN_RETURN_IF_ERROR(cache->CreateParts(device, adapter));
  return cache;
}

Status OffloadedCache::CreateParts(Device& device, const Adapter* adapter) {
  KVRUN_ASSIGN_OR_RETURN(window_, RecentWindow::Create(device, plan_, n_layers_));
  KVRUN_ASSIGN_OR_RETURN(index_, MakeIndex(device, plan_, n_layers_, adapter));
  selector_ = MakeSelector(device, plan_, n_layers_);
  ledger_.emplace(plan_, n_layers_, *store_, window_, slots_, index_.get());
  server_.SetSelector(selector_.get());
  server_.SetStore(store_.get());
  return Status::Ok();
}

bool OffloadedCache::NeedsLearning(std::span<const KvRow> rows) const {
  if (index_ == nullptr || index_->is_ready()) return false;
  return std::any_of(rows.begin(), rows.end(), [this](const KvRow& row) {
    return row.position >= index_->min_entries_to_learn() &&
           window_.FirstGroup(row.position + 1) > plan_.n_chosen;
  });
}

Status OffloadedCache::LearnFromStored(uint32_t sequence) {
  KVRUN_RETURN_IF_ERROR(WriteCompletedGroups());
  if (flash_ != nullptr) LeaveDecode();  // their room is for the work on adapters, as in prefill
  return index_->LearnFromStored(sequence, *ledger_);
}

Status OffloadedCache::BeginPrefill(uint32_t sequence, uint32_t begin) {
  KVRUN_RETURN_IF_ERROR(ledger_->BeginPrefill(sequence, begin));
  if (in_memory_ != nullptr) return BeginDecode();  // the slots are where everything is
  LeaveDecode();
  return Status::Ok();
}

Status OffloadedCache::ReadWindow(uint32_t layer, uint32_t stream, uint32_t first_group, uint32_t n_groups,
                                  std::span<std::byte> records) {
  const uint64_t bytes = plan_.window_record.size_bytes();
  for (uint32_t i = 0; i < n_groups; ++i) {
    KVRUN_ASSIGN_OR_RETURN(const std::span<const std::byte> record,
                           window_.Read(layer, stream, first_group + i));
    std::memcpy(records.data() + i * bytes, record.data(), bytes);
  }
  return Status::Ok();
}

Status OffloadedCache::BeginDecode() {
  if (in_decode()) return Status::Ok();
  KVRUN_RETURN_IF_ERROR(slots_.Make());
  for (uint32_t i = 0; in_memory_ != nullptr && i < n_layers_; ++i) {
    in_memory_->SetSlots(i, slots_.own(i)->slots());
  }
  const Status begun = selector_ != nullptr ? selector_->BeginDecode() : Status::Ok();
  if (!begun.ok()) LeaveDecode();
  return begun;
}

void OffloadedCache::LeaveDecode() {
  for (uint32_t i = 0; in_memory_ != nullptr && i < n_layers_; ++i) in_memory_->SetSlots(i, nullptr);
  slots_.Drop();
  if (selector_ != nullptr) selector_->EndDecode();
}

void OffloadedCache::AddSources(uint32_t layer, SlotAttentionArgs* args) {
  if (const SlotBuffers* own = slots_.own(layer); own != nullptr) args->Add(own->source());
  if (const SlotBuffers* pool = slots_.pool(layer); pool != nullptr) args->Add(pool->source());
  args->Add({window_.records(layer), window_.shape(), window_.table(layer)});
}

Status OffloadedCache::BeginStep(std::span<const KvRow> rows) {
  KVRUN_RETURN_IF_ERROR(ledger_->BeginStep(rows));
  server_.BeginStep(rows);
  return Status::Ok();
}

void OffloadedCache::ReplaySelection(double repeated_share) {
  if (selector_ == nullptr) return;
  selector_ = std::make_unique<ReplayedSelector>(std::move(selector_), plan_, n_layers_, repeated_share);
  server_.SetSelector(selector_.get());
}

void OffloadedCache::BeginReadLog() { server_.SetStore(&read_log_.emplace(*store_)); }

Result<RepeatedReads> OffloadedCache::RepeatReads() {
  if (!read_log_ || flash_ == nullptr) return RepeatedReads();
  server_.SetStore(store_.get());
  KVRUN_CHECK(in_decode());  // the slots that were read into are there
  const GroupStoreStats before = flash_->stats();
  const auto begin = std::chrono::steady_clock::now();
  KVRUN_ASSIGN_OR_RETURN(const uint64_t n_batches, read_log_->Repeat());
  const std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - begin;
  read_log_.reset();
  return RepeatedReads{.fetches = n_batches,
                       .reads = flash_->stats().reads - before.reads,
                       .read_bytes = flash_->stats().read_bytes - before.read_bytes,
                       .milliseconds = elapsed.count()};
}

}  // namespace kvrun
