// kvrun eval: what a KV method costs in quality, on a text, against all KV in memory.
#include <fmt/format.h>

#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "apps/kvrun/commands.h"
#include "apps/common/failure.h"
#include "apps/common/files.h"
#include "apps/kvrun/generation.h"
#include "apps/common/ids.h"
#include "apps/common/shared_options.h"

namespace kvrun::cli {
namespace {

struct EvalOptions {
  SharedOptions shared;
  std::string file;
  std::string ids;
  std::string configs;
  uint32_t steps = 400;
};

std::vector<int32_t> InputIds(const EvalOptions& options, const Model& model) {
  if (options.file.empty() == options.ids.empty()) throw UsageError("give a text: -f TEXT, or --ids FILE");
  if (!options.ids.empty()) return ReadIds(options.ids, kvrun_model_vocab_size(model.get()));
  return Tokenize(model, ReadText(options.file), KVRUN_ENCODE_BOS_IF_ASKED);
}

// One configuration of the options that were given, or those of the lines of a file; lines that begin with #
// are left out.
std::vector<std::string> Configs(const EvalOptions& options) {
  if (options.configs.empty()) return {options.shared.kv.Line()};
  std::vector<std::string> configs;
  std::istringstream lines(ReadText(options.configs));
  for (std::string line; std::getline(lines, line);) {
    if (line.find_first_not_of(" \t\r") != std::string::npos && line[0] != '#') configs.push_back(line);
  }
  if (configs.empty()) throw Failure(KVRUN_INVALID_ARGUMENT, options.configs + " has no line of options");
  return configs;
}

std::string Row(const Json& result) {
  const std::string config = result["config"];
  if (result.contains("error"))
    return fmt::format("{}\n  error: {}\n", config, result["error"].get<std::string>());
  const Json& hit_rate = result["hit_rate"];
  return fmt::format("{:9.3f} {:9.4f} {:7.1f} % {:>8} {:8.1f}  {}\n", result["ppl"].get<double>(),
                     result["kl_mean"].get<double>(), 100 * result["top1_agreement"].get<double>(),
                     hit_rate.is_null() ? "-" : fmt::format("{:.1f} %", 100 * hit_rate.get<double>()),
                     result["decode_tps"].get<double>(), config);
}

int Eval(const EvalOptions& options) {
  const Model model = OpenNamedModel(options.shared);
  const std::vector<int32_t> ids = InputIds(options, model);
  const std::vector<std::string> configs = Configs(options);
  std::vector<const char*> lines;
  for (const std::string& config : configs) lines.push_back(config.c_str());
  Progress progress(ProgressModeOf(options.shared));
  const LoadedEngine loaded = LoadEngine(model, options.shared, &progress);
  kvrun_eval_options given;
  kvrun_eval_options_init(&given);
  given.n_ctx = options.shared.ctx != 0 ? options.shared.ctx : static_cast<uint32_t>(ids.size());
  given.n_steps = options.steps;
  given.configs = lines.data();
  given.n_configs = lines.size();
  given.progress = Progress::Callback;
  given.progress_user = &progress;
  char* json = nullptr;
  Check(kvrun_eval_json(loaded.engine.get(), &given, ids.data(), ids.size(), &json));
  const Json results = TakeJson(json);
  progress.Clear();
  if (options.shared.json) {
    WriteStdout(JsonLine(options.configs.empty() ? results.at(0) : results));
  } else {
    std::string text = "      ppl   KL mean      top-1      hits  token/s  configuration\n";
    for (const Json& result : results) {
      if (&result == &results.front() && result.contains("ppl_full")) {
        text +=
            fmt::format("{:9.3f} {:9.4f} {:7.1f} % {:>8} {:8.1f}  full\n", result["ppl_full"].get<double>(),
                        0.0, 100.0, "-", result["decode_tps_full"].get<double>());
      }
      text += Row(result);
    }
    WriteStdout(text);
  }
  for (const Json& result : results) {
    if (result.contains("error")) return 1;
  }
  return 0;
}

}  // namespace

Command AddEvalCommand(CLI::App* program) {
  auto options = std::make_shared<EvalOptions>();
  auto set =
      std::make_shared<OptionSet>(program, "eval", "What a KV method costs in quality, against full KV");
  AddModelOption(set.get(), &options->shared);
  set->Text("-f,--file", &options->file, "TEXT", "the text to read (-: standard input)");
  set->Text("--ids", &options->ids, "FILE", "its token ids instead, separated by white space");
  set->Number("--tokens", &options->steps, 1, std::numeric_limits<uint32_t>::max(),
              "of the --ctx tokens, the last N are fed one by one and compared (default 400)");
  set->Text("--configs", &options->configs, "FILE",
            "a line of --kv-... options for each configuration: one prefill serves all");
  AddEngineOptions(set.get(), &options->shared, "the whole text");
  AddReportOptions(set.get(), &options->shared);
  return {set, {options, &options->shared.json}, [options] { return Eval(*options); }};
}

}  // namespace kvrun::cli
