// The keys of a config: those of the file itself, and those of a solution that are options of the KV cache.
#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/kv/planner/kv_option_table.h"

namespace kvrun {

inline constexpr std::array<std::string_view, 5> kConfigKeys = {"version", "model", "machine", "kv",
                                                                "solution"};

inline constexpr double kMaxConfigFigure = 1e12;  // of predicted_ms, measured_ms and kl

struct ConfigOptionKey {
  std::string key;  // in the file
  const KvOptionRow* row;
};

inline const std::vector<ConfigOptionKey>& ConfigOptionKeys() {
  static const std::vector<ConfigOptionKey> keys = [] {
    std::vector<ConfigOptionKey> of_rows;
    for (const KvOptionRow& row : KvOptionRows()) {
      if (row.config.comment.empty()) continue;
      of_rows.push_back({std::string(row.name), &row});
      std::replace(of_rows.back().key.begin(), of_rows.back().key.end(), '-', '_');
    }
    return of_rows;
  }();
  return keys;
}

}  // namespace kvrun
