// Push constants of every operation. Shared by GLSL and C++: 32-bit scalars only, at most 128 bytes each.
// All counts are in elements (float unless said), rows in rows.
#ifndef KVRUN_SHADERS_SHARED_OP_PARAMS_H_
#define KVRUN_SHADERS_SHARED_OP_PARAMS_H_

#ifdef __cplusplus
#include <cstdint>
namespace kvrun {
using uint = uint32_t;
#endif

// Rows of a packed matrix that lie side by side, so that neighbouring lanes read neighbouring words.
#define KVRUN_ROW_INTERLEAVE 32
// Columns of a packed matrix that are padded to, and decoded together.
#define KVRUN_CHUNK_COLUMNS 64

// Where a packed matrix's planes begin, in units of 4 words (docs/formats/packed_matrix.md).
struct PackedPlanes {
  uint high;    // high bits of the quants
  uint scales;  // scales (and minima)
  uint extra;   // super-block scales
  uint n_chunks;
};

struct EmbedParams {
  PackedPlanes planes;
  uint n_rows;     // of the table's slice
  uint row_begin;  // first row of the slice
  uint n_cols;
  uint n_tokens;
  float scale;
};

struct MatMulParams {
  PackedPlanes planes;
  uint n_rows;
  uint n_cols;
  uint n_tokens;
  uint output_stride;
  uint output_offset;
  uint bias_offset;
  uint has_bias;
  uint accumulate;
  float norm_epsilon;
};

// Of a product's gate.
#define KVRUN_GATE_SILU 1
#define KVRUN_GATE_GELU 2
// The most invocations of a workgroup of matvec.comp.
#define KVRUN_MATVEC_LOCAL_SIZE 512

struct RmsNormParams {
  uint n_rows;
  uint n_cols;
  float epsilon;
};

struct RopeStoreParams {
  uint n_heads;
  uint n_kv_heads;
  uint head_dim;
  uint n_ctx;
  uint n_tokens;
  uint rotary_dim;
  uint rope_halves;
  uint has_qk_norm;
  float norm_epsilon;
  // Of streams, a sequence's KV head each, those whose KV is bound.
  uint first_stream;
  uint n_streams;
  uint is_rotated;  // and normalised: for other streams, before
};

// A query row is one head of one token. Rows that share a KV head are numbered token by token: row i of a
// span is head i % (n_heads / n_kv_heads) of the group, of the span's token i / (n_heads / n_kv_heads). A
// span is the whole step where its rows are one sequence's, else one token.
struct AttendParams {
  uint n_heads;
  uint n_kv_heads;
  uint head_dim;
  uint n_ctx;
  uint span_tokens;
  uint n_splits;     // parts that a row's positions are divided into
  uint keeps_parts;  // 0: the result goes to the output (of one part); else parts go to scratch
  uint qkv_stride;
  float scale;
  // Of streams, a sequence's KV head each, those whose KV is bound: others are none of this dispatch's.
  uint first_stream;
  uint n_streams;
  uint window_tokens;  // with HAS_WINDOW: the entries lie in a ring of n_ctx
  float score_cap;     // with HAS_CAP
};

// Of a step's newest entries, which a kernel of attention rotates and stores itself: behind AttendParams.
struct NewEntryParams {
  uint rotary_dim;
  uint rope_halves;
  uint has_qk_norm;
  float norm_epsilon;
};
// Words in which workgroups that share something count themselves.
#define KVRUN_WORKGROUP_COUNTERS 1024
// The largest head of a kernel that takes new entries.
#define KVRUN_MAX_NEW_HEAD_DIM 256

struct CombineParams {
  uint n_rows;  // n_tokens * n_heads
  uint head_dim;
  uint n_splits;
  uint first_row;  // of the parts
};

struct CombineInSpaceParams {
  uint head_dim;
  uint n_splits;
  uint n_heads;
  uint n_kv_heads;
  uint means_begin;  // elements
};

struct MergeParams {
  uint n_rows;  // n_tokens * n_heads
  uint head_dim;
  uint n_splits;
  uint has_before;
  uint first_before;  // rows of the buffers, before the first of these
  uint first_after;
};

struct SwiGluParams {
  uint n_tokens;
  uint n_ff;
};

struct GatherParams {
  uint n_rows;
  uint n_cols;
};

struct RateParams {
  uint n_steps;
  uint stride;
};

#ifdef __cplusplus
}  // namespace kvrun
#endif

#endif  // KVRUN_SHADERS_SHARED_OP_PARAMS_H_
