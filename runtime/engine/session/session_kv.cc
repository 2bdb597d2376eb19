#include "runtime/engine/session/session_kv.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "platform/io/secret_key.h"
#include "runtime/engine/machine/opening_speed.h"
#include "runtime/engine/machine/storage_speed.h"
#include "runtime/engine/pass/layer_states.h"
#include "runtime/engine/pass/step_commands.h"
#include "runtime/engine/session/session_adapter.h"
#include "runtime/kv/planner/plan_kv.h"
#include "runtime/kv/serve/kv_folder.h"
#include "runtime/store/sealed_file.h"
#include "runtime/store/write_meter.h"

namespace kvrun {
namespace {

enum class FileUse : bool { kIsKept, kIsTried };

// A folder that the user named is made, but not those above it: they are rather a slip.
Result<BlockFileOptions> KvFileOptions(const KvStorageOptions& storage, FileUse use,
                                       uint32_t queue_depth = BlockFileOptions().queue_depth) {
  std::string folder = storage.folder;
  if (folder.empty()) {
    const FolderUse made = use == FileUse::kIsTried ? FolderUse::kIsTried : FolderUse::kIsMade;
    const InMemory in_memory = storage.allow_tmpfs ? InMemory::kIsAllowed : InMemory::kIsRefused;
    KVRUN_ASSIGN_OR_RETURN(folder, FindKvFolder(made, in_memory));
  }
  return BlockFileOptions{.folder = folder,
                          .makes_parents = storage.folder.empty(),
                          .only_tries = use == FileUse::kIsTried,
                          .auto_backend = storage.auto_backend,
                          .backend = storage.backend,
                          .direct = storage.direct,
                          .queue_depth = queue_depth,
                          .allow_tmpfs = storage.allow_tmpfs};
}

Result<std::unique_ptr<BlockFile>> OpenKvFile(const KvStorageOptions& storage, FileUse use) {
  KVRUN_ASSIGN_OR_RETURN(const BlockFileOptions options, KvFileOptions(storage, use));
  return CreateBlockFile(options);
}

// A file that ends with the process, and its key with it.
Result<std::unique_ptr<BlockFile>> Sealed(std::unique_ptr<BlockFile> file, const KvFileSize& size) {
  KVRUN_ASSIGN_OR_RETURN(const SecretKey key, SecretKey::Random());
  KVRUN_ASSIGN_OR_RETURN(auto sealed,
                         SealedFile::Create(std::move(file), key, size.shape, 0, size.n_helpers));
  return std::unique_ptr<BlockFile>(std::move(sealed));
}

// What is put aside: pages, as many as there come to be.
KvFileSize FirstPage(const BlockFile& file) {
  const uint32_t page_bytes = std::max(file.mode().alignment_bytes, SealedFile::kPageBytes);
  return {{.size_bytes = page_bytes, .unit_bytes = page_bytes}, 0};
}

// That options alone name; what a budget takes where they do not.
Result<KvMethod> MethodOf(const KvOptions& kv) {
  return kv.method.empty() ? MethodOfBudget() : FindKvMethod(kv.method);
}

uint32_t AlignmentOf(const BlockFile& file, const KvSettings& settings) {
  const KvStorageOptions& storage = settings.storage;
  uint32_t of_units = 1;
  if (storage.encrypts) {
    // Records of groups are sealed as they are; of clusters, pages change.
    const Result<KvMethod> method = MethodOf(settings.kv);
    const bool has_groups = method.ok() && !method->has_clusters() && !method->evicts();
    of_units = has_groups ? SealedFile::kAlignmentBytes : SealedFile::kPageBytes;
  }
  return std::max({file.mode().alignment_bytes, storage.least_alignment_bytes, of_units});
}

// Whether how much is selected may depend on how fast flash and device are (plan_kv.h).
bool FollowsSpeed(const KvOptions& kv) {
  const Result<KvMethod> method = MethodOf(kv);
  return method.ok() && method->defaults.may_select_more_than_slots &&
         (kv.budget_bytes || kv.budget_fraction) && !kv.select_entries && !kv.reuse_groups &&
         kv.hide.value_or(1.0) > 0.0;
}

// Nothing where no default depends on it, or where it cannot be told.
std::optional<double> SpeedFor(const KvSettings& settings, BlockFile& file) {
  const Result<KvMethod> method = MethodOf(settings.kv);
  const bool may_select = method.ok() && method->selects();
  const bool is_needed = !settings.kv.group_tokens || FollowsSpeed(settings.kv);
  if (!may_select || !is_needed || settings.version.empty()) return std::nullopt;
  const std::string& folder = settings.storage.folder;
  // Where a file may lie in memory, its speed says nothing of flash.
  return ReadsPerSecondOf(file, {.folder = folder.empty() ? DefaultKvFolder() : folder,
                                 .version = settings.version,
                                 .may_measure = !settings.storage.allow_tmpfs,
                                 .path = SpeedsPath()});
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
    if (plan.ok() && !plan->budget.is_raised) {
      plan->notes.for_experts.push_back(GroupNote(*speed));
      return plan;
    }
  }
  return plan_with(kDefaultGroupTokens);
}

// That neither the device, nor the thread that reads, computes on.
uint32_t SpareCores(const LayerTime* layer_time) {
  if (layer_time == nullptr || layer_time->device().decodes_on_cpu) return 0;
  return std::max(std::thread::hardware_concurrency(), 1U) - 1;
}

// In the folder: the KV, or what prompts put aside of it.
bool HasFiles(const KvPlan& plan) { return plan.method.needs_file(); }

// From options to a plan, and from it to what is made. The adapter's file is read once for all of it.
class KvPreparation {
 public:
  // `layer_time` may be null, and so may `kept`.
  KvPreparation(const Model& model, const KvSettings& settings, LayerTime* layer_time,
                KeptFiles* kept = nullptr)
      : model_(model), settings_(settings), layer_time_(layer_time), kept_(kept), adapter_(model, settings) {
    meter_ = settings.storage.meter;
    if (meter_ == nullptr && !settings.storage.written_path.empty())
      meter_ = std::make_shared<WriteMeter>(settings.storage.written_path);
  }

