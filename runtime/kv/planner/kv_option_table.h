// Every option of the KV cache is one row: what it is called, what its value may be, which methods have it
// and what is said of it. Parsing, checks, what a method leaves out, help, manual pages, completion,
// docs/options.md, configs and the C API are made from the rows (docs/adding-an-option.md).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "platform/base/status.h"
#include "runtime/kv/plan/kv_plan.h"
#include "runtime/kv/plan/kv_plan_input.h"

namespace kvrun {

struct KvSettings;
struct KvOptionRow;

// Who chooses it: everybody; whoever knows what a method does; nobody but who compares methods (eval, bench).
enum class KvOptionAudience : uint8_t { kEverybody, kExperts, kComparisons };
std::string_view KvOptionAudienceName(KvOptionAudience audience);  // "everybody", "experts", "comparisons"

// A row, and the value that is being set.
struct GivenKvOption {
  const KvOptionRow& row;
  std::string_view value;

  Status Refuse(std::string_view why) const;
};

// One of these features (KvFeature), or the method has no `what`, as in "which has no clusters".
struct KvNeed {
  uint32_t any_of = 0;  // 0: nothing is needed
  std::string_view what = {};
};

// Where KvOptions holds a value that only some methods have.
struct KvOptionField {
  bool (*is_given)(const KvOptions& options) = nullptr;
  void (*leave_out)(KvOptions* options) = nullptr;
  std::array<KvNeed, 2> needs = {};
  // Whether they are asked for, where that depends on other options; null: they are.
  bool (*is_needed)(const KvOptions& options) = nullptr;

  // What the method lacks of them; empty: nothing.
  std::string_view WhatLacks(const KvMethod& method, const KvOptions& options) const;
};

// Of configs (docs/config.md), in which the key is the name with '_' for '-'.
struct KvConfigKey {
  bool is_count = false;          // written as a whole number, else as a text
  std::string_view comment = {};  // empty: configs do not have it
};

struct KvOptionRow {
  std::string_view name;   // "cluster-room", which is --kv-cluster-room on the command line
  std::string_view value;  // what its value is called: "N", "SHARE|prompt"
  KvOptionAudience audience = KvOptionAudience::kExperts;
  Status (*set)(const GivenKvOption& given, KvSettings* settings) = nullptr;
  // Of counts: from which to which number.
  uint32_t least = 0;
  uint32_t most = 0;
  // The words that it takes; null: its value is a number, bytes or a path.
  std::vector<std::string> (*words)() = nullptr;
  std::vector<std::string> (*words_of_comparisons)() = nullptr;  // of those: for kComparisons alone
  KvOptionField field = {};                                      // without functions: every method has it
  KvConfigKey config = {};
  std::string_view help;  // one line
};

std::span<const KvOptionRow> KvOptionRows();
// Null: there is none of this name.
const KvOptionRow* FindKvOption(std::string_view name);

}  // namespace kvrun
