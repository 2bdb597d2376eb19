// In place of what reads adapters for kvadapt: a file's text says what is found in it. "adapter": an adapter
// of two layers with reuse rates; "bare", or what the toy's calibration writes: one without rates; "profile";
// "config"; "controls": a config with control characters in it; else it is refused, for "nul" with a NUL in
// the message.
#include <fmt/format.h>

#include <fstream>
#include <iterator>

#include <nlohmann/json.hpp>

#include "offline/inspect_file.h"
#include "offline/verify_adapter.h"

namespace kvrun::offline {
namespace {

using Json = nlohmann::ordered_json;

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

Json AdapterOf(bool is_bare) {
  Json rates = Json::array();
  if (!is_bare) {
    rates.push_back(
        {{"policy", "fifo"}, {"group", 4}, {"select", 8}, {"ctx", 9}, {"capacity", 2}, {"rate", 0.3}});
    rates.push_back(
        {{"policy", "lru"}, {"group", 4}, {"select", 8}, {"ctx", 9}, {"capacity", 2}, {"rate", 0.5}});
  }
  return {{"what", "adapter"},
          {"kind", "plain"},
          {"rank", 2},
          {"n_layers", 2},
          {"key_dim", 6},
          {"fingerprint", "0123"},
          {"bytes", 2048},
          {"layers", {{{"energy", {0.5, 1.0}}}, {{"energy", {0.25, 0.75}}}}},
          {"reuse", {{"rates", rates}}},
          {"cluster_thresholds", is_bare ? 0 : 4},
          {"entry_means", is_bare ? 0 : 24},
          {"layer_shares", is_bare ? Json::array() : Json({0.5, 1.5})}};
}

}  // namespace

Result<std::string> InspectFile(const std::string& path) {
  const std::string text = ReadAll(path);
  if (text == "adapter") return AdapterOf(false).dump();
  if (text == "bare" || text.starts_with("kind ")) return AdapterOf(true).dump();
  if (text == "profile") return Json{{"what", "profile"}, {"device", "toy"}, {"rates", {1, 2, 3}}}.dump();
  if (text == "config") {
    const Json solution = {{"batch", 2}, {"ctx", 512}, {"budget_bytes", 1024}, {"options", {{"group", "4"}}}};
    Json config = {{"what", "config"}, {"model", "toy"}};
    config["solutions"].push_back(solution);
    return config.dump();
  }
  if (text == "controls") {
    const Json solution = {
        {"batch", 2}, {"ctx", 512}, {"budget_bytes", 1024}, {"options", {{"adapter", "a\nb"}}}};
    return Json{
        {"what", "config"}, {"model", "\x1B[31mred\nfingerprint  xx"}, {"solutions", Json::array({solution})}}
        .dump();
  }
  const std::string_view more = text == "nul" ? std::string_view("\0behind", 7) : "";
  return Status(StatusCode::kCorrupt, fmt::format("{} is none of kvrun's files{}", path, more));
}

Result<std::vector<AdapterCheck>> VerifyAdapterFile(const std::string& adapter_path,
                                                    const std::string& model_path) {
  const std::string text = ReadAll(adapter_path);
  if (text != "adapter" && text != "bare")
    return Status(StatusCode::kCorrupt, fmt::format("{}: the adapter is damaged", adapter_path));
  return std::vector<AdapterCheck>{{"fingerprint", true, model_path},
                                   {"energies", text == "adapter", "column 3 adds 0.5"}};
}

}  // namespace kvrun::offline
