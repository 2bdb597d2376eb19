// kvadapt calibrate: a model's adapters, computed from texts, into a file for --kv-adapter.
#include <fmt/format.h>
#include <system_error>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "apps/common/failure.h"
#include "apps/common/files.h"
#include "apps/common/ids.h"
#include "apps/common/outputs.h"
#include "apps/common/plural.h"
#include "apps/common/report.h"
#include "apps/common/shared_options.h"
#include "apps/kvadapt/commands.h"
#include "apps/kvadapt/energy_table.h"
#include "apps/kvadapt/reuse_table.h"
#include "apps/kvadapt/text_sources.h"
#include "apps/kvadapt/unrated_adapter.h"
#include "offline/svg_plot.h"

namespace kvrun::cli {
namespace {

constexpr uint32_t kMaxU32 = std::numeric_limits<uint32_t>::max();

struct CalibrateOptions {
  SharedOptions shared;
  std::vector<std::string> files;
  std::string ids;
  uint32_t tokens = 0;  // 0: kDefaultTokens of texts, all of ids
  std::string kind = "query-centred";
  uint32_t rank = 0;
  std::string output;
  std::string sums;
  std::string plot;
  float minutes = 0.0F;  // 0: kDefaultMinutes, or without a limit where --tokens says how much
  bool restart = false;
  bool force = false;
  bool no_reuse_rates = false;
  bool no_layer_shares = false;
  std::string folder;  // for KV, while they are measured
};

// Sixteen pieces of 8192 tokens, hundreds of keys for each column.
constexpr uint32_t kDefaultTokens = 131072;
constexpr double kDefaultMinutes = 3.0;
constexpr uint32_t kSmallContext = 256;

using Ids = std::vector<int32_t>;

// What the whole command may take, from its beginning.
class Minutes {
 public:
  explicit Minutes(const CalibrateOptions& options)
      : seconds_(options.minutes > 0   ? 60.0 * static_cast<double>(options.minutes)
                 : options.tokens == 0 ? 60.0 * kDefaultMinutes
                                       : 0.0) {}
  // 0: there is no limit. Where the time is up already, what must be is done.
  uint32_t LeftMs() const {
    if (seconds_ == 0.0) return 0;
    const std::chrono::duration<double> spent = Clock::now() - begin_;
    return static_cast<uint32_t>(std::clamp((seconds_ - spent.count()) * 1e3, 1.0, 4e9));
  }

