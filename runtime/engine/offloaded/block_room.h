// Memory for a block: chunks of a prompt's later tiles that are computed together. It lies in the place of
// the logits, which is given up meanwhile, and in what the feed-forward network leaves idle. What the least
// block takes beyond that, two chunks of rows at most, does not grow with the context, and is not the KV's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/engine/offloaded/prefill_spill.h"
#include "runtime/engine/offloaded/prefill_turns.h"
#include "runtime/engine/pass/step_commands.h"

namespace kvrun {

class BlockRoom {
 public:
  struct Needs {
    uint32_t chunk_rows = 0;   // at most
    uint64_t parts_bytes = 0;  // of AttentionParts of a chunk
    size_t n_chunks = 0;       // that all later tiles are
  };

  // Both must outlive it.
  BlockRoom(Device& device, StepCommands& commands) : device_(device), commands_(commands) {}

  // In `room_bytes`, or more for the least block: memory for what is spilled, a turn for each chunk, queries,
  // and parts.
  Status Make(const Needs& needs, uint64_t room_bytes, PrefillSpill& spill, PrefillTurns& turns);
  // The logits' memory is to be theirs again.
  void Drop();
  // The feed-forward network's activations are given up, or there again.
  void ForgetParts() { free_parts_.clear(); }
  void FindParts();

  // That a block may have.
  size_t n_chunks() const { return qkv_.size(); }
  // Of the nth of them.
  Buffer* qkv(size_t nth) const { return qkv_[nth]; }
  // There is one more than there are chunks.
  AttentionParts TakeParts();
  void GiveParts(const AttentionParts& parts) { free_parts_.push_back(parts); }

 private:
  // Whether the room has as much. What there is of it is taken.
  bool Take(uint64_t bytes);
  Result<Buffer*> Add(uint64_t bytes, BufferUse use, std::vector<std::unique_ptr<Buffer>>* to);
  Status AddTurn(PrefillTurns& turns);
  Status AddParts();

  Device& device_;
  StepCommands& commands_;
  Needs needs_;
  uint64_t room_bytes_ = 0;  // that is left
  std::unique_ptr<Buffer> spill_room_;
  std::vector<std::unique_ptr<Buffer>> memory_;
  std::vector<std::unique_ptr<Buffer>> parts_memory_;
  std::vector<Buffer*> qkv_;
  std::vector<AttentionParts> free_parts_;
};

}  // namespace kvrun
