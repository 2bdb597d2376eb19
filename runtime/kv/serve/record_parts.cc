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
  SettleStaticShare();
  KVRUN_RETURN_IF_ERROR(slots.Make());
  for (uint32_t i = 0; family.in_memory != nullptr && i < n_layers; ++i) {
    family.in_memory->SetSlots(i, slots.own(i)->slots());
  }
  Status begun = selector != nullptr ? selector->BeginDecode() : Status::Ok();
  const uint64_t written_before = family.pages != nullptr ? store_stats().written_bytes : 0;
  if (begun.ok() && family.kept != nullptr) begun = family.kept->BeginDecode();
  if (family.pages != nullptr) repaged_bytes += store_stats().written_bytes - written_before;
  if (!begun.ok()) LeaveDecode();
  return begun;
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
