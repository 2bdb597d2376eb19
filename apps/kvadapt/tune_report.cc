#include "apps/kvadapt/tune_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "apps/common/report.h"

namespace kvrun::cli {
namespace {

using offline::CheckedPoint;
using offline::FrontPoint;
using offline::Measured;
using offline::TuneResult;
using offline::TuneSolution;

std::string SettingText(const offline::SearchSetting& setting) {
  return fmt::format("{} tokens x {} sequence{}, {}", setting.ctx, setting.batch,
                     setting.batch == 1 ? "" : "s", FormatBytes(setting.budget_bytes));
}

// Four decimals say nothing of what is smaller.
std::string KlText(double kl) {
  return kl == 0.0 || kl >= 1e-3 ? fmt::format("{:.4f}", kl) : fmt::format("{:.1e}", kl);
}

std::string BoundText(const TuneSolution& solution) {
  const offline::PredictedTime& time = solution.predicted;
  std::string text = fmt::format(
      "bounded by {}: computing {:.2f} ms, reading takes {:.2f} of the processor, flash "
      "alone {:.2f}",
      solution.bound, time.model_ms, time.reading_ms, time.storage_ms);
  if (solution.bound == "memory") {
    text += fmt::format("; with twice the budget {:.2f} ms are predicted", solution.twice_budget_ms);
  }
  return text;
}

// `kl`: over all parts of the texts.
std::string PointLine(const char* name, const TuneSolution& solution, const Measured& measured, double kl,
                      double predicted_ms, double measured_ms) {
  const std::string quality = solution.has_quality
                                  ? fmt::format("KL {}  top-1 {:.1f} %  hits {:.1f} %", KlText(kl),
                                                100 * measured.quality.top1, 100 * measured.quality.hit_rate)
                                  : "KL not measured";
  return fmt::format(
      "  {:<10} {:>8.2f} ms predicted {:>8.2f} measured   {}\n"
      "             {}\n",
      name, predicted_ms, measured_ms, quality, offline::OptionLine(measured.sized.options));
}

// What was asked for, by the KL that counts in the end: the mean over all parts of the texts.
std::string WantedText(const TuneSolution& solution) {
  if (!solution.has_quality) return "";
  if (solution.is_bound_given) {
    return fmt::format("; wanted: a KL of at most {:.4g}{}", solution.kl_bound,
                       solution.is_within_limit ? "" : ", which nothing that was tried keeps");
  }
  return fmt::format("; wanted: a KL of at most {:.4g}, and faster than what kvrun chooses by the budget{}",
                     solution.kl_bound, solution.is_own ? ": nothing else that was tried is" : "");
}

// Where the KLs of the points come from.
std::string PartsText(const TuneSolution& solution) {
  if (!solution.has_quality) return "  there was no time to measure quality on texts\n";
  if (solution.has_held_out) {
    return fmt::format(
        "  KL is the mean over all parts of the texts: on those of the search {}, by budget {}; on others "
        "{}, "
        "by budget {}\n",
        KlText(solution.chosen.quality.kl), KlText(solution.own.quality.kl), KlText(solution.held_out_kl),
        KlText(solution.own_held_out_kl));
  }
  return solution.has_time_left
             ? "  the text has no second part of that many tokens: nothing was confirmed on another\n"
             : "  there was no time to confirm it on other parts of the texts\n";
}

std::string NeighbourTable(const TuneSolution& solution) {
  std::string text = "  neighbours                predicted        KL\n";
  for (const offline::RejectedNeighbour& row : solution.rejected) {
    if (row.predicted_ms == 0.0) {
      text += fmt::format("    {:<24} {}\n", row.change, row.reason);
      continue;
    }
    text += fmt::format("    {:<24} {:>7.2f} ms  {}{} {}\n", row.change, row.predicted_ms, KlText(row.kl),
                        row.kl_is_measured ? "          " : " (guessed)", row.reason);
  }
  return text;
}

std::string FrontTable(const TuneSolution& solution) {
  std::string text = fmt::format(
      "  front of the {} points measured, with predicted times; hidden: of the reading, what "
      "went on while the device computed\n",
      solution.measured.size());
  for (const FrontPoint& point : FrontOf(solution)) {
    const Measured& measured = solution.measured[point.index];
    text += fmt::format("    {:>7.2f} ms  KL {}  hidden {:>3.0f} %  {}\n", point.step_ms, KlText(point.kl),
                        100 * measured.quality.hidden, offline::OptionLine(measured.sized.options));
  }
  return text;
}

std::string CheckTable(const TuneResult& result) {
  std::string text =
      "predictions checked at random points; drift: of the machine since it was sampled\n"
      "   batch   ctx  hits   predicted   measured   drift   ratio\n";
  double worst = 0.0;
  for (const CheckedPoint& check : result.checks) {
    const double ratio = check.predicted_ms * check.slowness / check.sample.step_ms;
    worst = std::max(worst, std::abs(ratio - 1.0));
    text += fmt::format("  {:>6} {:>5} {:>5.2f} {:>8.2f} ms {:>7.2f} ms {:>7.2f} {:>7.3f}  {}\n",
                        check.sample.point.batch, check.sample.point.ctx, check.repeated_share,
                        check.predicted_ms, check.sample.step_ms, check.slowness, ratio,
                        offline::OptionLine(check.options));
  }
  return text + fmt::format("  the worst is off by {:.1f} %\n", 100 * worst);
}

Json OptionsJson(const NamedKvOptions& options) {
  Json json = Json::object();
  for (const auto& [name, value] : options) json[name] = value;
  return json;
}

Json MeasuredJson(const Measured& measured) {
  return {{"options", OptionsJson(measured.sized.options)},
          {"kl", measured.quality.kl},
          {"top1", measured.quality.top1},
          {"hit_rate", measured.quality.hit_rate},
          {"chosen_share", measured.quality.chosen_share},
          {"io_hidden", measured.quality.hidden},
          {"predicted_ms", measured.predicted_ms},
          {"text_ms", measured.quality.step_ms}};
}

Json SampleJson(const offline::StepSample& sample) {
  const offline::TimePoint& point = sample.point;
  return {{"batch", point.batch},
          {"ctx", point.ctx},
          {"streams", point.n_streams},
          {"chosen_groups", point.chosen_groups},
          {"group", point.group_tokens},
          {"window", point.window_entries},
          {"rank", point.rank},
          {"index", offline::TypeName(point.index_type)},
          {"k_type", offline::TypeName(point.k_type)},
          {"v_type", offline::TypeName(point.v_type)},
          {"record_bytes", point.record_bytes},
          {"loads", point.loads},
          {"reads", point.reads},
          {"step_ms", sample.step_ms}};
}

Json SolutionJson(const TuneSolution& solution) {
  Json chosen = MeasuredJson(solution.chosen);
  chosen["predicted_ms"] = solution.predicted.step_ms;
  chosen["measured_ms"] = solution.measured_ms;
  Json own = MeasuredJson(solution.own);
  own["predicted_ms"] = solution.own_predicted.step_ms;
  own["measured_ms"] = solution.own_measured_ms;
  Json rejected = Json::array();
  for (const offline::RejectedNeighbour& row : solution.rejected) {
    const bool fits = row.predicted_ms > 0.0;
    rejected.push_back({{"change", row.change},
                        {"reason", row.reason},
                        {"predicted_ms", fits ? Json(row.predicted_ms) : Json()},
                        {"kl", fits ? Json(row.kl) : Json()},
                        {"kl_is_measured", row.kl_is_measured}});
  }
  Json measured = Json::array();
  for (const Measured& point : solution.measured) measured.push_back(MeasuredJson(point));
  Json front = Json::array();
  for (const FrontPoint& point : FrontOf(solution)) front.push_back(point.index);
  const auto known = [&](double kl) { return solution.has_quality ? Json(kl) : Json(); };
  if (!solution.has_quality) chosen["kl"] = chosen["top1"] = own["kl"] = own["top1"] = nullptr;
  return {{"batch", solution.setting.batch},
          {"ctx", solution.setting.ctx},
          {"budget_bytes", solution.setting.budget_bytes},
          {"kl_limit", known(solution.kl_bound)},
          {"kl", known(solution.kl())},
          {"own_kl", known(solution.own_kl())},
          {"search_kl_limit", known(solution.kl_limit)},
          {"has_quality", solution.has_quality},
          {"is_own", solution.is_own},
          {"is_within_limit", solution.is_within_limit},
          {"held_out_kl", solution.has_held_out ? Json(solution.held_out_kl) : Json()},
          {"own_held_out_kl", solution.has_held_out ? Json(solution.own_held_out_kl) : Json()},
          {"n_refused", solution.n_refused},
          {"bound", solution.bound},
          {"model_ms", solution.predicted.model_ms},
          {"reading_ms", solution.predicted.reading_ms},
          {"storage_ms", solution.predicted.storage_ms},
          {"twice_budget_ms", solution.twice_budget_ms},
          {"chosen", chosen},
          {"own", own},
          {"rejected", rejected},
          {"measured", measured},
          {"front", front}};
}

}  // namespace

std::string TuneText(const TuneResult& result, bool pareto) {
  std::string text;
  for (const TuneSolution& solution : result.solutions) {
    text += SettingText(solution.setting) + WantedText(solution) + "\n";
    text += PointLine("chosen", solution, solution.chosen, solution.kl(), solution.predicted.step_ms,
                      solution.measured_ms);
    text += PointLine("by budget", solution, solution.own, solution.own_kl(), solution.own_predicted.step_ms,
                      solution.own_measured_ms);
    text += PartsText(solution);
    text += "  " + BoundText(solution) + "\n";
    if (!solution.rejected.empty()) text += NeighbourTable(solution);
    if (pareto && solution.has_quality) text += FrontTable(solution);
  }
  if (!result.checks.empty()) text += CheckTable(result);
  return text +
         fmt::format(
             "times are predicted from {} sampled steps, which they fit within {:.1f} % (mean {:.1f})\n",
             result.samples.size(), 100 * result.model_max_error, 100 * result.model_mean_error);
}

Json TuneJson(const TuneResult& result) {
  Json solutions = Json::array();
  for (const TuneSolution& solution : result.solutions) solutions.push_back(SolutionJson(solution));
  Json checks = Json::array();
  for (const CheckedPoint& check : result.checks) {
    Json point = SampleJson(check.sample);
    point["options"] = OptionsJson(check.options);
    point["predicted_ms"] = check.predicted_ms;
    point["slowness"] = check.slowness;
    point["hit_rate"] = check.repeated_share;
    checks.push_back(std::move(point));
  }
  Json samples = Json::array();
  for (const offline::StepSample& sample : result.samples) samples.push_back(SampleJson(sample));
  return {{"solutions", solutions},
          {"unreached", result.unreached},
          {"left_out", result.left_out},
          {"checks", checks},
          {"samples", samples},
          {"model_max_error", result.model_max_error},
          {"model_mean_error", result.model_mean_error}};
}

offline::Plot ParetoPlot(const TuneResult& result) {
  offline::Plot plot;
  plot.title = "Time and quality of the measured points";
  plot.x.label = "decoding step, ms (predicted)";
  plot.y = {"mean KL to full attention, nats", offline::Scale::kLog10};
  for (const TuneSolution& solution : result.solutions) {
    const std::string name = fmt::format("{} x {}", solution.setting.ctx, solution.setting.batch);
    offline::PlotSeries all{name + ", all", {}, false};
    for (const Measured& point : solution.measured)
      all.points.emplace_back(point.predicted_ms, point.quality.kl);
    offline::PlotSeries front{name + ", front", {}, true};
    for (const FrontPoint& point : FrontOf(solution)) front.points.emplace_back(point.step_ms, point.kl);
    plot.series.push_back(std::move(all));
    plot.series.push_back(std::move(front));
    if (!solution.has_quality) continue;
    plot.series.push_back(
        {name + ", chosen", {{solution.predicted.step_ms, solution.chosen.quality.kl}}, false});
  }
  return plot;
}

}  // namespace kvrun::cli
