#include "runtime/engine/device/device_trial.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <vector>

#include "platform/base/random.h"
#include "platform/base/units.h"
#include "runtime/engine/pass/device_weights.h"
#include "runtime/engine/pass/forward_pass.h"
#include "runtime/engine/resident/resident_pass.h"

namespace kvrun {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint32_t kDecodePosition = 256;
constexpr uint64_t kDecodeBytes = 64 * kMiB;
constexpr uint32_t kMinTurns = 3;
constexpr uint32_t kMaxTurns = 200;
// An embedding is looked up, not computed: a few rows do. Of the output matrix so many that they do not fit
// in a processor's cache, which the whole does not either.
constexpr uint32_t kEmbeddingRows = 4096;
constexpr uint32_t kOutputRows = 32768;
// Rows of the prefill chunk, the most that the device computes in reasonable time.
constexpr std::array<uint32_t, 3> kChunks = {kChunkRows, 64, 16};

uint64_t LayerBytes(const Model& model) {
  const uint64_t outside = model.weights.token_embedding->size_bytes +
                           (model.config.has_tied_output ? 0 : model.weights.output->size_bytes);
  uint64_t all = 0;
  for (const GgufTensor& tensor : model.file->tensors()) all += tensor.size_bytes;
  return (all - std::min(all, outside)) / model.config.n_layers;
}

// Each token reads all weights: so many that they do not stay in a processor's cache.
uint32_t DecodeLayers(const Model& model) {
  const uint64_t n_layers = std::max<uint64_t>(kDecodeBytes / std::max<uint64_t>(LayerBytes(model), 1), 2);
  return static_cast<uint32_t>(std::min<uint64_t>(n_layers, model.config.n_layers));
}

// The first layers of a model, and the first rows of its largest matrices.
struct PartOfModel {
  GgufTensor embedding;
  GgufTensor output;
  ModelWeights weights;
  Model model;  // its configuration alone

  PartOfModel(const Model& whole, uint32_t n_layers) {
    const auto cut = [](const GgufTensor& tensor, uint32_t n_rows) {
      GgufTensor part = tensor;
      part.shape[1] = std::min<uint64_t>(tensor.shape[1], n_rows);
      part.size_bytes = tensor.size_bytes / tensor.shape[1] * part.shape[1];
      return part;
    };
    const bool is_tied = whole.weights.output == whole.weights.token_embedding;
    embedding = cut(*whole.weights.token_embedding, is_tied ? kOutputRows : kEmbeddingRows);
    output = cut(*whole.weights.output, kOutputRows);
    weights = whole.weights;
    weights.token_embedding = &embedding;
    weights.output = is_tied ? &embedding : &output;
    weights.layers.resize(n_layers);
    model.config = whole.config;
    model.config.KeepFirstLayers(n_layers);
    model.config.n_vocab = static_cast<uint32_t>(output.shape[1]);
  }
  PartOfModel(const PartOfModel&) = delete;
  PartOfModel& operator=(const PartOfModel&) = delete;
};

// Forward passes through a few layers and through more of them: the difference is that of layers alone.
class TwoDepths {
 public:
  TwoDepths(const Model& whole, uint32_t n_many)
      : n_whole_(whole.config.n_layers), n_many_(n_many), few_(whole, n_few()), many_(whole, n_many) {}

  Status CreatePasses(const std::shared_ptr<const DeviceWeights>& weights, Device& device) {
    const ForwardPassOptions options{.n_ctx = kDecodePosition + kChunkRows};
    KVRUN_ASSIGN_OR_RETURN(few_pass_, ResidentForwardPass::Create(few_.model, weights, device, options));
    KVRUN_ASSIGN_OR_RETURN(many_pass_, ResidentForwardPass::Create(many_.model, weights, device, options));
    return Status::Ok();
  }
  ForwardPass* few() { return few_pass_.get(); }
  ForwardPass* many() { return many_pass_.get(); }
  const PartOfModel& part() const { return many_; }

  // Of one layer, within what the longer time can mean.
  double Layer(double few_us, double many_us) const {
    const double most_us = many_us / n_many_;
    return std::clamp((many_us - few_us) / std::max(n_many_ - n_few(), 1U), most_us / 4.0, most_us);
  }
  double AllLayers(double few_us, double many_us) const {
    return many_us + Layer(few_us, many_us) * (n_whole_ - n_many_);
  }

 private:
  uint32_t n_few() const { return std::max(n_many_ / 2, 1U); }

  uint32_t n_whole_;
  uint32_t n_many_;
  PartOfModel few_;  // the passes point into these
  PartOfModel many_;
  std::unique_ptr<ForwardPass> few_pass_;
  std::unique_ptr<ForwardPass> many_pass_;
};

class Trial {
 public:
  Trial(const Model& whole, Device& device, const TrialOptions& options)
      : whole_(whole), device_(device), options_(options) {}