 private:
  using Clock = std::chrono::steady_clock;
  double seconds_;
  Clock::time_point begin_ = Clock::now();
};

void CheckUsage(const CalibrateOptions& options) {
  if (!options.files.empty() && !options.ids.empty())
    throw UsageError("give texts (-f TEXT, once or more) or --ids FILE, not both");
  if (options.output.empty()) throw UsageError("name the file to write: -o ADAPTER.gguf");
}

// Calibrating takes long; this does not. The library asks again.
void CheckOutput(const std::string& path) {
  std::error_code error;
  const auto facts = std::filesystem::status(path, error);
  if (std::filesystem::exists(facts) && !std::filesystem::is_regular_file(facts)) {
    throw Failure(KVRUN_INVALID_ARGUMENT,
                  fmt::format("cannot write {}: it is there and not a file: name another", path));
  }
  const ResultFile beside(path);
}

// Sums of a run that did not come to its end, beside the output.
std::string CheckpointPath(const CalibrateOptions& options) { return options.output + ".partial"; }

void CheckFiles(const CalibrateOptions& options, const Model& model,
                const std::optional<UnratedAdapter>& unrated) {
  OutputFiles files{
      .results = {options.output}, .inputs = InputFiles(model, options.shared), .force = options.force};
  for (const std::string& output : {options.sums, options.plot}) {
    if (!output.empty()) files.results.push_back(output);
  }
  // Without --restart the library refuses what is no checkpoint.
  (options.restart ? files.results : files.working).push_back(CheckpointPath(options));
  if (unrated) files.working.push_back(unrated->path());
  files.inputs.insert(files.inputs.end(), options.files.begin(), options.files.end());
  if (!options.ids.empty()) files.inputs.push_back(options.ids);
  CheckOutput(options.output);
  CheckOutput(CheckpointPath(options));
  if (!options.sums.empty()) CheckOutput(options.sums);
  CheckOutputs(files);
  if (unrated) unrated->Check();
}

std::vector<Ids> ReadNamedIds(const CalibrateOptions& options, const Model& model) {
  Ids ids = ReadIds(options.ids, kvrun_model_vocab_size(model.get()));
  if (options.tokens > ids.size()) {
    throw Failure(KVRUN_INVALID_ARGUMENT, fmt::format("{} has {} token ids, fewer than --tokens {}",
                                                      options.ids, ids.size(), options.tokens));
  }
  if (options.tokens != 0) ids.resize(options.tokens);
  return {ids};
}

std::vector<Ids> ReadTexts(const CalibrateOptions& options, const Model& model) {
  if (!options.ids.empty()) return ReadNamedIds(options, model);
  const uint64_t max_tokens = options.tokens == 0 ? kDefaultTokens : options.tokens;
  const bool is_default = options.files.empty();
  CollectedTexts collected =
      is_default ? CollectDefaultTexts(model, max_tokens) : CollectTexts(model, options.files, max_tokens);
  if (collected.n_files == 0) {
    throw Failure(KVRUN_INVALID_ARGUMENT,
                  is_default ? "no texts are named, and none of Debian's were found on this machine: give -f "
                               "TEXT or -f FOLDER"
                             : "there is no text in what was named: " + DescribeTexts(collected));
  }
  if (!options.shared.quiet &&
      (is_default || collected.has_folders || collected.is_cut || !collected.shortened.empty())) {
    PrintMessage(fmt::format("note: {}{}", is_default ? "no texts are named; of Debian's own: " : "",
                             DescribeTexts(collected)));
  }
  return std::move(collected.texts);
}

// With the adapter, before the sums are of no more use.
bool HasMoreToDo(const CalibrateOptions& options) { return !options.no_reuse_rates || !options.plot.empty(); }

// The adapter's calculation, and the checkpoint that it leaves until more is done.
class CalibrationRun {
 public:
  // `options`, `texts` and `progress` must outlive it.
  CalibrationRun(const LoadedEngine& loaded, const CalibrateOptions& options, const std::vector<Ids>& texts,
                 Progress* progress)
      : loaded_(loaded), options_(options), progress_(progress), checkpoint_(CheckpointPath(options)) {
    for (const Ids& text : texts) {
      pointers_.push_back(text.data());
      counts_.push_back(text.size());
    }
    kvrun_calibrate_options_init(&given_);
    given_.kind = options.kind.c_str();
    given_.rank = options.rank;
    given_.n_ctx = options.shared.ctx;
    given_.texts = pointers_.data();
    given_.counts = counts_.data();
    given_.n_texts = texts.size();
    given_.progress = Progress::Callback;
    given_.progress_user = progress;
    given_.checkpoint = checkpoint_.c_str();
    given_.sums = options.sums.empty() ? nullptr : options.sums.c_str();
    given_.restart = options.restart ? 1 : 0;
    given_.keep_checkpoint = HasMoreToDo(options) ? 1 : 0;
  }
  CalibrationRun(const CalibrationRun&) = delete;
  CalibrationRun& operator=(const CalibrationRun&) = delete;

  // What fits into `left_ms`, by what this device does; before WriteTo.
  void ChooseByTime(uint32_t left_ms) {
    kvrun_reuse_options reuse;
    kvrun_reuse_options_init(&reuse);
    reuse.skip_layers = options_.no_layer_shares ? 1 : 0;
    given_.max_ms = left_ms;
    char* text = nullptr;
    Check(kvrun_calibrate_time_json(loaded_.engine.get(), &given_, options_.no_reuse_rates ? nullptr : &reuse,
                                    &text));
    const Json times = TakeJson(text);
    given_.n_ctx = times["n_ctx"].get<uint32_t>();
    given_.max_ms = times["sums_ms"].get<uint32_t>();
    progress_->SetLater(times["later_s"].get<double>());
    if (options_.shared.quiet) return;
    const auto seconds = times["seconds"].get<double>();
    const auto all_s = times["all_seconds"].get<double>();
    PrintMessage(fmt::format("note: this takes about {}{}", DurationText(seconds),
                             all_s <= seconds
                                 ? ""
                                 : fmt::format("; without a limit it would take about {} (--minutes {:.0f})",
                                               DurationText(all_s), std::ceil(1.1 * all_s / 60))));
  }
  uint32_t n_ctx() const { return given_.n_ctx; }

  Json WriteTo(const std::string& path) const {
    if (!options_.shared.quiet) SayWhatIsGoneOnFrom();
    char* json = nullptr;
    const kvrun_status status = kvrun_calibrate(loaded_.engine.get(), &given_, path.c_str(), &json);
    progress_->Clear();
    if (status != KVRUN_OK) Fail(status);
    Json result = TakeJson(json);
    for (const Json& note : result.value("notes", Json::array())) {
      if (!options_.shared.quiet) PrintMessage("note: " + TextOf(note));
    }
    return result;
  }

