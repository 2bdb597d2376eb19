// Attention over KV in slots, and new entries into the window's.
#include <algorithm>
#include <cstring>

#include "platform/base/check.h"
#include "platform/base/units.h"
#include "runtime/device/host/attend_work.h"
#include "runtime/device/host/operations.h"
#include "runtime/device/host/record_place.h"
#include "runtime/device/host/rope.h"
#include "runtime/device/record_codec.h"

namespace kvrun::host {
namespace {

// Records that are attended to together. No slots: nothing.
struct Slots {
  const std::byte* records = nullptr;
  const uint32_t* table = nullptr;
  const SlotShape* shape = nullptr;
  uint64_t record_bytes = 0;

  static Slots Of(const Buffer* records, const Buffer* table, const SlotShape& shape) {
    if (records == nullptr || shape.n_slots == 0) return {};
    return {Data<std::byte>(records), Data<uint32_t>(table), &shape, shape.record.size_bytes()};
  }
  uint32_t StreamOf(uint32_t sequence, uint32_t kv_head, uint32_t n_kv_heads) const {
    const uint32_t heads = shape->record.n_heads;
    return sequence * (n_kv_heads / heads) + kv_head / heads;
  }
  const uint32_t* TableOf(uint32_t stream) const { return table + size_t{stream} * (2 + shape->table_slots); }
  uint32_t CountEntries(uint32_t stream) const {
    const uint32_t* of_stream = TableOf(stream);
    return of_stream[0] == 0 ? 0 : (of_stream[0] - 1) * shape->record.group_tokens + of_stream[1];
  }
  const std::byte* Record(uint32_t stream, uint32_t slot) const {
    return records + (size_t{stream} * shape->n_slots + slot) * record_bytes;
  }
};

// The entries that the tables name: of the slots, then of the window apart.
class SlottedKv {
 public:
  explicit SlottedKv(const SlotAttentionArgs& args)
      : step_(*Data<StepParams>(args.attention.step)),
        n_kv_heads_(args.attention.kv_shape.n_kv_heads),
        sources_{Slots::Of(args.slots, args.table, args.shape),
                 Slots::Of(args.window, args.window_table, args.window_shape)} {}

  uint32_t CountBlocks(const AttendItem& item) const {
    uint32_t n_blocks = 0;
    for (const Slots& source : sources_) n_blocks += CountBlocksOf(source, item);
    return std::max(n_blocks, 1U);
  }

  void LoadBlock(const AttendItem& item, uint32_t nth, KvBlock* block) const {
    const uint32_t n_first = CountBlocksOf(sources_[0], item);
    const Slots& source = sources_[nth < n_first ? 0 : 1];
    block->n_entries = 0;
    if (source.shape != nullptr) LoadEntries(source, item, nth < n_first ? nth : nth - n_first, block);
    for (uint32_t r = 0; r < item.n_rows; ++r) block->visible[r] = block->n_entries;
  }

 private:
  uint32_t StreamOf(const Slots& source, const AttendItem& item) const {
    return source.StreamOf(step_.tokens[item.first_token].sequence, item.kv_head, n_kv_heads_);
  }
  uint32_t CountBlocksOf(const Slots& source, const AttendItem& item) const {
    if (source.shape == nullptr) return 0;
    return CeilDiv(source.CountEntries(StreamOf(source, item)), kBlockEntries);
  }

  void LoadEntries(const Slots& source, const AttendItem& item, uint32_t nth, KvBlock* block) const {
    const KvRecordShape& record = source.shape->record;
    const uint32_t stream = StreamOf(source, item);
    const uint32_t begin = nth * kBlockEntries;
    const uint32_t n_entries = source.CountEntries(stream);
    const uint32_t n = n_entries > begin ? std::min(n_entries - begin, kBlockEntries) : 0;
    block->k_type = record.k_type;
    block->v_type = record.v_type;
    block->n_entries = n;
    const PlanePlace k(record, false);
    const PlanePlace v(record, true);
    const uint32_t* slots = source.TableOf(stream) + 2;
    const size_t first_row = size_t{item.kv_head % record.n_heads} * record.group_tokens;
    uint32_t group = begin / record.group_tokens;
    uint32_t entry = begin % record.group_tokens;
    for (uint32_t i = 0; i < n; ++group, entry = 0) {
      const std::byte* at = source.Record(stream, slots[group]);
      for (; entry < record.group_tokens && i < n; ++entry, ++i) {
        const size_t row = first_row + entry;
        block->k[i] = at + k.row(row);
        block->v[i] = at + v.row(row);
        block->k_scales[i] = at + k.scales(row);
        block->v_scales[i] = at + v.scales(row);
      }
    }
  }

