#include "runtime/kv/index/low_rank_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <thread>
#include <utility>

#include "platform/base/check.h"
#include "runtime/device/encode_rows.h"
#include "runtime/kv/index/index_rows.h"
#include "runtime/kv/memory/host_buffer.h"

namespace kvrun {
namespace {

constexpr uint32_t kRandomRows = 4096;  // of FillAtRandom, that are repeated

// Beside a GPU the host's cores have nothing else to do. A device that is the CPU computes with all of them
// meanwhile.
uint32_t ThreadsBeside(const Device& device) {
  if (device.info().is_cpu) return 1;
  return std::clamp(std::thread::hardware_concurrency(), 1U, kMostAdapterThreads);
}

std::vector<float> RandomValues(size_t n, float scale, Random& random) {
  std::vector<float> values(n);
  for (float& value : values) value = scale * random.Symmetric();
  return values;
}

// Constants of an adapter that the host reads as well.
Result<std::unique_ptr<Buffer>> CreateShared(Device& device, std::span<const std::byte> bytes) {
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<Buffer> buffer,
                         device.CreateBuffer(bytes.size(), BufferUse::kShared, "kv"));
  std::memcpy(buffer->host().data(), bytes.data(), bytes.size());
  KVRUN_RETURN_IF_ERROR(FlushAll(*buffer));
  return buffer;
}

}  // namespace

Result<std::unique_ptr<LowRankIndex>> LowRankIndex::Create(Device& device, const KvPlan& plan,
                                                           uint32_t n_layers) {
  std::unique_ptr<LowRankIndex> index(new LowRankIndex(device, plan, n_layers));
  KVRUN_RETURN_IF_ERROR(index->CreateBuffers());
  return index;
}

Status LowRankIndex::CreateBuffers() {
  for (Layer& layer : layers_) {
    KVRUN_ASSIGN_OR_RETURN(layer.rows,
                           device_.CreateBuffer(plan_.index.size_bytes(), BufferUse::kShared, "kv"));
    KVRUN_ASSIGN_OR_RETURN(layer.scales, CreateUnitScales(device_, plan_.index));
    layer.sides.scales = layer.scales.get();
    layer.taken_out.resize(plan_.n_sequences);
  }
  return Status::Ok();
}

void LowRankIndex::FillScore(uint32_t layer, ScoreArgs* args) const {
  args->sides = layers_[layer].sides;
  args->index = layers_[layer].rows.get();
  args->index_shape = plan_.index;
  args->query_form = QueryForm::kProjected;
}

Status LowRankIndex::NoteKeys(uint32_t layer_index, uint32_t sequence, uint32_t group,
                              std::span<const float> keys) {
  Layer& layer = layers_[layer_index];
  const size_t rank = plan_.index.rank;
  const size_t n_entries = plan_.record.group_tokens;
  for (size_t entry = 0; entry < n_entries; ++entry) {
    for (size_t c = 0; c < rank; ++c) projected_[entry * rank + c] = -layer.bias_values[c];
  }
  for (size_t i = 0; i < key_dim(); ++i) {
    LoadHalves(&layer.key_side_values[i * rank], side_row_);
    for (size_t entry = 0; entry < n_entries; ++entry) {
      const float value = keys[entry * key_dim() + i];
      float* const row = projected_.data() + entry * rank;
      for (size_t c = 0; c < rank; ++c) row[c] += value * side_row_[c];
    }
  }
  PackIndexRows(plan_.index, group * plan_.record.group_tokens, projected_, ScalesOf(layer, sequence),
                WordsOf(layer, sequence));
  const uint64_t group_bytes = uint64_t{plan_.index.group_words()} * sizeof(uint32_t);
  return layer.rows->Flush((uint64_t{sequence} * plan_.index.n_groups + group) * group_bytes, group_bytes);
}

Status LowRankIndex::SetAdapter(uint32_t layer_index, const LayerAdapter& adapter) {
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
  return SetSides(layer_index, ToFiniteHalves(adapter.key_side), ToFiniteHalves(adapter.query_side), bias);
}

Status LowRankIndex::SetSides(uint32_t layer_index, std::span<const uint16_t> key_side,
                              std::span<const uint16_t> query_side, std::span<const float> bias) {
  Layer& layer = layers_[layer_index];
  KVRUN_ASSIGN_OR_RETURN(layer.key_side, CreateShared(device_, std::as_bytes(key_side)));
  KVRUN_ASSIGN_OR_RETURN(layer.query_side, device_.CreateConstants(std::as_bytes(query_side), "kv"));
  KVRUN_ASSIGN_OR_RETURN(layer.bias, CreateShared(device_, std::as_bytes(bias)));
  layer.sides = {.are_halves = true,
                 .query_side = layer.query_side.get(),
                 .key_side = layer.key_side.get(),
                 .bias = layer.bias.get(),
                 .scales = layer.scales.get()};
  layer.key_side_values = {reinterpret_cast<const uint16_t*>(layer.key_side->host().data()), key_side.size()};
  layer.bias_values = Floats(*layer.bias);
  return Status::Ok();
}

