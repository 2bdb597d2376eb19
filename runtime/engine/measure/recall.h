// How much of the exact attention lies on the entries that a method attends to, and how much would on as many
// chosen otherwise.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/engine/pass/step_probe.h"
#include "runtime/kv/plan/kv_plan.h"
#include "runtime/model/model_config.h"

namespace kvrun {

// Keys of one sequence, as halves, on the host.
class HostKeys {
 public:
  // `layers`: f16 or f32 KV buffers [n_layers] of `shape`, of one sequence; the first n_entries are read.
  static Result<HostKeys> Read(Device& device, const ModelConfig& config,
                               std::span<const Buffer* const> layers, const KvShape& shape,
                               uint32_t n_entries);

  // float [n_entries, head_dim], of the first entries.
  void Load(uint32_t layer, uint32_t kv_head, uint32_t n_entries, std::span<float> keys) const;

 private:
  uint32_t n_entries_ = 0;
  uint32_t n_kv_heads_ = 0;
  uint32_t head_dim_ = 0;
  std::vector<std::vector<uint16_t>> layers_;  // [n_kv_heads, n_entries, head_dim]
};

// Means over query heads, layers and steps.
struct Recall {
  double method = 0.0;  // what was attended to, window and sinks included
  double oracle = 0.0;  // as many groups, by the exact queries and keys; sinks and window as the method's
  double recent = 0.0;  // the newest entries, as many
  double random = 0.0;  // as many groups by chance; sinks and window as the method's
};

class RecallMeter {
 public:
  RecallMeter(const ModelConfig& config, const KvPlan& plan, const HostKeys& keys)
      : config_(config), plan_(plan), keys_(keys) {}

  void Add(const StepProbe& probe);
  Recall Mean() const;
  uint64_t n_steps() const { return n_steps_; }

 private:
  void AddStream(std::span<const uint32_t> chosen, uint32_t n_entries, uint32_t n_before_window);
  void AttendExactly(uint32_t layer, uint32_t kv_head, std::span<const float> queries, uint32_t n_entries);

  const ModelConfig& config_;
  const KvPlan& plan_;
  const HostKeys& keys_;
  std::mt19937 random_{1};
  std::vector<float> key_rows_;
  std::vector<float> weights_;  // [heads of the stream, n_entries], each head's of sum 1
  Recall sums_;
  uint64_t n_heads_counted_ = 0;
  uint64_t n_steps_ = 0;
};

}  // namespace kvrun
