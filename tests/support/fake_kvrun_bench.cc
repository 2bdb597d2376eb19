// The toy library's benchmark: what it measures says what it was asked for. A depth of 666 fails, and
// so does an adapter "nope"; one of 777 takes its time first. Toy-8B has 32 layers, of which 4 fit.
#include <fmt/format.h>

#include <chrono>
#include <thread>

#include "tests/support/fake_kvrun.h"

using kvrun::fake::Fail;

kvrun_status kvrun_model_make(const char* shape, uint32_t n_layers, kvrun_model** model) {
  const uint32_t n_made = n_layers == 0 ? 32 : n_layers == KVRUN_LAYERS_THAT_FIT ? 4 : n_layers;
  *model = new kvrun_model{fmt::format("{} of {} layers", shape, n_made)};
  return KVRUN_OK;
}

const char* const* kvrun_shape_names(void) {
  static constexpr const char* kNames[] = {"Toy-1B", "Toy-8B", nullptr};
  return kNames;
}

void kvrun_bench_options_init(kvrun_bench_options* options) {
  *options = {};
  options->struct_size = sizeof(*options);
  options->n_sequences = 1;
  options->n_repetitions = 3;
  options->hit_rate = 0.5F;
}

namespace {

nlohmann::json Rates(uint32_t tokens, uint32_t n_runs) {
  nlohmann::json rates = nlohmann::json::array();
  for (uint32_t i = 0; tokens > 0 && i < n_runs; ++i) rates.push_back(tokens + i);
  return rates;
}

}  // namespace

kvrun_status kvrun_bench_json(kvrun_engine* engine, const kvrun_bench_options* options, char** json) {
  if (options->struct_size != sizeof *options) return Fail(KVRUN_INVALID_ARGUMENT, "struct_size");
  const std::string line = options->kv;
  const bool keeps_records = line.find("--kv-method kvswap") != std::string::npos;
  if (line.find("--kv-adapter nope") != std::string::npos) return Fail(KVRUN_CORRUPT, "nope: damaged");
  nlohmann::json results = nlohmann::json::array();
  for (size_t i = 0; i < options->n_depths; ++i) {
    const uint32_t depth = options->depths[i];
    if (depth == 777) std::this_thread::sleep_for(std::chrono::milliseconds(3200));
    if (depth == 666) return Fail(KVRUN_OUT_OF_MEMORY, "at a depth of 666 tokens: too deep");
    if (options->progress(options->progress_user, KVRUN_PHASE_EVALUATE, i + 1, options->n_depths) != 0) {
      return Fail(KVRUN_CANCELLED, "cancelled");
    }
    nlohmann::json result = {{"depth", depth},
                             {"prefill_tps", nullptr},
                             {"decode_tps", nullptr},
                             {"prefill_tps_runs", Rates(options->n_prompt, options->n_repetitions)},
                             {"decode_tps_runs", Rates(options->n_decode, options->n_repetitions)},
                             {"hit_rate", nullptr},
                             {"io_hidden", nullptr},
                             {"stall_ms_per_token", nullptr},
                             {"kv", nullptr},
                             {"asked",
                              {{"kv", line},
                               {"sequences", options->n_sequences},
                               {"random", options->fill_random},
                               {"io_only", options->io_only}}}};
    const std::string& made = engine->model->path;
    const bool is_8b = engine->model->Is("Toy-8B of ");
    const uint32_t n_layers = is_8b ? static_cast<uint32_t>(std::stoul(made.substr(10))) : 16;
    result["n_layers"] = n_layers;
    result["n_layers_model"] = is_8b ? 32 : n_layers;
    result["notes"] = nlohmann::json::array();
    if (is_8b && n_layers == 1) result["part_note"] = "a layer alone";
    if (is_8b && n_layers > 1 && n_layers < 32) {
      result["whole_model"] = {{"n_layers", 32},
                               {"prefill_tps", 70.5},
                               {"decode_tps", 4.5},
                               {"prefill_tps_runs", {70.5, 69.5}},
                               {"decode_tps_runs", {4.5, 4.75}}};
    }
    if (options->n_prompt > 0) result["prefill_tps"] = options->n_prompt;
    if (options->n_decode > 0) result["decode_tps"] = options->n_decode;
    if (keeps_records) {
      result["hit_rate"] = options->hit_rate;
      result["io_hidden"] = 0.875;
      result["stall_ms_per_token"] = 3.25;
      result["kv"] = {{"method", "kvswap"}, {"read_mbps", 512.5}};
    }
    if (options->io_only != 0) {
      result["io"] = {{"reads", 100}, {"bytes", 409600}, {"fetches", 10}, {"mbps", 700.25}};
      result["weights"] = {{"step_bytes", 1000000}, {"mbps", 40000.0}, {"stream_mbps", 50000.0}};
    }
    if (engine->profile) {
      result["step_work"] = {{{"name", "products"}, {"ms", 8.0}, {"bytes", 5000000}, {"bound_ms", 4.0}},
                             {{"name", "other"}, {"ms", 1.5}, {"bytes", nullptr}, {"bound_ms", nullptr}}};
      result["prompt_work"] = {{{"name", "delta rule"}, {"ms", 3.0}, {"bytes", 20000}, {"bound_ms", 0.25}}};
    }
    results.push_back(result);
  }
  return kvrun::fake::HandOut(results.dump(), json);
}