  // "the same command goes on from OUTPUT.partial"; empty where nothing is kept.
  std::string WhatGoesOn() const {
    kvrun_calibrate_options again = given_;
    again.restart = 0;
    char* text = nullptr;
    // What is there may be another calibration's, where --restart was given.
    if (kvrun_calibrate_checkpoint_json(loaded_.engine.get(), &again, &text) != KVRUN_OK) return "";
    if (TakeJson(text)["resumed_tokens"].get<uint64_t>() == 0) return "";
    return fmt::format("the same command{} goes on from {}", options_.restart ? " without --restart" : "",
                       checkpoint_);
  }

  std::string WithWhatGoesOn(const std::string& message) const {
    const std::string goes_on = WhatGoesOn();
    return goes_on.empty() ? message : message + "; " + goes_on;
  }

  // All is done.
  void RemoveCheckpoint() const {
    std::error_code error;
    std::filesystem::remove(checkpoint_, error);
  }

 private:
  void SayWhatIsGoneOnFrom() const {
    char* text = nullptr;
    Check(kvrun_calibrate_checkpoint_json(loaded_.engine.get(), &given_, &text));
    const std::string note = TextOf(TakeJson(text)["note"]);
    if (!note.empty()) PrintMessage("note: " + note);
  }

  // As Check, and says what was kept.
  [[noreturn]] void Fail(kvrun_status status) const {
    const bool is_interrupted = status == KVRUN_CANCELLED;
    throw Failure(status, WithWhatGoesOn(is_interrupted ? "interrupted" : kvrun_last_error()),
                  is_interrupted ? kExitInterrupted : kExitFailure);
  }

