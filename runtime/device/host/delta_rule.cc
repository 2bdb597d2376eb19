#include "platform/base/check.h"
#include "runtime/device/host/operations.h"

namespace kvrun::host {

void DeltaRule(ThreadPool&, const DeltaRuleArgs&) { KVRUN_CHECK(false); }
void GatedNorm(ThreadPool&, const GatedNormArgs&) { KVRUN_CHECK(false); }

}  // namespace kvrun::host
