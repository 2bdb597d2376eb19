#include "runtime/engine/measure/work_kinds.h"

#include <algorithm>
#include <array>

namespace kvrun {
namespace {

struct Prefix {
  std::string_view text;
  WorkKind kind;
};
// The first that fits counts.
constexpr std::array kPrefixes = {
    Prefix{"matvec", WorkKind::kProducts},
    Prefix{"matmul", WorkKind::kProducts},
    Prefix{"expert_", WorkKind::kExpertProducts},
    Prefix{"sum_experts", WorkKind::kExpertProducts},
    Prefix{"choose_experts", WorkKind::kExpertProducts},
    Prefix{"group_experts", WorkKind::kExpertProducts},
    Prefix{"delta_", WorkKind::kDeltaRule},
    Prefix{"short_convolution", WorkKind::kConvolution},
    Prefix{"attend", WorkKind::kAttention},
    Prefix{"finish_attention", WorkKind::kAttention},
    Prefix{"combine_", WorkKind::kAttention},
    Prefix{"merge_", WorkKind::kAttention},
    Prefix{"score_", WorkKind::kSelection},
    Prefix{"select_", WorkKind::kSelection},
    Prefix{"project_", WorkKind::kSelection},
    Prefix{"rotate_", WorkKind::kSelection},
    Prefix{"mean_", WorkKind::kSelection},
    Prefix{"sign_", WorkKind::kSelection},
    Prefix{"sample_", WorkKind::kSelection},
};

uint64_t& Of(std::vector<uint64_t>& bytes, WorkKind kind) { return bytes[static_cast<size_t>(kind)]; }

// Of all layers' experts that one row uses, or all there are.
uint64_t ExpertBytes(const ModelConfig& config, const DeviceWeights& weights, bool all) {
  uint64_t bytes = 0;
  for (const DeviceLayer& layer : weights.layers) {
    for (const Matrix* matrix : {layer.experts_gate_up.get(), layer.experts_down.get()}) {
      if (matrix == nullptr) continue;
      bytes += all ? matrix->size_bytes()
                   : matrix->row_product_bytes() / config.experts.n_experts * config.experts.n_used;
    }
  }
  return bytes;
}

// States are read and written; of a window, `n_window` entries are read.
void AddStates(const ModelConfig& config, uint64_t n_window, uint32_t kv_element_bytes,
               std::vector<uint64_t>* bytes) {
  const DeltaNetConfig& net = config.delta_net;
  for (const LayerConfig& layer : config.layers) {
    switch (layer.kind) {
      case LayerKind::kAttention: break;
      case LayerKind::kWindowedAttention:
        Of(*bytes, WorkKind::kWindowedAttention) += 2 * n_window * config.kv_dim() * kv_element_bytes;
        break;
      case LayerKind::kDeltaNet:
        Of(*bytes, WorkKind::kDeltaRule) += uint64_t{2} * net.value_dim() * net.head_dim * sizeof(float);
        Of(*bytes, WorkKind::kConvolution) +=
            uint64_t{2} * (net.n_taps - 1) * net.n_channels() * sizeof(float);
        break;
      case LayerKind::kShortConvolution:
        Of(*bytes, WorkKind::kConvolution) +=
            uint64_t{2} * (config.n_convolution_taps - 1) * config.n_embd * sizeof(float);
        break;
    }
  }
}

// Of methods that choose groups; else nothing is known.
void AddChosen(const KvReport& report, uint32_t n_layers, uint32_t depth, std::vector<uint64_t>* bytes) {
  const KvPlan& plan = report.plan;
  if (plan.groups() == nullptr || report.stats.choices == 0) return;
  const uint64_t n_choices = uint64_t{n_layers} * plan.n_streams;  // of a step
  const double chosen =
      static_cast<double>(report.stats.chosen_groups) / static_cast<double>(report.stats.choices);
  const uint64_t window_entry_bytes = plan.window.record.size_bytes() / plan.window.record.group_tokens;
  const auto groups = static_cast<uint64_t>((chosen + plan.choice.n_pinned) *
                                            static_cast<double>(n_choices * plan.slots.record.size_bytes()));
  Of(*bytes, WorkKind::kAttention) +=
      groups + n_choices * std::min(depth, plan.window.n_entries) * window_entry_bytes;
  if (plan.index.rank == 0) return;
  const uint64_t n_groups = plan.FirstWindowGroup(depth);
  const uint64_t group_bytes = plan.index.group_words() * sizeof(uint32_t);
  uint64_t scored = n_groups * group_bytes;
  // Candidates are scored with all columns, before that all groups with the first.
  if (const CandidatePlan candidates = plan.candidates();
      candidates.n_groups > 0 && candidates.n_groups < n_groups)
    scored = scored * candidates.first_columns / plan.index.rank + candidates.n_groups * group_bytes;
  Of(*bytes, WorkKind::kSelection) += uint64_t{n_layers} * plan.n_sequences * scored;
}

}  // namespace

std::string_view WorkKindName(WorkKind kind) {
  switch (kind) {
    case WorkKind::kProducts: return "products";
    case WorkKind::kExpertProducts: return "experts' products";
    case WorkKind::kDeltaRule: return "delta rule";
    case WorkKind::kConvolution: return "convolution";
    case WorkKind::kWindowedAttention: return "windowed attention";
    case WorkKind::kAttention: return "attention";
    case WorkKind::kSelection: return "selection";
    case WorkKind::kOther: return "other";
  }
  return "";
}

WorkKind WorkKindOf(std::string_view operation) {
  if (operation.ends_with("_window")) return WorkKind::kWindowedAttention;
  const auto found = std::find_if(kPrefixes.begin(), kPrefixes.end(), [operation](const Prefix& prefix) {
    return operation.starts_with(prefix.text);
  });
  return found == kPrefixes.end() ? WorkKind::kOther : found->kind;
}

std::vector<WorkTime> TimesByKind(std::span<const OperationTime> operations, uint64_t n_times,
                                  std::span<const uint64_t> bytes) {
  std::vector<WorkTime> times;
  for (const OperationTime& operation : operations) {
    const WorkKind kind = WorkKindOf(operation.name);
    auto found =
        std::find_if(times.begin(), times.end(), [kind](const WorkTime& time) { return time.kind == kind; });
    if (found == times.end())
      found = times.insert(times.end(), {kind, 0.0, bytes[static_cast<size_t>(kind)]});
    found->milliseconds += operation.milliseconds / static_cast<double>(n_times);
  }
  std::sort(times.begin(), times.end(),
            [](const WorkTime& a, const WorkTime& b) { return a.milliseconds > b.milliseconds; });
  return times;
}

std::vector<uint64_t> BytesOfStep(const ModelConfig& config, const DeviceWeights& weights,
                                  const StepWork& work) {
  std::vector<uint64_t> bytes(kWorkKinds, 0);
  const uint64_t n_window = std::min(work.depth, config.sliding_window);
  AddStates(config, n_window, work.kv_element_bytes, &bytes);
  for (uint64_t& state : bytes) state *= work.n_sequences;
  const uint64_t experts = ExpertBytes(config, weights, /*all=*/false);
  Of(bytes, WorkKind::kExpertProducts) = experts;
  Of(bytes, WorkKind::kProducts) = weights.StepBytes(config.experts) - experts;
  if (work.report != nullptr) {
    AddChosen(*work.report, config.n_kv_layers(), work.depth, &bytes);
  } else {
    Of(bytes, WorkKind::kAttention) =
        uint64_t{work.n_sequences} * work.depth * config.KvBytesPerToken(work.kv_element_bytes);
  }
  return bytes;
}

std::vector<uint64_t> BytesOfPrompt(const ModelConfig& config, const DeviceWeights& weights,
                                    uint32_t n_tokens, uint32_t chunk_rows, uint32_t kv_element_bytes) {
  std::vector<uint64_t> bytes(kWorkKinds, 0);
  const uint64_t experts = ExpertBytes(config, weights, /*all=*/true);
  const uint64_t output = weights.output().row_product_bytes();
  const uint64_t layers =
      weights.StepBytes(config.experts) - ExpertBytes(config, weights, /*all=*/false) - output;
  Of(bytes, WorkKind::kProducts) = output;  // of the last row alone
  for (uint64_t begin = 0; begin < n_tokens; begin += chunk_rows) {
    const uint64_t n_rows = std::min<uint64_t>(chunk_rows, n_tokens - begin);
    Of(bytes, WorkKind::kProducts) += layers;
    Of(bytes, WorkKind::kExpertProducts) += experts;
    Of(bytes, WorkKind::kAttention) += (begin + n_rows) * config.KvBytesPerToken(kv_element_bytes);
    AddStates(config, std::min<uint64_t>(begin, config.sliding_window) + n_rows, kv_element_bytes, &bytes);
  }
  return bytes;
}

}  // namespace kvrun
