#include "runtime/model/rope_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <string>

#include "runtime/model/gguf_parser.h"

namespace kvrun {
namespace {

constexpr std::string_view kDivisorsTensor = "rope_freqs.weight";
constexpr std::string_view kShortDivisorsTensor = "rope_factors_short.weight";
constexpr std::string_view kLongDivisorsTensor = "rope_factors_long.weight";

// Yarn's optional keys, with the only values that kvrun computes with.
struct FixedYarnKey {
  std::string_view suffix;
  float value;
  float also_default;  // another way to say the same
};
constexpr std::array kFixedYarnKeys = {
    FixedYarnKey{"rope.scaling.yarn_ext_factor", 1.0F, -1.0F},
    FixedYarnKey{"rope.scaling.yarn_attn_factor", 1.0F, -1.0F},
    FixedYarnKey{"rope.scaling.yarn_log_multiplier", 0.0F, 0.0F},
};

class RopeReader {
 public:
  RopeReader(const GgufFile& file, std::string_view architecture)
      : file_(file), architecture_(architecture) {}

  Result<float> Base(std::string_view suffix) const { return Within(Key(suffix), 10000.0F, 1.5F, 1e12F); }
  Status ReadRotation(uint32_t head_dim);
  Status ReadScaling(uint32_t n_ctx_train);
  Status ReadDivisors(uint32_t n_ctx_train);

  RopeConfig config;

 private:
  std::string Key(std::string_view suffix) const { return fmt::format("{}.{}", architecture_, suffix); }
  Result<float> Within(const std::string& key, float fallback, float min, float max) const;
  Status ReadFactor();
  Result<std::vector<float>> Divisors(std::string_view tensor) const;  // empty: not in the file
  Status ReadYarn(uint32_t n_ctx_train);