Status LowRankIndex::SetCommonAdapter(const LayerAdapter& adapter) {
  is_common_ = true;
  KVRUN_RETURN_IF_ERROR(SetAdapter(0, adapter));
  for (Layer& layer : layers_) {
    layer.sides = layers_[0].sides;
    layer.sides.scales = layer.scales.get();
    layer.key_side_values = layers_[0].key_side_values;
    layer.bias_values = layers_[0].bias_values;
  }
  return Status::Ok();
}

namespace {

enum Item : uint16_t {
  kIsReady,
  kHasSides,
  kKeySide,
  kQuerySide,
  kBias,
  kScales,
  kRows,
  kTakenOut,
  kTakenRows
};

}  // namespace

Status LowRankIndex::VisitState(StateVisitor& visitor, std::span<const uint32_t> lengths) {
  std::vector<bool> is_ready{is_ready_};
  std::vector<bool> has_sides;
  for (const Layer& layer : layers_) has_sides.push_back(layer.query_side != nullptr);
  if (!is_common_) {
    KVRUN_RETURN_IF_ERROR(visitor.Flags({StatePart::kIndex, kIsReady}, &is_ready));
    KVRUN_RETURN_IF_ERROR(visitor.Flags({StatePart::kIndex, kHasSides}, &has_sides));
  }
  for (uint32_t layer = 0; layer < layers_.size(); ++layer) {
    if (!is_common_ && has_sides[layer]) KVRUN_RETURN_IF_ERROR(VisitSides(visitor, layer));
    for (uint32_t sequence = 0; sequence < lengths.size(); ++sequence) {
      KVRUN_RETURN_IF_ERROR(VisitRows(visitor, layer, sequence, lengths[sequence]));
    }
  }
  is_ready_ = is_ready[0];
  const bool has_all = std::find(has_sides.begin(), has_sides.end(), false) == has_sides.end();
  if (is_common_ || !is_ready_ || has_all) return Status::Ok();
  return {StatusCode::kCorrupt, "the index has learned, and not all of its layers have"};
}

// As they are used: what they were computed from is gone.
Status LowRankIndex::VisitSides(StateVisitor& visitor, uint32_t layer_index) {
  Layer& layer = layers_[layer_index];
  const auto key = [layer_index](Item item) { return StateKey{StatePart::kIndex, item, layer_index}; };
  std::vector<uint16_t> key_side(size_t{key_dim()} * plan_.index.rank);
  std::vector<uint16_t> query_side(key_side.size());
  std::vector<float> bias(plan_.index.rank);
  if (!visitor.is_loading()) {
    std::copy(layer.key_side_values.begin(), layer.key_side_values.end(), key_side.begin());
    std::copy(layer.bias_values.begin(), layer.bias_values.end(), bias.begin());
    KVRUN_RETURN_IF_ERROR(device_.Download(*layer.query_side, std::as_writable_bytes(std::span(query_side))));
  }
  KVRUN_RETURN_IF_ERROR(visitor.Array(key(kKeySide), std::span(key_side)));
  KVRUN_RETURN_IF_ERROR(visitor.Array(key(kQuerySide), std::span(query_side)));
  KVRUN_RETURN_IF_ERROR(visitor.Array(key(kBias), std::span(bias)));
  return visitor.is_loading() ? SetSides(layer_index, key_side, query_side, bias) : Status::Ok();
}

