#include "runtime/device/host/instruction_sets.h"

// As where kernels are compiled for most targets (matmul_kernels.cc, attend_rows.cc).
#define HWY_WANT_AVX3_DL
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#include <fmt/format.h>
#include <hwy/targets.h>

#include <algorithm>
#include <bit>

#include "runtime/device/host/matmul_kernels.h"

namespace kvrun::host {
namespace {

std::mutex choosing;
std::shared_mutex in_use;

// What the process computes with while nobody chooses for a test.
struct Use {
  int64_t mask = 0;  // 0: whatever the processor has
  bool forbids_dot = false;
};
Use used;  // guarded by `choosing`

void Choose(int64_t mask, bool forbids_dot) {
  const std::unique_lock lock(in_use);
  hwy::SetSupportedTargetsForTest(mask);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  ForbidDot(forbids_dot);
}

// A set with a name that users know: Highway's, and whether what not all of its processors have is used.
struct NamedSet {
  std::string_view name;
  std::string_view target;  // how Highway's name begins
  bool has_more;
};
constexpr NamedSet kNamedSets[] = {
    {"amx", "AVX3", true},   {"avx512", "AVX3", false},  {"avx2-vnni", "AVX2", true}, {"avx2", "AVX2", false},
    {"sse4", "SSE4", false}, {"neon-dot", "NEON", true}, {"neon", "NEON", false}};

std::string JoinNames(const std::vector<std::string>& names) {
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

namespace {

// Of the processor, whatever is chosen; `choosing` is held.
std::vector<InstructionSet> AllSets() {
  Choose(0, false);
  std::vector<InstructionSet> sets;
  // Highway orders targets by bits, the best lowest.
  const auto all = static_cast<uint64_t>(hwy::SupportedTargets() & HWY_TARGETS);
  for (uint64_t rest = all; rest != 0; rest &= rest - 1) {
    const auto target = static_cast<int64_t>(uint64_t{1} << std::countr_zero(rest));
    sets.push_back({target, static_cast<int64_t>(rest), hwy::TargetName(target)});
  }
  Choose(used.mask, used.forbids_dot);
  return sets;
}

// Whether the processor has what the name says beyond the target; `choosing` is held.
bool HasMore(const InstructionSet& set) {
  Choose(set.mask, false);
  const MatMulKernels with = GetMatMulKernels();
  Choose(set.mask, true);
  const MatMulKernels without = GetMatMulKernels();
  Choose(used.mask, used.forbids_dot);
  return with.has_dot != without.has_dot || (with.begin_int8 != nullptr) != (without.begin_int8 != nullptr);
}

// Null: the processor has none such; `choosing` is held.
const InstructionSet* FindSet(const std::vector<InstructionSet>& sets, const NamedSet& named) {
  const auto found = std::find_if(sets.begin(), sets.end(), [&](const InstructionSet& set) {
    return set.name.starts_with(named.target);
  });
  if (found == sets.end() || (named.has_more && !HasMore(*found))) return nullptr;
  return &*found;
}

std::vector<std::string> NamesHere(const std::vector<InstructionSet>& sets) {
  std::vector<std::string> names;
  for (const NamedSet& named : kNamedSets) {
    if (FindSet(sets, named) != nullptr) names.emplace_back(named.name);
  }
  return names;
}

}  // namespace

std::vector<InstructionSet> InstructionSets() {
  const std::unique_lock alone(choosing);
  return AllSets();
}

std::vector<std::string> NamedInstructionSets() {
  const std::unique_lock alone(choosing);
  return NamesHere(AllSets());
}

Status UseInstructionSet(std::string_view name) {
  const std::unique_lock alone(choosing);
  if (name.empty()) {
    used = {};
    Choose(0, false);
    return Status::Ok();
  }
  const std::vector<InstructionSet> sets = AllSets();
  const auto* const named = std::find_if(std::begin(kNamedSets), std::end(kNamedSets),
                                         [name](const NamedSet& set) { return set.name == name; });
  if (named == std::end(kNamedSets)) {
    return Status(StatusCode::kInvalidArgument,
                  fmt::format("there is no instruction set \"{}\"; this processor has {}", name,
                              JoinNames(NamesHere(sets))));
  }
  const InstructionSet* const set = FindSet(sets, *named);
  if (set == nullptr) {
    return Status(StatusCode::kUnsupported,
                  fmt::format("this processor does not have the instruction set {}; it has {}", name,
                              JoinNames(NamesHere(sets))));
  }
  used = {set->mask, !named->has_more};
  Choose(used.mask, used.forbids_dot);
  return Status::Ok();
}

std::string InstructionSetName() {
  const auto kept = KeepInstructionSet();
  const auto supported = static_cast<uint64_t>(hwy::SupportedTargets() & HWY_TARGETS);
  return hwy::TargetName(static_cast<int64_t>(uint64_t{1} << std::countr_zero(supported)));
}

std::shared_lock<std::shared_mutex> KeepInstructionSet() { return std::shared_lock(in_use); }

ChosenInstructionSet::ChosenInstructionSet(const InstructionSet& set) : alone_(choosing) {
  Choose(set.mask, false);
}

ChosenInstructionSet::~ChosenInstructionSet() { Choose(used.mask, used.forbids_dot); }

}  // namespace kvrun::host
