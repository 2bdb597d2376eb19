// A prompt into a cache of records: PrefillTiles computes it, PromptStore keeps what comes of it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/engine/offloaded/prefill_tiles.h"
#include "runtime/engine/offloaded/prompt_store.h"
#include "runtime/engine/offloaded/selected_prefill.h"
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
  // nothing has to be put aside. may_select: the prompt may attend to a part of what is there before it
  // (SelectedPrefill), where that is as the plan asks for it.
  static Result<std::unique_ptr<OffloadedPrefill>> Create(Device& device, StepCommands& commands,
                                                          PromptRecords& cache, const LayerStates& states,
                                                          SpillFile* spill, const KvRange& prompt,
                                                          bool may_select);

  // Rows: consecutive positions of one sequence, from the cache's length of it on. Afterwards the cache has
  // their entries.
  Status Run(std::span<const StepRow> rows, const StepProgress& progress);
  // PrefillTiles::LoadHidden.
  Result<PrefillTiles::Rows> LoadHidden(uint32_t row);
  // Nothing: the prompt attended to all that was there before it.
  std::optional<double> selected_share() const {
    return selected_ != nullptr ? std::optional(selected_->selected_share()) : std::nullopt;
  }

 private:
  OffloadedPrefill(std::unique_ptr<PrefillTiles> tiles, std::unique_ptr<SelectedPrefill> selected,
                   std::unique_ptr<PromptStore> store, const ModelConfig& config, const LayerStates& states)
      : tiles_(std::move(tiles)),
        selected_(std::move(selected)),
        store_(std::move(store)),
        config_(config),
        states_(states) {}

  Status RunKvLayer(uint32_t nth, std::span<const StepRow> rows, const StepProgress& progress);

  // One of both.
  std::unique_ptr<PrefillTiles> tiles_;
  std::unique_ptr<SelectedPrefill> selected_;
  std::unique_ptr<PromptStore> store_;
  const ModelConfig& config_;
  const LayerStates& states_;
};

// In place of computing: the first `n_entries` of a sequence, which another pass has computed and keeps in
// memory, as if they had been prefilled here. For comparisons.
Status ImportPrompt(Device& device, const StepCommands& commands, PromptRecords& cache, uint32_t sequence,
                    uint32_t n_entries, ResidentForwardPass& from);

}  // namespace kvrun
