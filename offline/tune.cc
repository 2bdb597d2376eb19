#include "offline/tune.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include "offline/final_choice.h"
#include "offline/hit_rates.h"
#include "offline/quality_meter.h"
#include "offline/step_meter.h"
#include "offline/step_sampler.h"
#include "offline/tune_explain.h"
#include "offline/tune_setting.h"
#include "runtime/capi/handles.h"
#include "runtime/engine/session_kv.h"
#include "runtime/kv/adapter.h"
#include "runtime/model/fingerprint.h"

namespace kvrun::offline {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kSampleSeed = 1;
constexpr uint64_t kCheckSeed = 1001;
constexpr double kProbeSeconds = 2.0;
// Of the time that is given: for sampled steps, and for the last measurements of a solution.
constexpr double kSamplingShare = 0.2;
constexpr double kSamplingShareOfSeveral = 0.3;  // settings: each needs some
constexpr double kFinalShare = 0.3;
constexpr size_t kFewestSamples = 24;
constexpr size_t kFewestMeasured = 3;  // of one setting, however late it is
constexpr size_t kMostSamples = 64;    // of one setting

class Tuner {
 public:
  Tuner(kvrun_engine* handle, const TuneOptions& options, const OfflineProgress& progress)
      : handle_(handle),
        engine_(*handle->engine),
        options_(options),
        progress_(progress),
        rates_({}),
        begin_(Clock::now()) {
    storage_.folder = options.folder;
    storage_.allow_tmpfs = options.allow_tmpfs;
  }

  Result<TuneResult> Run();

 private:
  Status Prepare();
  Status ProbeFlash();
  Status SampleSteps();
  Status SolveContexts();
  Status SolveContext(uint32_t n_ctx);
  Result<std::unique_ptr<QualityMeter>> ReadTexts(uint32_t n_ctx, bool held_out);
  // Adds a solution, but for what Finish adds, and an answer; or what was not reached. `n_left`: of searches
  // of the setting's context.
  Status SolveOne(const SearchSetting& setting, double n_left, QualityMeter* meter,
                  std::vector<SolverAnswer>* answers);
  void ShareTime(uint32_t n_ctx);
  bool HasHeldOut(uint32_t n_ctx) const { return options_.ids.size() >= 2 * uint64_t{n_ctx}; }
  Status Finish(const SolverAnswer& answer, QualityMeter* meter, TuneSolution* solution);
  Result<double> FinalMs(const Measured& measured, const SearchSetting& setting, QualityMeter* meter);
  Status CheckPredictions();
  Status FillConfig();

  Result<Quality> MeasureOnText(const SizedCandidate& sized, QualityMeter* meter) const;
  Result<Quality> MeasureQuality(const SizedCandidate& sized, const SearchSetting& setting,
                                 QualityMeter* meter);
  Status LearnTime(const SizedCandidate& sized, const SearchSetting& setting, const Quality& quality);
  PredictedTime Predict(const SizedCandidate& sized, const SearchSetting& setting,
                        const Quality* quality) const;
  Status Tell(const std::string& what, uint64_t done, uint64_t total) {
    told_ = {what, done, total};
    return IsCancelled() ? Status(StatusCode::kCancelled, "the tuning was cancelled") : Status::Ok();
  }
  // Of the time there is for it. It is not done yet, however late it is.
  Status TellShare(const std::string& what, double share) {
    return Tell(what, static_cast<uint64_t>(100 * std::clamp(share, 0.0, 0.99)), 100);
  }
  bool IsCancelled() const { return progress_ && progress_(told_.what, told_.done, told_.total); }
  double Minutes() const { return std::chrono::duration<double>(Clock::now() - begin_).count() / 60; }

