#include "runtime/engine/measure/reuse_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/engine/session/session_kv.h"
#include "runtime/kv/math/cluster_factors.h"
#include "runtime/kv/memory/entry_spaces.h"

namespace kvrun {
namespace {

constexpr uint32_t kWindowEntries = kReuseWindowEntries;
constexpr uint32_t kSinkEntries = kReuseSinkEntries;

Status Cancelled() { return {StatusCode::kCancelled, "measuring reuse rates was cancelled"}; }

}  // namespace

KvSettings ReuseSettings(const KvStorageOptions& storage, uint32_t rank, uint32_t group_tokens,
                         uint32_t select_entries) {
  KvSettings settings;
  settings.storage = storage;
  settings.kv.method = "kvswap";
  settings.kv.k_type = settings.kv.v_type = KvType::kFp8;
  settings.kv.group_tokens = group_tokens;
  settings.kv.select_entries = select_entries;
  settings.kv.window_entries = kWindowEntries;
  settings.kv.sink_entries = kSinkEntries;
  settings.kv.rank = rank;
  settings.kv.index_type = KvType::kInt4;
  settings.kv.heads = HeadReduction::kSoftmax;
  settings.kv.kept_shares = KeptShares::kEven;
  settings.kv.adapter_from_file = !storage.adapter_path.empty();
  return settings;
}

Result<std::unique_ptr<ReuseRecorder>> ReuseRecorder::Create(const Model& model,
                                                             std::shared_ptr<const DeviceWeights> weights,
                                                             Device& device, std::mutex* device_mutex,
                                                             std::span<const TokenId> ids, uint32_t n_prefill,
                                                             const ProgressCallback& progress) {
  if (n_prefill == 0 || ids.size() <= n_prefill) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("cannot decode after {} tokens of a text of {}: give a longer text", n_prefill,
                              ids.size()));
  }
  std::unique_ptr<ReuseRecorder> recorder(new ReuseRecorder(model, std::move(weights), device, device_mutex));
  recorder->ids_.assign(ids.begin(), ids.end());
  recorder->n_prefill_ = n_prefill;
  const std::lock_guard lock(*device_mutex);
  KVRUN_ASSIGN_OR_RETURN(recorder->full_, PrefillInMemory(model, recorder->weights_, device,
                                                          ids.first(n_prefill), n_prefill, progress));
  return recorder;
}

Result<ReuseTrace> ReuseRecorder::Record(const KvSettings& settings, uint32_t n_steps,
                                         const ProgressCallback& progress) {
  if (n_steps > ids_.size() - n_prefill_) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("cannot decode {} tokens after {} of a text of {}: give a longer text", n_steps,
                              n_prefill_, ids_.size()));
  }
  const std::lock_guard lock(*device_mutex_);
  KVRUN_ASSIGN_OR_RETURN(OffloadedPassOptions options,
                         PrepareOffloadedPass(model_, settings, n_prefill_ + n_steps, 1));
  options.import = full_.get();
  options.n_import = n_prefill_;
  const auto probe = options.probe = std::make_shared<StepProbe>();
  const KvPlan plan = options.plan;
  KVRUN_ASSIGN_OR_RETURN(const std::unique_ptr<ForwardPass> pass,
                         CreateOffloadedPass(model_, weights_, device_, std::move(options)));
  const uint32_t n_streams = plan.n_streams / plan.n_sequences;
  ReuseTrace trace{.group_tokens = plan.record.group_tokens,
                   .n_chosen = plan.choice.n_chosen - plan.choice.n_pinned,
                   .n_pinned = plan.choice.n_pinned,
                   .n_groups = plan.FirstWindowGroup(n_prefill_ + n_steps),
                   .n_ctx = n_prefill_,
                   .streams = {}};
  trace.n_groups -= std::min(trace.n_groups, plan.choice.n_pinned);
  trace.streams.resize(size_t{model_.config.n_kv_layers()} * n_streams);
  probe->wanted = true;
  for (uint32_t step = 0; step < n_steps; ++step) {
    if (progress && progress(step, n_steps)) return Cancelled();
    const ForwardStep decode(SpanKind::kDecode, {ids_[n_prefill_ + step], n_prefill_ + step, 0});
    KVRUN_RETURN_IF_ERROR(pass->Run(decode, {}, {}));
    for (size_t i = 0; i < trace.streams.size(); ++i)
      trace.streams[i].push_back(probe->chosen[i / n_streams][i % n_streams]);
  }
  return trace;
}

Result<std::vector<float>> ReuseRecorder::ClusterThresholds(const ProgressCallback& progress) {
  const std::lock_guard lock(*device_mutex_);
  const KvShape& shape = full_->kv_shape();
  const uint32_t n_keys = std::min(n_prefill_ - std::min(n_prefill_, kSinkEntries), kMostKeysOfFactor);
  std::vector<float> factors;
  if (n_keys < kLeastKeysOfFactor) return factors;
  std::vector<std::byte> kv(shape.size_bytes());
  std::vector<float> keys(size_t{n_keys} * shape.head_dim);
  const TensorType type = shape.type == KvType::kF32 ? TensorType::kF32 : TensorType::kF16;
  const uint64_t bytes = uint64_t{shape.head_dim} * KvElementBytes(shape.type);
  for (uint32_t layer = 0; layer < model_.config.n_kv_layers(); ++layer) {
    if (progress && progress(layer, model_.config.n_kv_layers())) return Cancelled();
    KVRUN_RETURN_IF_ERROR(device_.Download(*full_->kv(layer), kv));
    for (uint32_t head = 0; head < shape.n_kv_heads; ++head) {
      // [n_kv_heads, K or V, n_ctx, head_dim]
      const uint64_t first = (uint64_t{2} * head * shape.n_ctx + kSinkEntries) * bytes;
      DecodeTensor(type, std::span(kv).subspan(first, n_keys * bytes), keys);
      factors.push_back(FindClusterFactor(keys, shape.head_dim));
    }
  }
  return factors;
}

Result<std::vector<float>> ReuseRecorder::EntryMeans() {
  const std::lock_guard lock(*device_mutex_);
  const KvShape& shape = full_->kv_shape();
  const uint32_t n = n_prefill_ - std::min(n_prefill_, EntrySpaces::kLeftOut);
  std::vector<float> means;
  if (n < EntrySpaces::kFewestEntries) return means;
  std::vector<std::byte> kv(shape.size_bytes());
  std::vector<float> rows(size_t{n} * shape.head_dim);
  const TensorType type = shape.type == KvType::kF32 ? TensorType::kF32 : TensorType::kF16;
  const uint64_t row_bytes = uint64_t{shape.head_dim} * KvElementBytes(shape.type);
  for (uint32_t layer = 0; layer < model_.config.n_kv_layers(); ++layer) {
    KVRUN_RETURN_IF_ERROR(device_.Download(*full_->kv(layer), kv));
    for (uint32_t plane = 0; plane < 2 * shape.n_kv_heads; ++plane) {
      const uint64_t first = (uint64_t{plane} * shape.n_ctx + EntrySpaces::kLeftOut) * row_bytes;
      DecodeTensor(type, std::span(kv).subspan(first, n * row_bytes), rows);
      std::vector<double> sums(shape.head_dim);
      for (size_t at = 0; at < rows.size(); ++at) sums[at % shape.head_dim] += rows[at];
      for (const double sum : sums) means.push_back(static_cast<float>(sum / n));
    }
  }
  return means;
}

}  // namespace kvrun
