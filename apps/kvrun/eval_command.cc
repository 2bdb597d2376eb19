// kvrun eval: what a KV method costs in quality, on a text, against all KV in memory. By default the end of
// the text is fed and its logits are compared; with --needles, sentences are hidden in it and asked for; with
// --session, the text and the method are those of a session that is kept.
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <limits>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "apps/common/failure.h"
#include "apps/common/files.h"
#include "apps/common/ids.h"
#include "apps/common/session_plan.h"
#include "apps/common/shared_options.h"
#include "apps/kvrun/commands.h"
#include "apps/kvrun/generation.h"
#include "apps/kvrun/measured_session.h"

namespace kvrun::cli {
namespace {

struct EvalOptions {
  SharedOptions shared;
  std::vector<std::string> files;
  std::string ids;
  std::string configs;
  std::string mode = "end";
  uint32_t steps = 0;
  uint32_t at_once = 1;
  uint32_t needles = 0;        // 0: the text's end is compared
  uint32_t needle_copies = 0;  // 0: as the library says
  uint64_t seed = 0;
};

// What is fed one by one of how long a text, where that is not said. "decode": a long answer after a prompt
// that is short beside it, as DynaKV (section 8) measures it.
struct EvalMode {
  const char* name;
  uint32_t ctx;  // 0: the whole text
  uint32_t steps;
};
constexpr EvalMode kEvalModes[] = {{"end", 0, 400}, {"decode", 6144, 4096}};

EvalMode ModeOf(const EvalOptions& options) {
  EvalMode mode = *std::find_if(std::begin(kEvalModes), std::end(kEvalModes),
                                [&](const EvalMode& known) { return known.name == options.mode; });
  if (options.shared.ctx != 0) mode.ctx = options.shared.ctx;
  if (options.steps != 0) mode.steps = options.steps;
  return mode;
}

std::vector<int32_t> InputIds(const EvalOptions& options, const Model& model) {
  CheckTextNames(options.files);
  if (options.files.empty() && options.ids.empty()) throw UsageError("give a text: -f TEXT, or --ids FILE");
  if (!options.files.empty() && !options.ids.empty())
    throw UsageError("give one of -f TEXT and --ids FILE, not both");
  if (!options.ids.empty()) return ReadIds(options.ids, kvrun_model_vocab_size(model.get()));
  return Tokenize(model, JoinedTexts(ReadTexts(options.files)), KVRUN_ENCODE_BOS_IF_ASKED);
}

// One configuration of the options that were given (and of --config), or those of the lines of a file; lines
// that begin with # are left out.
std::vector<std::string> Configs(const EvalOptions& options, const SessionPlan& plan) {
  if (options.configs.empty()) return {plan.kv.Line()};
  std::vector<std::string> configs;
  std::istringstream lines(ReadText(options.configs, LimitOfSmallFile("a list of options")));
  for (std::string line; std::getline(lines, line);) {
    if (line.find_first_not_of(" \t\r") != std::string::npos && line[0] != '#') configs.push_back(line);
  }
  if (configs.empty()) throw Failure(KVRUN_INVALID_ARGUMENT, options.configs + " has no line of options");
  return configs;
}

std::string Percent(const Json& result, const char* name) {
  const Json value = result.value(name, Json());
  return value.is_null() ? "-" : fmt::format("{:.1f} %", 100 * value.get<double>());
}

// A configuration that could not be run does not end the others, but the program's status tells.
bool Failed(const Json& result) { return result.contains("error"); }

// A config's options are those of the line, so its adapter is explained with them.
void Explain(const SessionPlan& plan, Json* result) {
  if (Failed(*result)) (*result)["error"] = ExplainAdapter(plan, TextOf((*result)["error"]));
}

void PrintError(const Json& result) {
  PrintMessage(fmt::format("{}: {}", result["config"].get<std::string>(), TextOf(result["error"])));
}

std::string Row(const Json& result) {
  return fmt::format("{:9.3f} {:9.4f} {:9.4f} {:>8} {:>8} {:>8} {:>8} {:8.1f}  {}\n",
                     result["ppl"].get<double>(), result["kl_mean"].get<double>(),
                     result["kl_error"].get<double>(), Percent(result, "top1_agreement"),
                     Percent(result, "recall"), Percent(result, "recall_oracle"), Percent(result, "hit_rate"),
                     result["decode_tps"].get<double>(), result["config"].get<std::string>());
}

std::string FullRow(const Json& result) {
  return fmt::format("{:>9} {:>9} {:>9} {:>8} {:>8} {:>8} {:>8} {:>8}  {}\n", "ppl", "KL mean", "+-", "top-1",
                     "recall", "oracle", "hits", "token/s", "configuration") +
         fmt::format("{:9.3f} {:9.4f} {:9.4f} {:>8} {:>8} {:>8} {:>8} {:8.1f}  full\n",
                     result["ppl_full"].get<double>(), 0.0, 0.0, "100.0 %", "100.0 %", "-", "-",
                     result["decode_tps_full"].get<double>());
}

std::string NeedleRow(const Json& result, const char* answered, const char* error, const std::string& name) {
  return fmt::format("{:>9} {:>8} {:>8}  {}\n", Percent(result, answered), Percent(result, error),
                     result["right"].size(), name);
}

std::string NeedleRow(const Json& result) {
  return NeedleRow(result, "answered", "answered_error", result["config"].get<std::string>());
}

std::string NeedleFullRow(const Json& result) {
  return fmt::format("{:>9} {:>8} {:>8}  {}\n", "answered", "+-", "needles", "configuration") +
         NeedleRow(result, "answered_full", "answered_full_error", "full");
}

struct TableForm {
  std::string (*full_row)(const Json& result);  // with the table's head
  std::string (*row)(const Json& result);
};
constexpr TableForm kEvalForm{FullRow, Row};
constexpr TableForm kNeedleForm{NeedleFullRow, NeedleRow};

// Rows of the table as they come: a configuration takes minutes.
class ResultTable {
 public:
  ResultTable(const TableForm& form, const SessionPlan& plan, bool is_quiet, Progress* progress)
      : form_(form), plan_(plan), is_quiet_(is_quiet), progress_(progress) {}