  Result<KvPlan> Plan(uint32_t n_ctx, uint32_t n_sequences);
  // Makes the folder, whose files may be aligned in another way than the one that was tried.
  Result<KvPlan> PlanForFolder(KvPlan plan);
  // The end of this.
  Result<OffloadedPassOptions> MakeParts(KvPlan plan) &&;

 private:
  Result<KvOptions> CompleteOptions();
  std::optional<FlashTimes> TimesFor(std::optional<double> reads_per_s);
  Result<std::unique_ptr<BlockFile>> MakeFile(KeptFiles::Kind kind, const KvPlan& plan,
                                              uint32_t queue_depth) const;
  Status MakeFiles(OffloadedPassOptions* options) const;

  const Model& model_;
  const KvSettings& settings_;
  LayerTime* layer_time_;
  KeptFiles* kept_;
  SessionAdapter adapter_;
  std::shared_ptr<WriteMeter> meter_;  // of what is written; may be null
};

// What the user says, with what the adapter's file and the device say.
Result<KvOptions> KvPreparation::CompleteOptions() {
  KvOptions options = settings_.kv;
  if (settings_.flash_times) options.flash_times = settings_.flash_times;
  if (settings_.storage.encrypts) options.spare_cores = SpareCores(layer_time_);
  if (layer_time_ != nullptr) options.max_buffer_bytes = layer_time_->device().max_buffer_bytes;
  options.is_sealed = settings_.storage.encrypts;
  options.overlaid_tokens = settings_.storage.overlaid_tokens;
  KVRUN_ASSIGN_OR_RETURN(options.layer_shares, adapter_.LayerShares());
  return options;
}

// Nothing where no plan depends on them, or where they cannot be told.
std::optional<FlashTimes> KvPreparation::TimesFor(std::optional<double> reads_per_s) {
  if (!reads_per_s || layer_time_ == nullptr || !FollowsSpeed(settings_.kv)) return std::nullopt;
  const std::optional<double> layer_us = layer_time_->Microseconds(settings_.version);
  if (!layer_us) return std::nullopt;
  FlashTimes times{.reads_per_s = *reads_per_s,
                   .layer_us = *layer_us,
                   .share_cores = layer_time_->device().decodes_on_cpu};
  if (settings_.storage.encrypts) times.opening = MeasuredOpening(settings_.version);
  return times;
}

Result<KvPlan> KvPreparation::Plan(uint32_t n_ctx, uint32_t n_sequences) {
  uint32_t alignment_bytes = 1;
  std::optional<double> speed;
  const KvModelShape shape = ShapeOf(model_.config);
  if (!IsSurelyResident(settings_.kv, shape, n_ctx, n_sequences)) {
    KVRUN_ASSIGN_OR_RETURN(const std::unique_ptr<BlockFile> file,
                           OpenKvFile(settings_.storage, FileUse::kIsTried));
    alignment_bytes = AlignmentOf(*file, settings_);
    speed = SpeedFor(settings_, *file);
  }
  // Before the adapter is read, which is large: a device may need the memory to be measured.
  const std::optional<FlashTimes> times = settings_.flash_times ? std::nullopt : TimesFor(speed);
  KVRUN_ASSIGN_OR_RETURN(KvOptions options, CompleteOptions());
  if (times) options.flash_times = times;
  KVRUN_ASSIGN_OR_RETURN(KvPlan plan,
                         PlanForSpeed(options, shape, n_ctx, n_sequences, alignment_bytes, speed));
  if (HasFiles(plan) && settings_.storage.folder.empty() && !settings_.storage.allow_tmpfs) {
    if (std::string note = NoteOfKvFolder(); !note.empty()) plan.notes.for_people.push_back(std::move(note));
  }
  KVRUN_RETURN_IF_ERROR(adapter_.Check(plan));
  return plan;
}

Result<KvPlan> KvPreparation::PlanForFolder(KvPlan plan) {
  KVRUN_ASSIGN_OR_RETURN(const std::unique_ptr<BlockFile> file,
                         OpenKvFile(settings_.storage, FileUse::kIsKept));
  KVRUN_ASSIGN_OR_RETURN(KvOptions same_group, CompleteOptions());
  same_group.method = plan.method.name;
  same_group.default_group_tokens = plan.record.group_tokens;
  same_group.flash_times = plan.flash_times;
  KVRUN_ASSIGN_OR_RETURN(KvPlan of_folder, PlanKv(same_group, ShapeOf(model_.config), plan.n_ctx,
                                                  plan.n_sequences, AlignmentOf(*file, settings_)));
  of_folder.notes = std::move(plan.notes);
  return of_folder;
}

Result<std::unique_ptr<BlockFile>> KvPreparation::MakeFile(KeptFiles::Kind kind, const KvPlan& plan,
                                                           uint32_t queue_depth) const {
  KVRUN_ASSIGN_OR_RETURN(const BlockFileOptions options,
                         KvFileOptions(settings_.storage, FileUse::kIsKept, queue_depth));
  const bool is_kept = kept_ != nullptr && HasKeptRecords(plan);
  const auto size = [&](const IoMode& mode) {
    const uint32_t n_layers = model_.config.n_kv_layers();
    const uint32_t room_tokens = is_kept ? kept_->room_tokens() : 0;
    return kind == KeptFiles::Kind::kRecords ? RecordsFileSize(plan, n_layers, room_tokens, mode)
                                             : RowsFileSize(plan, n_layers, mode);
  };
  if (is_kept) return kept_->Make(kind, options, size);
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<BlockFile> file, CreateBlockFile(options));
  file = Metered(std::move(file), meter_);
  if (!settings_.storage.encrypts) return file;
  IoMode mode = file->mode();
  mode.alignment_bytes = AlignmentOf(*file, settings_);
  const KvFileSize sealed = HasKeptRecords(plan) ? size(mode) : FirstPage(*file);
  return Sealed(std::move(file), sealed);
}