  kvrun_engine* handle_;
  Engine& engine_;
  const TuneOptions& options_;
  const OfflineProgress& progress_;
  KvStorageOptions storage_;
  std::vector<SearchSetting> settings_;
  std::vector<std::vector<StepPoint>> sample_points_;  // of each setting
  std::vector<std::vector<StepPoint>> check_points_;
  HitRates rates_;
  double reads_per_load_ = 1.0;
  std::optional<StepMeter> steps_;
  std::map<std::string, Quality> qualities_;  // by context and options: no batch changes them
  struct {
    std::string what;
    uint64_t done = 0;
    uint64_t total = 0;
  } told_;
  TuneResult result_;
  size_t n_finished_ = 0;  // of its solutions
  std::vector<uint32_t> failed_contexts_;
  Clock::time_point begin_;
  double search_end_ = 0.0;  // of the context that is looked at, in minutes from begin_
  double context_end_ = 0.0;
};

Status Tuner::Prepare() {
  KVRUN_RETURN_IF_ERROR(CheckTuneNumbers(options_));
  KVRUN_ASSIGN_OR_RETURN(const std::optional<Adapter> adapter,
                         TuningAdapter(engine_.model(), options_.adapter_path));
  if (adapter) rates_ = HitRates(adapter->reuse);
  KVRUN_ASSIGN_OR_RETURN(settings_, SearchSettings(engine_.model(), options_, storage_, adapter));
  for (const uint32_t n_ctx : Distinct(options_.contexts)) {
    KVRUN_RETURN_IF_ERROR(MostPieces(engine_, n_ctx, options_.n_steps, options_.memory_bytes).status());
  }
  // A setting's candidates take some hundred MiB: they are made again when it is solved.
  for (size_t i = 0; i < settings_.size(); ++i) {
    KVRUN_RETURN_IF_ERROR(Tell("planning", i, settings_.size()));
    const std::vector<SizedCandidate> all = AllCandidates(settings_[i]);
    sample_points_.push_back(SpreadPoints({settings_[i]}, {all}, kMostSamples, kSampleSeed + i));
    if (options_.n_checks == 0) continue;
    check_points_.push_back(SpreadPoints({settings_[i]}, {all}, options_.n_checks, kCheckSeed + i));
  }
  return Status::Ok();
}

Status Tuner::ProbeFlash() {
  if (options_.storage != nullptr) {
    result_.storage = *options_.storage;
    return Status::Ok();
  }
  StorageProbeOptions probe;
  probe.folder = options_.folder;
  probe.all_modes = false;
  probe.budget_seconds = kProbeSeconds;
  probe.allow_tmpfs = options_.allow_tmpfs;
  KVRUN_ASSIGN_OR_RETURN(result_.storage, ProbeStorage(probe, progress_));
  return Status::Ok();
}

Status Tuner::SampleSteps() {
  KVRUN_ASSIGN_OR_RETURN(const SizedCandidate own, BudgetsOwnChoice(settings_.front()));
  steps_.emplace(engine_, StepMeterOptions{.kv_storage = storage_,
                                           .storage = result_.storage,
                                           .reference = {settings_.front(), own, 1.0},
                                           .is_cancelled = [this] { return IsCancelled(); }});
  const double share = settings_.size() == 1 ? kSamplingShare : kSamplingShareOfSeveral;
  return steps_->Sample(
      InTurns(sample_points_), std::max(kFewestSamples, 2 * settings_.size()), share * 60 * options_.minutes,
      [this](uint64_t done, uint64_t total) { return Tell("sampling steps", done, total); });
}

// With hits as they were measured, else as they are expected.
PredictedTime Tuner::Predict(const SizedCandidate& sized, const SearchSetting& setting,
                             const Quality* quality) const {
  const double hit_rate = quality != nullptr ? quality->hit_rate : rates_.Rate(sized, sized.candidate.policy);
  const double reads_per_load = quality != nullptr ? quality->reads_per_load : reads_per_load_;
  return steps_->Predict(PointOf(setting, sized.plan, hit_rate, reads_per_load));
}

// Without a budget: what is measured on one sequence has been sized for the whole batch.
Result<Quality> Tuner::MeasureOnText(const SizedCandidate& sized, QualityMeter* meter) const {
  KVRUN_ASSIGN_OR_RETURN(const KvSettings settings, SettingsOf(sized.options, storage_));
  return meter->Measure(settings, [this] { return IsCancelled(); });
}

// Once for each context; what it teaches is kept.
Result<Quality> Tuner::MeasureQuality(const SizedCandidate& sized, const SearchSetting& setting,
                                      QualityMeter* meter) {
  const std::string key = fmt::format("{} {}", sized.plan.n_ctx, OptionLine(sized.options));
  if (const auto known = qualities_.find(key); known != qualities_.end()) return known->second;
  KVRUN_ASSIGN_OR_RETURN(const Quality quality, MeasureOnText(sized, meter));
  rates_.Correct(sized, quality.hit_rate);
  reads_per_load_ += (quality.reads_per_load - reads_per_load_) / static_cast<double>(qualities_.size() + 1);
  qualities_.emplace(key, quality);
  KVRUN_RETURN_IF_ERROR(LearnTime(sized, setting, quality));
  return quality;
}

// One sequence's steps on the text are one more sample, and one from where the search is.
Status Tuner::LearnTime(const SizedCandidate& sized, const SearchSetting& setting, const Quality& quality) {
  if (setting.batch != 1) return Status::Ok();
  return steps_->Learn(
      {PointOf(setting, sized.plan, quality.hit_rate, quality.reads_per_load), quality.step_ms});
}

// One sequence is measured on the text itself; several with random KV at the hit rate that the text had.
Result<double> Tuner::FinalMs(const Measured& measured, const SearchSetting& setting, QualityMeter* meter) {
  if (setting.batch == 1) {
    KVRUN_ASSIGN_OR_RETURN(const Quality quality, MeasureOnText(measured.sized, meter));
    return quality.step_ms;
  }
  return steps_->MeasureMs({setting, measured.sized, measured.quality.hit_rate});
}

const Measured& LeastKl(const std::vector<Measured>& measured) {
  return *std::ranges::min_element(measured, {}, [](const Measured& one) { return one.quality.kl; });
}

// Of a solved search.
Status Tuner::Finish(const SolverAnswer& answer, QualityMeter* meter, TuneSolution* solution) {
  const SearchSetting& setting = solution->setting;
  FinalChoiceInput input;
  input.batch = setting.batch;
  input.kl_limit = options_.kl_limit;
  input.measure_held_out = [&](const SizedCandidate& sized) { return MeasureOnText(sized, meter); };
  input.measure_ms = [&](const Measured& measured) { return FinalMs(measured, setting, meter); };
  input.best_policy = [&](const SizedCandidate& sized) { return rates_.BestPolicy(sized); };
  input.is_late = [&] { return Minutes() > context_end_; };
  input.tell = [&](const std::string& what, uint64_t done, uint64_t total) {
    return Tell(fmt::format("{}, {} tokens x {}", what, setting.ctx, setting.batch), done, total);
  };
  KVRUN_ASSIGN_OR_RETURN(FinalChoice choice, ChooseFinally(answer, input));
  solution->chosen = std::move(choice.chosen);
  solution->is_own = choice.is_own;
  solution->is_within_limit = choice.is_within_limit;
  solution->n_refused = choice.n_refused;
  solution->has_held_out = HasHeldOut(setting.ctx);
  solution->held_out_kl = choice.held_out_kl;
  solution->own_held_out_kl = choice.own_held_out_kl;
  solution->measured_ms = choice.measured_ms;
  solution->own_measured_ms = choice.own_measured_ms;
  solution->predicted = Predict(solution->chosen.sized, setting, &solution->chosen.quality);
  solution->own_predicted = Predict(solution->own.sized, setting, &solution->own.quality);
  // More is known of times now than when they were measured.
  for (Measured& measured : solution->measured) {
    measured.predicted_ms = Predict(measured.sized, setting, &measured.quality).step_ms;
  }
  ExplainSolution([this](const SizedCandidate& sized, const SearchSetting& at,
                         const Quality* quality) { return Predict(sized, at, quality); },
                  solution);
  return Status::Ok();
}

Status Tuner::SolveOne(const SearchSetting& setting, double n_left, QualityMeter* meter,
                       std::vector<SolverAnswer>* answers) {
  TuneSolution solution;
  solution.setting = setting;
  SolverInput input;
  input.setting = setting;
  const std::vector<SizedCandidate> all = AllCandidates(setting);
  input.all = all;
  KVRUN_ASSIGN_OR_RETURN(input.own, BudgetsOwnChoice(setting));
  input.kl_limit = options_.kl_limit;
  input.predict_ms = [&](const SizedCandidate& sized, const Quality* quality) {
    return Predict(sized, setting, quality).step_ms;
  };
  const std::string what = fmt::format("searching, {} tokens x {}", setting.ctx, setting.batch);
  const double begin = Minutes();
  const double share = (search_end_ - begin) / n_left;
  input.measure = [&](const SizedCandidate& sized) -> Result<Quality> {
    const double spent = (Minutes() - begin) / std::max(share, 1e-6);
    KVRUN_RETURN_IF_ERROR(TellShare(what, spent));
    return MeasureQuality(sized, setting, meter);
  };
  size_t n_measured = 0;
  input.is_enough = [&](const Measured&) {
    return ++n_measured >= kFewestMeasured && Minutes() - begin > share;
  };
  KVRUN_ASSIGN_OR_RETURN(SolverAnswer answer, Solve(input));
  if (setting.batch == 1) KVRUN_RETURN_IF_ERROR(steps_->Refit());
  solution.kl_limit = answer.kl_limit;
  solution.own = answer.own;
  solution.measured = answer.measured;
  if (answer.accepted.empty() && options_.kl_limit > 0.0) {
    const Measured& best = LeastKl(answer.measured);
    result_.unreached.push_back(fmt::format(
        "no configuration within the budget was found whose KL to full attention is at most "
        "{:.4g} at {} tokens x {}: the best of {} has {:.4g} ({}): {}raise the budget, or accept more",
        options_.kl_limit, setting.ctx, setting.batch, answer.measured.size(), best.quality.kl,
        OptionLine(best.sized.options), answer.ended_early ? "give it more minutes, " : ""));
    return Status::Ok();
  }
  result_.solutions.push_back(std::move(solution));
  answers->push_back(std::move(answer));
  return Status::Ok();
}

Result<std::unique_ptr<QualityMeter>> Tuner::ReadTexts(uint32_t n_ctx, bool held_out) {
  const QualityMeterOptions options{.ctx = n_ctx,
                                    .n_steps = options_.n_steps,
                                    .n_pieces = options_.n_pieces,
                                    .held_out = held_out,
                                    .ids = options_.ids,
                                    .memory_bytes = options_.memory_bytes};
  return QualityMeter::Create(engine_, options, progress_);
}

// Of the time that is left, by the tokens of this context and of those that are still to come: reading the
// texts and measuring candidates take longer where it is longer.
void Tuner::ShareTime(uint32_t n_ctx) {
  uint64_t n_left = 0;
  for (const uint32_t other : Distinct(options_.contexts)) n_left += other >= n_ctx ? other : 0;
  const double minutes = std::max(options_.minutes - Minutes(), 0.0) * n_ctx / static_cast<double>(n_left);
  search_end_ = Minutes() + (1 - kFinalShare) * minutes;
  context_end_ = Minutes() + minutes;
}

// One meter after the other: each holds the KV of its pieces.
Status Tuner::SolveContext(uint32_t n_ctx) {
  ShareTime(n_ctx);
  const size_t first = result_.solutions.size();
  std::vector<SolverAnswer> answers;
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<QualityMeter> meter, ReadTexts(n_ctx, false));
  auto n_left = static_cast<double>(std::ranges::count(settings_, n_ctx, &SearchSetting::ctx));
  for (const SearchSetting& setting : settings_) {
    if (setting.ctx == n_ctx) KVRUN_RETURN_IF_ERROR(SolveOne(setting, n_left--, meter.get(), &answers));
  }
  if (answers.empty()) return Status::Ok();
  if (HasHeldOut(n_ctx)) {
    meter.reset();
    KVRUN_ASSIGN_OR_RETURN(meter, ReadTexts(n_ctx, true));
  }
  for (size_t k = 0; k < answers.size(); ++k) {
    KVRUN_RETURN_IF_ERROR(Finish(answers[k], meter.get(), &result_.solutions[first + k]));
    ++n_finished_;
  }
  return Status::Ok();
}

