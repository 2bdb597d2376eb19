// Which groups each layer chooses, step by step, on a text; and the table of reuse rates that an adapter's
// file has room for, measured from it. Source: KVSwap, appendix A.1.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "platform/base/status.h"
#include "runtime/engine/resident/resident_pass.h"
#include "runtime/engine/session/session.h"
#include "runtime/kv/planner/kv_options.h"
#include "runtime/kv/replay/reuse_rates.h"
#include "runtime/model/model.h"

namespace kvrun {

// One prefill with all KV in memory, from which any number of settings decode the same text.
class ReuseRecorder {
 public:
  // Prefills ids[0, n_prefill). The model and the device must outlive this. Every call holds the mutex.
  static Result<std::unique_ptr<ReuseRecorder>> Create(const Model& model,
                                                       std::shared_ptr<const DeviceWeights> weights,
                                                       Device& device, std::mutex* device_mutex,
                                                       std::span<const TokenId> ids, uint32_t n_prefill,
                                                       const ProgressCallback& progress);

  // Feeds the next n_steps ids one by one. The settings are of a method that selects.
  Result<ReuseTrace> Record(const KvSettings& settings, uint32_t n_steps, const ProgressCallback& progress);

  // Of the prefilled keys, sinks left out: Adapter::cluster_thresholds. Empty: there are too few.
  Result<std::vector<float>> ClusterThresholds(const ProgressCallback& progress);
  // Of the prefilled entries: Adapter::entry_means. Empty: there are too few.
  Result<std::vector<float>> EntryMeans();

 private:
  ReuseRecorder(const Model& model, std::shared_ptr<const DeviceWeights> weights, Device& device,
                std::mutex* device_mutex)
      : model_(model), weights_(std::move(weights)), device_(device), device_mutex_(device_mutex) {}

  const Model& model_;
  std::shared_ptr<const DeviceWeights> weights_;
  Device& device_;
  std::mutex* device_mutex_;
  std::vector<TokenId> ids_;
  uint32_t n_prefill_ = 0;
  std::unique_ptr<ResidentForwardPass> full_;
};

inline constexpr uint32_t kReuseWindowEntries = 64;
inline constexpr uint32_t kReuseSinkEntries = 4;

struct ReuseOptions {
  uint32_t n_ctx = 0;        // of the text, the measured tokens included; 0: DefaultPieceTokens
  KvStorageOptions storage;  // where the KV lies meanwhile
  std::vector<uint32_t> groups = {1, 2, 4, 8, 16};
  std::vector<uint32_t> select_entries = {96, 192, 384, 768};  // those that at most half a context holds
  std::vector<double> capacities = {1, 1.25, 1.5, 2, 3, 4};    // times the groups that are chosen
  bool measures_layers = true;                                 // Adapter::layer_shares
  // Settings and cuts that would not end within so many seconds are left out, or made shorter; 0: none.
  double limit_s = 0.0;
};

struct ReuseMeasurement {
  std::vector<ReuseRate> rates;
  std::vector<float> cluster_thresholds;  // Adapter::cluster_thresholds
  std::vector<double> layer_kls;          // of layers that are cut alone; empty: not measured
  std::vector<float> layer_shares;        // Adapter::layer_shares
  uint32_t n_ctx = 0;                     // of the text that was used
  uint32_t n_steps = 0;                   // of it, the last: counted
  uint32_t rank = 0;                      // of the selection
  std::string measured_on;                // Adapter::measured_on
  std::vector<std::string> left_out;      // what there was no time for
  std::string note;                       // why there are no rates, where there are none
};

// Everything that is not in the grid is as a budget of 1/13 has it: fp8, a rank of an eighth of the keys (or
// what the file has), an index of int4, a window of 64, 4 sinks, heads by softmax.
KvSettings ReuseSettings(const KvStorageOptions& storage, uint32_t rank, uint32_t group_tokens,
                         uint32_t select_entries);

// Measures on the first tokens of `ids`, and writes the rates, the thresholds of clusters, the means of
// entries and the shares of layers into the adapter's file, whose other contents stay; the file is as it was
// where the answer is not ok. Where the text is too short for any setting, the table is empty, and shares and
// thresholds stay as they were. `progress`: in tokens; one that is decoded counts as those that are prefilled
// in its time.
Result<ReuseMeasurement> MeasureReuse(const Model& model, std::shared_ptr<const DeviceWeights> weights,
                                      Device& device, std::mutex* device_mutex,
                                      const std::string& adapter_path, std::span<const TokenId> ids,
                                      const ReuseOptions& options, const ProgressCallback& progress);

}  // namespace kvrun
