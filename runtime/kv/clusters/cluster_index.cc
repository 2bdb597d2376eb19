#include "runtime/kv/clusters/cluster_index.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "platform/base/check.h"
#include "runtime/kv/math/centroid_row.h"
#include "runtime/kv/memory/host_buffer.h"
#include "shaders/shared/step_params.h"

namespace kvrun {
Result<std::unique_ptr<ClusterIndex>> ClusterIndex::Create(Device& device, const KvPlan& plan,
                                                           uint32_t n_layers, RowStore* store) {
  std::unique_ptr<ClusterIndex> index(new ClusterIndex(device, plan, n_layers));
  KVRUN_ASSIGN_OR_RETURN(index->rows_, ClusterRows::Create(device, plan, n_layers, store));
  KVRUN_RETURN_IF_ERROR(index->CreateBuffers());
  for (uint32_t i = 0; i < n_layers; ++i) {
    for (uint32_t stream = 0; stream < plan.n_streams; ++stream) {
      KVRUN_RETURN_IF_ERROR(index->SetScales(i, stream, {}));
    }
  }
  return index;
}

Status ClusterIndex::CreateBuffers() {
  const uint64_t n_streams = plan_.n_streams;
  const auto make = [this](uint64_t bytes, BufferUse use) { return device_.CreateBuffer(bytes, use, "kv"); };
  const auto shared = [&make](uint64_t bytes) { return make(bytes, BufferUse::kShared); };
  for (Layer& layer : layers_) {
    KVRUN_ASSIGN_OR_RETURN(layer.scales, shared(n_streams * rank() * sizeof(float)));
    KVRUN_ASSIGN_OR_RETURN(layer.weights, shared(n_streams * plan_.index.n_groups * sizeof(uint32_t)));
    KVRUN_ASSIGN_OR_RETURN(layer.keys, shared(n_streams * head_dim() * sizeof(float)));
    KVRUN_ASSIGN_OR_RETURN(layer.nearest, shared(n_streams * 2 * sizeof(uint32_t)));
  }
  std::vector<float> side(size_t{head_dim() + 1} * rank());
  FillAttentionSide(head_dim(), side);
  KVRUN_ASSIGN_OR_RETURN(attention_side_, device_.CreateConstants(std::as_bytes(std::span(side)), "kv"));
  FillNearestSide(head_dim(), side);
  KVRUN_ASSIGN_OR_RETURN(nearest_side_, device_.CreateConstants(std::as_bytes(std::span(side)), "kv"));
  KVRUN_ASSIGN_OR_RETURN(step_, make(sizeof(StepParams), BufferUse::kUpload));
  KVRUN_ASSIGN_OR_RETURN(angles_, make(n_streams * head_dim() * sizeof(float), BufferUse::kUpload));
  return Status::Ok();
}

void ClusterIndex::FillScore(uint32_t layer, ScoreArgs* args) const {
  // No plan of clusters asks for what goes with other rules.
  KVRUN_CHECK(MassShareOf(args->rule) == 0.0F && StagesOf(args->rule) == nullptr);
  KVRUN_CHECK(args->choice_list().words() == 1 + args->n_chosen);
  AttentionArgs& attention = args->attention;
  attention.step = step_.get();
  attention.angles = angles_.get();
  attention.n_tokens *= heads();
  attention.n_heads /= heads();
  attention.kv_shape.n_kv_heads = 1;
  attention.kv_shape.n_sequences = plan_.n_streams;
  const Layer& of = layers_[layer];
  args->sides = {.query_side = attention_side_.get(), .scales = of.scales.get()};
  args->index = rows_->part(layer);
  args->index_shape = plan_.index;
  args->query_form = QueryForm::kAffine;
  args->reduction = HeadReduction::kSoftmax;  // of the heads that share a KV head
  args->window_tokens = 0;                    // a list has clusters, whose entries have left the window
  args->rule = ChooseByWeight{.group_score = GroupScoreOf(args->rule),
                              .weights = of.weights.get(),
                              .most_weight = args->n_chosen - args->n_pinned,
                              .per_weight = true};
}

ScoreArgs ClusterIndex::SearchArgs(uint32_t layer, uint32_t n_rows, Buffer* scratch) const {
  const Layer& of = layers_[layer];
  ScoreArgs args;
  args.query = of.keys.get();
  args.attention.step = step_.get();
  args.attention.angles = angles_.get();
  args.attention.n_tokens = n_rows * heads();
  args.attention.n_heads = 1;
  args.attention.kv_shape = {.n_sequences = plan_.n_streams, .n_kv_heads = 1, .head_dim = head_dim()};
  args.sides = {.query_side = nearest_side_.get(), .scales = of.scales.get()};
  args.index = rows_->part(layer);
  args.index_shape = plan_.index;
  args.query_form = QueryForm::kAffine;
  args.reduction = HeadReduction::kSum;
  args.n_chosen = 1;
  args.scratch = scratch;
  args.chosen = of.nearest.get();
  return args;
}

uint64_t ClusterIndex::ScoreScratchBytes(const Device& device, const ScoreArgs& args) const {
  const uint32_t n_rows = args.attention.n_tokens / heads();
  return std::max(device.ScoreScratchBytes(args), device.ScoreScratchBytes(SearchArgs(0, n_rows, nullptr)));
}

Status ClusterIndex::RecordSearch(CommandList& list, uint32_t layer, uint32_t n_rows, Buffer* scratch) const {
  return list.ScoreAndSelect(SearchArgs(layer, n_rows, scratch));
}

// A list's "position" is its last cluster.
Status ClusterIndex::WriteInputs(const KvStepInputs& inputs) {
  auto& step = *reinterpret_cast<StepParams*>(step_->host().data());
  const std::span<const KvSpan> spans = inputs.step.spans;
  const size_t n_angles = inputs.angles.size() / spans.size();
  step.n_tokens = static_cast<uint32_t>(spans.size()) * heads();
  KVRUN_CHECK(step.n_tokens <= KVRUN_MAX_STEP_TOKENS);
  const std::span<float> angles = Floats(*angles_);
  for (size_t row = 0; row < spans.size(); ++row) {
    for (uint32_t head = 0; head < heads(); ++head) {
      const size_t at = row * heads() + head;
      step.tokens[at] = {.id = 0,
                         .position = end_cluster_ - 1,
                         .sequence = spans[row].sequence * heads() + head,
                         .output_row = 0};
      std::copy_n(inputs.angles.begin() + row * n_angles, n_angles, angles.begin() + at * n_angles);
    }
  }
  return Status::Ok();
}

std::span<float> ClusterIndex::Key(uint32_t layer, uint32_t row, uint32_t head) {
  return Floats(*layers_[layer].keys).subspan((size_t{row} * heads() + head) * head_dim(), head_dim());
}

Status ClusterIndex::FlushKeys(uint32_t layer) { return FlushAll(*layers_[layer].keys); }

Status ClusterIndex::ReceiveNearest(uint32_t layer) {
  return layers_[layer].nearest->Invalidate(0, layers_[layer].nearest->size_bytes());
}

uint32_t ClusterIndex::Nearest(uint32_t layer, uint32_t row, uint32_t head) const {
  const std::span<const uint32_t> found =
      Words(*layers_[layer].nearest).subspan((size_t{row} * heads() + head) * 2, 2);
  return found[0] == 1 && found[1] < plan_.of_clusters().n_clusters ? found[1] : kNoCluster;
}

void ClusterIndex::KeepNearest(uint32_t layer, const KvStep& step) {
  for (uint32_t row = 0; row < step.spans.size(); ++row) {
    for (uint32_t head = 0; head < heads(); ++head) {
      const uint32_t nearest = Nearest(layer, row, head);
      if (nearest != kNoCluster) rows_->Keep(layer, step.spans[row].sequence * heads() + head, nearest);
    }
  }
}

std::span<float> ClusterIndex::Scales(uint32_t layer, uint32_t stream) const {
  return Floats(*layers_[layer].scales).subspan(size_t{stream} * rank(), rank());
}

Status ClusterIndex::SetScales(uint32_t layer, uint32_t stream, std::span<const float> centroids) {
  FindCentroidScales(centroids, head_dim(), Scales(layer, stream));
  const uint64_t bytes = rank() * sizeof(float);
  return layers_[layer].scales->Flush(stream * bytes, bytes);
}

Status ClusterIndex::SetWeight(uint32_t layer, uint32_t stream, uint32_t cluster, uint32_t n_records) {
  const uint64_t at = uint64_t{stream} * plan_.index.n_groups + cluster;
  Words(*layers_[layer].weights)[at] = n_records;
  return layers_[layer].weights->Flush(at * sizeof(uint32_t), sizeof(uint32_t));
}

Status ClusterIndex::Set(uint32_t layer, uint32_t stream, uint32_t cluster, std::span<const float> centroid,
                         uint32_t n_entries, uint32_t n_records) {
  KVRUN_RETURN_IF_ERROR(SetWeight(layer, stream, cluster, n_records));
  return rows_->Change(layer, stream, cluster, false, [&](std::span<int8_t> row) {
    PackCentroid(centroid, n_entries, Scales(layer, stream), row);
  });
}

Status ClusterIndex::SetSize(uint32_t layer, uint32_t stream, uint32_t cluster, uint32_t n_entries,
                             uint32_t n_records) {
  KVRUN_RETURN_IF_ERROR(SetWeight(layer, stream, cluster, n_records));
  return rows_->Change(layer, stream, cluster, true, [&](std::span<int8_t> row) {
    PackCentroidSize(n_entries, Scales(layer, stream), row);
  });
}

Status ClusterIndex::Clear(uint32_t layer, uint32_t stream, uint32_t cluster) {
  KVRUN_RETURN_IF_ERROR(SetWeight(layer, stream, cluster, 0));
  return rows_->Change(layer, stream, cluster, false, PackNoCentroid);
}

Status ClusterIndex::ClearAll(uint32_t layer, uint32_t stream) {
  const uint64_t first = uint64_t{stream} * plan_.index.n_groups;
  std::fill_n(Words(*layers_[layer].weights).begin() + static_cast<ptrdiff_t>(first), plan_.index.n_groups,
              0U);
  KVRUN_RETURN_IF_ERROR(
      layers_[layer].weights->Flush(first * sizeof(uint32_t), plan_.index.n_groups * sizeof(uint32_t)));
  return rows_->ClearAll(layer, stream);
}

Status ClusterIndex::ReadCentroid(uint32_t layer, uint32_t stream, uint32_t cluster,
                                  std::span<float> centroid) {
  KVRUN_ASSIGN_OR_RETURN(const std::span<const int8_t> row, rows_->Read(layer, stream, cluster));
  UnpackCentroid(row, Scales(layer, stream), centroid);
  return Status::Ok();
}

Status ClusterIndex::SetRecords(uint32_t layer, uint32_t stream, std::span<const uint32_t> n_records) {
  const uint64_t first = uint64_t{stream} * plan_.index.n_groups;
  std::copy(n_records.begin(), n_records.end(), Words(*layers_[layer].weights).subspan(first).begin());
  return layers_[layer].weights->Flush(first * sizeof(uint32_t), n_records.size_bytes());
}

Status ClusterIndex::VisitState(StateVisitor& visitor, std::span<const uint32_t> /*lengths*/) {
  enum Item : uint16_t { kScales };
  for (uint32_t i = 0; i < layers_.size(); ++i) {
    Buffer& scales = *layers_[i].scales;
    KVRUN_RETURN_IF_ERROR(
        VisitBytes(visitor, {StatePart::kIndex, kScales, i}, scales, 0, scales.size_bytes()));
    const std::span<const float> values = Floats(scales);
    if (std::all_of(values.begin(), values.end(), [](float scale) { return std::isfinite(scale); })) continue;
    return {StatusCode::kCorrupt, fmt::format("a column scale of the KV index of layer {} is no number", i)};
  }
  return rows_->VisitState(visitor);
}

}  // namespace kvrun
