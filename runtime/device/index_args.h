// What the index works on: its rows, the scores that a query gives them, and the choice by these.
#pragma once

#include <algorithm>
#include <cstdint>
#include <variant>

#include "runtime/device/attention_args.h"
#include "runtime/device/buffer.h"
#include "runtime/device/choice_rule.h"
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
  // M: groups to choose per stream, pinned ones included; StepParams::most_chosen, where that is less.
  uint32_t n_chosen = 0;
  QueryForm query_form = QueryForm::kProjected;
  ChoiceRule rule = {};
  Buffer* scratch = nullptr;  // at least Device::ScoreScratchBytes
  // kShared, uint32 [n_tokens * (kPerKvHead ? n_kv_heads : 1), choice_list().words()]. All that can be chosen
  // are, where those are fewer than n_chosen; less than n_chosen are with a share of the mass or weights.
  Buffer* chosen = nullptr;

  ChoiceList choice_list() const { return ChoiceListOf(rule, n_chosen); }

  // Whether the reduction has what rule and query_form ask for: each but kSoftmax lacks one thing. Types that
  // say so would be rules and forms of each reduction's own, of which a plan knows one half and its index the
  // other.
  bool suits_reduction() const {
    switch (reduction) {
      case HeadReduction::kSum: return GroupScoreOf(rule) == GroupScore::kLargest;  // no softmaxes
      case HeadReduction::kSoftmax: return true;
      case HeadReduction::kGqa: return query_form != QueryForm::kAffine;  // its row is of no mean
      case HeadReduction::kPerKvHead: return StagesOf(rule) == nullptr;   // several lists
    }
    return false;
  }

  // Whether numbers go together as is said above and at the rules, and all suits the reduction.
  bool is_consistent() const {
    const uint32_t key_dim = attention.kv_shape.n_kv_heads * attention.kv_shape.head_dim;
    const ScoreStages* const stages = StagesOf(rule);
    const auto* const and_sample = std::get_if<ChooseAndSample>(&rule);
    const auto* const by_weight = std::get_if<ChooseByWeight>(&rule);
    return n_pinned <= n_chosen && suits_reduction() &&
           (stages == nullptr || (stages->n_candidates >= std::max(n_chosen, 1U) &&
                                  stages->first_columns >= 1 && stages->first_columns <= index_shape.rank)) &&
           (and_sample == nullptr || and_sample->n_sampled >= 1) &&
           (by_weight == nullptr || by_weight->most_weight <= n_chosen - n_pinned) &&
           (query_form != QueryForm::kSigned || index_shape.rank == 2 * key_dim);
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
