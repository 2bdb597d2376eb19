// kvadapt calibrate: a model's adapters, computed from texts, into a file for --kv-adapter.
#include <fmt/format.h>
#include <system_error>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "apps/common/failure.h"
#include "apps/common/files.h"
#include "apps/common/ids.h"
#include "apps/common/report.h"
#include "apps/common/shared_options.h"
#include "apps/kvadapt/commands.h"
#include "apps/kvadapt/energy_table.h"
#include "apps/kvadapt/reuse_table.h"

namespace kvrun::cli {
namespace {

constexpr uint32_t kMaxU32 = std::numeric_limits<uint32_t>::max();

struct CalibrateOptions {
  SharedOptions shared;
  std::vector<std::string> files;
  std::string ids;
  uint32_t tokens = 0;  // 0: all
  std::string kind = "query-centred";
  uint32_t rank = 0;
  std::string output;
  bool no_reuse_rates = false;
};

using Ids = std::vector<int32_t>;

void CheckUsage(const CalibrateOptions& options) {
  if (options.files.empty() == options.ids.empty())
    throw UsageError("give texts: -f TEXT, once or more; or --ids FILE");
  if (options.tokens != 0 && options.ids.empty())
    throw UsageError("--tokens is of --ids: texts are taken whole");
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

std::vector<Ids> ReadTexts(const CalibrateOptions& options, const Model& model) {
  if (options.ids.empty()) {
    std::vector<Ids> texts;
    for (const std::string& file : options.files)
      texts.push_back(Tokenize(model, ReadText(file), KVRUN_ENCODE_BOS_IF_ASKED));
    return texts;
  }
  Ids ids = ReadIds(options.ids, kvrun_model_vocab_size(model.get()));
  if (options.tokens > ids.size()) {
    throw Failure(KVRUN_INVALID_ARGUMENT, fmt::format("{} has {} token ids, fewer than --tokens {}",
                                                      options.ids, ids.size(), options.tokens));
  }
  if (options.tokens != 0) ids.resize(options.tokens);
  return {ids};
}

Json Calibrate(const LoadedEngine& loaded, const CalibrateOptions& options, const std::vector<Ids>& texts,
               Progress* progress) {
  std::vector<const int32_t*> pointers;
  std::vector<size_t> counts;
  for (const Ids& text : texts) {
    pointers.push_back(text.data());
    counts.push_back(text.size());
  }
  kvrun_calibrate_options given;
  kvrun_calibrate_options_init(&given);
  given.kind = options.kind.c_str();
  given.rank = options.rank;
  given.n_ctx = options.shared.ctx;
  given.texts = pointers.data();
  given.counts = counts.data();
  given.n_texts = texts.size();
  given.progress = Progress::Callback;
  given.progress_user = progress;
  char* json = nullptr;
  const kvrun_status status = kvrun_calibrate(loaded.engine.get(), &given, options.output.c_str(), &json);
  progress->Clear();
  Check(status);
  return TakeJson(json);
}

int RunCalibrate(const CalibrateOptions& options) {
  CheckUsage(options);
  const Model model = OpenNamedModel(options.shared);
  const std::vector<Ids> texts = ReadTexts(options, model);
  CheckOutput(options.output);
  Progress progress(ProgressModeOf(options.shared));
  const LoadedEngine loaded = LoadEngine(model, options.shared, &progress);
  Json result = Calibrate(loaded, options, texts, &progress);
  if (!options.no_reuse_rates)
    result["reuse"] = MeasureReuseRates(loaded, options.output, texts, options.shared.ctx, &progress);
  if (options.shared.json) {
    result["path"] = options.output;
    WriteStdout(JsonLine(result));
    return 0;
  }
  std::error_code error;
  const uintmax_t bytes = std::filesystem::file_size(options.output, error);
  WriteStdout(EnergyTable(result) + ReuseTable(result) +
              fmt::format("{}: {}, rank {}, {} layers, {}; from {} tokens in {} pieces\n", options.output,
                          TextOf(result["kind"]), result["rank"].get<uint32_t>(), result["layers"].size(),
                          FormatBytes(error ? 0 : bytes), result["n_tokens"].get<uint64_t>(),
                          result["n_pieces"].get<uint64_t>()));
  return 0;
}

}  // namespace

Command AddCalibrateCommand(CLI::App* program) {
  auto options = std::make_shared<CalibrateOptions>();
  auto set = std::make_shared<OptionSet>(
      program, "calibrate", "Compute a model's adapters from texts, for `kvrun run --kv-adapter`");
  AddModelOption(set.get(), &options->shared);
  set->TextList("-f,--file", &options->files, "TEXT",
                "a text like those to come (-: standard input); may be given several times");
  set->Text("--ids", &options->ids, "FILE", "token ids instead, separated by white space");
  set->Exclude("--file", "--ids");
  set->Number("--tokens", &options->tokens, 0, kMaxU32, "the first N of --ids (default 0: all)");
  set->Choice("--kind", &options->kind, {"plain", "centred", "query", "query-centred"},
              "what counts as energy (default query-centred)");
  set->Number("--rank", &options->rank, 0, kMaxU32,
              "columns to write; any number of them can be used later (default 0: all, at most 256)");
  set->Number("--ctx", &options->shared.ctx, 0, kMaxU32,
              "texts are cut into pieces of at most N tokens (default 0: what the model was trained with, at "
              "most 8192 and what 512 MiB of KV hold)");
  set->Text("-o,--output", &options->output, "FILE", "the adapter to write, a GGUF file (required)");
  set->Flag("--no-reuse-rates", &options->no_reuse_rates,
            "do not measure how often what is selected is in memory already (the file then has no table)");
  AddDeviceOptions(set.get(), &options->shared);
  AddReportOptions(set.get(), &options->shared);
  return {set, {options, &options->shared.json}, [options] { return RunCalibrate(*options); }};
}

}  // namespace kvrun::cli