// What is done is not lost to what fails after it.
Status Tuner::SolveContexts() {
  Status first = Status::Ok();
  for (const uint32_t n_ctx : Distinct(options_.contexts)) {
    const Status status = SolveContext(n_ctx);
    if (status.ok()) continue;
    if (status.code() == StatusCode::kCancelled) return status;
    result_.solutions.erase(result_.solutions.begin() + static_cast<std::ptrdiff_t>(n_finished_),
                            result_.solutions.end());
    result_.unreached.push_back(fmt::format("{} tokens of context: {}", n_ctx, status.message()));
    failed_contexts_.push_back(n_ctx);
    if (first.ok()) first = status;
  }
  result_.has_failed = !failed_contexts_.empty();
  if (!result_.solutions.empty()) return Status::Ok();
  return first.ok() ? Status(StatusCode::kOutOfMemory, result_.unreached.front()) : first;
}

Status Tuner::CheckPredictions() {
  std::vector<StepPoint> points = InTurns(check_points_);
  std::erase_if(points, [this](const StepPoint& point) {
    return std::ranges::find(failed_contexts_, point.setting.ctx) != failed_contexts_.end();
  });
  points.resize(std::min<size_t>(options_.n_checks, points.size()));
  Result<std::vector<CheckedPoint>> checks = steps_->Check(
      points, [this](uint64_t done, uint64_t total) { return Tell("checking predictions", done, total); });
  if (checks.ok()) {
    result_.checks = *std::move(checks);
  } else if (checks.status().code() == StatusCode::kCancelled) {
    return checks.status();
  } else {
    result_.unreached.push_back("predictions could not be checked: " + checks.status().message());
    result_.has_failed = true;
  }
  return Status::Ok();
}

