// Attention over KV in slots, and new entries into the window's.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <span>

#include "platform/base/check.h"
#include "platform/base/units.h"
#include "runtime/device/host/attend_work.h"
#include "runtime/device/host/operations.h"
#include "runtime/device/host/record_place.h"
#include "runtime/device/host/rope.h"
#include "runtime/device/record_codec.h"

namespace kvrun::host {
namespace {

// Of a SlotSource, what attention reads. No shape: nothing.
struct Slots {
  const std::byte* records = nullptr;
  const uint32_t* table = nullptr;
  const SlotShape* shape = nullptr;
  uint64_t record_bytes = 0;

  static Slots Of(const SlotSource& source) {
    const SlotShape& shape = source.shape;
    if (shape.n_slots == 0) return {};
    return {Data<std::byte>(source.slots), Data<uint32_t>(source.table), &shape, shape.record.size_bytes()};
  }
  uint32_t StreamOf(uint32_t sequence, uint32_t kv_head, uint32_t n_kv_heads) const {
    const uint32_t heads = shape->record.n_heads;
    return sequence * (n_kv_heads / heads) + kv_head / heads;
  }
  const uint32_t* TableOf(uint32_t stream) const { return table + size_t{stream} * shape->table_words(); }
  // With biases those that do not count are among them: blocks leave them out.
  uint32_t CountEntries(uint32_t stream) const {
    const uint32_t* of_stream = TableOf(stream);
    if (shape->has_biases) return of_stream[0] * shape->record.group_tokens;
    return of_stream[0] == 0 ? 0 : (of_stream[0] - 1) * shape->record.group_tokens + of_stream[1];
  }
  const std::byte* Record(uint32_t stream, uint32_t slot) const {
    return records + (size_t{stream} * shape->n_slots + slot) * record_bytes;
  }
};

// The entries that the tables name, source after source.
class SlottedKv {
 public:
  explicit SlottedKv(const SlotAttentionArgs& args)
      : step_(*Data<StepParams>(args.attention.step)), n_kv_heads_(args.attention.kv_shape.n_kv_heads) {
    for (const SlotSource& source : args.used()) {
      if (source.shape.n_slots != 0) sources_.at(n_sources_++) = Slots::Of(source);
    }
  }

  uint32_t CountBlocks(const AttendItem& item) const {
    uint32_t n_blocks = 0;
    for (const Slots& source : sources()) n_blocks += CountBlocksOf(source, item);
    return std::max(n_blocks, 1U);
  }

  void LoadBlock(const AttendItem& item, uint32_t nth, KvBlock* block) const {
    block->n_entries = 0;
    for (const Slots& source : sources()) {
      const uint32_t n_blocks = CountBlocksOf(source, item);
      if (nth < n_blocks) {
        if (source.shape->has_biases)
          LoadEntries<true>(source, item, nth, block);
        else
          LoadEntries<false>(source, item, nth, block);
        break;
      }
      nth -= n_blocks;
    }
    for (uint32_t r = 0; r < item.n_rows; ++r) block->visible[r] = block->n_entries;
  }

 private:
  std::span<const Slots> sources() const { return std::span(sources_).first(n_sources_); }
  uint32_t StreamOf(const Slots& source, const AttendItem& item) const {
    return source.StreamOf(step_.tokens[item.first_token].sequence, item.kv_head, n_kv_heads_);
  }
  uint32_t CountBlocksOf(const Slots& source, const AttendItem& item) const {
    return CeilDiv(source.CountEntries(StreamOf(source, item)), kBlockEntries);
  }

  template <bool kHasBiases>
  void LoadEntries(const Slots& source, const AttendItem& item, uint32_t nth, KvBlock* block) const {
    const KvRecordShape& record = source.shape->record;
    const uint32_t stream = StreamOf(source, item);
    const uint32_t begin = nth * kBlockEntries;
    const uint32_t end = std::min(begin + kBlockEntries, source.CountEntries(stream));
    block->k_type = record.k_type;
    block->v_type = record.v_type;
    block->has_biases = kHasBiases;
    const PlanePlace k(record, false);
    const PlanePlace v(record, true);
    const uint32_t* slots = source.TableOf(stream) + 2;
    const size_t first_row = size_t{item.kv_head % record.n_heads} * record.group_tokens;
    uint32_t n = 0;
    for (uint32_t group = begin / record.group_tokens; group * record.group_tokens < end; ++group) {
      const uint32_t first = group * record.group_tokens;
      uint32_t slot = slots[group];
      uint32_t end_entry = std::min(record.group_tokens, end - first);
      float bias = 0.0F;
      if constexpr (kHasBiases) {
        end_entry = std::min(end_entry, slot / SlotShape::kMostBiasedSlots + 1);
        slot %= SlotShape::kMostBiasedSlots;
        bias = std::bit_cast<float>(slots[source.shape->table_slots + group]);
      }
      const std::byte* at = source.Record(stream, slot);
      for (uint32_t entry = begin > first ? begin - first : 0; entry < end_entry; ++entry, ++n) {
        const size_t row = first_row + entry;
        block->k[n] = at + k.row(row);
        block->v[n] = at + v.row(row);
        block->k_scales[n] = at + k.scales(row);
        block->v_scales[n] = at + v.scales(row);
        if constexpr (kHasBiases) block->biases[n] = bias;
      }
    }
    block->n_entries = n;
    if constexpr (kHasBiases) std::fill(block->biases + n, block->biases + kBlockEntries, 0.0F);
  }

  const StepParams& step_;
  uint32_t n_kv_heads_;
  std::array<Slots, kMaxSlotSources> sources_;  // those that have slots
  uint32_t n_sources_ = 0;
};

void CheckSource(const SlotAttentionArgs& args, const SlotSource& source) {
  const KvShape& kv = args.attention.kv_shape;
  const SlotShape& shape = source.shape;
  const KvRecordShape& record = shape.record;
  KVRUN_CHECK(record.head_dim == kv.head_dim && kv.head_dim % 2 == 0 && kv.head_dim <= kMaxHeadDim);
  KVRUN_CHECK(record.n_heads == kv.n_kv_heads || record.n_heads == 1);
  KVRUN_CHECK(record.group_tokens > 0 && args.attention.n_heads % kv.n_kv_heads == 0);
  KVRUN_CHECK(shape.n_streams == kv.n_sequences * (kv.n_kv_heads / record.n_heads));
  KVRUN_CHECK(shape.n_window_slots <= shape.n_slots);
  KVRUN_CHECK(shape.fits_table());
  KVRUN_CHECK(source.slots->size_bytes() >= shape.size_bytes());
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
  const SlotSource& window = args.window();
  const SlotShape& shape = window.shape;
  CheckSource(args, window);
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
              Data<std::byte>(window.slots) + (stream * shape.n_slots + slot) * record.size_bytes());
  });
}

uint64_t AttendSlotsScratchBytes(const SlotAttentionArgs& args) {
  return CutPartsBytes(ApartFrom(args.attention));
}

void AttendSlots(ThreadPool& pool, const SlotAttentionArgs& args) {
  for (const SlotSource& source : args.used()) {
    if (source.shape.n_slots == 0) continue;
    CheckSource(args, source);
    KVRUN_CHECK(source.table->size_bytes() >= source.shape.table_bytes());
  }
  const AttentionArgs attention = ApartFrom(args.attention);
  const SlottedKv source(args);
  const AttendItems items(attention, pool.size());
  AttendWork(pool, attention, items, source, /*rounds=*/false).Run();
}

}  // namespace kvrun::host
