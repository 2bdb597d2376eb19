// A prompt into a cache of records: PrefillTiles computes it, PromptStore keeps what comes of it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/engine/offloaded/prefill_tiles.h"
#include "runtime/engine/offloaded/prompt_store.h"
#include "runtime/engine/pass/forward_pass.h"
#include "runtime/engine/pass/layer_states.h"
#include "runtime/engine/pass/step_commands.h"
#include "runtime/engine/resident/resident_pass.h"
#include "runtime/kv/serve/prompt_records.h"
#include "runtime/store/spill_file.h"

namespace kvrun {

class OffloadedPrefill {
 public:
  // For one prompt: buffers live as long as this. `cache` is in its prefill phase. `spill` may be null where
  // nothing has to be put aside.
  static Result<std::unique_ptr<OffloadedPrefill>> Create(Device& device, StepCommands& commands,
                                                          PromptRecords& cache, const LayerStates& states,
                                                          SpillFile* spill);

  // Rows: consecutive positions of one sequence, from the cache's length of it on. Afterwards the cache has
  // their entries.
  Status Run(std::span<const StepRow> rows, const StepProgress& progress);
  // PrefillTiles::LoadHidden.
  Result<PrefillTiles::Rows> LoadHidden(uint32_t row) { return tiles_->LoadHidden(row); }

 private:
  OffloadedPrefill(std::unique_ptr<PrefillTiles> tiles, std::unique_ptr<PromptStore> store,
                   const ModelConfig& config, const LayerStates& states)
      : tiles_(std::move(tiles)), store_(std::move(store)), config_(config), states_(states) {}

  Status RunKvLayer(uint32_t nth, std::span<const StepRow> rows, const StepProgress& progress);

  std::unique_ptr<PrefillTiles> tiles_;
  std::unique_ptr<PromptStore> store_;
  const ModelConfig& config_;
  const LayerStates& states_;
};

// In place of computing: the first `n_entries` of a sequence, which another pass has computed and keeps in
// memory, as if they had been prefilled here. For comparisons.
Status ImportPrompt(Device& device, const StepCommands& commands, PromptRecords& cache, uint32_t sequence,
                    uint32_t n_entries, ResidentForwardPass& from);

}  // namespace kvrun