  const GgufFile& file_;
  std::string_view architecture_;
};

Result<float> RopeReader::Within(const std::string& key, float fallback, float min, float max) const {
  KVRUN_ASSIGN_OR_RETURN(const float value, file_.F32Or(key, fallback));
  if (value >= min && value <= max) return value;
  return Status(StatusCode::kCorrupt, fmt::format("{}: key \"{}\" is {}; it must be from {} to {}",
                                                  file_.name(), key, value, min, max));
}

Status RopeReader::ReadRotation(uint32_t head_dim) {
  const std::string key = Key("rope.dimension_count");
  KVRUN_ASSIGN_OR_RETURN(config.rotary_dim, file_.U32Or(key, head_dim));
  if (config.rotary_dim < 2 || config.rotary_dim % 2 != 0 || config.rotary_dim > head_dim) {
    return {StatusCode::kCorrupt,
            fmt::format("{}: key \"{}\" is {}; it must be even, from 2 to the head size, {}", file_.name(),
                        key, config.rotary_dim, head_dim)};
  }
  KVRUN_ASSIGN_OR_RETURN(config.yarn_attention_factor,
                         Within(Key("rope.scaling.attn_factor"), 1.0F, 1e-6F, 1e6F));
  KVRUN_ASSIGN_OR_RETURN(config.frequency_base, Base("rope.freq_base"));
  return Status::Ok();
}

Status RopeReader::ReadScaling(uint32_t n_ctx_train) {
  // A factor without a type means linear scaling.
  const bool has_factor = file_.Has(Key("rope.scaling.factor")) || file_.Has(Key("rope.scale_linear"));
  const std::string key = Key("rope.scaling.type");
  KVRUN_ASSIGN_OR_RETURN(const std::string_view type, file_.StringOr(key, has_factor ? "linear" : "none"));
  if (type == "none") return Status::Ok();
  // The file's factors say all of it.
  if (type == "longrope" && file_.FindTensor(kLongDivisorsTensor) != nullptr) return Status::Ok();
  if (type != "linear" && type != "yarn") {
    return {
        StatusCode::kUnsupported,
        fmt::format("{}: key \"{}\" is {}; kvrun knows none, linear and yarn, and llama3 by the tensor {}",
                    file_.name(), key, QuoteForMessage(type), kDivisorsTensor)};
  }
  KVRUN_RETURN_IF_ERROR(ReadFactor());
  if (type == "yarn") return ReadYarn(n_ctx_train);
  if (config.factor != 1.0F) config.scaling = RopeScaling::kLinear;
  return Status::Ok();
}

Status RopeReader::ReadFactor() {
  const std::string key = Key("rope.scaling.factor");
  const std::string legacy_key = Key("rope.scale_linear");
  const std::string& used = file_.Has(key) ? key : legacy_key;
  KVRUN_ASSIGN_OR_RETURN(config.factor, Within(used, 1.0F, 0.0F, 65536.0F));
  if (config.factor == 0.0F) config.factor = 1.0F;  // how files say "not scaled"
  if (config.factor < 1.0F / 65536.0F) {
    return {StatusCode::kCorrupt, fmt::format("{}: key \"{}\" is {}; it must be from 1/65536 to 65536",
                                              file_.name(), used, config.factor)};
  }
  return Status::Ok();
}

Status RopeReader::ReadYarn(uint32_t n_ctx_train) {
  for (const FixedYarnKey& fixed : kFixedYarnKeys) {
    KVRUN_ASSIGN_OR_RETURN(const float value, file_.F32Or(Key(fixed.suffix), fixed.value));
    if (value != fixed.value && value != fixed.also_default) {
      return {StatusCode::kUnsupported, fmt::format("{}: key \"{}\" is {}; kvrun computes yarn only with {}",
                                                    file_.name(), Key(fixed.suffix), value, fixed.value)};
    }
  }
  config.scaling = RopeScaling::kYarn;
  const std::string context_key = Key("rope.scaling.original_context_length");
  KVRUN_ASSIGN_OR_RETURN(config.original_context, file_.U32Or(context_key, n_ctx_train));
  if (config.original_context == 0) {
    return {StatusCode::kCorrupt,
            fmt::format("{}: key \"{}\" is 0; it must be 1 or more", file_.name(), context_key)};
  }
  constexpr float kMinBeta = 1e-6F;
  constexpr float kMaxBeta = 1e6F;
  KVRUN_ASSIGN_OR_RETURN(config.yarn_beta_fast,
                         Within(Key("rope.scaling.yarn_beta_fast"), 32.0F, kMinBeta, kMaxBeta));
  KVRUN_ASSIGN_OR_RETURN(config.yarn_beta_slow,
                         Within(Key("rope.scaling.yarn_beta_slow"), 1.0F, kMinBeta, kMaxBeta));
  return Status::Ok();
}

Result<std::vector<float>> RopeReader::Divisors(std::string_view name) const {
  const GgufTensor* tensor = file_.FindTensor(name);
  if (tensor == nullptr) return std::vector<float>();
  const uint32_t pairs = config.rotary_dim / 2;
  if (tensor->type != TensorType::kF32 || tensor->shape[0] != pairs || tensor->elements() != pairs) {
    return Status(
        StatusCode::kCorrupt,
        fmt::format(
            "{}: tensor \"{}\" has {} elements of {}, expected {} (a pair of rotated dimensions each) of "
            "F32",
            file_.name(), name, tensor->elements(), TensorTypeName(tensor->type), pairs));
  }
  std::vector<float> divisors(pairs);
  KVRUN_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, file_.ReadAll(*tensor));
  DecodeTensor(tensor->type, bytes, divisors);
  for (const float divisor : divisors) {
    // 1e-6 and 1e6 are far beyond any model and keep the frequencies finite.
    if (!(divisor >= 1e-6F && divisor <= 1e6F)) {
      return Status(StatusCode::kCorrupt,
                    fmt::format("{}: tensor \"{}\" holds {}; a divisor must be positive and finite",
                                file_.name(), name, divisor));
    }
  }
  return divisors;
}

Status RopeReader::ReadDivisors(uint32_t n_ctx_train) {
  KVRUN_ASSIGN_OR_RETURN(config.frequency_divisors, Divisors(kDivisorsTensor));
  if (!config.frequency_divisors.empty()) {
    if (config.scaling == RopeScaling::kNone) config.scaling = RopeScaling::kLlama3;
    return Status::Ok();
  }
  KVRUN_ASSIGN_OR_RETURN(config.frequency_divisors, Divisors(kShortDivisorsTensor));
  KVRUN_ASSIGN_OR_RETURN(config.long_frequency_divisors, Divisors(kLongDivisorsTensor));
  if (config.frequency_divisors.empty() != config.long_frequency_divisors.empty()) {
    return {StatusCode::kCorrupt, fmt::format("{}: of the tensors \"{}\" and \"{}\" one is missing",
                                              file_.name(), kShortDivisorsTensor, kLongDivisorsTensor)};
  }
  if (config.frequency_divisors.empty()) return Status::Ok();
  config.scaling = RopeScaling::kLongRope;
  const std::string context_key = Key("rope.scaling.original_context_length");
  KVRUN_ASSIGN_OR_RETURN(config.original_context, file_.U32Or(context_key, n_ctx_train));
  return Status::Ok();
}

// The pair, as a real number, that turns `rotations` times over the original context.
double YarnPairOfRotations(const RopeConfig& rope, double rotations) {
  const double context = rope.original_context;
  return rope.rotary_dim * std::log(context / (rotations * 2.0 * std::numbers::pi)) /
         (2.0 * std::log(double{rope.frequency_base}));
}

}  // namespace

