#include "runtime/engine/measure/layer_sensitivity.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "runtime/engine/measure/evaluation.h"

namespace kvrun {
namespace {

constexpr double kPower = 0.4;
constexpr double kLeastShare = 1.0 / 3.0;
constexpr double kMostShare = 3.0;

double Mean(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// Nothing else is lost: whatever is not cut is exact and in memory.
KvSettings CutSettings(const SensitivityOptions& options, uint32_t layer) {
  KvSettings settings;
  settings.storage = options.storage;
  settings.kv.method = "kvswap";
  settings.kv.k_type = settings.kv.v_type = KvType::kF16;
  settings.kv.group_tokens = kDefaultGroupTokens;
  settings.kv.select_entries = options.select_entries;
  settings.kv.rank = options.rank;
  settings.kv.index_type = KvType::kInt4;
  settings.kv.heads = HeadReduction::kSoftmax;
  settings.kv.static_share = StaticShare{};
  settings.kv.kept_shares = KeptShares::kEven;
  settings.kv.adapter_from_file = !options.storage.adapter_path.empty();
  settings.kv.cut_layer = layer;
  return settings;
}

}  // namespace

std::vector<float> SharesOf(std::span<const double> kls) {
  std::vector<float> shares(kls.size(), 1.0F);
  const double largest = kls.empty() ? 0.0 : *std::max_element(kls.begin(), kls.end());
  if (!(largest > 0.0)) return shares;
  std::vector<double> weights;
  for (const double kl : kls) weights.push_back(std::pow(std::max(kl / largest, 1e-6), kPower));
  const double mean = Mean(weights);
  for (double& weight : weights) weight = std::clamp(weight / mean, kLeastShare, kMostShare);
  const double clamped = Mean(weights);
  for (size_t i = 0; i < shares.size(); ++i) shares[i] = static_cast<float>(weights[i] / clamped);
  return shares;
}

uint64_t SensitivitySteps(const SensitivityOptions& options, uint32_t n_layers) {
  return options.n_ctx + uint64_t{n_layers + 1} * options.n_steps;
}

Result<std::vector<double>> MeasureSensitivity(const Model& model,
                                               std::shared_ptr<const DeviceWeights> weights, Device& device,
                                               std::mutex* device_mutex, std::span<const TokenId> ids,
                                               const SensitivityOptions& options,
                                               const ProgressCallback& progress) {
  const uint32_t n_layers = model.config.n_kv_layers();
  const uint64_t total = SensitivitySteps(options, n_layers);
  uint64_t before = 0;
  const auto tell = [&](uint64_t done, uint64_t) { return progress && progress(before + done, total); };
  KVRUN_ASSIGN_OR_RETURN(
      const std::unique_ptr<Evaluation> evaluation,
      Evaluation::Create(model, std::move(weights), device, device_mutex, ids.first(options.n_ctx),
                         {.n_ctx = options.n_ctx, .n_steps = options.n_steps, .measures_recall = false},
                         tell));
  std::vector<double> kls;
  for (uint32_t layer = 0; layer <= n_layers; ++layer) {
    before = options.n_ctx + uint64_t{layer} * options.n_steps;
    KVRUN_ASSIGN_OR_RETURN(const EvaluationResult result, evaluation->Run(CutSettings(options, layer), tell));
    kls.push_back(result.logits.kl_mean());
  }
  // The last was not cut at all: what is left is what products of few bits make of roundoff.
  const double roundoff = kls.back();
  kls.pop_back();
  for (double& kl : kls) kl = std::max(kl - roundoff, 0.0);
  return kls;
}

}  // namespace kvrun
