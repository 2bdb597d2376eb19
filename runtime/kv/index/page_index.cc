#include "runtime/kv/index/page_index.h"

#include <algorithm>

#include "platform/base/check.h"
#include "runtime/device/record_codec.h"
#include "runtime/kv/index/index_rows.h"
#include "runtime/kv/memory/host_buffer.h"
#include "runtime/model/tensor_type.h"

namespace kvrun {
namespace {

// In f16; its products with a query's columns add up to a score below any that keys have.
constexpr float kFarBound = 30000.0F;

// The nearest f16 that is no less (no more): what was a bound stays one.
uint16_t HalfAbove(float value) {
  const uint16_t half = FloatToHalf(value);
  if (!(HalfToFloat(half) < value)) return half;
  if ((half & 0x7FFFU) == 0) return 1;  // above a zero of either sign
  return static_cast<uint16_t>((half & 0x8000U) != 0 ? half - 1 : half + 1);
}
uint16_t HalfBelow(float value) { return HalfAbove(-value) ^ 0x8000U; }

}  // namespace

Result<std::unique_ptr<PageIndex>> PageIndex::Create(Device& device, const KvPlan& plan, uint32_t n_layers,
                                                     PageBoundsFn bounds, const EntrySpaces& spaces) {
  KVRUN_CHECK(plan.index.rows() == 1 && plan.index.type == KvType::kF16);
  KVRUN_CHECK(plan.index.rank == 2 * plan.key_dim());
  std::unique_ptr<PageIndex> index(new PageIndex(plan, bounds, spaces));
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

// Without entries, bounds that no query is near to.
void PageIndex::WritePage(uint32_t layer, uint32_t stream, uint32_t group, std::span<const std::byte> record,
                          std::span<const uint32_t> left_out) {
  const size_t columns = size_t{plan_.record.n_heads} * plan_.record.head_dim;
  const std::span<float> upper = std::span(bounds_of_page_).first(columns);
  const std::span<float> lower = std::span(bounds_of_page_).last(columns);
  spaces_.DecodeKeys(layer, stream, plan_.record, record, static_cast<uint32_t>(columns), keys_);
  size_t n = 0;
  for (uint32_t entry = 0; entry < plan_.record.group_tokens; ++entry) {
    if (std::binary_search(left_out.begin(), left_out.end(), entry)) continue;
    const auto key = keys_.begin() + static_cast<std::ptrdiff_t>(entry * columns);
    if (n != entry) std::copy_n(key, columns, keys_.begin() + static_cast<std::ptrdiff_t>(n * columns));
    ++n;
  }
  if (n > 0) {
    bounds_(std::span(keys_).first(n * columns), upper, lower);
  } else {
    std::fill(upper.begin(), upper.end(), -kFarBound);
    std::fill(lower.begin(), lower.end(), kFarBound);
  }
  std::byte* const page = rows_[layer]->host().data() + PageOffset(stream, group);
  auto* const row = reinterpret_cast<uint16_t*>(page) + stream % plan_.heads_per_sequence() * columns;
  std::transform(upper.begin(), upper.end(), row, HalfAbove);
  std::transform(lower.begin(), lower.end(), row + plan_.key_dim(), HalfBelow);
}

Status PageIndex::VisitState(StateVisitor& visitor, std::span<const uint32_t> lengths) {
  for (uint32_t layer = 0; layer < rows_.size(); ++layer) {
    for (uint32_t sequence = 0; sequence < lengths.size(); ++sequence) {
      const uint64_t n_groups = lengths[sequence] / plan_.record.group_tokens;
      KVRUN_RETURN_IF_ERROR(VisitBytes(visitor, {StatePart::kIndex, 0, layer, sequence}, *rows_[layer],
                                       PageOffset(sequence * plan_.heads_per_sequence(), 0),
                                       n_groups * page_bytes()));
    }
  }
  return Status::Ok();
}

Status PageIndex::TakeOut(uint32_t layer, uint32_t stream, uint32_t group, std::span<const std::byte> record,
                          std::span<const uint32_t> entries) {
  if (record.empty()) return Status::Ok();  // a row is written when the page is whole
  WritePage(layer, stream, group, record, entries);
  return rows_[layer]->Flush(PageOffset(stream, group), page_bytes());
}

Status PageIndex::NoteStored(uint32_t layer, uint32_t stream, uint32_t first_group,
                             std::span<const std::byte> records) {
  const uint64_t record_bytes = plan_.record.size_bytes();
  const auto n = static_cast<uint32_t>(records.size() / record_bytes);
  for (uint32_t i = 0; i < n; ++i) {
    WritePage(layer, stream, first_group + i, records.subspan(i * record_bytes, record_bytes), {});
  }
  return rows_[layer]->Flush(PageOffset(stream, first_group), n * page_bytes());
}

}  // namespace kvrun
