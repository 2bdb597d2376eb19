// How much attention entries receive from a prompt's rows: sums of softmaxes, then weights. Keys of a block
// are transposed, so that lanes lie along entries.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "platform/base/check.h"
#include "platform/base/units.h"
#include "runtime/device/host/attend_rows.h"
#include "runtime/device/host/operations.h"
#include "runtime/device/host/thread_pool.h"
#include "runtime/device/instruction_targets.h"
#include "shaders/shared/step_params.h"
#define HWY_WANT_AVX3_DL  // as attend_rows.cc
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/device/host/row_mass.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include "runtime/device/host/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvrun::host {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::CappedTag<float, 16>;

// Keys that were loaded meet so many queries.
constexpr uint32_t kQueriesAtOnce = 4;

// scores[query, entry] = q . k[entry] * scale, with keys [head_dim, kBlockEntries]. score_cap: 0, or of
// these.
void ScoreQueries(const float* const* HWY_RESTRICT queries, const float* HWY_RESTRICT keys, uint32_t head_dim,
                  float scale, float score_cap, float* HWY_RESTRICT scores) {
  const Floats d;
  using Vec = hn::Vec<Floats>;
  const size_t lanes = hn::Lanes(d);
  const auto factor = hn::Set(d, scale);
  for (size_t i = 0; i < kBlockEntries; i += 2 * lanes) {
    Vec first[kQueriesAtOnce];
    Vec second[kQueriesAtOnce];
    for (size_t query = 0; query < kQueriesAtOnce; ++query) first[query] = second[query] = hn::Zero(d);
    for (size_t column = 0; column < head_dim; ++column) {
      const auto first_keys = hn::Load(d, keys + column * kBlockEntries + i);
      const auto second_keys = hn::Load(d, keys + column * kBlockEntries + i + lanes);
      for (size_t query = 0; query < kQueriesAtOnce; ++query) {
        const auto q = hn::Set(d, queries[query][column]);
        first[query] = hn::MulAdd(q, first_keys, first[query]);
        second[query] = hn::MulAdd(q, second_keys, second[query]);
      }
    }
    for (size_t query = 0; query < kQueriesAtOnce; ++query) {
      hn::Store(hn::Mul(first[query], factor), d, scores + query * kBlockEntries + i);
      hn::Store(hn::Mul(second[query], factor), d, scores + query * kBlockEntries + i + lanes);
    }
  }
  for (size_t i = 0; score_cap > 0.0F && i < kQueriesAtOnce * kBlockEntries; i += lanes)
    hn::Store(Capped(d, hn::Load(d, scores + i), score_cap), d, scores + i);
}

// The first `n_seen` scores into a row's largest score and its sum of weights.
void AddToSum(const float* HWY_RESTRICT scores, uint32_t n_seen, float* sum) {
  const Floats d;
  const size_t lanes = hn::Lanes(d);
  auto largest = hn::Set(d, sum[0]);
  for (size_t i = 0; i < n_seen; i += lanes) {
    const auto is_seen = hn::FirstN(d, std::min<size_t>(n_seen - i, lanes));
    largest = hn::Max(largest, hn::IfThenElse(is_seen, hn::Load(d, scores + i), hn::Set(d, kMaskedScore)));
  }
  const auto maximum = hn::MaxOfLanes(d, largest);
  auto weight = hn::Zero(d);
  for (size_t i = 0; i < n_seen; i += lanes) {
    const auto is_seen = hn::FirstN(d, std::min<size_t>(n_seen - i, lanes));
    weight =
        hn::Add(weight, hn::IfThenElseZero(is_seen, hn::Exp(d, hn::Sub(hn::Load(d, scores + i), maximum))));
  }
  const float largest_score = hn::GetLane(maximum);
  sum[1] = sum[1] * std::exp(sum[0] - largest_score) + hn::GetLane(hn::SumOfLanes(d, weight));
  sum[0] = largest_score;
}

