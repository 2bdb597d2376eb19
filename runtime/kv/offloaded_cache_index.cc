// Adapters and the index: OffloadedCache's share of what entries are chosen by.
#include <algorithm>
#include <cstring>

#include "platform/base/check.h"
#include "runtime/device/record_codec.h"
#include "runtime/kv/host_buffer.h"
#include "runtime/kv/index_rows.h"
#include "runtime/kv/offloaded_cache.h"

namespace kvrun {
namespace {

constexpr uint32_t kKeysAtOnce = 64;  // but for longer groups

}  // namespace

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
  const std::vector<float> zeros(size_t{key_dim()} * plan_.index.rank);
  return SetAdapter(layer, {.key_dim = key_dim(),
                            .rank = plan_.index.rank,
                            .key_side = zeros,
                            .query_side = zeros,
                            .mean = std::vector<float>(key_dim()),
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

bool OffloadedCache::NeedsIndex(std::span<const KvRow> rows) const {
  if (!selects() || has_adapter_) return false;
  return std::any_of(rows.begin(), rows.end(), [this](const KvRow& row) {
    return row.position >= min_adapter_entries() && window_.FirstGroup(row.position + 1) > plan_.n_chosen;
  });
}

// Whole groups are stored, what is beyond them lies in the window.
Status OffloadedCache::VisitKeys(uint32_t layer_index, uint32_t sequence, uint32_t begin,
                                 const KeysFn& visit) {
  const uint32_t length = lengths_[sequence];
  const uint32_t n_stored = groups_stored_[sequence];
  KVRUN_CHECK(n_stored == length / group_tokens());
  const uint32_t at_once = std::max(1U, kKeysAtOnce / group_tokens());
  const uint32_t head_columns = plan_.record.n_heads * plan_.record.head_dim;
  std::vector<std::byte> records(at_once * record_bytes());
  std::vector<float> keys(size_t{at_once} * group_tokens() * key_dim());
  for (uint32_t group = begin / group_tokens(); group * group_tokens() < length;) {
    const bool is_stored = group < n_stored;
    const uint32_t n = is_stored ? std::min(at_once, n_stored - group) : 1;
    for (uint32_t head = 0; head < heads(); ++head) {
      const uint32_t stream = sequence * heads() + head;
      if (is_stored) KVRUN_RETURN_IF_ERROR(ReadGroups(layer_index, stream, group, n, records));
      for (uint32_t i = 0; i < n; ++i) {
        std::span<const std::byte> record = std::span(records).subspan(i * record_bytes(), record_bytes());
        if (!is_stored) {
          KVRUN_ASSIGN_OR_RETURN(record, window_.Read(layer_index, stream, group));
        }
        DecodeKeys(is_stored ? plan_.record : plan_.window_record, record, key_dim(),
                   std::span(keys).subspan(size_t{i} * group_tokens() * key_dim() + head * head_columns));
      }
    }
    const uint32_t first = std::max(begin, group * group_tokens());
    const uint32_t end = std::min(length, (group + n) * group_tokens());
    KVRUN_RETURN_IF_ERROR(
        visit(first, std::span(keys).subspan(size_t{first - group * group_tokens()} * key_dim(),
                                             size_t{end - first} * key_dim())));
    group += n;
  }
  return Status::Ok();
}

Result<LayerAdapter> OffloadedCache::ComputeLayerAdapter(uint32_t layer_index, uint32_t sequence) {
  std::vector<float> sums((size_t{key_dim()} + 1) * key_dim());
  KVRUN_RETURN_IF_ERROR(
      VisitKeys(layer_index, sequence, n_sinks(), [&](uint32_t, std::span<const float> keys) {
        AddKeys(keys, key_dim(), sums);
        return Status::Ok();
      }));
  return ComputeAdapter(WithoutQueries(plan_.adapter_kind),
                        {.n_kv_heads = key_dim() / plan_.record.head_dim,
                         .head_dim = plan_.record.head_dim,
                         .n_keys = lengths_[sequence] - n_sinks(),
                         .keys = sums,
                         .n_queries = 0,
                         .queries = {}},
                        plan_.index.rank);
}

Status OffloadedCache::IndexSequence(uint32_t layer_index, uint32_t sequence, const LayerAdapter& adapter,
                                     std::span<const float> smallest_scales) {
  std::vector<float> projected;
  const auto visit_projected = [&](uint32_t begin, const KeysFn& visit) {
    return VisitKeys(layer_index, sequence, begin, [&](uint32_t first, std::span<const float> keys) {
      projected.resize(keys.size() / adapter.key_dim * adapter.rank);
      ProjectKeys(adapter, keys, projected);
      return visit(first, projected);
    });
  };
  if (plan_.index.type != KvType::kF16) {
    std::vector<float> scales(smallest_scales.begin(), smallest_scales.end());
    if (lengths_[sequence] > n_sinks()) {
      ColumnScales columns(plan_.index.rank);
      KVRUN_RETURN_IF_ERROR(visit_projected(n_sinks(), [&](uint32_t, std::span<const float> rows) {
        columns.Add(rows);
        return Status::Ok();
      }));
      scales = columns.Scales(plan_.index.type);
      for (size_t c = 0; c < smallest_scales.size(); ++c) scales[c] = std::max(scales[c], smallest_scales[c]);
    }
    KVRUN_RETURN_IF_ERROR(SetScales(layer_index, sequence, scales));
  }
  // What steps have written shares words with what is written now.
  Buffer& index = *layers_[layer_index].index;
  KVRUN_RETURN_IF_ERROR(index.Invalidate(0, index.size_bytes()));
  return visit_projected(0, [&](uint32_t first, std::span<const float> rows) {
    return WriteIndex(layer_index, sequence, first, rows);
  });
}

Status OffloadedCache::IndexOthers(uint32_t layer_index, uint32_t sequence, const LayerAdapter& adapter) {
  const uint32_t rank = plan_.index.rank;
  const auto* scales = reinterpret_cast<const float*>(layers_[layer_index].scales->host().data());
  const std::span<const float> of_sequence(scales + size_t{sequence} * rank, rank);
  for (uint32_t other = 0; other < lengths_.size(); ++other) {
    if (other == sequence || lengths_[other] == 0) continue;
    // Of few entries alone they would be too small for those to come.
    const bool is_short = lengths_[other] < min_adapter_entries();
    KVRUN_RETURN_IF_ERROR(
        IndexSequence(layer_index, other, adapter, is_short ? of_sequence : std::span<const float>()));
  }
  return Status::Ok();
}

Status OffloadedCache::BuildIndex(uint32_t sequence) {
  KVRUN_RETURN_IF_ERROR(WriteCompletedGroups());
  if (flash_ != nullptr) LeaveDecode();  // their room is for the work on adapters, as in prefill
  for (uint32_t i = 0; i < layers_.size(); ++i) {
    KVRUN_ASSIGN_OR_RETURN(const LayerAdapter adapter, ComputeLayerAdapter(i, sequence));
    KVRUN_RETURN_IF_ERROR(SetAdapter(i, adapter));
    KVRUN_RETURN_IF_ERROR(IndexSequence(i, sequence, adapter, {}));
    KVRUN_RETURN_IF_ERROR(IndexOthers(i, sequence, adapter));
  }
  NoteAdapterComplete();
  return Status::Ok();
}

}  // namespace kvrun
