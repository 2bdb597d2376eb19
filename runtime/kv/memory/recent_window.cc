#include "runtime/kv/memory/recent_window.h"

#include <algorithm>
#include <cstring>

#include "platform/base/check.h"
#include "runtime/device/record_codec.h"
#include "runtime/kv/math/cluster_records.h"
#include "runtime/kv/memory/host_buffer.h"

namespace kvrun {

Result<RecentWindow> RecentWindow::Create(Device& device, const KvPlan& plan, uint32_t n_layers) {
  RecentWindow window(plan);
  window.first_groups_.resize(plan.n_sequences);
  const SlotShape shape = window.shape();
  for (uint32_t i = 0; i < n_layers; ++i) {
    Layer layer;
    KVRUN_ASSIGN_OR_RETURN(layer.records, device.CreateBuffer(shape.size_bytes(), BufferUse::kShared, "kv"));
    KVRUN_ASSIGN_OR_RETURN(layer.table, device.CreateBuffer(shape.table_bytes(), BufferUse::kShared, "kv"));
    window.layers_.push_back(std::move(layer));
  }
  return window;
}

SlotShape RecentWindow::shape() const {
  return {.record = plan_->window.record,
          .n_streams = plan_->n_streams,
          .n_slots = plan_->window.n_records(),
          .n_window_slots = n_slots(),
          .table_slots = plan_->window.n_records()};
}

bool RecentWindow::Holds(uint32_t sequence, uint32_t length, uint32_t group) const {
  // A step that failed may have written the next entry.
  const uint32_t last = length / group_tokens();
  return group >= first_groups_[sequence] && group <= last && group + n_slots() > last;
}

Result<std::span<const std::byte>> RecentWindow::Read(uint32_t layer, uint32_t stream, uint32_t group) {
  KVRUN_RETURN_IF_ERROR(layers_[layer].records->Invalidate(Offset(stream, group), record_bytes()));
  return std::span<const std::byte>(Record(layer, stream, group));
}

Status RecentWindow::Restore(uint32_t layer, uint32_t stream, uint32_t group,
                             std::span<const std::byte> stored) {
  TranscodeRecord(plan_->record, stored, plan_->window.record, Record(layer, stream, group));
  return layers_[layer].records->Flush(Offset(stream, group), record_bytes());
}

Status RecentWindow::PutExact(uint32_t layer, uint32_t stream, uint32_t group,
                              std::span<const std::byte> record, std::span<const std::byte> stored) {
  const uint64_t offset = ExactOffset(stream, group);
  const std::span<std::byte> to = layers_[layer].records->host().subspan(offset, record_bytes());
  TranscodeRecord(plan_->record, stored, plan_->window.record, to);
  for (uint32_t entry = 0; entry < group_tokens(); ++entry) {
    if (group * group_tokens() + entry >= plan_->window.n_exact_entries) break;
    CopyEntry(plan_->window.record, record, entry, plan_->window.record, to, entry);
  }
  return layers_[layer].records->Flush(offset, record_bytes());
}

std::span<const std::byte> RecentWindow::Exact(uint32_t layer, uint32_t stream, uint32_t group) const {
  return layers_[layer].records->host().subspan(ExactOffset(stream, group), record_bytes());
}

Status RecentWindow::RestoreExact(uint32_t layer, uint32_t stream, uint32_t group) {
  const std::span<const std::byte> exact = Exact(layer, stream, group);
  std::memcpy(Record(layer, stream, group).data(), exact.data(), exact.size());
  return layers_[layer].records->Flush(Offset(stream, group), record_bytes());
}

// Records that hold nothing yet are shifted, too: whatever is there is of no use.
Status RecentWindow::Shift(uint32_t layer, uint32_t sequence, std::span<const float> shifts) {
  const size_t of_stream = shifts.size() / heads();
  Buffer& records = *layers_[layer].records;
  KVRUN_RETURN_IF_ERROR(records.Invalidate(0, records.size_bytes()));
  for (uint32_t head = 0; head < heads(); ++head) {
    const std::span<const float> of_head = shifts.subspan(head * of_stream, of_stream);
    const uint64_t first = ExactOffset(sequence * heads() + head, 0);
    for (uint32_t i = 0; i < plan_->window.n_records(); ++i) {
      ShiftRecord(plan_->window.record, of_head,
                  records.host().subspan(first + i * record_bytes(), record_bytes()));
    }
    if (!prefilled_ || prefilled_->sequence != sequence) continue;
    const uint64_t n_kept = prefilled_->end - prefilled_->first;
    const uint64_t first_kept = (uint64_t{layer} * heads() + head) * n_kept;
    for (uint64_t i = 0; i < n_kept; ++i) {
      ShiftRecord(plan_->window.record, of_head,
                  std::span(prefilled_->records).subspan((first_kept + i) * record_bytes(), record_bytes()));
    }
  }
  return FlushAll(records);
}

Status RecentWindow::BeginPrefill(uint32_t sequence, uint32_t length, uint32_t first_kept) {
  Prefill prefill{sequence, first_kept, length / group_tokens() + 1, {}};
  KVRUN_CHECK(prefill.end - prefill.first <= n_slots());
  prefill.records.reserve(layers_.size() * heads() * (prefill.end - prefill.first) * record_bytes());
  for (uint32_t i = 0; i < layers_.size(); ++i) {
    for (uint32_t head = 0; head < heads(); ++head) {
      for (uint32_t group = prefill.first; group < prefill.end; ++group) {
        KVRUN_ASSIGN_OR_RETURN(const auto record, Read(i, sequence * heads() + head, group));
        prefill.records.insert(prefill.records.end(), record.begin(), record.end());
      }
    }
  }
  prefilled_ = std::move(prefill);
  return Status::Ok();
}

Status RecentWindow::Put(uint32_t layer, uint32_t first_group, uint32_t n_groups,
                         std::span<const std::byte> records) {
  for (uint32_t head = 0; head < heads(); ++head) {
    for (uint32_t i = 0; i < n_groups; ++i) {
      std::memcpy(Record(layer, prefilled_->sequence * heads() + head, first_group + i).data(),
                  records.data() + (uint64_t{head} * n_groups + i) * record_bytes(), record_bytes());
    }
  }
  return FlushAll(*layers_[layer].records);
}

Status RecentWindow::EndPrefill(uint32_t length) {
  const uint32_t first = FirstGroup(length);
  const uint32_t n_rounded = length >= exact_entries() ? length - exact_entries() + 1 : 0;
  for (uint32_t i = 0; i < layers_.size(); ++i) {
    for (uint32_t head = 0; head < heads(); ++head) {
      for (uint32_t entry = first * group_tokens(); entry < n_rounded; ++entry) {
        KVRUN_RETURN_IF_ERROR(Round(i, prefilled_->sequence * heads() + head, entry));
      }
    }
  }
  first_groups_[prefilled_->sequence] = first;
  prefilled_.reset();
  return Status::Ok();
}

Status RecentWindow::UndoPrefill() {
  const std::byte* from = prefilled_->records.data();
  for (uint32_t i = 0; i < layers_.size(); ++i) {
    for (uint32_t head = 0; head < heads(); ++head) {
      for (uint32_t group = prefilled_->first; group < prefilled_->end; ++group, from += record_bytes()) {
        std::memcpy(Record(i, prefilled_->sequence * heads() + head, group).data(), from, record_bytes());
      }
    }
    KVRUN_RETURN_IF_ERROR(FlushAll(*layers_[i].records));
  }
  first_groups_[prefilled_->sequence] = prefilled_->first;
  prefilled_.reset();
  return Status::Ok();
}

Status RecentWindow::VisitState(StateVisitor& visitor) {
  enum Item : uint16_t { kFirstGroups, kRecords };
  KVRUN_CHECK(!in_prefill());
  KVRUN_RETURN_IF_ERROR(visitor.Array({StatePart::kWindow, kFirstGroups}, std::span(first_groups_)));
  const uint64_t sequence_bytes = uint64_t{heads()} * plan_->window.n_records() * record_bytes();
  for (uint32_t layer = 0; layer < layers_.size(); ++layer) {
    for (uint32_t sequence = 0; sequence < plan_->n_sequences; ++sequence) {
      KVRUN_RETURN_IF_ERROR(VisitBytes(visitor, {StatePart::kWindow, kRecords, layer, sequence},
                                       *layers_[layer].records, sequence * sequence_bytes, sequence_bytes));
    }
  }
  return Status::Ok();
}

Status RecentWindow::Round(uint32_t layer, uint32_t stream, uint32_t position) {
  if (is_exact() || position < plan_->window.n_exact_entries) return Status::Ok();
  Buffer& records = *layers_[layer].records;
  const uint32_t group = position / group_tokens();
  const uint64_t offset = Offset(stream, group);
  KVRUN_RETURN_IF_ERROR(records.Invalidate(offset, record_bytes()));
  RoundEntry(plan_->window.record, plan_->record, position % group_tokens(), Record(layer, stream, group));
  return records.Flush(offset, record_bytes());
}

Status RecentWindow::BeginEntry(uint32_t layer, uint32_t stream, uint32_t position) {
  const uint32_t first = std::max(FirstGroup(position + 1), first_groups_[stream / heads()]);
  if (position >= exact_entries() && (position - exact_entries()) / group_tokens() >= first) {
    KVRUN_RETURN_IF_ERROR(Round(layer, stream, position - exact_entries()));
  }
  Buffer& buffer = *layers_[layer].table;
  const uint64_t words = 2 + uint64_t{plan_->window.n_records()};
  const std::span<uint32_t> table = Words(buffer).subspan(stream * words, words);
  const uint32_t last = position / group_tokens();
  const uint32_t n_exact = std::min(first, n_exact_groups());
  uint32_t n = 0;
  const auto name = [&](uint32_t slot) { table[2 + n++] = slot; };
  for (uint32_t group = 0; group < n_exact; ++group) name(group);
  for (uint32_t group = first; group <= last; ++group) name(n_exact_groups() + group % n_slots());
  table[0] = n;
  table[1] = position % group_tokens() + 1;
  return buffer.Flush(stream * words * sizeof(uint32_t), words * sizeof(uint32_t));
}

}  // namespace kvrun
