// Push constants of the operations that tell how much attention entries receive (MassForm of
// runtime/device/device.h). Shared by GLSL and C++: 32-bit scalars only, at most 128 bytes each.
#ifndef KVRUN_SHADERS_SHARED_MASS_PARAMS_H_
#define KVRUN_SHADERS_SHARED_MASS_PARAMS_H_

#ifdef __cplusplus
#include <cstdint>
namespace kvrun {
using uint = uint32_t;
#endif

// The values of MassForm::Heads and MassForm::Rows.
#define KVRUN_MASS_HEADS_MEAN 0
#define KVRUN_MASS_HEADS_LARGEST 1
#define KVRUN_MASS_ROWS_ADD 0
#define KVRUN_MASS_ROWS_LARGEST 1
#define KVRUN_MASS_ROWS_REPLACE 2

#define KVRUN_MAX_MASS_MOMENTS 4
#define KVRUN_MAX_SLOT_MASS_MOMENTS 2

struct MassFormParams {
  uint n_moments;
  uint heads;
  uint rows;
};

// Parts and scores lie in the scratch memory of AttendSlots (attend_slots.glsl).
struct SlotMassParams {
  MassFormParams form;
  uint n_heads;
  uint n_kv_heads;
  uint head_dim;
  uint n_parts;        // of a row
  uint scores_begin;   // of this source
  uint scores_stride;  // of a row's scores
  uint record_heads;
  uint group_tokens;
  uint table_stride;  // words of a stream's mapping table
  uint list_entries;  // of a list of masses
  uint n_lists;       // of a moment; 1: all streams share it
};

struct RowMassParams {
  MassFormParams form;  // of attention_mass.comp
  uint n_rows;
  uint n_heads;
  uint n_kv_heads;
  uint head_dim;
  uint n_ctx;
  uint tile_begin;
  uint n_entries;
  uint is_first;  // of sum_weights.comp
  uint mass_stride;
  uint mass_begin;
  float scale;
  float score_cap;  // with HAS_CAP
};

#ifdef __cplusplus
}  // namespace kvrun
#endif

#endif  // KVRUN_SHADERS_SHARED_MASS_PARAMS_H_
