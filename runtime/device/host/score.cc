// Scores and chooses groups of an index.
#include "runtime/device/instruction_targets.h"
#define HWY_WANT_AVX3_DL  // it has VNNI
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/device/host/score.cc"
#include <hwy/foreach_target.h>
// What is compiled for each target may use these.
#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>

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

constexpr size_t kCopyGrain = 64;  // groups

// What a stage scores, and by what.
struct Scored {
  const uint8_t* index;
  const uint8_t* index_end;
  size_t n_entries;
  const float* z;  // [n_rows, n_columns]
  float* scores;
};

// One stage: scratch of the pool, cut into what all workers share and each one's own.
struct StageMemory {
  StageMemory(const ScoreArgs& args, size_t rows, size_t columns, size_t n_entries, size_t n_workers)
      : tiling(args, kVectors * VectorLanes()),
        n_rows(rows),
        n_columns(columns),
        kept_bytes(KeptBytesOf(tiling, n_rows, n_entries, n_workers)),
        sizes(nullptr, tiling, n_columns, n_rows, VectorLanes(), kept_bytes) {
    const size_t n_tiles =
        CeilDiv(n_entries, tiling.unit_entries) * CeilDiv(tiling.unit_entries, tiling.tile_entries);
    // The first worker's scratch begins with what the first pass finds, and rounded queries.
    first_pass_bytes = RoundUp<size_t>(FirstPass::Bytes(n_rows, n_tiles), 64);
    shared_bytes = first_pass_bytes + RoundUp<size_t>(RoundedQueries::Bytes(n_rows, n_columns), 64);
  }
  size_t n_bytes() const { return shared_bytes + sizes.n_bytes; }
  WorkerMemory OfWorker(ThreadPool& pool, size_t worker) const {
    std::byte* const own = pool.Scratch(static_cast<uint32_t>(worker), n_bytes()) + shared_bytes;
    return WorkerMemory(own, tiling, n_columns, n_rows, VectorLanes(), kept_bytes);
  }

  Tiling tiling;
  size_t n_rows;
  size_t n_columns;
  size_t kept_bytes;
  WorkerMemory sizes;
  size_t first_pass_bytes;
  size_t shared_bytes;
};

void ScoreStage(ThreadPool& pool, const ScoreArgs& args, const ScoreLayout& layout, const StageMemory& stage,
                const Scored& scored, bool rounds) {
  std::byte* const shared = pool.Scratch(0, stage.n_bytes());
  const Scoring s{.args = args,
                  .layout = layout,
                  .tiling = stage.tiling,
                  .index = scored.index,
                  .index_end = scored.index_end,
                  .z = scored.z,
                  .n_rows = stage.n_rows,
                  .n_columns = stage.n_columns,
                  .softmaxes = reinterpret_cast<Softmax*>(Data<float>(args.scratch) + layout.softmaxes_begin),
                  .scores = scored.scores,
                  .n_entries = scored.n_entries,
                  .first_pass = FirstPass(shared, stage.n_rows),
                  .rounded = RoundedQueries(shared + stage.first_pass_bytes, stage.n_rows, stage.n_columns),
                  .rounds = rounds};
  if (s.n_entries == 0) return;
  if (rounds) s.rounded.Round(s.z, s.n_columns);
  const size_t worker_spans = CeilDiv<size_t>(s.n_spans(), pool.size());
  const auto kept = [&](size_t span) {
    const size_t n_kept = stage.sizes.n_kept / worker_spans;
    return KeptTiles{stage.OfWorker(pool, span / worker_spans).kept +
                         span % worker_spans * n_kept * stage.n_rows * stage.tiling.tile_weights,
                     n_kept};
  };
  if (args.reduction != HeadReduction::kSum) {
    pool.ParallelFor(s.n_spans(), 1, [&](size_t begin, size_t end, uint32_t worker) {
      for (size_t span = begin; span < end; ++span)
        FindSoftmaxes(s, span, kept(span), stage.OfWorker(pool, worker));
    });
    JoinSoftmaxes(s);
  }
  pool.ParallelFor(s.n_spans(), 1, [&](size_t begin, size_t end, uint32_t worker) {
    for (size_t span = begin; span < end; ++span)
      ScoreSpan(s, span, kept(span), stage.OfWorker(pool, worker));
  });
}