// What people read: a hundredth of a millisecond is noise.
double Rounded(double value, double parts) { return std::round(value * parts) / parts; }
double ThreeDigits(double value) {
  const double parts = std::pow(10.0, 2 - std::floor(std::log10(value)));
  return value > 0.0 ? Rounded(value, parts) : 0.0;
}

Status Tuner::FillConfig() {
  const Model& model = engine_.model();
  KVRUN_ASSIGN_OR_RETURN(const MachineIdentity machine, IdentifyMachine(handle_, options_.folder));
  KvConfig& config = result_.config;
  config.model = model.config.name;
  config.model_fingerprint = ModelFingerprint(*model.file, model.config);
  config.device = machine.device;
  config.driver = machine.driver;
  config.cpu = machine.cpu;
  config.storage = machine.storage;
  config.exact_activations = options_.exact_activations;
  for (const TuneSolution& solution : result_.solutions) {
    config.solutions.push_back({.batch = solution.setting.batch,
                                .ctx = solution.setting.ctx,
                                .budget_bytes = solution.setting.budget_bytes,
                                .options = solution.chosen.sized.options,
                                .predicted_ms = Rounded(solution.predicted.step_ms, 100),
                                .measured_ms = Rounded(solution.measured_ms, 100),
                                .kl = ThreeDigits(solution.kl()),
                                .bound = solution.bound});
  }
  return Status::Ok();
}

Result<TuneResult> Tuner::Run() {
  KVRUN_RETURN_IF_ERROR(Prepare());
  KVRUN_RETURN_IF_ERROR(ProbeFlash());
  KVRUN_RETURN_IF_ERROR(SampleSteps());
  KVRUN_RETURN_IF_ERROR(SolveContexts());
  const StepTimes& times = steps_->times();
  result_.samples = times.SteadySamples();
  result_.model_max_error = times.model().max_error();
  result_.model_mean_error = times.model().mean_error();
  KVRUN_RETURN_IF_ERROR(CheckPredictions());
  KVRUN_RETURN_IF_ERROR(FillConfig());
  return std::move(result_);
}

}  // namespace

Result<TuneResult> Tune(kvrun_engine* engine, const TuneOptions& options, const OfflineProgress& progress) {
  return Tuner(engine, options, progress).Run();
}

std::string ConfigText(const TuneResult& result) { return ConfigToToml(result.config); }

std::vector<FrontPoint> FrontOf(const TuneSolution& solution) {
  std::vector<std::pair<double, double>> points;
  for (const Measured& measured : solution.measured)
    points.emplace_back(measured.predicted_ms, measured.quality.kl);
  return ParetoFront(points);
}

}  // namespace kvrun::offline
