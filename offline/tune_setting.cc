#include "offline/tune_setting.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>

#include "platform/base/units.h"
#include "runtime/capi/handles.h"
#include "runtime/engine/session/session_kv.h"

namespace kvrun::offline {
namespace {

constexpr uint32_t kMaxSequences = KVRUN_MAX_SEQUENCES;

Status Invalid(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }

uint32_t LargestBatch(const TuneOptions& options) {
  return *std::max_element(options.batches.begin(), options.batches.end());
}

// Bytes of one sequence at the largest context.
Result<uint64_t> SequenceBudget(const TuneOptions& options, const KvModelShape& shape) {
  KvSettings settings;
  KVRUN_RETURN_IF_ERROR(SetKvOption("budget", options.budget, &settings));
  if (settings.kv.budget_bytes) return *settings.kv.budget_bytes / LargestBatch(options);
  const uint32_t n_ctx = *std::max_element(options.contexts.begin(), options.contexts.end());
  const KvShape full{KvType::kF16, 1, shape.n_kv_heads, shape.head_dim, n_ctx};
  return static_cast<uint64_t>(static_cast<double>(full.size_bytes() * shape.n_layers) *
                               *settings.kv.budget_fraction);
}

// What kvrun takes where nobody says: by the speed of storage and device.
void AddMachine(const Model& model, const KvStorageOptions& storage, Engine* engine, SearchSetting* setting) {
  KvSettings settings;
  settings.kv.method = "kvswap";
  settings.kv.budget_bytes = setting->budget_bytes;
  settings.storage = storage;
  settings.version = kvrun_version();
  const Result<KvPlan> plan = engine != nullptr
                                  ? engine->PlanSession(settings, setting->ctx, setting->batch)
                                  : PlanSessionKv(model, settings, setting->ctx, setting->batch);
  if (!plan.ok()) return;
  setting->default_group_tokens = plan->record.group_tokens;
  setting->flash_times = plan->flash_times;
}

constexpr uint64_t kMaxSequenceBytes = uint64_t{1} << 40;  // far above any need

// Bytes for one of the setting's sequences, to a KiB; more than kMaxSequenceBytes where none suffice.
uint64_t LeastSequenceBudget(SearchSetting setting) {
  const auto suffices = [&setting](uint64_t bytes) {
    setting.budget_bytes = bytes * setting.batch;
    return BudgetsOwnChoice(setting).ok();
  };
  uint64_t most = 1024;
  while (most <= kMaxSequenceBytes && !suffices(most)) most *= 2;
  uint64_t least = most / 2;
  while (most - least > 1024) {
    const uint64_t middle = RoundUp((least + most) / 2, uint64_t{1024});
    (suffices(middle) ? most : least) = middle;
  }
  return most;
}

// The library names kvrun's option; a budget to tune for has another name.
Status WithOptionOfTune(const Status& status) {
  constexpr std::string_view kOption = "--kv-budget";
  std::string message = status.message();
  for (size_t at = message.find(kOption); at != message.npos; at = message.find(kOption, at)) {
    message.replace(at, kOption.size(), "--budget");
  }
  return {status.code(), message};
}

// What one of several settings lacks is not what the budget lacks: others may need more, and a smaller batch
// has a part of it.
Status BudgetTooSmall(const std::vector<SearchSetting>& settings, const SearchSetting& refused,
                      const Status& status) {
  if (settings.size() == 1) return WithOptionOfTune(status);
  uint32_t n_batch = 0;
  uint64_t least = 0;
  for (const SearchSetting& setting : settings) {
    n_batch = std::max(n_batch, setting.batch);
    least = std::max(least, LeastSequenceBudget(setting));
  }
  if (least > kMaxSequenceBytes) return WithOptionOfTune(status);
  return {status.code(),
          fmt::format(
              "the KV budget has {} for {} of {} tokens, which is too little: give --budget {}KiB, which is "
              "enough for all that is to be tuned, or name fewer contexts and batches (--ctx, --batch)",
              FormatBytes(refused.budget_bytes), Counted(refused.batch, "sequence"), refused.ctx,
              least * n_batch / 1024)};
}

}  // namespace

Status CheckBudget(const std::string& budget) {
  KvSettings settings;
  return SetKvOption("budget", budget, &settings);
}

Status CheckTuneNumbers(const TuneOptions& options) {
  if (options.budget.empty()) return Invalid("no budget is given: --budget BYTES, or a share such as 1/13");
  if (options.contexts.empty() || options.batches.empty()) {
    return Invalid("nothing is to be tuned: name a context and a batch size");
  }
  const uint32_t shortest = *std::min_element(options.contexts.begin(), options.contexts.end());
  if (shortest < 2 * options.n_steps) {
    return Invalid(
        fmt::format("a context of {} tokens is too short to tune for: its last {} tokens are fed one by one, "
                    "after at least as many others; take at least {}",
                    shortest, options.n_steps, 2 * options.n_steps));
  }
  const uint32_t least = *std::min_element(options.batches.begin(), options.batches.end());
  if (least == 0 || LargestBatch(options) > kMaxSequences) {
    return Invalid(fmt::format("a batch can have 1 to {} sequences", kMaxSequences));
  }
  if (!(options.kl_limit >= 0.0 && std::isfinite(options.kl_limit))) {
    return Invalid("the KL to full attention must be a number from 0");
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
                                                  const std::optional<Adapter>& adapter, Engine* engine) {
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
                          .max_rank = adapter ? adapter->layers.front().rank : 0,
                          .layer_shares = adapter ? adapter->layer_shares : std::vector<float>(),
                          .flash_times = {}});
      AddMachine(model, storage, engine, &settings.back());
    }
  }
  for (const SearchSetting& setting : settings) {
    const Result<SizedCandidate> own = BudgetsOwnChoice(setting);
    if (own.ok()) continue;
    return BudgetTooSmall(settings, setting,
                          own.status().WithContext(fmt::format("{} tokens of context, {}", setting.ctx,
                                                               Counted(setting.batch, "sequence"))));
  }
  return settings;
}

Result<std::optional<Adapter>> TuningAdapter(const Model& model, const std::string& path) {
  if (path.empty()) return std::optional<Adapter>();
  KVRUN_ASSIGN_OR_RETURN(Adapter adapter, ReadWholeAdapter(path));
  const uint32_t rank = adapter.layers.empty() ? 0 : adapter.layers.front().rank;
  KVRUN_ASSIGN_OR_RETURN(const std::string fingerprint, model.Fingerprint());
  // Says what is wrong where it is another model's.
  KVRUN_RETURN_IF_ERROR(
      ReadAdapter(path, fingerprint, model.config.n_kv_layers(), model.config.kv_dim(), rank).status());
  return std::optional<Adapter>(std::move(adapter));
}

Status CheckTune(const kvrun_model* model, const TuneOptions& options) {
  KVRUN_RETURN_IF_ERROR(CheckTuneNumbers(options));
  KvStorageOptions storage;
  storage.folder = options.folder;
  storage.allow_tmpfs = options.allow_tmpfs;
  KVRUN_ASSIGN_OR_RETURN(const std::optional<Adapter> adapter,
                         TuningAdapter(*model->model, options.adapter_path));
  return SearchSettings(*model->model, options, storage, adapter, nullptr).status();
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
