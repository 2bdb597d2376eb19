#include "runtime/engine/measure/random_kv.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "platform/base/random.h"
#include "platform/base/units.h"
#include "runtime/model/tensor_type.h"

namespace kvrun {
namespace {

// Written at once: one request of the store or more.
constexpr uint64_t kBlockBytes = uint64_t{1} << 20;

// Rows of K or of V: magnitudes up to about 1, with ScaleOf.
void FillRows(KvType type, Random& random, std::span<std::byte> rows) {
  const auto put = [&](size_t at, const auto& value) {
    std::memcpy(rows.data() + at, &value, sizeof(value));
  };
  switch (type) {
    case KvType::kF32:
      for (size_t at = 0; at < rows.size(); at += sizeof(float)) put(at, random.Symmetric());
      return;
    case KvType::kF16:
      for (size_t at = 0; at < rows.size(); at += sizeof(uint16_t)) put(at, FloatToHalf(random.Symmetric()));
      return;
    case KvType::kFp8:
    case KvType::kInt8:
    case KvType::kInt4:
      for (size_t at = 0; at < rows.size(); at += sizeof(uint32_t)) {
        // Bits of exponents that are not all set: fp8 has a NaN there.
        const auto mask = type == KvType::kFp8 ? 0xbfbfbfbfU : 0xffffffffU;
        put(at, static_cast<uint32_t>(random.Next()) & mask);
      }
      return;
  }
}

float ScaleOf(KvType type) {
  switch (type) {
    case KvType::kFp8: return 0.5F;  // without the highest bit of the exponent: below 2
    case KvType::kInt8: return 1.0F / 127;
    case KvType::kInt4: return 1.0F / 8;
    case KvType::kF16:
    case KvType::kF32: break;
  }
  return 1.0F;
}

void FillRecord(const KvRecordShape& shape, Random& random, std::span<std::byte> record) {
  const size_t k_bytes = size_t{shape.v_begin_words()} * sizeof(uint32_t);
  const size_t rows_bytes = size_t{shape.scales_begin_words()} * sizeof(uint32_t);
  FillRows(shape.k_type, random, record.first(k_bytes));
  FillRows(shape.v_type, random, record.subspan(k_bytes, rows_bytes - k_bytes));
  const uint32_t k_halves = shape.v_scales_begin();
  const uint32_t n_halves = k_halves + shape.n_rows() * shape.row_scales(shape.v_type);
  for (uint32_t i = 0; i < n_halves; ++i) {
    const uint16_t half = FloatToHalf(ScaleOf(i < k_halves ? shape.k_type : shape.v_type));
    std::memcpy(record.data() + rows_bytes + i * sizeof(half), &half, sizeof(half));
  }
}

std::vector<std::byte> RandomRecords(const KvRecordShape& shape, uint32_t n, Random& random) {
  std::vector<std::byte> records(n * shape.size_bytes());
  for (uint32_t i = 0; i < n; ++i) {
    FillRecord(shape, random, std::span(records).subspan(i * shape.size_bytes(), shape.size_bytes()));
  }
  return records;
}

}  // namespace

Status FillRandomly(PromptRecords& cache, uint32_t n_layers, uint32_t sequence, uint32_t n_entries) {
  const KvPlan& plan = cache.plan();
  const uint32_t heads = plan.n_streams / plan.n_sequences;
  const uint64_t record_bytes = plan.record.size_bytes();
  const uint32_t n_groups = n_entries / plan.record.group_tokens;
  const auto n_at_once = static_cast<uint32_t>(
      std::clamp<uint64_t>(kBlockBytes / (heads * record_bytes), 1, std::max(n_groups, 1U)));
  Random random(sequence);
  const std::vector<std::byte> block = RandomRecords(plan.record, heads * n_at_once, random);
  const uint32_t first_in_window = cache.FirstWindowGroup(n_entries);
  const uint32_t n_in_window = CeilDiv(n_entries, plan.record.group_tokens) - first_in_window;
  const std::vector<std::byte> window = RandomRecords(plan.window.record, heads * n_in_window, random);
  KVRUN_RETURN_IF_ERROR(cache.BeginPrefill(sequence, 0));
  for (uint32_t layer = 0; layer < n_layers; ++layer) {
    if (cache.stores_layers()) {
      KVRUN_RETURN_IF_ERROR(cache.StoreRepeated(layer, sequence, n_entries, block));
    }
    for (uint32_t group = 0; group < n_groups && !cache.stores_layers(); group += n_at_once) {
      const uint32_t n = std::min(n_at_once, n_groups - group);
      KVRUN_RETURN_IF_ERROR(
          cache.AppendGroups(layer, sequence, group, n, std::span(block).first(n * heads * record_bytes)));
    }
    if (n_in_window > 0) {
      KVRUN_RETURN_IF_ERROR(cache.PutWindow(layer, first_in_window, n_in_window, window));
    }
    if (cache.index() == nullptr) continue;
    KVRUN_RETURN_IF_ERROR(cache.index()->FillAtRandom(layer, sequence, n_entries, random));
  }
  if (cache.index() != nullptr) cache.index()->NoteReady();
  cache.ChooseStaticsEvenly(sequence, n_entries);
  return cache.EndPrefill(sequence, n_entries);
}

Status FillRandomly(Device& device, const KvShape& shape, std::span<Buffer* const> layers,
                    uint32_t n_entries) {
  if (n_entries == 0) return Status::Ok();
  // Sequences lie one after another, as more heads of one would.
  KvShape all = shape;
  all.n_kv_heads *= all.n_sequences;
  all.n_sequences = 1;
  const KvRecordShape record{.k_type = shape.type,
                             .v_type = shape.type,
                             .n_heads = all.n_kv_heads,
                             .head_dim = all.head_dim,
                             .group_tokens = 1};
  const auto n_at_once =
      static_cast<uint32_t>(std::clamp<uint64_t>(kBlockBytes / record.size_bytes(), 1, n_entries));
  Random random(0);
  const std::vector<std::byte> block = RandomRecords(record, n_at_once, random);
  KVRUN_ASSIGN_OR_RETURN(const std::unique_ptr<Buffer> records,
                         device.CreateBuffer(block.size(), BufferUse::kShared, "kv"));
  std::memcpy(records->host().data(), block.data(), block.size());
  KVRUN_RETURN_IF_ERROR(records->Flush(0, block.size()));
  for (Buffer* layer : layers) {
    KVRUN_ASSIGN_OR_RETURN(const std::unique_ptr<CommandList> list, device.CreateCommandList());
    for (uint32_t first = 0; first < n_entries; first += n_at_once) {
      KVRUN_RETURN_IF_ERROR(list->DecodeRecords(*records, record, {}, std::min(n_at_once, n_entries - first),
                                                first, all, layer));
    }
    KVRUN_RETURN_IF_ERROR(list->Finish());
    KVRUN_RETURN_IF_ERROR(device.Execute(*list));
  }
  return Status::Ok();
}

}  // namespace kvrun
