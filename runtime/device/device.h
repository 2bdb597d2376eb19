// What computes: a device carries out operations on buffers, in the order in which they were recorded.
//
// The engine sees nothing of Vulkan. An operation is coarse (a matrix product, not an instruction), so that a
// device may fuse, tile and repack as suits it. Every operation has one scalar reference in tests/support,
// which each device is compared with.
//
// Threads: a Device may be used from several threads; a CommandList, Buffer or Matrix by one at a time.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "platform/base/status.h"
#include "runtime/device/kv_record.h"
#include "runtime/model/tensor_type.h"

namespace kvrun {

enum class BufferUse : uint8_t {
  kDevice,    // only the device reads and writes it
  kUpload,    // the host writes, the device reads
  kReadback,  // the device writes, the host reads
  kShared,    // both read and write it: what either wrote reaches the other by Flush and Invalidate
  // As kDevice: a layer's KV of a shape that FitsKv. Where it is larger than max_buffer_bytes, RopeAndStore,
  // Attend and DecodeRecords alone take it.
  kKv,
};
constexpr bool IsOfDevice(BufferUse use) { return use == BufferUse::kDevice || use == BufferUse::kKv; }

// Zero-filled when made; on the device it reads as zeros for 256 bytes past its end. Freed with the object,
// which must not happen while a submitted list uses it.
class Buffer {
 public:
  virtual ~Buffer() = default;
  uint64_t size_bytes() const { return size_bytes_; }
  // The host's view, valid for the buffer's life; empty for kDevice and kKv.
  virtual std::span<std::byte> host() = 0;
  // kShared: what the host wrote there can be seen by lists that start later (Flush), and what complete lists
  // wrote there by the host (Invalidate). Any thread.
  virtual Status Flush(uint64_t offset_bytes, uint64_t length_bytes) = 0;
  virtual Status Invalidate(uint64_t offset_bytes, uint64_t length_bytes) = 0;

 protected:
  explicit Buffer(uint64_t size_bytes) : size_bytes_(size_bytes) {}
  uint64_t size_bytes_;
};

// A weight matrix [n_rows, n_cols] (y = W x) in the form that the device multiplies with.
class Matrix {
 public:
  virtual ~Matrix() = default;
  uint32_t n_rows() const { return n_rows_; }
  uint32_t n_cols() const { return n_cols_; }
  TensorType type() const { return type_; }
  virtual uint64_t size_bytes() const = 0;  // on the device
  // Of those, what a product of one row reads.
  virtual uint64_t row_product_bytes() const { return size_bytes(); }