  const LoadedEngine& loaded_;
  const CalibrateOptions& options_;
  Progress* progress_;
  std::string checkpoint_;
  std::vector<const int32_t*> pointers_;
  std::vector<size_t> counts_;
  kvrun_calibrate_options given_;
};

// For the reuse rates, which are measured last.
void CheckFolder(const Model& model, const std::string& folder) {
  std::vector<kvrun_option> kv = {{"method", "flexgen"}, {"tmpfs", "on"}};
  if (!folder.empty()) kv.push_back({"dir", folder.c_str()});
  kvrun_session_options options;
  kvrun_session_options_init(&options);
  options.n_ctx = kSmallContext;
  options.kv_options = kv.data();
  options.n_kv_options = kv.size();
  KvPlan(model, options);
}

// What fails after the adapter is complete does not take it away.
void FinishComplete(const std::function<void()>& work, const std::string& output,
                    const CalibrationRun& calibration) {
  Explained(work, [&](const Failure& failure) {
    return calibration.WithWhatGoesOn(fmt::format("{}; {} is the new adapter", failure.what(), output));
  });
}

// "91136 of 131072 tokens, 12 of 20 settings of reuse rates"; each a text of its own.
Json LeftOut(const Json& result) {
  Json left_out = Json::array();
  const auto n_tokens = result["n_tokens"].get<uint64_t>();
  const auto n_given = result["n_tokens_given"].get<uint64_t>();
  if (n_tokens < n_given) left_out.push_back(fmt::format("{} of {} tokens", n_given - n_tokens, n_given));
  for (const Json& what : result.value("reuse", Json::object()).value("left_out", Json::array()))
    left_out.push_back(what);
  return left_out;
}

void SayResult(const CalibrateOptions& options, Json result) {
  const Json left_out = LeftOut(result);
  if (!options.shared.quiet) {
    for (const Json& what : left_out)
      PrintMessage(fmt::format("note: there was no time for {}; more --minutes have", TextOf(what)));
  }
  if (options.shared.json) {
    result["path"] = options.output;
    result["left_out"] = left_out;
    WriteStdout(JsonLine(result));
    return;
  }
  std::error_code error;
  const uintmax_t bytes = std::filesystem::file_size(options.output, error);
  WriteStdout(EnergyTable(result) + ReuseTable(result) +
              fmt::format("{}: {}, rank {}, {}, {}; from {} in {}\n", options.output, TextOf(result["kind"]),
                          result["rank"].get<uint32_t>(), Counted(result["layers"].size(), "layer"),
                          FormatBytes(error ? 0 : bytes),
                          Counted(result["n_tokens"].get<uint64_t>(), "token"),
                          Counted(result["n_pieces"].get<uint64_t>(), "piece")));
}

int RunCalibrate(const CalibrateOptions& options) {
  const Minutes minutes(options);
  CheckUsage(options);
  const Model model = OpenNamedModel(options.shared);
  std::optional<UnratedAdapter> unrated;
  if (!options.no_reuse_rates) unrated.emplace(options.output);
  CheckFiles(options, model, unrated);
  if (!options.no_reuse_rates) CheckFolder(model, options.folder);
  const std::vector<Ids> texts = ReadTexts(options, model);
  Progress progress(ProgressModeOf(options.shared));
  const LoadedEngine loaded = LoadEngine(model, options.shared, &progress);
  CalibrationRun calibration(loaded, options, texts, &progress);
  calibration.ChooseByTime(minutes.LeftMs());
  if (minutes.LeftMs() > 1) progress.SetLimit(minutes.LeftMs() / 1e3);
  Json result = calibration.WriteTo(unrated ? unrated->path() : options.output);
  const auto finish = [&] {
    if (!options.plot.empty()) WriteResult(options.plot, offline::SvgText(EnergyPlot(result)));
    if (!unrated) return;
    progress.SetLater(0.0);
    result["reuse"] = MeasureReuseRates(loaded, unrated->path(), texts, calibration.n_ctx(), options.folder,
                                        options.no_layer_shares, minutes.LeftMs(), &progress);
  };
  if (unrated) {
    unrated->Complete(finish, [&] { return calibration.WhatGoesOn(); });
  } else {
    FinishComplete(finish, options.output, calibration);
  }
  calibration.RemoveCheckpoint();
  SayResult(options, std::move(result));
  return 0;
}

}  // namespace

Command AddCalibrateCommand(CLI::App* program) {
  auto options = std::make_shared<CalibrateOptions>();
  auto set = std::make_shared<OptionSet>(
      program, "calibrate", "Compute a model's adapters from texts, for `kvrun run --kv-adapter`");
  AddModelOption(set.get(), &options->shared);
  set->TextList(
      "-f,--file", &options->files, "TEXT",
      "a text like those that you will use, a folder of such texts, or - (standard input); may be given "
      "several times (default: licences and documentation that come with Debian)");
  set->Text("--ids", &options->ids, "FILE", "a file of token ids instead, separated by white space");
  set->Exclude("--file", "--ids");
  set->Group(HelpGroup::kWork);
  set->Number(
      "--tokens", &options->tokens, 0, kMaxU32,
      fmt::format("use at most N tokens in all (default 0: {} of texts, all of --ids)", kDefaultTokens));
  set->Number("--minutes", &options->minutes, 0.0F, 1440.0F,
              fmt::format("how long it may take in all: it leaves out, and says, what there is no time for "
                          "(default 0: {:.0f}; with --tokens no limit)",
                          kDefaultMinutes));
  set->Choice("--kind", &options->kind, {"plain", "centred", "query", "query-centred", "heads", "skewed"},
              "what counts as energy (default query-centred)");
  set->Number(
      "--rank", &options->rank, 0, kMaxU32,
      "how many columns to write; any number of them can be used later (default 0: all, at most 256)");
  set->Number("-c,--ctx", &options->shared.ctx, 0, kMaxU32,
              "cut texts into pieces of at most N tokens (default 0: what the model was trained with, at "
              "most 8192 and what 512 MiB of KV hold)");
  set->Group(HelpGroup::kOutput);
  set->Text("-o,--output", &options->output, "FILE", "the adapter to write, a GGUF file (required)");
  set->Text("--dump-gram", &options->sums, "FILE",
            "also write the sums of k k^T and q q^T, a GGUF file (docs/formats/sums.md)");
  set->Text("--plot", &options->plot, "FILE", "also plot the energy that each rank keeps, as SVG");
  AddForceOption(set.get(), &options->force);
  set->Group(HelpGroup::kWork);
  set->Flag("--restart", &options->restart, "start anew, whatever an earlier run left in OUTPUT.partial");
  set->Text("--kv-dir", &options->folder, "FOLDER",
            "where KV is kept while reuse rates are measured; may be in memory (default: in the user's cache "
            "folder)");
  set->Flag("--no-reuse-rates", &options->no_reuse_rates,
            "do not measure how often a selected group is in memory already (the file then has no table, and "
            "no shares of layers)");
  set->Flag("--no-layer-shares", &options->no_layer_shares,
            "do not measure what it costs to cut each layer alone, which takes some seconds of decoding a "
            "layer: layers then have as many slots each");
  set->AddExample("kvadapt calibrate -m model.gguf -o adapter.gguf",
                  "compute adapters from texts that come with Debian");
  set->AddExample("kvadapt calibrate -m model.gguf -f books/ --tokens 65536 -o adapter.gguf",
                  "compute them from the texts of a folder");
  AddDeviceOptions(set.get(), &options->shared);
  AddReportOptions(set.get(), &options->shared);
  return {set, {options, &options->shared.json}, [options] { return RunCalibrate(*options); }};
}

}  // namespace kvrun::cli
