#include "runtime/kv/kv_method.h"

#include <fmt/format.h>

#include <array>
#include <string>

namespace kvrun {
namespace {

constexpr std::array kMethods = {
    KvMethod{"full", KvIndexKind::kNone, KvSelectorKind::kAll, KvStoreKind::kResident, KvPolicyKind::kNone,
             KvPrecisionKind::kUniform},
    KvMethod{"flexgen", KvIndexKind::kNone, KvSelectorKind::kAll, KvStoreKind::kGroups, KvPolicyKind::kNone,
             KvPrecisionKind::kUniform},
    KvMethod{"kvswap", KvIndexKind::kLowRank, KvSelectorKind::kTopGroups, KvStoreKind::kGroups,
             KvPolicyKind::kByName, KvPrecisionKind::kUniform},
};

}  // namespace

std::span<const KvMethod> KvMethods() { return kMethods; }

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
