#include "runtime/device/host/instruction_sets.h"

// As where kernels are compiled for most targets (matmul_kernels.cc, attend_rows.cc).
#define HWY_WANT_AVX3_DL
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#include <hwy/targets.h>

#include <bit>

namespace kvrun::host {
namespace {

std::mutex choosing;
std::shared_mutex in_use;

// 0: whatever the processor has.
void Choose(int64_t mask) {
  const std::unique_lock lock(in_use);
  hwy::SetSupportedTargetsForTest(mask);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace

std::vector<InstructionSet> InstructionSets() {
  const std::unique_lock alone(choosing);  // else only the one chosen would be there
  const auto kept = KeepInstructionSet();
  std::vector<InstructionSet> sets;
  // Highway orders targets by bits, the best lowest.
  const auto all = static_cast<uint64_t>(hwy::SupportedTargets() & HWY_TARGETS);
  for (uint64_t rest = all; rest != 0; rest &= rest - 1) {
    const auto target = static_cast<int64_t>(uint64_t{1} << std::countr_zero(rest));
    sets.push_back({target, static_cast<int64_t>(rest), hwy::TargetName(target)});
  }
  return sets;
}

std::string InstructionSetName() {
  const auto kept = KeepInstructionSet();
  const auto supported = static_cast<uint64_t>(hwy::SupportedTargets() & HWY_TARGETS);
  return hwy::TargetName(static_cast<int64_t>(uint64_t{1} << std::countr_zero(supported)));
}

std::shared_lock<std::shared_mutex> KeepInstructionSet() { return std::shared_lock(in_use); }

ChosenInstructionSet::ChosenInstructionSet(const InstructionSet& set) : alone_(choosing) { Choose(set.mask); }

ChosenInstructionSet::~ChosenInstructionSet() { Choose(0); }

}  // namespace kvrun::host
