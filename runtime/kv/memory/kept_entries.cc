#include "runtime/kv/memory/kept_entries.h"

#include <algorithm>

#include "runtime/kv/memory/host_buffer.h"

namespace kvrun {

SlotShape KeptEntries::ShapeOf(const KvPlan& plan) {
  return {.record = plan.record,
          .n_streams = plan.n_streams,
          .n_slots = plan.of_clusters().n_kept(),
          .n_window_slots = 0,
          .table_slots = plan.of_clusters().n_kept()};
}

Result<KeptEntries> KeptEntries::Create(Device& device, const KvPlan& plan, uint32_t n_layers) {
  KeptEntries kept(plan);
  const SlotShape shape = ShapeOf(plan);
  for (uint32_t i = 0; i < n_layers; ++i) {
    Layer layer;
    KVRUN_ASSIGN_OR_RETURN(layer.records, device.CreateBuffer(shape.size_bytes(), BufferUse::kShared, "kv"));
    KVRUN_ASSIGN_OR_RETURN(layer.table, device.CreateBuffer(shape.table_bytes(), BufferUse::kShared, "kv"));
    kept.layers_.push_back(std::move(layer));
  }
  return kept;
}

std::span<std::byte> KeptEntries::Record(uint32_t layer, uint32_t stream, uint32_t place) const {
  return layers_[layer].records->host().subspan(Offset(stream, place), plan_->record.size_bytes());
}

Status KeptEntries::Put(uint32_t layer, uint32_t stream, uint32_t place,
                        std::span<const std::byte> record) const {
  std::copy(record.begin(), record.end(), Record(layer, stream, place).begin());
  return Flush(layer, stream, place);
}

Status KeptEntries::Flush(uint32_t layer, uint32_t stream, uint32_t place) const {
  return layers_[layer].records->Flush(Offset(stream, place), plan_->record.size_bytes());
}

Status KeptEntries::Name(uint32_t layer, uint32_t stream, std::span<const uint32_t> places) const {
  Buffer& buffer = *layers_[layer].table;
  const uint64_t words = ShapeOf(*plan_).table_words();
  const std::span<uint32_t> table = Words(buffer).subspan(stream * words, words);
  table[0] = static_cast<uint32_t>(places.size());
  table[1] = 1;  // a record has one entry
  std::copy(places.begin(), places.end(), table.begin() + 2);
  return buffer.Flush(stream * words * sizeof(uint32_t), words * sizeof(uint32_t));
}

Status KeptEntries::VisitState(StateVisitor& visitor, uint32_t layer, uint32_t stream, uint32_t n_sinks,
                               std::span<const uint32_t> places) const {
  enum Item : uint16_t { kSinks, kPending };
  const uint64_t bytes = plan_->record.size_bytes();
  KVRUN_RETURN_IF_ERROR(VisitBytes(visitor, {StatePart::kKept, kSinks, layer, stream},
                                   *layers_[layer].records, Offset(stream, 0), n_sinks * bytes));
  std::vector<std::byte> records(places.size() * bytes);
  const auto nth = [&](size_t i) { return std::span(records).subspan(i * bytes, bytes); };
  for (size_t i = 0; i < places.size(); ++i) {
    const std::span<const std::byte> record = Record(layer, stream, places[i]);
    std::copy(record.begin(), record.end(), nth(i).begin());
  }
  KVRUN_RETURN_IF_ERROR(visitor.Array({StatePart::kKept, kPending, layer, stream}, std::span(records)));
  for (size_t i = 0; visitor.is_loading() && i < places.size(); ++i) {
    KVRUN_RETURN_IF_ERROR(Put(layer, stream, places[i], nth(i)));
  }
  return Status::Ok();
}

}  // namespace kvrun
