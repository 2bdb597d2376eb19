#include "platform/base/freed_memory.h"

#include <cstdlib>  // defines __GLIBC__ where that is the library

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace kvrun {

void ReturnFreedMemory() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

}  // namespace kvrun