Status LowRankIndex::VisitRows(StateVisitor& visitor, uint32_t layer_index, uint32_t sequence,
                               uint32_t length) {
  Layer& layer = layers_[layer_index];
  const auto key = [&](Item item) { return StateKey{StatePart::kIndex, item, layer_index, sequence}; };
  const uint64_t scales_bytes = uint64_t{plan_.index.rank} * sizeof(float);
  KVRUN_RETURN_IF_ERROR(
      VisitBytes(visitor, key(kScales), *layer.scales, sequence * scales_bytes, scales_bytes));
  // A prompt has rows of its last group, whole or not.
  const uint64_t n_groups = (uint64_t{length} + plan_.record.group_tokens - 1) / plan_.record.group_tokens;
  const uint64_t group_bytes = uint64_t{plan_.index.group_words()} * sizeof(uint32_t);
  KVRUN_RETURN_IF_ERROR(VisitBytes(visitor, key(kRows), *layer.rows,
                                   uint64_t{sequence} * plan_.index.n_groups * group_bytes,
                                   n_groups * group_bytes));
  TakenOut& taken_out = layer.taken_out[sequence];
  KVRUN_RETURN_IF_ERROR(visitor.Vector(key(kTakenOut), &taken_out.positions, length));
  KVRUN_RETURN_IF_ERROR(
      visitor.Vector(key(kTakenRows), &taken_out.rows, uint64_t{length} * plan_.index.rank));
  const auto is_there = [length](uint32_t position) { return position < length; };
  if (taken_out.rows.size() == taken_out.positions.size() * plan_.index.rank &&
      std::all_of(taken_out.positions.begin(), taken_out.positions.end(), is_there)) {
    return visitor.is_loading() && plan_.most_statics() == 0 ? PutAllBack(layer_index, sequence)
                                                             : Status::Ok();
  }
  return {StatusCode::kCorrupt,
          fmt::format("what the index of layer {} lacks of sequence {} contradicts itself", layer_index,
                      sequence)};
}

Status LowRankIndex::PrepareBlank(uint32_t layer) {
  if (layers_[layer].sides.key_side != nullptr) return Status::Ok();
  const std::vector<float> zeros(size_t{key_dim()} * plan_.index.rank);
  return SetAdapter(layer, {.key_dim = key_dim(),
                            .rank = plan_.index.rank,
                            .key_side = zeros,
                            .query_side = zeros,
                            .mean = std::vector<float>(key_dim()),
                            .energy = {}});
}

Status LowRankIndex::Learn(uint32_t layer, const LayerSums& sums) {
  KVRUN_ASSIGN_OR_RETURN(learned_,
                         ComputeAdapter(plan_.adapter.kind, sums, plan_.index.rank, ThreadsBeside(device_)));
  RoundToHalves(*learned_);
  if (plan_.index.type == KvType::kInt4) {
    learned_scales_.emplace(plan_.index.rank);
    learned_scales_->AddMeanSquares(MeanSquaresOfColumns(*learned_, sums), sums.n_keys);
  }
  return SetAdapter(layer, *learned_);
}

Status LowRankIndex::SetScales(uint32_t layer_index, uint32_t sequence,
                               std::span<const float> column_scales) {
  Buffer& scales = *layers_[layer_index].scales;
  const uint64_t bytes = column_scales.size_bytes();
  std::memcpy(scales.host().data() + sequence * bytes, column_scales.data(), bytes);
  return scales.Flush(sequence * bytes, bytes);
}

Status LowRankIndex::WriteRows(uint32_t layer_index, uint32_t sequence, uint32_t begin,
                               std::span<const float> projected) {
  Layer& layer = layers_[layer_index];
  PackIndexRows(plan_.index, begin, projected, ScalesOf(layer, sequence), WordsOf(layer, sequence));
  return FlushAll(*layer.rows);
}

std::span<const float> LowRankIndex::ScalesOf(const Layer& layer, uint32_t sequence) const {
  return Floats(*layer.scales).subspan(size_t{sequence} * plan_.index.rank, plan_.index.rank);
}

std::span<uint32_t> LowRankIndex::WordsOf(const Layer& layer, uint32_t sequence) const {
  const uint64_t sequence_words = uint64_t{plan_.index.n_groups} * plan_.index.group_words();
  return Words(*layer.rows).subspan(sequence * sequence_words, sequence_words);
}

void LowRankIndex::PutBack(uint32_t group, std::span<uint32_t> words, TakenOut& taken_out) const {
  const uint32_t rank = plan_.index.rank;
  size_t n = 0;
  for (size_t i = 0; i < taken_out.positions.size(); ++i) {
    const uint32_t position = taken_out.positions[i];
    const std::span<uint16_t> row = std::span(taken_out.rows).subspan(i * rank, rank);
    if (position / plan_.record.group_tokens == group) {
      WriteIndexRow(plan_.index, position, row, words);
      continue;
    }
    taken_out.positions[n] = position;
    std::copy(row.begin(), row.end(), taken_out.rows.begin() + static_cast<std::ptrdiff_t>(n * rank));
    ++n;
  }
  taken_out.positions.resize(n);
  taken_out.rows.resize(n * rank);
}