 protected:
  Matrix(TensorType type, uint32_t n_rows, uint32_t n_cols) : type_(type), n_rows_(n_rows), n_cols_(n_cols) {}
  TensorType type_;
  uint32_t n_rows_;
  uint32_t n_cols_;
};

// Rows as they lie in a GGUF tensor: n_rows * n_cols elements of `type`, row after row. In memory, or read
// piece by piece: a large tensor is never there twice as a whole.
struct MatrixSource {
  std::span<const std::byte> data;
  uint32_t n_rows = 0;
  // Where `data` is empty: fills `to` with the bytes from `offset_bytes` on. Any thread.
  std::function<Status(uint64_t offset_bytes, std::span<std::byte> to)> read = {};
};

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

// Of one of several norms of the same rows.
struct NormTarget {
  const Buffer* weight = nullptr;  // float [n_cols]
  Buffer* out = nullptr;           // float [n_rows, n_cols]
};

struct MatMulArgs {
  const Matrix* weight = nullptr;  // [n_rows, n_cols]
  const Buffer* input = nullptr;   // float [n_tokens, n_cols]
  Buffer* output = nullptr;        // float [n_tokens, output_stride]
  const Buffer* bias = nullptr;    // float [n_rows] from bias_offset on; null: none
  uint32_t n_tokens = 0;
  uint32_t n_rows = 0;         // of the weight, from the first on; 0: all
  uint32_t output_stride = 0;  // elements; 0: n_rows
  uint32_t output_offset = 0;  // elements, of the first row's result
  uint32_t bias_offset = 0;    // elements
  bool accumulate = false;     // add to what is in output
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
  uint32_t rotary_dim = 0;
  bool rope_halves = false;   // pairs are (i, i + rotary_dim / 2), else (2i, 2i + 1)
  Buffer* output = nullptr;   // Attend: float [n_tokens, n_heads * head_dim]
  Buffer* scratch = nullptr;  // Attend: at least Device::AttendScratchBytes
  // Rows are a chunk of a prompt: one sequence's, at consecutive positions. Else each is by itself. On the
  // CPU itself rows of a prompt and others are rounded in ways of their own, and a prompt's rows in the same
  // way however the prompt is cut into chunks.
  bool of_prompt = false;
  // Attend: where the KV buffer holds only some of the entries. Instead of to `output`, results go here,
  // [n_tokens * n_heads], joined with those of other entries that were attended before (no buffer: none).
  // FinishAttention makes the output of them.
  AttentionParts parts_after = {};
  AttentionParts parts_before = {};

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
  // Each slot that the table names counts entries of its own, and has a bias that is added to their scores
  // (q . k / sqrt(head_dim)). Entries are gone through as if all of a slot's counted. What has a bias of
  // -1e30 or less has no weight; of all that a row attends to, something must have more.
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

// How the heads' scores become one score of a group. kSum, as in KVSwap: raw scores are added up, so one row
// of the index is multiplied with one query. kSoftmax: a softmax of each head, so that a head that cares
// about one entry is not drowned. kGqa: a softmax of each KV head, by the mean of its queries. kPerKvHead:
// each KV head chooses groups of its own.
enum class HeadReduction : uint8_t { kSum, kSoftmax, kGqa, kPerKvHead };

// The index of one layer: rows of `rank` columns, one for every entry or a few for a whole group, [n_streams'
// sequences, n_groups, group_words]. kF16: two columns to a word; kInt8, kInt4: signed, low bits first, times
// the column's scale. A group's rows() * rank elements lie side by side and end with a whole word.
struct IndexShape {
  KvType type = KvType::kF16;  // kF16, kInt8 or kInt4
  uint32_t rank = 0;
  uint32_t group_tokens = 0;
  uint32_t n_groups = 0;  // room, per sequence
  uint32_t n_sequences = 1;
  uint32_t rows_per_group = 0;  // 0: one for each entry

  constexpr uint32_t rows() const { return rows_per_group == 0 ? group_tokens : rows_per_group; }
  constexpr uint32_t group_words() const { return (rows() * rank * KvElementBits(type) + 31) / 32; }
  constexpr uint64_t size_bytes() const { return uint64_t{n_sequences} * n_groups * group_words() * 4; }
};

// Both sides of a layer's adapter. A score is (q . query_side) . (scale * row), with row the quantised
// (k . key_side - bias).
struct IndexSides {
  bool are_halves = false;             // the sides are f16 in place of float; not with kAffine
  const Buffer* query_side = nullptr;  // [n_kv_heads * head_dim (kAffine: + 1), rank]
  const Buffer* key_side = nullptr;    // [n_kv_heads * head_dim, rank]
  const Buffer* bias = nullptr;        // float [rank]: the mean key times key_side
  const Buffer* scales = nullptr;      // kShared, float [n_sequences, rank]; ones for kF16
};

// What a query row is that index rows are multiplied with. kProjected: q . query_side. kAffine: the same,
// plus query_side's last row (of a sum over heads, once), so that columns of the index may have factors that
// are no query's; not with kGqa. All are divided by sqrt(head_dim), that row too. kSigned: of each KV
// head's columns max(q, 0), then, key_dim columns further on, min(q, 0) (rank is 2 * key_dim, and there is no
// query_side): with rows of upper and lower bounds of a group's keys, the largest product that those allow.
// Source of kSigned: Quest (arXiv 2406.10774, section 3.3).
enum class QueryForm : uint8_t { kProjected, kSigned, kAffine };

// A group's score: the largest of its rows', or their sum (a softmax's mass; not with HeadReduction::kSum).
enum class GroupScore : uint8_t { kLargest, kMass };

// Where a choice of one list lies: words from the list's first. The number of chosen groups, and they,
// ascending. Where groups are sampled, the number of those, they, ascending, and the bits of the bias of each
// (a float). Where scores are told, which is not with samples, the bits of that of each chosen group (a
// float), in their order.
struct ChoiceList {
  uint32_t n_chosen = 0;
  uint32_t n_sampled = 0;
  bool tells_scores = false;

