#include "runtime/kv/serve/step_records.h"

#include <algorithm>
#include <vector>

#include "platform/base/check.h"

namespace kvrun {

StepRecords::StepRecords(RecordParts& parts, AttendedEntries& attended) : parts_(parts), attended_(attended) {
  step_.spans.reserve(parts.plan.n_sequences);
}

void StepRecords::AddSources(uint32_t layer, SlotAttentionArgs* args) {
  if (const SlotBuffers* own = parts_.slots.own(layer); own != nullptr) args->Add(own->source());
  if (const SlotBuffers* pool = parts_.slots.pool(layer); pool != nullptr) args->Add(pool->source());
  if (parts_.family.kept != nullptr) parts_.family.kept->AddSources(layer, args);
  args->space = parts_.spaces.space(layer);
  const RecentWindow& window = parts_.window;
  const Evictor* const evictor = parts_.family.evictor;
  Buffer* const mass = evictor != nullptr ? evictor->window_mass(layer) : nullptr;
  args->Add({window.records(layer), window.shape(), window.table(layer), mass});
}

Status StepRecords::BeginStep(const KvStep& step) {
  for (const KvSpan& span : step.spans) KVRUN_CHECK(span.n_rows == 1);
  step_ = step;
  attended_.BeginStep();
  KVRUN_RETURN_IF_ERROR(parts_.ledger->BeginStep(step_));
  for (const KvSpan& span : step_.spans) {
    if (span.first_position == 0) KVRUN_RETURN_IF_ERROR(parts_.spaces.Forget(span.sequence));
  }
  parts_.server->BeginStep(step_);
  return Status::Ok();
}

bool StepRecords::NeedsLearning() const {
  if (index() == nullptr || index()->is_ready()) return false;
  return std::any_of(step_.spans.begin(), step_.spans.end(), [this](const KvSpan& span) {
    return span.first_position >= index()->min_entries_to_learn() &&
           parts_.window.FirstGroup(span.end()) > plan().least_chosen();
  });
}

Status StepRecords::SetMeansFromStored(uint32_t sequence) {
  EntrySpaces& spaces = parts_.spaces;
  for (uint32_t layer = 0; parts_.family.shifter != nullptr && layer < parts_.n_layers; ++layer) {
    if (!spaces.are_used() || spaces.has_means(layer, sequence)) continue;
    KVRUN_ASSIGN_OR_RETURN(std::vector<float> means, parts_.family.shifter->MeansInRecords(layer, sequence));
    if (means.empty()) continue;
    spaces.TakeBack(layer, sequence, means);
    KVRUN_RETURN_IF_ERROR(parts_.SetMeans(layer, sequence, means));
  }
  return Status::Ok();
}

Status StepRecords::LearnFromStored(uint32_t sequence) {
  KVRUN_RETURN_IF_ERROR(WriteCompletedGroups());
  if (parts_.has_store()) parts_.LeaveDecode();  // their room is for the work on adapters, as in prefill
  KVRUN_RETURN_IF_ERROR(SetMeansFromStored(sequence));
  return index()->LearnFromStored(sequence, *parts_.ledger);
}

Status StepRecords::WriteLeavingGroups() {
  GroupWriter* const groups = parts_.family.groups;
  return groups != nullptr ? groups->StoreLeavingGroups() : Status::Ok();
}

Status StepRecords::WriteCompletedGroups() {
  GroupWriter* const groups = parts_.family.groups;
  return groups != nullptr ? groups->StoreCompletedGroups() : Status::Ok();
}

Status StepRecords::FetchLayer(uint32_t layer) {
  if (maintains()) KVRUN_RETURN_IF_ERROR(parts_.family.upkeep->BeginLayer(layer));
  KVRUN_RETURN_IF_ERROR(parts_.server->Serve(layer));
  if (index() != nullptr) KVRUN_RETURN_IF_ERROR(index()->EndLayer(layer));
  attended_.NoteLayer(layer);
  return Status::Ok();
}

void StepRecords::EndStep() {
  parts_.server->EndStep();
  parts_.ledger->EndStep();
}

}  // namespace kvrun
