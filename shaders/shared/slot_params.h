// Push constants of the operations on KV records (runtime/device/kv_record.h). Shared by GLSL and C++: 32-bit
// scalars only, at most 128 bytes each.
#ifndef KVRUN_SHADERS_SHARED_SLOT_PARAMS_H_
#define KVRUN_SHADERS_SHARED_SLOT_PARAMS_H_

#ifdef __cplusplus
#include <cstdint>
namespace kvrun {
using uint = uint32_t;
#endif

// The values of KvType: what kernels take as K_TYPE and V_TYPE.
#define KVRUN_KV_F16 0
#define KVRUN_KV_F32 1
#define KVRUN_KV_FP8 2
#define KVRUN_KV_INT8 3
#define KVRUN_KV_INT4 4
// Elements that share a scale of KVRUN_KV_INT4.
#define KVRUN_INT4_BLOCK 32
// kMaxSlotSources.
#define KVRUN_MOST_ATTENDED_SOURCES 4
// kInt4Factors of runtime/device/kv_record.h.
#define KVRUN_N_INT4_FACTORS 5
#define KVRUN_INT4_FACTORS 1.0, 0.92, 0.85, 0.78, 0.7

// Where things lie in a record. A row is one head's K or V of one entry; row i is of head i / group_tokens.
struct KvRecordLayout {
  uint n_heads;
  uint head_dim;
  uint group_tokens;
  uint size_words;
  uint k_row_words;
  uint v_row_words;
  uint k_row_scales;
  uint v_row_scales;
  uint v_begin;         // words from the record's begin
  uint k_scales_begin;  // halves from the record's begin
  uint v_scales_begin;  // halves from the record's begin
};

struct RopeEncodeParams {
  KvRecordLayout record;
  uint n_heads;
  uint n_kv_heads;
  uint n_tokens;
  uint rotary_dim;
  uint rope_halves;
  uint has_qk_norm;
  float norm_epsilon;
  uint n_slots;
  uint n_window_slots;
  uint means_begin;  // elements, of all sequences: [n_sequences, n_kv_heads, 2, head_dim]
};

struct AttendSlotsParams {
  KvRecordLayout record;
  uint n_heads;
  uint n_kv_heads;
  uint n_slots;
  uint table_stride;  // words of a stream's mapping table
  uint n_splits;      // parts that these entries are divided into
  uint split_block;   // so many entries of a part go together: it has a multiple of them, but for the last
  uint first_part;    // of them, among a row's parts
  uint n_parts;       // of a row
  uint keeps_parts;   // scratch is written; else the output, which one part makes
  uint qkv_stride;
  float scale;
  uint scores_begin;   // where a kernel keeps scores: the first, in elements of scratch
  uint scores_stride;  // of a row's scores
  float score_cap;     // with HAS_CAP
};

// A source of attend_sources_subgroup.comp, but for what follows from its types and from head_dim.
struct AttendedSource {
  uint record_heads;
  uint group_tokens;
  uint record_words;
  uint n_slots;
  uint table_stride;  // words of a stream's mapping table
};

struct AttendSourcesParams {
  AttendedSource sources[KVRUN_MOST_ATTENDED_SOURCES];  // the last of them is the last here too
  uint n_heads;
  uint n_kv_heads;
  uint n_splits;     // parts that the entries of all sources, one after another, are divided into
  uint split_block;  // so many entries of a part go together: it has a multiple of them, but for the last
  uint keeps_parts;  // scratch is written; else the output, which one part makes
  uint qkv_stride;
  float scale;
  float score_cap;   // with HAS_CAP
  uint means_begin;  // with IN_SPACE: elements
};

struct RecordCopyParams {
  KvRecordLayout record;
  uint n_kv_heads;
  uint n_ctx;
  uint first_token;
  uint n_groups;
  uint means_begin;  // elements, of the records' sequence: [n_kv_heads, 2, head_dim]
  uint first_head;   // whose KV is the first of n_kv_heads that are bound: records have others, too
};

#ifdef __cplusplus
}  // namespace kvrun
#endif

#endif  // KVRUN_SHADERS_SHARED_SLOT_PARAMS_H_
