#include "runtime/model/model_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <variant>
#include <vector>

namespace kvrun {

std::string ModelKeys::Key(std::string_view suffix) const {
  return fmt::format("{}.{}", architecture_, suffix);
}

Result<uint32_t> ModelKeys::Bounded(std::string_view suffix, uint32_t value, uint32_t min,
                                    uint32_t max) const {
  if (value >= min && value <= max) return value;
  return Status(StatusCode::kUnsupported, fmt::format("{}: key \"{}\" is {}; kvrun runs models with {} to {}",
                                                      file_.name(), Key(suffix), value, min, max));
}

Result<uint32_t> ModelKeys::Size(std::string_view suffix, uint32_t max) const {
  KVRUN_ASSIGN_OR_RETURN(const uint32_t value, file_.U32(Key(suffix)));
  return Bounded(suffix, value, 1, max);
}

Result<uint32_t> ModelKeys::SizeOr(std::string_view suffix, uint32_t fallback, uint32_t max) const {
  KVRUN_ASSIGN_OR_RETURN(const uint32_t value, file_.U32Or(Key(suffix), fallback));
  return Bounded(suffix, value, 1, max);
}

Result<float> ModelKeys::NonNegativeOr(std::string_view suffix, float fallback) const {
  KVRUN_ASSIGN_OR_RETURN(const float value, file_.F32Or(Key(suffix), fallback));
  if (value >= 0.0F) return value;
  return Status(StatusCode::kCorrupt,
                fmt::format("{}: key \"{}\" is {}; it must be 0 or more", file_.name(), Key(suffix), value));
}

Result<uint32_t> ModelKeys::SameInEveryLayer(std::string_view suffix, uint32_t max, uint32_t n_blocks,
                                             uint32_t n_layers, bool zero_is_other) const {
  const GgufValue* value = file_.Find(Key(suffix));
  if (value == nullptr || !std::holds_alternative<GgufNumberArray>(*value)) return Size(suffix, max);
  KVRUN_ASSIGN_OR_RETURN(std::vector<int32_t> per_layer, file_.Ints(Key(suffix)));
  if (per_layer.size() != n_blocks) {
    return Status(StatusCode::kCorrupt, fmt::format("{}: key \"{}\" has {} numbers for {} layers",
                                                    file_.name(), Key(suffix), per_layer.size(), n_blocks));
  }
  per_layer.resize(n_layers);
  if (zero_is_other) per_layer.erase(std::remove(per_layer.begin(), per_layer.end(), 0), per_layer.end());
  const int32_t first = per_layer.empty() ? 0 : per_layer.front();
  if (std::any_of(per_layer.begin(), per_layer.end(), [&](int32_t n) { return n != first; })) {
    return Status(
        StatusCode::kUnsupported,
        fmt::format(
            "{}: key \"{}\" differs from layer to layer; kvrun runs models with equal layers of a kind",
            file_.name(), Key(suffix)));
  }
  return Bounded(suffix, static_cast<uint32_t>(std::max(first, 0)), 1, max);
}

}  // namespace kvrun
