// What a plan says of the KV that a session keeps: two plans of one stored form can go on with each other's
// records, indexes and windows, whatever their budgets, slots and contexts are.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "runtime/kv/plan/kv_plan.h"

namespace kvrun {

std::vector<StoredFact> StoredForm(const KvPlan& plan);

// "records are int8,int4 and not f16,f16; the window has 32 entries and not 64"; empty: they are the same.
// A plan of a method with adapters need not have the static set, for which a small budget has no room: the
// index has the rows of what was in it.
std::string DifferenceOf(const std::vector<StoredFact>& kept, const KvPlan& plan);

// The KV options that decide the stored form, as the plan has settled them: names without "--kv-", and values
// as on the command line. With them a plan for another budget or context has the same form, where it can.
std::vector<std::pair<std::string, std::string>> SettledOptions(const KvPlan& plan);

}  // namespace kvrun