  // Rounding may make one more of them.
  constexpr uint32_t most_sampled() const { return n_sampled == 0 ? 0 : n_sampled + 1; }
  constexpr uint32_t sampled_begin() const { return 1 + n_chosen; }
  constexpr uint32_t biases_begin() const { return sampled_begin() + 1 + most_sampled(); }
  constexpr uint32_t scores_begin() const { return 1 + n_chosen; }
  constexpr uint32_t words() const {
    if (n_sampled > 0) return biases_begin() + most_sampled();
    return 1 + n_chosen + (tells_scores ? n_chosen : 0);
  }
};

struct ScoreArgs {
  Buffer* query =
      nullptr;  // float [n_tokens, n_heads * head_dim]: W_q x, neither normalised nor rotated; may be changed
  // As in AttentionArgs: norms' q_norm, angles, rotary_dim, rope_halves, step (position and sequence of each
  // row).
  AttentionArgs attention;
  IndexSides sides;
  const Buffer* index = nullptr;
  IndexShape index_shape;
  HeadReduction reduction = HeadReduction::kSoftmax;
  uint32_t window_tokens = 0;  // groups that hold one of the newest window_tokens entries cannot be chosen
  uint32_t n_pinned = 0;       // the first groups, always chosen
  // M: groups to choose per stream, pinned ones included; StepParams::most_chosen, where that is less (not
  // with weights).
  uint32_t n_chosen = 0;
  QueryForm query_form = QueryForm::kProjected;
  GroupScore group_score = GroupScore::kLargest;
  // Above 0, with kMass: the choice ends, best group first, where the pinned ones and it have this share of
  // the sum of all scores; n_chosen is the most then. (Top-p; at 0 as many are chosen as there may be.)
  float mass_share = 0.0F;
  // Groups that differ in size, such as clusters: kShared or kDevice, uint32 [n_sequences, kPerKvHead ?
  // n_kv_heads : 1, n_groups], what each weighs; of a list less than 2^32 together. The choice ends, best
  // group first, before the first with which those that are not pinned would weigh more than most_weight,
  // which is at most n_chosen - n_pinned; what weighs 0 is not chosen. Not with mass_share. Null: there are
  // n_chosen, whatever they weigh.
  const Buffer* weights = nullptr;
  uint32_t most_weight = 0;
  // With weights: which groups are best is said by score / weight, as the device divides floats.
  bool per_weight = false;
  // Of the other groups that could be chosen, about so many are drawn at random, at most one more: group g
  // with a probability p_g in proportion to the square root of its score, but from 1/1024 to 1, and all
  // somewhat less where they come to more than n_sampled (or 1, where there are no more groups). What is
  // attended to with the bias -log p_g stands for all of them: sums over entries of exp(score + bias), and of
  // these times V, are what they are over all groups, on average. Systematic: running sums of p_g are cut at
  // u, u + 1, .., with u from sample_seed, the token's position and the list's place in the token. With
  // kMass; without weights. 0: none, at no cost.
  uint32_t n_sampled = 0;  // at most KVRUN_MAX_SAMPLED
  uint32_t sample_seed = 0;
  // Two stages, where n_candidates is above 0, which is at least n_chosen then. First all groups that can be
  // chosen are scored by few products: by one row of each KV head, the mean of its heads' (kSoftmax; with
  // kSum and kGqa by the rows that there are), of which the first first_columns count, as if those behind
  // were zeros. Candidates are the pinned groups and those with the largest scores (the lower of equals),
  // n_candidates together. Then all is as with one stage, but that candidates alone are scored and can be
  // chosen: softmaxes and masses are over these. Where no more groups can be chosen than n_candidates,
  // nothing differs from one stage. For one list per token, without weights and samples.
  uint32_t n_candidates = 0;
  uint32_t first_columns = 0;  // with n_candidates: 1 to the index's rank
  bool tells_scores = false;   // ChoiceList::tells_scores; neither with weights nor with n_sampled
  Buffer* scratch = nullptr;   // at least Device::ScoreScratchBytes
  // kShared, uint32 [n_tokens * (kPerKvHead ? n_kv_heads : 1), choice_list().words()]. All that can be chosen
  // are, where those are fewer than n_chosen; less than n_chosen are with mass_share or weights.
  Buffer* chosen = nullptr;

