#include "runtime/engine/session/session_kv.h"

#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/engine/machine/storage_speed.h"
#include "runtime/engine/pass/step_commands.h"
#include "runtime/kv/planner/plan_kv.h"
#include "runtime/kv/serve/kv_folder.h"

namespace kvrun {
namespace {

enum class FileUse : bool { kIsKept, kIsTried };

// A folder that the user named is made, but not those above it: they are rather a slip.
Result<std::unique_ptr<BlockFile>> OpenKvFile(const KvStorageOptions& storage, FileUse use,
                                              uint32_t queue_depth = BlockFileOptions().queue_depth) {
  std::string folder = storage.folder;
  if (folder.empty()) {
    const FolderUse made = use == FileUse::kIsTried ? FolderUse::kIsTried : FolderUse::kIsMade;
    const InMemory in_memory = storage.allow_tmpfs ? InMemory::kIsAllowed : InMemory::kIsRefused;
    KVRUN_ASSIGN_OR_RETURN(folder, FindKvFolder(made, in_memory));
  }
  return CreateBlockFile({.folder = folder,
                          .makes_parents = storage.folder.empty(),
                          .only_tries = use == FileUse::kIsTried,
                          .auto_backend = storage.auto_backend,
                          .backend = storage.backend,
                          .direct = storage.direct,
                          .queue_depth = queue_depth,
                          .allow_tmpfs = storage.allow_tmpfs});
}

// What an adapter's file has for clusters. A factor on the command line takes its place.
Result<std::shared_ptr<const Adapter>> ReadThresholds(const KvSettings& settings, const KvModelShape& shape,
                                                      const std::string& fingerprint) {
  const std::string& path = settings.storage.adapter_path;
  KVRUN_ASSIGN_OR_RETURN(Adapter adapter, ReadAdapter(path, fingerprint, shape.n_layers,
                                                      shape.n_kv_heads * shape.head_dim, /*rank=*/1));
  if (settings.kv.split_factor) {
    adapter.cluster_thresholds.clear();
  } else if (adapter.cluster_thresholds.size() != size_t{shape.n_layers} * shape.n_kv_heads) {
    return Status(
        StatusCode::kInvalidArgument,
        fmt::format("{}: the adapter has no thresholds for the clusters of the KV method {}: make it "
                    "again with kvadapt calibrate, or run without it",
                    path, settings.kv.method));
  }
  adapter.layers.clear();
  return std::make_shared<const Adapter>(std::move(adapter));
}

// Null where none was named, or where nothing is selected by it.
Result<std::shared_ptr<const Adapter>> ReadNamedAdapter(const Model& model, const KvSettings& settings,
                                                        const KvPlan& plan) {
  if (settings.storage.adapter_path.empty() || !plan.method.has_index())
    return std::shared_ptr<const Adapter>();
  const KvModelShape shape = ShapeOf(model.config);
  KVRUN_ASSIGN_OR_RETURN(const std::string fingerprint, model.Fingerprint());
  if (plan.method.has_clusters()) return ReadThresholds(settings, shape, fingerprint);
  KVRUN_ASSIGN_OR_RETURN(Adapter adapter,
                         ReadAdapter(settings.storage.adapter_path, fingerprint, shape.n_layers,
                                     shape.n_kv_heads * shape.head_dim, plan.index.rank));
  return std::make_shared<const Adapter>(std::move(adapter));
}

// What a plan takes from the adapter's file. Where nobody asks for it, what is wrong with the file is left to
// ReadNamedAdapter to say, which knows the model and whether the method has any use for it.
Result<std::vector<float>> LayerSharesOf(const KvSettings& settings) {
  const std::string& path = settings.storage.adapter_path;
  if (path.empty() || settings.kv.kept_shares == KeptShares::kEven) return std::vector<float>();
  Result<Adapter> adapter = ReadWholeAdapter(path);
  if (adapter.ok()) return std::move(adapter->layer_shares);
  if (settings.kv.kept_shares) return adapter.status();
  return std::vector<float>();
}

// Whether how much is selected may depend on how fast flash and device are (kv_plan.h).
bool FollowsSpeed(const KvOptions& kv) {
  const Result<KvMethod> method = kv.method.empty() ? MethodOfBudget() : FindKvMethod(kv.method);
  return method.ok() && method->defaults.may_select_more_than_slots &&
         (kv.budget_bytes || kv.budget_fraction) && !kv.select_entries && !kv.reuse_groups &&
         kv.hide.value_or(1.0) > 0.0;
}

// Nothing where no default depends on it, or where it cannot be told.
std::optional<double> SpeedFor(const KvSettings& settings, BlockFile& file) {
  const Result<KvMethod> named = FindKvMethod(settings.kv.method);
  const bool may_select = settings.kv.method.empty() || (named.ok() && named->selects());
  const bool is_needed = !settings.kv.group_tokens || FollowsSpeed(settings.kv);
  if (!may_select || !is_needed || settings.version.empty()) return std::nullopt;
  const std::string& folder = settings.storage.folder;
  // Where a file may lie in memory, its speed says nothing of flash.
  return ReadsPerSecondOf(file, {.folder = folder.empty() ? DefaultKvFolder() : folder,
                                 .version = settings.version,
                                 .may_measure = !settings.storage.allow_tmpfs,
                                 .path = SpeedsPath()});
}

// What the user says, with what the adapter's file and the device say.
Result<KvOptions> CompleteOptions(const KvSettings& settings, const LayerTime* layer_time) {
  KvOptions options = settings.kv;
  if (layer_time != nullptr) options.max_buffer_bytes = layer_time->device().max_buffer_bytes;
  KVRUN_ASSIGN_OR_RETURN(options.layer_shares, LayerSharesOf(settings));
  return options;
}

// A group that only the storage asks for never costs what can be had without it.
Result<KvPlan> PlanForSpeed(KvOptions options, const KvModelShape& shape, uint32_t n_ctx,
                            uint32_t n_sequences, uint32_t alignment_bytes, std::optional<double> speed) {
  const auto plan_with = [&](uint32_t group_tokens) {
    options.default_group_tokens = group_tokens;
    return PlanKv(options, shape, n_ctx, n_sequences, alignment_bytes);
  };
  const uint32_t group_tokens = speed && !options.group_tokens ? GroupTokensFor(*speed) : kDefaultGroupTokens;
  const bool selects_one = options.select_entries.value_or(group_tokens) >= group_tokens;
  if (group_tokens != kDefaultGroupTokens && selects_one) {
    Result<KvPlan> plan = plan_with(group_tokens);
    if (plan.ok() && !plan->raises_budget) {
      plan->details.push_back(GroupNote(*speed));
      return plan;
    }
  }
  return plan_with(kDefaultGroupTokens);
}

}  // namespace

KvModelShape ShapeOf(const ModelConfig& config) {
  const uint64_t of_attention = 2 * (uint64_t{config.q_dim()} + config.kv_dim()) * config.n_embd;
  const uint64_t of_feed_forward = uint64_t{3} * config.n_embd * config.n_ff;
  return {.n_layers = config.n_layers,
          .n_heads = config.n_heads,
          .n_kv_heads = config.n_kv_heads,
          .head_dim = config.head_dim,
          .n_embd = config.n_embd,
          .layer_products = of_attention + of_feed_forward,
          .feed_forward_bytes = StepCommands::FeedForwardBytes(config)};
}

bool IsPlainResident(const KvPlan& plan) {
  const KvType k_type = plan.record.k_type;
  return !plan.method.needs_file() && k_type == plan.record.v_type &&
         (k_type == KvType::kF16 || k_type == KvType::kF32);
}

Result<uint32_t> KvAlignmentBytes(const KvStorageOptions& storage) {
  KVRUN_ASSIGN_OR_RETURN(const std::unique_ptr<BlockFile> file, OpenKvFile(storage, FileUse::kIsTried));
  return file->mode().alignment_bytes;
}

Result<KvPlan> PlanSessionKv(const Model& model, const KvSettings& settings, uint32_t n_ctx,
                             uint32_t n_sequences, LayerTime* layer_time) {
  uint32_t alignment_bytes = 1;
  std::optional<double> speed;
  const KvModelShape shape = ShapeOf(model.config);
  if (!IsSurelyResident(settings.kv, shape, n_ctx, n_sequences)) {
    KVRUN_ASSIGN_OR_RETURN(const std::unique_ptr<BlockFile> file,
                           OpenKvFile(settings.storage, FileUse::kIsTried));
    alignment_bytes = file->mode().alignment_bytes;
    speed = SpeedFor(settings, *file);
  }
  KVRUN_ASSIGN_OR_RETURN(KvOptions options, CompleteOptions(settings, layer_time));
  if (speed && layer_time != nullptr && FollowsSpeed(options)) {
    const std::optional<double> layer_us = layer_time->Microseconds();
    if (layer_us) {
      options.flash_times = {
          .reads_per_s = *speed, .layer_us = *layer_us, .share_cores = layer_time->device().decodes_on_cpu};
    }
  }
  KVRUN_ASSIGN_OR_RETURN(KvPlan plan,
                         PlanForSpeed(options, shape, n_ctx, n_sequences, alignment_bytes, speed));
  if (plan.method.needs_file() && settings.storage.folder.empty() && !settings.storage.allow_tmpfs) {
    if (std::string note = NoteOfKvFolder(); !note.empty()) plan.notes.push_back(std::move(note));
  }
  KVRUN_RETURN_IF_ERROR(ReadNamedAdapter(model, settings, plan).status());
  return plan;
}

Result<OffloadedPassOptions> PrepareOffloadedPass(const Model& model, const KvSettings& settings,
                                                  uint32_t n_ctx, uint32_t n_sequences,
                                                  LayerTime* layer_time) {
  // First, as no folder is to be made for what cannot be had.
  KVRUN_ASSIGN_OR_RETURN(KvPlan plan, PlanSessionKv(model, settings, n_ctx, n_sequences, layer_time));
  if (!plan.method.needs_file()) return PrepareByPlan(model, settings, std::move(plan));
  KVRUN_ASSIGN_OR_RETURN(const std::unique_ptr<BlockFile> file,
                         OpenKvFile(settings.storage, FileUse::kIsKept));
  KVRUN_ASSIGN_OR_RETURN(KvOptions same_group, CompleteOptions(settings, layer_time));
  same_group.method = plan.method.name;
  same_group.default_group_tokens = plan.record.group_tokens;
  same_group.flash_times = plan.flash_times;
  std::vector<std::string> notes = std::move(plan.notes);
  std::vector<std::string> details = std::move(plan.details);
  KVRUN_ASSIGN_OR_RETURN(
      plan, PlanKv(same_group, ShapeOf(model.config), n_ctx, n_sequences, file->mode().alignment_bytes));
  plan.notes = std::move(notes);
  plan.details = std::move(details);
  return PrepareByPlan(model, settings, std::move(plan));
}

Result<OffloadedPassOptions> PrepareByPlan(const Model& model, const KvSettings& settings, KvPlan plan) {
  OffloadedPassOptions options;
  options.plan = std::move(plan);
  if (!options.plan.method.needs_file()) return options;
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<BlockFile> file, OpenKvFile(settings.storage, FileUse::kIsKept));
  std::unique_ptr<BlockFile> rows_file;
  if (options.plan.clusters.rows_on_flash) {
    const uint32_t depth = RowStore::kQueueDepth;
    KVRUN_ASSIGN_OR_RETURN(rows_file, OpenKvFile(settings.storage, FileUse::kIsKept, depth));
  }
  KVRUN_ASSIGN_OR_RETURN(options.stores, MakeKvStores(options.plan, model.config.n_layers, std::move(file),
                                                      std::move(rows_file)));
  KVRUN_ASSIGN_OR_RETURN(options.spill, OpenKvFile(settings.storage, FileUse::kIsKept));
  KVRUN_ASSIGN_OR_RETURN(options.adapter, ReadNamedAdapter(model, settings, options.plan));
  return options;
}

}  // namespace kvrun
