// The passes of scoring: the products and weights of tiles, and groups' scores. Compiled once for each
// instruction set, hence the guard.
//
// Entries (of the index: its rows, of which a group may have others than its tokens) are taken in tiles of a
// few vectors: decoded to columns of floats, multiplied with all rows of z, three at a time. A softmax needs
// all products before it can weigh one. A first pass finds each softmax' reference and sum, span by span; of
// its first tiles a worker keeps the weights, as many as its share of the processor's cache holds. A second
// pass adds up the weights; those that were not kept are computed again, in proportion to the reference of
// their time as those that were. So the memory that it takes hardly grows with the context, but for the
// groups' scores. Products are logarithms to base 2, references whole numbers.
//
// A group's mass is the sum of its weights: where groups are fours of entries, a tile has the entries of a
// four in the same lane of its four vectors, and only their sums are kept (Tiling::folds).
//
// Of an index of int4 products are of whole numbers (score_rounded-inl.h), unless exact ones are asked for.
#if defined(KVRUN_HOST_SCORE_PASSES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVRUN_HOST_SCORE_PASSES_INL_H_
#undef KVRUN_HOST_SCORE_PASSES_INL_H_
#else
#define KVRUN_HOST_SCORE_PASSES_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/device/host/index_decode-inl.h"
#include "runtime/device/host/score_rounded-inl.h"
#include "runtime/device/host/score_tiles.h"
#include "runtime/device/host/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvrun::host::HWY_NAMESPACE {
namespace {

constexpr size_t kVectors = kTileVectors;
constexpr size_t kTileRows = 3;

size_t VectorLanes() { return hn::Lanes(hn::ScalableTag<float>()); }

// Of a tile of n entries; further ones are the last again.
void FindOffsets(const Scoring& s, size_t n, const WorkerMemory& own) {
  const uint32_t group_rows = s.args.index_shape.rows();
  const size_t group_bits = size_t{s.args.index_shape.group_words()} * 32;
  size_t bit = 0;
  for (size_t i = 0, in_group = 0, group_begin = 0; i < s.tiling.tile_entries; ++i) {
    if (i < n) {
      bit = group_begin + in_group * s.tiling.row_bits;
      if (++in_group == group_rows) {
        in_group = 0;
        group_begin += group_bits;
      }
    }
    own.bytes[s.tiling.PlaceOf(i)] = static_cast<int32_t>(bit / 8);
    own.bits[s.tiling.PlaceOf(i)] = static_cast<int32_t>(bit % 8);
  }
}

// products[row, i] = z of row . entry i, of kRows rows.
template <size_t kRows>
void Multiply(const float* HWY_RESTRICT tile, const float* HWY_RESTRICT z, size_t n_columns,
              float* HWY_RESTRICT products) {
  const hn::ScalableTag<float> d;
  const size_t n = hn::Lanes(d);
  const float* const z1 = z + (kRows > 1 ? n_columns : 0);
  const float* const z2 = z + (kRows > 2 ? 2 * n_columns : 0);
  auto a0 = hn::Zero(d), a1 = hn::Zero(d), a2 = hn::Zero(d), a3 = hn::Zero(d);
  auto b0 = hn::Zero(d), b1 = hn::Zero(d), b2 = hn::Zero(d), b3 = hn::Zero(d);
  auto c0 = hn::Zero(d), c1 = hn::Zero(d), c2 = hn::Zero(d), c3 = hn::Zero(d);
  for (size_t column = 0; column < n_columns; ++column, tile += kVectors * n) {
    const auto v0 = hn::Load(d, tile);
    const auto v1 = hn::Load(d, tile + n);
    const auto v2 = hn::Load(d, tile + 2 * n);
    const auto v3 = hn::Load(d, tile + 3 * n);
    const auto a = hn::Set(d, z[column]);
    a0 = hn::MulAdd(a, v0, a0);
    a1 = hn::MulAdd(a, v1, a1);
    a2 = hn::MulAdd(a, v2, a2);
    a3 = hn::MulAdd(a, v3, a3);
    if constexpr (kRows > 1) {
      const auto b = hn::Set(d, z1[column]);
      b0 = hn::MulAdd(b, v0, b0);
      b1 = hn::MulAdd(b, v1, b1);
      b2 = hn::MulAdd(b, v2, b2);
      b3 = hn::MulAdd(b, v3, b3);
    }
    if constexpr (kRows > 2) {
      const auto c = hn::Set(d, z2[column]);
      c0 = hn::MulAdd(c, v0, c0);
      c1 = hn::MulAdd(c, v1, c1);
      c2 = hn::MulAdd(c, v2, c2);
      c3 = hn::MulAdd(c, v3, c3);
    }
  }
  hn::Store(a0, d, products);
  hn::Store(a1, d, products + n);
  hn::Store(a2, d, products + 2 * n);
  hn::Store(a3, d, products + 3 * n);
  if constexpr (kRows > 1) {
    products += kVectors * n;
    hn::Store(b0, d, products);
    hn::Store(b1, d, products + n);
    hn::Store(b2, d, products + 2 * n);
    hn::Store(b3, d, products + 3 * n);
  }
  if constexpr (kRows > 2) {
    products += kVectors * n;
    hn::Store(c0, d, products);
    hn::Store(c1, d, products + n);
    hn::Store(c2, d, products + 2 * n);
    hn::Store(c3, d, products + 3 * n);
  }
}

// Products of entries beyond a tile's n are the smallest.
void MaskBeyond(const Scoring& s, size_t n, float* products) {
  for (size_t row = 0; n < s.tiling.tile_entries && row < s.n_rows; ++row) {
    float* const to = products + row * s.tiling.tile_entries;
    for (size_t i = n; i < s.tiling.tile_entries; ++i) to[s.tiling.PlaceOf(i)] = kNoReference;
  }
}

// products[row, i] = z of row . entry i of a tile of floats.
void MultiplyFloats(const Scoring& s, const float* tile, float* products) {
  size_t row = 0;
  const auto step = [&](size_t n_rows) {
    const float* const z = s.z + row * s.n_columns;
    float* const to = products + row * s.tiling.tile_entries;
    if (n_rows == 3) {
      Multiply<3>(tile, z, s.n_columns, to);
    } else if (n_rows == 2) {
      Multiply<2>(tile, z, s.n_columns, to);
    } else {
      Multiply<1>(tile, z, s.n_columns, to);
    }
    row += n_rows;
  };
  while (row < s.n_rows) step(std::min<size_t>(kTileRows, s.n_rows - row));
}

// The products of a tile of n entries from `first` on; further ones get the smallest.
void MultiplyTile(const Scoring& s, size_t first, size_t n, size_t* offsets_of, const WorkerMemory& own,
                  float* products) {
  const IndexShape& shape = s.args.index_shape;
  if (*offsets_of != n) FindOffsets(s, n, own);
  *offsets_of = n;
  const size_t in_unit = first % s.tiling.unit_entries;
  const uint8_t* const rows =
      s.index + first / s.tiling.unit_entries * s.tiling.unit_bytes + in_unit * s.tiling.row_bits / 8;
  const uint8_t* const last_end =
      rows + own.bytes[s.tiling.PlaceOf(n - 1)] + RoundUp<size_t>(s.tiling.row_bits / 8, 16);
  const bool may_read_on = last_end <= s.index_end;
#if KVRUN_SCORES_ROUNDED
  if (s.rounds) {
    auto* const groups = reinterpret_cast<uint8_t*>(own.tile);
    // Whole words: what queries have there of columns behind the last is zeros.
    const size_t n_columns = std::min<size_t>(RoundUp(s.n_columns, RoundedQueries::kWordColumns), shape.rank);
    DecodeGroups(rows, own.bytes, n_columns, s.tiling.tile_entries, may_read_on, groups);
    MultiplyGroups<kVectors>(groups, s.rounded, products);
    return MaskBeyond(s, n, products);
  }
#endif
  DecodeTile(shape.type, rows, {own.bytes, own.bits, s.tiling.row_bits % 8 != 0}, s.n_columns,
             s.tiling.tile_entries, may_read_on, own.tile);
  MultiplyFloats(s, own.tile, products);
  MaskBeyond(s, n, products);
}

template <bool kRounds, class D, class V = hn::Vec<D>>
HWY_INLINE V PowerOf(D d, V x) {
  return kRounds ? Exp2Near(d, x) : Exp2(d, x);
}

// products become weights: powers of 2 of what they are above the row's reference, which is raised first
// where a product is larger; `sums` (by lane) are added to. weights: all of them, or, folded, the sum of the
// vectors; it may be where products are, or before.
template <bool kRounds, bool kFolds>
void Weigh(const float* products, float* reference, float* sums, float* weights) {
  const hn::ScalableTag<float> d;
  const size_t n = hn::Lanes(d);
  const auto v0 = hn::Load(d, products);
  const auto v1 = hn::Load(d, products + n);
  const auto v2 = hn::Load(d, products + 2 * n);
  const auto v3 = hn::Load(d, products + 3 * n);
  const auto largest = hn::Max(hn::Max(v0, v1), hn::Max(v2, v3));
  auto sum = hn::Load(d, sums);
  if (!hn::AllFalse(d, hn::Gt(largest, hn::Set(d, *reference)))) {
    const float raised = std::ceil(hn::GetLane(hn::MaxOfLanes(d, largest)));
    sum = hn::Mul(sum, hn::Set(d, Power(*reference - raised)));
    *reference = raised;
  }
  const auto r = hn::Set(d, *reference);
  const auto w0 = PowerOf<kRounds>(d, hn::Sub(v0, r));
  const auto w1 = PowerOf<kRounds>(d, hn::Sub(v1, r));
  const auto w2 = PowerOf<kRounds>(d, hn::Sub(v2, r));
  const auto w3 = PowerOf<kRounds>(d, hn::Sub(v3, r));
  const auto all = hn::Add(hn::Add(w0, w1), hn::Add(w2, w3));
  if constexpr (kFolds) {
    hn::Store(all, d, weights);
  } else {
    hn::Store(w0, d, weights);
    hn::Store(w1, d, weights + n);
    hn::Store(w2, d, weights + 2 * n);
    hn::Store(w3, d, weights + 3 * n);
  }
  hn::Store(hn::Add(sum, all), d, sums);
}

using WeighFn = void (*)(const float* products, float* reference, float* sums, float* weights);
WeighFn ChooseWeigh(const Scoring& s) {
  if (s.rounds) return s.tiling.folds ? Weigh<true, true> : Weigh<true, false>;
  return s.tiling.folds ? Weigh<false, true> : Weigh<false, false>;
}

// First pass: references and sums of a span, and the weights of the first of its tiles.
void FindSoftmaxes(const Scoring& s, size_t span, const KeptTiles& kept, const WorkerMemory& own) {
  const hn::ScalableTag<float> d;
  const size_t n_rows = s.n_rows;
  const WeighFn weigh = ChooseWeigh(s);
  size_t offsets_of = 0;
  size_t nth = 0;
  std::fill_n(own.references, n_rows, kNoReference);
  std::fill_n(own.sums, n_rows * hn::Lanes(d), 0.0F);
  const size_t end_unit = std::min((span + 1) * s.span_units(), s.n_units());
  for (size_t unit = span * s.span_units(); unit < end_unit; ++unit) {
    const size_t unit_end = std::min((unit + 1) * s.tiling.unit_entries, s.n_entries);
    size_t tile = unit * s.unit_tiles();
    for (size_t first = unit * s.tiling.unit_entries; first < unit_end;
         first += s.tiling.tile_entries, ++tile, ++nth) {
      float* const weights =
          nth < kept.n_tiles ? kept.weights + nth * n_rows * s.tiling.tile_weights : own.products;
      float* const products = s.tiling.folds ? own.products : weights;
      MultiplyTile(s, first, std::min(s.tiling.tile_entries, unit_end - first), &offsets_of, own, products);
      for (size_t row = 0; row < n_rows; ++row) {
        weigh(products + row * s.tiling.tile_entries, own.references + row, own.sums + row * hn::Lanes(d),
              weights + row * s.tiling.tile_weights);
      }
      std::copy_n(own.references, n_rows, s.first_pass.tile_references + tile * n_rows);
    }
  }
  for (size_t row = 0; row < n_rows; ++row) {
    const auto sums = hn::Load(d, own.sums + row * hn::Lanes(d));
    s.softmaxes[span * n_rows + row] = {own.references[row], hn::GetLane(hn::SumOfLanes(d, sums))};
  }
}

// Of all spans' entries: references, and the reciprocals of the sums as factors.
void JoinSoftmaxes(const Scoring& s) {
  const size_t n_rows = s.n_rows;
  const size_t n_spans = s.n_spans();
  for (size_t row = 0; row < n_rows; ++row) {
    float reference = kNoReference;
    for (size_t span = 0; span < n_spans; ++span)
      reference = std::max(reference, s.softmaxes[span * n_rows + row].reference);
    float sum = 0.0F;
    for (size_t span = 0; span < n_spans; ++span) {
      const Softmax& one = s.softmaxes[span * n_rows + row];
      sum += one.sum * Power(one.reference - reference);
    }
    s.first_pass.references[row] = reference;
    s.first_pass.factors[row] = 1.0F / sum;
  }
}

// totals = the sums over rows of weights times a factor of each.
void AddUp(const float* weights, const float* factors, size_t n_rows, float* totals) {
  const hn::ScalableTag<float> d;
  const size_t n = hn::Lanes(d);
  auto t0 = hn::Zero(d), t1 = hn::Zero(d), t2 = hn::Zero(d), t3 = hn::Zero(d);
  for (size_t row = 0; row < n_rows; ++row, weights += kVectors * n) {
    const auto factor = hn::Set(d, factors[row]);
    t0 = hn::MulAdd(factor, hn::Load(d, weights), t0);
    t1 = hn::MulAdd(factor, hn::Load(d, weights + n), t1);
    t2 = hn::MulAdd(factor, hn::Load(d, weights + 2 * n), t2);
    t3 = hn::MulAdd(factor, hn::Load(d, weights + 3 * n), t3);
  }
  hn::Store(t0, d, totals);
  hn::Store(t1, d, totals + n);
  hn::Store(t2, d, totals + 2 * n);
  hn::Store(t3, d, totals + 3 * n);
}

// The sum over rows of folded weights times a factor of each.
void AddUpFolded(const float* weights, const float* factors, size_t n_rows, float* totals) {
  const hn::ScalableTag<float> d;
  auto total = hn::Zero(d);
  for (size_t row = 0; row < n_rows; ++row, weights += hn::Lanes(d))
    total = hn::MulAdd(hn::Set(d, factors[row]), hn::Load(d, weights), total);
  hn::Store(total, d, totals);
}

// The weights of a tile for good, in place: products less the references, to the power of 2; or, folded, the
// sums of a row's vectors, row after row.
template <bool kRounds, bool kFolds>
void WeighAgain(float* products, const float* references, size_t n_rows) {
  const hn::ScalableTag<float> d;
  float* to = products;
  for (size_t row = 0; row < n_rows; ++row) {
    const auto reference = hn::Set(d, references[row]);
    auto sum = hn::Zero(d);
    for (size_t i = 0; i < kVectors; ++i, products += hn::Lanes(d)) {
      const auto weight = PowerOf<kRounds>(d, hn::Sub(hn::Load(d, products), reference));
      if constexpr (kFolds) {
        sum = hn::Add(sum, weight);
      } else {
        hn::Store(weight, d, products);
      }
    }
    if constexpr (kFolds) {
      hn::Store(sum, d, to);
      to += hn::Lanes(d);
    }
  }
}

using WeighAgainFn = void (*)(float* products, const float* references, size_t n_rows);
WeighAgainFn ChooseWeighAgain(const Scoring& s) {
  if (s.rounds) return s.tiling.folds ? WeighAgain<true, true> : WeighAgain<true, false>;
  return s.tiling.folds ? WeighAgain<false, true> : WeighAgain<false, false>;
}

// How the totals of a group's entries become its score. No score is a NaN.
struct Largest {
  static constexpr float kFirst = std::numeric_limits<float>::lowest();
  static float Join(float score, float total) { return total > score ? total : score; }
  template <class V>
  static V JoinVectors(V a, V b) {
    return hn::Max(a, b);
  }
  static float Finish(float score) { return score; }
};
struct Sum {
  static constexpr float kFirst = 0.0F;
  static float Join(float score, float total) { return score + total; }
  template <class V>
  static V JoinVectors(V a, V b) {
    return hn::Add(a, b);
  }
  static float Finish(float score) { return score > 0.0F ? score : 0.0F; }
};

// Of each four totals of a tile, in place.
template <class Joined>
void JoinFours(float* totals) {
  const hn::ScalableTag<float> d;
  auto a = hn::Undefined(d);
  auto b = hn::Undefined(d);
  auto c = hn::Undefined(d);
  auto e = hn::Undefined(d);
  static_assert(kVectors == 4);
  hn::LoadInterleaved4(d, totals, a, b, c, e);
  hn::Store(Joined::JoinVectors(Joined::JoinVectors(a, b), Joined::JoinVectors(c, e)), d, totals);
}

// The groups' scores of n entries' totals, which are changed; those begin with a group, or within one that
// has a score already. are_folded: there are totals of fours.
template <class Joined>
void JoinScores(float* totals, size_t n, size_t group_rows, bool are_folded, bool is_new, float* scores) {
  if (group_rows % 4 == 0) {
    if (!are_folded) JoinFours<Joined>(totals);
    n /= 4;
    group_rows /= 4;
  }
  for (size_t i = 0; i < n; i += group_rows, ++scores) {
    float score = is_new ? Joined::kFirst : *scores;
    for (size_t e = i; e < std::min(n, i + group_rows); ++e) score = Joined::Join(score, totals[e]);
    *scores = Joined::Finish(score);
  }
}

// Second pass (with sums, the only one): the scores of a span.
void ScoreSpan(const Scoring& s, size_t span, const KeptTiles& kept, const WorkerMemory& own) {
  const bool is_sum = s.args.reduction == HeadReduction::kSum;
  const WeighAgainFn weigh_again = ChooseWeighAgain(s);
  const auto add_up = s.tiling.folds ? AddUpFolded : AddUp;
  const bool is_mass = GroupScoreOf(s.args.rule) == GroupScore::kMass;
  const auto join = is_mass ? JoinScores<Sum> : JoinScores<Largest>;
  const size_t n_rows = s.n_rows;
  const size_t list_rows = n_rows / s.layout.n_lists;
  const size_t group_rows = s.tiling.group_rows;
  const FirstPass& found = s.first_pass;
  size_t offsets_of = 0;
  size_t nth = 0;
  const size_t end_unit = std::min((span + 1) * s.span_units(), s.n_units());
  for (size_t unit = span * s.span_units(); unit < end_unit; ++unit) {
    const size_t unit_begin = unit * s.tiling.unit_entries;
    const size_t unit_end = std::min(unit_begin + s.tiling.unit_entries, s.n_entries);
    size_t tile = unit * s.unit_tiles();
    for (size_t first = unit_begin; first < unit_end; first += s.tiling.tile_entries, ++tile, ++nth) {
      const size_t n = std::min(s.tiling.tile_entries, unit_end - first);
      const float* const references = found.tile_references + tile * n_rows;
      const bool was_kept = !is_sum && nth < kept.n_tiles;
      const float* weights = was_kept ? kept.weights + nth * n_rows * s.tiling.tile_weights : own.products;
      if (!was_kept) MultiplyTile(s, first, n, &offsets_of, own, own.products);
      if (!was_kept && !is_sum) weigh_again(own.products, references, n_rows);
      for (size_t list = 0; list < s.layout.n_lists; ++list) {
        float* totals = own.products;
        if (!is_sum) {
          // Weights are in proportion to the reference of their time; sums is free by now.
          for (size_t row = list * list_rows; row < (list + 1) * list_rows; ++row)
            own.sums[row] = found.factors[row] * Power(references[row] - found.references[row]);
          add_up(weights + list * list_rows * s.tiling.tile_weights, own.sums + list * list_rows, list_rows,
                 own.totals);
          totals = own.totals;
        }
        join(totals, n, group_rows, s.tiling.folds, first == unit_begin,
             s.scores + list * s.args.index_shape.n_groups + unit * s.tiling.unit_groups);
      }
    }
  }
}

}  // namespace
}  // namespace kvrun::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVRUN_HOST_SCORE_PASSES_INL_H_
