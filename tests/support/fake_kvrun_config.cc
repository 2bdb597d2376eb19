// The toy library's configs: JSON files, which hold a little of the answer: "options" {name: value}, "notes"
// [..]; "solution" {batch, ctx}, which is exact where these are asked for; "model" and "device", which are
// compared with the model's path and the device's name. A config that cannot be read is not found. The option
// "asked" says what was asked for.
#include <fmt/format.h>

#include <fstream>
#include <sstream>
#include <vector>

#include "tests/support/fake_kvrun.h"

using kvrun::fake::Fail;
using kvrun::fake::HandOut;

void kvrun_config_options_init(kvrun_config_options* options) {
  *options = {};
  options->struct_size = sizeof(*options);
  options->n_sequences = 1;
}

kvrun_status kvrun_config_json(const char* path, const kvrun_model* model, const kvrun_engine* engine,
                               const kvrun_config_options* options, char** json) {
  if (options->struct_size != sizeof *options) return Fail(KVRUN_INVALID_ARGUMENT, "struct_size");
  std::ifstream file(path);
  if (!file) return Fail(KVRUN_NOT_FOUND, fmt::format("cannot open {}", path));
  const nlohmann::json config = nlohmann::json::parse(file, nullptr, false);
  if (config.is_discarded()) return Fail(KVRUN_INVALID_ARGUMENT, fmt::format("{}:1:1: not a config", path));

  std::vector<std::string> reasons;
  const std::string model_name = config.value("model", model->path);
  if (model_name != model->path) reasons.push_back("it is of the model " + model_name);
  const std::string device = engine == nullptr ? "" : "Fake " + engine->device;
  const std::string device_name = config.value("device", device);
  if (engine != nullptr && device_name != device) reasons.push_back("it is of the device " + device_name);
  if (!reasons.empty() && options->force == 0) {
    return Fail(KVRUN_UNSUPPORTED, fmt::format("{}: {}", path, reasons[0]));
  }

  nlohmann::json notes = reasons;
  for (const auto& note : config.value("notes", nlohmann::json::array())) notes.push_back(note);
  nlohmann::json kv = nlohmann::json::array();
  const nlohmann::json given = config.value("options", nlohmann::json::object());
  for (const auto& [name, value] : given.items()) {
    kv.push_back({{"name", name}, {"value", value}});
  }
  const char* folder = options->kv_dir == nullptr ? "default" : options->kv_dir;
  kv.push_back(
      {{"name", "asked"}, {"value", fmt::format("{}x{}@{}", options->n_sequences, options->n_ctx, folder)}});
  nlohmann::json answer = {{"kv_options", kv}, {"notes", notes}};
  if (config.contains("solution")) {
    answer["solution"] = config["solution"];
    answer["exact"] =
        config["solution"] == nlohmann::json{{"batch", options->n_sequences}, {"ctx", options->n_ctx}};
  }
  return HandOut(answer.dump(), json);
}
