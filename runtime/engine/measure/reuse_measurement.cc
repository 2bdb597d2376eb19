// MeasureReuse: what is measured for an adapter's file, and what of it there is time for.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "platform/base/units.h"
#include "platform/io/replace_file.h"
#include "runtime/engine/measure/calibration.h"
#include "runtime/engine/measure/calibration_time.h"
#include "runtime/engine/measure/layer_sensitivity.h"
#include "runtime/engine/measure/reuse_trace.h"

namespace kvrun {
namespace {

// The buffer fills up in the first: at four times what is chosen, and a fifth of it new in each step, it is
// full after 15.
constexpr uint32_t kWarmUpSteps = 32;
constexpr uint32_t kCountedSteps = 96;
// Of layers that are cut alone.
constexpr uint32_t kCutContext = 4096;
constexpr uint32_t kCutSteps = 64;
constexpr uint32_t kLeastCutEntries = 32;

// Of a decoded token, in those that are prefilled in its time, until it is measured.
constexpr double kLikelyStepTokens = 8.0;
// Of the time after the prompt, at most.
constexpr double kLayersPart = 0.85;
// Of a setting, before what it takes can be told.
constexpr uint32_t kFewestSteps = 8;

struct ReusePlan {
  uint32_t n_ctx = 0;
  uint32_t n_warm_up = 0;
  uint32_t n_steps = 0;  // counted
  std::vector<ReuseSettingSize> settings;

  uint32_t n_prefill() const { return n_ctx - n_warm_up - n_steps; }
};

// Of short texts a quarter is decoded, and a quarter of that is the warm-up.
ReusePlan PlanReuse(const ReuseOptions& options, const ModelConfig& config, size_t n_ids) {
  ReusePlan plan;
  const uint32_t most = options.n_ctx != 0 ? options.n_ctx : DefaultPieceTokens(config);
  plan.n_ctx = static_cast<uint32_t>(std::min<size_t>(most, n_ids));
  const uint32_t n_decoded = std::min(plan.n_ctx / 4, kWarmUpSteps + kCountedSteps);
  plan.n_warm_up = n_decoded / 4;
  plan.n_steps = n_decoded - plan.n_warm_up;
  if (plan.n_prefill() <= kReuseWindowEntries + kReuseSinkEntries) return plan;
  const uint32_t room = plan.n_prefill() - kReuseWindowEntries - kReuseSinkEntries;
  for (const uint32_t group : options.groups) {
    for (const uint32_t select : options.select_entries) {
      if (select >= group && select <= room / 2) plan.settings.emplace_back(group, select);
    }
  }
  return plan;
}

// Why there is no setting to measure: the text ends before the context does, or the context is short.
std::string NothingToMeasure(const ReuseOptions& options, const ReusePlan& plan, size_t n_ids) {
  if (options.select_entries.empty() || options.groups.empty())
    return "reuse rates were not measured: none were asked for";
  const uint32_t fewest = *std::min_element(options.select_entries.begin(), options.select_entries.end());
  const uint64_t least_prefill = uint64_t{2} * fewest + kReuseWindowEntries + kReuseSinkEntries;
  uint64_t least = least_prefill;
  while (least - std::min<uint64_t>(least / 4, kWarmUpSteps + kCountedSteps) < least_prefill) ++least;
  if (n_ids > plan.n_ctx) {
    return fmt::format(
        "reuse rates were not measured: a context of {} tokens is too short to select from; give one of at "
        "least {} tokens",
        plan.n_ctx, least);
  }
  return fmt::format(
      "reuse rates were not measured: a text of {} tokens is too short to select from; give one of at least "
      "{} tokens",
      plan.n_ctx, least);
}

uint32_t SelectionRank(const Adapter& adapter) {
  const LayerAdapter& layer = adapter.layers.front();
  return std::min<uint32_t>(layer.rank, RoundUp(CeilDiv(layer.key_dim, 8U), 4U));
}

CutSize FullCuts(const ReusePlan& plan) {
  const uint32_t n_ctx = std::min(plan.n_ctx, kCutContext);
  return {n_ctx, std::min(n_ctx / 8, kCutSteps)};
}

// A layer that is cut has a part of the entries that is usual with small budgets.
SensitivityOptions CutsOf(const ReuseOptions& options, const CutSize& size, uint32_t rank,
                          const std::string& adapter_path) {
  SensitivityOptions cuts;
  cuts.n_ctx = size.n_ctx;
  cuts.n_steps = size.n_steps;
  cuts.select_entries = std::max(cuts.n_ctx / 32, kLeastCutEntries);
  cuts.rank = rank;
  cuts.storage = options.storage;
  cuts.storage.adapter_path = adapter_path;
  return cuts;
}

using Clock = std::chrono::steady_clock;

double MeterSecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

class ReuseMeter {
 public:
  // All must outlive it.
  ReuseMeter(const Model& model, const std::shared_ptr<const DeviceWeights>& weights, Device& device,
             std::mutex* device_mutex, const std::string& adapter_path, uint32_t rank,
             const ReuseOptions& options, const ProgressCallback& progress)
      : model_(model),
        weights_(weights),
        device_(device),
        device_mutex_(device_mutex),
        adapter_path_(adapter_path),
        rank_(rank),
        options_(options),
        progress_(progress) {}

