// Attention over KV in slots, and new entries into the window's.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <span>

#include "platform/base/check.h"
#include "platform/base/units.h"
#include "runtime/device/entry_space.h"
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
  float* mass = nullptr;

  static Slots Of(const SlotSource& source) {
    const SlotShape& shape = source.shape;
    if (shape.n_slots == 0) return {};
    return {Data<std::byte>(source.slots), Data<uint32_t>(source.table), &shape, shape.record.size_bytes(),
            source.mass != nullptr ? Data<float>(source.mass) : nullptr};
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
    return records + (size_t{stream} * shape->stream_slots() + slot) * record_bytes;
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

  // Its only block holds nothing.
  bool CountsNone(const AttendItem& item) const {
    return std::all_of(sources().begin(), sources().end(),
                       [&](const Slots& source) { return CountBlocksOf(source, item) == 0; });
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

  // Blocks of any item at most.
  static uint32_t MostBlocks(const SlotAttentionArgs& args) {
    uint32_t n_blocks = 0;
    for (const SlotSource& source : args.used()) {
      if (source.shape.n_slots == 0) continue;
      n_blocks += CeilDiv(source.shape.table_slots * source.shape.record.group_tokens, kBlockEntries);
    }
    return std::max(n_blocks, 1U);
  }

  // Joins what a block's entries were given into their source's mass: `given`, [n_moments, kBlockEntries].
  void AddMass(const AttendItem& item, uint32_t nth, const MassForm& form, uint32_t n_sequences,
               const float* given) const {
    for (const Slots& source : sources()) {
      const uint32_t n_blocks = CountBlocksOf(source, item);
      if (nth >= n_blocks) {
        nth -= n_blocks;
        continue;
      }
      if (source.mass == nullptr) return;
      const SlotShape& shape = *source.shape;
      const size_t list_entries = size_t{shape.n_slots} * shape.record.group_tokens;
      const size_t list = size_t{step_.tokens[item.first_token].sequence} * n_kv_heads_ + item.kv_head;
      const size_t n_lists = shape.is_shared ? 1 : size_t{n_sequences} * n_kv_heads_;
      float* const mass = source.mass + (shape.is_shared ? 0 : list * list_entries);
      uint32_t n = 0;
      const auto join = [&](uint32_t slot, uint32_t entry, uint32_t count, uint32_t /*group*/) {
        const size_t to = size_t{slot} * shape.record.group_tokens + entry;
        for (uint32_t moment = 0; moment < form.n_moments; ++moment) {
          JoinMass(form.rows, count, given + moment * kBlockEntries + n,
                   mass + moment * n_lists * list_entries + to);
        }
        n += count;
      };
      if (shape.has_biases)
        VisitRuns<true>(source, StreamOf(source, item), nth, join);
      else if (shape.record.group_tokens == 1)
        VisitSingles(source, StreamOf(source, item), nth, join);
      else
        VisitRuns<false>(source, StreamOf(source, item), nth, join);
      return;
    }
  }

 private:
  static void JoinMass(MassForm::Rows rows, uint32_t n, const float* given, float* mass) {
    switch (rows) {
      case MassForm::Rows::kAdd:
        for (uint32_t i = 0; i < n; ++i) mass[i] += given[i];
        break;
      case MassForm::Rows::kLargest:
        for (uint32_t i = 0; i < n; ++i) mass[i] = std::max(mass[i], given[i]);
        break;
      case MassForm::Rows::kReplace: std::copy_n(given, n, mass); break;
    }
  }
  // Visits entries as VisitRuns does, where each slot has one and all count: slots that follow each other at
  // once.
  template <typename Visit>
  static void VisitSingles(const Slots& source, uint32_t stream, uint32_t nth, const Visit& visit) {
    const uint32_t* const slots = source.TableOf(stream) + 2;
    const uint32_t end = std::min((nth + 1) * kBlockEntries, source.CountEntries(stream));
    for (uint32_t i = nth * kBlockEntries; i < end;) {
      uint32_t n = 1;
      while (i + n < end && slots[i + n] == slots[i] + n) ++n;
      visit(slots[i], 0, n, i);
      i += n;
    }
  }

  std::span<const Slots> sources() const { return std::span(sources_).first(n_sources_); }
  uint32_t StreamOf(const Slots& source, const AttendItem& item) const {
    return source.StreamOf(step_.tokens[item.first_token].sequence, item.kv_head, n_kv_heads_);
  }
  uint32_t CountBlocksOf(const Slots& source, const AttendItem& item) const {
    return CeilDiv(source.CountEntries(StreamOf(source, item)), kBlockEntries);
  }

  // The entries of the nth block of a source that count, in order: visit(slot, first entry of it, how many,
  // index of the slot in the table).
  template <bool kHasBiases, typename Visit>
  static void VisitRuns(const Slots& source, uint32_t stream, uint32_t nth, const Visit& visit) {
    const uint32_t group_tokens = source.shape->record.group_tokens;
    const uint32_t begin = nth * kBlockEntries;
    const uint32_t end = std::min(begin + kBlockEntries, source.CountEntries(stream));
    const uint32_t* const slots = source.TableOf(stream) + 2;
    for (uint32_t group = begin / group_tokens; group * group_tokens < end; ++group) {
      const uint32_t first = group * group_tokens;
      uint32_t slot = slots[group];
      uint32_t end_entry = std::min(group_tokens, end - first);
      if constexpr (kHasBiases) {
        end_entry = std::min(end_entry, slot / SlotShape::kMostBiasedSlots + 1);
        slot %= SlotShape::kMostBiasedSlots;
      }
      const uint32_t entry = begin > first ? begin - first : 0;
      if (entry < end_entry) visit(slot, entry, end_entry - entry, group);
    }
  }

  template <bool kHasBiases>
  void LoadEntries(const Slots& source, const AttendItem& item, uint32_t nth, KvBlock* block) const {
    const KvRecordShape& record = source.shape->record;
    const uint32_t stream = StreamOf(source, item);
    block->k_type = record.k_type;
    block->v_type = record.v_type;
    block->has_biases = kHasBiases;
    const PlanePlace k(record, false);
    const PlanePlace v(record, true);
    const uint32_t* const biases = source.TableOf(stream) + 2 + source.shape->table_slots;
    const size_t first_row = size_t{item.kv_head % record.n_heads} * record.group_tokens;
    uint32_t n = 0;
    VisitRuns<kHasBiases>(
        source, stream, nth, [&](uint32_t slot, uint32_t entry, uint32_t count, uint32_t group) {
          const std::byte* at = source.Record(stream, slot);
          for (size_t row = first_row + entry; row < first_row + entry + count; ++row, ++n) {
            block->k[n] = at + k.row(row);
            block->v[n] = at + v.row(row);
            block->k_scales[n] = at + k.scales(row);
            block->v_scales[n] = at + v.scales(row);
            if constexpr (kHasBiases) block->biases[n] = std::bit_cast<float>(biases[group]);
          }
        });
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
  KVRUN_CHECK(source.mass == nullptr || !shape.is_shared || record.n_heads == 1);
}

// Each token attends on its own.
AttentionArgs ApartFrom(const AttentionArgs& args) {
  AttentionArgs apart = args;
  apart.of_prompt = false;
  apart.parts_after = {};
  apart.parts_before = {};
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

// Rows of the output back out of the records' space. A few rows take less time than waking a thread.
void TakeOutputBack(ThreadPool& pool, const SlotAttentionArgs& args) {
  const AttentionArgs& attention = args.attention;
  const uint32_t n_kv_heads = attention.kv_shape.n_kv_heads;
  const uint32_t head_dim = attention.kv_shape.head_dim;
  const uint32_t group = attention.n_heads / n_kv_heads;
  const StepParams& step = *Data<StepParams>(attention.step);
  const float* const means = Data<float>(args.space.constants) + args.space.means_begin;
  auto* const output = Data<float>(attention.output);
  pool.ParallelFor(size_t{attention.n_tokens} * attention.n_heads, 64,
                   [&](size_t begin, size_t end, uint32_t) {
                     for (size_t row = begin; row < end; ++row) {
                       const size_t sequence = step.tokens[row / attention.n_heads].sequence;
                       const size_t kv_head = row % attention.n_heads / group;
                       const size_t plane = (sequence * n_kv_heads + kv_head) * 2 + 1;
                       OutOfSpace({means + plane * head_dim, head_dim}, {output + row * head_dim, head_dim});
                     }
                   });
}

// What blocks are to be multiplied with, row by row. Blocks of a span mostly have the same largest score, as
// it is found early.
class BlockFactors {
 public:
  BlockFactors(const KeptWeights& kept, const AttendItems& items, uint32_t first_item, uint32_t n_items)
      : kept_(kept), items_(items), first_item_(first_item), n_items_(n_items) {}

  // Moments of what the KV head's query heads give to the nth block's entries: [n_moments, kBlockEntries].
  void Gift(uint32_t nth, const MassForm& form, float* given) {
    const bool is_mean = form.heads == MassForm::Heads::kMean;
    std::fill_n(given, form.n_moments * kBlockEntries, 0.0F);
    uint32_t n_rows = 0;
    for (uint32_t i = first_item_; i < first_item_ + n_items_; ++i) {
      const uint32_t n_rows_here = items_[i].n_rows;
      float factors[kFewRows];
      for (uint32_t row = 0; row < n_rows_here; ++row) factors[row] = Factor(i, nth, row);
      JoinWeights(kept_.Rows(i, nth), factors, n_rows_here, form.n_moments, is_mean, given);
      n_rows += n_rows_here;
    }
    if (!is_mean) return;
    const float mean = 1.0F / static_cast<float>(n_rows);
    for (uint32_t i = 0; i < form.n_moments * kBlockEntries; ++i) given[i] *= mean;
  }

 private:
  float Factor(uint32_t i, uint32_t nth, uint32_t row) {
    if (n_items_ > 1) return kept_.Factor(i, nth, row);
    const float maximum = kept_.Maximum(i, nth, row);
    if (!is_known_[row] || maximum != maxima_[row]) {
      maxima_[row] = maximum;
      factors_[row] = kept_.Factor(i, nth, row);
      is_known_[row] = true;
    }
    return factors_[row];
  }

  const KeptWeights& kept_;
  const AttendItems& items_;
  uint32_t first_item_;
  uint32_t n_items_;
  std::array<bool, kFewRows> is_known_ = {};
  std::array<float, kFewRows> maxima_ = {};
  std::array<float, kFewRows> factors_ = {};
};

// Attends, keeps what each entry weighs, and joins it into the mass of the sources.
void AttendForMass(ThreadPool& pool, const SlotAttentionArgs& args, const AttentionArgs& attention,
                   const SlottedKv& source, bool rounds) {
  const MassForm& form = args.mass_form;
  KVRUN_CHECK(form.n_moments == 1 || form.n_moments == 2);
  const AttendItems items(attention, pool.size(), kFewRows);
  const uint32_t most_blocks = SlottedKv::MostBlocks(args);
  const uint64_t parts_bytes = RoundUp(CutPartsBytes(attention, kFewRows), uint64_t{64});
  const KeptWeights kept(reinterpret_cast<float*>(Data<std::byte>(attention.scratch) + parts_bytes), items,
                         most_blocks);
  AttendWork(pool, attention, items, source, rounds, &kept).Run();
  const uint32_t n_heads = attention.n_tokens * attention.kv_shape.n_kv_heads;
  const uint32_t tiles = items.size() / n_heads;
  // A KV head's blocks at once: about as long as waking a thread takes, or longer.
  const uint32_t part_blocks = std::max(32U, CeilDiv(most_blocks, 4U));
  const uint32_t n_parts = CeilDiv(most_blocks, part_blocks);
  pool.ParallelFor(size_t{n_heads} * n_parts, 1, [&](size_t begin, size_t end, uint32_t) {
    float given[2 * kBlockEntries];
    for (size_t unit = begin; unit < end; ++unit) {
      const auto first_item = static_cast<uint32_t>(unit / n_parts) * tiles;
      const AttendItem item = items[first_item];
      if (source.CountsNone(item)) continue;
      BlockFactors factors(kept, items, first_item, tiles);
      const auto first = static_cast<uint32_t>(unit % n_parts) * part_blocks;
      const uint32_t last = std::min(first + part_blocks, source.CountBlocks(item));
      for (uint32_t nth = first; nth < last; ++nth) {
        factors.Gift(nth, form, given);
        source.AddMass(item, nth, form, attention.kv_shape.n_sequences, given);
      }
    }
  });
}

}  // namespace

void RopeAndEncode(ThreadPool& pool, const SlotAttentionArgs& args) {
  const SlotSource& window = args.window();
  const SlotShape& shape = window.shape;
  CheckSource(args, window);
  KVRUN_CHECK(shape.n_window_slots >= 1);
  const KvRecordShape& record = shape.record;
  const StepParams& step = *Data<StepParams>(args.attention.step);
  const uint32_t n_kv_heads = args.attention.kv_shape.n_kv_heads;
  const uint32_t head_dim = record.head_dim;
  const bool has_space = args.space.is_used();
  const float* const means = has_space ? Data<float>(args.space.constants) + args.space.means_begin : nullptr;
  const auto store = [&](uint32_t token, uint32_t kv_head, bool is_value, const float* row) {
    const uint32_t position = step.tokens[token].position;
    const uint32_t sequence = step.tokens[token].sequence;
    const size_t stream = size_t{sequence} * (n_kv_heads / record.n_heads) + kv_head / record.n_heads;
    const uint32_t slot =
        shape.n_slots - shape.n_window_slots + (position / record.group_tokens) % shape.n_window_slots;
    float in_space[kMaxHeadDim];
    if (has_space) {
      const size_t plane = (size_t{sequence} * n_kv_heads + kv_head) * 2 + (is_value ? 1 : 0);
      std::copy_n(row, head_dim, in_space);
      IntoSpace({means + plane * head_dim, head_dim}, {in_space, head_dim});
    }
    EncodeRow(record, is_value,
              kv_head % record.n_heads * record.group_tokens + position % record.group_tokens,
              has_space ? in_space : row,
              Data<std::byte>(window.slots) + (stream * shape.n_slots + slot) * record.size_bytes());
  };
  if (!has_space) return RopeHeads(pool, args.attention, store);
  RopeHeads(pool, args.attention, store, [&](float* query) { RotateRow({query, head_dim}); });
}

// Attention in tiles of few rows keeps its weights behind the parts of cut items.
uint64_t AttendSlotsScratchBytes(const SlotAttentionArgs& args) {
  const AttentionArgs attention = ApartFrom(args.attention);
  if (!args.has_mass()) return CutPartsBytes(attention);
  const AttendItems items(attention, 1, kFewRows);
  return RoundUp(CutPartsBytes(attention, kFewRows), uint64_t{64}) +
         KeptWeights::Bytes(items, SlottedKv::MostBlocks(args));
}

void AttendSlots(ThreadPool& pool, const SlotAttentionArgs& args, bool exact) {
  for (const SlotSource& source : args.used()) {
    if (source.shape.n_slots == 0) continue;
    CheckSource(args, source);
    KVRUN_CHECK(source.table->size_bytes() >= source.shape.table_bytes());
  }
  const AttentionArgs attention = ApartFrom(args.attention);
  const SlottedKv source(args);
  if (args.has_mass()) {
    AttendForMass(pool, args, attention, source, !exact);
  } else {
    const AttendItems items(attention, pool.size());
    // Many rows are rounded without biases, which slots may have.
    const bool rounds = !exact && items.most_rows() <= kFewRows;
    AttendWork(pool, attention, items, source, rounds).Run();
  }
  if (args.space.is_used()) TakeOutputBack(pool, args);
}

}  // namespace kvrun::host