Status KvPreparation::MakeFiles(OffloadedPassOptions* options) const {
  const KvPlan& plan = options->plan;
  const uint32_t depth = BlockFileOptions().queue_depth;
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<BlockFile> file, MakeFile(KeptFiles::Kind::kRecords, plan, depth));
  std::unique_ptr<BlockFile> rows_file;
  if (plan.has_rows_file()) {
    KVRUN_ASSIGN_OR_RETURN(rows_file, MakeFile(KeptFiles::Kind::kRows, plan, RowStore::kQueueDepth));
  }
  KVRUN_ASSIGN_OR_RETURN(
      options->stores, MakeKvStores(plan, model_.config.n_kv_layers(), std::move(file), std::move(rows_file),
                                    kept_ != nullptr ? kept_->room_tokens() : 0));
  KVRUN_ASSIGN_OR_RETURN(options->spill, OpenKvFile(settings_.storage, FileUse::kIsKept));
  options->spill = Metered(std::move(options->spill), meter_);
  if (settings_.storage.encrypts) {
    const KvFileSize size = FirstPage(*options->spill);
    KVRUN_ASSIGN_OR_RETURN(options->spill, Sealed(std::move(options->spill), size));
  }
  return Status::Ok();
}

Result<OffloadedPassOptions> KvPreparation::MakeParts(KvPlan plan) && {
  OffloadedPassOptions options;
  options.plan = std::move(plan);
  if (!HasFiles(options.plan)) return options;
  KVRUN_RETURN_IF_ERROR(MakeFiles(&options));
  KVRUN_ASSIGN_OR_RETURN(options.adapter, std::move(adapter_).Take(options.plan));
  return options;
}

}  // namespace

