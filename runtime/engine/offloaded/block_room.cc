#include "runtime/engine/offloaded/block_room.h"

#include <algorithm>

namespace kvrun {
namespace {

// However much room there is: more read little less. And however little: with fewer, a prompt of 16 tiles
// reads its KV four times.
constexpr size_t kMostBlockChunks = 16;
constexpr size_t kLeastBlockChunks = 3;

}  // namespace

bool BlockRoom::Take(uint64_t bytes) {
  const bool is_there = bytes <= room_bytes_;
  room_bytes_ -= std::min(bytes, room_bytes_);
  return is_there;
}

Result<Buffer*> BlockRoom::Add(uint64_t bytes, BufferUse use, std::vector<std::unique_ptr<Buffer>>* to) {
  KVRUN_ASSIGN_OR_RETURN(to->emplace_back(), device_.CreateBuffer(bytes, use, "activations"));
  return to->back().get();
}

Status BlockRoom::AddTurn(PrefillTurns& turns) {
  KVRUN_ASSIGN_OR_RETURN(Buffer* const hidden, Add(PrefillTurns::HiddenBytesOfChunk(commands_.config()),
                                                   BufferUse::kShared, &memory_));
  turns.Add(hidden);
  return Status::Ok();
}

Status BlockRoom::AddParts() {
  KVRUN_ASSIGN_OR_RETURN(Buffer* const parts, Add(needs_.parts_bytes, BufferUse::kDevice, &parts_memory_));
  free_parts_.push_back({parts, 0});
  return Status::Ok();
}

// Where a chunk needs more than there is, it gets it, as activations do.
Status BlockRoom::Make(const Needs& needs, uint64_t room_bytes, PrefillSpill& spill, PrefillTurns& turns) {
  needs_ = needs;
  room_bytes_ = room_bytes;
  Take(spill.room_bytes());
  KVRUN_ASSIGN_OR_RETURN(spill_room_,
                         device_.CreateBuffer(spill.room_bytes(), BufferUse::kShared, "activations"));
  spill.UseRoom(spill_room_->host());
  const uint64_t hidden_bytes = PrefillTurns::HiddenBytesOfChunk(commands_.config());
  if (Take(hidden_bytes)) KVRUN_RETURN_IF_ERROR(AddTurn(turns));
  FindParts();
  qkv_.push_back(commands_.qkv());
  const uint64_t qkv_bytes = uint64_t{needs.chunk_rows} * commands_.qkv_dim() * sizeof(float);
  // Each chunk of a block has a turn, so that its hidden states come once.
  while (qkv_.size() < std::min(kMostBlockChunks, needs.n_chunks)) {
    const bool needs_turn = turns.count() == qkv_.size();
    const bool needs_parts = free_parts_.size() < qkv_.size() + 2;
    const bool has_room =
        Take(qkv_bytes + (needs_parts ? needs.parts_bytes : 0) + (needs_turn ? hidden_bytes : 0));
    if (!has_room && qkv_.size() >= kLeastBlockChunks) break;
    if (needs_turn) KVRUN_RETURN_IF_ERROR(AddTurn(turns));
    KVRUN_ASSIGN_OR_RETURN(Buffer* const qkv, Add(qkv_bytes, BufferUse::kDevice, &memory_));
    qkv_.push_back(qkv);
    if (needs_parts) KVRUN_RETURN_IF_ERROR(AddParts());
  }
  while (free_parts_.size() < qkv_.size() + 1) KVRUN_RETURN_IF_ERROR(AddParts());
  return Status::Ok();
}

void BlockRoom::Drop() {
  qkv_.clear();
  free_parts_.clear();
  memory_.clear();
  parts_memory_.clear();
}

// In the feed-forward network's activations, and in memory of their own.
void BlockRoom::FindParts() {
  free_parts_.clear();
  for (Buffer* idle : commands_.feed_forward()) {
    const auto n = static_cast<uint32_t>(idle->size_bytes() / needs_.parts_bytes);
    for (uint32_t i = 0; i < n; ++i)
      free_parts_.push_back({idle, i * needs_.chunk_rows * commands_.config().n_heads});
  }
  for (const std::unique_ptr<Buffer>& own : parts_memory_) free_parts_.push_back({own.get(), 0});
}

AttentionParts BlockRoom::TakeParts() {
  const AttentionParts parts = free_parts_.back();
  free_parts_.pop_back();
  return parts;
}

}  // namespace kvrun
