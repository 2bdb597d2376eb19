#include "runtime/kv/serve/layer_server.h"

#include <chrono>

namespace kvrun {

LayerServer::LayerServer(const KvPlan& plan, uint32_t n_layers, RecentWindow& window, KvSlots& slots)
    : plan_(plan), window_(window), slots_(slots) {
  stats_.layer_fetch_ms.resize(n_layers);
  stats_.layer_loads.resize(n_layers);
}

void LayerServer::ResetStats() {
  const size_t n_layers = stats_.layer_loads.size();
  stats_ = {};
  stats_.layer_fetch_ms.resize(n_layers);
  stats_.layer_loads.resize(n_layers);
}

StreamStep LayerServer::StreamStepOf(uint32_t layer, uint32_t row, uint32_t head, uint32_t position) const {
  const bool has_row = step_ != nullptr && row < step_->spans.size();
  const uint32_t sequence = has_row ? step_->spans[row].sequence : 0;
  StreamStep step{layer, row, head, sequence * heads() + head, position, window_.FirstGroup(position + 1)};
  step.n_groups = n_extents(step);
  return step;
}

Status LayerServer::Serve(uint32_t layer) {
  const auto begin = std::chrono::steady_clock::now();
  const Status status = FillTables(layer);
  if (!status.ok()) {
    DropBrought(layer);
    EmptyTables(layer);
    return status;
  }
  const std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - begin;
  stats_.fetch_ms += elapsed.count();
  stats_.layer_fetch_ms[layer] += elapsed.count();
  return Status::Ok();
}

Status LayerServer::FillTables(uint32_t layer) {
  KVRUN_RETURN_IF_ERROR(Bring(layer));
  for (uint32_t row = 0; row < step_->spans.size(); ++row) {
    for (uint32_t head = 0; head < heads(); ++head) {
      const StreamStep step = StreamStepOf(layer, row, head);
      KVRUN_RETURN_IF_ERROR(NameSlots(step));
      KVRUN_RETURN_IF_ERROR(window_.BeginEntry(layer, step.stream, step.position));
    }
  }
  return slots_.FlushTables(layer);
}

void LayerServer::EmptyTables(uint32_t layer) {
  for (const KvSpan& span : step_->spans) {
    for (uint32_t head = 0; head < heads(); ++head) slots_.Empty(layer, span.sequence * heads() + head);
  }
  (void)slots_.FlushTables(layer);  // the first error is the one to tell
}

std::vector<std::vector<uint32_t>> LayerServer::GroupsBeforeWindow(uint32_t layer, uint32_t row,
                                                                   uint32_t position) const {
  std::vector<std::vector<uint32_t>> groups(heads());
  for (uint32_t head = 0; head < heads(); ++head) {
    groups[head] = LastAttended(StreamStepOf(layer, row, head, position));
  }
  return groups;
}

void LayerServer::AddPositions(uint32_t layer, uint32_t row, uint32_t head,
                               std::vector<uint32_t>* positions) {
  AddPositionsOf(StreamStepOf(layer, row, head), positions);
}

}  // namespace kvrun
