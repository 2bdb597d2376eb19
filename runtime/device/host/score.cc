// Scores and chooses groups of an index.
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

constexpr size_t kCopyGrain = 64;  // blocks

// One stage: scratch of the pool, cut into what all workers share and each one's own.
struct StageMemory {
  StageMemory(const ScoreArgs& args, const ScoreLayout& layout, bool are_blocks, size_t n_entries,
              size_t n_workers)
      : tiling(args, kVectors * VectorLanes(), are_blocks),
        rank(args.index_shape.rank),
        n_rows(layout.n_rows),
        kept_bytes(KeptBytesOf(tiling, n_rows, n_entries, n_workers)),
        sizes(nullptr, tiling, rank, n_rows, VectorLanes(), kept_bytes) {
    const size_t n_tiles =
        CeilDiv(n_entries, tiling.unit_entries) * CeilDiv(tiling.unit_entries, tiling.tile_entries);
    // The first worker's scratch begins with what the first pass finds, and rounded queries.
    first_pass_bytes = RoundUp<size_t>(FirstPass::Bytes(n_rows, n_tiles), 64);
    shared_bytes = first_pass_bytes + RoundUp<size_t>(RoundedQueries::Bytes(n_rows, rank), 64);
  }
  size_t n_bytes() const { return shared_bytes + sizes.n_bytes; }
  WorkerMemory OfWorker(ThreadPool& pool, size_t worker) const {
    std::byte* const own = pool.Scratch(static_cast<uint32_t>(worker), n_bytes()) + shared_bytes;
    return WorkerMemory(own, tiling, rank, n_rows, VectorLanes(), kept_bytes);
  }

  Tiling tiling;
  size_t rank;
  size_t n_rows;
  size_t kept_bytes;
  WorkerMemory sizes;
  size_t first_pass_bytes;
  size_t shared_bytes;
};

// What of an index a stage scores.
struct Scored {
  const uint8_t* index;
  const uint8_t* index_end;
  size_t n_rows;
  size_t block_rows = 0;  // as in Scoring
};