  // `plan` has settings.
  Status Measure(const ReusePlan& plan, std::span<const TokenId> ids, ReuseMeasurement* measured,
                 Adapter* adapter) {
    plan_ = plan;
    n_settings_ = plan.settings.size();
    if (options_.measures_layers) cuts_ = FullCuts(plan);
    KVRUN_ASSIGN_OR_RETURN(
        std::unique_ptr<ReuseRecorder> recorder,
        ReuseRecorder::Create(model_, weights_, device_, device_mutex_, ids.first(plan.n_ctx),
                              plan.n_prefill(), [this](uint64_t done, uint64_t) { return Tell(done, 0); }));
    rates_.token_s = MeterSecondsSince(begin_) / plan.n_prefill();
    if (options_.limit_s > 0.0) left_s_ = std::max(options_.limit_s - MeterSecondsSince(begin_), 0.0);
    n_prefilled_ = plan.n_prefill();
    KVRUN_RETURN_IF_ERROR(MeasureSettings(recorder.get(), measured));
    const auto ask = [this](uint64_t, uint64_t) { return Tell(0, 0); };
    KVRUN_ASSIGN_OR_RETURN(measured->cluster_thresholds, recorder->ClusterThresholds(ask));
    KVRUN_ASSIGN_OR_RETURN(std::vector<float> means, recorder->EntryMeans());
    if (!means.empty()) adapter->entry_means = std::move(means);
    recorder.reset();
    measured->measured_on = fmt::format("reuse rates: {} of {} settings after {} tokens", n_measured_,
                                        plan.settings.size(), plan.n_prefill());
    KVRUN_RETURN_IF_ERROR(MeasureLayers(ids, measured));
    if (!measured->layer_shares.empty()) adapter->layer_shares = measured->layer_shares;
    adapter->measured_on = measured->measured_on;
    const uint64_t total = Total();
    if (progress_ && progress_(total, total)) return CancelledReuse();
    return Status::Ok();
  }

 private:
  static Status CancelledReuse() { return {StatusCode::kCancelled, "measuring reuse rates was cancelled"}; }
  bool is_limited() const { return options_.limit_s > 0.0; }
  uint32_t n_decoded() const { return plan_.n_warm_up + plan_.n_steps; }
  double StepTokens() const {
    return rates_.step_s > 0.0 && rates_.token_s > 0.0 ? rates_.step_s / rates_.token_s : kLikelyStepTokens;
  }
  uint64_t Tokens(uint64_t n_prefilled, uint64_t n_steps) const {
    return n_prefilled + static_cast<uint64_t>(StepTokens() * static_cast<double>(n_steps));
  }
  // As is known now.
  uint64_t Total() const {
    const uint64_t of_cuts = cuts_ ? uint64_t{model_.config.n_kv_layers() + 1} * cuts_->n_steps : 0;
    return Tokens(plan_.n_prefill() + (cuts_ ? cuts_->n_ctx : 0), n_settings_ * n_decoded() + of_cuts) + 1;
  }
  // Beside what is done. True to cancel.
  bool Tell(uint64_t n_prefilled, uint64_t n_steps) const {
    if (!progress_) return false;
    return progress_(std::min(Tokens(n_prefilled_ + n_prefilled, n_stepped_ + n_steps), Total() - 1),
                     Total());
  }

