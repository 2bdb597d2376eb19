#include "runtime/device/host/instruction_sets.h"

// As where kernels are compiled for most targets (matmul_kernels.cc, attend_rows.cc).
#include "runtime/device/instruction_targets.h"
#define HWY_WANT_AVX3_DL
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
  Int8Products most = Int8Products::kTiles;
};
Use used;  // guarded by `choosing`

void Choose(int64_t mask, Int8Products most) {
  const std::unique_lock lock(in_use);
  hwy::SetSupportedTargetsForTest(mask);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  LimitInt8Products(most);
}

// A set with a name that users know: Highway's, and by what products of 8 bits are added up.
struct NamedSet {
  std::string_view name;
  std::string_view target;  // how Highway's name begins
  Int8Products products;    // kPlain: that, or what the target cannot do without
};
constexpr NamedSet kNamedSets[] = {
    {"amx", "AVX3", Int8Products::kTiles},     {"avx512", "AVX3", Int8Products::kPlain},
    {"avx2-vnni", "AVX2", Int8Products::kDot}, {"avx2", "AVX2", Int8Products::kPlain},
    {"sse4", "SSE4", Int8Products::kPlain},    {"neon-i8mm", "NEON", Int8Products::kTiles},
    {"neon-dot", "NEON", Int8Products::kDot},  {"neon", "NEON", Int8Products::kPlain}};

std::string JoinNames(const std::vector<std::string>& names) {
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

namespace {

// Of the processor, whatever is chosen; `choosing` is held.
std::vector<InstructionSet> AllSets() {
  Choose(0, Int8Products::kTiles);
  std::vector<InstructionSet> sets;
  // Highway orders targets by bits, the best lowest.
  const auto all = static_cast<uint64_t>(hwy::SupportedTargets() & HWY_TARGETS);
  for (uint64_t rest = all; rest != 0; rest &= rest - 1) {
    const auto target = static_cast<int64_t>(uint64_t{1} << std::countr_zero(rest));
    sets.push_back({target, static_cast<int64_t>(rest), hwy::TargetName(target)});
  }
  Choose(used.mask, used.most);
  return sets;
}

// Whether the processor has what the name says beyond the target; `choosing` is held.
bool HasProducts(const InstructionSet& set, Int8Products products) {
  if (products == Int8Products::kPlain) return true;
  Choose(set.mask, products);
  const MatMulKernels kernels = GetMatMulKernels();
  Choose(used.mask, used.most);
  return kernels.products == products;
}

// Null: the processor has none such; `choosing` is held.
const InstructionSet* FindSet(const std::vector<InstructionSet>& sets, const NamedSet& named) {
  const auto found = std::find_if(sets.begin(), sets.end(), [&](const InstructionSet& set) {
    return set.name.starts_with(named.target);
  });
  if (found == sets.end() || !HasProducts(*found, named.products)) return nullptr;
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
    Choose(0, Int8Products::kTiles);
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
  used = {set->mask, named->products};
  Choose(used.mask, used.most);
  return Status::Ok();
}

std::string InstructionSetName() {
  const auto kept = KeepInstructionSet();
  const auto supported = static_cast<uint64_t>(hwy::SupportedTargets() & HWY_TARGETS);
  return hwy::TargetName(static_cast<int64_t>(uint64_t{1} << std::countr_zero(supported)));
}

std::shared_lock<std::shared_mutex> KeepInstructionSet() { return std::shared_lock(in_use); }

ChosenInstructionSet::ChosenInstructionSet(const InstructionSet& set) : alone_(choosing) {
  Choose(set.mask, Int8Products::kTiles);
}

ChosenInstructionSet::~ChosenInstructionSet() { Choose(used.mask, used.most); }

}  // namespace kvrun::host
