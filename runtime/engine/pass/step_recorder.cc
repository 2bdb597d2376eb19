#include "runtime/engine/pass/step_recorder.h"

#include <utility>

#include "platform/base/check.h"

namespace kvrun {

Result<ChoiceBuffers> ChoiceBuffers::Create(Device& device, const ModelConfig& config, uint32_t n_rows) {
  ChoiceBuffers buffers;
  const uint64_t rows = n_rows;
  KVRUN_ASSIGN_OR_RETURN(buffers.normed, device.CreateBuffer(rows * config.n_embd * sizeof(float),
                                                             BufferUse::kDevice, "activations"));
  KVRUN_ASSIGN_OR_RETURN(buffers.query, device.CreateBuffer(rows * config.q_dim() * sizeof(float),
                                                            BufferUse::kDevice, "activations"));
  return buffers;
}

StepRecorder::StepRecorder(const StepCommands& commands, std::span<LookBack* const> parts,
                           const ChoiceBuffers& choice, uint32_t n_rows)
    : parts_(parts.begin(), parts.end()),
      commands_(commands),
      form_(parts.front()->form()),
      choice_(choice),
      n_rows_(n_rows),
      place_(commands_.own()) {
  KVRUN_CHECK(parts.size() == 1 || parts.size() == n_rows);
  KVRUN_CHECK(form_.lookahead <= 1);
  for (const LookBack* part : parts) KVRUN_CHECK(part->form() == form_);
}

Result<StepLists> StepRecorder::Record(Device& device, uint32_t n_outputs) {
  StepLists lists;
  const uint32_t n_first = 1 + form_.lookahead;
  for (uint32_t i = 0; i < n_first + n_layers(); ++i) {
    if (lists.empty() || !form_.is_one_list) {
      KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<CommandList> list, device.CreateCommandList());
      lists.push_back(std::move(list));
    }
    CommandList& list = *lists.back();
    KVRUN_RETURN_IF_ERROR(i < n_first ? RecordFirst(list, i) : RecordLayer(list, i - n_first, n_outputs));
    if (!form_.is_one_list) KVRUN_RETURN_IF_ERROR(list.Finish());
  }
  if (form_.is_one_list) KVRUN_RETURN_IF_ERROR(lists.back()->Finish());
  return lists;
}

Status StepRecorder::RecordFirst(CommandList& list, uint32_t layer) {
  if (layer > 0) return RecordChoice(list, layer);
  KVRUN_RETURN_IF_ERROR(commands_.Embed(list, n_rows_, place_));
  KVRUN_RETURN_IF_ERROR(RecordStates(list, 0, model_layer(0)));
  return RecordChoice(list, 0);
}

Status StepRecorder::RecordLayer(CommandList& list, uint32_t layer, uint32_t n_outputs) {
  const bool is_last = layer + 1 == n_layers();
  KVRUN_RETURN_IF_ERROR(commands_.Qkv(list, model_layer(layer), n_rows_, place_));
  if (!form_.is_one_list) KVRUN_RETURN_IF_ERROR(list.AwaitHost());
  for (uint32_t i = 0; i < parts_.size(); ++i) {
    BeginStrand(list);
    const StepPlace own = parts_[i]->commands().own();
    KVRUN_RETURN_IF_ERROR(CopyRow(list, {place_.qkv, i}, {own.qkv}, commands_.qkv_dim()));
    KVRUN_RETURN_IF_ERROR(parts_[i]->RecordAttention(list, layer, rows_of_part()));
    KVRUN_RETURN_IF_ERROR(CopyRow(list, {own.attended}, {place_.attended, i}, commands_.config().q_dim()));
  }
  EndStrands(list);
  KVRUN_RETURN_IF_ERROR(commands_.AfterAttention(list, model_layer(layer), n_rows_, place_));
  KVRUN_RETURN_IF_ERROR(RecordStates(list, model_layer(layer) + 1, model_layer(layer + 1)));
  if (is_last) return n_outputs > 0 ? commands_.Head(list, n_rows_, n_outputs, place_) : Status::Ok();
  KVRUN_RETURN_IF_ERROR(parts_.front()->RecordInput(list, layer + 1));
  return RecordChoice(list, layer + 1 + form_.lookahead);
}

Status StepRecorder::RecordStates(CommandList& list, uint32_t begin, uint32_t end) {
  for (uint32_t layer = begin; layer < end; ++layer) {
    KVRUN_RETURN_IF_ERROR(LayerStates::RecordInput(list, commands_, layer, n_rows_, place_));
    for (uint32_t i = 0; i < parts_.size(); ++i) {
      BeginStrand(list);
      const StepCommands& commands = parts_[i]->commands();
      const StepPlace own = commands.own();
      const LayerStates::Columns columns = LayerStates::ColumnsOf(commands.config(), layer);
      KVRUN_RETURN_IF_ERROR(CopyRow(list, {LayerStates::InputOf(commands_, layer, place_), i},
                                    {LayerStates::InputOf(commands, layer, own)}, columns.input));
      KVRUN_RETURN_IF_ERROR(parts_[i]->states().RecordLookBack(list, commands, layer, rows_of_part(),
                                                               /*of_prompt=*/false, own));
      KVRUN_RETURN_IF_ERROR(CopyRow(list, {own.attended}, {place_.attended, i}, columns.attended));
    }
    EndStrands(list);
    KVRUN_RETURN_IF_ERROR(commands_.AfterAttention(list, layer, n_rows_, place_));
  }
  return Status::Ok();
}

Status StepRecorder::RecordChoice(CommandList& list, uint32_t layer) {
  if (!form_.scores || layer >= n_layers()) return Status::Ok();
  KVRUN_RETURN_IF_ERROR(commands_.Query(list, model_layer(layer), n_rows_,
                                        {place_.hidden, choice_.normed.get(), choice_.query.get()}));
  for (uint32_t i = 0; i < parts_.size(); ++i) {
    LookBack& part = *parts_[i];
    BeginStrand(list);
    KVRUN_RETURN_IF_ERROR(
        CopyRow(list, {choice_.query.get(), i}, {part.query()}, commands_.config().q_dim()));
    KVRUN_RETURN_IF_ERROR(part.RecordChoice(list, layer, rows_of_part()));
  }
  EndStrands(list);
  return Status::Ok();
}

// Where what is attended to is chosen, each member has about as much to do as another. Of those that attend
// to all, one may have a hundred times more: then all threads compute each of its operations.
void StepRecorder::BeginStrand(CommandList& list) const {
  if (form_.scores && parts_.size() > 1) list.BeginStrand();
}

void StepRecorder::EndStrands(CommandList& list) const {
  if (form_.scores && parts_.size() > 1) list.EndStrands();
}

Status StepRecorder::CopyRow(CommandList& list, const RowOf& from, const RowOf& to, uint32_t n_cols) {
  if (from.buffer == to.buffer) return Status::Ok();
  const uint64_t bytes = uint64_t{n_cols} * sizeof(float);
  return list.Copy(
      {.from = from.buffer, .to = to.buffer, .pieces = {{from.row * bytes, to.row * bytes, bytes}}});
}

}  // namespace kvrun
