#include "platform/base/check.h"
#include "runtime/device/host/operations.h"

namespace kvrun::host {

void ShortConvolution(ThreadPool&, const ShortConvolutionArgs&) { KVRUN_CHECK(false); }

}  // namespace kvrun::host
