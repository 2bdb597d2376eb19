// What `kvadapt tune` found for a model on a machine: a TOML file (docs/config.md) with one solution per
// batch size and context, which sessions take their KV options from.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "platform/base/status.h"

namespace kvrun {

// KV options by name and value, as kvrun_option: {"group", "4"}.
using NamedKvOptions = std::vector<std::pair<std::string, std::string>>;

struct ConfigSolution {
  uint32_t batch = 1;         // sequences
  uint32_t ctx = 0;           // tokens of each
  uint64_t budget_bytes = 0;  // of all sequences
  // type, group, select, reuse, window, sinks, rank, index, heads, policy, adapter, adapter-kind: as many as
  // are said, each once, with values that SetKvOption takes. "adapter" is a path relative to the config's
  // folder; where it is not said, adapters are computed from prompts.
  NamedKvOptions options;
  // What was found, for people and for `kvadapt inspect`; 0 or empty: not said.
  double predicted_ms = 0.0;  // of a decoding step
  double measured_ms = 0.0;
  double kl = 0.0;    // mean KL to full, nats
  std::string bound;  // "I/O", "compute" or "memory"
  bool operator==(const ConfigSolution&) const = default;
};

struct KvConfig {
  std::string model;               // name, for people
  std::string model_fingerprint;   // ModelFingerprint
  std::string device;              // as kvrun_engine_info_json's; another one is refused
  std::string driver;              // another one is a note
  std::string cpu;                 // CpuName(): another one is refused where the device is a CPU, else a note
  std::string storage;             // StorageName(): another one is a note
  bool exact_activations = false;  // of the CPU as a device: another setting is a note
  std::string method = "kvswap";
  std::vector<ConfigSolution> solutions;  // at least one
  bool operator==(const KvConfig&) const = default;
};

inline constexpr uint32_t kConfigVersion = 1;

// With a comment where a key is written first. What ConfigFromToml reads is the same config again, but for
// bytes that are no UTF-8, which are repaired. Empty texts, and figures that are not above 0, are left out.
std::string ConfigToToml(const KvConfig& config);
// `path` is what messages name, with line and column: "kvrun.toml:12:9: ...": a key that is not known, a
// value of the wrong type or one that the option refuses, a key that lacks, two solutions for one (batch,
// ctx).
Result<KvConfig> ConfigFromToml(std::string_view text, const std::string& path);
// A file of at most 1 MiB.
Result<KvConfig> ReadConfig(const std::string& path);

// What a session runs on, for comparison with what was tuned.
struct ConfigTarget {
  std::string model_fingerprint;
  std::string device;  // empty: not known yet, and neither compared nor what follows, but for the storage
  std::string driver;
  std::string cpu;
  bool device_is_cpu = false;
  bool exact_activations = false;
  std::string storage;  // empty: not compared
};
// What the config does not say is not compared.
struct ConfigFit {
  std::string refusal;               // empty: it fits. Else why not, and what to do
  std::vector<std::string> reasons;  // of the refusal, one by one
  std::vector<std::string> notes;    // what differs but need not matter
};
ConfigFit CompareConfig(const KvConfig& config, const ConfigTarget& target);

// The solution of (batch, ctx), else the nearest: by the sum of |log2| of the ratios; where two are as near
// the larger context, and of two with the same one the larger batch. Source: KVSwap, appendix A.4.
struct ChosenSolution {
  const ConfigSolution* solution = nullptr;
  bool is_exact = false;
  // For a session of this batch and context: "method", "budget" (the solution's per sequence, times the
  // batch) and the solution's options. Where the context is longer than the solution's,
  // or the sequences are fewer, without "select" and "reuse": the index takes more of the budget, or what all
  // sequences share takes more of each one's, and the rest is filled.
  NamedKvOptions options;
};
// `config_path`: what an adapter's path is relative to. The answer points into `config`.
ChosenSolution ChooseSolution(const KvConfig& config, const std::string& config_path, uint32_t batch,
                              uint32_t ctx);

}  // namespace kvrun
