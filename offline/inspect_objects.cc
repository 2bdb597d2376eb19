#include <nlohmann/json.hpp>

#include "offline/inspect_file.h"

namespace kvrun::offline {
namespace {

using Json = nlohmann::ordered_json;

// Names come from files: bytes that are not UTF-8 are replaced.
std::string ToText(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

}  // namespace

std::string AdapterObject(const Adapter& adapter, uint64_t file_bytes) {
  Json layers = Json::array();
  for (const LayerAdapter& layer : adapter.layers) layers.push_back({{"energy", layer.energy}});
  Json rates = Json::array();
  for (const ReuseRate& row : adapter.reuse) {
    rates.push_back({{"policy", row.policy},
                     {"group", row.group_tokens},
                     {"select", row.select_entries},
                     {"ctx", row.n_ctx},
                     {"capacity", row.reuse_groups},
                     {"rate", row.rate}});
  }
  return ToText({{"what", "adapter"},
                 {"kind", AdapterKindName(adapter.kind)},
                 {"rank", adapter.layers.front().rank},
                 {"n_layers", adapter.layers.size()},
                 {"key_dim", adapter.layers.front().key_dim},
                 {"fingerprint", adapter.fingerprint},
                 {"bytes", file_bytes},
                 {"layers", layers},
                 {"reuse", {{"rates", rates}}},
                 {"cluster_thresholds", adapter.cluster_thresholds.size()},
                 {"entry_means", adapter.entry_means.size()},
                 {"layer_shares", adapter.layer_shares},
                 {"made_from", adapter.made_from},
                 {"measured_on", adapter.measured_on}});
}

std::string ConfigObject(const KvConfig& config) {
  const auto figure = [](double value) { return value > 0.0 ? Json(value) : Json(); };
  Json solutions = Json::array();
  for (const ConfigSolution& solution : config.solutions) {
    Json options = Json::object();
    for (const auto& [name, value] : solution.options) options[name] = value;
    solutions.push_back({{"batch", solution.batch},
                         {"ctx", solution.ctx},
                         {"budget_bytes", solution.budget_bytes},
                         {"options", options},
                         {"predicted_ms", figure(solution.predicted_ms)},
                         {"measured_ms", figure(solution.measured_ms)},
                         {"kl", figure(solution.kl)},
                         {"bound", solution.bound.empty() ? Json() : Json(solution.bound)}});
  }
  return ToText({{"what", "config"},
                 {"model", config.model},
                 {"fingerprint", config.model_fingerprint},
                 {"device", config.device},
                 {"driver", config.driver},
                 {"cpu", config.cpu},
                 {"storage", config.storage},
                 {"exact_activations", config.exact_activations},
                 {"method", config.method},
                 {"solutions", solutions}});
}

std::string ProfileObject(const DeviceProfile& profile) {
  Json rates = Json::array();
  for (const StorageRate& rate : profile.storage.rates) {
    rates.push_back({{"backend", rate.backend},
                     {"direct", rate.direct},
                     {"block_bytes", rate.block_bytes},
                     {"depth", rate.depth},
                     {"bytes_per_s", rate.bytes_per_s},
                     {"latency_us", rate.latency_us},
                     {"latency_p99_us", rate.latency_p99_us}});
  }
  return ToText({{"what", "profile"},
                 {"model", profile.model},
                 {"fingerprint", profile.model_fingerprint},
                 {"device", profile.machine.device},
                 {"driver", profile.machine.driver},
                 {"cpu", profile.machine.cpu},
                 {"n_cpus", profile.machine.n_cpus},
                 {"storage", profile.machine.storage},
                 {"kvrun", profile.machine.kvrun},
                 {"folder", profile.storage.folder},
                 {"alignment_bytes", profile.storage.alignment_bytes},
                 {"rates", rates},
                 {"n_operations", profile.operations.size()}});
}

}  // namespace kvrun::offline
