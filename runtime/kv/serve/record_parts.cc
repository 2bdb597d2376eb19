#include "runtime/kv/serve/record_parts.h"

#include <optional>
#include <utility>
#include <vector>

#include "runtime/kv/planner/kv_plan_statics.h"

namespace kvrun {

RecordParts::RecordParts(Device& device, const KvPlan& of, uint32_t layers, KvStores of_plan)
    : plan(of), n_layers(layers), stores(std::move(of_plan)), window(plan), slots(device, plan, n_layers) {}

Status RecordParts::Make(Device& device, const Adapter* adapter) {
  const auto means = adapter != nullptr ? std::span(adapter->entry_means) : std::span<const float>();
  KVRUN_ASSIGN_OR_RETURN(spaces, EntrySpaces::Create(device, plan, n_layers, means));
  KVRUN_ASSIGN_OR_RETURN(window, RecentWindow::Create(device, plan, n_layers));
  KVRUN_ASSIGN_OR_RETURN(index, MakeIndex(device, plan, n_layers, adapter, stores.rows.get(), spaces));
  selector = MakeSelector(device, plan, n_layers);
  KVRUN_ASSIGN_OR_RETURN(family, MakeLedger({.device = device,
                                             .plan = plan,
                                             .n_layers = n_layers,
                                             .adapter = adapter,
                                             .stores = stores,
                                             .window = window,
                                             .slots = slots,
                                             .index = index.get(),
                                             .spaces = spaces}));
  ledger = family.ledger.get();
  server = MakeServer(plan, n_layers, window, slots, selector.get(), family);
  return Status::Ok();
}

const IoMode* RecordParts::store_mode() const {
  if (stores.clusters != nullptr) return &stores.clusters->mode();
  return stores.groups != nullptr ? &stores.groups->mode() : nullptr;
}

GroupStoreStats RecordParts::store_stats() const {
  if (stores.clusters != nullptr) {
    GroupStoreStats stats = stores.clusters->stats();
    if (stores.rows != nullptr) stats.Add(stores.rows->stats());
    return stats;
  }
  return stores.groups != nullptr ? stores.groups->stats() : GroupStoreStats();
}

Status RecordParts::BeginDecode() {
  if (in_decode()) return Status::Ok();
  KVRUN_RETURN_IF_ERROR(MakeSlots());
  KVRUN_RETURN_IF_ERROR(BeginChoosing());
  const Status recalled = server->RecallSlots();
  if (!recalled.ok()) LeaveDecode();
  return recalled;
}

Status RecordParts::MakeSlots() {
  SettleStaticShare();
  KVRUN_RETURN_IF_ERROR(slots.Make());
  for (uint32_t i = 0; family.in_memory != nullptr && i < n_layers; ++i) {
    family.in_memory->SetSlots(i, slots.own(i)->slots());
  }
  return Status::Ok();
}

Status RecordParts::BeginChoosing() {
  Status begun = selector != nullptr ? selector->BeginDecode() : Status::Ok();
  const uint64_t written_before = family.pages != nullptr ? store_stats().written_bytes : 0;
  if (begun.ok() && family.kept != nullptr) begun = family.kept->BeginDecode();
  if (family.pages != nullptr) repaged_bytes += store_stats().written_bytes - written_before;
  if (!begun.ok()) LeaveDecode();
  return begun;
}

Status RecordParts::VisitState(StateVisitor& visitor) {
  enum Item : uint16_t { kHasStaticShare = 50 };
  if (!visitor.is_loading()) KVRUN_RETURN_IF_ERROR(FlushStores());
  KVRUN_RETURN_IF_ERROR(ledger->VisitState(visitor));
  std::vector<uint32_t> lengths(plan.n_sequences);
  for (uint32_t i = 0; i < lengths.size(); ++i) lengths[i] = ledger->length(i);
  KVRUN_RETURN_IF_ERROR(spaces.VisitState(visitor));
  KVRUN_RETURN_IF_ERROR(window.VisitState(visitor));
  if (index != nullptr) KVRUN_RETURN_IF_ERROR(index->VisitState(visitor, lengths));
  KVRUN_RETURN_IF_ERROR(server->VisitState(visitor));
  std::vector<bool> has_share{has_static_share_};
  KVRUN_RETURN_IF_ERROR(visitor.Flags({StatePart::kLedger, kHasStaticShare}, &has_share));
  if (has_share[0]) SettleStaticShare();
  if (stores.groups != nullptr) {
    KVRUN_RETURN_IF_ERROR(stores.groups->VisitState(visitor, plan.n_groups()));
    KVRUN_RETURN_IF_ERROR(CheckStored());
  }
  if (stores.clusters != nullptr) KVRUN_RETURN_IF_ERROR(stores.clusters->VisitState(visitor));
  if (stores.rows != nullptr) KVRUN_RETURN_IF_ERROR(stores.rows->VisitState(visitor));
  return family.in_memory != nullptr ? VisitSlots(visitor, lengths) : Status::Ok();
}

// What counts as stored is there.
Status RecordParts::CheckStored() const {
  for (uint32_t stream = 0; stream < plan.n_streams; ++stream) {
    const uint32_t n_stored = family.groups->n_stored(stream / plan.heads_per_sequence());
    KVRUN_RETURN_IF_ERROR(stores.groups->CheckWritten(stream, n_stored));
  }
  return Status::Ok();
}

Status RecordParts::FlushStores() {
  if (stores.groups != nullptr) KVRUN_RETURN_IF_ERROR(stores.groups->Flush());
  if (stores.clusters != nullptr) KVRUN_RETURN_IF_ERROR(stores.clusters->Flush());
  return stores.rows != nullptr ? stores.rows->Flush() : Status::Ok();
}

// Records that lie in slots alone; what steps choose among begins when they are there.
Status RecordParts::VisitSlots(StateVisitor& visitor, std::span<const uint32_t> lengths) {
  const bool begins = !in_decode();
  if (begins) KVRUN_RETURN_IF_ERROR(MakeSlots());
  std::vector<uint32_t> n_groups(plan.n_streams);
  for (uint32_t stream = 0; stream < plan.n_streams; ++stream) {
    n_groups[stream] = lengths[stream / plan.heads_per_sequence()] / plan.record.group_tokens;
  }
  KVRUN_RETURN_IF_ERROR(family.in_memory->VisitState(visitor, n_groups));
  return begins ? BeginChoosing() : Status::Ok();
}

// Once: the first prompts have said it.
void RecordParts::SettleStaticShare() {
  if (!plan.static_share().by_prompt || has_static_share_) return;
  if (family.statics == nullptr) return;
  const std::optional<double> share = family.statics->choice().measured_share();
  if (!share) return;
  ChangeStaticShare(*share, plan);
  has_static_share_ = true;
}

void RecordParts::LeaveDecode() {
  for (uint32_t i = 0; family.in_memory != nullptr && i < n_layers; ++i) {
    family.in_memory->SetSlots(i, nullptr);
  }
  slots.Drop();
  if (selector != nullptr) selector->EndDecode();
  if (family.kept != nullptr) family.kept->LeaveDecode();
}

Status RecordParts::SetMeans(uint32_t layer, uint32_t sequence, std::span<const float> means) {
  const std::vector<float> shifts = spaces.ShiftsTo(layer, sequence, means);
  KVRUN_RETURN_IF_ERROR(spaces.SetMeans(layer, sequence, means));
  const bool shifts_entries = family.shifter != nullptr && ledger->length(sequence) > 0;
  return shifts_entries ? family.shifter->Shift(layer, sequence, shifts) : Status::Ok();
}

}  // namespace kvrun
