#include "runtime/model/layer_kinds.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kvrun {
namespace {

constexpr uint32_t kMostExperts = 1024;
constexpr uint32_t kMostExpertsUsed = 32;
constexpr uint32_t kMostExpertFeedForward = 1U << 20;
constexpr uint32_t kMostStateHeads = 1024;
constexpr uint32_t kMostStateDim = 256;
constexpr uint32_t kMostTaps = 8;
constexpr uint32_t kMostWindow = 1U << 27;

class KindReader {
 public:
  KindReader(const ModelKeys& keys, const Architecture& architecture, ModelConfig& config)
      : keys_(keys), architecture_(architecture), config_(config) {}

  Status Read() {
    KVRUN_RETURN_IF_ERROR(ReadScores());
    if (Has(LayerKind::kWindowedAttention)) KVRUN_RETURN_IF_ERROR(ReadWindow());
    if (Has(LayerKind::kDeltaNet)) KVRUN_RETURN_IF_ERROR(ReadDeltaNet());
    if (Has(LayerKind::kShortConvolution)) {
      KVRUN_ASSIGN_OR_RETURN(config_.n_convolution_taps, Taps("shortconv.l_cache"));
    }
    return ReadExperts();
  }

 private:
  bool Has(LayerKind kind) const {
    return std::any_of(config_.layers.begin(), config_.layers.end(),
                       [kind](const LayerConfig& layer) { return layer.kind == kind; });
  }

  Status ReadScores() {
    if (architecture_.embedding_scored_layers == config_.n_layers) {
      config_.score_scale =
          1.0F / std::sqrt(static_cast<float>(config_.n_embd) / static_cast<float>(config_.n_heads));
    }
    const bool has_caps = architecture_.default_score_cap > 0.0F;
    const auto cap = [&](std::string_view suffix, float fallback) -> Result<float> {
      KVRUN_ASSIGN_OR_RETURN(const float value, keys_.NonNegativeOr(suffix, fallback));
      if (has_caps || value == 0.0F) return value;
      return Status(
          StatusCode::kUnsupported,
          fmt::format("{}: the model caps scores or logits (key \"{}\" is {}), which models of this "
                      "architecture do not do",
                      keys_.file().name(), keys_.Key(suffix), value));
    };
    KVRUN_ASSIGN_OR_RETURN(config_.score_cap, cap("attn_logit_softcapping", architecture_.default_score_cap));
    KVRUN_ASSIGN_OR_RETURN(config_.logit_cap,
                           cap("final_logit_softcapping", architecture_.default_logit_cap));
    return Status::Ok();
  }

  // The query's own position counts.
  Status ReadWindow() {
    constexpr std::string_view kKey = "attention.sliding_window";
    if (!keys_.Has(kKey) && architecture_.default_window > 0) {
      config_.sliding_window = architecture_.default_window;
      return Status::Ok();
    }
    KVRUN_ASSIGN_OR_RETURN(config_.sliding_window, keys_.Size(kKey, kMostWindow));
    return Status::Ok();
  }

  Result<uint32_t> Taps(std::string_view suffix) const {
    KVRUN_ASSIGN_OR_RETURN(const uint32_t taps, keys_.file().U32(keys_.Key(suffix)));
    return keys_.Bounded(suffix, taps, 2, kMostTaps);
  }

  Status ReadDeltaNet() {
    DeltaNetConfig& net = config_.delta_net;
    KVRUN_ASSIGN_OR_RETURN(net.n_key_heads, keys_.Size("ssm.group_count", kMostStateHeads));
    KVRUN_ASSIGN_OR_RETURN(net.n_value_heads, keys_.Size("ssm.time_step_rank", kMostStateHeads));
    KVRUN_ASSIGN_OR_RETURN(net.head_dim, keys_.Size("ssm.state_size", kMostStateDim));
    KVRUN_ASSIGN_OR_RETURN(net.n_taps, Taps("ssm.conv_kernel"));
    KVRUN_ASSIGN_OR_RETURN(const uint32_t inner, keys_.file().U32(keys_.Key("ssm.inner_size")));
    if (inner != net.value_dim()) {
      return {StatusCode::kCorrupt, fmt::format("{}: key \"{}\" is {}, but {} heads of {} are {}",
                                                keys_.file().name(), keys_.Key("ssm.inner_size"), inner,
                                                net.n_value_heads, net.head_dim, net.value_dim())};
    }
    if (net.n_value_heads % net.n_key_heads != 0 || net.head_dim % 4 != 0) {
      return {
          StatusCode::kUnsupported,
          fmt::format("{}: delta nets have {} key heads and {} value heads of {}; kvrun runs models whose "
                      "value heads are a multiple of the key heads, and heads a multiple of 4",
                      keys_.file().name(), net.n_key_heads, net.n_value_heads, net.head_dim)};
    }
    return Status::Ok();
  }

  Status ReadExperts() {
    if (!architecture_.has_experts) {
      KVRUN_ASSIGN_OR_RETURN(const uint32_t n, keys_.file().U32Or(keys_.Key("expert_count"), 0));
      if (n == 0) return Status::Ok();
      return {StatusCode::kUnsupported,
              fmt::format(
                  "{}: the model is a mixture of experts (key \"{}\" is {}), which kvrun does not support "
                  "of this architecture",
                  keys_.file().name(), keys_.Key("expert_count"), n)};
    }
    ExpertConfig& experts = config_.experts;
    KVRUN_ASSIGN_OR_RETURN(experts.n_experts, keys_.Size("expert_count", kMostExperts));
    KVRUN_ASSIGN_OR_RETURN(experts.n_used,
                           keys_.Size("expert_used_count", std::min(experts.n_experts, kMostExpertsUsed)));
    KVRUN_ASSIGN_OR_RETURN(experts.n_ff, keys_.Size("expert_feed_forward_length", kMostExpertFeedForward));
    return Status::Ok();
  }

  const ModelKeys& keys_;
  const Architecture& architecture_;
  ModelConfig& config_;
};

}  // namespace

Status ReadLayerKinds(const ModelKeys& keys, const Architecture& architecture, ModelConfig& config) {
  return KindReader(keys, architecture, config).Read();
}

}  // namespace kvrun
