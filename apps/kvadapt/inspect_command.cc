// kvadapt inspect: what a file of kvrun's holds.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "apps/common/failure.h"
#include "apps/common/files.h"
#include "apps/common/plural.h"
#include "apps/common/printable.h"
#include "apps/common/report.h"
#include "apps/common/shared_options.h"
#include "apps/kvadapt/commands.h"
#include "apps/kvadapt/energy_table.h"
#include "apps/kvadapt/offline_calls.h"
#include "apps/kvadapt/reuse_table.h"
#include "offline/inspect_file.h"

namespace kvrun::cli {
namespace {

struct InspectOptions {
  SharedOptions shared;
  std::vector<std::string> files;
};

// "0.33 to 2.61"
std::string SharesText(const Json& adapter) {
  const auto shares = adapter["layer_shares"].get<std::vector<double>>();
  if (shares.empty()) return "none";
  const auto [least, most] = std::minmax_element(shares.begin(), shares.end());
  return fmt::format("{:.2f} to {:.2f}", *least, *most);
}

// What older files do not say is left out.
std::string MadeFromText(const Json& adapter) {
  std::string text;
  for (const auto& [key, name] : {std::pair{"made_from", "made from"}, {"measured_on", "measured on"}}) {
    const std::string value = TextOf(adapter.value(key, Json("")));
    if (!value.empty()) text += fmt::format("{} {}\n", name, Printable(value));
  }
  return text;
}

std::string AdapterText(const std::string& path, const Json& adapter) {
  const auto n_thresholds = adapter["cluster_thresholds"].get<uint64_t>();
  return EnergyTable(adapter) + ReuseTable(adapter) +
         fmt::format("{}: an adapter, {}, rank {}, {}, keys of {}, {}\n", Printable(path),
                     TextOf(adapter["kind"]), adapter["rank"].get<uint32_t>(),
                     Counted(adapter["n_layers"].get<uint64_t>(), "layer"),
                     Counted(adapter["key_dim"].get<uint32_t>(), "element"),
                     FormatBytes(adapter["bytes"].get<uint64_t>())) +
         fmt::format(
             "reuse rates: {}; cluster thresholds: {}; mean keys and values: {}; shares of layers: {}\n",
             adapter["reuse"]["rates"].empty() ? "none" : Counted(adapter["reuse"]["rates"].size(), "row"),
             n_thresholds == 0 ? "none" : fmt::to_string(n_thresholds),
             adapter["entry_means"].get<uint64_t>() == 0 ? "none" : "there", SharesText(adapter)) +
         MadeFromText(adapter) +
         fmt::format("of the model with the fingerprint {}\n", Printable(TextOf(adapter["fingerprint"])));
}

// "device  SwiftShader": what is a text or a number, a line each; lists are left to --json.
std::string PlainText(const Json& object) {
  std::string text;
  for (const auto& [name, value] : object.items()) {
    if (value.is_array()) {
      text += fmt::format("{:<16} {} (--json shows them)\n", name, value.size());
    } else {
      text += fmt::format("{:<16} {}\n", name, Printable(TextOf(value)));
    }
  }
  return text;
}

std::string SolutionText(const Json& solution) {
  std::string options;
  for (const auto& [name, value] : solution["options"].items())
    options += fmt::format(" --kv-{} {}", name, Printable(TextOf(value)));
  return fmt::format("{} x {} tokens, {}:{}\n", solution["batch"].get<uint32_t>(),
                     solution["ctx"].get<uint32_t>(), FormatBytes(solution["budget_bytes"].get<uint64_t>()),
                     options);
}

int Inspect(const InspectOptions& options) {
  if (options.files.size() != 1) throw UsageError("name one file: kvadapt inspect FILE");
  const std::string& path = options.files.front();
  Json object = ParseJson(Value(offline::InspectFile(path)));
  if (options.shared.json) {
    object["path"] = path;
    WriteStdout(JsonLine(object));
  } else if (object["what"] == "adapter") {
    WriteStdout(AdapterText(path, object));
  } else {
    std::string text = PlainText(object);
    for (const Json& solution : object.value("solutions", Json::array())) text += SolutionText(solution);
    WriteStdout(text);
  }
  return 0;
}

}  // namespace

Command AddInspectCommand(CLI::App* program) {
  auto options = std::make_shared<InspectOptions>();
  auto set = std::make_shared<OptionSet>(
      program, "inspect", "Show what an adapter, a configuration (kvrun.toml) or a device's profile holds");
  set->TextList("FILE,--file", &options->files, "FILE",
                "the file to show; its content tells which kind it is");
  set->AddExample("kvadapt inspect adapter.gguf", "show what an adapter holds");
  set->AddExample("kvadapt inspect kvrun.toml --json", "show a config, for programs");
  AddReportOptions(set.get(), &options->shared);
  return {set, {options, &options->shared.json}, [options] { return Inspect(*options); }};
}

}  // namespace kvrun::cli