// The index's rows of groups, one after another.
void CopyGroups(ThreadPool& pool, const uint8_t* index, std::span<const uint32_t> groups, size_t group_bytes,
                uint8_t* to) {
  pool.ParallelFor(groups.size(), kCopyGrain, [&](size_t begin, size_t end, uint32_t) {
    for (size_t i = begin; i < end; ++i)
      std::memcpy(to + i * group_bytes, index + groups[i] * group_bytes, group_bytes);
  });
}

// On scratch that Tilings of this target need.
void Score(ThreadPool& pool, const ScoreArgs& args, const ScoreLayout& layout, bool exact) {
  const IndexShape& shape = args.index_shape;
  const size_t group_bytes = size_t{shape.group_words()} * 4;
  const size_t n_entries = size_t{shape.n_groups} * shape.rows();
  const bool rounds = KVRUN_SCORES_ROUNDED && !exact && shape.type == KvType::kInt4 && shape.rank % 2 == 0;
  const StageMemory all(args, layout.n_rows, shape.rank, n_entries, pool.size());
  std::optional<StageMemory> first;
  if (const ScoreStages* stages = StagesOf(args.rule))
    first.emplace(args, layout.n_first_rows, stages->first_columns, n_entries, pool.size());
  pool.ReserveScratch(std::max(all.n_bytes(), first ? first->n_bytes() : 0));
  const auto* step = Data<StepParams>(args.attention.step);
  float* const scratch = Data<float>(args.scratch);
  for (size_t token = 0; token < args.attention.n_tokens; ++token) {
    const StepToken& row = step->tokens[token];
    const uint32_t n_groups = ChoosableGroups(args, row.position);
    const uint8_t* const index =
        Data<uint8_t>(args.index) + row.sequence * size_t{shape.n_groups} * group_bytes;
    Scored scored{.index = index,
                  .index_end = Data<uint8_t>(args.index) + args.index->size_bytes(),
                  .n_entries = size_t{n_groups} * shape.rows(),
                  .z = scratch + token * layout.n_rows * shape.rank,
                  .scores = scratch + layout.scores_begin + token * layout.n_lists * shape.n_groups};
    if (HasStages(args, n_groups)) {
      MeanQueries(args, layout, token);
      Scored by_few = scored;
      by_few.z = scratch + layout.first_z_begin;
      by_few.scores = scratch + layout.first_scores_begin;
      ScoreStage(pool, args, layout, *first, by_few, rounds);
      const auto candidates = SelectCandidates(args, layout, token, n_groups);
      auto* const copy = reinterpret_cast<uint8_t*>(scratch + layout.copy_begin);
      CopyGroups(pool, index, candidates, group_bytes, copy);
      scored.index = copy;
      scored.index_end = reinterpret_cast<const uint8_t*>(scratch + layout.n_floats);
      scored.n_entries = candidates.size() * shape.rows();
    }
    ScoreStage(pool, args, layout, all, scored, rounds);
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
  if (const ScoreStages* stages = StagesOf(args.rule)) {
    layout.n_first_rows = args.reduction == HeadReduction::kSum ? 1 : args.attention.kv_shape.n_kv_heads;
    layout.first_z_begin = take(size_t{layout.n_first_rows} * stages->first_columns);
    layout.first_scores_begin = take(args.index_shape.n_groups);
    layout.candidate_words = size_t{1} + stages->n_candidates;
    layout.candidates_begin = take(n_tokens * layout.candidate_words);
    // Rows may be read on for 16 bytes.
    layout.copy_begin = take(size_t{stages->n_candidates} * args.index_shape.group_words() + 4);
  }
  const auto* const by_weight = std::get_if<ChooseByWeight>(&args.rule);
  if (by_weight != nullptr && by_weight->per_weight)
    layout.divided_begin = take(n_tokens * layout.n_lists * args.index_shape.n_groups);
  return layout;
}

uint32_t ChoosableGroups(const ScoreArgs& args, uint32_t position) {
  const uint32_t entries = position + 1;
  const uint32_t before = entries > args.window_tokens ? entries - args.window_tokens : 0;
  return std::min(before / args.index_shape.group_tokens, args.index_shape.n_groups);
}

bool HasStages(const ScoreArgs& args, uint32_t n_groups) {
  const ScoreStages* const stages = StagesOf(args.rule);
  return stages != nullptr && n_groups > stages->n_candidates;
}

void MeanQueries(const ScoreArgs& args, const ScoreLayout& layout, size_t token) {
  const size_t rank = args.index_shape.rank;
  const size_t n_columns = StagesOf(args.rule)->first_columns;
  const size_t group = layout.n_rows / layout.n_first_rows;
  const float* from = Data<float>(args.scratch) + token * layout.n_rows * rank;
  float* to = Data<float>(args.scratch) + layout.first_z_begin;
  std::fill_n(to, layout.n_first_rows * n_columns, 0.0F);
  const float factor = 1.0F / static_cast<float>(group);
  for (size_t row = 0; row < layout.n_rows; ++row, from += rank) {
    float* const mean = to + row / group * n_columns;
    for (size_t i = 0; i < n_columns; ++i) mean[i] += factor * from[i];
  }
}

std::span<const uint32_t> CandidatesOf(const ScoreArgs& args, const ScoreLayout& layout, size_t token) {
  const auto* const list =
      reinterpret_cast<const uint32_t*>(Data<float>(args.scratch) + layout.candidates_begin) +
      token * layout.candidate_words;
  return {list + 1, list[0]};
}

std::span<const uint32_t> SelectCandidates(const ScoreArgs& args, const ScoreLayout& layout, size_t token,
                                           uint32_t n_groups) {
  float* const scratch = Data<float>(args.scratch);
  auto* const list =
      reinterpret_cast<uint32_t*>(scratch + layout.candidates_begin) + token * layout.candidate_words;
  SelectGroups(scratch + layout.first_scores_begin, n_groups, args.n_pinned,
               StagesOf(args.rule)->n_candidates, 0.0F, list);
  return CandidatesOf(args, layout, token);
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
  const ChoiceList shape = args.choice_list();
  const size_t n_groups = args.index_shape.n_groups;
  const auto select = [&](size_t list) {
    const StepToken& token = step->tokens[list / layout.n_lists];
    uint32_t n_choosable = ChoosableGroups(args, token.position);
    std::span<const uint32_t> candidates;
    if (HasStages(args, n_choosable)) {
      candidates = CandidatesOf(args, layout, list);
      n_choosable = static_cast<uint32_t>(candidates.size());
    }
    uint32_t* const to = chosen + list * shape.words();
    const float* scores = scratch + layout.scores_begin + list * n_groups;
    const auto* const by_weight = std::get_if<ChooseByWeight>(&args.rule);
    if (by_weight == nullptr) {
      SelectGroups(scores, n_choosable, args.n_pinned, MostChosen(step->most_chosen, args.n_chosen),
                   MassShareOf(args.rule), to);
      if (shape.tells_scores) TellScores(scores, to + shape.scores_begin(), to);
      for (uint32_t i = 1; !candidates.empty() && i <= to[0]; ++i) to[i] = candidates[to[i]];
      const auto* const and_sample = std::get_if<ChooseAndSample>(&args.rule);
      if (and_sample == nullptr) return;
      const auto place = static_cast<uint32_t>(list % layout.n_lists);
      SampleGroups(scores, n_choosable, shape, SampleOffset(and_sample->seed, token.position, place), to);
      return;
    }
    const size_t weighed = token.sequence * size_t{layout.n_lists} + list % layout.n_lists;
    const uint32_t* const weights = Data<uint32_t>(by_weight->weights) + weighed * n_groups;
    if (by_weight->per_weight) {
      float* const divided = scratch + layout.divided_begin + list * n_groups;
      DivideByWeights(scores, weights, n_choosable, divided);
      scores = divided;
    }
    SelectWeighted(scores, weights, n_choosable, args.n_pinned, by_weight->most_weight, to);
  };
  pool.ParallelFor(size_t{args.attention.n_tokens} * layout.n_lists, kSelectGrain,
                   [&](size_t begin, size_t end, uint32_t) {
                     for (size_t list = begin; list < end; ++list) select(list);
                   });
}

}  // namespace kvrun::host
#endif  // HWY_ONCE
