// Scores and chooses groups of an index.
#define HWY_WANT_AVX3_DL  // it has VNNI
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/device/host/score.cc"
#include <hwy/foreach_target.h>
// What is compiled for each target may use these.
#include <hwy/highway.h>

#include <algorithm>
#include <bit>

#include "platform/base/check.h"
#include "platform/base/units.h"
#include "runtime/device/host/operations.h"
#include "runtime/device/host/score.h"
#include "runtime/device/host/score_passes-inl.h"
#include "runtime/device/host/score_tiles.h"
#include "shaders/shared/sample_params.h"
#include "shaders/shared/step_params.h"

HWY_BEFORE_NAMESPACE();
namespace kvrun::host::HWY_NAMESPACE {
namespace {

// On scratch that a Tiling of this target needs.
void Score(ThreadPool& pool, const ScoreArgs& args, const ScoreLayout& layout, bool exact) {
  const Tiling tiling(args, kVectors * VectorLanes());
  const size_t rank = args.index_shape.rank;
  const size_t n_tiles = CeilDiv(size_t{args.index_shape.n_groups}, tiling.unit_groups) *
                         CeilDiv(tiling.unit_entries, tiling.tile_entries);
  const WorkerMemory sizes(nullptr, tiling, rank, layout.n_rows, VectorLanes());
  const bool rounds =
      KVRUN_SCORES_ROUNDED && !exact && args.index_shape.type == KvType::kInt4 && rank % 2 == 0;
  // The first worker's scratch begins with what the first pass finds, and rounded queries.
  const size_t first_pass_bytes = RoundUp<size_t>(FirstPass::Bytes(layout.n_rows, n_tiles), 64);
  const size_t shared_bytes =
      first_pass_bytes + RoundUp<size_t>(RoundedQueries::Bytes(layout.n_rows, rank), 64);
  const size_t scratch_bytes = shared_bytes + sizes.n_bytes;
  pool.ReserveScratch(scratch_bytes);
  const auto* step = Data<StepParams>(args.attention.step);
  float* const scratch = Data<float>(args.scratch);
  for (size_t token = 0; token < args.attention.n_tokens; ++token) {
    const StepToken& row = step->tokens[token];
    const size_t sequence_words = size_t{args.index_shape.n_groups} * args.index_shape.group_words();
    const Scoring s{
        .args = args,
        .layout = layout,
        .tiling = tiling,
        .index = Data<uint8_t>(args.index) + row.sequence * sequence_words * 4,
        .index_end = Data<uint8_t>(args.index) + args.index->size_bytes(),
        .z = scratch + token * layout.n_rows * rank,
        .softmaxes = reinterpret_cast<Softmax*>(scratch + layout.softmaxes_begin),
        .scores = scratch + layout.scores_begin + token * layout.n_lists * args.index_shape.n_groups,
        .n_entries = size_t{ChoosableGroups(args, row.position)} * args.index_shape.rows(),
        .first_pass = FirstPass(pool.Scratch(0, scratch_bytes), layout.n_rows),
        .rounded = RoundedQueries(pool.Scratch(0, scratch_bytes) + first_pass_bytes, layout.n_rows, rank),
        .rounds = rounds};
    if (s.n_entries == 0) continue;
    if (rounds) s.rounded.Round(s.z, rank);
    const auto memory = [&](size_t worker) {
      std::byte* const own = pool.Scratch(static_cast<uint32_t>(worker), scratch_bytes) + shared_bytes;
      return WorkerMemory(own, tiling, rank, layout.n_rows, VectorLanes());
    };
    const size_t worker_spans = CeilDiv<size_t>(s.n_spans(), pool.size());
    const auto kept = [&](size_t span) {
      const size_t n_kept = sizes.n_kept / worker_spans;
      return KeptTiles{memory(span / worker_spans).kept +
                           span % worker_spans * n_kept * layout.n_rows * tiling.tile_weights,
                       n_kept};
    };
    if (args.reduction != HeadReduction::kSum) {
      pool.ParallelFor(s.n_spans(), 1, [&](size_t begin, size_t end, uint32_t worker) {
        for (size_t span = begin; span < end; ++span) FindSoftmaxes(s, span, kept(span), memory(worker));
      });
      JoinSoftmaxes(s);
    }
    pool.ParallelFor(s.n_spans(), 1, [&](size_t begin, size_t end, uint32_t worker) {
      for (size_t span = begin; span < end; ++span) ScoreSpan(s, span, kept(span), memory(worker));
    });
  }
}

}  // namespace
}  // namespace kvrun::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvrun::host {
namespace {

HWY_EXPORT(Score);

constexpr size_t kSelectGrain = 1;

// Of what a list has chosen.
void TellScores(const float* scores, uint32_t* to, const uint32_t* choice) {
  for (uint32_t i = 0; i < choice[0]; ++i) to[i] = std::bit_cast<uint32_t>(scores[choice[1 + i]]);
}

uint32_t RowsOf(const ScoreArgs& args) {
  switch (args.reduction) {
    case HeadReduction::kSum: return 1;
    case HeadReduction::kGqa: return args.attention.kv_shape.n_kv_heads;
    case HeadReduction::kSoftmax:
    case HeadReduction::kPerKvHead: return args.attention.n_heads;
  }
  return 0;
}

}  // namespace