Result<RopeConfig> ReadRopeConfig(const GgufFile& file, std::string_view architecture, RopePairing pairing,
                                  uint32_t head_dim, uint32_t n_ctx_train) {
  RopeReader reader(file, architecture);
  reader.config.pairing = pairing;
  KVRUN_RETURN_IF_ERROR(reader.ReadRotation(head_dim));
  KVRUN_RETURN_IF_ERROR(reader.ReadScaling(n_ctx_train));
  KVRUN_RETURN_IF_ERROR(reader.ReadDivisors(n_ctx_train));
  return std::move(reader.config);
}

Result<float> ReadWindowedRopeBase(const GgufFile& file, std::string_view architecture) {
  return RopeReader(file, architecture).Base("rope.freq_base_swa");
}

RopeTable MakeRopeTable(const RopeConfig& rope, uint32_t n_ctx) {
  const uint32_t pairs = rope.rotary_dim / 2;
  const bool is_yarn = rope.scaling == RopeScaling::kYarn;
  // Pairs up to `first` turn often enough to be kept as they are; those from `last` are interpolated.
  double first = 0.0;
  double last = 0.0;
  if (is_yarn) {
    first = std::max(0.0, std::floor(YarnPairOfRotations(rope, rope.yarn_beta_fast)));
    last = std::min(rope.rotary_dim - 1.0, std::ceil(YarnPairOfRotations(rope, rope.yarn_beta_slow)));
  }
  const bool is_long = rope.scaling == RopeScaling::kLongRope && n_ctx > rope.original_context;
  const std::vector<float>& divisors = is_long ? rope.long_frequency_divisors : rope.frequency_divisors;
  RopeTable table;
  table.frequencies.resize(pairs);
  for (uint32_t i = 0; i < pairs; ++i) {
    double frequency = std::pow(double{rope.frequency_base}, -2.0 * i / rope.rotary_dim);
    if (!divisors.empty()) frequency /= divisors[i];
    double interpolated_part = rope.scaling == RopeScaling::kLinear ? 1.0 : 0.0;
    if (is_yarn) interpolated_part = std::clamp((i - first) / std::max(0.001, last - first), 0.0, 1.0);
    frequency = frequency / rope.factor * interpolated_part + frequency * (1.0 - interpolated_part);
    table.frequencies[i] = static_cast<float>(frequency);
  }
  table.magnitude = rope.yarn_attention_factor;
  if (is_yarn) {
    const double stretch = std::log(std::max(1.0, double{rope.factor}));
    table.magnitude = static_cast<float>(rope.yarn_attention_factor * (1.0 + 0.1 * stretch));
  }
  return table;
}

}  // namespace kvrun
