// What a KV method costs in quality: tokens of a text are fed after a long prefill, one by one as an answer's
// are or some at a time as a question's, once with all KV in memory (f16), and once with each of several
// settings, which start from the same prefill.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "platform/base/status.h"
#include "runtime/engine/machine/layer_time.h"
#include "runtime/engine/measure/logits_comparison.h"
#include "runtime/engine/measure/recall.h"
#include "runtime/engine/resident/resident_pass.h"
#include "runtime/kv/plan/kv_report.h"
#include "runtime/kv/planner/kv_options.h"
#include "runtime/model/model.h"

namespace kvrun {

struct EvaluationOptions {
  uint32_t n_ctx = 0;           // ids that are used
  uint32_t n_steps = 0;         // of these, the last are fed
  uint32_t n_at_once = 1;       // so many at a time: from 2 on as prompts
  bool measures_recall = true;  // computes the exact attention on the host: that takes longer than the steps.
                                // Only of steps of one token.
};

struct EvaluationResult {
  LogitsComparison logits{0};
  std::optional<Recall> recall;  // of choices on full's states; nothing where it was not measured
  double decode_tps = 0.0;
  double decode_tps_full = 0.0;
  std::vector<std::string> notes;  // of the KV plan, for people
  KvReport report;
};

class Evaluation {
 public:
  using Progress = std::function<bool(uint64_t done, uint64_t total)>;  // in tokens; answers true to cancel

  // Prefills ids[0, n_ctx - n_steps) and feeds the next n_steps with all KV in memory. The model and the
  // device must outlive this.
  static Result<std::unique_ptr<Evaluation>> Create(const Model& model,
                                                    std::shared_ptr<const DeviceWeights> weights,
                                                    Device& device, std::mutex* device_mutex,
                                                    std::span<const TokenId> ids,
                                                    const EvaluationOptions& options,
                                                    const Progress& progress);

  Result<EvaluationResult> Run(const KvSettings& settings, const Progress& progress);

  // Computes `ids`, which stand from this position on: their logits, [ids, n_vocab].
  using FeedRows =
      std::function<Status(uint32_t position, std::span<const TokenId> ids, std::span<float> logits)>;
  // The same of something that is there already, and that `feed` feeds the steps; without recall and report.
  // Does not hold the device's mutex.
  Result<EvaluationResult> Compare(const FeedRows& feed, const Progress& progress);

 private:
  Evaluation(const Model& model, std::shared_ptr<const DeviceWeights> weights, Device& device,
             std::mutex* device_mutex)
      : model_(model),
        weights_(std::move(weights)),
        device_(device),
        device_mutex_(device_mutex),
        layer_time_(model, weights_, device) {}

  Status Prefill(const Progress& progress);
  // `before` and `after` are called around each step, which is timed without them; either may be empty.
  struct StepHooks {
    std::function<void(uint32_t step)> before;
    std::function<void(uint32_t step, std::span<const float> logits)> after;
  };
  Status RunPrompt(ForwardPass& pass);
  Status FeedSteps(const FeedRows& feed, const Progress& progress, const StepHooks& hooks, double* seconds);
  void AddStep(uint32_t step, std::span<const float> logits, LogitsComparison* comparison) const;
  Status ReadKeys();
  Result<Recall> MeasureRecall(const KvSettings& settings, const Progress& progress);
  uint32_t n_prefill() const { return n_ctx_ - n_steps_; }

  const Model& model_;
  std::shared_ptr<const DeviceWeights> weights_;
  Device& device_;
  std::mutex* device_mutex_;
  LayerTime layer_time_;
  std::vector<TokenId> ids_;
  uint32_t n_ctx_ = 0;
  uint32_t n_steps_ = 0;
  uint32_t n_at_once_ = 1;
  bool measures_recall_ = true;
  std::unique_ptr<ResidentForwardPass> full_;
  HostKeys keys_;                   // full's
  std::vector<float> full_inputs_;  // [n_steps, n_layers, n_embd], where recall is measured
  std::vector<float> full_logits_;  // [n_steps, n_vocab]
  size_t n_vocab_ = 0;
  double full_seconds_ = 0.0;
};

}  // namespace kvrun
