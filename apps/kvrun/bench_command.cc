// kvrun bench: prefill and decode rates at given depths of the context, and what the KV cache did meanwhile.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "apps/common/failure.h"
#include "apps/common/files.h"
#include "apps/common/number_list.h"
#include "apps/common/session_plan.h"
#include "apps/common/shared_options.h"
#include "apps/kvrun/bench_session.h"
#include "apps/kvrun/commands.h"
#include "apps/kvrun/shaped_model.h"

namespace kvrun::cli {
namespace {

constexpr uint32_t kMaxTokens = 1U << 27;

struct BenchOptions {
  SharedOptions shared;
  std::string shape;
  uint32_t layers = 0;
  uint32_t prompt = 512;
  uint32_t decode = 32;
  std::vector<uint32_t> depths = {0};
  uint32_t repetitions = 3;
  uint32_t sequences = 1;
  bool random_fill = false;
  float hit_rate = 0.0F;
  bool io_only = false;
};

void CheckOptions(const BenchOptions& options) {
  if (options.shared.model.empty() == options.shape.empty()) {
    throw UsageError(
        "name what to measure: a model (-m FILE), or a shape with random weights (--shape NAME)");
  }
  if (options.shape.empty() && options.layers != 0) throw UsageError("--layers goes with --shape only");
  if (options.prompt == 0 && options.decode == 0) {
    throw UsageError("nothing is to be measured: -p and -n are both 0");
  }
  if (options.io_only && options.decode == 0)
    throw UsageError("--io-only repeats what decoding reads: -n is 0");
}

Model OpenOrMake(const BenchOptions& options) {
  if (options.shape.empty()) return OpenModel(options.shared.model);
  return MakeModel(options.shape, options.layers == 0 ? KVRUN_LAYERS_THAT_FIT : options.layers);
}

uint32_t ContextOf(const BenchOptions& options, uint32_t depth) {
  return std::max({depth + options.decode, options.prompt, 1U});
}

Json Measure(const BenchOptions& options, const LoadedEngine& loaded, const std::string& kv,
             std::span<const uint32_t> depths, Progress* progress) {
  kvrun_bench_options given;
  kvrun_bench_options_init(&given);
  given.kv = kv.c_str();
  given.depths = depths.data();
  given.n_depths = depths.size();
  given.n_prompt = options.prompt;
  given.n_decode = options.decode;
  given.n_sequences = options.sequences;
  given.n_repetitions = options.repetitions;
  given.fill_random = options.random_fill || !options.shape.empty() ? 1 : 0;
  given.hit_rate = options.hit_rate;
  given.io_only = options.io_only ? 1 : 0;
  given.progress = Progress::Callback;
  given.progress_user = progress;
  char* json = nullptr;
  Check(kvrun_bench_json(loaded.engine.get(), &given, &json));
  progress->Clear();
  return TakeJson(json);
}

// A config may have other options for each depth.
Json MeasureByConfig(const BenchOptions& options, const LoadedEngine& loaded, std::vector<SessionPlan>* plans,
                     Progress* progress) {
  for (SessionPlan& plan : *plans) CheckConfig(loaded, options.shared, &plan);
  Json results = Json::array();
  for (size_t i = 0; i < plans->size(); ++i) {
    const std::span<const uint32_t> depth(&options.depths[i], 1);
    const SessionPlan& plan = (*plans)[i];
    Json measured =
        ExplainingAdapter(plan, [&] { return Measure(options, loaded, plan.kv.Line(), depth, progress); });
    for (Json& result : measured) results.push_back(std::move(result));
  }
  return results;
}

// "-" where nothing was measured.
std::string Cell(const Json& object, const char* key, const char* form, double factor = 1.0) {
  const Json value = object.is_object() ? object.value(key, Json()) : Json();
  return value.is_number() ? fmt::format(fmt::runtime(form), value.get<double>() * factor) : "-";
}

// "12.3 (11.9-12.5)": the median, the slowest and the fastest run.
std::string Rate(const Json& result, const char* key) {
  const std::string median = Cell(result, key, "{:.2f}");
  const Json runs = result.value(std::string(key) + "_runs", Json::array());
  if (median == "-" || runs.empty()) return median;
  const auto [slowest, fastest] =
      std::minmax_element(runs.begin(), runs.end(),
                          [](const Json& a, const Json& b) { return a.get<double>() < b.get<double>(); });
  return fmt::format("{} ({:.2f}-{:.2f})", median, slowest->get<double>(), fastest->get<double>());
}

constexpr const char* kRow = "{:>8}{}  {:>26}  {:>26}  {:>7}  {:>7}  {:>9}  {:>9}\n";
constexpr const char* kLayers = "  {:>8}";

bool IsPart(const Json& result) { return result.value("n_layers", 0U) < result.value("n_layers_model", 0U); }

// "4 of 32": of a model of which a part was timed.
std::string LayersCell(const Json& result) {
  return fmt::format(fmt::runtime(kLayers), fmt::format("{} of {}", result.value("n_layers", 0U),
                                                        result.value("n_layers_model", 0U)));
}

// The whole model's rates, below those of the part.
std::string WholeRow(const Json& result) {
  const Json whole = result.value("whole_model", Json());
  if (!whole.is_object()) return "";
  const std::string layers =
      fmt::format(fmt::runtime(kLayers), fmt::format("all {}", whole.value("n_layers", 0U)));
  return fmt::format(fmt::runtime(kRow), "", layers, Rate(whole, "prefill_tps"), Rate(whole, "decode_tps"),
                     "", "", "", "");
}

// Empty without --profile.
std::string OperationTable(const Json& result) {
  Json operations = result.value("operations", Json::array());
  if (operations.empty()) return "";
  std::sort(operations.begin(), operations.end(), [](const Json& a, const Json& b) {
    return a.value("ms_per_token", 0.0) > b.value("ms_per_token", 0.0);
  });
  std::string text = fmt::format("\n{:<40}  {:>9}  {:>12}  depth {}\n", "operation", "per token",
                                 "ms per token", Cell(result, "depth", "{:.0f}"));
  for (const Json& operation : operations) {
    text += fmt::format("{:<40}  {:>9}  {:>12}\n", operation.value("name", ""),
                        Cell(operation, "per_token", "{:.1f}"), Cell(operation, "ms_per_token", "{:.3f}"));
  }
  return text;
}

// By what operations are for, beside what reading and writing what they need takes by itself. Empty without
// --profile.
std::string WorkTable(const Json& result, const char* key, const std::string& of_what) {
  const Json work = result.value(key, Json::array());
  if (work.empty()) return "";
  std::string text = fmt::format("\n{:<20}  {:>10}  {:>10}  {:>10}  {:>8}  {}\n", "kind of work", "ms", "MB",
                                 "bound ms", "times", of_what);
  for (const Json& kind : work) {
    const double bound = kind["bound_ms"].is_number() ? kind.value("bound_ms", 0.0) : 0.0;
    text += fmt::format("{:<20}  {:>10}  {:>10}  {:>10}  {:>8}\n", kind.value("name", ""),
                        Cell(kind, "ms", "{:.3f}"), Cell(kind, "bytes", "{:.2f}", 1e-6),
                        Cell(kind, "bound_ms", "{:.3f}"),
                        bound > 0.0 ? fmt::format("{:.2f}", kind.value("ms", 0.0) / bound) : "-");
  }
  return text;
}

// Decoding reads all weights for each step: how near that is to what memory allows.
std::string WeightsLine(const Json& result) {
  const Json weights = result.value("weights", Json());
  if (!weights.is_object()) return "";
  const double stream = weights.value("stream_mbps", 0.0);
  return fmt::format("weights, depth {}: {} GB/s, {:.0f} % of the {:.1f} GB/s that reading alone reaches\n",
                     Cell(result, "depth", "{:.0f}"), Cell(weights, "mbps", "{:.1f}", 1e-3),
                     100 * weights.value("mbps", 0.0) / std::max(stream, 1.0), stream / 1e3);
}

// What the rows of the whole model are.
std::string PartLine(const Json& result) {
  const uint32_t n_timed = result.value("n_layers", 0U);
  const uint32_t n_all = result.value("n_layers_model", 0U);
  std::string text =
      fmt::format("{} of the model's {} layers {} timed", n_timed, n_all, n_timed == 1 ? "was" : "were");
  if (result.contains("whole_model")) {
    text += fmt::format(": \"all {}\" is what these take, scaled, with the rest as it is", n_all);
  }
  return text + "; all other numbers are of the part\n";
}

std::string Table(const Json& results) {
  const bool is_part = std::any_of(results.begin(), results.end(), IsPart);
  std::string text =
      fmt::format(fmt::runtime(kRow), "depth", is_part ? fmt::format(fmt::runtime(kLayers), "layers") : "",
                  "prefill token/s", "decode token/s", "hits", "hidden", "stall ms", "read MB/s");
  for (const Json& result : results) {
    text += fmt::format(
        fmt::runtime(kRow), Cell(result, "depth", "{:.0f}"), is_part ? LayersCell(result) : "",
        Rate(result, "prefill_tps"), Rate(result, "decode_tps"), Cell(result, "hit_rate", "{:.1f} %", 100.0),
        Cell(result, "io_hidden", "{:.1f} %", 100.0), Cell(result, "stall_ms_per_token", "{:.2f}"),
        Cell(result.value("kv", Json()), "read_mbps", "{:.1f}"));
    text += WholeRow(result);
  }
  if (is_part) text += PartLine(results.front());
  for (const Json& result : results) {
    const Json io = result.value("io", Json());
    if (!io.is_object()) continue;
    const double reads = io.value("reads", 0.0);
    const double fetches = io.value("fetches", 0.0);
    text += fmt::format("reads alone, depth {}: {} MB/s, {:.0f} reads of {:.1f} KiB, in batches of {:.1f}\n",
                        Cell(result, "depth", "{:.0f}"), Cell(io, "mbps", "{:.1f}"), reads,
                        io.value("bytes", 0.0) / 1024 / std::max(reads, 1.0), reads / std::max(fetches, 1.0));
  }
  for (const Json& result : results) text += WeightsLine(result);
  for (const Json& result : results) {
    text += OperationTable(result);
    text += WorkTable(result, "step_work", "of a step, depth " + Cell(result, "depth", "{:.0f}"));
    text += WorkTable(result, "prompt_work", "of a prompt");
  }
  return text;
}

// The same at all depths. Notes of the plan were said with it.
void SayPartNote(const BenchOptions& options, const Json& results) {
  if (options.shared.quiet || results.empty()) return;
  if (options.layers == 0 && IsPart(results.front())) {
    PrintMessage(fmt::format(
        "note: {} layers of random weights fit into the memory that is free, and not all {} (--layers)",
        results.front().value("n_layers", 0U), results.front().value("n_layers_model", 0U)));
  }
  const Json note = results.front().value("part_note", Json());
  if (note.is_string()) PrintMessage("note: " + TextOf(note));
}

// An instruction set is the CPU's.
void ChooseCpuForIsa(SharedOptions* shared) {
  if (shared->isa.empty()) return;
  if (shared->device == "auto") shared->device = "host";
  if (shared->device != "host" && shared->device != "cpu")
    throw UsageError(
        fmt::format("--isa is for the CPU itself, and --device names {}: give --device cpu", shared->device));
}

int BenchKept(const BenchOptions& options) {
  if (options.decode == 0) throw UsageError("--session is there to decode at its end: -n is 0");
  const Model model = OpenNamedModel(options.shared);
  Progress progress(ProgressModeOf(options.shared));
  const Json results =
      Json::array({BenchSession(model, options.shared, options.decode, options.repetitions, &progress)});
  WriteStdout(options.shared.json ? JsonLine(results) : Table(results));
  return 0;
}

int Bench(const BenchOptions& options) {
  CheckOptions(options);
  if (!options.shared.session.empty()) return BenchKept(options);
  const Model model = OpenOrMake(options);
  std::vector<SessionPlan> plans;
  for (const uint32_t depth : options.depths) {
    plans.push_back(PlanSession(model, options.shared, options.sequences, ContextOf(options, depth)));
    const Json& kv_plan = plans.back().kv_plan;
    if (!options.shared.quiet && !kv_plan.is_null())
      PrintMessage("KV cache: " + TextOf(kv_plan.value("line", Json())));
  }
  Progress progress(ProgressModeOf(options.shared));
  if (!options.shape.empty()) progress.SetLabel("random weights");
  const LoadedEngine loaded = LoadEngine(model, options.shared, &progress);
  const Json results = options.shared.config.empty()
                           ? Measure(options, loaded, options.shared.kv.Line(), options.depths, &progress)
                           : MeasureByConfig(options, loaded, &plans, &progress);
  WriteStdout(options.shared.json ? JsonLine(results) : Table(results));
  SayPartNote(options, results);
  return 0;
}

void AddWorkOptions(OptionSet* set, BenchOptions* options) {
  set->Number("-p,--n-prompt", &options->prompt, 0, kMaxTokens,
              "tokens to prefill from an empty context; 0: none (default 512)");
  set->Number("-n,--n-decode", &options->decode, 0, kMaxTokens,
              "tokens to decode at each depth; 0: none (default 32)");
  set->Checked("-d,--depth", "N,...", "tokens in the context before those that are decoded (default 0)",
               [options](const std::string& source, const std::string& text) {
                 options->depths = ParseNumberList(source, text, 0, kMaxTokens, "0,4096,32768");
               });
  set->Number("-r,--repetitions", &options->repetitions, 1, 1000,
              "how often each measurement runs; the median counts (default 3)");
  set->Number("--sequences,--batch-size", &options->sequences, 1, KVRUN_MAX_SEQUENCES,
              "sequences to decode together (default 1)");
  set->Flag("--random-fill", &options->random_fill,
            "fill the context with random KV instead of a prefill; always so with --shape");
  set->Number("--hit-rate", &options->hit_rate, 0.0F, 1.0F,
              fmt::format("with random KV: the share of a token's groups that the token before read too "
                          "(default {:.2f}, that of text)",
                          options->hit_rate));
  set->Flag("--io-only", &options->io_only, "also repeat the last run's reads without computing");
}

void AddBenchedSession(OptionSet* set, SharedOptions* shared) {
  set->Group(HelpGroup::kKv);
  set->NonEmptyText("--session", &shared->session, "NAME|FILE",
                    "decode at the end of this session, with its KV as it lies; the session stays as it is");
  AddSessionKeyOption(set, &shared->session_key, "the key of --session, where that is encrypted");
  for (const char* of_made :
       {"--shape", "--depth", "--n-prompt", "--sequences", "--random-fill", "--hit-rate", "--io-only"})
    set->Exclude("--session", of_made);
}

}  // namespace

Command AddBenchCommand(CLI::App* program) {
  auto options = std::make_shared<BenchOptions>();
  kvrun_bench_options defaults;
  kvrun_bench_options_init(&defaults);
  options->hit_rate = defaults.hit_rate;
  auto set = std::make_shared<OptionSet>(program, "bench", "Measure how fast prefill and decoding are");
  set->Text("-m,--model", &options->shared.model, "FILE", "the model, a GGUF file");
  set->Choice("--shape", &options->shape, ShapeNames(),
              "instead of a model: random weights in the shape of this one");
  set->Exclude("--model", "--shape");
  set->AddExample("kvrun bench -m model.gguf -d 0,4096",
                  "measure a model with an empty and with a filled context");
  set->AddExample("kvrun bench --shape Llama-3.1-8B -d 32768 --kv-method kvswap --kv-budget 1/13",
                  "measure a model of random weights with the KV cache on flash");
  set->Number(
      "--layers", &options->layers, 1, 1024,
      "with --shape: how many layers to time (default: all, or as many as the free memory has room for)");
  set->Group(HelpGroup::kWork);
  AddWorkOptions(set.get(), options.get());
  AddDeviceOptions(set.get(), &options->shared);
  set->Choice(
      "--isa", &options->shared.isa,
      {"amx", "avx512", "avx2-vnni", "avx2", "sse4", "neon-i8mm", "neon-dot", "neon"},
      "compute on the CPU itself with this instruction set, though it may have a better one (default: the "
      "best)");
  set->Flag("--profile", &options->shared.profile,
            "time each operation on the device, and each kind of work beside what memory allows");
  set->Flag("--validation", &options->shared.validation, "enable the Vulkan validation layer");
  AddSessionOptions(set.get(), &options->shared, KvComparisons::kShown);
  AddBenchedSession(set.get(), &options->shared);
  AddReportOptions(set.get(), &options->shared);
  return {set, {options, &options->shared.json}, [options] {
            ChooseCpuForIsa(&options->shared);
            return Bench(*options);
          }};
}

}  // namespace kvrun::cli
