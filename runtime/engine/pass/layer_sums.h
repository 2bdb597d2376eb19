// The sums over a layer's keys and queries that its adapter is computed from, made on the device while it
// prefills.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/engine/pass/step_commands.h"
#include "runtime/kv/math/adapter.h"

namespace kvrun {

// Of one layer; the buffers must outlive the lists that Record wrote to.
class LayerSumBuffers {
 public:
  static Result<LayerSumBuffers> Create(Device& device, const ModelConfig& config, std::string_view part);

  Status Clear();
  // After the layer's RopeAndStore of `qkv`: adds the step's rows; keys of the first `skip_rows` (sinks) are
  // left out.
  Status Record(CommandList& list, const StepCommands& commands, const Buffer& qkv, uint32_t n_rows,
                uint32_t skip_rows) const;
  // Of `n_rows` rows in all, `n_skipped` of them left out. Points into this.
  Result<LayerSums> Read(const ModelConfig& config, uint64_t n_rows, uint64_t n_skipped);

 private:
  std::unique_ptr<Buffer> keys_;     // kShared, GramArgs::sums
  std::unique_ptr<Buffer> queries_;  // kShared, [n_kv_heads] of GramArgs::sums
  std::vector<float> packed_queries_;
};

}  // namespace kvrun
