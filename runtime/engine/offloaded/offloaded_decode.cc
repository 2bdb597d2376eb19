#include "runtime/engine/offloaded/offloaded_decode.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "runtime/engine/offloaded/compute_step.h"
#include "runtime/engine/offloaded/phase_kernels.h"

namespace kvrun {

Result<std::unique_ptr<OffloadedDecode>> OffloadedDecode::Create(Device& device, StepCommands& commands,
                                                                 RecordCache& cache,
                                                                 const LayerStates& states,
                                                                 std::shared_ptr<StepProbe> probe) {
  KVRUN_ASSIGN_OR_RETURN(DecodeProbe of_steps, DecodeProbe::Create(device, commands, std::move(probe)));
  std::unique_ptr<OffloadedDecode> decode(new OffloadedDecode(device, commands, cache, std::move(of_steps)));
  KVRUN_ASSIGN_OR_RETURN(decode->lists_,
                         DecodeLists::Create(device, commands, cache, states, decode->probe_));
  return decode;
}

OffloadedDecode::OffloadedDecode(Device& device, StepCommands& commands, RecordCache& cache,
                                 DecodeProbe probe)
    : device_(device), commands_(commands), cache_(cache), steps_(cache.steps()), probe_(std::move(probe)) {
  const KvPlan& plan = cache.plan();
  kv_step_.spans.reserve(plan.n_sequences);
  if (plan.choice.n_usual > 0)
    pace_.emplace(plan.n_least(), plan.choice.n_usual, plan.choice.n_chosen, plan.choice.hide);
  if (cache.has_store()) thread_.emplace(device, n_layers(), plan.method.lookahead);
}

Status OffloadedDecode::Begin() {
  KVRUN_RETURN_IF_ERROR(commands_.MakeGivenUp(device_));  // a prompt that failed has not
  if (steps_.in_decode() && lists_->has_scratch()) return Status::Ok();
  lists_->DropScratch();
  KVRUN_RETURN_IF_ERROR(DropKernelsOfOtherPhase(device_, cache_.plan()));
  KVRUN_RETURN_IF_ERROR(steps_.BeginDecode());
  KVRUN_RETURN_IF_ERROR(lists_->MakeScratch());
  if (!scores() || cache_.index()->is_ready()) return Status::Ok();
  for (uint32_t i = 0; i < n_layers(); ++i) KVRUN_RETURN_IF_ERROR(cache_.index()->PrepareBlank(i));
  return Status::Ok();
}

// From the longest of the step's sequences.
Status OffloadedDecode::Learn() {
  lists_->Drop();  // recorded with adapters that will be gone
  const std::vector<KvSpan>& spans = kv_step_.spans;
  const auto longest = std::max_element(spans.begin(), spans.end(), [](const KvSpan& a, const KvSpan& b) {
    return a.first_position < b.first_position;
  });
  KVRUN_RETURN_IF_ERROR(steps_.LearnFromStored(longest->sequence));
  return Begin();
}

// Rows must be there before the device scores them. An index of keys has no use for those of the window;
// others are there already, unless a step has failed or the window is short.
Status OffloadedDecode::WriteRowsToScore() {
  if (!scores()) return Status::Ok();
  if (cache_.index()->takes_records()) return steps_.WriteCompletedGroups();
  return cache_.index()->takes_keys() ? steps_.WriteLeavingGroups() : Status::Ok();
}

Status OffloadedDecode::BeginStep(std::span<const StepRow> rows) {
  KVRUN_RETURN_IF_ERROR(Begin());
  kv_step_.spans.clear();
  for (const StepRow& row : rows) kv_step_.spans.push_back({row.sequence, row.position});
  KVRUN_RETURN_IF_ERROR(steps_.BeginStep(kv_step_));
  if (steps_.NeedsLearning()) KVRUN_RETURN_IF_ERROR(Learn());
  return WriteRowsToScore();
}

Status OffloadedDecode::WriteInputs(std::span<const StepRow> rows, std::span<const uint32_t> outputs) {
  commands_.WriteRows(rows);
  commands_.WriteOutputs(outputs);
  if (pace_) commands_.WriteMostChosen(pace_->count());
  if (scores()) KVRUN_RETURN_IF_ERROR(cache_.index()->WriteInputs({kv_step_, commands_.angles(rows.size())}));
  probe_.WriteInputs();
  return Status::Ok();
}

Status OffloadedDecode::Prepare(std::span<const StepRow> rows, std::span<const uint32_t> outputs) {
  KVRUN_RETURN_IF_ERROR(BeginStep(rows));
  KVRUN_RETURN_IF_ERROR(WriteInputs(rows, outputs));
  if (probe_.is_wanted()) cache_.reports().NoteStep();
  const KvStats& stats = cache_.reports().stats();
  io_before_ms_ = stats.io_ms;
  stall_before_ms_ = stats.stall_ms;
  return Status::Ok();
}

Status OffloadedDecode::Conclude(std::span<const StepRow> rows) {
  if (probe_.is_wanted()) KVRUN_RETURN_IF_ERROR(probe_.Read(cache_, rows[0].position));
  steps_.EndStep();
  const KvStats& stats = cache_.reports().stats();
  if (pace_) pace_->Note(stats.io_ms - io_before_ms_, stats.stall_ms - stall_before_ms_);
  return Status::Ok();
}

Status OffloadedDecode::Run(std::span<const StepRow> rows, std::span<const uint32_t> outputs,
                            std::span<float> logits) {
  KVRUN_RETURN_IF_ERROR(Prepare(rows, outputs));
  KVRUN_ASSIGN_OR_RETURN(const StepLists* lists, lists_->For(static_cast<uint32_t>(rows.size()),
                                                             static_cast<uint32_t>(outputs.size())));
  StepRecords* const records = &steps_;
  KVRUN_RETURN_IF_ERROR(
      ComputeStep(device_, *lists, lists_->form(), std::span(&records, 1), thread_ ? &*thread_ : nullptr));
  KVRUN_RETURN_IF_ERROR(Conclude(rows));
  commands_.CopyLogits(logits);
  return Status::Ok();
}

}  // namespace kvrun