// Scores to weights, of a row whose sum is complete; what it does not see gets none.
void ScoresToWeights(uint32_t n_seen, const float* sum, float* HWY_RESTRICT scores) {
  const Floats d;
  const size_t lanes = hn::Lanes(d);
  const auto maximum = hn::Set(d, sum[0]);
  const auto factor = hn::Set(d, 1.0F / sum[1]);
  for (size_t i = 0; i < kBlockEntries; i += lanes) {
    const auto is_seen = hn::FirstN(d, n_seen > i ? std::min<size_t>(n_seen - i, lanes) : 0);
    const auto weight = hn::Mul(hn::Exp(d, hn::Sub(hn::Load(d, scores + i), maximum)), factor);
    hn::Store(hn::IfThenElseZero(is_seen, weight), d, scores + i);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace kvrun::host
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvrun::host {
namespace {

using HWY_NAMESPACE::kQueriesAtOnce;

HWY_EXPORT(ScoreQueries);
HWY_EXPORT(AddToSum);
HWY_EXPORT(ScoresToWeights);

constexpr uint32_t kRowsAtOnce = 16;
constexpr uint32_t kMostMoments = 4;

// Blocks of a tile's keys, and a worker's memory for one.
class TileKeys {
 public:
  explicit TileKeys(const RowMassArgs& args)
      : args_(args), head_dim_(args.kv_shape.head_dim), kv_(Data<std::byte>(args.kv)) {
    const KvShape& kv = args.kv_shape;
    KVRUN_CHECK(kv.type == KvType::kF16 || kv.type == KvType::kF32);
    KVRUN_CHECK(kv.n_sequences == 1 && head_dim_ <= kMaxHeadDim && args.n_heads % kv.n_kv_heads == 0);
    KVRUN_CHECK(args.n_entries >= 1 && args.n_entries <= kv.n_ctx && args.n_rows <= KVRUN_MAX_STEP_TOKENS);
  }

  // Of floats: rows as they lie, then transposed; scores; what a row gives.
  size_t memory_bytes() const {
    return kBlockEntries * (DecodedRowFloats(head_dim_) + head_dim_ + kQueriesAtOnce + kMostMoments) *
           sizeof(float);
  }
  float* keys(std::byte* memory) const {
    return reinterpret_cast<float*>(memory) + kBlockEntries * DecodedRowFloats(head_dim_);
  }
  float* scores(std::byte* memory) const { return keys(memory) + kBlockEntries * head_dim_; }
  // [kMostMoments, kBlockEntries].
  float* row_mass(std::byte* memory) const { return scores(memory) + kQueriesAtOnce * kBlockEntries; }

  uint32_t n_blocks() const { return CeilDiv(args_.n_entries, kBlockEntries); }
  uint32_t n_entries(uint32_t block) const {
    return std::min(kBlockEntries, args_.n_entries - block * kBlockEntries);
  }
  // How many of a block's entries the row sees: the first ones.
  uint32_t n_seen(uint32_t row, uint32_t block) const {
    const uint32_t position = Data<StepParams>(args_.step)->tokens[row].position;
    const uint32_t begin = args_.tile_begin + block * kBlockEntries;
    return position < begin ? 0 : std::min(position - begin + 1, n_entries(block));
  }
  // Into keys(), [head_dim, kBlockEntries]; zeros past the last entry.
  void Load(uint32_t kv_head, uint32_t block, std::byte* memory) const {
    const KvShape& kv = args_.kv_shape;
    const size_t row_bytes = size_t{head_dim_} * KvElementBytes(kv.type);
    const std::byte* rows[kBlockEntries];
    const uint32_t n = n_entries(block);
    for (uint32_t i = 0; i < n; ++i) {
      rows[i] = kv_ + (size_t{2} * kv_head * kv.n_ctx + block * kBlockEntries + i) * row_bytes;
    }
    auto* decoded = reinterpret_cast<float*>(memory);
    DecodeRows(kv.type, head_dim_, n, rows, nullptr, decoded);
    float* const to = keys(memory);
    for (uint32_t column = 0; column < head_dim_; ++column) {
      float* const column_to = to + column * kBlockEntries;
      for (uint32_t i = 0; i < n; ++i) column_to[i] = decoded[i * DecodedRowFloats(head_dim_) + column];
      std::fill(column_to + n, column_to + kBlockEntries, 0.0F);
    }
  }
  // Scores of rows [begin, end) by the KV head's query heads with keys(), which are those of a block:
  // visit(row, head, scores), row by row. Rows that see nothing of the block may have any scores.
  template <typename Visit>
  void Score(uint32_t kv_head, uint32_t block, uint32_t begin, uint32_t end, std::byte* memory,
             const Visit& visit) const {
    const float scale =
        args_.score_scale != 0.0F ? args_.score_scale : 1.0F / std::sqrt(static_cast<float>(head_dim_));
    const uint32_t group = args_.n_heads / args_.kv_shape.n_kv_heads;
    const uint32_t n = (end - begin) * group;
    const auto row_of = [&](uint32_t i) { return begin + i / group; };
    const auto head_of = [&](uint32_t i) { return kv_head * group + i % group; };
    for (uint32_t first = 0; first < n; first += kQueriesAtOnce) {
      const uint32_t count = std::min(kQueriesAtOnce, n - first);
      const float* queries[kQueriesAtOnce];
      bool sees = false;
      for (uint32_t i = 0; i < kQueriesAtOnce; ++i) {
        const uint32_t at = first + std::min(i, count - 1);
        queries[i] =
            Data<float>(args_.queries) + (size_t{row_of(at)} * args_.n_heads + head_of(at)) * head_dim_;
        sees = sees || n_seen(row_of(at), block) > 0;
      }
      if (sees) {
        HWY_DYNAMIC_DISPATCH(ScoreQueries)
        (queries, keys(memory), head_dim_, scale, args_.score_cap, scores(memory));
      }
      for (uint32_t i = 0; i < count; ++i) {
        visit(row_of(first + i), head_of(first + i), scores(memory) + size_t{i} * kBlockEntries);
      }
    }
  }

 private:
  const RowMassArgs& args_;
  uint32_t head_dim_;
  const std::byte* kv_;
};

// What a row gives to a block's entries, all moments of them, by the weights of the KV head's query heads.
class RowGift {
 public:
  RowGift(const MassForm& form, uint32_t group, float* to) : form_(form), group_(group), to_(to) {}
  void Clear() { std::fill_n(to_, form_.n_moments * kBlockEntries, 0.0F); }
  void Add(const float* weights) {
    float powers[kBlockEntries];
    std::copy_n(weights, kBlockEntries, powers);
    for (uint32_t moment = 0; moment < form_.n_moments; ++moment) {
      float* const to = to_ + size_t{moment} * kBlockEntries;
      for (uint32_t i = 0; moment > 0 && i < kBlockEntries; ++i) powers[i] *= weights[i];
      if (form_.heads == MassForm::Heads::kMean) {
        for (uint32_t i = 0; i < kBlockEntries; ++i) to[i] += powers[i];
      } else {
        for (uint32_t i = 0; i < kBlockEntries; ++i) to[i] = std::max(to[i], powers[i]);
      }
    }
  }
  // Joins what there is of n entries from `mass` on, a moment being `stride` further on.
  void Join(uint32_t n, size_t stride, float* mass) const {
    const float factor = form_.heads == MassForm::Heads::kMean ? 1.0F / static_cast<float>(group_) : 1.0F;
    for (uint32_t moment = 0; moment < form_.n_moments; ++moment) {
      for (uint32_t i = 0; i < n; ++i) {
        const float given = to_[moment * kBlockEntries + i] * factor;
        float& to = mass[moment * stride + i];
        to = form_.rows == MassForm::Rows::kAdd ? to + given : std::max(to, given);
      }
    }
  }

 private:
  const MassForm& form_;
  uint32_t group_;
  float* to_;
};

}  // namespace

void SumWeights(ThreadPool& pool, const RowMassArgs& args) {
  const TileKeys tile(args);
  const uint32_t n_kv_heads = args.kv_shape.n_kv_heads;
  float* const sums = Data<float>(args.sums);
  pool.ReserveScratch(tile.memory_bytes());
  const uint32_t row_parts = CeilDiv(args.n_rows, kRowsAtOnce);
  pool.ParallelFor(size_t{n_kv_heads} * row_parts, 1, [&](size_t begin, size_t end, uint32_t worker) {
    std::byte* const memory = pool.Scratch(worker, tile.memory_bytes());
    for (size_t item = begin; item < end; ++item) {
      const auto kv_head = static_cast<uint32_t>(item / row_parts);
      const auto first_row = static_cast<uint32_t>(item % row_parts) * kRowsAtOnce;
      const uint32_t end_row = std::min(first_row + kRowsAtOnce, args.n_rows);
      for (uint32_t block = 0; block < tile.n_blocks(); ++block) {
        tile.Load(kv_head, block, memory);
        tile.Score(kv_head, block, first_row, end_row, memory,
                   [&](uint32_t row, uint32_t head, const float* scores) {
                     float* const sum = sums + (size_t{row} * args.n_heads + head) * 2;
                     if (args.is_first && block == 0) {
                       sum[0] = kMaskedScore;
                       sum[1] = 0.0F;
                     }
                     const uint32_t n_seen = tile.n_seen(row, block);
                     if (n_seen > 0) HWY_DYNAMIC_DISPATCH(AddToSum)(scores, n_seen, sum);
                   });
      }
    }
  });
}

void AttentionMass(ThreadPool& pool, const RowMassArgs& args) {
  KVRUN_CHECK(args.form.rows != MassForm::Rows::kReplace && args.form.n_moments <= kMostMoments);
  KVRUN_CHECK(uint64_t{args.mass_begin} + args.n_entries <= args.mass_stride);
  const TileKeys tile(args);
  const uint32_t n_kv_heads = args.kv_shape.n_kv_heads;
  const uint32_t group = args.n_heads / n_kv_heads;
  const float* const sums = Data<float>(args.sums);
  float* const mass = Data<float>(args.mass);
  pool.ReserveScratch(tile.memory_bytes());
  const size_t n_units = size_t{n_kv_heads} * tile.n_blocks();
  pool.ParallelFor(n_units, 1, [&](size_t begin, size_t end, uint32_t worker) {
    std::byte* const memory = pool.Scratch(worker, tile.memory_bytes());
    for (size_t unit = begin; unit < end; ++unit) {
      const auto kv_head = static_cast<uint32_t>(unit / tile.n_blocks());
      const auto block = static_cast<uint32_t>(unit % tile.n_blocks());
      tile.Load(kv_head, block, memory);
      float* const to =
          mass + size_t{kv_head} * args.mass_stride + args.mass_begin + size_t{block} * kBlockEntries;
      RowGift gift(args.form, group, tile.row_mass(memory));
      tile.Score(kv_head, block, 0, args.n_rows, memory, [&](uint32_t row, uint32_t head, float* scores) {
        const uint32_t n_seen = tile.n_seen(row, block);
        if (n_seen == 0) return;
        if (head % group == 0) gift.Clear();
        HWY_DYNAMIC_DISPATCH(ScoresToWeights)
        (n_seen, sums + (size_t{row} * args.n_heads + head) * 2, scores);
        gift.Add(scores);
        if (head % group == group - 1) gift.Join(n_seen, size_t{n_kv_heads} * args.mass_stride, to);
      });
    }
  });
}

}  // namespace kvrun::host
#endif  // HWY_ONCE