  ChoiceList choice_list() const { return {n_chosen, n_sampled, tells_scores}; }

  // Whether fields go together as is said above.
  bool is_consistent() const {
    const bool has_masses = reduction != HeadReduction::kSum;
    const bool has_share = mass_share != 0.0F;
    const uint32_t key_dim = attention.kv_shape.n_kv_heads * attention.kv_shape.head_dim;
    return n_pinned <= n_chosen && (group_score == GroupScore::kLargest || has_masses) &&
           (!has_share || group_score == GroupScore::kMass) &&
           (weights == nullptr || (!has_share && most_weight <= n_chosen - n_pinned)) &&
           (!per_weight || weights != nullptr) && (!tells_scores || (weights == nullptr && n_sampled == 0)) &&
           (n_sampled == 0 || (group_score == GroupScore::kMass && weights == nullptr)) &&
           (n_candidates == 0 ||
            (reduction != HeadReduction::kPerKvHead && weights == nullptr && n_sampled == 0 &&
             n_candidates >= n_chosen && first_columns >= 1 && first_columns <= index_shape.rank)) &&
           (query_form != QueryForm::kSigned || index_shape.rank == 2 * key_dim) &&
           (query_form != QueryForm::kAffine || reduction != HeadReduction::kGqa);
  }
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
  // float [n_rows, n_heads, 2]: the largest score (q . k / sqrt(head_dim)), and the sum of exp(score -
  // largest). Of what was not seen: -1e30 and 0.
  Buffer* sums = nullptr;
  bool is_first = false;  // SumWeights: nothing is there yet, else what is there is of other tiles
  // AttentionMass: float [n_moments, n_kv_heads, mass_stride]; the tile's entries from mass_begin on.
  Buffer* mass = nullptr;
  uint32_t mass_stride = 0;
  uint32_t mass_begin = 0;
  MassForm form = {};  // not Rows::kReplace
};

// Sums over entries, for an adapter. rows: float [n_rows, row_stride].
struct GramArgs {
  const Buffer* rows = nullptr;
  uint32_t n_rows = 0;
  uint32_t row_stride = 0;
  uint32_t first_column = 0;
  uint32_t dim = 0;
  uint32_t n_blocks = 1;   // columns first_column + b * dim of each row are vectors of their own
  uint32_t skip_rows = 0;  // the first rows are left out
  // float [dim + 1, dim], added to: the sum of v v^T over vectors, and in the last row the sum of v.
  Buffer* sums = nullptr;
  uint32_t sums_offset = 0;  // elements
};

// Operations are carried out as if one after another. Recorded once, finished, then submitted any number of
// times, each time after the one before was waited for. All that an operation names must outlive the list.
class CommandList {
 public:
  virtual ~CommandList() = default;

