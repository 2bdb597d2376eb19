#include "offline/tune_setting.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "runtime/capi/handles.h"
#include "runtime/engine/session_kv.h"
#include "runtime/model/fingerprint.h"

namespace kvrun::offline {
namespace {

constexpr uint32_t kMaxSequences = KVRUN_MAX_SEQUENCES;

Status Invalid(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }

// Bytes of one sequence at the largest context.
Result<uint64_t> SequenceBudget(const TuneOptions& options, const KvModelShape& shape) {
  KvSettings settings;
  KVRUN_RETURN_IF_ERROR(SetKvOption("budget", options.budget, &settings));
  const uint32_t n_batch = *std::max_element(options.batches.begin(), options.batches.end());
  if (settings.kv.budget_bytes) return *settings.kv.budget_bytes / n_batch;
  const uint32_t n_ctx = *std::max_element(options.contexts.begin(), options.contexts.end());
  const KvShape full{KvType::kF16, 1, shape.n_kv_heads, shape.head_dim, n_ctx};
  return static_cast<uint64_t>(static_cast<double>(full.size_bytes() * shape.n_layers) *
                               *settings.kv.budget_fraction);
}

// What kvrun takes where nobody says: by the storage's speed.
uint32_t DefaultGroup(const Model& model, const KvStorageOptions& storage, const SearchSetting& setting) {
  KvSettings settings;
  settings.kv.method = "kvswap";
  settings.kv.budget_bytes = setting.budget_bytes;
  settings.storage = storage;
  settings.version = kvrun_version();
  const Result<KvPlan> plan = PlanSessionKv(model, settings, setting.ctx, setting.batch);
  return plan.ok() ? plan->record.group_tokens : kDefaultGroupTokens;
}

}  // namespace

Status CheckTuneNumbers(const TuneOptions& options) {
  if (options.budget.empty()) return Invalid("no budget is given: --budget BYTES, or a share such as 1/13");
  if (options.contexts.empty() || options.batches.empty()) {
    return Invalid("nothing is to be tuned: name a context and a batch size");
  }
  const uint32_t shortest = *std::min_element(options.contexts.begin(), options.contexts.end());
  if (shortest < 2 * options.n_steps) {
    return Invalid(
        fmt::format("a context of {} tokens is too short to tune for: {} of it are fed one by one, and "
                    "no fewer must be there before; take at least {}",
                    shortest, options.n_steps, 2 * options.n_steps));
  }
  const uint32_t n_batch = *std::max_element(options.batches.begin(), options.batches.end());
  const uint32_t least = *std::min_element(options.batches.begin(), options.batches.end());
  if (least == 0 || n_batch > kMaxSequences) {
    return Invalid(fmt::format("a batch is of 1 to {} sequences", kMaxSequences));
  }
  if (!(options.kl_limit >= 0.0 && std::isfinite(options.kl_limit))) {
    return Invalid("a KL to full attention is a number from 0");
  }
  return Status::Ok();
}

// Each once: a config has one solution per batch size and context.
std::vector<uint32_t> Distinct(std::vector<uint32_t> values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  return values;
}

Result<std::vector<SearchSetting>> SearchSettings(const Model& model, const TuneOptions& options,
                                                  const KvStorageOptions& storage,
                                                  const std::optional<Adapter>& adapter) {
  const KvModelShape shape = ShapeOf(model.config);
  KVRUN_ASSIGN_OR_RETURN(const uint32_t alignment, KvAlignmentBytes(storage));
  KVRUN_ASSIGN_OR_RETURN(const uint64_t sequence_budget, SequenceBudget(options, shape));
  std::vector<SearchSetting> settings;
  for (const uint32_t n_ctx : Distinct(options.contexts)) {
    for (const uint32_t batch : Distinct(options.batches)) {
      settings.push_back({.model = shape,
                          .batch = batch,
                          .ctx = n_ctx,
                          .budget_bytes = sequence_budget * batch,
                          .io_alignment_bytes = alignment,
                          .adapter_path = options.adapter_path,
                          .max_rank = adapter ? adapter->layers.front().rank : 0});
      settings.back().default_group_tokens = DefaultGroup(model, storage, settings.back());
      const Result<SizedCandidate> own = BudgetsOwnChoice(settings.back());
      if (!own.ok()) {
        return own.status().WithContext(
            fmt::format("{} tokens of context, {} sequence{}", n_ctx, batch, batch == 1 ? "" : "s"));
      }
    }
  }
  return settings;
}

Result<std::optional<Adapter>> TuningAdapter(const Model& model, const std::string& path) {
  if (path.empty()) return std::optional<Adapter>();
  KVRUN_ASSIGN_OR_RETURN(Adapter adapter, ReadWholeAdapter(path));
  const uint32_t rank = adapter.layers.empty() ? 0 : adapter.layers.front().rank;
  // Says what is wrong where it is another model's.
  KVRUN_RETURN_IF_ERROR(ReadAdapter(path, ModelFingerprint(*model.file, model.config), model.config.n_layers,
                                    model.config.kv_dim(), rank)
                            .status());
  return std::optional<Adapter>(std::move(adapter));
}

Status CheckTune(const kvrun_model* model, const TuneOptions& options) {
  KVRUN_RETURN_IF_ERROR(CheckTuneNumbers(options));
  KvStorageOptions storage;
  storage.folder = options.folder;
  storage.allow_tmpfs = options.allow_tmpfs;
  KVRUN_ASSIGN_OR_RETURN(const std::optional<Adapter> adapter,
                         TuningAdapter(*model->model, options.adapter_path));
  return SearchSettings(*model->model, options, storage, adapter).status();
}

Status CheckTuneText(const TuneOptions& options) {
  const uint32_t longest = *std::max_element(options.contexts.begin(), options.contexts.end());
  if (options.ids.size() >= longest) return Status::Ok();
  return Invalid(
      fmt::format("the text has {} tokens, too few to measure quality at a context of {}: give longer "
                  "texts (-f, several times), or tune for shorter contexts",
                  options.ids.size(), longest));
}

}  // namespace kvrun::offline
