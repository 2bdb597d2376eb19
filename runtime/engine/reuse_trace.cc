#include "runtime/engine/reuse_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "platform/base/units.h"
#include "platform/io/replace_file.h"
#include "runtime/engine/calibration.h"
#include "runtime/engine/layer_sensitivity.h"
#include "runtime/engine/session_kv.h"
#include "runtime/kv/cluster_factors.h"
#include "runtime/kv/entry_spaces.h"

namespace kvrun {
namespace {

// The buffer fills up in the first: at four times what is chosen, and a fifth of it new in each step, it is
// full after 15.
constexpr uint32_t kWarmUpSteps = 32;
constexpr uint32_t kCountedSteps = 96;
constexpr uint32_t kWindowEntries = 64;
constexpr uint32_t kSinkEntries = 4;
// Of layers that are cut alone.
constexpr uint32_t kCutContext = 4096;
constexpr uint32_t kCutSteps = 64;
constexpr uint32_t kLeastCutEntries = 32;

Status Cancelled() { return {StatusCode::kCancelled, "measuring reuse rates was cancelled"}; }

struct ReusePlan {
  uint32_t n_ctx = 0;
  uint32_t n_warm_up = 0;
  uint32_t n_steps = 0;                                 // counted
  std::vector<std::pair<uint32_t, uint32_t>> settings;  // group, selected entries

