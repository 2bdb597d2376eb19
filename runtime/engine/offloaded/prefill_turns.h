// Where the chunks of a prompt are computed, and where their hidden states lie between layers: in memory, or
// in the spill file where the plan has no memory for them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/engine/offloaded/prefill_sink.h"
#include "runtime/engine/offloaded/prefill_spill.h"
#include "runtime/engine/pass/step_commands.h"
#include "runtime/kv/plan/kv_plan.h"

namespace kvrun {

// Rows of a prompt that are computed at once: they lie in one tile.
struct PromptChunk {
  uint32_t first_row = 0;
  uint32_t n_rows = 0;
  uint32_t tile = 0;
  uint32_t skip_rows = 0;  // sinks
};

// Where a chunk is computed. Chunks take turns: while the device computes one, the chunk before it leaves the
// other turn's buffer of hidden states, and the next one comes there and is submitted.
struct PrefillTurn {
  StepPlace place;
  const PromptChunk* held = nullptr;  // whose hidden states lie there; null: none's
  bool is_newer = false;              // than what lies elsewhere
  bool is_running = false;            // until `value`
  uint64_t value = 0;
  std::vector<uint32_t> tapped;            // rows of what is running
  std::unique_ptr<CommandList> embedding;  // that is running
};

class PrefillTurns {
 public:
  // All must outlive it. There is one turn, in the commands' own place.
  PrefillTurns(Device& device, StepCommands& commands, const KvPlan& plan, PrefillSpill& spill);

  // Before prompts. Another turn whose hidden states lie in the logits' memory, which nothing needs before
  // the last layer is computed; none where that is too small.
  Status AddInLogits();
  // The same in a buffer of hidden states of a whole chunk, which must outlive the turn.
  void Add(Buffer* hidden);
  size_t count() const { return turns_.size(); }
  static uint64_t HiddenBytesOfChunk(const ModelConfig& config);

  // The prompt's chunks, which must outlive what follows, and its rows. Computes its embedding.
  Status Begin(std::span<const PromptChunk> chunks, std::span<const StepRow> rows);
  // After the last layer: hidden states are elsewhere, if they are newer.
  Status LeaveAll();
  // Those that Add has added: their memory is needed.
  void DropAdded() { turns_.resize(1); }

  // The chunk's, if it has one; else the one that was not taken last.
  PrefillTurn& Of(const PromptChunk& chunk);
  // The chunk's hidden states are there, whatever was there before. `sink` as in Finish.
  Status Bring(const PromptChunk& chunk, PrefillTurn& turn, PrefillSink* sink);
  // So that the host may write the inputs of a chunk with so many tapped rows.
  Status FreeInputs(const PrefillTurn& turn, size_t n_tapped, PrefillSink* sink);
  // Waits for what runs; the sink, where there is one, gets what was tapped.
  Status Finish(PrefillTurn& turn, PrefillSink* sink);
  Status FinishAll(PrefillSink* sink);
  // What is nowhere but in the turn's buffer.
  Status LeaveNewer(PrefillTurn& turn);
  // Between layers, into a buffer of that many rows.
  Status Come(const PromptChunk& chunk, Buffer& to);

 private:
  Status Embed(const PromptChunk& chunk, std::span<const StepRow> rows);
  Status Leave(const PromptChunk& chunk, Buffer& from);
  uint64_t HiddenBytes(const PromptChunk& chunk) const;
  size_t Number(const PromptChunk& chunk) const { return static_cast<size_t>(&chunk - chunks_.data()); }

  Device& device_;
  StepCommands& commands_;
  const KvPlan& plan_;
  PrefillSpill& spill_;
  std::span<const PromptChunk> chunks_;
  uint32_t prompt_begin_ = 0;
  std::vector<float> hidden_;  // [rows, n_embd]; empty where it is spilled
  StepInputs other_inputs_;    // of the turn in the logits; none where the plan has no memory for them
  std::vector<PrefillTurn> turns_;
  size_t last_turn_ = 0;
};

}  // namespace kvrun
