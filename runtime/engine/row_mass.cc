#include "runtime/engine/row_mass.h"

#include <algorithm>
#include <cstring>

#include "platform/base/check.h"
#include "shaders/shared/step_params.h"

namespace kvrun {

Status RowMass::Run(std::span<const float> queries, std::span<const uint32_t> positions, uint32_t n_tiles,
                    const TileFn& tiles, const MassForm& form, uint32_t end, std::span<float> mass) {
  const auto n_rows = static_cast<uint32_t>(positions.size());
  KVRUN_CHECK(n_rows > 0 && n_rows <= KVRUN_MAX_STEP_TOKENS && queries.size() == n_rows * config_.q_dim());
  KVRUN_CHECK(mass.size() == size_t{form.n_moments} * config_.n_kv_heads * end);
  KVRUN_ASSIGN_OR_RETURN(const std::unique_ptr<Buffer> rows,
                         MakeBuffer(queries.size_bytes(), BufferUse::kUpload));
  KVRUN_ASSIGN_OR_RETURN(const std::unique_ptr<Buffer> step,
                         MakeBuffer(sizeof(StepParams), BufferUse::kUpload));
  const uint64_t sum_bytes = uint64_t{n_rows} * config_.n_heads * 2 * sizeof(float);
  KVRUN_ASSIGN_OR_RETURN(const std::unique_ptr<Buffer> sums, MakeBuffer(sum_bytes, BufferUse::kDevice));
  KVRUN_ASSIGN_OR_RETURN(const std::unique_ptr<Buffer> given,
                         MakeBuffer(mass.size_bytes(), BufferUse::kShared));  // zeros
  std::memcpy(rows->host().data(), queries.data(), queries.size_bytes());
  auto* params = reinterpret_cast<StepParams*>(step->host().data());
  params->n_tokens = n_rows;
  for (uint32_t i = 0; i < n_rows; ++i) params->tokens[i].position = positions[i];

  RowMassArgs args;
  args.queries = rows.get();
  args.step = step.get();
  args.n_rows = n_rows;
  args.n_heads = config_.n_heads;
  args.sums = sums.get();
  args.mass = given.get();
  args.mass_stride = end;
  args.form = form;
  for (const bool is_sum : {true, false}) {
    for (uint32_t tile = 0; tile < n_tiles; ++tile) {
      KVRUN_ASSIGN_OR_RETURN(const Keys keys, tiles(tile));
      args.kv = keys.kv;
      args.kv_shape = keys.shape;
      args.tile_begin = keys.begin;
      args.mass_begin = keys.begin;
      args.n_entries = keys.n_entries;
      args.is_first = tile == 0;
      if (!is_sum && keys.begin >= end) break;
      if (!is_sum) args.n_entries = std::min(keys.n_entries, end - keys.begin);
      KVRUN_ASSIGN_OR_RETURN(const std::unique_ptr<CommandList> list, device_.CreateCommandList());
      KVRUN_RETURN_IF_ERROR(is_sum ? list->SumWeights(args) : list->AttentionMass(args));
      KVRUN_RETURN_IF_ERROR(list->Finish());
      KVRUN_RETURN_IF_ERROR(device_.Execute(*list));
    }
  }
  KVRUN_RETURN_IF_ERROR(given->Invalidate(0, given->size_bytes()));
  std::memcpy(mass.data(), given->host().data(), mass.size_bytes());
  return Status::Ok();
}

}  // namespace kvrun