  Result<DeviceTimes> Run() {
    std::function<bool(uint64_t, uint64_t)> progress;
    if (options_.is_cancelled) progress = [this](uint64_t, uint64_t) { return options_.is_cancelled(); };
    const uint32_t n_decode = DecodeLayers(whole_);
    const PartOfModel part(whole_, n_decode);
    KVRUN_ASSIGN_OR_RETURN(
        weights_, LoadDeviceWeights(*whole_.file, part.model.config, part.weights, device_, progress));
    n_ids_ = static_cast<uint32_t>(part.embedding.shape[1]);
    DeviceTimes times;
    KVRUN_ASSIGN_OR_RETURN(times.decode_us, MeasureDecode(n_decode));
    KVRUN_ASSIGN_OR_RETURN(times.prefill_us, MeasurePrefill());
    return times;
  }

 private:
  struct Step {
    ForwardPass* pass;
    uint32_t n_rows;
    bool has_output;
  };

  Result<double> MeasureDecode(uint32_t n_layers) {
    TwoDepths depths(whole_, n_layers);
    KVRUN_RETURN_IF_ERROR(depths.CreatePasses(weights_, device_));
    KVRUN_ASSIGN_OR_RETURN(
        const std::vector<double> least_us,
        LeastTimes({{depths.few(), 1, false}, {depths.many(), 1, false}, {depths.few(), 1, true}}));
    layer_us_ = depths.Layer(least_us[0], least_us[1]);
    const double share = static_cast<double>(whole_.config.n_vocab) / depths.part().model.config.n_vocab;
    return depths.AllLayers(least_us[0], least_us[1]) + std::max(least_us[2] - least_us[0], 0.0) * share;
  }

  // A chunk's rows share the weights that were read: two layers do.
  Result<double> MeasurePrefill() {
    // A token of a chunk takes no longer than one alone.
    uint32_t n_rows = kChunks.back();
    for (const uint32_t chunk : kChunks) {
      if (chunk * layer_us_ > 0.25e6 * options_.budget_seconds) continue;
      n_rows = chunk;
      break;
    }
    TwoDepths depths(whole_, std::min(whole_.config.n_layers, 2U));
    KVRUN_RETURN_IF_ERROR(depths.CreatePasses(weights_, device_));
    KVRUN_ASSIGN_OR_RETURN(const std::vector<double> least_us,
                           LeastTimes({{depths.few(), n_rows, false}, {depths.many(), n_rows, false}}));
    return depths.AllLayers(least_us[0], least_us[1]) / n_rows;
  }

  // The least time of each step, in turns, within half the budget: what else runs on the machine only adds to
  // times. The first turn lets drivers compile, and counts where there is no time for another.
  Result<std::vector<double>> LeastTimes(const std::vector<Step>& steps) {
    std::vector<double> least_us(steps.size());
    const Clock::time_point begin = Clock::now();
    for (uint32_t turn = 0; turn <= kMaxTurns; ++turn) {
      for (size_t i = 0; i < steps.size(); ++i) {
        if (options_.is_cancelled && options_.is_cancelled()) {
          return Status(StatusCode::kCancelled, "measuring was cancelled");
        }
        KVRUN_ASSIGN_OR_RETURN(const double us, TimeOf(steps[i]));
        least_us[i] = turn <= 1 ? us : std::min(least_us[i], us);
      }
      const double spent = std::chrono::duration<double>(Clock::now() - begin).count();
      const bool is_enough = turn >= kMinTurns && spent > 0.5 * options_.budget_seconds;
      if (is_enough || (turn > 0 && spent > 3.0 * options_.budget_seconds)) break;
    }
    return least_us;
  }

  Result<double> TimeOf(const Step& step) {
    ForwardStep rows;
    for (uint32_t i = 0; i < step.n_rows; ++i) {
      const auto id = static_cast<TokenId>(random_.Below(n_ids_));
      rows.Add(step.n_rows == 1 ? SpanKind::kDecode : SpanKind::kPrompt,
               {id, (step.n_rows == 1 ? kDecodePosition : 0) + i, 0});
    }
    const uint32_t output = 0;
    logits_.resize(step.has_output ? step.pass->n_vocab() : 0);
    const Clock::time_point begin = Clock::now();
    KVRUN_RETURN_IF_ERROR(step.pass->Run(rows, {&output, step.has_output ? 1U : 0U}, logits_));
    return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
  }

  const Model& whole_;
  Device& device_;
  const TrialOptions& options_;
  std::shared_ptr<const DeviceWeights> weights_;
  uint32_t n_ids_ = 0;     // that can be embedded
  double layer_us_ = 0.0;  // of a token alone
  std::vector<float> logits_;
  Random random_{1};
};

}  // namespace

Result<DeviceTimes> MeasureDevice(const Model& model, Device& device, const TrialOptions& options) {
  return Trial(model, device, options).Run();
}

uint64_t TrialBytes(const Model& model) {
  const uint32_t n_layers = DecodeLayers(model);
  const PartOfModel part(model, n_layers);
  const bool is_tied = part.weights.output == part.weights.token_embedding;
  return n_layers * LayerBytes(model) + part.embedding.size_bytes + (is_tied ? 0 : part.output.size_bytes);
}

}  // namespace kvrun
