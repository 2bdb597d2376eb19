#include "tests/support/host_targets.h"

#include <gtest/gtest.h>

#include <vector>

#include "runtime/device/host/instruction_sets.h"

namespace kvrun::testing {

void ForEachHostTarget(const std::function<void(int64_t target)>& function) {
  const std::vector<host::InstructionSet> sets = host::InstructionSets();
  ASSERT_FALSE(sets.empty());
  for (const host::InstructionSet& set : sets) {
    SCOPED_TRACE(set.name);
    const host::ChosenInstructionSet chosen(set);
    function(set.target);
  }
}

}  // namespace kvrun::testing