  // A kvrun_eval_result_fn; `user` is a ResultTable. What it throws is kept for Finish.
  static void Callback(void* user, const char* json) {
    auto* table = static_cast<ResultTable*>(user);
    try {
      Json result = ParseJson(json);
      Explain(table->plan_, &result);
      if (!table->failure_) table->Write(result);
    } catch (...) {
      table->failure_ = std::current_exception();
    }
  }

  void Finish() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  void Write(const Json& result) {
    progress_->Clear();
    if (!has_full_ && !Failed(result)) {
      WriteStdout(form_.full_row(result));
      has_full_ = true;
    }
    if (Failed(result)) {
      PrintError(result);
    } else {
      WriteStdout(form_.row(result));
    }
    for (const Json& note : result.value("notes", Json::array())) {
      if (!is_quiet_)
        PrintMessage(fmt::format("note: {}: {}", result["config"].get<std::string>(), TextOf(note)));
    }
  }

  const TableForm& form_;
  const SessionPlan& plan_;
  bool is_quiet_;
  Progress* progress_;
  bool has_full_ = false;
  std::exception_ptr failure_;
};

// What both measurements are given.
struct Work {
  const LoadedEngine& loaded;
  std::vector<int32_t> ids;
  uint32_t n_ctx;
  std::vector<const char*> configs;
  Progress* progress;
  ResultTable* table;  // null: results are not told as they come
};

template <typename Options>
void SetWork(const Work& work, Options* given) {
  given->n_ctx = work.n_ctx;
  given->configs = work.configs.data();
  given->n_configs = work.configs.size();
  given->progress = Progress::Callback;
  given->progress_user = work.progress;
  given->result = work.table == nullptr ? nullptr : ResultTable::Callback;
  given->result_user = work.table;
}

Json CompareEnd(const Work& work, uint32_t n_steps, uint32_t n_at_once) {
  kvrun_eval_options given;
  kvrun_eval_options_init(&given);
  SetWork(work, &given);
  given.n_steps = n_steps;
  given.n_at_once = n_at_once;
  char* json = nullptr;
  Check(kvrun_eval_json(work.loaded.engine.get(), &given, work.ids.data(), work.ids.size(), &json));
  return TakeJson(json);
}

Json AskForNeedles(const Work& work, const EvalOptions& options) {
  kvrun_needle_options given;
  kvrun_needle_options_init(&given);
  SetWork(work, &given);
  given.n_needles = options.needles;
  given.n_copies = options.needle_copies;
  given.seed = options.seed;
  given.n_at_once = options.at_once;
  char* json = nullptr;
  Check(kvrun_needles_json(work.loaded.engine.get(), &given, work.ids.data(), work.ids.size(), &json));
  return TakeJson(json);
}

// On its own text: without --tokens the last 400, of a short one the second half.
int EvalKept(const EvalOptions& options) {
  const Model model = OpenNamedModel(options.shared);
  Progress progress(ProgressModeOf(options.shared));
  const MeasuredSession measured = OpenToMeasure(model, options.shared, 0, &progress);
  const auto n_half = static_cast<uint32_t>(measured.ids.size() / 2);
  kvrun_eval_options given;
  kvrun_eval_options_init(&given);
  given.n_steps = options.steps != 0 ? options.steps : std::min(kEvalModes[0].steps, n_half);
  given.n_at_once = options.at_once;
  given.progress = Progress::Callback;
  given.progress_user = &progress;
  char* json = nullptr;
  Check(kvrun_session_eval_json(measured.session.get(), 0, &given, &json));
  Json result = TakeJson(json);
  result["config"] = "session " + options.shared.session;
  progress.Clear();
  WriteStdout(options.shared.json ? JsonLine(result) : FullRow(result) + Row(result));
  return 0;
}

int Eval(const EvalOptions& options) {
  if (!options.shared.session.empty()) return EvalKept(options);
  if (!options.configs.empty() && !options.shared.config.empty()) {
    throw UsageError("--configs brings its own options: leave out --config");
  }
  const Model model = OpenNamedModel(options.shared);
  std::vector<int32_t> ids = InputIds(options, model);
  const EvalMode mode = ModeOf(options);
  const uint32_t n_ctx = mode.ctx != 0 ? mode.ctx : static_cast<uint32_t>(ids.size());
  SessionPlan plan = TakeConfig(model, options.shared, 1, n_ctx);
  if (!plan.origin.empty()) AskPlan(plan);
  SayContextNotes(model, options.shared, n_ctx);
  const std::vector<std::string> configs = Configs(options, plan);
  std::vector<const char*> lines;
  for (const std::string& config : configs) lines.push_back(config.c_str());
  Progress progress(ProgressModeOf(options.shared));
  const LoadedEngine loaded = LoadEngine(model, options.shared, &progress);
  CheckConfig(loaded, options.shared, &plan);
  ResultTable table(options.needles > 0 ? kNeedleForm : kEvalForm, plan, options.shared.quiet, &progress);
  const Work work{loaded,           std::move(ids), n_ctx,
                  std::move(lines), &progress,      options.shared.json ? nullptr : &table};
  Json results =
      options.needles > 0 ? AskForNeedles(work, options) : CompareEnd(work, mode.steps, options.at_once);
  for (Json& result : results) Explain(plan, &result);
  progress.Clear();
  table.Finish();
  if (options.shared.json) {
    WriteStdout(JsonLine(options.configs.empty() ? results.at(0) : results));
    std::for_each(results.begin(), results.end(), [](const Json& result) {
      if (Failed(result)) PrintError(result);
    });
  }
  return std::any_of(results.begin(), results.end(), Failed) ? kExitFailure : 0;
}

void AddNeedleOptions(OptionSet* set, EvalOptions* options) {
  set->Number("--needles", &options->needles, 1, 100'000,
              "hide N passwords in the text, 20 to a context, and ask for each at its end: the share that is "
              "answered, instead of a comparison of the text's end");
  set->Number("--needle-copies", &options->needle_copies, 1, 1000,
              "with --needles: the text says each password so often (default 3)");
  set->Number("--seed", &options->seed, "with --needles: of passwords and their places (default 0)");
  set->Exclude("--needles", "--tokens");
  set->Exclude("--needles", "--mode");
}

void AddEvaluatedSession(OptionSet* set, SharedOptions* shared) {
  set->Group(HelpGroup::kKv);
  set->NonEmptyText(
      "--session", &shared->session, "NAME|FILE",
      "compare the end of this session's own text, with its KV as it lies; the session stays as it is");
  AddSessionKeyOption(set, &shared->session_key, "the key of --session, where that is encrypted");
  for (const char* of_text : {"--file", "--ids", "--configs", "--mode", "--needles", "--ctx"})
    set->Exclude("--session", of_text);
}

}  // namespace

Command AddEvalCommand(CLI::App* program) {
  auto options = std::make_shared<EvalOptions>();
  auto set = std::make_shared<OptionSet>(program, "eval",
                                         "Measure what a KV method costs in quality, compared with full KV");
  AddModelOption(set.get(), &options->shared);
  set->TextList(
      "-f,--file", &options->files, "TEXT",
      "a file with the text to read (-: standard input); several are read in order, with a blank line "
      "between them");
  set->Text("--ids", &options->ids, "FILE", "the text's token ids instead, separated by white space");
  set->Group(HelpGroup::kWork);
  set->Choice("--mode", &options->mode, {"end", "decode"},
              "end (default): the end of a long text is fed one by one; decode: most of it is, 4096 tokens "
              "after the first 2048, as in a long answer");
  set->Number("--tokens", &options->steps, 1, std::numeric_limits<uint32_t>::max(),
              "the last N of the --ctx tokens are fed one by one and compared (default 400, or 4096 with "
              "--mode decode)");
  set->Number(
      "--at-once", &options->at_once, 1, std::numeric_limits<uint32_t>::max(),
      "feed N tokens at a time as a prompt, like questions about the text, in place of one by one; with "
      "--needles, so are the questions");
  AddNeedleOptions(set.get(), options.get());
  set->Text("--configs", &options->configs, "FILE",
            "a file with a line of --kv-... options for each configuration; one prefill serves all");
  AddEngineOptions(set.get(), &options->shared, "the whole text, or 6144 with --mode decode",
                   KvComparisons::kShown);
  set->Exclude("--configs", "--config");
  AddEvaluatedSession(set.get(), &options->shared);
  set->AddExample("kvrun eval -m model.gguf -f book.txt --ctx 4096 --kv-method kvswap --kv-budget 1/13",
                  "compare kvswap with full attention on a text");
  set->AddExample("kvrun eval -m model.gguf -f book.txt --ctx 4096 --configs options.txt",
                  "compare several settings, one on each line of options.txt");
  AddReportOptions(set.get(), &options->shared);
  return {set, {options, &options->shared.json}, [options] { return Eval(*options); }};
}

}  // namespace kvrun::cli