void ScoreStage(ThreadPool& pool, const ScoreArgs& args, const ScoreLayout& layout, const StageMemory& stage,
                const Scored& scored, size_t token, bool rounds, float* scores) {
  const size_t rank = args.index_shape.rank;
  float* const scratch = Data<float>(args.scratch);
  std::byte* const shared = pool.Scratch(0, stage.n_bytes());
  const Scoring s{.args = args,
                  .layout = layout,
                  .tiling = stage.tiling,
                  .index = scored.index,
                  .index_end = scored.index_end,
                  .z = scratch + token * layout.n_rows * rank,
                  .softmaxes = reinterpret_cast<Softmax*>(scratch + layout.softmaxes_begin),
                  .scores = scores,
                  .n_entries = CeilDiv(scored.n_rows, std::max<size_t>(1, scored.block_rows)),
                  .block_rows = scored.block_rows,
                  .n_index_rows = scored.n_rows,
                  .first_pass = FirstPass(shared, layout.n_rows),
                  .rounded = RoundedQueries(shared + stage.first_pass_bytes, layout.n_rows, rank),
                  .rounds = rounds};
  if (s.n_entries == 0) return;
  if (rounds) s.rounded.Round(s.z, rank);
  const size_t worker_spans = CeilDiv<size_t>(s.n_spans(), pool.size());
  const auto kept = [&](size_t span) {
    const size_t n_kept = stage.sizes.n_kept / worker_spans;
    return KeptTiles{stage.OfWorker(pool, span / worker_spans).kept +
                         span % worker_spans * n_kept * layout.n_rows * stage.tiling.tile_weights,
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

// On scratch that Tilings of this target need.
void Score(ThreadPool& pool, const ScoreArgs& args, const ScoreLayout& layout, bool exact) {
  const IndexShape& shape = args.index_shape;
  const size_t group_bytes = size_t{shape.group_words()} * 4;
  const bool rounds = KVRUN_SCORES_ROUNDED && !exact && shape.type == KvType::kInt4 && shape.rank % 2 == 0;
  const StageMemory rows(args, layout, false, size_t{shape.n_groups} * shape.rows(), pool.size());
  std::optional<StageMemory> blocks;
  if (args.block_groups != 0)
    blocks.emplace(args, layout, true, CeilDiv(shape.n_groups, args.block_groups), pool.size());
  pool.ReserveScratch(std::max(rows.n_bytes(), blocks ? blocks->n_bytes() : 0));
  const auto* step = Data<StepParams>(args.attention.step);
  float* const scratch = Data<float>(args.scratch);
  for (size_t token = 0; token < args.attention.n_tokens; ++token) {
    const StepToken& row = step->tokens[token];
    const uint32_t n_groups = ChoosableGroups(args, row.position);
    const uint8_t* const index =
        Data<uint8_t>(args.index) + row.sequence * size_t{shape.n_groups} * group_bytes;
    float* const scores = scratch + layout.scores_begin + token * layout.n_lists * shape.n_groups;
    Scored scored{index, Data<uint8_t>(args.index) + args.index->size_bytes(),
                  size_t{n_groups} * shape.rows()};
    if (HasStages(args, n_groups)) {
      scored.block_rows = size_t{args.block_groups} * shape.rows();
      ScoreStage(pool, args, layout, *blocks, scored, token, rounds, scratch + layout.blocks_begin);
      const CandidateGroups candidates = SelectCandidates(args, layout, token, n_groups);
      auto* const copy = reinterpret_cast<uint8_t*>(scratch + layout.copy_begin);
      const size_t block_bytes = args.block_groups * group_bytes;
      pool.ParallelFor(candidates.blocks.size(), kCopyGrain, [&](size_t begin, size_t end, uint32_t) {
        for (size_t i = begin; i < end; ++i) {
          const size_t from = candidates.blocks[i];
          const size_t n = std::min<size_t>(args.block_groups, n_groups - from * args.block_groups);
          std::memcpy(copy + i * block_bytes, index + from * block_bytes, n * group_bytes);
        }
      });
      scored = {copy, reinterpret_cast<const uint8_t*>(scratch + layout.n_floats),
                size_t{candidates.n_groups} * shape.rows()};
    }
    ScoreStage(pool, args, layout, rows, scored, token, rounds, scores);
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
  if (args.block_groups != 0) {
    layout.blocks_begin = take(CeilDiv(args.index_shape.n_groups, args.block_groups));
    layout.candidates_begin = take(n_tokens * layout.candidate_words(args));
    // Rows may be read on for 16 bytes.
    layout.copy_begin =
        take(args.n_candidate_blocks * args.block_groups * args.index_shape.group_words() + 4);
  }
  if (args.per_weight) layout.divided_begin = take(n_tokens * layout.n_lists * args.index_shape.n_groups);
  return layout;
}

uint32_t ChoosableGroups(const ScoreArgs& args, uint32_t position) {
  const uint32_t entries = position + 1;
  const uint32_t before = entries > args.window_tokens ? entries - args.window_tokens : 0;
  return std::min(before / args.index_shape.group_tokens, args.index_shape.n_groups);
}

bool HasStages(const ScoreArgs& args, uint32_t n_groups) {
  return args.block_groups != 0 && CeilDiv(n_groups, args.block_groups) > args.n_candidate_blocks;
}

CandidateGroups CandidatesOf(const ScoreArgs& args, const ScoreLayout& layout, size_t token,
                             uint32_t n_groups) {
  const auto* const list =
      reinterpret_cast<const uint32_t*>(Data<float>(args.scratch) + layout.candidates_begin) +
      token * layout.candidate_words(args);
  CandidateGroups candidates{{list + 1, args.n_candidate_blocks},
                             args.n_candidate_blocks * args.block_groups};
  const uint32_t last_end = (candidates.blocks.back() + 1) * args.block_groups;
  if (last_end > n_groups) candidates.n_groups -= last_end - n_groups;
  return candidates;
}

CandidateGroups SelectCandidates(const ScoreArgs& args, const ScoreLayout& layout, size_t token,
                                 uint32_t n_groups) {
  float* const scratch = Data<float>(args.scratch);
  auto* const list =
      reinterpret_cast<uint32_t*>(scratch + layout.candidates_begin) + token * layout.candidate_words(args);
  SelectGroups(scratch + layout.blocks_begin, CeilDiv(n_groups, args.block_groups),
               CeilDiv(args.n_pinned, args.block_groups), args.n_candidate_blocks, 0.0F, list);
  return CandidatesOf(args, layout, token, n_groups);
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
    uint32_t n_choosable = ChoosableGroups(args, token.position);
    const bool has_stages = HasStages(args, n_choosable);
    const CandidateGroups candidates =
        has_stages ? CandidatesOf(args, layout, list, n_choosable) : CandidateGroups{};
    if (has_stages) n_choosable = candidates.n_groups;
    uint32_t* const to = chosen + list * args.choice_list().words();
    const float* scores = scratch + layout.scores_begin + list * n_groups;
    if (args.weights == nullptr) {
      SelectGroups(scores, n_choosable, args.n_pinned, MostChosen(step->most_chosen, args.n_chosen),
                   args.mass_share, to);
      if (args.tells_scores) TellScores(scores, to + args.choice_list().scores_begin(), to);
      for (uint32_t i = 1; has_stages && i <= to[0]; ++i)
        to[i] = candidates.blocks[to[i] / args.block_groups] * args.block_groups + to[i] % args.block_groups;
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
