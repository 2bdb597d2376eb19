#include "runtime/engine/offloaded/offloaded_prefill.h"

#include "platform/base/check.h"

namespace kvrun {
namespace {

// A layer that a resident pass has, as one tile.
class ResidentTile final : public LayerTiles {
 public:
  ResidentTile(const KvShape& shape, Buffer* kv) : tiling_{shape, {}}, kv_(kv) {}

  const KvTiling& tiling() const override { return tiling_; }
  Buffer* kv(uint32_t /*tile*/) const override { return kv_; }
  Result<bool> Show(uint32_t tile, const TilePlanes& /*planes*/) override {
    KVRUN_CHECK(tile == 0);
    return true;
  }

 private:
  KvTiling tiling_;
  Buffer* kv_;
};

}  // namespace

Result<std::unique_ptr<OffloadedPrefill>> OffloadedPrefill::Create(Device& device, StepCommands& commands,
                                                                   PromptRecords& cache,
                                                                   const LayerStates& states,
                                                                   SpillFile* spill, const KvRange& prompt,
                                                                   bool may_select) {
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<PromptStore> store, PromptStore::Create(device, commands, cache));
  std::unique_ptr<SelectedPrefill> selected;
  if (may_select && SelectsEarlier(cache, prompt)) {
    KVRUN_ASSIGN_OR_RETURN(selected, SelectedPrefill::Create(device, commands, cache, states, prompt));
  }
  std::unique_ptr<PrefillTiles> tiles;
  if (selected == nullptr) {
    KVRUN_ASSIGN_OR_RETURN(tiles, PrefillTiles::Create(device, commands, cache.plan(), spill));
  }
  return std::unique_ptr<OffloadedPrefill>(new OffloadedPrefill(std::move(tiles), std::move(selected),
                                                                std::move(store), commands.config(), states));
}

Result<PrefillTiles::Rows> OffloadedPrefill::LoadHidden(uint32_t row) {
  return tiles_ != nullptr ? tiles_->LoadHidden(row) : PrefillTiles::Rows{0, kChunkRows};
}

Status OffloadedPrefill::Run(std::span<const StepRow> rows, const StepProgress& progress) {
  const auto end = static_cast<uint32_t>(rows[0].position + rows.size());
  if (selected_ != nullptr) {
    store_->Begin({rows[0].sequence, rows[0].position, end}, *selected_);
    KVRUN_RETURN_IF_ERROR(selected_->Run(rows, progress, *store_));
    return store_->End();
  }
  store_->Begin({rows[0].sequence, rows[0].position, end}, *tiles_);
  KVRUN_RETURN_IF_ERROR(tiles_->Begin(rows));
  std::vector<LayerStates::Saving> savings;
  if (!states_.are_none()) savings = states_.SavingsOf(rows[0].sequence, tiles_->ChunkEnds());
  uint32_t nth = 0;  // of those that keep growing KV
  for (uint32_t layer = 0; layer < config_.n_layers; ++layer) {
    const bool keeps_kv = config_.layers[layer].keeps_growing_kv();
    KVRUN_RETURN_IF_ERROR(keeps_kv ? RunKvLayer(nth++, rows, progress)
                                   : tiles_->RunStateLayer(layer, rows, progress, states_, savings));
  }
  KVRUN_RETURN_IF_ERROR(tiles_->End());
  return store_->End();
}

Status OffloadedPrefill::RunKvLayer(uint32_t nth, std::span<const StepRow> rows,
                                    const StepProgress& progress) {
  KVRUN_RETURN_IF_ERROR(tiles_->RunLayer(nth, rows, progress, *store_));
  if (store_->learns() || store_->divides() || store_->observes()) tiles_->DropAttentionBuffers();
  return store_->Index(nth);
}

Status ImportPrompt(Device& device, const StepCommands& commands, PromptRecords& cache, uint32_t sequence,
                    uint32_t n_entries, ResidentForwardPass& from) {
  KVRUN_RETURN_IF_ERROR(cache.BeginPrefill(sequence, 0));
  KVRUN_ASSIGN_OR_RETURN(const std::unique_ptr<PromptStore> store,
                         PromptStore::Create(device, commands, cache));
  const bool learns = store->takes_sums();
  for (uint32_t layer = 0; layer < commands.config().n_kv_layers(); ++layer) {
    ResidentTile tile(from.kv_shape(), from.kv(layer));
    store->Begin({sequence, 0, n_entries}, tile);
    KVRUN_RETURN_IF_ERROR(store->StoreTile(layer, 0));
    if (learns) {
      KVRUN_ASSIGN_OR_RETURN(const LayerSums sums, from.Sums(layer));
      KVRUN_RETURN_IF_ERROR(store->LearnAndIndex(layer, sums));
    } else {
      KVRUN_RETURN_IF_ERROR(store->IndexOnly(layer));
    }
  }
  if (learns) cache.index()->NoteReady();
  return store->End();
}

}  // namespace kvrun
