// What a plan is made from: what the user says, and the model's shape.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/device/device.h"
#include "runtime/kv/math/adapter.h"
#include "runtime/kv/math/cluster_map.h"
#include "runtime/kv/plan/flash_times.h"
#include "runtime/kv/plan/kept_choices.h"
#include "runtime/kv/plan/selection_plan.h"
#include "runtime/kv/plan/static_plan.h"
#include "runtime/store/cluster_store.h"

namespace kvrun {

// A group of kvswap where nothing is known of the flash.
inline constexpr uint32_t kDefaultGroupTokens = 4;

// What the user may say; what is open (nullopt, empty) is chosen from the budget. An explicit value that
// breaks the budget is an error.
struct KvOptions {
  std::string method;                     // "full", "flexgen", "kvswap"; empty: chosen, as above
  std::optional<uint64_t> budget_bytes;   // one of these two, or none: as much as it takes
  std::optional<double> budget_fraction;  // of the f16 KV of n_ctx tokens, over all sequences
  std::optional<KvType> k_type;
  std::optional<KvType> v_type;
  std::optional<uint32_t> group_tokens;  // G
  std::optional<uint32_t>
      select_entries;  // M * G, pinned sinks and window not counted; rounded down to groups
  // Above 0, at most 1: a selection ends where its predicted mass is this share of that of all groups that
  // can be chosen; M is the most then.
  std::optional<double> mass_share;
  // Besides, of the others, drawn at random: rounded down to groups.
  std::optional<uint32_t> sample_entries;
  std::optional<uint32_t> sample_seed;
  std::optional<uint32_t> window_entries;  // W
  std::optional<uint32_t> sink_entries;    // pinned: every group that holds one
  std::optional<uint32_t> reuse_groups;    // C
  std::optional<uint32_t> rank;
  std::optional<KvType> index_type;  // kF16, kInt8, kInt4
  std::optional<HeadReduction> heads;
  std::optional<AdapterKind> adapter_kind;
  bool adapter_from_file = false;               // else computed in prefill, inside the budget
  std::string policy;                           // replacement; empty: chosen
  std::optional<uint32_t> cluster_entries;      // of clusters, on average, when a prompt is divided
  std::optional<uint32_t> max_cluster_entries;  // of a cluster
  std::optional<uint32_t> cluster_room;         // of a stream of a layer: clusters in the index
  std::optional<uint32_t> pending_entries;      // of a stream of a layer: may wait for their cluster
  std::optional<uint32_t> upkeep_clusters;      // ClustersPlan::upkeep_clusters
  std::optional<double> split_factor;           // ClustersPlan::threshold_factor
  std::optional<ClusterUpdate> cluster_update;
  std::optional<ClusterLayout> cluster_layout;
  std::optional<bool> rows_on_flash;  // ClustersPlan::rows_on_flash
  std::optional<KeptShares> kept_shares;
  std::optional<KeptPrecisions> kept_precisions;
  std::optional<AttentionMoments> attention_moments;
  std::optional<StaticShare> static_share;
  std::optional<uint32_t> static_steps;  // StaticPlan::steps
  std::optional<bool> static_repage;     // StaticPlan::lays_pages
  std::optional<LaterPrompts> later_prompts;
  std::optional<bool> rotate;  // KvPlan::rotates
  // Of the time in which a step reads from flash, the share that passes while the device computes. 0: reading
  // takes as long as it takes.
  std::optional<double> hide;
  std::optional<bool> adapt;              // KvChoicePlan::n_usual
  std::optional<double> reads_per_layer;  // KvSlotPlan::reads_per_layer; 0: all that is chosen is read
  // Not the user's: Adapter::layer_shares of the file that is named (KvPlan::layers), for methods with
  // adapters. kept_shares = kEven: they are not followed.
  std::vector<float> layer_shares;
  // Not the user's: every layer but this one chooses everything.
  std::optional<uint32_t> cut_layer;
  // Not the user's: what is known of the machine.
  std::optional<FlashTimes> flash_times;
  // Not the user's: what a buffer of the device that computes prompts may have.
  uint64_t max_buffer_bytes = UINT64_MAX;
  bool is_sealed = false;  // files are encrypted
  // Not the user's: cores that neither the device nor the thread that reads computes on.
  uint32_t spare_cores = 0;
  // Of files that are only read, and written over elsewhere (OverlayFile), the longest context that they have
  // room for; 0: they are not.
  uint32_t overlaid_tokens = 0;
  // Not the user's: kvswap's group where none is given, as the flash asks for (engine/storage_speed.h).
  uint32_t default_group_tokens = kDefaultGroupTokens;
};

// Of full: f16 and f32 planes do not hold such types.
bool KeepsRecordsInMemory(const KvOptions& options);

struct KvModelShape {
  uint32_t n_layers = 0;  // that keep growing KV
  uint32_t n_heads = 0;
  uint32_t n_kv_heads = 0;
  uint32_t head_dim = 0;
  uint32_t n_embd = 0;
  uint64_t layer_products = 0;  // multiplications of one token with a layer's weights; 0: not known
  // A chunk's activations of the feed-forward network: prompts of several tiles give them up for what follows
  // a layer.
  uint64_t feed_forward_bytes = 0;
  // What layers without growing KV keep of a sequence, whatever its length, without copies. `n_layers` above
  // are the others alone.
  uint64_t state_bytes = 0;
};

}  // namespace kvrun
