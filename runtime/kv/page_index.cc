#include "runtime/kv/page_index.h"

#include <algorithm>

#include "platform/base/check.h"
#include "runtime/device/record_codec.h"
#include "runtime/kv/host_buffer.h"
#include "runtime/kv/index_rows.h"
#include "runtime/model/tensor_type.h"

namespace kvrun {

Result<std::unique_ptr<PageIndex>> PageIndex::Create(Device& device, const KvPlan& plan, uint32_t n_layers,
                                                     PageBoundsFn bounds) {
  KVRUN_CHECK(plan.index.rows() == 1 && plan.index.type == KvType::kF16);
  KVRUN_CHECK(plan.index.rank == 2 * plan.key_dim());
  std::unique_ptr<PageIndex> index(new PageIndex(plan, bounds));
  const size_t columns = size_t{plan.record.n_heads} * plan.record.head_dim;
  index->keys_.resize(plan.record.group_tokens * columns);
  index->bounds_of_page_.resize(2 * columns);
  index->rows_.resize(n_layers);
  for (std::unique_ptr<Buffer>& rows : index->rows_) {
    KVRUN_ASSIGN_OR_RETURN(rows, device.CreateBuffer(plan.index.size_bytes(), BufferUse::kShared, "kv"));
  }
  KVRUN_ASSIGN_OR_RETURN(index->scales_, CreateUnitScales(device, plan.index));
  return index;
}

void PageIndex::FillScore(uint32_t layer, ScoreArgs* args) const {
  args->sides = {.scales = scales_.get()};
  args->index = rows_[layer].get();
  args->index_shape = plan_.index;
  args->query_form = QueryForm::kSigned;
}

Status PageIndex::NoteStored(uint32_t layer, uint32_t stream, uint32_t first_group,
                             std::span<const std::byte> records) {
  const IndexShape& shape = plan_.index;
  const uint64_t record_bytes = plan_.record.size_bytes();
  const uint32_t heads = plan_.heads_per_sequence();
  const size_t columns = size_t{plan_.record.n_heads} * plan_.record.head_dim;
  const std::span<float> upper = std::span(bounds_of_page_).first(columns);
  const std::span<float> lower = std::span(bounds_of_page_).last(columns);
  const uint64_t page_bytes = uint64_t{shape.group_words()} * sizeof(uint32_t);
  const uint64_t first = (uint64_t{stream / heads} * shape.n_groups + first_group) * page_bytes;
  const auto n = static_cast<uint32_t>(records.size() / record_bytes);
  std::byte* const rows = rows_[layer]->host().data() + first;
  for (uint32_t i = 0; i < n; ++i) {
    DecodeKeys(plan_.record, records.subspan(i * record_bytes, record_bytes), static_cast<uint32_t>(columns),
               keys_);
    bounds_(keys_, upper, lower);
    auto* const row = reinterpret_cast<uint16_t*>(rows + i * page_bytes) + stream % heads * columns;
    std::transform(upper.begin(), upper.end(), row, FloatToHalf);
    std::transform(lower.begin(), lower.end(), row + plan_.key_dim(), FloatToHalf);
  }
  return rows_[layer]->Flush(first, n * page_bytes);
}

}  // namespace kvrun
