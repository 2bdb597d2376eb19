#include "runtime/engine/config/config_file.h"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <span>
#include <tuple>
#include <utility>

#include "platform/base/units.h"
#include "platform/io/input_file.h"

namespace kvrun {
namespace {

constexpr uint64_t kMaxFileBytes = kMiB;

bool Differs(const std::string& tuned, const std::string& found) {
  return !tuned.empty() && !found.empty() && tuned != found;
}

void CompareDevice(const KvConfig& config, const ConfigTarget& target, ConfigFit* fit) {
  if (target.device.empty()) return;
  if (Differs(config.device, target.device)) {
    fit->reasons.push_back(
        fmt::format("it was tuned on the device {}, and this is {}", config.device, target.device));
  } else if (Differs(config.driver, target.driver)) {
    fit->notes.push_back(
        fmt::format("it was tuned with the driver {}, and this is {}", config.driver, target.driver));
  }
  // A CPU that is the device has its name there too.
  const bool is_said = target.device_is_cpu && target.device == target.cpu && config.device == config.cpu;
  if (Differs(config.cpu, target.cpu) && !is_said) {
    const std::string text =
        fmt::format("it was tuned with the processor {}, and this is {}", config.cpu, target.cpu);
    (target.device_is_cpu ? fit->reasons : fit->notes).push_back(text);
  }
  if (target.device_is_cpu && config.exact_activations != target.exact_activations) {
    fit->notes.push_back(
        fmt::format("it was tuned {} --exact-activations", config.exact_activations ? "with" : "without"));
  }
}

// How far a solution is from what is asked, with what decides where two are as far: less is better.
using Distance = std::tuple<double, int64_t, int64_t>;

Distance DistanceOf(const ConfigSolution& solution, uint32_t batch, uint32_t ctx) {
  const auto octaves = [](uint32_t a, uint32_t b) {
    return std::fabs(std::log2(static_cast<double>(a)) - std::log2(static_cast<double>(b)));
  };
  // Equal sums of logarithms may differ in their last bits.
  constexpr double kSteps = 1e9;
  const double sum = octaves(solution.batch, batch) + octaves(solution.ctx, ctx);
  return {std::round(sum * kSteps), -int64_t{solution.ctx}, -int64_t{solution.batch}};
}

}  // namespace

Result<KvConfig> ReadConfig(const std::string& path) {
  KVRUN_ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(path));
  if (file.size_bytes() > kMaxFileBytes) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("{} is too large for a config: it has {}, and a config has at most {}; name a "
                              "file that kvadapt tune wrote",
                              path, FormatBytes(file.size_bytes()), FormatBytes(kMaxFileBytes)));
  }
  KVRUN_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, file.ReadAll());
  return ConfigFromToml({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path);
}

ConfigFit CompareConfig(const KvConfig& config, const ConfigTarget& target) {
  ConfigFit fit;
  if (Differs(config.model_fingerprint, target.model_fingerprint)) {
    const std::string name = config.model.empty() ? "" : fmt::format(" ({})", config.model);
    fit.reasons.push_back(fmt::format("it was tuned for the model {}{}, and this is {}",
                                      config.model_fingerprint, name, target.model_fingerprint));
  }
  CompareDevice(config, target, &fit);
  if (Differs(config.storage, target.storage)) {
    fit.notes.push_back(fmt::format("it was tuned with the KV on {}, and here it lies on {}", config.storage,
                                    target.storage));
  }
  for (const std::string& reason : fit.reasons) {
    fit.refusal += fmt::format("{}{}", fit.refusal.empty() ? "" : "; ", reason);
  }
  if (!fit.refusal.empty()) {
    fit.refusal += ": run kvadapt tune here, or take it all the same with --force-config";
  }
  return fit;
}

ChosenSolution ChooseSolution(const KvConfig& config, const std::string& config_path, uint32_t batch,
                              uint32_t ctx) {
  ChosenSolution chosen;
  for (const ConfigSolution& solution : config.solutions) {
    if (chosen.solution == nullptr ||
        DistanceOf(solution, batch, ctx) < DistanceOf(*chosen.solution, batch, ctx)) {
      chosen.solution = &solution;
    }
  }
  if (chosen.solution == nullptr) return chosen;
  const ConfigSolution& solution = *chosen.solution;
  chosen.is_exact = solution.batch == batch && solution.ctx == ctx;
  const uint64_t budget_bytes = solution.budget_bytes * batch / solution.batch;
  chosen.options = {{"method", config.method}, {"budget", fmt::format("{}", budget_bytes)}};
  const std::filesystem::path folder = std::filesystem::path(config_path).parent_path();
  const bool leaves_open = ctx > solution.ctx || batch < solution.batch;
  for (const auto& [name, value] : solution.options) {
    if (leaves_open && (name == "select" || name == "reuse" || name == "static")) continue;
    chosen.options.emplace_back(name, name == "adapter" ? (folder / value).string() : value);
  }
  return chosen;
}

}  // namespace kvrun