KvModelShape ShapeOf(const ModelConfig& config) {
  const uint64_t of_attention = 2 * (uint64_t{config.q_dim()} + config.kv_dim()) * config.n_embd;
  const ExpertConfig& experts = config.experts;
  const uint64_t ff_columns = experts.n_experts > 0 ? uint64_t{experts.n_used} * experts.n_ff : config.n_ff;
  const uint64_t of_feed_forward = 3 * config.n_embd * ff_columns;
  return {.n_layers = config.n_kv_layers(),
          .n_heads = config.n_heads,
          .n_kv_heads = config.n_kv_heads,
          .head_dim = config.head_dim,
          .n_embd = config.n_embd,
          .layer_products = of_attention + of_feed_forward,
          .feed_forward_bytes = StepCommands::FeedForwardBytes(config),
          .state_bytes = LayerStates::SizeBytes(config, KvType::kF16, 1, UINT32_MAX)};
}

bool IsPlainResident(const KvPlan& plan) {
  const KvType k_type = plan.record.k_type;
  return !HasFiles(plan) && k_type == plan.record.v_type &&
         (k_type == KvType::kF16 || k_type == KvType::kF32);
}

Result<uint32_t> KvAlignmentBytes(const KvStorageOptions& storage) {
  KVRUN_ASSIGN_OR_RETURN(const std::unique_ptr<BlockFile> file, OpenKvFile(storage, FileUse::kIsTried));
  return file->mode().alignment_bytes;
}

Result<KvPlan> PlanSessionKv(const Model& model, const KvSettings& settings, uint32_t n_ctx,
                             uint32_t n_sequences, LayerTime* layer_time) {
  return KvPreparation(model, settings, layer_time).Plan(n_ctx, n_sequences);
}

Result<OffloadedPassOptions> PrepareOffloadedPass(const Model& model, const KvSettings& settings,
                                                  uint32_t n_ctx, uint32_t n_sequences, LayerTime* layer_time,
                                                  KeptFiles* kept) {
  KvPreparation preparation(model, settings, layer_time, kept);
  // First, as no folder is to be made for what cannot be had.
  KVRUN_ASSIGN_OR_RETURN(KvPlan plan, preparation.Plan(n_ctx, n_sequences));
  if (HasFiles(plan)) {
    KVRUN_ASSIGN_OR_RETURN(plan, preparation.PlanForFolder(std::move(plan)));
  }
  return std::move(preparation).MakeParts(std::move(plan));
}

Result<OffloadedPassOptions> PrepareByPlan(const Model& model, const KvSettings& settings, KvPlan plan) {
  return KvPreparation(model, settings, nullptr).MakeParts(std::move(plan));
}

}  // namespace kvrun
