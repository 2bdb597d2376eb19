// A method says where the KV lies and which of it each token attends to. It is a row of a table that names
// index, selector, store, residency, replacement policy and precision; the engine wires what the row names.
// No other code compares a method's name: what it needs to know is one of the row's traits.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "platform/base/status.h"

namespace kvrun {

enum class KvIndexKind : uint8_t { kNone, kLowRank };      // kLowRank: keys projected by an adapter
enum class KvSelectorKind : uint8_t { kAll, kTopGroups };  // kTopGroups: M by score, sinks pinned
enum class KvStoreKind : uint8_t { kResident, kGroups };   // kGroups: records of groups on flash
// Where what was chosen lies while it is attended to. kWhole: all of it in memory. kOwnSlots: each layer has
// slots of its own. kSharedSlots: layers take turns with the same slots, and fill them anew for each step.
enum class KvResidencyKind : uint8_t { kWhole, kOwnSlots, kSharedSlots };
enum class KvPolicyKind : uint8_t { kNone, kByName };  // kByName: of the table of replacement policies
enum class KvPrecisionKind : uint8_t { kUniform };

struct KvMethod {
  std::string_view name;
  KvIndexKind index = KvIndexKind::kNone;
  KvSelectorKind selector = KvSelectorKind::kAll;
  KvStoreKind store = KvStoreKind::kResident;
  KvResidencyKind residency = KvResidencyKind::kWhole;
  KvPolicyKind policy = KvPolicyKind::kNone;
  KvPrecisionKind precision = KvPrecisionKind::kUniform;

  // A step attends to a part of what lies before its window.
  bool selects() const { return selector != KvSelectorKind::kAll; }
  bool has_index() const { return index != KvIndexKind::kNone; }
  bool is_on_flash() const { return store != KvStoreKind::kResident; }
  bool shares_slots() const { return residency == KvResidencyKind::kSharedSlots; }
};

std::span<const KvMethod> KvMethods();
// What is taken where no method is named: without a budget, or where it holds all KV; and where it does not.
const KvMethod& MethodWithoutBudget();
const KvMethod& MethodOfBudget();
// An unknown name is answered with the known ones.
Result<KvMethod> FindKvMethod(std::string_view name);

}  // namespace kvrun
