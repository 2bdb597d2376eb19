#include "offline/tune.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "offline/final_choice.h"
#include "offline/hit_rates.h"
#include "offline/quality_meter.h"
#include "offline/step_meter.h"
#include "offline/step_sampler.h"
#include "offline/time_limit.h"
#include "offline/tune_explain.h"
#include "offline/tune_setting.h"
#include "runtime/capi/handles.h"
#include "runtime/engine/session/session_kv.h"
#include "runtime/kv/math/adapter.h"

namespace kvrun::offline {
namespace {

constexpr uint64_t kSampleSeed = 1;
constexpr uint64_t kCheckSeed = 1001;
constexpr double kProbeSeconds = 2.0;
constexpr double kMostProbeShare = 0.1;
// Of the time that is given: for sampled steps, and for the last measurements of a solution.
constexpr double kSamplingShare = 0.2;
constexpr double kSamplingShareOfSeveral = 0.3;  // settings: each needs some
constexpr double kFinalShare = 0.3;
constexpr double kMostCheckShare = 0.25;
constexpr double kReserveShare = 0.04;  // for what is worked out in the end
constexpr size_t kWantedSamples = 24;   // within twice the time for sampling
constexpr size_t kLeastSamples = 8;     // however long they take
constexpr size_t kWantedMeasured = 3;   // of one setting, while there is time for the context
constexpr double kInAnyCase = std::numeric_limits<double>::infinity();
constexpr size_t kMostSamples = 64;  // of one setting

StepReads ReadsOf(const Quality& quality) {
  return {.hit_rate = quality.hit_rate,
          .reads_per_load = quality.reads_per_load,
          .chosen_share = quality.chosen_share};
}

class Tuner {
 public:
  Tuner(kvrun_engine* handle, const TuneOptions& options, const OfflineProgress& progress)
      : handle_(handle),
        engine_(*handle->engine),
        options_(options),
        progress_(progress),
        rates_({}),
        limit_(60 * options.minutes, options.spent_seconds) {
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
  // Null where there is no time for it.
  Result<std::unique_ptr<QualityMeter>> ReadTexts(uint32_t n_ctx, bool held_out);
  bool HasTimeForHeldOut(uint32_t n_ctx);
  // Adds a solution, but for what Finish adds, and an answer; or what was not reached. `n_left`: of searches
  // of the setting's context.
  Status SolveOne(const SearchSetting& setting, double n_left, QualityMeter* meter,
                  std::vector<SolverAnswer>* answers);
  // A solution that names kvrun's own choice, of which nothing is known but how long it takes.
  Status AddOwn(const SearchSetting& setting);
  void ShareTime(uint32_t n_ctx);
  bool HasHeldOut(uint32_t n_ctx) const { return options_.ids.size() >= 2 * uint64_t{n_ctx}; }
  // `meter`: null where nothing is read. `held_out`: it has other parts of the text than the search's.
  Status Finish(const SolverAnswer& answer, QualityMeter* meter, bool held_out, TuneSolution* solution);
  Result<double> FinalMs(const Measured& measured, const SearchSetting& setting, QualityMeter* meter);
  Status CheckPredictions();
  Status FillConfig();

  Result<Quality> MeasureOnText(const SizedCandidate& sized, QualityMeter* meter);
  Result<Quality> MeasureQuality(const SizedCandidate& sized, const SearchSetting& setting,
                                 QualityMeter* meter);
  Status LearnTime(const SizedCandidate& sized, const SearchSetting& setting, const Quality& quality);
  PredictedTime Predict(const SizedCandidate& sized, const SearchSetting& setting,
                        const Quality* quality) const;
  Status Tell(std::string what) {
    doing_ = std::move(what);
    return IsCancelled() ? Status(StatusCode::kCancelled, "the tuning was cancelled") : Status::Ok();
  }
  bool IsCancelled() {
    was_cancelled_ =
        was_cancelled_ || (progress_ && progress_(doing_, limit_.DoneSeconds(), limit_.TotalSeconds()));
    return was_cancelled_;
  }
  // Asked within measurements, at each step.
  bool MustStop() { return IsCancelled() || limit_.Spent() > deadline_s_; }
  bool RanOut(const Status& status) const {
    return status.code() == StatusCode::kCancelled && !was_cancelled_;
  }
  double WorkEnd() const { return (1 - kReserveShare) * limit_.limit_s(); }
  void Say(const std::string& text) const {
    if (options_.say) options_.say(text);
  }
  // What a few samples say of how long the least takes.
  void ExpectLeast(double begin, uint64_t n_done);

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
  std::string doing_;
  TuneResult result_;
  size_t n_finished_ = 0;  // of its solutions
  std::vector<uint32_t> failed_contexts_;
  // All in seconds from the beginning of limit_.
  TimeLimit limit_;
  double deadline_s_ = kInAnyCase;  // of what is measured just now
  double search_end_ = 0.0;         // of the context that is looked at
  double context_end_ = 0.0;
  // How long it took last.
  double sample_s_ = 0.0;
  double piece_s_ = 0.0;    // of text, to read
  double measure_s_ = 0.0;  // a point's quality, on all pieces
  size_t n_pieces_ = 0;     // of the search
  bool was_cancelled_ = false;
  bool is_least_said_ = false;
};

Status Tuner::Prepare() {
  KVRUN_RETURN_IF_ERROR(CheckTuneNumbers(options_));
  KVRUN_ASSIGN_OR_RETURN(const std::optional<Adapter> adapter,
                         TuningAdapter(engine_.model(), options_.adapter_path));
  if (adapter) rates_ = HitRates(adapter->reuse);
  KVRUN_ASSIGN_OR_RETURN(settings_, SearchSettings(engine_.model(), options_, storage_, adapter, &engine_));
  for (const uint32_t n_ctx : Distinct(options_.contexts)) {
    KVRUN_RETURN_IF_ERROR(MostPieces(engine_, n_ctx, options_.n_steps, options_.memory_bytes).status());
  }
  // A setting's candidates take some hundred MiB: they are made again when it is solved.
  for (size_t i = 0; i < settings_.size(); ++i) {
    KVRUN_RETURN_IF_ERROR(Tell("planning"));
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
  probe.budget_seconds = std::min(kProbeSeconds, kMostProbeShare * limit_.limit_s());
  probe.allow_tmpfs = options_.allow_tmpfs;
  KVRUN_ASSIGN_OR_RETURN(result_.storage, ProbeStorage(probe, [this](const std::string& what, uint64_t,
                                                                     uint64_t) { return !Tell(what).ok(); }));
  return Status::Ok();
}

Status Tuner::SampleSteps() {
  KVRUN_ASSIGN_OR_RETURN(const SizedCandidate own, BudgetsOwnChoice(settings_.front()));
  steps_.emplace(engine_, StepMeterOptions{.kv_storage = storage_,
                                           .storage = result_.storage,
                                           .reference = {settings_.front(), own, 1.0},
                                           .is_cancelled = [this] { return MustStop(); }});
  const double share = settings_.size() == 1 ? kSamplingShare : kSamplingShareOfSeveral;
  const double seconds = share * limit_.limit_s();
  const SampleLimits limits{.n_least = std::max(kLeastSamples, settings_.size()),
                            .n_wanted = std::max(kWantedSamples, 2 * settings_.size()),
                            .seconds = seconds,
                            .most_seconds = 2 * seconds};
  const double begin = limit_.Spent();
  KVRUN_RETURN_IF_ERROR(steps_->Sample(InTurns(sample_points_), limits, [&](uint64_t done, uint64_t) {
    if (done < limits.n_least) ExpectLeast(begin, done);
    sample_s_ = done == 0 ? 0.0 : (limit_.Spent() - begin) / static_cast<double>(done);
    return Tell("sampling steps");
  }));
  return Status::Ok();
}

// A reference belongs to every few samples; then each setting's own choice is timed.
void Tuner::ExpectLeast(double begin, uint64_t n_done) {
  if (n_done == 0) return;
  const double each = (limit_.Spent() - begin) / static_cast<double>(n_done);
  const size_t n_least = std::max(kLeastSamples, settings_.size());
  const double seconds = begin + each * static_cast<double>(n_least + settings_.size());
  if (seconds <= limit_.limit_s()) return;
  limit_.Expect(seconds);
  if (is_least_said_) return;
  is_least_said_ = true;
  Say(fmt::format(
      "{} are too few here: the least, some steps and the time of kvrun's own choice, takes about {}",
      DurationText(limit_.limit_s()), DurationText(seconds)));
}

// With hits as they were measured, else as they are expected.
PredictedTime Tuner::Predict(const SizedCandidate& sized, const SearchSetting& setting,
                             const Quality* quality) const {
  const StepReads reads = quality != nullptr
                              ? ReadsOf(*quality)
                              : StepReads{.hit_rate = rates_.Rate(sized, sized.candidate.policy),
                                          .reads_per_load = reads_per_load_};
  return steps_->Predict(PointOf(setting, sized.plan, reads));
}

// Without a budget: what is measured on one sequence has been sized for the whole batch.
Result<Quality> Tuner::MeasureOnText(const SizedCandidate& sized, QualityMeter* meter) {
  KVRUN_ASSIGN_OR_RETURN(const KvSettings settings, SettingsOf(sized.options, storage_));
  return meter->Measure(settings, [this] { return MustStop(); });
}

// Once for each context; what it teaches is kept.
Result<Quality> Tuner::MeasureQuality(const SizedCandidate& sized, const SearchSetting& setting,
                                      QualityMeter* meter) {
  const std::string key = fmt::format("{} {}", sized.plan.n_ctx, OptionLine(sized.options));
  if (const auto known = qualities_.find(key); known != qualities_.end()) return known->second;
  const double begin = limit_.Spent();
  KVRUN_ASSIGN_OR_RETURN(const Quality quality, MeasureOnText(sized, meter));
  measure_s_ = limit_.Spent() - begin;
  rates_.Correct(sized, quality.hit_rate);
  reads_per_load_ += (quality.reads_per_load - reads_per_load_) / static_cast<double>(qualities_.size() + 1);
  qualities_.emplace(key, quality);
  KVRUN_RETURN_IF_ERROR(LearnTime(sized, setting, quality));
  return quality;
}

// One sequence's steps on the text are one more sample, and one from where the search is.
Status Tuner::LearnTime(const SizedCandidate& sized, const SearchSetting& setting, const Quality& quality) {
  if (setting.batch != 1) return Status::Ok();
  return steps_->Learn({PointOf(setting, sized.plan, ReadsOf(quality)), quality.step_ms});
}

// One sequence is measured on the text itself; several with random KV at the hit rate that the text had. What
// there is no time for is what the search found.
Result<double> Tuner::FinalMs(const Measured& measured, const SearchSetting& setting, QualityMeter* meter) {
  const bool is_on_text = setting.batch == 1 && meter != nullptr;
  const auto measure = [&]() -> Result<double> {
    if (!is_on_text)
      return steps_->MeasureMs(
          {setting, measured.sized, RepeatedShare(measured.sized, measured.quality.hit_rate)});
    KVRUN_ASSIGN_OR_RETURN(const Quality quality, MeasureOnText(measured.sized, meter));
    return quality.step_ms;
  };
  const Result<double> ms = measure();
  if (ms.ok() || !RanOut(ms.status())) return ms;
  return setting.batch == 1 ? measured.quality.step_ms : measured.predicted_ms;
}

const Measured& LeastKl(const std::vector<Measured>& measured) {
  return *std::min_element(measured.begin(), measured.end(),
                           [](const Measured& a, const Measured& b) { return a.quality.kl < b.quality.kl; });
}

// Of a solved search.
Status Tuner::Finish(const SolverAnswer& answer, QualityMeter* meter, bool held_out, TuneSolution* solution) {
  const SearchSetting& setting = solution->setting;
  FinalChoiceInput input;
  input.batch = setting.batch;
  input.kl_limit = options_.kl_limit;
  input.measure_held_out = [&](const SizedCandidate& sized) {
    return held_out ? MeasureOnText(sized, meter) : MeasureQuality(sized, setting, meter);
  };
  input.measure_ms = [&](const Measured& measured) { return FinalMs(measured, setting, meter); };
  input.best_policy = [&](const SizedCandidate& sized) { return rates_.BestPolicy(sized); };
  input.is_late = [&] { return limit_.Spent() + measure_s_ > context_end_; };
  input.tell = [&](const std::string& what, uint64_t, uint64_t) {
    return Tell(fmt::format("{}, {} tokens x {}", what, setting.ctx, setting.batch));
  };
  deadline_s_ = context_end_;
  Result<FinalChoice> chosen = ChooseFinally(answer, input);
  if (!chosen.ok() && RanOut(chosen.status()) && held_out) {
    solution->has_time_left = false;
    return Finish(answer, nullptr, false, solution);
  }
  deadline_s_ = kInAnyCase;
  KVRUN_ASSIGN_OR_RETURN(FinalChoice choice, std::move(chosen));
  if (!solution->has_time_left) {
    result_.left_out.push_back(fmt::format("the confirmation on other parts of the texts at {} tokens x {}",
                                           setting.ctx, setting.batch));
  }
  solution->kl_bound = choice.kl_limit;
  solution->is_bound_given = options_.kl_limit > 0.0;
  solution->chosen = std::move(choice.chosen);
  solution->is_own = choice.is_own;
  solution->is_within_limit = choice.is_within_limit;
  solution->n_refused = choice.n_refused;
  solution->has_held_out = held_out;
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
  const double begin = limit_.Spent();
  const double end = begin + (search_end_ - begin) / n_left;
  input.measure = [&](const SizedCandidate& sized) -> Result<Quality> {
    KVRUN_RETURN_IF_ERROR(Tell(what));
    return MeasureQuality(sized, setting, meter);
  };
  input.ran_out = [&](const Status& status) { return RanOut(status); };
  size_t n_measured = 0;
  input.is_enough = [&](const Measured&) {
    const double next_end = limit_.Spent() + measure_s_;
    return next_end > search_end_ || (++n_measured >= kWantedMeasured && next_end > end);
  };
  // The end of a search may take from what comes after it, but not from the limit.
  deadline_s_ = context_end_;
  Result<SolverAnswer> solved = Solve(input);
  deadline_s_ = kInAnyCase;
  if (!solved.ok() && RanOut(solved.status())) {
    result_.left_out.push_back(fmt::format(
        "the quality at {} tokens x {}: the config names what kvrun chooses from the budget alone",
        setting.ctx, setting.batch));
    return AddOwn(setting);
  }
  KVRUN_ASSIGN_OR_RETURN(SolverAnswer answer, std::move(solved));
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

Status Tuner::AddOwn(const SearchSetting& setting) {
  TuneSolution solution;
  solution.setting = setting;
  KVRUN_ASSIGN_OR_RETURN(solution.own.sized, BudgetsOwnChoice(setting));
  const SizedCandidate& own = solution.own.sized;
  solution.own.quality.hit_rate = rates_.Rate(own, own.candidate.policy);
  KVRUN_RETURN_IF_ERROR(
      Tell(fmt::format("timing kvrun's own choice, {} tokens x {}", setting.ctx, setting.batch)));
  KVRUN_ASSIGN_OR_RETURN(
      solution.own_measured_ms,
      steps_->MeasureMs({setting, own, RepeatedShare(own, solution.own.quality.hit_rate)}));
  solution.predicted = solution.own_predicted = Predict(own, setting, nullptr);
  solution.own.predicted_ms = solution.predicted.step_ms;
  solution.chosen = solution.own;
  solution.measured_ms = solution.own_measured_ms;
  solution.has_quality = solution.has_held_out = solution.has_time_left = false;
  solution.is_own = true;
  solution.is_bound_given = options_.kl_limit > 0.0;
  solution.kl_bound = options_.kl_limit;
  solution.bound = solution.predicted.is_io_bound() ? "I/O" : "compute";
  solution.twice_budget_ms = solution.predicted.step_ms;
  result_.solutions.push_back(std::move(solution));
  return Status::Ok();
}

Result<std::unique_ptr<QualityMeter>> Tuner::ReadTexts(uint32_t n_ctx, bool held_out) {
  KVRUN_RETURN_IF_ERROR(Tell(fmt::format("reading the texts, {} tokens", n_ctx)));
  // What is read is of no use unless something is measured on it.
  const double end = (held_out ? context_end_ : search_end_) - measure_s_;
  const double begin = limit_.Spent();
  Projection projection(limit_);
  double piece_begin = begin;
  uint64_t last_done = 0;
  const auto is_too_late = [&](uint64_t done, uint64_t total) {
    if (done < last_done) {
      piece_s_ = limit_.Spent() - piece_begin;
      piece_begin = limit_.Spent();
      projection = Projection(limit_);
      if (piece_begin + piece_s_ > end) return true;
    }
    last_done = done;
    return projection.IsTooLate(done, total, end);
  };
  const QualityMeterOptions options{
      .ctx = n_ctx,
      .n_steps = options_.n_steps,
      // As many as the search had: both count the same.
      .n_pieces = held_out ? static_cast<uint32_t>(2 * n_pieces_) : options_.n_pieces,
      .held_out = held_out,
      .ids = options_.ids,
      .memory_bytes = options_.memory_bytes,
      .is_too_late = is_too_late};
  Result<std::unique_ptr<QualityMeter>> meter = QualityMeter::Create(
      engine_, options, [this](const std::string&, uint64_t, uint64_t) { return IsCancelled(); });
  if (!meter.ok() && RanOut(meter.status())) return std::unique_ptr<QualityMeter>();
  KVRUN_RETURN_IF_ERROR(meter.status());
  piece_s_ = (limit_.Spent() - begin) / static_cast<double>((*meter)->n_pieces());
  if (!held_out) n_pieces_ = (*meter)->n_pieces();
  return meter;
}

// By how long the search's pieces took, and a point on them.
bool Tuner::HasTimeForHeldOut(uint32_t n_ctx) {
  return HasHeldOut(n_ctx) &&
         limit_.Spent() + piece_s_ * static_cast<double>(n_pieces_) + 2 * measure_s_ < context_end_;
}

// Of the time that is left, by the tokens of this context and of those that are still to come: reading the
// texts and measuring candidates take longer where it is longer. Checks have their part, which comes last.
void Tuner::ShareTime(uint32_t n_ctx) {
  uint64_t n_left = 0;
  for (const uint32_t other : Distinct(options_.contexts)) n_left += other >= n_ctx ? other : 0;
  const double checks_s = std::min(2 * sample_s_ * options_.n_checks, kMostCheckShare * limit_.limit_s());
  const double now = limit_.Spent();
  const double seconds = std::max(WorkEnd() - checks_s - now, 0.0) * n_ctx / static_cast<double>(n_left);
  search_end_ = now + (1 - kFinalShare) * seconds;
  context_end_ = now + seconds;
  measure_s_ = 0.0;
}

// One meter after the other: each holds the KV of its pieces.
Status Tuner::SolveContext(uint32_t n_ctx) {
  ShareTime(n_ctx);
  std::vector<SolverAnswer> answers;
  std::vector<size_t> solved;  // numbers of their solutions
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<QualityMeter> meter, ReadTexts(n_ctx, false));
  if (meter == nullptr) {
    result_.left_out.push_back(
        fmt::format("the quality at {} tokens, as reading the texts takes too long: the config names what "
                    "kvrun chooses from "
                    "the budget alone",
                    n_ctx));
  }
  auto n_left = static_cast<double>(
      std::count_if(settings_.begin(), settings_.end(),
                    [n_ctx](const SearchSetting& setting) { return setting.ctx == n_ctx; }));
  for (const SearchSetting& setting : settings_) {
    if (setting.ctx != n_ctx) continue;
    if (meter == nullptr) {
      KVRUN_RETURN_IF_ERROR(AddOwn(setting));
      continue;
    }
    const size_t n_answers = answers.size();
    KVRUN_RETURN_IF_ERROR(SolveOne(setting, n_left--, meter.get(), &answers));
    if (answers.size() > n_answers) solved.push_back(result_.solutions.size() - 1);
  }
  const bool held_out = !answers.empty() && HasTimeForHeldOut(n_ctx);
  if (held_out) {
    meter.reset();
    KVRUN_ASSIGN_OR_RETURN(meter, ReadTexts(n_ctx, true));
  }
  const bool has_time_left = !HasHeldOut(n_ctx) || (held_out && meter != nullptr);
  for (size_t k = 0; k < answers.size(); ++k) {
    TuneSolution* solution = &result_.solutions[solved[k]];
    solution->has_time_left = has_time_left;
    KVRUN_RETURN_IF_ERROR(Finish(answers[k], meter.get(), held_out && has_time_left, solution));
  }
  n_finished_ = result_.solutions.size();
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
    return std::find(failed_contexts_.begin(), failed_contexts_.end(), point.setting.ctx) !=
           failed_contexts_.end();
  });
  points.resize(std::min<size_t>(options_.n_checks, points.size()));
  const size_t n_wanted = points.size();
  deadline_s_ = limit_.limit_s();
  Result<std::vector<CheckedPoint>> checks =
      steps_->Check(points, [this](uint64_t, uint64_t) { return Tell("checking predictions"); });
  deadline_s_ = kInAnyCase;
  if (checks.ok() && checks->size() < n_wanted) {
    result_.left_out.push_back(
        fmt::format("{} of {} checks of predictions", n_wanted - checks->size(), n_wanted));
  }
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
  KVRUN_ASSIGN_OR_RETURN(config.model_fingerprint, model.Fingerprint());
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
                                .kl = solution.has_quality ? ThreeDigits(solution.kl()) : 0.0,
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
  if (progress_) progress_(doing_, limit_.TotalSeconds(), limit_.TotalSeconds());
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
