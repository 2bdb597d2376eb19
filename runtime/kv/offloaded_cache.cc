#include "runtime/kv/offloaded_cache.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "platform/base/check.h"
#include "runtime/device/record_codec.h"

namespace kvrun {

OffloadedCache::OffloadedCache(Device& device, const KvPlan& plan, uint32_t n_layers,
                               std::unique_ptr<GroupStore> flash)
    : device_(device), plan_(plan), flash_(flash.get()), layers_(n_layers), window_(plan_) {
  if (flash != nullptr) {
    store_ = std::move(flash);
  } else {
    auto in_memory = std::make_unique<SlotRecordStore>(slot_shape(), n_layers);
    in_memory_ = in_memory.get();
    store_ = std::move(in_memory);
  }
  lengths_.resize(plan.n_sequences);
  groups_stored_.resize(plan.n_sequences);
  rows_.reserve(plan.n_sequences);
  fetches_.reserve(size_t{plan.n_streams} * plan.n_chosen);
  planned_.reserve(plan.n_streams);
  encoded_.resize(plan.record.size_bytes());
  ResetStats();
}

Result<std::unique_ptr<OffloadedCache>> OffloadedCache::Create(Device& device, const KvPlan& plan,
                                                               uint32_t n_layers,
                                                               std::unique_ptr<GroupStore> store) {
  std::unique_ptr<OffloadedCache> cache(new OffloadedCache(device, plan, n_layers, std::move(store)));
  KVRUN_RETURN_IF_ERROR(cache->CreateWindow());
  if (plan.method.has_index()) KVRUN_RETURN_IF_ERROR(cache->CreateIndex());
  return cache;
}

Status OffloadedCache::CreateWindow() {
  KVRUN_ASSIGN_OR_RETURN(window_,
                         RecentWindow::Create(device_, plan_, static_cast<uint32_t>(layers_.size())));
  return Status::Ok();
}

SlotShape OffloadedCache::slot_shape() const {
  return {.record = plan_.record,
          .n_streams = plan_.n_streams,
          .n_slots = plan_.n_cache_slots,
          .n_window_slots = 0,
          .table_slots = plan_.n_chosen};
}

std::byte* OffloadedCache::SlotBytes(const Layer& layer, uint32_t stream, uint32_t slot) const {
  return layer.slots->host().data() + (uint64_t{stream} * plan_.n_cache_slots + slot) * record_bytes();
}

// The window of a sequence that is to end at `length`: what it has lost comes back as it was stored. Nothing
// is read of a group without entries: a sequence can be computed again from its beginning, whatever has
// become of its groups on flash.
Status OffloadedCache::RestoreWindow(uint32_t sequence, uint32_t length) {
  const uint32_t first = window_.FirstGroup(length);
  const uint32_t end = (length + group_tokens() - 1) / group_tokens();
  for (uint32_t group = first; group < end; ++group) {
    if (window_.Holds(sequence, lengths_[sequence], group) || group >= groups_stored_[sequence]) continue;
    for (uint32_t i = 0; i < layers_.size(); ++i) {
      for (uint32_t stream = sequence * heads(); stream < (sequence + 1) * heads(); ++stream) {
        KVRUN_RETURN_IF_ERROR(ReadGroups(i, stream, group, 1, encoded_));
        KVRUN_RETURN_IF_ERROR(window_.Restore(i, stream, group, encoded_));
      }
    }
  }
  window_.NoteFirstGroup(sequence, first);
  return Status::Ok();
}

// What is beyond `length` goes; its incomplete group lies in the window.
Status OffloadedCache::ForgetFrom(uint32_t sequence, uint32_t length) {
  if (length >= lengths_[sequence]) return Status::Ok();
  KVRUN_RETURN_IF_ERROR(WriteCompletedGroups());
  KVRUN_RETURN_IF_ERROR(RestoreWindow(sequence, length));
  const uint32_t group = length / group_tokens();
  for (uint32_t stream = sequence * heads(); stream < (sequence + 1) * heads(); ++stream) {
    KVRUN_RETURN_IF_ERROR(store_->Truncate(stream, group));
    for (Layer& layer : layers_) {
      if (!layer.caches.empty()) layer.caches[stream].Truncate(group);
    }
  }
  lengths_[sequence] = length;
  groups_stored_[sequence] = std::min(groups_stored_[sequence], group);
  return Status::Ok();
}

// After a prefill that has failed: what the sequence had before. The rest of its window comes back when the
// sequence is used again: it may be to begin anew, and nothing has to be read for that.
Status OffloadedCache::UndoPrefill() { return window_.in_prefill() ? window_.UndoPrefill() : Status::Ok(); }

// Entries of `sequence` from `length` on are forgotten; those before are there, and the window is whole.
Status OffloadedCache::Prepare(uint32_t sequence, uint32_t length) {
  KVRUN_RETURN_IF_ERROR(ForgetFrom(sequence, length));
  return RestoreWindow(sequence, lengths_[sequence]);
}

Status OffloadedCache::BeginPrefill(uint32_t sequence, uint32_t begin) {
  KVRUN_RETURN_IF_ERROR(UndoPrefill());
  KVRUN_RETURN_IF_ERROR(Prepare(sequence, begin));
  KVRUN_RETURN_IF_ERROR(window_.BeginPrefill(sequence, begin));
  if (in_memory_ != nullptr) return BeginDecode();  // the slots are where everything is
  KVRUN_RETURN_IF_ERROR(WriteCompletedGroups());
  // What a prefill that failed has left.
  for (uint32_t stream = sequence * heads(); stream < (sequence + 1) * heads(); ++stream) {
    KVRUN_RETURN_IF_ERROR(store_->Truncate(stream, begin / group_tokens()));
  }
  LeaveDecode();
  return Status::Ok();
}

void OffloadedCache::LeaveDecode() {
  in_decode_ = false;
  for (uint32_t i = 0; i < layers_.size(); ++i) {
    Layer& layer = layers_[i];
    if (in_memory_ != nullptr) in_memory_->SetSlots(i, nullptr);
    layer.slots.reset();
    layer.table.reset();
    layer.chosen.reset();
    layer.caches.clear();
  }
}

Status OffloadedCache::AppendGroups(uint32_t layer, uint32_t sequence, uint32_t first_group,
                                    uint32_t n_groups, std::span<const std::byte> records) {
  const uint64_t stream_bytes = n_groups * record_bytes();
  for (uint32_t head = 0; head < heads(); ++head) {
    const uint32_t stream = sequence * heads() + head;
    KVRUN_RETURN_IF_ERROR(
        store_->Append(layer, stream, first_group, records.subspan(head * stream_bytes, stream_bytes)));
  }
  return Status::Ok();
}

Status OffloadedCache::ReadGroups(uint32_t layer, uint32_t stream, uint32_t first_group, uint32_t n_groups,
                                  std::span<std::byte> records) {
  fetches_.clear();
  for (uint32_t i = 0; i < n_groups; ++i) {
    fetches_.push_back({stream, first_group + i, records.data() + i * record_bytes()});
  }
  return store_->Fetch(layer, fetches_);
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

Status OffloadedCache::EndPrefill(uint32_t sequence, uint32_t length) {
  KVRUN_RETURN_IF_ERROR(store_->Flush());
  KVRUN_RETURN_IF_ERROR(window_.EndPrefill(length));
  lengths_[sequence] = length;
  groups_stored_[sequence] = length / group_tokens();
  return Status::Ok();
}

Status OffloadedCache::BeginDecode() {
  if (in_decode_) return Status::Ok();
  const Status made = MakeSlots();
  if (!made.ok()) LeaveDecode();  // those of some layers would stay beside the next ones
  return made;
}

Status OffloadedCache::MakeSlots() {
  const SlotShape shape = slot_shape();
  const ReplacementPolicy* policy = nullptr;
  if (selects()) {
    KVRUN_ASSIGN_OR_RETURN(policy, FindReplacementPolicy(plan_.policy));
  }
  for (uint32_t i = 0; i < layers_.size(); ++i) {
    Layer& layer = layers_[i];
    if (reloads_all() && i > 0) {
      layer.slots = layers_[0].slots;
    } else {
      KVRUN_ASSIGN_OR_RETURN(layer.slots, device_.CreateBuffer(shape.size_bytes(), BufferUse::kShared, "kv"));
    }
    if (in_memory_ != nullptr) in_memory_->SetSlots(i, layer.slots.get());
    KVRUN_ASSIGN_OR_RETURN(layer.table, device_.CreateBuffer(shape.table_bytes(), BufferUse::kShared, "kv"));
    if (!selects()) continue;
    KVRUN_ASSIGN_OR_RETURN(layer.chosen, device_.CreateBuffer(uint64_t{plan_.n_streams} *
                                                                  (1 + plan_.n_chosen) * sizeof(uint32_t),
                                                              BufferUse::kShared, "kv"));
    layer.caches.assign(plan_.n_streams, SlotCache(plan_.n_cache_slots, plan_.n_chosen, policy));
  }
  in_decode_ = true;
  return Status::Ok();
}

Status OffloadedCache::BeginStep(std::span<const KvRow> rows) {
  KVRUN_RETURN_IF_ERROR(UndoPrefill());
  for (const KvRow& row : rows) {
    KVRUN_CHECK(row.position <= lengths_[row.sequence]);
    KVRUN_RETURN_IF_ERROR(Prepare(row.sequence, row.position));
  }
  rows_.assign(rows.begin(), rows.end());
  return Status::Ok();
}

Status OffloadedCache::WriteCompletedGroups() {
  for (uint32_t sequence = 0; sequence < lengths_.size(); ++sequence) {
    for (; groups_stored_[sequence] < lengths_[sequence] / group_tokens(); ++groups_stored_[sequence]) {
      const uint32_t group = groups_stored_[sequence];
      for (uint32_t i = 0; i < layers_.size(); ++i) {
        for (uint32_t stream = sequence * heads(); stream < (sequence + 1) * heads(); ++stream) {
          KVRUN_ASSIGN_OR_RETURN(const std::span<const std::byte> record, window_.Read(i, stream, group));
          TranscodeRecord(plan_.window_record, record, plan_.record, encoded_);
          KVRUN_RETURN_IF_ERROR(store_->Append(i, stream, group, encoded_));
        }
      }
    }
  }
  return Status::Ok();
}

void OffloadedCache::ResetStats() {
  stats_ = {};
  stats_.layer_fetch_ms.assign(layers_.size(), 0.0);
  stats_.layer_loads.assign(layers_.size(), 0);
}

}  // namespace kvrun
