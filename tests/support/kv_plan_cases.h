// Plans of the KV cache for tests: made, refused, and what holds for each.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/kv/math/keep_rule.h"
#include "runtime/kv/plan/kv_plan.h"
#include "runtime/kv/plan/kv_plan_input.h"
#include "runtime/kv/planner/describe_plan.h"
#include "runtime/kv/planner/plan_kv.h"

namespace kvrun::testing {

inline constexpr KvModelShape kSmolLm2 = {30, 9, 3, 64, 576};
inline constexpr KvModelShape kLlama8b = {32, 32, 8, 128, 4096};

inline KvOptions Swap(double fraction) {
  KvOptions options;
  options.method = "kvswap";
  options.budget_fraction = fraction;
  return options;
}

inline KvOptions Unlimited(std::string method) {
  KvOptions options;
  options.method = std::move(method);
  return options;
}

inline KvPlan Plan(const KvOptions& options, const KvModelShape& model = kSmolLm2, uint32_t n_ctx = 8192,
                   uint32_t n_sequences = 1, uint32_t alignment = 1) {
  auto plan = PlanKv(options, model, n_ctx, n_sequences, alignment);
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  return plan.ok() ? *plan : KvPlan();
}

inline Status Refusal(const KvOptions& options, const KvModelShape& model = kSmolLm2, uint32_t n_ctx = 8192,
                      uint32_t n_sequences = 1, uint32_t alignment = 1) {
  const auto plan = PlanKv(options, model, n_ctx, n_sequences, alignment);
  EXPECT_FALSE(plan.ok()) << DescribePlan(*plan);
  return plan.status();
}

inline void ExpectMessage(const Status& status, StatusCode code, std::string_view part) {
  EXPECT_EQ(status.code(), code) << status.message();
  EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
}

// "words3.2 MiB (3371008 bytes)": 3371008.
inline uint64_t BytesAfter(const std::string& text, const std::string& words) {
  const size_t at = text.find(words);
  EXPECT_NE(at, std::string::npos) << text;
  return at == std::string::npos ? 0 : std::stoull(text.substr(text.find('(', at) + 1));
}

inline uint64_t Part(const KvPlan& plan, std::string_view name) {
  for (const KvPart& part : plan.parts) {
    if (part.name == name) return part.bytes;
  }
  return 0;
}

// What prompts take, whatever the method.
inline void ExpectSoundPrefill(const KvPlan& plan, const KvModelShape& model) {
  EXPECT_TRUE(plan.prefill.tile_tokens == plan.n_ctx || plan.prefill.tile_tokens % 256 == 0);
  EXPECT_GT(plan.prefill.tile_tokens, 0U);
  EXPECT_LE(plan.prefill.tile_tokens, plan.n_ctx);
  const uint64_t element_bytes = plan.record.k_type == KvType::kF32 ? 4 : 2;
  EXPECT_GE(Part(plan, "prefill"), (plan.prefill.tile_tokens + uint64_t{256} * plan.prefill.read_tiles) * 2 *
                                       model.n_kv_heads * model.head_dim * element_bytes);
  EXPECT_LE(plan.prefill.tile_tokens + 256 * uint64_t{plan.prefill.read_tiles}, plan.n_ctx + 255);
}

// Of methods that evict: there are lists of single entries in place of slots.
inline void ExpectSoundLists(const KvPlan& plan, const KvModelShape& model) {
  const KeptPlan& kept = plan.of_kept();
  EXPECT_EQ(plan.choice.n_chosen, kept.n_entries);
  EXPECT_EQ(plan.choice.n_pinned + plan.slots.n_cache_slots + plan.slots.n_pool_slots, 0U);
  EXPECT_GE(kept.n_entries, 1U);
  EXPECT_LE(kept.n_entries, kept.most_entries);
  EXPECT_LE(kept.most_entries, plan.n_ctx);
  EXPECT_EQ(plan.record.group_tokens, 1U);
  EXPECT_EQ(plan.record.n_heads, 1U);
  EXPECT_EQ(plan.n_streams, plan.n_sequences * model.n_kv_heads);
  EXPECT_GE(kept.observed_rows, 1U);
  EXPECT_LE(kept.observed_rows, plan.n_ctx);
  const uint64_t lists = uint64_t{plan.n_streams} * model.n_layers;
  const uint64_t low_bytes = kept.low_record.size_bytes();
  EXPECT_LE(low_bytes, plan.record.size_bytes());
  const bool is_by_score = plan.method.precision == KvPrecisionKind::kByScore;
  const bool all_low = is_by_score && kept.precisions == KeptPrecisions::kQuantised;
  EXPECT_EQ(Part(plan, "kept"), lists * kept.n_entries * (all_low ? low_bytes : plan.record.size_bytes()));
  // A position and a mass of each; and in decoding a place of the mapping table and what the device adds up.
  const uint64_t mass_bytes = (*FindKeepRule(plan.method.keep_rule))->evicts_prompt ? 4 : 0;
  EXPECT_GE(Part(plan, "kept lists"), lists * kept.most_entries * (4 + mass_bytes));
  EXPECT_GE(Part(plan, "kept tables"), lists * kept.most_entries * 4 + lists * kept.n_entries * mass_bytes);
  EXPECT_GE(Part(plan, "window"),
            lists * plan.window.n_slots * (plan.window.record.size_bytes() + mass_bytes));
  EXPECT_GE(Part(plan, "staging"), kept.most_entries * plan.record.size_bytes()) << "a list on its way";
}

// Sums that hold for every plan that is not of full: counted from the plan's fields, not through its parts.
inline void ExpectSound(const KvPlan& plan, const KvModelShape& model) {
  SCOPED_TRACE(DescribePlan(plan));
  EXPECT_LE(plan.decode_bytes(), plan.budget.bytes);
  EXPECT_LE(plan.prefill_bytes(), plan.budget.bytes);
  ExpectSoundPrefill(plan, model);
  if (plan.method.evicts()) return ExpectSoundLists(plan, model);
  const uint32_t n_drawn = plan.choice.n_sampled > 0 ? plan.choice.n_sampled + 1 : 0;
  EXPECT_LE(plan.choice.n_chosen + n_drawn, plan.slots.n_cache_slots + plan.slots.n_pool_slots);
  EXPECT_EQ(plan.slots.n_pool_slots > n_drawn, plan.slots.n_cache_slots < plan.choice.n_chosen);
  EXPECT_LE(plan.slots.n_pool_slots, plan.choice.n_chosen + n_drawn);
  EXPECT_LE(plan.slots.n_cache_slots, plan.n_groups());
  EXPECT_LE(plan.choice.n_pinned, plan.choice.n_chosen);
  const uint64_t records = uint64_t{plan.n_streams} * model.n_layers * plan.slots.record.size_bytes();
  const bool has_clusters = plan.method.has_clusters();
  if (has_clusters) {
    EXPECT_EQ(Part(plan, "slots"), records * plan.slots.n_cache_slots);
    const uint64_t n_parts = plan.of_clusters().rows_on_flash ? std::min(3U, model.n_layers) : model.n_layers;
    EXPECT_GT(Part(plan, "index"), n_parts * plan.index.size_bytes());
    EXPECT_GE(plan.choice.n_chosen, plan.records_per_extent());
    EXPECT_GE(uint64_t{plan.of_clusters().n_clusters} * plan.of_clusters().max_entries, plan.n_ctx);
    EXPECT_GE(uint64_t{plan.of_clusters().n_clusters} * plan.of_clusters().mean_entries, plan.n_ctx);
    EXPECT_EQ(Part(plan, "checksums"),
              (uint64_t{8} * plan.of_clusters().n_clusters + (plan.of_clusters().rows_on_flash ? 8 : 0)) *
                  plan.n_streams * model.n_layers);
    EXPECT_GE(Part(plan, "kept"), uint64_t{plan.n_streams} * model.n_layers * plan.record.size_bytes() *
                                      (plan.of_clusters().n_sinks + plan.of_clusters().max_pending));
  } else if (plan.index.rank != 0) {
    // The exact groups lie in the window's records instead.
    EXPECT_EQ(Part(plan, "slots"),
              records * (plan.slots.n_cache_slots -
                         std::min(plan.slots.n_cache_slots, plan.window.n_exact_groups)));
    EXPECT_EQ(plan.window.n_exact_groups, plan.rotates ? plan.choice.n_pinned : 0);
    EXPECT_EQ(Part(plan, "index"),
              model.n_layers * (plan.index.size_bytes() + uint64_t{plan.n_sequences} * plan.index.rank * 4));
  }
  EXPECT_EQ(Part(plan, "window"), uint64_t{plan.n_streams} * model.n_layers *
                                      plan.window.record.size_bytes() *
                                      (plan.window.n_slots + plan.window.n_exact_groups));
  // Of norms, K and V, in floats.
  const uint64_t rows_of_space = 2 * (uint64_t{plan.n_sequences} * model.n_kv_heads + 1);
  EXPECT_EQ(Part(plan, "means"), plan.rotates ? model.n_layers * rows_of_space * model.head_dim * 4 : 0);
  if (!has_clusters) {
    const uint64_t n_places = plan.has_statics() && plan.of_groups().statics.lays_pages ? 2 : 1;
    EXPECT_EQ(Part(plan, "checksums"), 4 * n_places * plan.n_groups() * plan.n_streams * model.n_layers);
  }
  const uint64_t of_rows = has_clusters ? plan.of_clusters().row_staging_bytes : 0;
  EXPECT_EQ(Part(plan, "staging"), plan.staging_bytes + of_rows);
  EXPECT_EQ(of_rows > 0, plan.has_rows_file());
}

}  // namespace kvrun::testing