  // Sessions select by the shares of layers; reuse rates are where a search begins. So layers have what they
  // can make use of, but for a part of what is left after the prompt.
  std::optional<CutSize> CutsInTime() const {
    if (!options_.measures_layers) return std::nullopt;
    return ChooseCuts(rates_, FullCuts(plan_), model_.config.n_kv_layers(), kLayersPart * left_s_);
  }
  double SecondsForLayers() const {
    const std::optional<CutSize> cuts = CutsInTime();
    return cuts ? CutSeconds(rates_, *cuts, model_.config.n_kv_layers()) : 0.0;
  }
  // What cuts take is uncertain.
  double EndOfSettings() const { return options_.limit_s - 1.1 * SecondsForLayers(); }

  // Of those that are still to come, how many fit, and what then becomes of the layers.
  void PlanAgain(double setting_s) {
    const double left_s = EndOfSettings() - MeterSecondsSince(begin_);
    const auto n_fit = static_cast<size_t>(std::max(left_s, 0.0) / std::max(setting_s, 1e-9));
    n_settings_ = std::min(plan_.settings.size(), n_measured_ + n_fit);
    cuts_ = CutsInTime();
  }

  Status MeasureSettings(ReuseRecorder* recorder, ReuseMeasurement* measured) {
    const std::vector<ReuseSettingSize> order = is_limited() ? ByImportance(plan_.settings) : plan_.settings;
    std::vector<std::pair<ReuseSettingSize, std::vector<ReuseRate>>> rates;
    while (n_measured_ < n_settings_) {
      const ReuseSettingSize& setting = order[n_measured_];
      const Clock::time_point begin = Clock::now();
      auto trace = Record(recorder, setting);
      if (gives_up_) {
        n_settings_ = n_measured_;
        cuts_ = CutsInTime();
        break;
      }
      if (!trace.ok()) return trace.status();
      rates.emplace_back(setting, ReuseRatesOf(*trace, options_.capacities, plan_.n_warm_up));
      ++n_measured_;
      n_stepped_ += n_decoded();
      rates_.step_s = MeterSecondsSince(begin) / n_decoded();
      if (is_limited()) PlanAgain(MeterSecondsSince(begin));
    }
    // In the order of the file, whatever was first.
    for (const ReuseSettingSize& setting : plan_.settings) {
      for (const auto& [of, rows] : rates) {
        if (of == setting) measured->rates.insert(measured->rates.end(), rows.begin(), rows.end());
      }
    }
    if (n_measured_ < plan_.settings.size()) {
      measured->left_out.push_back(fmt::format("{} of {} settings of reuse rates",
                                               plan_.settings.size() - n_measured_, plan_.settings.size()));
    }
    return Status::Ok();
  }

  // The first setting of all tells what a step takes: where it would take all the time, it ends.
  Result<ReuseTrace> Record(ReuseRecorder* recorder, const ReuseSettingSize& setting) {
    KvStorageOptions storage = options_.storage;
    storage.adapter_path = adapter_path_;
    Clock::time_point begin;
    const auto tell = [&](uint64_t step, uint64_t) {
      if (step == 0) begin = Clock::now();
      if (is_limited() && n_measured_ == 0 && step >= kFewestSteps) {
        rates_.step_s = MeterSecondsSince(begin) / static_cast<double>(step);
        const double to_come_s = rates_.step_s * static_cast<double>(n_decoded() - step);
        gives_up_ = MeterSecondsSince(begin_) + to_come_s > EndOfSettings();
      }
      return gives_up_ || Tell(0, step);
    };
    return recorder->Record(ReuseSettings(storage, rank_, setting.first, setting.second), n_decoded(), tell);
  }

