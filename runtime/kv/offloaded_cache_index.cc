// Adapters and the index: OffloadedCache's share of what entries are chosen by.
#include <algorithm>
#include <cstring>

#include "platform/base/check.h"
#include "runtime/kv/host_buffer.h"
#include "runtime/kv/index_rows.h"
#include "runtime/kv/offloaded_cache.h"

namespace kvrun {

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

}  // namespace kvrun
