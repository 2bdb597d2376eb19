// What attention works on: KV in memory, or records in slots; and how much attention entries receive.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>

#include "runtime/device/buffer.h"
#include "runtime/device/kv_record.h"

namespace kvrun {

constexpr uint32_t KvElementBytes(KvType type) { return KvElementBits(type) / 8; }  // f16 and f32

// Resident KV of one layer, element type `type` (f16 or f32): [n_sequences, n_kv_heads, 2 (K, V), n_ctx,
// head_dim].
struct KvShape {
  KvType type = KvType::kF16;
  uint32_t n_sequences = 1;
  uint32_t n_kv_heads = 0;
  uint32_t head_dim = 0;
  uint32_t n_ctx = 0;

  uint64_t size_bytes() const {
    return uint64_t{2} * n_sequences * n_kv_heads * n_ctx * head_dim * KvElementBytes(type);
  }
};

// What rows have attended to so far, per row of a token's head: float [head_dim + 2], weighted sums of V,
// largest score, and sum of weights. Rows of a buffer from `first_row` on; of one buffer, several of these.
struct AttentionParts {
  Buffer* buffer = nullptr;
  uint32_t first_row = 0;
};

// What attention works on: qkv is float [n_tokens, (n_heads + 2 * n_kv_heads) * head_dim]: Q, then K, then V.
struct AttentionArgs {
  Buffer* qkv = nullptr;
  // kUpload, a StepParams (shaders/shared/step_params.h): tokens, positions and sequences of the rows are
  // data, so that a recorded list serves any of them.
  const Buffer* step = nullptr;
  Buffer* kv = nullptr;  // one layer, KvShape
  KvShape kv_shape;
  uint32_t n_heads = 0;
  uint32_t n_tokens = 0;
  // float [n_tokens, rotary_dim / 2, 2]: cosine and sine of each row's angles, times the RoPE magnitude. Made
  // by the host: devices differ in the sine of a large angle.
  const Buffer* angles = nullptr;
  const Buffer* norms = nullptr;  // float: q_norm [head_dim], k_norm [head_dim]; null: none
  float norm_epsilon = 0.0F;
  uint32_t rotary_dim = 0;    // the first elements of a head; 0: none rotates, and angles are not read
  bool rope_halves = false;   // pairs are (i, i + rotary_dim / 2), else (2i, 2i + 1)
  Buffer* output = nullptr;   // Attend: float [n_tokens, n_heads * head_dim]
  Buffer* scratch = nullptr;  // Attend: at least Device::AttendScratchBytes
  // Above 0, a row attends to the newest entries alone, so many, its own among them; and the KV buffer is a
  // ring: the entry of position p lies at p % kv_shape.n_ctx, which is at least window_tokens, and, of a
  // prompt, window_tokens + n_tokens - 1. 0: to all. RopeAndStore and Attend; not with parts.
  uint32_t window_tokens = 0;
  // Above 0: scores become score_cap * tanh(score / score_cap) before the softmax.
  float score_cap = 0.0F;
  // Scores are q . k times this; 0: 1 / sqrt(head_dim).
  float score_scale = 0.0F;
  // Rows are a chunk of a prompt: one sequence's, at consecutive positions. Else each is by itself. On the
  // CPU itself rows of a prompt and others are rounded in ways of their own, and a prompt's rows in the same
  // way however the prompt is cut into chunks.
  bool of_prompt = false;
  // Attend: where the KV buffer holds only some of the entries. Instead of to `output`, results go here,
  // [n_tokens * n_heads], joined with those of other entries that were attended before (no buffer: none).
  // FinishAttention makes the output of them.
  AttentionParts parts_after = {};
  AttentionParts parts_before = {};

