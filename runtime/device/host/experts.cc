#include "platform/base/check.h"
#include "runtime/device/host/operations.h"

namespace kvrun::host {

void ChooseExperts(ThreadPool&, const ChooseExpertsArgs&) { KVRUN_CHECK(false); }
void ExpertMatMul(ThreadPool&, const ExpertMatMulArgs&, bool) { KVRUN_CHECK(false); }

}  // namespace kvrun::host
