// One step's rows, read by kernels as a uniform buffer. Shared by GLSL and C++: 32-bit scalars and explicit
// padding only.
#ifndef KVRUN_SHADERS_SHARED_STEP_PARAMS_H_
#define KVRUN_SHADERS_SHARED_STEP_PARAMS_H_

#ifdef __cplusplus
#include <cstdint>
namespace kvrun {
using uint = uint32_t;
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
  uint padding0;
  uint padding1;
  StepToken tokens[KVRUN_MAX_STEP_TOKENS];
};

#ifdef __cplusplus
}  // namespace kvrun
#endif

#endif  // KVRUN_SHADERS_SHARED_STEP_PARAMS_H_
