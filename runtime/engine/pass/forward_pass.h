// One step of the model on the device: rows of tokens in, logits out.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/engine/pass/forward_step.h"
#include "runtime/kv/memory/resident_cache.h"
#include "runtime/kv/plan/kv_report.h"
#include "runtime/kv/plan/states_plan.h"
#include "runtime/model/model.h"

namespace kvrun {

class LayerStates;
class StepMember;
class StateVisitor;
class RecordCache;

// A model's weights on a device. Immutable once loaded; shared by the sessions of an engine.
class DeviceWeights;
// progress(bytes_done, bytes_total) answers true to cancel; it may be empty.
Result<std::shared_ptr<const DeviceWeights>> LoadDeviceWeights(
    const Model& model, Device& device, const std::function<bool(uint64_t, uint64_t)>& progress);

// Answers true to cancel.
using StepProgress = std::function<bool(uint64_t done, uint64_t total)>;

// Runs steps against a KV cache and activations of its own. One thread at a time. The seam that sessions are
// tested through.
class ForwardPass {
 public:
  virtual ~ForwardPass() = default;

  virtual uint32_t max_rows() const = 0;         // of one step: the prefill chunk
  virtual uint32_t max_output_rows() const = 0;  // of one call of Run
  virtual uint32_t n_vocab() const = 0;

  // Computes a step's rows and writes their KV. Entries before a span must be there; those from its first
  // position on are forgotten. What a sequence gets does not depend on which others the step has, but for
  // what the first prompt of all teaches an index. After an error none of the rows count as given: they may
  // be given again, from their first positions on (methods that evict may refuse that for what they have
  // dropped). logits: float [outputs.size(), n_vocab], of the rows of the step that `outputs` lists, at most
  // max_output_rows(); may be empty.
  virtual Status Run(const ForwardStep& step, std::span<const uint32_t> outputs, std::span<float> logits) = 0;

  // More logits of the last Run, of one prompt or of spans of one row: for perplexity over a whole chunk,
  // max_output_rows() at a time. outputs: indices of its rows.
  virtual Status MoreLogits(std::span<const uint32_t> outputs, std::span<float> logits) = 0;

  // Asked now and then during a Run that takes long, in rows of that Run, while nothing of it is in flight on
  // the device: other passes may use it meanwhile. Where it answers true, Run answers kCancelled, and the
  // rows count as never given.
  virtual void SetProgress(StepProgress) {}
  // Since the last ResetKvReport; nothing where the KV is not kept in records.
  virtual std::optional<KvReport> kv_report() const { return std::nullopt; }
  virtual void ResetKvReport() {}
  // Where the KV is kept in records, else null. For benchmarks, between steps.
  virtual RecordCache* record_cache() { return nullptr; }
  // What layers without growing KV keep. Never null where the model has such layers.
  virtual LayerStates* layer_states() { return nullptr; }
  // Its part in steps that passes share; null where it has none. Of a pass with one sequence.
  virtual StepMember* step_member() { return nullptr; }
  // The sequence is forgotten from `length` on, which the next Run would say as well: what is kept for its
  // sake may be another's.
  virtual void Cut(uint32_t /*sequence*/, uint32_t /*length*/) {}
  // What it keeps of sequences that have `lengths` entries, [n_sequences]: saves, loads or counts it, between
  // steps. Loading is into a pass that was made the same way and has run nothing; after an error it may only
  // be destroyed.
  virtual Status VisitState(StateVisitor& visitor, std::span<const uint32_t> lengths) = 0;
  // Tokens that were computed once more, as layer states had gone beyond where a Run began. Of all Runs.
  virtual uint64_t recomputed_tokens() const { return 0; }
};

struct OffloadedPassOptions;

struct ForwardPassOptions {
  uint32_t n_sequences = 1;
  uint32_t n_ctx = 0;
  KvType kv_type = KvType::kF16;                              // f16 or f32, of a resident cache
  uint32_t n_state_copies = kLeastStateCopies;                // StatesPlan::n_copies, with a resident cache
  std::shared_ptr<OffloadedPassOptions> offloaded = nullptr;  // null: resident; its plan says the rest
};

}  // namespace kvrun
