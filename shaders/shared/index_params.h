// Push constants of the operations on the index. Shared by GLSL and C++: 32-bit scalars only, at most 128
// bytes each. All counts are in elements, *_begin in words of the scratch buffer
// (runtime/device/vulkan/score_plan.h).
#ifndef KVRUN_SHADERS_SHARED_INDEX_PARAMS_H_
#define KVRUN_SHADERS_SHARED_INDEX_PARAMS_H_

#ifdef __cplusplus
#include <cstdint>
namespace kvrun {
using uint = uint32_t;
#endif

// Columns of an index at most.
#define KVRUN_MAX_INDEX_RANK 8192
// Those that score.comp has shared memory for.
#define KVRUN_SHARED_INDEX_RANK 256
// Heads of a query whose norms project_query.comp and score.comp have shared memory for.
#define KVRUN_MAX_NORMED_HEADS 128
// Dimensions of a head that score.comp has shared memory for, where it projects.
#define KVRUN_MAX_PROJECTED_HEAD_DIM 128

// Which groups are scored (include/score_stages.glsl).
#define KVRUN_SCORE_ALL 0
#define KVRUN_SCORE_FIRST 1  // all, by few rows of z
#define KVRUN_SCORE_CANDIDATES 2

struct RotateQueryParams {
  uint n_heads;
  uint head_dim;
  uint rotary_dim;
  uint rope_halves;
  uint has_norm;
  float norm_epsilon;
};

// A row of z is the projection of n_heads / n_rows neighbouring heads, added up.
struct ProjectQueryParams {
  uint n_heads;
  uint n_kv_heads;
  uint head_dim;
  uint rank;
  uint n_rows;
  uint z_begin;
  float scale;
  uint is_affine;  // query_side has one row more, which is added to each of z
  // Where the query is normalised and rotated too:
  uint rotary_dim;
  uint rope_halves;
  float norm_epsilon;
};

// A row of z is made of n_heads / n_rows neighbouring heads; the signs of each are taken, or of n_added
// neighbours' sum.
struct SignQueryParams {
  uint n_heads;
  uint n_kv_heads;
  uint head_dim;
  uint n_rows;
  uint n_added;
  uint z_begin;
  float scale;
};

// Each of n_first_rows is the mean of n_rows / n_first_rows neighbouring rows of z, columns from
// first_columns on zeros.
struct MeanQueriesParams {
  uint n_rows;  // of z, per token
  uint n_first_rows;
  uint rank;
  uint first_columns;
  uint z_begin;
  uint first_z_begin;
};

struct ScoreParams {
  uint n_groups;  // room, per sequence
  uint group_words;
  uint group_tokens;
  uint window_tokens;
  uint n_rows;     // of z, per token
  uint list_rows;  // rows that are added up
  uint first_row;  // of them, of this dispatch
  uint n_units;    // room
  uint n_workgroups;
  uint z_begin;
  uint softmaxes_begin;
  uint totals_begin;
  uint scores_begin;
  uint scores_stride;
  uint kept_begin;
  // Where there are stages (shaders/include/score_stages.glsl):
  uint candidates_begin;
  uint candidate_words;  // per token
};

// Where rows of z are projected by the kernel that scores by them.
struct ProjectScoreParams {
  ScoreParams score;
  ProjectQueryParams query;
};

struct SelectGroupsParams {
  uint n_groups;
  uint group_tokens;
  uint window_tokens;
  uint n_lists;  // per token
  uint n_pinned;
  uint n_chosen;
  uint list_words;  // of a choice
  uint tell_at;     // from a chosen group to its score, in words; 0: scores are not told
  uint scores_begin;
  uint scores_stride;
  // With MASS:
  float mass_share;  // less than 1
  float mass_scale;  // makes whole numbers of masses, whose sum over all groups fits into a word
  // Of select_weighted.comp:
  uint most_weight;
  uint per_weight;  // groups are ranked by score / weight
  // Where there are stages, of select_groups*.comp:
  uint stage;
  uint candidates_begin;
  uint candidate_words;  // per token
  uint chosen_begin;     // of its binding
};

// out[t, column] = K of entry first_token + t . side[., column] - bias[column].
struct ProjectKeysParams {
  uint n_tokens;
  uint n_dims;  // n_kv_heads * head_dim
  uint rank;
  uint first_token;
  uint head_dim;
  uint n_ctx;
};

struct AccumulateGramParams {
  uint n_vectors;
  uint first_row;
  uint row_stride;
  uint first_column;
  uint dim;
  uint n_blocks;
  uint sums_offset;
};

#ifdef __cplusplus
}  // namespace kvrun
#endif

#endif  // KVRUN_SHADERS_SHARED_INDEX_PARAMS_H_
