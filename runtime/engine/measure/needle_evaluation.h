// Which needles are found in a long text (needles.h): with all KV in memory (f16), and with each of several
// settings.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "platform/base/status.h"
#include "runtime/engine/machine/layer_time.h"
#include "runtime/engine/measure/needles.h"
#include "runtime/engine/resident/resident_pass.h"
#include "runtime/kv/plan/kv_report.h"
#include "runtime/kv/planner/kv_options.h"
#include "runtime/model/model.h"

namespace kvrun {

struct NeedleRun {
  KvSettings settings;
  Status status;                   // a failure: nothing is asked, or nothing more
  std::vector<bool> right;         // for each needle, document by document
  std::vector<std::string> notes;  // of the KV plan, for people
  KvReport report;                 // of the last document
  uint32_t n_steps = 0;            // that the report is of
};

// Where answers go.
struct NeedleAnswers {
  std::vector<bool>* full;  // as NeedleRun::right, with all KV in memory
  // A run that fails does not end the others. One whose status is a failure from the start is left out.
  std::span<NeedleRun> runs;
  // With a run's index, when all was asked of it or it failed.
  std::function<void(size_t run)> done;
};

class NeedleEvaluation {
 public:
  using Progress = std::function<bool(uint64_t done, uint64_t total)>;  // in tokens; answers true to cancel

  // Model, device and documents must outlive this. n_at_once: a question's tokens are fed so many at a time,
  // from 2 on as prompts.
  NeedleEvaluation(const Model& model, std::shared_ptr<const DeviceWeights> weights, Device& device,
                   std::mutex* device_mutex, uint32_t n_ctx, uint32_t n_at_once, Progress progress)
      : model_(model),
        weights_(std::move(weights)),
        device_(device),
        device_mutex_(device_mutex),
        layer_time_(model, weights_, device),
        n_ctx_(n_ctx),
        n_at_once_(n_at_once),
        progress_(std::move(progress)) {}

  // Each document is computed once with all KV in memory; methods whose KV follows from the prompt's queries
  // compute it again. kCancelled where `progress` says so.
  Status Ask(std::span<const NeedleDocument> documents, const NeedleAnswers& answers);

 private:
  Status AskFull(const NeedleDocument& document, std::vector<bool>* right);
  Status AskRun(const NeedleDocument& document, NeedleRun* run);
  // Each question after the document's end, where what was asked before is forgotten. Answers how many steps
  // it took.
  Result<uint32_t> AskAll(ForwardPass& pass, const NeedleDocument& document, std::vector<bool>* right);
  Result<bool> AskOne(ForwardPass& pass, uint32_t position, const Needle& needle, uint32_t* n_steps);

  const Model& model_;
  std::shared_ptr<const DeviceWeights> weights_;
  Device& device_;
  std::mutex* device_mutex_;
  LayerTime layer_time_;
  uint32_t n_ctx_;
  uint32_t n_at_once_;
  Progress progress_;
  std::unique_ptr<ResidentForwardPass> full_;  // of the document that is asked about
};

}  // namespace kvrun