  // out[t] = row step.tokens[t].id of the table, as float [n_tokens, n_cols].
  virtual Status Embed(const Matrix& table, const Buffer& step, uint32_t n_tokens, Buffer* out) = 0;
  // out[t] = x[t] * weight / sqrt(mean(x[t]^2) + epsilon); float [n_rows, n_cols]; out may be x.
  virtual Status RmsNorm(const Buffer& x, const Buffer& weight, float epsilon, uint32_t n_rows,
                         uint32_t n_cols, Buffer* out) = 0;
  // The same with two weights: neither out is x. In one step, where the device can.
  virtual Status RmsNorms(const Buffer& x, const NormTarget& first, const NormTarget& second, float epsilon,
                          uint32_t n_rows, uint32_t n_cols) {
    KVRUN_RETURN_IF_ERROR(RmsNorm(x, *first.weight, epsilon, n_rows, n_cols, first.out));
    return RmsNorm(x, *second.weight, epsilon, n_rows, n_cols, second.out);
  }
  virtual Status MatMul(const MatMulArgs& args) = 0;
  // Normalises (with norms) and rotates Q in place; writes normalised, rotated K and V into the KV buffer at
  // each row's position.
  virtual Status RopeAndStore(const AttentionArgs& args) = 0;
  // output[t] = softmax(Q K^T / sqrt(head_dim)) V over positions 0..position(t) of the row's sequence.
  virtual Status Attend(const AttentionArgs& args) = 0;
  // output of all entries that went into args.parts_after.
  virtual Status FinishAttention(const AttentionArgs& args) = 0;
  // gate_up: float [n_tokens, 2 * n_ff]; out = silu(gate) * up, float [n_tokens, n_ff].
  virtual Status SwiGlu(const Buffer& gate_up, uint32_t n_tokens, uint32_t n_ff, Buffer* out) = 0;
  // out[i] = x[step.tokens[i].output_row], float [n_rows, n_cols].
  virtual Status GatherRows(const Buffer& x, const Buffer& step, uint32_t n_rows, uint32_t n_cols,
                            Buffer* out) = 0;
  // As RopeAndStore, but K and V are encoded into the window's slots.
  virtual Status RopeAndEncode(const SlotAttentionArgs& args) = 0;
  // output[t] = softmax(Q K^T / sqrt(head_dim)) V over the entries that the mapping tables name.
  virtual Status AttendSlots(const SlotAttentionArgs& args) = 0;
  // Entries first_token .. first_token + n_groups * G - 1 of one layer's KV (f16 or f32, one sequence), as
  // records [n_groups] (all KV heads) or [n_kv_heads, n_groups] (record.n_heads == 1). records: kShared.
  virtual Status EncodeRecords(const Buffer& kv, const KvShape& kv_shape, uint32_t first_token,
                               uint32_t n_groups, const KvRecordShape& record, const EntrySpace& space,
                               Buffer* records) = 0;
  // The reverse, into the KV buffer: what was stored, as f16 or f32.
  virtual Status DecodeRecords(const Buffer& records, const KvRecordShape& record, const EntrySpace& space,
                               uint32_t n_groups, uint32_t first_token, const KvShape& kv_shape,
                               Buffer* kv) = 0;
  // Normalises and rotates the query, projects it, scores every group that can be chosen, and chooses.
  // Softmaxes run over all rows of groups that can be chosen. Equal scores: the lower group.
  virtual Status ScoreAndSelect(const ScoreArgs& args) = 0;
  // out[t] = k(first_token + t) . key_side - bias, float [n_tokens, rank], of one layer's KV of one sequence.
  virtual Status ProjectKeys(const Buffer& kv, const KvShape& kv_shape, uint32_t first_token,
                             uint32_t n_tokens, const IndexSides& sides, uint32_t rank, Buffer* out) = 0;
  virtual Status AccumulateGram(const GramArgs& args) = 0;
  virtual Status SumWeights(const RowMassArgs& args) = 0;
  virtual Status AttentionMass(const RowMassArgs& args) = 0;
  // For benchmarks, not for models: multiply-adds without memory (256 per invocation and step, 64 invocations
  // per group), and reads of neighbouring vectors of 16 bytes (one per invocation and step).
  virtual Status AluRate(uint32_t n_groups, uint32_t n_steps, Buffer* values) = 0;
  virtual Status ReadRate(uint32_t n_groups, uint32_t n_steps, Buffer* values) = 0;
  // What was recorded so far needs nothing of what Submit's wait_host stands for: a device may begin with it
  // and wait here. At most once in a list.
  virtual Status AwaitHost() { return Status::Ok(); }
  // Ends recording. What kReadback buffers hold is the host's to read after Device::Wait.
  virtual Status Finish() = 0;
};

struct DeviceInfo {
  std::string name;
  std::string kind;  // "gpu", "integrated", "virtual", "cpu"
  std::string driver;
  std::string plan;                // one line: the paths chosen
  std::vector<std::string> notes;  // quirks that applied, fall-backs taken
  bool is_cpu = false;
  bool decodes_on_cpu = false;    // whatever computes its prompts
  uint64_t max_buffer_bytes = 0;  // the largest Buffer that an operation can use, but for kKv
};

struct OperationTime {
  std::string name;  // the variant that ran
  uint64_t count = 0;
  double milliseconds = 0.0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual const DeviceInfo& info() const = 0;

