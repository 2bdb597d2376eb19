#include "runtime/engine/pass/row_mass.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "platform/base/check.h"
#include "shaders/shared/step_params.h"

namespace kvrun {

Status RowMass::BeginSums(std::span<const float> queries, std::span<const uint32_t> positions) {
  const auto n_rows = static_cast<uint32_t>(positions.size());
  KVRUN_CHECK(n_rows > 0 && n_rows <= KVRUN_MAX_STEP_TOKENS && queries.size() == n_rows * config_.q_dim());
  Drop();
  const uint64_t sum_bytes = uint64_t{n_rows} * config_.n_heads * 2 * sizeof(float);
  KVRUN_ASSIGN_OR_RETURN(sums_, MakeBuffer(sum_bytes, BufferUse::kDevice));
  KVRUN_ASSIGN_OR_RETURN(step_, MakeBuffer(sizeof(StepParams), BufferUse::kUpload));
  KVRUN_ASSIGN_OR_RETURN(rows_, MakeBuffer(queries.size_bytes(), BufferUse::kUpload));
  std::memcpy(rows_->host().data(), queries.data(), queries.size_bytes());
  auto* params = reinterpret_cast<StepParams*>(step_->host().data());
  params->n_tokens = n_rows;
  for (uint32_t i = 0; i < n_rows; ++i) params->tokens[i].position = positions[i];
  n_rows_ = n_rows;
  is_first_ = true;
  return Status::Ok();
}

void RowMass::Drop() {
  rows_.reset();
  step_.reset();
  sums_.reset();
}

RowMassArgs RowMass::ArgsOf(const Keys& tile) const {
  RowMassArgs args;
  args.queries = rows_.get();
  args.step = step_.get();
  args.n_rows = n_rows_;
  args.n_heads = config_.n_heads;
  args.sums = sums_.get();
  args.kv = tile.kv;
  args.kv_shape = tile.shape;
  args.tile_begin = tile.begin;
  args.n_entries = tile.n_entries;
  return args;
}

Status RowMass::Execute(Status (CommandList::*operation)(const RowMassArgs&), const RowMassArgs& args) {
  KVRUN_ASSIGN_OR_RETURN(const std::unique_ptr<CommandList> list, device_.CreateCommandList());
  KVRUN_RETURN_IF_ERROR((list.get()->*operation)(args));
  KVRUN_RETURN_IF_ERROR(list->Finish());
  return device_.Execute(*list);
}

Status RowMass::AddSums(const Keys& tile) {
  RowMassArgs args = ArgsOf(tile);
  args.is_first = std::exchange(is_first_, false);
  return Execute(&CommandList::SumWeights, args);
}

Status RowMass::GiveTile(const Keys& tile, uint32_t end, const MassForm& form, Buffer& given) {
  RowMassArgs args = ArgsOf(tile);
  args.n_entries = std::min(tile.n_entries, end - tile.begin);
  args.mass = &given;
  args.mass_stride = end;
  args.mass_begin = tile.begin;
  args.form = form;
  return Execute(&CommandList::AttentionMass, args);
}

Status RowMass::Run(const TileFn& tiles, const MassForm& form, uint32_t end, std::span<float> mass) {
  KVRUN_CHECK(has_sums() && mass.size() == size_t{form.n_moments} * config_.n_kv_heads * end);
  KVRUN_ASSIGN_OR_RETURN(const std::unique_ptr<Buffer> given,
                         MakeBuffer(mass.size_bytes(), BufferUse::kShared));  // zeros
  uint32_t tile_end = 0;
  for (uint32_t tile = 0; tile_end < end; ++tile) {
    KVRUN_ASSIGN_OR_RETURN(const Keys keys, tiles(tile));
    KVRUN_RETURN_IF_ERROR(GiveTile(keys, end, form, *given));
    tile_end = keys.begin + keys.n_entries;
  }
  KVRUN_RETURN_IF_ERROR(given->Invalidate(0, given->size_bytes()));
  std::memcpy(mass.data(), given->host().data(), mass.size_bytes());
  Drop();
  return Status::Ok();
}

}  // namespace kvrun
