#include "runtime/engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/engine/device/auto_device.h"
#include "runtime/engine/device/rate_watch.h"
#include "runtime/engine/forward/create_forward_pass.h"
#include "runtime/engine/measure/calibration.h"
#include "runtime/engine/measure/calibration_time.h"
#include "runtime/engine/measure/evaluation.h"
#include "runtime/engine/measure/needle_evaluation.h"
#include "runtime/engine/measure/reuse_trace.h"
#include "runtime/engine/session/context_length.h"
#include "runtime/engine/session/session_kv.h"

namespace kvrun {

Result<std::unique_ptr<Engine>> Engine::Create(const Model& model, const EngineOptions& options) {
  ProgressCallback progress = options.progress;
  if (!progress) progress = [](uint64_t, uint64_t) { return false; };
  uint64_t model_bytes = 0;
  for (const GgufTensor& tensor : model.file->tensors()) model_bytes += tensor.size_bytes;
  // While devices are measured nothing is loaded yet.
  const auto is_cancelled = [&] { return progress(0, model_bytes); };
  KVRUN_ASSIGN_OR_RETURN(OpenedDevice opened,
                         OpenDeviceFor(model, options.device, options.version, is_cancelled));
  Result<std::shared_ptr<const DeviceWeights>> loaded = LoadDeviceWeights(model, *opened.device, progress);
  if (!loaded.ok() && opened.can_be_host && loaded.status().code() != StatusCode::kCancelled) {
    // The trial loads a part of the weights: all of them may not fit.
    opened.notes.push_back(fmt::format("computing on the CPU itself, as {} cannot be used: {}",
                                       opened.device->info().name, loaded.status().message()));
    OpenDeviceOptions host = options.device;
    host.device = "host";
    opened.device.reset();
    opened.kept.reset();
    KVRUN_ASSIGN_OR_RETURN(opened.device, OpenDevice(host));
    loaded = LoadDeviceWeights(model, *opened.device, progress);
  }
  KVRUN_ASSIGN_OR_RETURN(std::shared_ptr<const DeviceWeights> weights, std::move(loaded));
  // From here on the file is of no more use: whatever becomes of it, the engine goes on.
  KVRUN_RETURN_IF_ERROR(model.Fingerprint().status());
  KVRUN_RETURN_IF_ERROR(model.file->CheckUnchanged());
  Device* device_pointer = opened.device.get();
  // Profiling and validation take time of their own.
  const bool is_watched = opened.kept && !options.device.profile && !options.device.validation;
  const auto watch = is_watched ? std::make_shared<RateWatch>() : nullptr;
  auto create_forward_pass =
      [&model, device_pointer, weights,
       watch](const ForwardPassOptions& pass_options) -> Result<std::unique_ptr<ForwardPass>> {
    KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<ForwardPass> pass,
                           CreateForwardPass(model, weights, *device_pointer, pass_options));
    if (watch == nullptr || pass_options.offloaded != nullptr) return pass;
    return WatchPass(std::move(pass), watch);
  };
  auto engine = std::make_unique<Engine>(model, std::move(opened.device), std::move(create_forward_pass));
  engine->choice_notes_ = std::move(opened.notes);
  engine->choice_details_ = std::move(opened.details);
  engine->kept_times_ = std::move(opened.kept);
  engine->watch_ = watch;
  engine->layer_time_.emplace(model, weights, *engine->device_);
  engine->weights_ = std::move(weights);
  return engine;
}

Engine::Engine(const Model& model, std::unique_ptr<Device> device, ForwardPassFactory create_forward_pass)
    : model_(model), device_(std::move(device)), create_forward_pass_(std::move(create_forward_pass)) {}

Result<std::unique_ptr<Evaluation>> Engine::CreateEvaluation(std::span<const TokenId> ids,
                                                             const EvaluationOptions& options,
                                                             const ProgressCallback& progress) {
  if (weights_ == nullptr) return Status(StatusCode::kUnsupported, "this engine has no weights to evaluate");
  return Evaluation::Create(model_, weights_, *device_, &device_mutex_, ids, options, progress);
}

