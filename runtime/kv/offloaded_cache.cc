#include "runtime/kv/offloaded_cache.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "platform/base/check.h"
#include "runtime/kv/host_buffer.h"
#include "runtime/kv/index_rows.h"

namespace kvrun {

OffloadedCache::OffloadedCache(Device& device, const KvPlan& plan, uint32_t n_layers,
                               std::unique_ptr<GroupStore> store)
    : device_(device), plan_(plan), store_(std::move(store)), layers_(n_layers) {
  lengths_.resize(plan.n_sequences);
  groups_stored_.resize(plan.n_sequences);
  rows_.reserve(plan.n_sequences);
  fetches_.reserve(plan.n_chosen);
  ResetStats();
}

Result<std::unique_ptr<OffloadedCache>> OffloadedCache::Create(Device& device, const KvPlan& plan,
                                                               uint32_t n_layers,
                                                               std::unique_ptr<GroupStore> store) {
  std::unique_ptr<OffloadedCache> cache(new OffloadedCache(device, plan, n_layers, std::move(store)));
  for (Layer& layer : cache->layers_) {
    layer.tails.resize(plan.n_streams * plan.record.size_bytes());
    layer.new_tails.resize(cache->heads() * plan.record.size_bytes());
  }
  if (plan.index.rank != 0) KVRUN_RETURN_IF_ERROR(cache->CreateIndex());
  return cache;
}

Status OffloadedCache::CreateIndex() {
  const uint64_t scales_bytes = uint64_t{plan_.n_sequences} * plan_.index.rank * sizeof(float);
  for (Layer& layer : layers_) {
    KVRUN_ASSIGN_OR_RETURN(layer.index,
                           device_.CreateBuffer(plan_.index.size_bytes(), BufferUse::kShared, "kv"));
    KVRUN_ASSIGN_OR_RETURN(layer.scales, device_.CreateBuffer(scales_bytes, BufferUse::kShared, "kv"));
    const std::span<uint32_t> words = Words(*layer.scales);
    auto* scales = reinterpret_cast<float*>(words.data());
    std::fill_n(scales, words.size(), 1.0F);
    KVRUN_RETURN_IF_ERROR(FlushAll(*layer.scales));
    layer.sides.scales = layer.scales.get();
  }
  return Status::Ok();
}

Status OffloadedCache::SetAdapter(uint32_t layer_index, const LayerAdapter& adapter) {
  Layer& layer = layers_[layer_index];
  const uint32_t rank = plan_.index.rank;
  KVRUN_CHECK(adapter.rank == rank);
  std::vector<float> bias(rank);
  for (uint32_t c = 0; c < rank; ++c) {
    double sum = 0.0;
    for (uint32_t i = 0; i < adapter.key_dim; ++i) {
      sum += double{adapter.mean[i]} * adapter.key_side[size_t{i} * rank + c];
    }
    bias[c] = static_cast<float>(sum);
  }
  KVRUN_ASSIGN_OR_RETURN(layer.key_side, device_.CreateConstants(adapter.key_side, "adapters"));
  KVRUN_ASSIGN_OR_RETURN(layer.query_side, device_.CreateConstants(adapter.query_side, "adapters"));
  KVRUN_ASSIGN_OR_RETURN(layer.bias, device_.CreateConstants(bias, "adapters"));
  layer.sides = {.query_side = layer.query_side.get(),
                 .key_side = layer.key_side.get(),
                 .bias = layer.bias.get(),
                 .scales = layer.scales.get()};
  return Status::Ok();
}

Status OffloadedCache::SetBlankAdapter(uint32_t layer) {
  const uint32_t key_dim = plan_.record.n_heads * heads() * plan_.record.head_dim;
  const std::vector<float> zeros(size_t{key_dim} * plan_.index.rank);
  return SetAdapter(layer, {.key_dim = key_dim,
                            .rank = plan_.index.rank,
                            .key_side = zeros,
                            .query_side = zeros,
                            .mean = std::vector<float>(key_dim),
                            .energy = {}});
}

Status OffloadedCache::SetScales(uint32_t layer_index, uint32_t sequence,
                                 std::span<const float> column_scales) {
  Buffer& scales = *layers_[layer_index].scales;
  const uint64_t bytes = column_scales.size_bytes();
  std::memcpy(scales.host().data() + sequence * bytes, column_scales.data(), bytes);
  return scales.Flush(sequence * bytes, bytes);
}

Status OffloadedCache::WriteIndex(uint32_t layer_index, uint32_t sequence, uint32_t begin,
                                  std::span<const float> projected) {
  Layer& layer = layers_[layer_index];
  const IndexShape& shape = plan_.index;
  const auto* scales =
      reinterpret_cast<const float*>(layer.scales->host().data()) + size_t{sequence} * shape.rank;
  const uint64_t sequence_words = uint64_t{shape.n_groups} * shape.group_words();
  PackIndexRows(shape, begin, projected, {scales, shape.rank},
                Words(*layer.index).subspan(sequence * sequence_words, sequence_words));
  return FlushAll(*layer.index);
}

SlotShape OffloadedCache::slot_shape() const {
  return {.record = plan_.record,
          .n_streams = plan_.n_streams,
          .n_slots = plan_.n_cache_slots + plan_.n_window_slots,
          .n_window_slots = plan_.n_window_slots,
          .table_slots = plan_.n_chosen + plan_.n_window_slots};
}

uint32_t OffloadedCache::WindowBegin(uint32_t length) const {
  return length > plan_.window_entries ? (length - plan_.window_entries) / group_tokens() * group_tokens()
                                       : 0;
}

uint32_t OffloadedCache::WindowSlot(uint32_t group) const {
  return plan_.n_cache_slots + group % plan_.n_window_slots;
}

std::byte* OffloadedCache::SlotBytes(const Layer& layer, uint32_t stream, uint32_t slot) const {
  const uint64_t n_slots = plan_.n_cache_slots + plan_.n_window_slots;
  return layer.slots->host().data() + (stream * n_slots + slot) * record_bytes();
}

std::byte* OffloadedCache::WindowBytes(Layer& layer, uint32_t stream, uint32_t group) const {
  if (!reloads_all()) return SlotBytes(layer, stream, WindowSlot(group));
  return layer.window.data() +
         (stream * plan_.n_window_slots + group % plan_.n_window_slots) * record_bytes();
}

Status OffloadedCache::SaveTails() {
  for (uint32_t i = 0; i < layers_.size(); ++i) {
    Layer& layer = layers_[i];
    KVRUN_RETURN_IF_ERROR(layer.slots->Invalidate(0, layer.slots->size_bytes()));
    for (uint32_t stream = 0; stream < plan_.n_streams; ++stream) {
      const uint32_t group = lengths_[stream / heads()] / group_tokens();
      std::memcpy(layer.tails.data() + stream * record_bytes(), WindowBytes(layer, stream, group),
                  record_bytes());
    }
  }
  return Status::Ok();
}

// What is beyond `length` goes; its incomplete group becomes the tail. Nothing is read where there is none: a
// sequence can be computed again from its beginning whatever has become of its groups.
Status OffloadedCache::ForgetFrom(uint32_t sequence, uint32_t length) {
  if (length >= lengths_[sequence]) return Status::Ok();
  if (store_ == nullptr) {
    lengths_[sequence] = length;
    return Status::Ok();
  }
  KVRUN_RETURN_IF_ERROR(WriteCompletedGroups());
  if (in_decode_) KVRUN_RETURN_IF_ERROR(SaveTails());
  const uint32_t group = length / group_tokens();
  const bool has_tail = length % group_tokens() != 0;
  const uint32_t first_stream = sequence * heads();
  for (uint32_t i = 0; i < layers_.size(); ++i) {
    for (uint32_t stream = first_stream; stream < first_stream + heads(); ++stream) {
      if (has_tail && group < groups_stored_[sequence]) {
        const GroupFetch fetch{group, layers_[i].tails.data() + stream * record_bytes()};
        KVRUN_RETURN_IF_ERROR(store_->Fetch(i, stream, {&fetch, 1}));
      }
      if (in_decode_ && !reloads_all()) layers_[i].caches[stream].Truncate(group);
    }
  }
  for (uint32_t stream = first_stream; stream < first_stream + heads(); ++stream) {
    KVRUN_RETURN_IF_ERROR(store_->Truncate(stream, group));
  }
  lengths_[sequence] = length;
  groups_stored_[sequence] = std::min(groups_stored_[sequence], group);
  if (!in_decode_) return Status::Ok();
  const Status filled = FillWindows(sequence);
  if (!filled.ok()) LeaveDecode();  // a window that is filled in part must not be used
  return filled;
}

Status OffloadedCache::FillWindows(uint32_t sequence) {
  for (uint32_t i = 0; i < layers_.size(); ++i) {
    for (uint32_t stream = sequence * heads(); stream < (sequence + 1) * heads(); ++stream) {
      KVRUN_RETURN_IF_ERROR(FillWindow(layers_[i], i, stream));
    }
  }
  return Status::Ok();
}

void OffloadedCache::LeaveDecode() {
  in_decode_ = false;
  for (Layer& layer : layers_) {
    layer.slots.reset();
    layer.table.reset();
    layer.chosen.reset();
    layer.caches.clear();
  }
}

Status OffloadedCache::BeginPrefill(uint32_t sequence, uint32_t begin) {
  KVRUN_RETURN_IF_ERROR(ForgetFrom(sequence, begin));
  if (store_ == nullptr) return BeginDecode();  // the slots are where everything is
  if (in_decode_) KVRUN_RETURN_IF_ERROR(WriteCompletedGroups());
  // What a prefill that failed has left.
  for (uint32_t stream = sequence * heads(); stream < (sequence + 1) * heads(); ++stream) {
    KVRUN_RETURN_IF_ERROR(store_->Truncate(stream, begin / group_tokens()));
  }
  if (!in_decode_) return Status::Ok();
  KVRUN_RETURN_IF_ERROR(SaveTails());
  LeaveDecode();
  return Status::Ok();
}

Status OffloadedCache::AppendGroups(uint32_t layer, uint32_t sequence, uint32_t first_group,
                                    uint32_t n_groups, std::span<const std::byte> records) {
  const uint64_t stream_bytes = n_groups * record_bytes();
  for (uint32_t head = 0; head < heads(); ++head) {
    const uint32_t stream = sequence * heads() + head;
    const std::span<const std::byte> of_stream = records.subspan(head * stream_bytes, stream_bytes);
    if (store_ != nullptr) {
      KVRUN_RETURN_IF_ERROR(store_->Append(layer, stream, first_group, of_stream));
      continue;
    }
    for (uint32_t i = 0; i < n_groups; ++i) {
      std::memcpy(SlotBytes(layers_[layer], stream, WindowSlot(first_group + i)),
                  of_stream.data() + i * record_bytes(), record_bytes());
    }
  }
  return store_ != nullptr ? Status::Ok() : FlushAll(*layers_[layer].slots);
}

void OffloadedCache::SetTail(uint32_t layer, std::span<const std::byte> records) {
  std::memcpy(layers_[layer].new_tails.data(), records.data(), heads() * record_bytes());
}

Status OffloadedCache::ReadGroups(uint32_t layer, uint32_t stream, uint32_t first_group, uint32_t n_groups,
                                  std::span<std::byte> records) {
  const uint32_t tail = lengths_[stream / heads()] / group_tokens();
  for (uint32_t i = 0; i < n_groups; ++i) {
    std::byte* record = records.data() + i * record_bytes();
    const uint32_t group = first_group + i;
    if (store_ == nullptr) {
      std::memcpy(record, SlotBytes(layers_[layer], stream, WindowSlot(group)), record_bytes());
    } else if (group == tail) {
      std::memcpy(record, layers_[layer].tails.data() + stream * record_bytes(), record_bytes());
    }
  }
  if (store_ == nullptr) return Status::Ok();
  fetches_.clear();
  for (uint32_t i = 0; i < n_groups && first_group + i < tail; ++i) {
    fetches_.push_back({first_group + i, records.data() + i * record_bytes()});
  }
  return store_->Fetch(layer, stream, fetches_);
}

Status OffloadedCache::EndPrefill(uint32_t sequence, uint32_t length) {
  if (store_ != nullptr) KVRUN_RETURN_IF_ERROR(store_->Flush());
  for (Layer& layer : layers_) {
    for (uint32_t head = 0; head < heads(); ++head) {
      const uint32_t stream = sequence * heads() + head;
      std::byte* tail = store_ != nullptr ? layer.tails.data() + stream * record_bytes()
                                          : SlotBytes(layer, stream, WindowSlot(length / group_tokens()));
      std::memcpy(tail, layer.new_tails.data() + head * record_bytes(), record_bytes());
    }
    if (store_ == nullptr) KVRUN_RETURN_IF_ERROR(FlushAll(*layer.slots));
  }
  lengths_[sequence] = length;
  groups_stored_[sequence] = length / group_tokens();
  return Status::Ok();
}

Status OffloadedCache::BeginDecode() {
  if (in_decode_) return Status::Ok();
  const Status made = MakeSlots();
  if (!made.ok()) LeaveDecode();
  return made;
}

Status OffloadedCache::MakeSlots() {
  const SlotShape shape = slot_shape();
  const ReplacementPolicy* policy = nullptr;
  if (store_ != nullptr && !reloads_all()) {
    KVRUN_ASSIGN_OR_RETURN(policy, FindReplacementPolicy(plan_.policy));
  }
  for (uint32_t i = 0; i < layers_.size(); ++i) {
    Layer& layer = layers_[i];
    if (reloads_all() && i > 0) {
      layer.slots = layers_[0].slots;
    } else {
      KVRUN_ASSIGN_OR_RETURN(layer.slots, device_.CreateBuffer(shape.size_bytes(), BufferUse::kShared, "kv"));
    }
    if (reloads_all()) layer.window.resize(uint64_t{plan_.n_streams} * plan_.n_window_slots * record_bytes());
    KVRUN_ASSIGN_OR_RETURN(layer.table, device_.CreateBuffer(shape.table_bytes(), BufferUse::kShared, "kv"));
    KVRUN_ASSIGN_OR_RETURN(layer.chosen, device_.CreateBuffer(uint64_t{plan_.n_streams} *
                                                                  (1 + plan_.n_chosen) * sizeof(uint32_t),
                                                              BufferUse::kShared, "kv"));
    if (store_ == nullptr) continue;
    if (!reloads_all()) {
      layer.caches.assign(plan_.n_streams, SlotCache(plan_.n_cache_slots, plan_.n_chosen, policy));
    }
    for (uint32_t stream = 0; stream < plan_.n_streams; ++stream) {
      KVRUN_RETURN_IF_ERROR(FillWindow(layer, i, stream));
    }
  }
  in_decode_ = true;
  return Status::Ok();
}

Status OffloadedCache::FillWindow(Layer& layer, uint32_t layer_index, uint32_t stream) {
  const uint32_t length = lengths_[stream / heads()];
  if (length == 0) return Status::Ok();
  const uint32_t tail = length / group_tokens();
  // A step's window may begin a group earlier than that of its end.
  for (uint32_t group = WindowBegin(length) / group_tokens(); group <= tail; ++group) {
    std::byte* slot = WindowBytes(layer, stream, group);
    if (group == tail) {
      std::memcpy(slot, layer.tails.data() + stream * record_bytes(), record_bytes());
    } else {
      const GroupFetch fetch{group, slot};
      KVRUN_RETURN_IF_ERROR(store_->Fetch(layer_index, stream, {&fetch, 1}));
    }
  }
  return FlushAll(*layer.slots);
}

Status OffloadedCache::BeginStep(std::span<const KvRow> rows) {
  for (const KvRow& row : rows) {
    KVRUN_CHECK(row.position <= lengths_[row.sequence]);
    KVRUN_RETURN_IF_ERROR(ForgetFrom(row.sequence, row.position));
  }
  rows_.assign(rows.begin(), rows.end());
  return Status::Ok();
}

Status OffloadedCache::WriteCompletedGroups() {
  if (store_ == nullptr) return Status::Ok();
  for (uint32_t sequence = 0; sequence < lengths_.size(); ++sequence) {
    for (; groups_stored_[sequence] < lengths_[sequence] / group_tokens(); ++groups_stored_[sequence]) {
      const uint32_t group = groups_stored_[sequence];
      for (uint32_t i = 0; i < layers_.size(); ++i) {
        for (uint32_t stream = sequence * heads(); stream < (sequence + 1) * heads(); ++stream) {
          const std::byte* record = WindowBytes(layers_[i], stream, group);
          if (!reloads_all()) {
            KVRUN_RETURN_IF_ERROR(layers_[i].slots->Invalidate(
                static_cast<uint64_t>(record - layers_[i].slots->host().data()), record_bytes()));
          }
          KVRUN_RETURN_IF_ERROR(store_->Append(i, stream, group, {record, record_bytes()}));
        }
      }
    }
  }
  return Status::Ok();
}

void OffloadedCache::ResetStats() {
  stats_ = {};
  stats_.layer_fetch_ms.assign(layers_.size(), 0.0);
  stats_.layer_loads.assign(layers_.size(), 0);
}

}  // namespace kvrun
