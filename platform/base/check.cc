#include "platform/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace kvrun {

void CheckFailed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "kvrun: internal error: %s is false at %s:%d\n", condition, file, line);
  std::abort();
}

}  // namespace kvrun