Result<EvaluationResult> Engine::EvaluateSession(Session& session, uint32_t sequence,
                                                 const EvaluationOptions& given,
                                                 const ProgressCallback& progress) {
  const std::span<const TokenId> tokens = session.Tokens(sequence);
  const std::vector<TokenId> ids(tokens.begin(), tokens.begin() + session.Length(sequence));
  const auto n_ids = static_cast<uint32_t>(ids.size());
  if (given.n_steps == 0 || n_ids < given.n_steps + 2) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("cannot evaluate {} tokens at the end of a session that has {}: evaluate at "
                              "least 1 and at most {} of them",
                              given.n_steps, n_ids, n_ids < 2 ? 0 : n_ids - 2));
  }
  const EvaluationOptions options{
      .n_ctx = n_ids, .n_steps = given.n_steps, .n_at_once = given.n_at_once, .measures_recall = false};
  KVRUN_ASSIGN_OR_RETURN(const std::unique_ptr<Evaluation> evaluation,
                         CreateEvaluation(ids, options, progress));
  KVRUN_RETURN_IF_ERROR(session.Truncate(sequence, n_ids - options.n_steps));
  session.ResetStats();
  const auto feed = [&](uint32_t, std::span<const TokenId> rows, std::span<float> logits) {
    auto to = logits.begin();
    return session.FeedLogits(sequence, rows, 0, [&](uint32_t, uint32_t n_rows, const float* from) {
      to = std::copy_n(from, size_t{n_rows} * session.n_vocab(), to);
      return false;
    });
  };
  KVRUN_ASSIGN_OR_RETURN(EvaluationResult result, evaluation->Compare(feed, progress));
  if (const std::optional<KvReport> report = session.kv_report()) result.report = *report;
  return result;
}

Status Engine::AskForNeedles(std::span<const TokenId> text, const NeedleOptions& options,
                             const NeedleAnswers& answers, const ProgressCallback& progress) {
  if (weights_ == nullptr) return {StatusCode::kUnsupported, "this engine has no weights to evaluate"};
  if (model_.tokenizer == nullptr) return model_.tokenizer_status;
  KVRUN_ASSIGN_OR_RETURN(const std::vector<NeedleDocument> documents,
                         HideNeedles(*model_.tokenizer, text, options));
  NeedleEvaluation evaluation(model_, weights_, *device_, &device_mutex_, options.n_ctx, options.n_at_once,
                              progress);
  return evaluation.Ask(documents, answers);
}

Result<std::vector<BenchmarkResult>> Engine::RunBenchmark(const BenchmarkOptions& options,
                                                          const ProgressCallback& progress) {
  if (weights_ == nullptr) return Status(StatusCode::kUnsupported, "this engine has no weights to measure");
  return kvrun::RunBenchmark(model_, weights_, *device_, &device_mutex_, options, progress);
}

Result<Calibration> Engine::Calibrate(const CalibrationOptions& options, const std::string& path,
                                      const ProgressCallback& progress) {
  if (weights_ == nullptr) return Status(StatusCode::kUnsupported, "this engine has no weights to calibrate");
  return CalibrateAdapter(model_, weights_, *device_, &device_mutex_, options, path, progress);
}

Result<CalibrationTimes> Engine::TimeCalibration(const CalibrationOptions& options, bool measures_reuse,
                                                 bool measures_layers, double limit_s) {
  if (weights_ == nullptr) return Status(StatusCode::kUnsupported, "this engine has no weights to calibrate");
  return kvrun::TimeCalibration(model_, weights_, *device_, &device_mutex_, options, measures_reuse,
                                measures_layers, limit_s);
}

Result<ReuseMeasurement> Engine::MeasureReuse(const std::string& adapter_path, std::span<const TokenId> ids,
                                              const ReuseOptions& options, const ProgressCallback& progress) {
  if (weights_ == nullptr) return Status(StatusCode::kUnsupported, "this engine has no weights to measure");
  return kvrun::MeasureReuse(model_, weights_, *device_, &device_mutex_, adapter_path, ids, options,
                             progress);
}

Engine::~Engine() {
  if (watch_ != nullptr) KeepSeenTimes(*kept_times_, watch_->Seen());
}

std::vector<std::string> Engine::DeviceNotes() const {
  std::vector<std::string> notes = choice_notes_;
  notes.insert(notes.end(), device_->info().notes.begin(), device_->info().notes.end());
  return notes;
}

std::vector<OperationTime> Engine::OperationTotals() {
  const std::lock_guard lock(totals_mutex_);
  for (OperationTime& time : device_->TakeOperationTimes()) {
    const auto same_name = [&time](const OperationTime& total) { return total.name == time.name; };
    const auto total = std::find_if(operation_totals_.begin(), operation_totals_.end(), same_name);
    if (total == operation_totals_.end()) {
      operation_totals_.push_back(std::move(time));
    } else {
      total->count += time.count;
      total->milliseconds += time.milliseconds;
    }
  }
  return operation_totals_;
}

}  // namespace kvrun