  uint32_t n_prefill() const { return n_ctx - n_warm_up - n_steps; }
};

// Of short texts a quarter is decoded, and a quarter of that is the warm-up.
ReusePlan PlanReuse(const ReuseOptions& options, const ModelConfig& config, size_t n_ids) {
  ReusePlan plan;
  const uint32_t most = options.n_ctx != 0 ? options.n_ctx : DefaultPieceTokens(config);
  plan.n_ctx = static_cast<uint32_t>(std::min<size_t>(most, n_ids));
  const uint32_t n_decoded = std::min(plan.n_ctx / 4, kWarmUpSteps + kCountedSteps);
  plan.n_warm_up = n_decoded / 4;
  plan.n_steps = n_decoded - plan.n_warm_up;
  if (plan.n_prefill() <= kWindowEntries + kSinkEntries) return plan;
  const uint32_t room = plan.n_prefill() - kWindowEntries - kSinkEntries;
  for (const uint32_t group : options.groups) {
    for (const uint32_t select : options.select_entries) {
      if (select >= group && select <= room / 2) plan.settings.emplace_back(group, select);
    }
  }
  return plan;
}

// Why there is no setting to measure: the text ends before the context does, or the context is short.
std::string NothingToMeasure(const ReuseOptions& options, const ReusePlan& plan, size_t n_ids) {
  if (options.select_entries.empty() || options.groups.empty())
    return "reuse rates were not measured: none were asked for";
  const uint32_t fewest = *std::min_element(options.select_entries.begin(), options.select_entries.end());
  const uint64_t least_prefill = uint64_t{2} * fewest + kWindowEntries + kSinkEntries;
  uint64_t least = least_prefill;
  while (least - std::min<uint64_t>(least / 4, kWarmUpSteps + kCountedSteps) < least_prefill) ++least;
  if (n_ids > plan.n_ctx) {
    return fmt::format(
        "reuse rates were not measured: a context of {} tokens is too short to select from; give one of at "
        "least {} tokens",
        plan.n_ctx, least);
  }
  return fmt::format(
      "reuse rates were not measured: a text of {} tokens is too short to select from; give one of at least "
      "{} tokens",
      plan.n_ctx, least);
}

uint32_t SelectionRank(const Adapter& adapter) {
  const LayerAdapter& layer = adapter.layers.front();
  return std::min<uint32_t>(layer.rank, RoundUp(CeilDiv(layer.key_dim, 8U), 4U));
}

// A layer that is cut has a part of the entries that is usual with small budgets.
SensitivityOptions CutsOf(const ReuseOptions& options, const ReusePlan& plan, uint32_t rank,
                          const std::string& adapter_path) {
  SensitivityOptions cuts;
  cuts.n_ctx = std::min(plan.n_ctx, kCutContext);
  cuts.n_steps = std::min(cuts.n_ctx / 8, kCutSteps);
  cuts.select_entries = std::max(cuts.n_ctx / 32, kLeastCutEntries);
  cuts.rank = rank;
  cuts.storage = options.storage;
  cuts.storage.adapter_path = adapter_path;
  return cuts;
}

// Adds `before` to what is done, of `total`.
ProgressCallback Shifted(const ProgressCallback& progress, uint64_t before, uint64_t total) {
  return [&progress, before, total](uint64_t done, uint64_t) {
    return progress && progress(before + done, total);
  };
}

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
                   .n_chosen = plan.n_chosen - plan.n_pinned,
                   .n_pinned = plan.n_pinned,
                   .n_groups = plan.FirstWindowGroup(n_prefill_ + n_steps),
                   .n_ctx = n_prefill_,
                   .streams = {}};
  trace.n_groups -= std::min(trace.n_groups, plan.n_pinned);
  trace.streams.resize(size_t{model_.config.n_layers} * n_streams);
  probe->wanted = true;
  for (uint32_t step = 0; step < n_steps; ++step) {
    if (progress && progress(step, n_steps)) return Cancelled();
    const StepRow row{ids_[n_prefill_ + step], n_prefill_ + step, 0};
    KVRUN_RETURN_IF_ERROR(pass->Run({&row, 1}, {}, {}));
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
  for (uint32_t layer = 0; layer < model_.config.n_layers; ++layer) {
    if (progress && progress(layer, model_.config.n_layers)) return Cancelled();
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
  for (uint32_t layer = 0; layer < model_.config.n_layers; ++layer) {
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

Result<ReuseMeasurement> MeasureReuse(const Model& model, std::shared_ptr<const DeviceWeights> weights,
                                      Device& device, std::mutex* device_mutex,
                                      const std::string& adapter_path, std::span<const TokenId> ids,
                                      const ReuseOptions& options, const ProgressCallback& progress) {
  const ModelConfig& config = model.config;
  KVRUN_ASSIGN_OR_RETURN(Adapter adapter, ReadWholeAdapter(adapter_path));
  const uint32_t rank = SelectionRank(adapter);
  KVRUN_ASSIGN_OR_RETURN(const std::string fingerprint, model.Fingerprint());
  // Says so where it is another model's.
  KVRUN_RETURN_IF_ERROR(
      ReadAdapter(adapter_path, fingerprint, config.n_layers, config.kv_dim(), rank).status());
  KVRUN_RETURN_IF_ERROR(CheckResultFile(adapter_path));
  const ReusePlan plan = PlanReuse(options, config, ids.size());
  ReuseMeasurement measured{.rates = {},
                            .cluster_thresholds = {},
                            .layer_kls = {},
                            .layer_shares = {},
                            .n_ctx = plan.n_ctx,
                            .n_steps = plan.n_steps,
                            .rank = rank,
                            .note = {}};
  if (plan.settings.empty()) {
    measured.note = NothingToMeasure(options, plan, ids.size());
  } else {
    const uint32_t n_decoded = plan.n_warm_up + plan.n_steps;
    const SensitivityOptions cuts = CutsOf(options, plan, rank, adapter_path);
    const uint64_t of_reuse = plan.n_prefill() + plan.settings.size() * uint64_t{n_decoded};
    const uint64_t total = of_reuse + (options.measures_layers ? SensitivitySteps(cuts, config.n_layers) : 0);
    KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<ReuseRecorder> recorder,
                           ReuseRecorder::Create(model, weights, device, device_mutex, ids.first(plan.n_ctx),
                                                 plan.n_prefill(), Shifted(progress, 0, total)));
    KvStorageOptions storage = options.storage;
    storage.adapter_path = adapter_path;
    uint64_t done = plan.n_prefill();
    for (const auto& [group, select] : plan.settings) {
      KVRUN_ASSIGN_OR_RETURN(const ReuseTrace trace,
                             recorder->Record(ReuseSettings(storage, rank, group, select), n_decoded,
                                              Shifted(progress, done, total)));
      const std::vector<ReuseRate> rates = ReuseRatesOf(trace, options.capacities, plan.n_warm_up);
      measured.rates.insert(measured.rates.end(), rates.begin(), rates.end());
      done += n_decoded;
    }
    KVRUN_ASSIGN_OR_RETURN(measured.cluster_thresholds, recorder->ClusterThresholds([&](uint64_t, uint64_t) {
      return progress && progress(of_reuse - 1, total);
    }));
    KVRUN_ASSIGN_OR_RETURN(std::vector<float> means, recorder->EntryMeans());
    if (!means.empty()) adapter.entry_means = std::move(means);
    recorder.reset();
    if (options.measures_layers) {
      KVRUN_ASSIGN_OR_RETURN(measured.layer_kls,
                             MeasureSensitivity(model, std::move(weights), device, device_mutex, ids, cuts,
                                                Shifted(progress, of_reuse, total)));
      adapter.layer_shares = measured.layer_shares = SharesOf(measured.layer_kls);
    }
    if (progress && progress(total, total)) return Cancelled();
  }
  adapter.reuse = measured.rates;
  if (!measured.cluster_thresholds.empty()) adapter.cluster_thresholds = measured.cluster_thresholds;
  KVRUN_RETURN_IF_ERROR(WriteAdapter(adapter, adapter_path));
  return measured;
}

}  // namespace kvrun