  float scale() const {
    return score_scale != 0.0F ? score_scale : 1.0F / std::sqrt(static_cast<float>(kv_shape.head_dim));
  }
  bool goes_on() const { return parts_after.buffer != nullptr; }
  uint64_t parts_bytes() const {
    return uint64_t{n_tokens} * n_heads * (kv_shape.head_dim + 2) * sizeof(float);
  }
};

// KV in slots: of one layer, records [n_streams, n_slots] of `record`. A *stream* selects on its own: it is
// one sequence with all KV heads (record.n_heads == n_kv_heads), or one KV head of a sequence (record.n_heads
// == 1; stream = sequence * n_kv_heads + head). Any of a stream's slots may be chosen by the table; the
// newest entries lie in a ring of slots at the end: entry `position` is entry position % G of slot n_slots -
// n_window_slots + (position / G) % n_window_slots.
struct SlotShape {
  KvRecordShape record;
  uint32_t n_streams = 0;
  uint32_t n_slots = 0;         // of a stream, the window's among them
  uint32_t n_window_slots = 0;  // at least 1 where new entries go
  uint32_t table_slots = 0;     // of a stream's mapping table, at most
  // Each slot that the table names counts entries of its own, and has a bias that is added to their scores,
  // which may have a cap before that. Entries are gone through as if all of a slot's counted. What has a bias
  // of -1e30 or less has no weight; of all that a row attends to, something must have more.
  bool has_biases = false;
  // All streams share the slots: records [n_slots], and tables may name any of them.
  bool is_shared = false;

  // From a stream's slots to the next one's.
  uint32_t stream_slots() const { return is_shared ? 0 : n_slots; }
  uint64_t size_bytes() const { return uint64_t{is_shared ? 1 : n_streams} * n_slots * record.size_bytes(); }
  // The mapping tables, uint32 [n_streams, table_words()]: how many slots follow; how many entries of the
  // last of them count (the others' all do); the slots. With has_biases: how many slots follow; a word that
  // is not read; BiasedSlot of each; then, table_slots words after the first slot's, the bits of each one's
  // bias.
  uint32_t table_words() const { return 2 + (has_biases ? 2 : 1) * table_slots; }
  uint64_t table_bytes() const { return uint64_t{n_streams} * table_words() * 4; }
  static constexpr uint32_t kMostBiasedSlots = 1U << 24;
  static constexpr uint32_t kMostBiasedEntries = 256;  // of a slot
  static constexpr uint32_t BiasedSlot(uint32_t slot, uint32_t n_entries) {
    return slot | (n_entries - 1) << 24;
  }
  bool fits_table() const {
    return !has_biases || (n_slots < kMostBiasedSlots && record.group_tokens <= kMostBiasedEntries);
  }
};

// The *mass* of an entry is how much attention it receives: the softmax weights that rows of queries give it,
// added up. Rows that give it 0.5, 0.1 and 0 give it a mass of 0.6. In a row the query heads of a KV head
// give an entry a weight each. Of these weights (first moment), and of their squares (second), the mean or
// the largest is what the row gives, and that joins what is there already. PRKV takes the mean of heads, ARKV
// two moments (docs/methods/static-set.md, docs/methods/evicting.md).
struct MassForm {
  enum class Heads : uint8_t { kMean, kLargest };
  enum class Rows : uint8_t { kAdd, kLargest, kReplace };

  uint32_t n_moments = 1;  // 1 or 2; AttentionMass: up to 4, the sums of third and fourth powers, too
  Heads heads = Heads::kMean;
  Rows rows = Rows::kAdd;
};

// Records that are attended to with those of other sources; without slots, nothing. Sources may differ in all
// but heads, their size and sequences: in types, entries of a record, and in what makes a stream.
struct SlotSource {
  Buffer* slots = nullptr;
  SlotShape shape;
  const Buffer* table = nullptr;  // kShared; AttendSlots
  // AttendSlots: the mass of this source's entries, as SlotAttentionArgs::mass_form says: float [n_moments,
  // n_sequences * n_kv_heads, n_slots * group_tokens], by slot; is_shared, of records of one head:
  // [n_moments, n_slots * group_tokens]. Entries that do not count, or that no table names, keep theirs.
  // Null: none, at no cost. With it rows of the step are of different sequences, and a slot is in one table,
  // once.
  Buffer* mass = nullptr;

