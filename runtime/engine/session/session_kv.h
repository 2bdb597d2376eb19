// From what a user asks of the KV cache to what a session's forward pass is made with.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "platform/base/status.h"
#include "platform/io/block_file.h"
#include "runtime/engine/machine/layer_time.h"
#include "runtime/engine/offloaded/offloaded_pass.h"
#include "runtime/engine/pass/forward_pass.h"
#include "runtime/kv/planner/kv_options.h"
#include "runtime/kv/serve/kv_stores.h"
#include "runtime/model/model.h"

namespace kvrun {

KvModelShape ShapeOf(const ModelConfig& config);

// True where all KV stays in memory as f16 or f32, as ForwardPassOptions::kv_type says: a ResidentForwardPass
// does, and nothing of the plan is needed.
bool IsPlainResident(const KvPlan& plan);

// What records are padded to on flash, there: of a nameless file that is tried; 1 where reads are buffered.
Result<uint32_t> KvAlignmentBytes(const KvStorageOptions& storage);

// What the budget buys. Loads and makes nothing but a nameless file, to learn how it can be read, and how
// fast where a default depends on it (storage_speed.h); the folder for it is not made. An adapter's file is
// read, and is an error where it is not one for model and plan. `layer_time`: of the device, asked where the
// plan depends on it; null where there is no device yet: no more is selected then than has slots.
Result<KvPlan> PlanSessionKv(const Model& model, const KvSettings& settings, uint32_t n_ctx,
                             uint32_t n_sequences, LayerTime* layer_time = nullptr);

// Makes the files that the records of a session lie in which is kept, in place of nameless ones.
class KeptFiles {
 public:
  virtual ~KeptFiles() = default;
  // The longest context that there is to be room for in them; at least the plan's.
  virtual uint32_t room_tokens() const = 0;
  enum class Kind : uint8_t { kRecords, kRows };
  using SizeFn = std::function<KvFileSize(const IoMode& mode)>;
  // `options`: of a nameless file in the folder for KV; where it lies is for this to say.
  virtual Result<std::unique_ptr<BlockFile>> Make(Kind kind, const BlockFileOptions& options,
                                                  const SizeFn& size) = 0;
};

// The plan of a session and, where its method keeps KV on flash, the store (its space reserved) and the
// adapter. `kept`: null: of a session that ends with its process.
Result<OffloadedPassOptions> PrepareOffloadedPass(const Model& model, const KvSettings& settings,
                                                  uint32_t n_ctx, uint32_t n_sequences,
                                                  LayerTime* layer_time = nullptr, KeptFiles* kept = nullptr);

// By a plan that was made: for a model that has other layers than it was made for, and else the same shape.
Result<OffloadedPassOptions> PrepareByPlan(const Model& model, const KvSettings& settings, KvPlan plan);

// How clusters of a prompt are placed, and what stays in memory of it, follows from its queries, which are
// computed with it: KV that another pass has computed (OffloadedPassOptions::import) does not do.
inline bool NeedsPromptQueries(const KvPlan& plan) { return plan.needs_queries(); }

}  // namespace kvrun