  Status MeasureLayers(std::span<const TokenId> ids, ReuseMeasurement* measured) {
    if (!options_.measures_layers) return Status::Ok();
    const uint32_t n_layers = model_.config.n_kv_layers();
    const CutSize full = FullCuts(plan_);
    cuts_ = full;
    if (is_limited())
      cuts_ = ChooseCuts(rates_, full, n_layers, options_.limit_s - MeterSecondsSince(begin_));
    if (!cuts_) {
      measured->measured_on += "; shares of layers: not measured";
      measured->left_out.emplace_back("shares of layers");
      return Status::Ok();
    }
    const SensitivityOptions cuts = CutsOf(options_, *cuts_, rank_, adapter_path_);
    const auto tell = [&](uint64_t done, uint64_t) {
      const uint64_t n_prefilled = std::min<uint64_t>(done, cuts.n_ctx);
      return Tell(n_prefilled, done - n_prefilled);
    };
    KVRUN_ASSIGN_OR_RETURN(measured->layer_kls,
                           MeasureSensitivity(model_, weights_, device_, device_mutex_, ids, cuts, tell));
    measured->layer_shares = SharesOf(measured->layer_kls);
    measured->measured_on +=
        fmt::format("; shares of layers: {} steps at {} tokens", cuts.n_steps, cuts.n_ctx);
    if (*cuts_ == full) return Status::Ok();
    measured->left_out.push_back(
        fmt::format("shares of layers by {} steps at {} tokens (by {} at {} instead)", full.n_steps,
                    full.n_ctx, cuts.n_steps, cuts.n_ctx));
    return Status::Ok();
  }

  const Model& model_;
  const std::shared_ptr<const DeviceWeights>& weights_;
  Device& device_;
  std::mutex* device_mutex_;
  const std::string& adapter_path_;
  uint32_t rank_;
  const ReuseOptions& options_;
  const ProgressCallback& progress_;
  Clock::time_point begin_ = Clock::now();
  ReusePlan plan_;
  size_t n_settings_ = 0;        // that there is likely time for
  std::optional<CutSize> cuts_;  // likewise; nothing: they are not measured
  CalibrationRates rates_;       // as measured so far
  double left_s_ = 0.0;          // after the prompt
  bool gives_up_ = false;
  size_t n_measured_ = 0;  // settings
  uint64_t n_prefilled_ = 0;
  uint64_t n_stepped_ = 0;
};

}  // namespace

Result<ReuseMeasurement> MeasureReuse(const Model& model, std::shared_ptr<const DeviceWeights> weights,
                                      Device& device, std::mutex* device_mutex,
                                      const std::string& adapter_path, std::span<const TokenId> ids,
                                      const ReuseOptions& options, const ProgressCallback& progress) {
  const ModelConfig& config = model.config;
  KVRUN_ASSIGN_OR_RETURN(Adapter adapter, ReadWholeAdapter(adapter_path));
  const uint32_t rank = SelectionRank(adapter);
  KVRUN_ASSIGN_OR_RETURN(const std::string fingerprint, model.Fingerprint());
  // Says so where it is another model's.
  KVRUN_RETURN_IF_ERROR(
      ReadAdapter(adapter_path, fingerprint, config.n_kv_layers(), config.kv_dim(), rank).status());
  KVRUN_RETURN_IF_ERROR(CheckResultFile(adapter_path));
  const ReusePlan plan = PlanReuse(options, config, ids.size());
  ReuseMeasurement measured;
  measured.n_ctx = plan.n_ctx;
  measured.n_steps = plan.n_steps;
  measured.rank = rank;
  if (plan.settings.empty()) {
    measured.note = NothingToMeasure(options, plan, ids.size());
  } else {
    ReuseMeter meter(model, weights, device, device_mutex, adapter_path, rank, options, progress);
    KVRUN_RETURN_IF_ERROR(meter.Measure(plan, ids, &measured, &adapter));
  }
  adapter.reuse = measured.rates;
  if (!measured.cluster_thresholds.empty()) adapter.cluster_thresholds = measured.cluster_thresholds;
  KVRUN_RETURN_IF_ERROR(WriteAdapter(adapter, adapter_path));
  return measured;
}

}  // namespace kvrun
