// One step's rows, read by kernels as a uniform buffer. Shared by GLSL and C++: 32-bit scalars and explicit
// padding only.
#ifndef KVRUN_SHADERS_SHARED_STEP_PARAMS_H_
#define KVRUN_SHADERS_SHARED_STEP_PARAMS_H_

#ifdef __cplusplus
#include <cstdint>
#define KVRUN_SHARED_STEP_FUNCTION constexpr
namespace kvrun {
using uint = uint32_t;
#else
#define KVRUN_SHARED_STEP_FUNCTION
#endif

#define KVRUN_MAX_STEP_TOKENS 512

struct StepToken {
  uint id;        // of the vocabulary
  uint position;  // in its sequence
  uint sequence;
  uint output_row;  // of GatherRows: output row i is row tokens[i].output_row of the step
};

struct StepParams {
  uint n_tokens;
  uint n_outputs;
  uint most_chosen;  // groups that a choice may have, at least those that are pinned; 0: as recorded
  uint padding;
  StepToken tokens[KVRUN_MAX_STEP_TOKENS];
};

// Of a choice that is recorded with room for n_chosen.
KVRUN_SHARED_STEP_FUNCTION uint MostChosen(uint most_chosen, uint n_chosen) {
  return most_chosen == 0 || most_chosen > n_chosen ? n_chosen : most_chosen;
}

#ifdef __cplusplus
}  // namespace kvrun
#endif

#endif  // KVRUN_SHADERS_SHARED_STEP_PARAMS_H_
