#include "runtime/kv/kv_method.h"

#include <fmt/format.h>

#include <array>
#include <string>

namespace kvrun {
namespace {

constexpr KvMethod kFull{.name = "full"};
constexpr KvMethod kFlexgen{
    .name = "flexgen", .store = KvStoreKind::kGroups, .residency = KvResidencyKind::kSharedSlots};
constexpr KvMethod kKvswap{.name = "kvswap",
                           .index = KvIndexKind::kLowRank,
                           .selector = KvSelectorKind::kTopGroups,
                           .store = KvStoreKind::kGroups,
                           .residency = KvResidencyKind::kOwnSlots,
                           .policy = KvPolicyKind::kByName};
constexpr std::array kMethods = {kFull, kFlexgen, kKvswap};

}  // namespace

std::span<const KvMethod> KvMethods() { return kMethods; }

const KvMethod& MethodWithoutBudget() { return kFull; }

const KvMethod& MethodOfBudget() { return kKvswap; }

Result<KvMethod> FindKvMethod(std::string_view name) {
  std::string known;
  for (const KvMethod& method : kMethods) {
    if (method.name == name) return method;
    if (!known.empty()) known += ", ";
    known += method.name;
  }
  return Status(StatusCode::kInvalidArgument, fmt::format("unknown KV method '{}'; known: {}", name, known));
}

}  // namespace kvrun
