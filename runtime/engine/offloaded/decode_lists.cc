#include "runtime/engine/offloaded/decode_lists.h"

#include <algorithm>
#include <utility>

#include "platform/base/check.h"
#include "runtime/engine/offloaded/layer_score.h"

namespace kvrun {
namespace {

constexpr size_t kMaxRecordedSteps = 4;

// Layers differ where slots, or what is kept, are shared out among them.
bool LayersDiffer(const KvPlan& plan) { return plan.method.evicts() || plan.has_layer_shares; }

}  // namespace

Result<std::unique_ptr<DecodeLists>> DecodeLists::Create(Device& device, const StepCommands& commands,
                                                         RecordCache& cache, const LayerStates& states,
                                                         const DecodeProbe& probe) {
  std::unique_ptr<DecodeLists> lists(
      new DecodeLists(device, commands, cache.steps(), cache.has_store(), states, probe));
  if (lists->scores()) KVRUN_RETURN_IF_ERROR(lists->CreateBuffers());
  return lists;
}

Status DecodeLists::CreateBuffers() {
  const KvPlan& plan = cache_.plan();
  KVRUN_ASSIGN_OR_RETURN(choice_, ChoiceBuffers::Create(device_, commands_.config(), plan.n_sequences));
  uint64_t scratch_bytes = 0;  // fewer rows may be divided into more parts
  for (uint32_t n = 1; n <= plan.n_sequences; ++n) {
    ScoreArgs most = Score(0, n);
    most.n_chosen = std::max(plan.most_chosen(), plan.n_total());  // where prompts say the static set's share
    scratch_bytes = std::max(scratch_bytes, cache_.index()->ScoreScratchBytes(device_, most));
  }
  KVRUN_ASSIGN_OR_RETURN(score_scratch_, device_.CreateBuffer(scratch_bytes, BufferUse::kDevice, "kv"));
  return Status::Ok();
}

Status DecodeLists::MakeScratch() {
  uint64_t scratch_bytes = 0;
  const uint32_t n_kinds = LayersDiffer(cache_.plan()) ? n_layers() : 1;
  for (uint32_t layer = 0; layer < n_kinds; ++layer) {
    for (uint32_t n = 1; n <= cache_.plan().n_sequences; ++n) {
      scratch_bytes = std::max(scratch_bytes, device_.AttendSlotsScratchBytes(SlotAttention(layer, n)));
    }
  }
  KVRUN_ASSIGN_OR_RETURN(attend_scratch_,
                         device_.CreateBuffer(scratch_bytes, BufferUse::kDevice, "activations"));
  return Status::Ok();
}

Result<const StepLists*> DecodeLists::For(uint32_t n_rows, uint32_t n_outputs) {
  for (const RecordedStep& step : steps_) {
    if (step.n_rows == n_rows && step.n_outputs == n_outputs && step.is_probed == probe_.is_wanted() &&
        step.takes_inputs == probe_.gives_inputs()) {
      return &step.lists;
    }
  }
  RecordedStep step{n_rows, n_outputs, probe_.is_wanted(), probe_.gives_inputs(), {}};
  LookBack* const self = this;
  StepRecorder recorder(commands_, std::span(&self, 1), choice_, n_rows);
  KVRUN_ASSIGN_OR_RETURN(step.lists, recorder.Record(device_, n_outputs));
  if (steps_.size() >= kMaxRecordedSteps) steps_.erase(steps_.begin());
  steps_.push_back(std::move(step));
  return &steps_.back().lists;
}

StepForm DecodeLists::form() const {
  return {.scores = scores(), .has_store = has_store_, .lookahead = cache_.plan().method.lookahead};
}

Status DecodeLists::RecordAttention(CommandList& list, uint32_t layer, uint32_t n_rows) {
  const SlotAttentionArgs attention = SlotAttention(layer, n_rows);
  if (!probe_.is_wanted()) return list.AttendNewSlots(attention);
  KVRUN_RETURN_IF_ERROR(list.RopeAndEncode(attention));
  KVRUN_RETURN_IF_ERROR(probe_.RecordQueries(list, layer));
  return list.AttendSlots(attention);
}

Status DecodeLists::RecordChoice(CommandList& list, uint32_t layer, uint32_t n_rows) {
  KVRUN_RETURN_IF_ERROR(list.ScoreAndSelect(Score(layer, n_rows)));
  return cache_.index()->RecordSearch(list, layer, n_rows, score_scratch_.get());
}

ScoreArgs DecodeLists::Score(uint32_t layer, uint32_t n_rows) const {
  const KvPlan& plan = cache_.plan();
  ScoreArgs args =
      LayerScore(commands_, plan, *cache_.index(), layer, n_rows, DecodeRule(plan, layer), commands_.own());
  args.query = choice_.query.get();
  args.scratch = score_scratch_.get();
  args.chosen = cache_.selector()->chosen(layer);
  return args;
}

SlotAttentionArgs DecodeLists::SlotAttention(uint32_t layer, uint32_t n_rows) const {
  SlotAttentionArgs args{.attention = commands_.Attention(model_layer(layer), n_rows, /*of_prompt=*/false)};
  cache_.AddSources(layer, &args);
  args.attention.kv_shape.n_sequences = cache_.plan().n_sequences;
  args.attention.scratch = attend_scratch_.get();
  return args;
}

}  // namespace kvrun
