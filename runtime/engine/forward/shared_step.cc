#include "runtime/engine/forward/shared_step.h"

#include <numeric>

#include "platform/base/check.h"
#include "runtime/engine/offloaded/compute_step.h"

namespace kvrun {

Status SharedStep::Run(std::span<Row> rows) {
  KVRUN_CHECK(rows.size() <= kMostRows);
  active_.clear();
  parts_.clear();
  caches_.clear();
  members_.clear();
  for (Row& row : rows) {
    row.status = row.member->Begin(row.row);
    if (!row.status.ok()) continue;
    LookBack& part = row.member->look_back();
    active_.push_back(&row);
    parts_.push_back(&part);
    members_.emplace_back(&part, part.version());
    if (row.member->records() != nullptr) caches_.push_back(row.member->records());
  }
  if (active_.empty()) return Status::Ok();
  StepMember& first = *active_.front()->member;
  const StepForm form = first.look_back().form();
  KVRUN_RETURN_IF_ERROR(Prepare(first.device(), first.commands()));
  WriteInputs();
  for (const Row* row : active_) row->member->Submit();
  KVRUN_RETURN_IF_ERROR(
      ComputeStep(first.device(), lists_, form, caches_, form.has_store ? &*thread_ : nullptr));
  for (uint32_t i = 0; i < active_.size(); ++i) {
    Row& row = *active_[i];
    commands_->CopyLogits(row.logits, i);
    row.status = row.member->End(row.row);
  }
  return Status::Ok();
}

void SharedStep::Drop() {
  lists_.clear();
  recorded_for_.clear();
  commands_.reset();
  choice_ = {};
}

Status SharedStep::Prepare(Device& device, const StepCommands& commands) {
  const StepForm form = parts_.front()->form();
  if (form.has_store && !thread_) thread_.emplace(device, commands.config().n_kv_layers(), form.lookahead);
  if (recorded_for_ == members_) return Status::Ok();
  Drop();
  const auto n_rows = static_cast<uint32_t>(parts_.size());
  // Angles are each member's: how long its context is does not matter here.
  KVRUN_ASSIGN_OR_RETURN(commands_, StepCommands::Create(commands.config(), commands.weights(), device,
                                                         BufferUse::kDevice, /*n_ctx=*/1, n_rows));
  if (form.scores) {
    KVRUN_ASSIGN_OR_RETURN(choice_, ChoiceBuffers::Create(device, commands.config(), n_rows));
  }
  KVRUN_ASSIGN_OR_RETURN(lists_, StepRecorder(*commands_, parts_, choice_, n_rows).Record(device, n_rows));
  recorded_for_ = members_;
  return Status::Ok();
}

void SharedStep::WriteInputs() {
  std::vector<StepRow> rows;
  for (const Row* row : active_) rows.push_back(row->row);
  std::vector<uint32_t> outputs(rows.size());
  std::iota(outputs.begin(), outputs.end(), 0U);
  commands_->WriteRows(rows);
  commands_->WriteOutputs(outputs);
}

}  // namespace kvrun
