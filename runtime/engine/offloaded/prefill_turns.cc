#include "runtime/engine/offloaded/prefill_turns.h"

#include <cstring>
#include <utility>

namespace kvrun {

PrefillTurns::PrefillTurns(Device& device, StepCommands& commands, const KvPlan& plan, PrefillSpill& spill)
    : device_(device), commands_(commands), plan_(plan), spill_(spill), turns_(1) {
  turns_[0].place = commands.own();
}

uint64_t PrefillTurns::HiddenBytesOfChunk(const ModelConfig& config) {
  return uint64_t{kChunkRows} * config.n_embd * sizeof(float);
}

void PrefillTurns::Add(Buffer* hidden) {
  turns_.emplace_back().place = commands_.own();
  turns_.back().place.hidden = hidden;
}

Status PrefillTurns::AddInLogits() {
  if (commands_.logits_buffer()->size_bytes() < HiddenBytesOfChunk(commands_.config())) return Status::Ok();
  Add(commands_.logits_buffer());
  if (!plan_.prefill.has_inputs_ahead) return Status::Ok();
  KVRUN_ASSIGN_OR_RETURN(other_inputs_, StepInputs::Create(commands_.config(), device_, "kv"));
  turns_.back().place.step = other_inputs_.step.get();
  turns_.back().place.angles = other_inputs_.angles.get();
  turns_.back().place.windowed_angles = other_inputs_.windowed_angles.get();
  return Status::Ok();
}

Status PrefillTurns::Begin(std::span<const PromptChunk> chunks, std::span<const StepRow> rows) {
  chunks_ = chunks;
  prompt_begin_ = rows[0].position;
  for (PrefillTurn& turn : turns_) {
    turn.held = nullptr;
    turn.is_newer = false;
  }
  last_turn_ = turns_.size() - 1;
  if (!plan_.prefill.spills_hidden) hidden_.resize(rows.size() * commands_.config().n_embd);
  Status embedded;
  for (auto chunk = chunks.begin(); embedded.ok() && chunk != chunks.end(); ++chunk)
    embedded = Embed(*chunk, rows);
  const Status finished = FinishAll(nullptr);
  KVRUN_RETURN_IF_ERROR(embedded);
  return finished;
}

Status PrefillTurns::Embed(const PromptChunk& chunk, std::span<const StepRow> rows) {
  PrefillTurn& turn = Of(chunk);
  KVRUN_RETURN_IF_ERROR(Finish(turn, nullptr));
  KVRUN_RETURN_IF_ERROR(LeaveNewer(turn));
  KVRUN_RETURN_IF_ERROR(FreeInputs(turn, 0, nullptr));
  KVRUN_ASSIGN_OR_RETURN(turn.embedding, device_.CreateCommandList());
  KVRUN_RETURN_IF_ERROR(commands_.Embed(*turn.embedding, chunk.n_rows, turn.place));
  KVRUN_RETURN_IF_ERROR(turn.embedding->Finish());
  commands_.WriteRows(turn.place, rows.subspan(chunk.first_row, chunk.n_rows), 0);
  KVRUN_ASSIGN_OR_RETURN(turn.value, device_.Submit(*turn.embedding));
  turn.held = &chunk;
  turn.is_running = turn.is_newer = true;
  return Status::Ok();
}

Status PrefillTurns::LeaveAll() {
  for (PrefillTurn& turn : turns_) KVRUN_RETURN_IF_ERROR(LeaveNewer(turn));
  return Status::Ok();
}

Status PrefillTurns::Leave(const PromptChunk& chunk, Buffer& from) {
  KVRUN_RETURN_IF_ERROR(from.Invalidate(0, HiddenBytes(chunk)));
  const std::span<const std::byte> bytes = from.host().first(HiddenBytes(chunk));
  if (hidden_.empty()) return spill_.WriteHidden(Number(chunk), bytes);
  std::memcpy(hidden_.data() + uint64_t{chunk.first_row} * commands_.config().n_embd, bytes.data(),
              bytes.size());
  return Status::Ok();
}

Status PrefillTurns::Come(const PromptChunk& chunk, Buffer& to) {
  const std::span<std::byte> bytes = to.host().first(HiddenBytes(chunk));
  if (hidden_.empty()) {
    KVRUN_RETURN_IF_ERROR(spill_.ReadHidden(Number(chunk), bytes));
  } else {
    std::memcpy(bytes.data(), hidden_.data() + uint64_t{chunk.first_row} * commands_.config().n_embd,
                bytes.size());
  }
  return to.Flush(0, bytes.size());
}

Status PrefillTurns::LeaveNewer(PrefillTurn& turn) {
  if (!std::exchange(turn.is_newer, false)) return Status::Ok();
  return Leave(*turn.held, *turn.place.hidden);
}

PrefillTurn& PrefillTurns::Of(const PromptChunk& chunk) {
  for (size_t i = 0; i < turns_.size(); ++i) {
    if (turns_[i].held != &chunk) continue;
    last_turn_ = i;
    return turns_[i];
  }
  last_turn_ = (last_turn_ + 1) % turns_.size();
  return turns_[last_turn_];
}

Status PrefillTurns::Bring(const PromptChunk& chunk, PrefillTurn& turn, PrefillSink* sink) {
  KVRUN_RETURN_IF_ERROR(Finish(turn, sink));
  if (turn.held == &chunk) return Status::Ok();
  KVRUN_RETURN_IF_ERROR(LeaveNewer(turn));
  turn.held = nullptr;  // should it not come
  KVRUN_RETURN_IF_ERROR(Come(chunk, *turn.place.hidden));
  turn.held = &chunk;
  return Status::Ok();
}

// There is one buffer of gathered rows.
Status PrefillTurns::FreeInputs(const PrefillTurn& turn, size_t n_tapped, PrefillSink* sink) {
  for (PrefillTurn& other : turns_) {
    const bool is_shared = other.place.step == turn.place.step;
    if (is_shared || (n_tapped > 0 && !other.tapped.empty())) KVRUN_RETURN_IF_ERROR(Finish(other, sink));
  }
  return Status::Ok();
}

Status PrefillTurns::Finish(PrefillTurn& turn, PrefillSink* sink) {
  if (!turn.is_running) return Status::Ok();
  const Status waited = device_.Wait(turn.value);
  turn.is_running = false;
  turn.embedding.reset();
  const std::vector<uint32_t> tapped = std::exchange(turn.tapped, {});
  KVRUN_RETURN_IF_ERROR(waited);
  return sink != nullptr ? sink->EndTap(prompt_begin_ + turn.held->first_row, tapped) : Status::Ok();
}

// In the order in which they were submitted.
Status PrefillTurns::FinishAll(PrefillSink* sink) {
  Status finished;
  for (size_t i = 1; i <= turns_.size(); ++i) {
    const Status of_turn = Finish(turns_[(last_turn_ + i) % turns_.size()], sink);
    if (finished.ok()) finished = of_turn;
  }
  return finished;
}

uint64_t PrefillTurns::HiddenBytes(const PromptChunk& chunk) const {
  return uint64_t{chunk.n_rows} * commands_.config().n_embd * sizeof(float);
}

}  // namespace kvrun
