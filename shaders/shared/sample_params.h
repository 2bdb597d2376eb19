// Drawing groups at random (ChooseAndSample). Shared by GLSL and C++: 32-bit scalars only.
#ifndef KVRUN_SHADERS_SHARED_SAMPLE_PARAMS_H_
#define KVRUN_SHADERS_SHARED_SAMPLE_PARAMS_H_

#ifdef __cplusplus
#include <cstdint>
#define KVRUN_SHARED_FUNCTION constexpr
namespace kvrun {
using uint = uint32_t;
#else
#define KVRUN_SHARED_FUNCTION
#endif

// Probabilities are whole numbers of these parts of one, so that sums do not depend on the order.
#define KVRUN_SAMPLE_BITS 18
#define KVRUN_SAMPLE_UNIT (1u << KVRUN_SAMPLE_BITS)
// No probability is smaller: 1/1024. A group whose predicted mass underflows can be drawn nevertheless.
#define KVRUN_LEAST_SAMPLE_UNITS (KVRUN_SAMPLE_UNIT / 1024u)
// Probabilities in proportion to something exceed one for some groups; those are taken, and the others share
// the rest: so many times at most.
#define KVRUN_SAMPLE_ROUNDS 8
#define KVRUN_MAX_SAMPLED 8192

struct SampleGroupsParams {
  uint n_groups;
  uint group_tokens;
  uint window_tokens;
  uint n_lists;  // per token
  uint n_chosen;
  uint n_sampled;
  uint scores_begin;
  uint scores_stride;
  uint seed;
};

KVRUN_SHARED_FUNCTION uint MixBits(uint x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  x ^= x >> 16;
  return x;
}

// Where the first draw is made, of KVRUN_SAMPLE_UNIT. `list`: of the token.
KVRUN_SHARED_FUNCTION uint SampleOffset(uint seed, uint position, uint list) {
  const uint mixed = MixBits(MixBits(MixBits(seed) + position) + list);
  return mixed >> (32 - KVRUN_SAMPLE_BITS);
}

// How many draws are made before the running sum of probabilities `sum`.
KVRUN_SHARED_FUNCTION uint DrawsBefore(uint sum, uint offset) {
  return (sum + (KVRUN_SAMPLE_UNIT - 1u) - offset) >> KVRUN_SAMPLE_BITS;
}

#ifdef __cplusplus
}  // namespace kvrun
#endif

#endif  // KVRUN_SHADERS_SHARED_SAMPLE_PARAMS_H_
