#include "runtime/engine/measure/calibration_time.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "runtime/engine/measure/calibration.h"
#include "runtime/engine/measure/random_kv.h"
#include "runtime/engine/resident/resident_pass.h"

namespace kvrun {
namespace {

using Clock = std::chrono::steady_clock;

// Of the time: the sums, with reuse rates and shares of layers to come, or rates alone, or neither.
constexpr double kSumsShare = 0.45;
constexpr double kSumsShareBeforeRates = 0.75;
constexpr double kSumsShareAlone = 0.95;
// Cuts of layers that take more of the time are left out, and the sums have it.
constexpr double kCutsShare = 0.35;
// A prompt of reuse rates takes no more of the time.
constexpr double kPromptShare = 0.15;
constexpr uint32_t kShortestPiece = 512;
// Of reuse_trace.cc, where there is time for all.
constexpr double kReuseSteps = 20 * 128;
constexpr CutSize kFullCuts = {4096, 64};
// A step that selects from records takes longer than one with all KV in memory.
constexpr double kSelectingFactor = 2.0;
// A step whose logits are compared.
constexpr double kLogitsFactor = 1.4;
constexpr uint32_t kFewestCutContext = 1024;
// Of measuring rates.
constexpr double kProbeSeconds = 0.7;
constexpr uint32_t kFirstRows = 16;
constexpr uint32_t kMostRows = 128;

// With steps that select.
CalibrationRates Selecting(CalibrationRates rates) {
  rates.step_s *= kSelectingFactor;
  return rates;
}

double ReuseSeconds(const CalibrationRates& rates, uint32_t n_ctx) {
  return rates.PromptSeconds(n_ctx) + kReuseSteps * Selecting(rates).step_s;
}

CutSize CutsOf(uint32_t n_ctx) {
  return {std::min(n_ctx, kFullCuts.n_ctx), std::min(n_ctx / 8, kFullCuts.n_steps)};
}

double SumsSeconds(const CalibrationRates& rates, uint64_t n_tokens, uint32_t n_ctx) {
  const auto piece = static_cast<double>(std::min<uint64_t>(n_tokens, n_ctx));
  return rates.PromptSeconds(piece) * static_cast<double>(n_tokens) / std::max(piece, 1.0);
}

// Of what follows the sums.
double LaterSeconds(const CalibrationRates& rates, const CalibrationJob& job) {
  if (!job.measures_reuse) return 0.0;
  const auto n_ctx = static_cast<uint32_t>(std::min<uint64_t>(job.n_ctx, job.n_tokens));
  return ReuseSeconds(rates, n_ctx) +
         (job.measures_layers ? CutSeconds(Selecting(rates), CutsOf(n_ctx), job.n_layers) : 0.0);
}

double ProbeSecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace

CalibrationTimes ChooseCalibrationTimes(const CalibrationRates& rates, const CalibrationJob& job,
                                        double limit_s) {
  CalibrationTimes times;
  times.n_ctx = job.n_ctx;
  times.sums_s = SumsSeconds(rates, job.n_tokens - job.n_done_tokens, job.n_ctx);
  const double later_s = times.later_s = LaterSeconds(rates, job);
  times.all_seconds = times.seconds = times.sums_s + later_s;
  if (limit_s <= 0.0) return times;
  if (times.all_seconds <= limit_s) {
    times.sums_s = limit_s - later_s;
    return times;
  }
  const bool cuts_layers = job.measures_layers && ChooseCuts(Selecting(rates), CutsOf(job.n_ctx),
                                                             job.n_layers, kCutsShare * limit_s);
  const double share = !job.measures_reuse ? kSumsShareAlone
                       : cuts_layers       ? kSumsShare
                                           : kSumsShareBeforeRates;
  times.sums_s = std::min(std::max(share * limit_s, limit_s - later_s), kSumsShareAlone * limit_s);
  const double prompt_s = job.measures_reuse ? kPromptShare * limit_s : times.sums_s;
  const uint32_t shortest = std::max(kShortestPiece, job.rank + 2 * kCalibrationSinks);
  const auto is_too_long = [&](uint32_t n_ctx) {
    return rates.PromptSeconds(n_ctx) > std::min(prompt_s, times.sums_s / 2);
  };
  while (job.may_shorten && times.n_ctx / 2 >= shortest && is_too_long(times.n_ctx)) times.n_ctx /= 2;
  times.later_s = limit_s - times.sums_s;
  // What must be done is done, whatever it takes.
  const double least_s = SumsSeconds(rates, std::min<uint64_t>(job.n_tokens, shortest), times.n_ctx);
  times.seconds = std::max(limit_s, least_s);
  return times;
}

size_t PiecesThatFit(std::span<const std::span<const TokenId>> pieces, size_t n_done, uint32_t rank,
                     double token_s, double left_s) {
  uint64_t n_counted = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const size_t n = pieces[i].size();
    if (i >= n_done) {
      left_s -= token_s * static_cast<double>(n);
      if (left_s < 0.0 && n_counted >= rank && i > 0) return i;
    }
    n_counted += n - std::min<size_t>(n, kCalibrationSinks);
  }
  return pieces.size();
}

std::vector<ReuseSettingSize> ByImportance(std::vector<ReuseSettingSize> settings) {
  constexpr double kUsualGroup = 4.0;
  constexpr double kUsualSelect = 384.0;
  const auto distance = [](const ReuseSettingSize& setting) {
    return std::abs(std::log2(setting.first / kUsualGroup)) +
           std::abs(std::log2(setting.second / kUsualSelect));
  };
  std::stable_sort(settings.begin(), settings.end(),
                   [&](const auto& a, const auto& b) { return distance(a) < distance(b); });
  return settings;
}

// The text's prompt, its tokens with all KV in memory, and one more run than there are layers; with logits.
double CutSeconds(const CalibrationRates& rates, const CutSize& size, uint32_t n_layers) {
  return rates.PromptSeconds(size.n_ctx) + kLogitsFactor * rates.step_s * size.n_steps * (n_layers + 2.0);
}

std::optional<CutSize> ChooseCuts(const CalibrationRates& rates, const CutSize& full, uint32_t n_layers,
                                  double left_s) {
  CutSize size = full;
  while (CutSeconds(rates, size, n_layers) > left_s) {
    if (size.n_ctx / 2 < std::max(kFewestCutContext, 8 * size.n_steps)) return std::nullopt;
    size.n_ctx /= 2;
  }
  return size;
}

Result<CalibrationRates> MeasureCalibrationRates(const Model& model,
                                                 std::shared_ptr<const DeviceWeights> weights, Device& device,
                                                 std::mutex* device_mutex, uint32_t n_ctx) {
  const std::lock_guard lock(*device_mutex);
  KVRUN_ASSIGN_OR_RETURN(const std::unique_ptr<ResidentForwardPass> pass,
                         ResidentForwardPass::Create(model, std::move(weights), device,
                                                     {.n_sequences = 1, .n_ctx = n_ctx}, kCalibrationSinks));
  std::vector<Buffer*> layers;
  for (uint32_t i = 0; i < model.config.n_kv_layers(); ++i) layers.push_back(pass->kv(i));
  KVRUN_RETURN_IF_ERROR(FillRandomly(device, pass->kv_shape(), layers, n_ctx));
  ForwardStep step;
  const auto seconds_of = [&](uint32_t n_rows, uint32_t position) -> Result<double> {
    step.Clear();
    for (uint32_t i = 0; i < n_rows; ++i)
      step.Add(n_rows > 1 ? SpanKind::kPrompt : SpanKind::kDecode, {0, position + i, 0});
    const Clock::time_point begin = Clock::now();
    KVRUN_RETURN_IF_ERROR(pass->Run(step, {}, {}));
    return ProbeSecondsSince(begin);
  };
  CalibrationRates rates;
  const uint32_t most = std::min({kMostRows, pass->max_rows(), n_ctx / 2});
  const uint32_t first = std::min(kFirstRows, most);
  KVRUN_ASSIGN_OR_RETURN(const double first_s, seconds_of(first, 0));
  const double affordable = kProbeSeconds * first / std::max(first_s, 1e-9);
  const uint32_t n = std::clamp(static_cast<uint32_t>(std::min(affordable, 1e6)), first, most);
  // Twice: what is new to a device takes longer once.
  KVRUN_RETURN_IF_ERROR(seconds_of(n, 0).status());
  KVRUN_ASSIGN_OR_RETURN(const double begin_s, seconds_of(n, 0));
  const uint32_t end = n_ctx - n;
  KVRUN_ASSIGN_OR_RETURN(const double end_s, seconds_of(n, end));
  rates.token_s = begin_s / n;
  rates.attend_s = std::max(0.0, end_s - begin_s) / n / std::max(end, 1U);
  KVRUN_RETURN_IF_ERROR(seconds_of(1, n_ctx - 1).status());
  KVRUN_ASSIGN_OR_RETURN(const double step_s, seconds_of(1, n_ctx - 1));
  rates.step_s = step_s;
  return rates;
}

Result<CalibrationTimes> TimeCalibration(const Model& model, std::shared_ptr<const DeviceWeights> weights,
                                         Device& device, std::mutex* device_mutex,
                                         const CalibrationOptions& options, bool measures_reuse,
                                         bool measures_layers, double limit_s) {
  CalibrationOptions given = options;
  uint64_t n_done_tokens = 0;
  if (!options.restarts && !options.checkpoint_path.empty()) {
    // What is wrong with it is said by who goes on from it.
    if (const auto sums = ReadSums(options.checkpoint_path); sums.ok()) {
      n_done_tokens = sums->n_tokens;
      if (options.n_ctx == 0) given.n_ctx = sums->n_ctx;
    }
  }
  KVRUN_ASSIGN_OR_RETURN(const CalibrationPlan plan, PlanCalibration(given, model.config));
  const CalibrationJob job{.n_tokens = plan.n_tokens,
                           .n_done_tokens = std::min(n_done_tokens, plan.n_tokens),
                           .n_ctx = plan.n_ctx,
                           .may_shorten = given.n_ctx == 0,
                           .rank = plan.rank,
                           .n_layers = model.config.n_kv_layers(),
                           .measures_reuse = measures_reuse,
                           .measures_layers = measures_layers};
  const uint32_t n_ctx = std::max<uint32_t>(plan.max_piece_tokens, kMinPieceTokens);
  KVRUN_ASSIGN_OR_RETURN(const CalibrationRates rates,
                         MeasureCalibrationRates(model, std::move(weights), device, device_mutex, n_ctx));
  return ChooseCalibrationTimes(rates, job, limit_s);
}

}  // namespace kvrun