  // `part` names it in statistics and messages ("kv", "activations").
  virtual Result<std::unique_ptr<Buffer>> CreateBuffer(uint64_t size_bytes, BufferUse use,
                                                       std::string_view part) = 0;
  // Whether a buffer of BufferUse::kKv can hold it, memory permitting.
  virtual bool FitsKv(const KvShape& shape) const { return shape.size_bytes() <= info().max_buffer_bytes; }
  // A kDevice buffer with this content.
  virtual Result<std::unique_ptr<Buffer>> CreateConstants(std::span<const std::byte> bytes,
                                                          std::string_view part) = 0;
  // The sources stacked in order, all of one type and n_cols; copied, so that they may go.
  virtual Result<std::unique_ptr<Matrix>> CreateMatrix(TensorType type, uint32_t n_cols,
                                                       std::span<const MatrixSource> sources) = 0;
  // What AttentionArgs::scratch must hold.
  virtual uint64_t AttendScratchBytes(const AttentionArgs& args) const = 0;
  // With the same sources, and the same of them with a mass.
  virtual uint64_t AttendSlotsScratchBytes(const SlotAttentionArgs& args) const = 0;
  // What ScoreArgs::scratch must hold.
  virtual uint64_t ScoreScratchBytes(const ScoreArgs& args) const = 0;

  virtual Result<std::unique_ptr<CommandList>> CreateCommandList() = 0;
  // Starts a finished list, once the host has signalled `wait_host` (0: at once); answers the timeline value
  // that Wait takes. Where the device has no timeline semaphores, this returns only when `wait_host` was
  // signalled, which must come from another thread.
  virtual Result<uint64_t> Submit(CommandList& list, uint64_t wait_host = 0) = 0;
  // Values for SignalHost, one after another: the first of `count`. They are signalled in order, whoever
  // reserved them.
  virtual uint64_t ReserveHostValues(uint32_t count) = 0;
  // By the host; values only grow. Every value that a stage waits for must be signalled in the end, whatever
  // fails.
  virtual Status SignalHost(uint64_t value) = 0;
  // As long as it takes; all lists up to `value` are complete afterwards.
  virtual Status Wait(uint64_t value) = 0;
  // Submit and Wait.
  Status Execute(CommandList& list) {
    KVRUN_ASSIGN_OR_RETURN(const uint64_t value, Submit(list));
    return Wait(value);
  }
  // The latest value that is reached; what Wait does for the host remains to be done.
  virtual Result<uint64_t> Completed() = 0;

  // Compiled kernels that no list needs are given up; they are made again where one does. Some drivers keep
  // megabytes for each.
  virtual Status DropUnusedKernels() = 0;

  // Bytes of live buffers by part, alignment included.
  struct MemoryPart {
    std::string part;
    uint64_t bytes;
  };
  virtual std::vector<MemoryPart> MemoryInUse() const = 0;
  // The first to.size() bytes of `from`, whatever its use. Waits for all that was submitted; slow.
  virtual Status Download(const Buffer& from, std::span<std::byte> to) = 0;

  // Empty unless the device was opened with profiling; sums since the last call.
  virtual std::vector<OperationTime> TakeOperationTimes() = 0;
};

}  // namespace kvrun