ScoreLayout LayOutScores(const ScoreArgs& args) {
  const size_t n_tokens = args.attention.n_tokens;
  ScoreLayout layout;
  layout.n_rows = RowsOf(args);
  layout.n_lists = args.reduction == HeadReduction::kPerKvHead ? args.attention.kv_shape.n_kv_heads : 1;
  const auto take = [&layout](size_t n_floats) {
    const size_t begin = layout.n_floats;
    layout.n_floats += RoundUp<size_t>(n_floats, 16);
    return begin;
  };
  take(n_tokens * layout.n_rows * args.index_shape.rank);
  if (args.reduction != HeadReduction::kSum) layout.softmaxes_begin = take(kScoreSpans * layout.n_rows * 2);
  layout.scores_begin = take(n_tokens * layout.n_lists * args.index_shape.n_groups);
  if (args.per_weight) layout.divided_begin = take(n_tokens * layout.n_lists * args.index_shape.n_groups);
  return layout;
}

uint32_t ChoosableGroups(const ScoreArgs& args, uint32_t position) {
  const uint32_t entries = position + 1;
  const uint32_t before = entries > args.window_tokens ? entries - args.window_tokens : 0;
  return std::min(before / args.index_shape.group_tokens, args.index_shape.n_groups);
}

uint64_t ScoreScratchBytes(const ScoreArgs& args) { return LayOutScores(args).n_floats * sizeof(float); }

void ScoreAndSelect(ThreadPool& pool, const ScoreArgs& args, bool exact) {
  KVRUN_CHECK(args.is_consistent());
  const ScoreLayout layout = LayOutScores(args);
  ProjectQueries(pool, args, layout);
  HWY_DYNAMIC_DISPATCH(Score)(pool, args, layout, exact);
  const auto* step = Data<StepParams>(args.attention.step);
  float* const scratch = Data<float>(args.scratch);
  auto* chosen = Data<uint32_t>(args.chosen);
  const size_t n_groups = args.index_shape.n_groups;
  const auto select = [&](size_t list) {
    const StepToken& token = step->tokens[list / layout.n_lists];
    const uint32_t n_choosable = ChoosableGroups(args, token.position);
    uint32_t* const to = chosen + list * args.choice_list().words();
    const float* scores = scratch + layout.scores_begin + list * n_groups;
    if (args.weights == nullptr) {
      SelectGroups(scores, n_choosable, args.n_pinned, MostChosen(step->most_chosen, args.n_chosen),
                   args.mass_share, to);
      if (args.tells_scores) TellScores(scores, to + args.choice_list().scores_begin(), to);
      if (args.n_sampled == 0) return;
      const auto place = static_cast<uint32_t>(list % layout.n_lists);
      SampleGroups(scores, n_choosable, args.choice_list(),
                   SampleOffset(args.sample_seed, token.position, place), to);
      return;
    }
    const size_t weighed = token.sequence * size_t{layout.n_lists} + list % layout.n_lists;
    const uint32_t* const weights = Data<uint32_t>(args.weights) + weighed * n_groups;
    if (args.per_weight) {
      float* const divided = scratch + layout.divided_begin + list * n_groups;
      DivideByWeights(scores, weights, n_choosable, divided);
      scores = divided;
    }
    SelectWeighted(scores, weights, n_choosable, args.n_pinned, args.most_weight, to);
  };
  pool.ParallelFor(size_t{args.attention.n_tokens} * layout.n_lists, kSelectGrain,
                   [&](size_t begin, size_t end, uint32_t) {
                     for (size_t list = begin; list < end; ++list) select(list);
                   });
}

}  // namespace kvrun::host
#endif  // HWY_ONCE
