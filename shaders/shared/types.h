/* What shaders/shared/ needs to be read by GLSL and by C++. Members are 32-bit scalars (uint, int, float),
 * padding is explicit; C++ finds the structs in kvrun::shaders. */
#ifndef KVRUN_SHADERS_SHARED_TYPES_H_
#define KVRUN_SHADERS_SHARED_TYPES_H_

#ifdef __cplusplus
#include <cstdint>
#define KVRUN_SHARED_BEGIN   \
  namespace kvrun::shaders { \
  using uint = uint32_t;
#define KVRUN_SHARED_END }
#else
#define KVRUN_SHARED_BEGIN
#define KVRUN_SHARED_END
#endif

#endif
