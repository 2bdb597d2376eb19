// The keys of a config: those of the file itself, and those of a solution that are options of the KV cache.
#pragma once

#include <array>
#include <string_view>

namespace kvrun {

inline constexpr std::array<std::string_view, 5> kConfigKeys = {"version", "model", "machine", "kv",
                                                                "solution"};

inline constexpr double kMaxConfigFigure = 1e12;  // of predicted_ms, measured_ms and kl

struct ConfigOptionKey {
  std::string_view key;     // in the file
  std::string_view option;  // SetKvOption's name
  bool is_count = false;    // written as a whole number, else as a text
  std::string_view comment;
};

inline constexpr std::array<ConfigOptionKey, 19> kConfigOptionKeys = {{
    {"group", "group", true, "consecutive entries that are read as one"},
    {"select", "select", true, "entries that a token reads besides sinks and window"},
    {"hide", "hide", false,
     "a share: how much of the reading passes while the device computes; not with select"},
    {"reads", "reads", false, "groups that a layer reads for a token on average; 0: all that is selected"},
    {"adapt", "adapt", false, "on, off: whether select follows how late reads are"},
    {"sample", "sample", true, "entries that are drawn at random from those that are not selected"},
    {"seed", "seed", true, "what sample draws by"},
    {"mass", "mass", false, "a share at whose predicted mass a selection ends; select is the most then"},
    {"reuse", "reuse", true, "groups per layer that stay in memory in case they are chosen again"},
    {"static", "static", false, "the share of select that stays in memory as a static set, or prompt"},
    {"window", "window", true, "newest entries, kept in memory"},
    {"sinks", "sinks", true, "first entries, always attended to"},
    {"rank", "rank", true, "columns of the index that groups are scored with"},
    {"type", "type", false, "of both, or \"K,V\": f32, f16, fp8, int8, int4"},
    {"index", "index", false, "the index's type: f16, int8, int4"},
    {"heads", "heads", false, "how the heads' scores become one: sum, softmax, gqa, per-kv-head"},
    {"policy", "policy", false, "which group gives way to another: fifo, lru, non-hit, lfu, cluster"},
    {"adapter", "adapter", false, "of kvadapt calibrate: a file, relative to this one's folder"},
    {"adapter_kind", "adapter-kind", false, "plain, centred, query, query-centred, heads, skewed"},
}};

}  // namespace kvrun