  const StepParams& step_;
  uint32_t n_kv_heads_;
  Slots sources_[2];
};

void CheckSlots(const SlotAttentionArgs& args, const Buffer* slots, const SlotShape& shape) {
  const KvShape& kv = args.attention.kv_shape;
  const KvRecordShape& record = shape.record;
  KVRUN_CHECK(record.head_dim == kv.head_dim && kv.head_dim % 2 == 0 && kv.head_dim <= kMaxHeadDim);
  KVRUN_CHECK(record.n_heads == kv.n_kv_heads || record.n_heads == 1);
  KVRUN_CHECK(record.group_tokens > 0 && args.attention.n_heads % kv.n_kv_heads == 0);
  KVRUN_CHECK(shape.n_streams == kv.n_sequences * (kv.n_kv_heads / record.n_heads));
  KVRUN_CHECK(shape.n_window_slots <= shape.n_slots);
  KVRUN_CHECK(shape.n_slots == 0 || slots->size_bytes() >= shape.size_bytes());
}

// Each token attends on its own.
AttentionArgs ApartFrom(const AttentionArgs& args) {
  AttentionArgs apart = args;
  apart.one_sequence = false;
  apart.is_prompt = false;
  apart.parts_after = nullptr;
  apart.parts_before = nullptr;
  return apart;
}

// A row of K or V into its place. Scales are stored as halves: a word of them may have several writers.
void EncodeRow(const KvRecordShape& record, bool is_value, uint32_t row, const float* from, std::byte* to) {
  const PlanePlace place(record, is_value);
  const KvType type = place.type;
  std::byte* elements = to + place.row(row);
  if (type == KvType::kF32) {
    std::memcpy(elements, from, record.head_dim * sizeof(float));
    return;
  }
  if (type == KvType::kF16) {
    FloatsToHalves(from, record.head_dim, reinterpret_cast<uint16_t*>(elements));
    return;
  }
  // As K of a record of one entry, with V that says nothing.
  const KvRecordShape floats{KvType::kF32, KvType::kF32, 1, record.head_dim, 1};
  const KvRecordShape encoded{type, type, 1, record.head_dim, 1};
  alignas(16) std::byte source[2 * kMaxHeadDim * sizeof(float)] = {};
  alignas(16) std::byte result[2 * kMaxHeadDim * sizeof(float)];
  std::memcpy(source, from, record.head_dim * sizeof(float));
  TranscodeRecord(floats, source, encoded, result);
  const PlanePlace one(encoded, false);
  std::memcpy(elements, result, one.row_bytes);
  std::memcpy(to + place.scales(row), result + one.scales_begin, one.row_scales_bytes);
}

}  // namespace

void RopeAndEncode(ThreadPool& pool, const SlotAttentionArgs& args) {
  const bool is_apart = args.window != nullptr;
  Buffer* slots = is_apart ? args.window : args.slots;
  const SlotShape& shape = is_apart ? args.window_shape : args.shape;
  CheckSlots(args, slots, shape);
  KVRUN_CHECK(shape.n_window_slots >= 1);
  const KvRecordShape& record = shape.record;
  const StepParams& step = *Data<StepParams>(args.attention.step);
  const uint32_t streams = args.attention.kv_shape.n_kv_heads / record.n_heads;
  RopeHeads(pool, args.attention, [&](uint32_t token, uint32_t kv_head, bool is_value, const float* row) {
    const uint32_t position = step.tokens[token].position;
    const size_t stream = size_t{step.tokens[token].sequence} * streams + kv_head / record.n_heads;
    const uint32_t slot =
        shape.n_slots - shape.n_window_slots + (position / record.group_tokens) % shape.n_window_slots;
    EncodeRow(record, is_value,
              kv_head % record.n_heads * record.group_tokens + position % record.group_tokens, row,
              Data<std::byte>(slots) + (stream * shape.n_slots + slot) * record.size_bytes());
  });
}

uint64_t AttendSlotsScratchBytes(const SlotAttentionArgs& args) {
  return CutPartsBytes(ApartFrom(args.attention));
}

void AttendSlots(ThreadPool& pool, const SlotAttentionArgs& args) {
  if (args.shape.n_slots != 0) CheckSlots(args, args.slots, args.shape);
  if (args.window != nullptr) CheckSlots(args, args.window, args.window_shape);
  const AttentionArgs attention = ApartFrom(args.attention);
  const SlottedKv source(args);
  const AttendItems items(attention, pool.size());
  AttendWork(pool, attention, items, source, /*rounds=*/false).Run();
}

}  // namespace kvrun::host
