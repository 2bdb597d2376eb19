// A prompt through layers that keep a state in place of KV.
#include <algorithm>
#include <iterator>
#include <utility>

#include "runtime/engine/offloaded/prefill_tiles.h"

namespace kvrun {

std::vector<uint32_t> PrefillTiles::ChunkEnds() const {
  std::vector<uint32_t> ends;
  for (const Chunk& chunk : chunks_) ends.push_back(prompt_.begin + chunk.first_row + chunk.n_rows);
  return ends;
}

Status PrefillTiles::RunStateLayer(uint32_t model_layer, std::span<const StepRow> rows,
                                   const StepProgress& progress, const LayerStates& states,
                                   std::span<const LayerStates::Saving> savings) {
  lists_.clear();
  KVRUN_RETURN_IF_ERROR(commands_.MakeFeedForward(device_));
  const Status ran = RunStateChunks(model_layer, rows, progress, states, savings);
  const Status waited = turns_.FinishAll(nullptr);  // lists must outlive what runs
  saving_lists_.clear();
  KVRUN_RETURN_IF_ERROR(ran);
  return waited;
}

// In order: each goes on where the one before has left the state. Its rows have positions and sequence of
// their own, not a tile's.
Status PrefillTiles::RunStateChunks(uint32_t model_layer, std::span<const StepRow> rows,
                                    const StepProgress& progress, const LayerStates& states,
                                    std::span<const LayerStates::Saving> savings) {
  for (const Chunk& chunk : chunks_) {
    KVRUN_RETURN_IF_ERROR(AskProgress(model_layer, chunk, progress));
    Turn& turn = turns_.Of(chunk);
    KVRUN_RETURN_IF_ERROR(turns_.Bring(chunk, turn, nullptr));
    KVRUN_RETURN_IF_ERROR(turns_.FreeInputs(turn, 0, nullptr));
    commands_.WriteRows(turn.place, rows.subspan(chunk.first_row, chunk.n_rows), 0);
    auto found = std::find_if(lists_.begin(), lists_.end(), [&](const ChunkLists& entry) {
      return entry.n_rows == chunk.n_rows && entry.hidden == turn.place.hidden;
    });
    if (found == lists_.end()) {
      KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<CommandList> list, device_.CreateCommandList());
      KVRUN_RETURN_IF_ERROR(
          states.RecordLayer(*list, commands_, model_layer, chunk.n_rows, /*of_prompt=*/true, turn.place));
      KVRUN_RETURN_IF_ERROR(commands_.AfterAttention(*list, model_layer, chunk.n_rows, turn.place));
      KVRUN_RETURN_IF_ERROR(list->Finish());
      lists_.push_back({chunk.n_rows, 0, 0, turn.place.hidden, nullptr, std::move(list)});
      found = std::prev(lists_.end());
    }
    turn.is_newer = true;
    KVRUN_ASSIGN_OR_RETURN(turn.value, device_.Submit(*found->after));
    turn.is_running = true;
    if (savings.empty() || savings[0].position != prompt_.begin + chunk.first_row + chunk.n_rows) continue;
    KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<CommandList> list, device_.CreateCommandList());
    KVRUN_RETURN_IF_ERROR(states.RecordSave(*list, model_layer, prompt_.sequence, *savings[0].to));
    KVRUN_RETURN_IF_ERROR(list->Finish());
    saving_lists_.push_back(std::move(list));
    KVRUN_ASSIGN_OR_RETURN(turn.value, device_.Submit(*saving_lists_.back()));
    savings = savings.subspan(1);
  }
  return IsLast(model_layer) ? Status::Ok()
                             : turns_.Bring(chunks_.front(), turns_.Of(chunks_.front()), nullptr);
}

}  // namespace kvrun
