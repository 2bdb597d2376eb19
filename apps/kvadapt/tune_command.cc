// kvadapt tune: a config for `kvrun --config`, from a model, this machine and a budget.
#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/common/failure.h"
#include "apps/common/files.h"
#include "apps/common/number_list.h"
#include "apps/common/outputs.h"
#include "apps/common/shared_options.h"
#include "apps/kvadapt/commands.h"
#include "apps/kvadapt/offline_calls.h"
#include "apps/kvadapt/text_sources.h"
#include "apps/kvadapt/tune_report.h"
#include "offline/adapter_name.h"

namespace kvrun::cli {
namespace {

// Texts that quality is measured on: so many pieces of the longest context.
constexpr uint32_t kPieces = 4;
// Mean error of a time model from which on its predictions say little.
constexpr double kMuchError = 0.25;

struct TuneCommand {
  SharedOptions shared;
  std::string output;
  std::string budget;
  std::vector<uint32_t> contexts = {8192};
  std::vector<uint32_t> batches = {1};
  float kl_limit = 0.0F;
  float minutes = 7.0F;
  std::vector<std::string> files;
  std::string adapter;
  std::string profile;
  std::string folder;
  bool tmpfs = false;
  bool force = false;
  bool pareto = false;
  std::string plot;
  uint32_t checks = 0;
};

void CheckUsage(const TuneCommand& command) {
  if (command.budget.empty()) throw UsageError("no budget is given: --budget BYTES, or a share such as 1/13");
  if (command.output.empty()) throw UsageError("name the file to write: -o kvrun.toml");
  if (const Status status = offline::CheckBudget(command.budget); !status.ok()) {
    throw UsageError("--budget: " + status.message());
  }
}

std::vector<int32_t> ReadIds(const TuneCommand& command, const Model& model) {
  uint64_t longest = 0;
  for (const uint32_t ctx : command.contexts) longest = std::max<uint64_t>(longest, ctx);
  const uint64_t most = longest * kPieces;
  CollectedTexts texts =
      command.files.empty() ? CollectDefaultTexts(model, most) : CollectTexts(model, command.files, most);
  std::vector<int32_t> ids;
  for (const std::vector<int32_t>& text : texts.texts) ids.insert(ids.end(), text.begin(), text.end());
  texts.is_cut = false;  // no more is needed, and no option would take more
  if (!command.shared.quiet) PrintMessage("quality is measured on " + DescribeTexts(texts));
  return ids;
}

offline::TuneOptions OptionsOf(const TuneCommand& command) {
  offline::TuneOptions options;
  options.budget = command.budget;
  options.contexts = command.contexts;
  options.batches = command.batches;
  options.kl_limit = static_cast<double>(command.kl_limit);
  options.minutes = static_cast<double>(command.minutes);
  options.adapter_path = command.adapter;
  options.folder = command.folder;
  options.allow_tmpfs = command.tmpfs;
  options.exact_activations = command.shared.exact_activations;
  options.n_pieces = kPieces;
  options.n_checks = command.checks;
  return options;
}

// A profile of another machine or disk would predict other times.
std::optional<offline::StorageProfile> StorageOf(const TuneCommand& command) {
  if (command.profile.empty()) return std::nullopt;
  const offline::DeviceProfile profile = Value(offline::ReadProfile(command.profile));
  const offline::MachineIdentity here = Value(offline::IdentifyMachine(nullptr, command.folder));
  if (profile.machine.storage != here.storage || profile.machine.cpu != here.cpu) {
    throw Failure(
        KVRUN_UNSUPPORTED,
        fmt::format("{} was measured on {} with {}, and this is {} with {}: run kvadapt probe here, or "
                    "leave --device-profile out",
                    command.profile, profile.machine.cpu, profile.machine.storage, here.cpu, here.storage));
  }
  if (profile.storage.rates.empty()) {
    throw Failure(
        KVRUN_INVALID_ARGUMENT,
        fmt::format("{} says nothing of storage: run kvadapt probe without --device-only", command.profile));
  }
  return profile.storage;
}

// The front's: beside the config, where no place is named.
std::string PlotPath(const TuneCommand& command) {
  if (!command.plot.empty() || !command.pareto) return command.plot;
  return std::filesystem::path(command.output).replace_extension(".svg").string();
}

std::vector<std::string> Outputs(const TuneCommand& command) {
  const std::string plot = PlotPath(command);
  if (plot.empty()) return {command.output};
  return {command.output, plot};
}

std::vector<std::string> Inputs(const TuneCommand& command, const Model& model) {
  std::vector<std::string> inputs = InputFiles(model, command.shared);
  inputs.insert(inputs.end(), command.files.begin(), command.files.end());
  for (const std::string& input : {command.adapter, command.profile}) {
    if (!input.empty()) inputs.push_back(input);
  }
  return inputs;
}

std::string DoubtOf(const offline::TuneSolution& solution) {
  const std::string refused =
      solution.n_refused == 0 ? "" : fmt::format(" ({} not on other parts of the text)", solution.n_refused);
  if (!solution.is_within_limit) {
    return fmt::format(
        "nothing that was tried keeps --max-kl where all parts of the texts count, and what was taken is the "
        "nearest to it{}: give it more --minutes, or a larger budget",
        refused);
  }
  if (!solution.is_own || !solution.has_quality) return "";
  return fmt::format(
      "none of {} points tried is both faster than what kvrun chooses from the budget alone and as "
      "good{}: the config names just that; more --minutes try more",
      solution.measured.size(), refused);
}

// Where what was found is less than what was asked for.
void PrintDoubts(const offline::TuneResult& result) {
  for (const offline::TuneSolution& solution : result.solutions) {
    if (const std::string doubt = DoubtOf(solution); !doubt.empty()) {
      PrintMessage(
          fmt::format("note: at {} tokens x {} {}", solution.setting.ctx, solution.setting.batch, doubt));
    }
  }
  for (const std::string& left_out : result.left_out) {
    PrintMessage(fmt::format("note: there was no time for {}; more --minutes have", left_out));
  }
  if (result.model_mean_error <= kMuchError) return;
  PrintMessage(fmt::format(
      "note: the machine was busy while steps were sampled: predicted times are off by {:.0f} % on "
      "average; tune again when it is quiet",
      100 * result.model_mean_error));
}

// A full disk does not lose what took minutes to find.
void WriteConfig(const TuneCommand& command, const std::string& config) {
  try {
    WriteResult(command.output, config);
  } catch (const Failure& failure) {
    if (!command.shared.json) WriteStdout(config);
    const std::string where =
        command.shared.json ? "what was found: " + config : "what was found is on standard output";
    throw Failure(failure.status(), fmt::format("{}; {}", failure.what(), where), failure.exit_code());
  }
}

int RunTune(const TuneCommand& command) {
  const auto begin = std::chrono::steady_clock::now();
  CheckUsage(command);
  const Model model = OpenNamedModel(command.shared);
  CheckOutputs({.results = Outputs(command), .inputs = Inputs(command, model), .force = command.force});
  const std::string adapter_name =
      command.adapter.empty() ? "" : Value(offline::AdapterName(command.adapter, command.output));
  const std::optional<offline::StorageProfile> storage = StorageOf(command);
  offline::TuneOptions options = OptionsOf(command);
  if (storage) options.storage = &*storage;
  Check(offline::CheckTune(model.get(), options));
  options.ids = ReadIds(command, model);
  Check(offline::CheckTuneText(options));
  Progress progress(ProgressModeOf(command.shared));
  const LoadedEngine loaded = LoadEngine(model, command.shared, &progress);
  // Below the progress, which goes on after it.
  options.say = [&](const std::string& text) {
    progress.Clear();
    if (!command.shared.quiet) PrintMessage("note: " + text);
  };
  const auto show_seconds = [&](const std::string& what, uint64_t done, uint64_t total) {
    return progress.Note(what + ", seconds", done, total);
  };
  options.spent_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  offline::TuneResult result = Value(offline::Tune(loaded.engine.get(), options, show_seconds));
  progress.Clear();
  for (ConfigSolution& solution : result.config.solutions) {
    for (auto& [name, value] : solution.options) {
      if (name == "adapter") value = adapter_name;
    }
  }
  WriteConfig(command, offline::ConfigText(result));
  // What was asked for lacks: also with -q.
  for (const std::string& unreached : result.unreached) PrintMessage(unreached);
  const int exit_code = result.has_failed ? kExitFailure : 0;
  const std::string plot = PlotPath(command);
  if (!command.shared.quiet) PrintDoubts(result);
  if (command.shared.json) {
    Json json = TuneJson(result);
    json["path"] = command.output;
    if (!plot.empty()) json["plot"] = plot;
    WriteStdout(JsonLine(json));  // first: it is not lost where the plot cannot be written
    if (!plot.empty()) WriteResult(plot, offline::SvgText(ParetoPlot(result)));
    return exit_code;
  }
  WriteStdout(TuneText(result, command.pareto) + fmt::format("{}: for kvrun --config, {} solution{}\n",
                                                             command.output, result.solutions.size(),
                                                             result.solutions.size() == 1 ? "" : "s"));
  if (plot.empty()) return exit_code;
  WriteResult(plot, offline::SvgText(ParetoPlot(result)));
  WriteStdout(plot + ": time and KL of the measured points, and their front\n");
  return exit_code;
}

void AddWorkOptions(OptionSet* set, TuneCommand* command) {
  set->Text(
      "--budget", &command->budget, "BYTES|A/B|P%",
      "memory for all that grows with the context, for the largest batch at the largest context: 14155776, "
      "13.5M, or a share of its f16 KV, such as 1/13 or 8% (required)");
  set->Checked("-c,--ctx", "N,...", "tokens of context per sequence; each gets a solution (default 8192)",
               [command](const std::string& source, const std::string& text) {
                 command->contexts = ParseContexts(source, text);
               });
  set->Checked("--batch", "N,...",
               "sequences that are decoded together; each number gets a solution (default 1)",
               [command](const std::string& source, const std::string& text) {
                 command->batches = ParseNumberList(source, text, 1, KVRUN_MAX_SEQUENCES, "1,2,4");
               });
  set->Number(
      "--max-kl", &command->kl_limit, 0.0F, 100.0F,
      "the greatest mean KL to full attention to accept, in nats (default 0: below that of the options that "
      "kvrun chooses from the budget alone, or below 0.0001)");
  set->Renamed("--quality-floor", "--max-kl");
  set->Group(HelpGroup::kInput);
  set->TextList("-f,--file", &command->files, "TEXT",
                "texts to measure quality on: files, folders, - (default: texts that come with Debian)");
  set->Text(
      "--kv-adapter", &command->adapter, "FILE",
      "adapters of kvadapt calibrate: the config names them if they do better than a prompt's own, and the "
      "search uses their hit rates (default: adapters are computed from each prompt)");
  set->Text("--device-profile", &command->profile, "FILE",
            "what kvadapt probe found out about the storage (default: it is measured now, in an instant)");
  set->Group(HelpGroup::kWork);
  set->Text("--kv-dir", &command->folder, "FOLDER",
            "a folder on flash (default: in the user's cache folder)");
  set->Flag("--kv-tmpfs", &command->tmpfs, "allow --kv-dir to be in memory, for tests");
  set->Number(
      "--minutes", &command->minutes, 0.01F, 1440.0F,
      "how long tuning may take in all: it leaves out, and says, what there is no time for (default 7)");
  set->Number("--check", &command->checks, 0, 1000,
              "at the end, measure N random points and compare them with their predictions (default 0)");
}

}  // namespace

Command AddTuneCommand(CLI::App* program) {
  auto command = std::make_shared<TuneCommand>();
  auto set = std::make_shared<OptionSet>(
      program, "tune", "Find the best KV options for a budget on this machine, for `kvrun run --config`");
  AddModelOption(set.get(), &command->shared);
  set->Group(HelpGroup::kWork);
  AddWorkOptions(set.get(), command.get());
  set->AddExample("kvadapt tune -m model.gguf --budget 1/13 --ctx 8192 -o kvrun.toml",
                  "find the fastest KV options for a budget; `kvrun run --config kvrun.toml` takes them");
  set->AddExample(
      "kvadapt tune -m model.gguf --budget 64MiB --ctx 4096,16384 --batch 1,4 --minutes 20 -o kvrun.toml",
      "find a solution for each context and batch, with more time to search");
  set->Group(HelpGroup::kOutput);
  set->Text("-o,--output", &command->output, "FILE", "the config to write (required)");
  set->Flag("--pareto", &command->pareto,
            "also show each solution's front of time and quality, and plot it beside the config");
  set->Text("--plot", &command->plot, "FILE",
            "plot the measured points and their front, as SVG (default with --pareto: the config's name with "
            ".svg)");
  AddForceOption(set.get(), &command->force);
  AddDeviceOptions(set.get(), &command->shared);
  AddReportOptions(set.get(), &command->shared);
  return {set, {command, &command->shared.json}, [command] { return RunTune(*command); }};
}

}  // namespace kvrun::cli
