#include "runtime/kv/slot_pool.h"

#include "runtime/kv/host_buffer.h"

namespace kvrun {

SlotShape SlotPool::shape() const {
  return {.record = plan_.record,
          .n_streams = plan_.n_streams,
          .n_slots = plan_.n_cache_slots,
          .n_window_slots = 0,
          .table_slots = plan_.n_chosen};
}

std::span<uint32_t> SlotPool::TableOf(uint32_t layer, uint32_t stream) const {
  const size_t words = shape().table_words();
  return Words(*layers_[layer].table).subspan(stream * words, words);
}

Status SlotPool::Make() {
  if (is_made_) return Status::Ok();
  const Status made = MakeAll();
  if (!made.ok()) Drop();  // those of some layers would stay beside the next ones
  return made;
}

Status SlotPool::MakeAll() {
  const SlotShape shape = this->shape();
  const ReplacementPolicy* policy = nullptr;
  if (plan_.method.selects()) {
    KVRUN_ASSIGN_OR_RETURN(policy, FindReplacementPolicy(plan_.policy));
  }
  for (Layer& layer : layers_) {
    if (plan_.method.shares_slots() && layers_[0].slots != nullptr) {
      layer.slots = layers_[0].slots;
    } else {
      KVRUN_ASSIGN_OR_RETURN(layer.slots, device_.CreateBuffer(shape.size_bytes(), BufferUse::kShared, "kv"));
    }
    KVRUN_ASSIGN_OR_RETURN(layer.table, device_.CreateBuffer(shape.table_bytes(), BufferUse::kShared, "kv"));
    if (policy != nullptr) {
      layer.caches.assign(plan_.n_streams, SlotCache(plan_.n_cache_slots, plan_.n_chosen, policy));
    }
  }
  is_made_ = true;
  return Status::Ok();
}

void SlotPool::Drop() {
  is_made_ = false;
  for (Layer& layer : layers_) layer = Layer();
}

void SlotPool::Truncate(uint32_t stream, uint32_t first) {
  for (Layer& layer : layers_) {
    if (!layer.caches.empty()) layer.caches[stream].Truncate(first);
  }
}

}  // namespace kvrun
