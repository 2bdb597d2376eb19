// What the index works on: its rows, the scores that a query gives them, and the choice by these.
#pragma once

#include <cstdint>

#include "runtime/device/attention_args.h"
#include "runtime/device/buffer.h"
#include "runtime/device/kv_record.h"

namespace kvrun {

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
// are no query's; not with kGqa. All are times AttentionArgs::scale, that row too. kSigned: of each KV
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
  // As in AttentionArgs: norms' q_norm, angles, rotary_dim, rope_halves, score_scale (caps do not matter to a
  // choice), step (position and sequence of each row).
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

// out[t] = k(first_token + t) . key_side - bias, float [n_tokens, rank], of one layer's KV of one sequence.
struct ProjectKeysArgs {
  const Buffer* kv = nullptr;
  KvShape kv_shape;
  uint32_t first_token = 0;
  uint32_t n_tokens = 0;
  IndexSides sides;
  uint32_t rank = 0;
  Buffer* out = nullptr;
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

}  // namespace kvrun