  uint64_t mass_bytes(const KvShape& kv, const MassForm& form) const {
    const uint64_t n_lists = shape.is_shared ? 1 : uint64_t{kv.n_sequences} * kv.n_kv_heads;
    return form.n_moments * n_lists * shape.n_slots * shape.record.group_tokens * sizeof(float);
  }
};
inline constexpr uint32_t kMaxSlotSources = 4;

// The space of records (runtime/device/entry_space.h).
struct EntrySpace {
  // float: from means_begin on, means [.., n_kv_heads, 2 (K, V), head_dim]. Of SlotAttentionArgs, of all
  // sequences; before them lie q_norm and k_norm, as AttentionArgs::norms has them (anything where that is
  // null), so that kernels need one buffer for both. Of EncodeRecords and DecodeRecords, of the records'
  // sequence. Null: records hold entries as they are.
  const Buffer* constants = nullptr;
  uint32_t means_begin = 0;  // elements

  static EntrySpace OfSequences(const Buffer* constants, uint32_t head_dim) {
    return {constants, 2 * head_dim};
  }
  EntrySpace OfSequence(uint32_t sequence, uint32_t n_kv_heads, uint32_t head_dim) const {
    return {constants, means_begin + sequence * n_kv_heads * 2 * head_dim};
  }
  bool is_used() const { return constants != nullptr; }
};

struct SlotAttentionArgs {
  AttentionArgs
      attention;  // kv, kv_shape.type and .n_ctx are not used; n_sequences, n_kv_heads, head_dim are
  // With it RopeAndEncode leaves rotated Q in qkv, and K and V as without: AttendSlots expects that.
  EntrySpace space = {};
  std::array<SlotSource, kMaxSlotSources> sources = {};
  uint32_t n_sources = 0;
  MassForm mass_form = {};

  bool has_mass() const {
    return std::any_of(sources.begin(), sources.begin() + n_sources,
                       [](const SlotSource& source) { return source.mass != nullptr; });
  }
  void Add(const SlotSource& source) { sources.at(n_sources++) = source; }
  std::span<const SlotSource> used() const { return std::span(sources).first(n_sources); }
  // The last source: new entries go to its window slots.
  const SlotSource& window() const { return sources.at(n_sources - 1); }
};

// Entries first_token .. first_token + n_groups * G - 1 of one layer's KV (f16 or f32, one sequence), as
// records [n_groups] (all KV heads) or [n_kv_heads, n_groups] (record.n_heads == 1).
struct EncodeRecordsArgs {
  const Buffer* kv = nullptr;
  KvShape kv_shape;
  uint32_t first_token = 0;
  uint32_t n_groups = 0;
  KvRecordShape record;
  EntrySpace space;
  Buffer* records = nullptr;  // kShared
};

// The reverse, into the KV buffer: what was stored, as f16 or f32.
struct DecodeRecordsArgs {
  const Buffer* records = nullptr;
  KvRecordShape record;
  EntrySpace space;
  uint32_t n_groups = 0;
  uint32_t first_token = 0;
  KvShape kv_shape;
  Buffer* kv = nullptr;
};

// The mass (MassForm) that a prompt's rows give to entries of one layer's KV of one sequence, which may come
// in tiles. First SumWeights over all tiles, which finds what each row's weights are divided by; then
// AttentionMass over those tiles whose mass is wanted.
struct RowMassArgs {
  const Buffer* queries = nullptr;  // rotated: float [n_rows, n_heads * head_dim]
  // kUpload, a StepParams: each row's position. A row sees the entries up to it.
  const Buffer* step = nullptr;
  uint32_t n_rows = 0;  // as many as a StepParams has room for at most
  uint32_t n_heads = 0;
  const Buffer* kv = nullptr;  // the tile: KvShape, n_sequences == 1
  KvShape kv_shape;
  uint32_t tile_begin = 0;  // the position of its first entry
  uint32_t n_entries = 0;   // from that one on; at least 1
  // float [n_rows, n_heads, 2]: the largest score, with its scale and cap, and the sum of exp(score -
  // largest). Of what was not seen: -1e30 and 0.
  Buffer* sums = nullptr;
  bool is_first = false;   // SumWeights: nothing is there yet, else what is there is of other tiles
  float score_cap = 0.0F;  // as in AttentionArgs
  float score_scale = 0.0F;
  // AttentionMass: float [n_moments, n_kv_heads, mass_stride]; the tile's entries from mass_begin on.
  Buffer* mass = nullptr;
  uint32_t mass_stride = 0;
  uint32_t mass_begin = 0;
  MassForm form = {};  // not Rows::kReplace
};

}  // namespace kvrun
