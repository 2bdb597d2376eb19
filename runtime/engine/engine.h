// A model on a device, and the place where a KV method is wired to it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/device/open_device.h"
#include "runtime/engine/device/auto_device.h"
#include "runtime/engine/machine/layer_time.h"
#include "runtime/engine/measure/benchmark.h"
#include "runtime/engine/pass/forward_pass.h"
#include "runtime/engine/session/session.h"
#include "runtime/kv/planner/kv_options.h"
#include "runtime/model/model.h"

namespace kvrun {

struct EngineOptions {
  OpenDeviceOptions device;
  ProgressCallback progress;  // of loading, in bytes; may be empty
  std::string version;        // of kvrun: what devices were measured to do is kept for it alone
};

struct SessionOptions {
  uint32_t n_sequences = 1;
  uint32_t n_ctx = 0;  // 0: what the model was trained with, at most kDefaultMaxContext
  KvSettings kv;
  ProgressCallback progress;  // of prefill, in tokens; may be empty
  // Of a session that is kept, while it is loaded and while it is saved, in bytes; may be empty. Called with
  // the engine's lock held.
  ProgressCallback load_progress;
  ProgressCallback save_progress;
  // Where the session is kept: it goes on with what is there, and Session::SavePoint keeps it there. Empty:
  // it ends with its process. What is there says which KV options are not given here, and n_ctx is the least
  // context.
  std::string path;
  // What of it lies on flash is encrypted, with this key; null: it is not, unless kv.storage says so of what
  // ends with the process.
  std::shared_ptr<const SecretKey> key;
  // With a path: the session that is there is only read, and what follows is kept nowhere. Others may do so
  // at once. kNotFound: there is none.
  bool read_only = false;
  // Of the longest answer to a prompt, for the limit of what is written (kv.storage.write_limit_bytes).
  uint32_t answer_tokens = kUsualAnswerTokens;
  static constexpr uint32_t kUsualAnswerTokens = 256;
};

// Of a session that is kept, what its files ask for: a plan with it is the session's. Of another one nothing.
void SettleKept(SessionOptions* options);

class RateWatch;
class SessionFiles;
class Evaluation;
struct NeedleAnswers;
struct NeedleOptions;
struct EvaluationOptions;
struct EvaluationResult;
struct CalibrationOptions;
struct Calibration;
struct CalibrationTimes;
struct ReuseOptions;
struct ReuseMeasurement;

// Any thread. Steps of its sessions run one after another.
class Engine {
 public:
  using ForwardPassFactory =
      std::function<Result<std::unique_ptr<ForwardPass>>(const ForwardPassOptions& options)>;

  // The model must outlive the engine, and the engine its sessions.
  static Result<std::unique_ptr<Engine>> Create(const Model& model, const EngineOptions& options);
  // With any device and forward pass: what Create ends in, and tests begin with.
  Engine(const Model& model, std::unique_ptr<Device> device, ForwardPassFactory create_forward_pass);

  const Model& model() const { return model_; }
  const Device& device() const { return *device_; }
  // Why the device was chosen, where none was named, and what the device has to say.
  std::vector<std::string> DeviceNotes() const;
  // For experts: what is as it was at an earlier start.
  const std::vector<std::string>& DeviceDetails() const { return choice_details_; }
  // Where "auto" chose the device and it was seen to be much faster or slower than it was measured, that is
  // kept for the next choice.
  ~Engine();

  Result<std::unique_ptr<Session>> CreateSession(const SessionOptions& options);
  // What such a session would keep, and how fast flash and device are where that decides it.
  Result<KvPlan> PlanSession(const KvSettings& kv, uint32_t n_ctx, uint32_t n_sequences);

  // Prefills and runs full; holds the engine's lock in every call.
  Result<std::unique_ptr<Evaluation>> CreateEvaluation(std::span<const TokenId> ids,
                                                       const EvaluationOptions& options,
                                                       const ProgressCallback& progress);
  // What the KV of a session costs in quality, on its own text: the last n_steps tokens of a sequence are cut
  // off and fed again, and full computes the text before. The session has the same tokens afterwards. Of the
  // options, n_steps and n_at_once count. Holds the engine's lock in every call of either.
  Result<EvaluationResult> EvaluateSession(Session& session, uint32_t sequence,
                                           const EvaluationOptions& options,
                                           const ProgressCallback& progress);
  // Hides needles in the text and asks for them. Holds the engine's lock for each document and each run of
  // it.
  Status AskForNeedles(std::span<const TokenId> text, const NeedleOptions& options,
                       const NeedleAnswers& answers, const ProgressCallback& progress);
  // Holds the engine's lock all the time.
  Result<std::vector<BenchmarkResult>> RunBenchmark(const BenchmarkOptions& options,
                                                    const ProgressCallback& progress);

  // Computes adapters and writes them to `path`. Holds the engine's lock, but not while `progress` is asked.
  Result<Calibration> Calibrate(const CalibrationOptions& options, const std::string& path,
                                const ProgressCallback& progress);

  // How long Calibrate, and MeasureReuse after it, will take, and what of it to do within limit_s (0: all).
  // Holds the engine's lock while it measures.
  Result<CalibrationTimes> TimeCalibration(const CalibrationOptions& options, bool measures_reuse,
                                           bool measures_layers, double limit_s);

  // Of what an adapter's file chooses on a text; into that file. Holds the engine's lock for each setting.
  Result<ReuseMeasurement> MeasureReuse(const std::string& adapter_path, std::span<const TokenId> ids,
                                        const ReuseOptions& options, const ProgressCallback& progress);

  // With profiling: sums since the engine was made, over all of its sessions.
  std::vector<OperationTime> OperationTotals();

 private:
  Result<std::unique_ptr<Session>> MakeSession(const SessionOptions& options,
                                               std::unique_ptr<SessionFiles> files,
                                               std::vector<std::string> notes);
  Result<std::unique_ptr<Session>> OpenSession(const SessionOptions& options,
                                               std::unique_ptr<SessionFiles>* files);
  Result<std::unique_ptr<Session>> ReadSession(const SessionOptions& given, const std::string& fingerprint);
  Result<std::unique_ptr<Session>> KeepSession(const SessionOptions& given);
  Result<std::unique_ptr<Session>> BeginSession(const SessionOptions& options,
                                                std::unique_ptr<SessionFiles> files, std::string note);
  LayerTime* layer_time() { return layer_time_ ? &*layer_time_ : nullptr; }

  const Model& model_;
  std::unique_ptr<Device> device_;
  std::vector<std::string> choice_notes_;  // of the device's choice
  std::vector<std::string> choice_details_;
  std::optional<KeptTimes> kept_times_;           // what it was chosen by
  std::shared_ptr<RateWatch> watch_;              // of sessions on it, null where nothing is kept
  ForwardPassFactory create_forward_pass_;        // holds the weights: goes before the device
  std::shared_ptr<const DeviceWeights> weights_;  // null where a factory was given
  std::optional<LayerTime> layer_time_;           // nothing without weights
  std::mutex device_mutex_;
  std::mutex totals_mutex_;
  std::vector<OperationTime> operation_totals_;
};

}  // namespace kvrun
