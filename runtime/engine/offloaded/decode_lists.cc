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
                                                         StepRecords& cache, const LayerStates& states,
                                                         const DecodeProbe& probe) {
  std::unique_ptr<DecodeLists> lists(new DecodeLists(device, commands, cache, states, probe));
  if (lists->scores()) KVRUN_RETURN_IF_ERROR(lists->CreateBuffers());
  return lists;
}

Status DecodeLists::CreateBuffers() {
  const KvPlan& plan = cache_.plan();
  KVRUN_CHECK(lookahead() <= 1);  // one later layer's norm is kept
  KVRUN_ASSIGN_OR_RETURN(later_normed_, device_.CreateBuffer(uint64_t{plan.n_sequences} *
                                                                 commands_.config().n_embd * sizeof(float),
                                                             BufferUse::kDevice, "activations"));
  KVRUN_ASSIGN_OR_RETURN(
      query_, device_.CreateBuffer(uint64_t{plan.n_sequences} * commands_.config().q_dim() * sizeof(float),
                                   BufferUse::kDevice, "activations"));
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

Result<DecodeLists::Step> DecodeLists::For(uint32_t n_rows, uint32_t n_outputs) {
  for (const RecordedStep& step : steps_) {
    if (step.n_rows == n_rows && step.n_outputs == n_outputs && step.is_probed == probe_.is_wanted() &&
        step.takes_inputs == probe_.gives_inputs()) {
      return Step(step.lists);
    }
  }
  RecordedStep step{n_rows, n_outputs, probe_.is_wanted(), probe_.gives_inputs(), {}};
  const uint32_t n_first = 1 + lookahead();
  for (uint32_t i = 0; i < n_first + n_layers(); ++i) {
    KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<CommandList> list, device_.CreateCommandList());
    KVRUN_RETURN_IF_ERROR(i < n_first ? RecordFirst(*list, i, n_rows)
                                      : RecordLayer(*list, i - n_first, n_rows, n_outputs));
    KVRUN_RETURN_IF_ERROR(list->Finish());
    step.lists.push_back(std::move(list));
  }
  if (steps_.size() >= kMaxRecordedSteps) steps_.erase(steps_.begin());
  steps_.push_back(std::move(step));
  return Step(steps_.back().lists);
}

Status DecodeLists::RecordFirst(CommandList& list, uint32_t layer, uint32_t n_rows) {
  if (layer > 0) return RecordPrediction(list, layer, n_rows, later_normed_.get());
  KVRUN_RETURN_IF_ERROR(commands_.Embed(list, n_rows));
  KVRUN_RETURN_IF_ERROR(RecordStates(list, 0, model_layer(0), n_rows));
  KVRUN_RETURN_IF_ERROR(RecordNorms(list, 0, n_rows));
  return RecordPrediction(list, 0, n_rows, commands_.normed());
}

Status DecodeLists::RecordLayer(CommandList& list, uint32_t layer, uint32_t n_rows, uint32_t n_outputs) {
  const SlotAttentionArgs attention = SlotAttention(layer, n_rows);
  const bool is_last = layer + 1 == n_layers();
  KVRUN_RETURN_IF_ERROR(commands_.Qkv(list, model_layer(layer), n_rows));
  KVRUN_RETURN_IF_ERROR(list.AwaitHost());
  KVRUN_RETURN_IF_ERROR(list.RopeAndEncode(attention));
  KVRUN_RETURN_IF_ERROR(probe_.RecordQueries(list, layer));
  KVRUN_RETURN_IF_ERROR(list.AttendSlots(attention));
  KVRUN_RETURN_IF_ERROR(commands_.AfterAttention(list, model_layer(layer), n_rows));
  KVRUN_RETURN_IF_ERROR(RecordStates(list, model_layer(layer) + 1, model_layer(layer + 1), n_rows));
  if (is_last) return n_outputs > 0 ? commands_.Head(list, n_outputs) : Status::Ok();
  KVRUN_RETURN_IF_ERROR(probe_.RecordInput(list, layer + 1));
  KVRUN_RETURN_IF_ERROR(RecordNorms(list, layer + 1, n_rows));
  return RecordPrediction(list, layer + 1 + lookahead(), n_rows,
                          lookahead() == 0 ? commands_.normed() : later_normed_.get());
}

Status DecodeLists::RecordStates(CommandList& list, uint32_t begin, uint32_t end, uint32_t n_rows) {
  for (uint32_t layer = begin; layer < end; ++layer) {
    KVRUN_RETURN_IF_ERROR(
        states_.RecordLayer(list, commands_, layer, n_rows, /*of_prompt=*/false, commands_.own()));
    KVRUN_RETURN_IF_ERROR(commands_.AfterAttention(list, layer, n_rows));
  }
  return Status::Ok();
}

// Of hidden states as they are now: what begins a layer, and the prediction of a later one.
Status DecodeLists::RecordNorms(CommandList& list, uint32_t layer, uint32_t n_rows) {
  const uint32_t later = layer + lookahead();
  if (!scores() || later == layer || later >= n_layers()) {
    return commands_.AttentionNorm(list, model_layer(layer), n_rows);
  }
  return commands_.AttentionNorms(list, model_layer(layer), model_layer(later), n_rows, later_normed_.get());
}

Status DecodeLists::RecordPrediction(CommandList& list, uint32_t layer, uint32_t n_rows,
                                     const Buffer* normed) {
  if (!scores() || layer >= n_layers()) return Status::Ok();
  KVRUN_RETURN_IF_ERROR(commands_.Query(list, model_layer(layer), n_rows, *normed, query_.get()));
  KVRUN_RETURN_IF_ERROR(list.ScoreAndSelect(Score(layer, n_rows)));
  return cache_.index()->RecordSearch(list, layer, n_rows, score_scratch_.get());
}

ScoreArgs DecodeLists::Score(uint32_t layer, uint32_t n_rows) const {
  const KvPlan& plan = cache_.plan();
  ScoreArgs args =
      LayerScore(commands_, plan, *cache_.index(), layer, n_rows, DecodeRule(plan, layer), commands_.own());
  args.query = query_.get();
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
