#include "runtime/model/layer_pattern.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

namespace kvrun {
namespace {

constexpr uint32_t kUnrotatedInterval = 4;
constexpr uint32_t kDefaultWindowPattern = 6;
constexpr uint32_t kDefaultAttentionInterval = 4;

class PatternReader {
 public:
  PatternReader(const GgufFile& file, const Architecture& architecture, uint32_t n_blocks, uint32_t n_layers)
      : file_(file), architecture_(architecture), n_blocks_(n_blocks), layers_(n_layers) {}

  Result<std::vector<LayerConfig>> Read() {
    switch (architecture_.pattern) {
      case LayerPattern::kAttention: break;
      case LayerPattern::kFourthUnrotated:
        for (size_t i = kUnrotatedInterval - 1; i < layers_.size(); i += kUnrotatedInterval)
          layers_[i].rope = LayerRope::kNone;
        break;
      case LayerPattern::kWindowsAlternate:
        for (size_t i = 0; i < layers_.size(); i += 2)
          layers_[i] = {LayerKind::kWindowedAttention, LayerRope::kMain};
        break;
      case LayerPattern::kWindowsByKey:
        KVRUN_RETURN_IF_ERROR(ReadFlags("attention.sliding_window_pattern",
                                        "attention.sliding_window_pattern", kDefaultWindowPattern,
                                        {LayerKind::kWindowedAttention, LayerRope::kWindowed}));
        break;
      case LayerPattern::kDeltaNetsByKey:
        KVRUN_RETURN_IF_ERROR(ReadFlags("attention.recurrent_layers", "full_attention_interval",
                                        kDefaultAttentionInterval, {LayerKind::kDeltaNet, LayerRope::kNone}));
        break;
      case LayerPattern::kConvolutionsByKey: KVRUN_RETURN_IF_ERROR(ReadConvolutions()); break;
    }
    if (std::none_of(layers_.begin(), layers_.end(),
                     [](const LayerConfig& layer) { return layer.keeps_growing_kv(); })) {
      return Status(StatusCode::kUnsupported,
                    fmt::format("{}: none of the {} layers attends to the whole text; kvrun runs models that "
                                "have such a layer",
                                file_.name(), layers_.size()));
    }
    return std::move(layers_);
  }

 private:
  std::string Key(std::string_view suffix) const { return fmt::format("{}.{}", architecture_.name, suffix); }

  // One number for each block of the file.
  Result<std::vector<int32_t>> PerBlock(const std::string& key) const {
    KVRUN_ASSIGN_OR_RETURN(std::vector<int32_t> values, file_.Ints(key));
    if (values.size() == n_blocks_) return values;
    return Status(StatusCode::kCorrupt, fmt::format("{}: key \"{}\" has {} elements for {} layers",
                                                    file_.name(), key, values.size(), n_blocks_));
  }

  // Flags, or every n-th layer is full attention.
  Status ReadFlags(std::string_view flags, std::string_view interval, uint32_t default_interval,
                   const LayerConfig& other) {
    const GgufValue* value = file_.Find(Key(flags));
    if (value != nullptr && std::holds_alternative<GgufNumberArray>(*value)) {
      KVRUN_ASSIGN_OR_RETURN(const std::vector<int32_t> is_other, PerBlock(Key(flags)));
      for (size_t i = 0; i < layers_.size(); ++i) {
        if (is_other[i] != 0) layers_[i] = other;
      }
      return Status::Ok();
    }
    KVRUN_ASSIGN_OR_RETURN(const uint32_t n, file_.U32Or(Key(interval), default_interval));
    if (n == 0 || n > layers_.size()) {
      return {StatusCode::kCorrupt, fmt::format("{}: every n-th of {} layers attends to the whole text, with "
                                                "n = {} (key \"{}\"); n must be from "
                                                "1 to the number of layers",
                                                file_.name(), layers_.size(), n, Key(interval))};
    }
    for (size_t i = 0; i < layers_.size(); ++i) {
      if ((i + 1) % n != 0) layers_[i] = other;
    }
    return Status::Ok();
  }

  Status ReadConvolutions() {
    const std::string key = Key("attention.head_count_kv");
    const GgufValue* value = file_.Find(key);
    if (value == nullptr || !std::holds_alternative<GgufNumberArray>(*value)) return Status::Ok();
    KVRUN_ASSIGN_OR_RETURN(const std::vector<int32_t> n_kv_heads, PerBlock(key));
    for (size_t i = 0; i < layers_.size(); ++i) {
      if (n_kv_heads[i] == 0) layers_[i] = {LayerKind::kShortConvolution, LayerRope::kNone};
    }
    return Status::Ok();
  }

  const GgufFile& file_;
  const Architecture& architecture_;
  uint32_t n_blocks_;
  std::vector<LayerConfig> layers_;
};

}  // namespace

Result<std::vector<LayerConfig>> ReadLayerPattern(const GgufFile& file, const Architecture& architecture,
                                                  uint32_t n_blocks, uint32_t n_layers) {
  return PatternReader(file, architecture, n_blocks, n_layers).Read();
}

}  // namespace kvrun
