/* Push constants of fill.comp. */
#ifndef KVRUN_SHADERS_SHARED_FILL_H_
#define KVRUN_SHADERS_SHARED_FILL_H_

#include "types.h"

KVRUN_SHARED_BEGIN

struct FillParams {
  uint first; /* first word to write */
  uint count; /* words to write */
  uint value;
};

KVRUN_SHARED_END

#endif
