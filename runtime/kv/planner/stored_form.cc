#include "runtime/kv/planner/stored_form.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "runtime/kv/plan/kv_names.h"
#include "runtime/kv/planner/kv_option_table.h"
#include "runtime/kv/planner/kv_options.h"

namespace kvrun {
namespace {

std::string TextOf(const KvRecordShape& shape) {
  return fmt::format("{},{} of {} tokens, {} heads of {}", KvTypeName(shape.k_type), KvTypeName(shape.v_type),
                     shape.group_tokens, shape.n_heads, shape.head_dim);
}

}  // namespace

std::vector<StoredFact> StoredForm(const KvPlan& plan) {
  std::vector<StoredFact> facts;
  facts.emplace_back("method", plan.method.name);
  facts.emplace_back("sequences", fmt::format("{}", plan.n_sequences));
  facts.emplace_back("records", TextOf(plan.record) + (plan.rotates ? ", rotated" : ""));
  facts.emplace_back("read as", fmt::format("{} tokens", plan.slots.record.group_tokens));
  facts.emplace_back("window", fmt::format("{} entries in {} records of {}, {} exact", plan.window.n_entries,
                                           plan.window.n_records(), TextOf(plan.window.record),
                                           plan.window.n_exact_entries));
  facts.emplace_back("sinks", fmt::format("{}", plan.choice.n_pinned));
  if (plan.index.rank > 0) {
    facts.emplace_back("index", fmt::format("{} columns of {}, {} rows a group", plan.index.rank,
                                            KvTypeName(plan.index.type), plan.index.rows()));
  }
  const FamilyForm of_family = plan.family_form();
  facts.insert(facts.end(), of_family.facts.begin(), of_family.facts.end());
  return facts;
}

std::string DifferenceOf(const std::vector<StoredFact>& kept, const KvPlan& plan) {
  const std::vector<StoredFact> planned = StoredForm(plan);
  const std::vector<StoredFact> may_lack = plan.family_form().may_lack;
  std::string text;
  const auto value_in = [](const std::vector<StoredFact>& facts, std::string_view name) {
    const auto found = std::find_if(facts.begin(), facts.end(),
                                    [name](const StoredFact& fact) { return fact.first == name; });
    return found == facts.end() ? std::string("none") : found->second;
  };
  const auto add = [&text](std::string_view name, std::string_view was, std::string_view is) {
    text += fmt::format("{}{}: {}, and would be {}", text.empty() ? "" : "; ", name, was, is);
  };
  for (const auto& [name, value] : kept) {
    const std::string now = value_in(planned, name);
    const bool may_go =
        std::find(may_lack.begin(), may_lack.end(), StoredFact(name, value)) != may_lack.end();
    if (now != value && !may_go) add(name, value, now);
  }
  for (const auto& [name, value] : planned) {
    if (value_in(kept, name) == "none") add(name, "none", value);
  }
  return text;
}

std::vector<std::pair<std::string, std::string>> SettledOptions(const KvPlan& plan) {
  std::vector<std::pair<std::string, std::string>> all = {
      {"method", std::string(plan.method.name)},
      {"type", fmt::format("{},{}", KvTypeName(plan.record.k_type), KvTypeName(plan.record.v_type))},
      {"group", fmt::format("{}", plan.slots.record.group_tokens)},
      {"window", fmt::format("{}", plan.window.n_entries)},
      {"rank", fmt::format("{}", plan.index.rank)},
      {"index", std::string(KvTypeName(plan.index.type))},
      {"sinks", fmt::format("{}", plan.choice.n_pinned * plan.record.group_tokens)}};
  for (const auto& option : plan.family_form().options) {
    std::erase_if(all, [&option](const auto& one) { return one.first == option.first; });
    all.push_back(option);
  }
  // Those that the method has.
  KvSettings settings;
  std::erase_if(all,
                [&settings](const auto& one) { return !SetKvOption(one.first, one.second, &settings).ok(); });
  std::erase_if(all, [&](const auto& one) {
    const KvOptionField& field = FindKvOption(one.first)->field;
    return field.is_given != nullptr && !field.WhatLacks(plan.method, settings.kv).empty();
  });
  return all;
}

}  // namespace kvrun