// The static set that they were taken out for is not there any more.
Status LowRankIndex::PutAllBack(uint32_t layer_index, uint32_t sequence) {
  Layer& layer = layers_[layer_index];
  TakenOut& taken_out = layer.taken_out[sequence];
  for (size_t i = 0; i < taken_out.positions.size(); ++i) {
    WriteIndexRow(plan_.index, taken_out.positions[i],
                  std::span(taken_out.rows).subspan(i * plan_.index.rank, plan_.index.rank),
                  WordsOf(layer, sequence));
  }
  taken_out = {};
  return FlushAll(*layer.rows);
}

Status LowRankIndex::TakeOut(uint32_t layer_index, uint32_t stream, uint32_t group,
                             std::span<const std::byte> /*record*/, std::span<const uint32_t> entries) {
  const bool is_centred =
      plan_.adapter.kind == AdapterKind::kCentred || plan_.adapter.kind == AdapterKind::kQueryCentred;
  if (plan_.heads_per_sequence() > 1 || !plan_.method.has_adapters() || !is_centred) return Status::Ok();
  Layer& layer = layers_[layer_index];
  const uint32_t rank = plan_.index.rank;
  const uint64_t group_bytes = uint64_t{plan_.index.group_words()} * sizeof(uint32_t);
  const uint64_t at = (uint64_t{stream} * plan_.index.n_groups + group) * group_bytes;
  const std::span<uint32_t> words = WordsOf(layer, stream);
  TakenOut& taken_out = layer.taken_out[stream];
  if (taken_out.positions.capacity() == 0) {
    taken_out.positions.reserve(plan_.most_statics());
    taken_out.rows.reserve(size_t{plan_.most_statics()} * rank);
  }
  PutBack(group, words, taken_out);
  const std::vector<uint16_t> zeros(rank);
  for (const uint32_t entry : entries) {
    const uint32_t position = group * plan_.record.group_tokens + entry;
    taken_out.positions.push_back(position);
    taken_out.rows.resize(taken_out.rows.size() + rank);
    ReadIndexRow(plan_.index, position, words, std::span(taken_out.rows).last(rank));
    WriteIndexRow(plan_.index, position, zeros, words);
  }
  return layer.rows->Flush(at, group_bytes);
}

Result<LayerAdapter> LowRankIndex::ComputeFromStored(uint32_t layer, uint32_t sequence,
                                                     StoredKeys& stored) const {
  std::vector<float> sums((size_t{key_dim()} + 1) * key_dim());
  KVRUN_RETURN_IF_ERROR(stored.Visit(layer, sequence, n_sinks(), [&](uint32_t, std::span<const float> keys) {
    AddKeys(keys, key_dim(), sums);
    return Status::Ok();
  }));
  return ComputeAdapter(WithoutQueries(plan_.adapter.kind),
                        {.n_kv_heads = key_dim() / plan_.record.head_dim,
                         .head_dim = plan_.record.head_dim,
                         .n_keys = stored.length(sequence) - n_sinks(),
                         .keys = sums,
                         .n_queries = 0,
                         .queries = {}},
                        plan_.index.rank);
}

Status LowRankIndex::IndexStored(uint32_t layer, uint32_t sequence, const LayerAdapter& adapter,
                                 std::span<const float> smallest_scales, StoredKeys& stored) {
  std::vector<float> projected;
  const auto visit_projected = [&](uint32_t begin, const StoredKeys::KeysFn& visit) {
    return stored.Visit(layer, sequence, begin, [&](uint32_t first, std::span<const float> keys) {
      projected.resize(keys.size() / adapter.key_dim * adapter.rank);
      ProjectKeys(adapter, keys, projected);
      return visit(first, projected);
    });
  };
  if (plan_.index.type != KvType::kF16) {
    std::vector<float> scales(smallest_scales.begin(), smallest_scales.end());
    if (stored.length(sequence) > n_sinks()) {
      ColumnScales columns(plan_.index.rank);
      KVRUN_RETURN_IF_ERROR(visit_projected(n_sinks(), [&](uint32_t, std::span<const float> rows) {
        columns.Add(rows);
        return Status::Ok();
      }));
      scales = columns.Scales(plan_.index.type);
      for (size_t c = 0; c < smallest_scales.size(); ++c) scales[c] = std::max(scales[c], smallest_scales[c]);
    }
    KVRUN_RETURN_IF_ERROR(SetScales(layer, sequence, scales));
  }
  ForgetTakenOut(layer, sequence);
  return visit_projected(0, [&](uint32_t first, std::span<const float> values) {
    return WriteRows(layer, sequence, first, values);
  });
}

