// A method says where the KV lies and which of it each token attends to. It is a row of a table that names
// index, selector, store layout, replacement policy and precision; the engine wires what the row names.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "platform/base/status.h"

namespace kvrun {

enum class KvIndexKind : uint8_t { kNone, kLowRank };      // kLowRank: keys projected by an adapter
enum class KvSelectorKind : uint8_t { kAll, kTopGroups };  // kTopGroups: M by score, sinks pinned
enum class KvStoreKind : uint8_t { kResident, kGroups };   // kGroups: records of groups on flash
enum class KvPolicyKind : uint8_t { kNone, kByName };      // kByName: of the table of replacement policies
enum class KvPrecisionKind : uint8_t { kUniform };

struct KvMethod {
  std::string_view name;
  KvIndexKind index;
  KvSelectorKind selector;
  KvStoreKind store;
  KvPolicyKind policy;
  KvPrecisionKind precision;
};

std::span<const KvMethod> KvMethods();
// An unknown name is answered with the known ones.
Result<KvMethod> FindKvMethod(std::string_view name);

}  // namespace kvrun
