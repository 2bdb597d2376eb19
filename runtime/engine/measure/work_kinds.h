// What the operations of a step are for, and the bytes of weights, states and KV that each kind of work has
// to move: divided by how fast the device reads, a bound for its time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/device/device.h"
#include "runtime/engine/pass/device_weights.h"
#include "runtime/kv/plan/kv_report.h"
#include "runtime/model/model_config.h"

namespace kvrun {

enum class WorkKind : uint8_t {
  kProducts,        // of matrices, but for those of experts
  kExpertProducts,  // and their choice
  kDeltaRule,
  kConvolution,  // of delta nets, too
  kWindowedAttention,
  kAttention,  // to the whole text, or to what was selected of it
  kSelection,  // scores and choice
  kOther       // norms, rotation, copies: activations alone
};
inline constexpr size_t kWorkKinds = static_cast<size_t>(WorkKind::kOther) + 1;

// "delta rule".
std::string_view WorkKindName(WorkKind kind);
// Of an operation or a variant of one, as OperationTime names it.
WorkKind WorkKindOf(std::string_view operation);

// Of a decode step, or of a prompt.
struct WorkTime {
  WorkKind kind = WorkKind::kOther;
  double milliseconds = 0.0;
  uint64_t bytes = 0;  // that have to be read or written; 0: unknown, or activations alone
};

// The kinds that took time, the longest first; `n_times`: how many steps or prompts `operations` are the sums
// of. bytes: [kWorkKinds].
std::vector<WorkTime> TimesByKind(std::span<const OperationTime> operations, uint64_t n_times,
                                  std::span<const uint64_t> bytes);

struct StepWork {
  uint32_t n_sequences = 1;
  uint32_t depth = 0;             // entries of each sequence
  uint32_t kv_element_bytes = 0;  // of windows, and of KV in memory
  // Where KV is kept in records: what the steps have chosen. Null: all is attended to.
  const KvReport* report = nullptr;
};
// [kWorkKinds]. Of a decode step; of a prompt of one sequence that is computed `chunk_rows` rows at a time,
// each of which reads all weights, and of KV as much as there is then, once.
std::vector<uint64_t> BytesOfStep(const ModelConfig& config, const DeviceWeights& weights,
                                  const StepWork& work);
std::vector<uint64_t> BytesOfPrompt(const ModelConfig& config, const DeviceWeights& weights,
                                    uint32_t n_tokens, uint32_t chunk_rows, uint32_t kv_element_bytes);

}  // namespace kvrun