Status LowRankIndex::IndexOthers(uint32_t layer, uint32_t sequence, const LayerAdapter& adapter,
                                 StoredKeys& stored) {
  const std::span<const float> of_sequence = ScalesOf(layers_[layer], sequence);
  for (uint32_t other = 0; other < stored.n_sequences(); ++other) {
    if (other == sequence || stored.length(other) == 0) continue;
    // Of few entries alone they would be too small for those to come.
    const bool is_short = stored.length(other) < min_entries_to_learn();
    KVRUN_RETURN_IF_ERROR(
        IndexStored(layer, other, adapter, is_short ? of_sequence : std::span<const float>(), stored));
  }
  return Status::Ok();
}

Status LowRankIndex::LearnFromStored(uint32_t sequence, StoredKeys& stored) {
  for (uint32_t i = 0; i < layers_.size(); ++i) {
    KVRUN_ASSIGN_OR_RETURN(LayerAdapter adapter, ComputeFromStored(i, sequence, stored));
    RoundToHalves(adapter);
    KVRUN_RETURN_IF_ERROR(SetAdapter(i, adapter));
    KVRUN_RETURN_IF_ERROR(IndexStored(i, sequence, adapter, {}, stored));
    KVRUN_RETURN_IF_ERROR(IndexOthers(i, sequence, adapter, stored));
  }
  NoteReady();
  return Status::Ok();
}

Status LowRankIndex::IndexPrompt(uint32_t layer, const KvRange& prompt, PromptKeys& keys,
                                 StoredKeys& stored) {
  const IndexShape& index = plan_.index;
  // What was there before the adapter has to be projected by it as well.
  const std::optional<LayerAdapter> learned = std::exchange(learned_, std::nullopt);
  const std::optional<ColumnScales> learned_scales = std::exchange(learned_scales_, std::nullopt);
  const uint32_t begin = learned ? 0 : prompt.begin;
  if (begin == 0) ForgetTakenOut(layer, prompt.sequence);
  // Scales are of the sequence's first prompt; later entries are clipped.
  if (learned_scales && prompt.begin == 0) {
    KVRUN_RETURN_IF_ERROR(SetScales(layer, prompt.sequence, learned_scales->Scales(index.type)));
  } else if (index.type != KvType::kF16 && begin == 0) {
    ColumnScales scales(index.rank);
    KVRUN_RETURN_IF_ERROR(keys.Project(std::min(n_sinks(), prompt.end - 1), sides(layer), index.rank,
                                       [&](uint32_t, std::span<const float> projected) {
                                         scales.Add(projected);
                                         return Status::Ok();
                                       }));
    KVRUN_RETURN_IF_ERROR(SetScales(layer, prompt.sequence, scales.Scales(index.type)));
  }
  // Of a group that steps have begun, no rows are there.
  const uint32_t first_row = begin / plan_.record.group_tokens * plan_.record.group_tokens;
  KVRUN_RETURN_IF_ERROR(keys.Project(first_row, sides(layer), index.rank,
                                     [&](uint32_t first, std::span<const float> projected) {
                                       return WriteRows(layer, prompt.sequence, first, projected);
                                     }));
  return learned ? IndexOthers(layer, prompt.sequence, *learned, stored) : Status::Ok();
}

// Columns of the adapter are nearly orthogonal, and of length 1.
Status LowRankIndex::FillAtRandom(uint32_t layer, uint32_t sequence, uint32_t n, Random& random) {
  const uint32_t rank = plan_.index.rank;
  if (!is_ready_) {
    const float scale = std::sqrt(3.0F / static_cast<float>(key_dim()));
    const std::vector<float> side = RandomValues(size_t{key_dim()} * rank, scale, random);
    KVRUN_RETURN_IF_ERROR(SetAdapter(layer, {.key_dim = key_dim(),
                                             .rank = rank,
                                             .key_side = side,
                                             .query_side = side,
                                             .mean = std::vector<float>(key_dim()),
                                             .energy = {}}));
  }
  if (n == 0) return Status::Ok();
  const uint32_t n_rows = std::min(n, kRandomRows);
  const std::vector<float> rows = RandomValues(size_t{n_rows} * rank, 1.0F, random);
  ColumnScales scales(rank);
  scales.Add(rows);
  if (plan_.index.type != KvType::kF16) {
    KVRUN_RETURN_IF_ERROR(SetScales(layer, sequence, scales.Scales(plan_.index.type)));
  }
  for (uint32_t begin = 0; begin < n; begin += n_rows) {
    const size_t count = std::min(n_rows, n - begin);
    KVRUN_RETURN_IF_ERROR(WriteRows(layer, sequence, begin, std::span(rows).first(count * rank)));
  }
  return Status::Ok();
}

}  // namespace kvrun
