#include "runtime/engine/measure/benchmark.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "platform/io/available_memory.h"
#include "runtime/capi/border.h"
#include "runtime/capi/handles.h"
#include "runtime/capi/kv_info.h"
#include "runtime/capi/session_options.h"
#include "runtime/capi/session_stats.h"
#include "runtime/model/synthetic_model.h"

using kvrun::Status;
using kvrun::StatusCode;
using kvrun::capi::CheckNotNull;
using kvrun::capi::Guard;
using kvrun::capi::Json;

namespace {

// What eval measured on SmolLM2-135M, at 8192 tokens.
constexpr float kUsualHitRate = 0.78F;

Json Median(std::vector<double> values) {
  if (values.empty()) return Json();
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

Json ReadsInfo(const kvrun::RepeatedReads& reads) {
  const auto bytes = static_cast<double>(reads.read_bytes);
  return {{"reads", reads.reads},
          {"bytes", reads.read_bytes},
          {"fetches", reads.fetches},
          {"mbps", reads.milliseconds > 0.0 ? Json(bytes / 1e3 / reads.milliseconds) : Json()}};
}

Json OperationsInfo(const std::vector<kvrun::OperationTime>& times, uint64_t of_tokens) {
  Json operations = Json::array();
  for (const kvrun::OperationTime& time : times) {
    const auto n_tokens = static_cast<double>(std::max<uint64_t>(of_tokens, 1));
    operations.push_back({{"name", time.name},
                          {"per_token", static_cast<double>(time.count) / n_tokens},
                          {"ms_per_token", time.milliseconds / n_tokens}});
  }
  return operations;
}

// Of a decode step or of a prompt. bound_ms: what reading `bytes` takes at the rate of the device.
Json WorkInfo(const std::vector<kvrun::WorkTime>& work, double stream_per_s) {
  Json kinds = Json::array();
  for (const kvrun::WorkTime& time : work) {
    const bool has_bound = time.bytes > 0 && stream_per_s > 0.0;
    kinds.push_back(
        {{"name", kvrun::WorkKindName(time.kind)},
         {"ms", time.milliseconds},
         {"bytes", time.bytes > 0 ? Json(time.bytes) : Json()},
         {"bound_ms", has_bound ? Json(1e3 * static_cast<double>(time.bytes) / stream_per_s) : Json()}});
  }
  return kinds;
}

Json WholeModelInfo(const kvrun::WholeModelRates& whole) {
  return {{"n_layers", whole.n_layers},
          {"prefill_tps", Median(whole.prefill_tps)},
          {"decode_tps", Median(whole.decode_tps)},
          {"prefill_tps_runs", whole.prefill_tps},
          {"decode_tps_runs", whole.decode_tps}};
}

// n_layers_model: of the model that these are rates of a part of, or of all.
Json ResultInfo(const kvrun::BenchmarkResult& result, uint32_t n_prompt, uint32_t n_layers_model) {
  Json kv;
  if (result.report) kv = kvrun::capi::KvReportInfo(*result.report, result.decode_tokens, false);
  const auto of_kv = [&kv](const char* key) { return kv.is_object() ? kv.value(key, Json()) : Json(); };
  Json info = {{"depth", result.depth},
               {"n_layers", result.n_layers},
               {"n_layers_model", n_layers_model},
               {"prefill_tps", Median(result.prefill_tps)},
               {"decode_tps", Median(result.decode_tps)},
               {"prefill_tps_runs", result.prefill_tps},
               {"decode_tps_runs", result.decode_tps},
               {"hit_rate", of_kv("hit_rate")},
               {"io_hidden", of_kv("io_hidden")},
               {"stall_ms_per_token", of_kv("stall_ms_per_token")},
               {"kv", kv},
               {"memory", kvrun::capi::MemoryInfo(result.memory)},
               {"operations", OperationsInfo(result.operations, result.decode_tokens)},
               {"prompt_operations", OperationsInfo(result.prompt_operations, n_prompt)},
               {"step_work", WorkInfo(result.step_work, result.stream_per_s)},
               {"prompt_work", WorkInfo(result.prompt_work, result.stream_per_s)},
               {"notes", result.notes}};
  if (!result.part_note.empty()) info["part_note"] = result.part_note;
  if (result.whole) info["whole_model"] = WholeModelInfo(*result.whole);
  if (result.io) info["io"] = ReadsInfo(*result.io);
  if (result.weights) {
    info["weights"] = {{"step_bytes", result.weights->step_bytes},
                       {"mbps", result.weights->bytes_per_s / 1e6},
                       {"stream_mbps", result.weights->stream_per_s / 1e6}};
  }
  return info;
}

kvrun::Result<kvrun::BenchmarkOptions> Translate(const kvrun_bench_options& given) {
  kvrun::BenchmarkOptions options;
  options.kv = kvrun::capi::UserSettings();
  if (given.kv != nullptr) KVRUN_RETURN_IF_ERROR(kvrun::ParseKvOptions(given.kv, &options.kv));
  if (given.n_depths > 0) {
    KVRUN_RETURN_IF_ERROR(CheckNotNull(given.depths, "depths"));
    options.depths.assign(given.depths, given.depths + given.n_depths);
  }
  options.n_prompt = given.n_prompt;
  options.n_decode = given.n_decode;
  options.n_sequences = given.n_sequences == 0 ? 1 : given.n_sequences;
  options.n_repetitions = given.n_repetitions == 0 ? 3 : given.n_repetitions;
  options.fill_random = given.fill_random != 0;
  options.hit_rate = static_cast<double>(given.hit_rate);
  options.io_only = given.io_only != 0;
  return options;
}

std::vector<std::string> ShapeNames() {
  std::vector<std::string> names;
  for (const kvrun::SyntheticShape& shape : kvrun::SyntheticShapes()) names.emplace_back(shape.name);
  return names;
}

}  // namespace

extern "C" {

kvrun_status kvrun_model_make(const char* shape, uint32_t n_layers, kvrun_model** model) {
  return Guard([&]() -> Status {
    KVRUN_RETURN_IF_ERROR(CheckNotNull(model, "model"));
    *model = nullptr;
    KVRUN_RETURN_IF_ERROR(CheckNotNull(shape, "shape"));
    KVRUN_ASSIGN_OR_RETURN(const kvrun::SyntheticShape found, kvrun::FindSyntheticShape(shape));
    if (n_layers == KVRUN_LAYERS_THAT_FIT) {
      const std::optional<uint64_t> memory_bytes = kvrun::AvailableMemoryBytes();
      n_layers = memory_bytes ? kvrun::LayersThatFit(found, *memory_bytes) : found.n_layers;
    }
    if (n_layers > found.n_layers) {
      return {StatusCode::kInvalidArgument,
              fmt::format("{} has {} layers, and {} were asked for: ask for fewer (--layers)", found.name,
                          found.n_layers, n_layers)};
    }
    KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<kvrun::Model> made, kvrun::MakeSyntheticModel(found, n_layers));
    *model = new kvrun_model{std::move(made)};
    return Status::Ok();
  });
}

const char* const* kvrun_shape_names(void) {
  static const std::vector<std::string> names = ShapeNames();
  static const std::vector<const char*> pointers = [] {
    std::vector<const char*> list;
    for (const std::string& name : names) list.push_back(name.c_str());
    list.push_back(nullptr);
    return list;
  }();
  return pointers.data();
}

void kvrun_bench_options_init(kvrun_bench_options* options) {
  if (options == nullptr) return;
  *options = {};
  options->struct_size = sizeof(*options);
  options->n_sequences = 1;
  options->n_repetitions = 3;
  options->hit_rate = kUsualHitRate;
}

kvrun_status kvrun_bench_json(kvrun_engine* engine, const kvrun_bench_options* options, char** json) {
  return Guard([&]() -> Status {
    KVRUN_RETURN_IF_ERROR(CheckNotNull(json, "json"));
    *json = nullptr;
    KVRUN_RETURN_IF_ERROR(CheckNotNull(engine, "engine"));
    KVRUN_RETURN_IF_ERROR(CheckNotNull(options, "options"));
    kvrun_bench_options given;
    kvrun_bench_options_init(&given);
    KVRUN_RETURN_IF_ERROR(kvrun::capi::ReadOptions(options, "kvrun_bench_options", &given));
    KVRUN_ASSIGN_OR_RETURN(const kvrun::BenchmarkOptions benchmark, Translate(given));
    const auto progress =
        kvrun::capi::BindProgress(given.progress, given.progress_user, KVRUN_PHASE_EVALUATE);
    KVRUN_ASSIGN_OR_RETURN(const std::vector<kvrun::BenchmarkResult> results,
                           engine->engine->RunBenchmark(benchmark, progress));
    const kvrun::Model& model = engine->engine->model();
    const uint32_t n_layers_model = std::max(model.n_layers_whole, model.config.n_layers);
    Json info = Json::array();
    for (const kvrun::BenchmarkResult& result : results)
      info.push_back(ResultInfo(result, benchmark.n_prompt, n_layers_model));
    return kvrun::capi::CopyOut(info, json);
  });
}

}  // extern "C"
