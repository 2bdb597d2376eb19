// In place of offline/'s tuning, for the program over the toy library: says what it was asked for in the
// model's name of the config, and finds one solution; with a slow model in minutes, if nothing ends it.
#include <fmt/format.h>

#include <chrono>
#include <thread>

#include "offline/tune.h"
#include "tests/support/fake_kvrun.h"

namespace kvrun::offline {
namespace {

std::string Asked(const TuneOptions& options) {
  std::string text = fmt::format("budget {} kl {} minutes {} checks {} adapter {} folder {} ids {} ctx",
                                 options.budget, options.kl_limit, options.minutes, options.n_checks,
                                 options.adapter_path, options.folder, options.ids.size());
  for (const uint32_t n_ctx : options.contexts) text += fmt::format(" {}", n_ctx);
  text += " batch";
  for (const uint32_t batch : options.batches) text += fmt::format(" {}", batch);
  return text;
}

Measured Point(double kl, double ms, const std::string& group) {
  Measured measured;
  measured.sized.options = {{"group", group}};
  measured.quality = {.kl = kl, .top1 = 0.9, .hit_rate = 0.8, .reads_per_load = 1.0, .step_ms = ms};
  measured.predicted_ms = ms;
  return measured;
}

}  // namespace

std::string TypeName(KvType type) { return type == KvType::kFp8 ? "fp8" : "another"; }

std::string OptionLine(const NamedKvOptions& options) {
  std::string line;
  for (const auto& [name, value] : options) line += fmt::format("--kv-{} {}", name, value);
  return line;
}

Status CheckBudget(const std::string& budget) {
  if (budget != "3 fortnights") return Status::Ok();
  return {StatusCode::kInvalidArgument, "the toy knows no fortnights"};
}

Status CheckTune(const kvrun_model*, const TuneOptions& options) {
  if (options.budget != "nothing") return Status::Ok();
  return {StatusCode::kOutOfMemory, "the toy's budget does not suffice"};
}

Status CheckTuneText(const TuneOptions&) { return Status::Ok(); }

Result<TuneResult> Tune(kvrun_engine* engine, const TuneOptions& options, const OfflineProgress& progress) {
  const int n_turns = engine->model->Is("slow") ? 20000 : 1;
  for (int i = 0; i < n_turns; ++i) {
    if (n_turns > 1) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (progress("searching", 1, 2)) return Status(StatusCode::kCancelled, "cancelled");
  }
  const bool is_short = options.budget == "1/18";  // of time: nothing is measured on texts
  if (is_short && options.say) options.say("2 seconds are too few");
  progress("searching", 2, 2);
  TuneResult result;
  if (is_short) result.left_out = {"the quality at 8192 tokens"};
  result.config.model = Asked(options);
  result.config.solutions.emplace_back();
  if (!options.adapter_path.empty()) {
    result.config.solutions.front().options = {{"group", "4"}, {"adapter", options.adapter_path}};
  }
  TuneSolution solution;
  solution.setting.batch = options.batches.front();
  solution.setting.ctx = options.contexts.front();
  solution.chosen = Point(0.01, 5.0, "4");
  solution.own = Point(0.02, 6.0, "8");
  solution.is_own = options.budget == "1/14";
  solution.is_within_limit = options.budget != "1/15";
  solution.n_refused = 3;
  result.has_failed = options.budget == "1/17";
  if (options.budget == "1/15" || result.has_failed)
    result.unreached = {"not within the toy's limit at 4096 tokens"};
  solution.has_held_out = options.budget != "1/16";
  solution.held_out_kl = 0.012;
  solution.own_held_out_kl = 0.024;
  solution.kl_limit = 0.015;
  solution.kl_bound = options.kl_limit > 0.0 ? options.kl_limit : 0.0209;
  solution.is_bound_given = options.kl_limit > 0.0;
  solution.has_time_left = options.budget != "1/19";
  if (is_short || !solution.has_time_left) solution.has_held_out = false;
  solution.has_quality = !is_short;
  solution.predicted.step_ms = 5.0;
  solution.own_predicted.step_ms = 6.0;
  solution.measured_ms = 5.5;
  solution.own_measured_ms = 6.5;
  solution.bound = "compute";
  solution.rejected = {{"group 8", "slower", 6.0, 0.02, true}, {"type f16", "does not fit", 0.0, 0.0, false}};
  solution.measured = {solution.own, solution.chosen};
  result.solutions.push_back(solution);
  if (options.n_checks > 0) {
    CheckedPoint check;
    check.repeated_share = 1.0;
    check.predicted_ms = 11.0;
    check.sample.point.ctx = 256;
    check.sample.step_ms = 10.0;
    result.checks.push_back(check);
  }
  return result;
}

std::string ConfigText(const TuneResult& result) {
  const NamedKvOptions& named = result.config.solutions.front().options;
  return result.config.model + " from " + (named.empty() ? "" : named.back().second) + "\n";
}

std::vector<FrontPoint> FrontOf(const TuneSolution&) { return {{.step_ms = 5.0, .kl = 0.01, .index = 1}}; }

}  // namespace kvrun::offline
