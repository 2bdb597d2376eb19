#include "tests/support/host_targets.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <vector>

namespace kvrun::testing {

void ForEachHostTarget(const std::function<void(int64_t target)>& function) {
  const std::vector<int64_t> targets = hwy::SupportedAndGeneratedTargets();
  ASSERT_FALSE(targets.empty());
  for (const int64_t target : targets) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    function(target);
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace kvrun::testing
