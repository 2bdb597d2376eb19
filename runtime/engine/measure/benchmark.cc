#include "runtime/engine/measure/benchmark.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "platform/base/random.h"
#include "runtime/engine/measure/random_kv.h"
#include "runtime/engine/pass/step_commands.h"
#include "runtime/engine/resident/resident_pass.h"
#include "runtime/engine/session/session.h"
#include "runtime/engine/session/session_kv.h"
#include "runtime/kv/serve/record_cache.h"

namespace kvrun {
namespace {

using Clock = std::chrono::steady_clock;
using Progress = std::function<bool(uint64_t, uint64_t)>;

constexpr uint64_t kMaxContext = uint64_t{1} << 27;
constexpr uint64_t kMaxStreamBytes = uint64_t{256} << 20;

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

Status CheckOptions(const BenchmarkOptions& options) {
  KVRUN_RETURN_IF_ERROR(CheckSequenceCount(options.n_sequences));
  const auto refuse = [](std::string message) {
    return Status(StatusCode::kInvalidArgument, std::move(message));
  };
  if (options.depths.empty())
    return refuse("no depth to measure at is named: name one or more, such as 0 (--depth)");
  if (options.n_prompt == 0 && options.n_decode == 0) {
    return refuse("nothing is to be measured: ask for tokens to prefill, or to decode");
  }
  if (options.n_repetitions == 0) return refuse("0 runs measure nothing: ask for 1 or more");
  const uint32_t deepest = *std::max_element(options.depths.begin(), options.depths.end());
  if (uint64_t{deepest} + options.n_decode > kMaxContext || options.n_prompt > kMaxContext) {
    return refuse(fmt::format("a context of {} tokens is too long: it can have at most {}",
                              std::max(uint64_t{deepest} + options.n_decode, uint64_t{options.n_prompt}),
                              kMaxContext));
  }
  if (!(options.hit_rate >= 0.0 && options.hit_rate <= 1.0)) {
    return refuse(fmt::format("the hit rate is {}; it must be from 0 to 1", options.hit_rate));
  }
  const KvOptions& kv = options.kv.kv;
  const bool has_budget = kv.budget_bytes || kv.budget_fraction;
  const Result<KvMethod> named = FindKvMethod(kv.method);
  const bool is_resident = kv.method.empty() ? !has_budget : named.ok() && !named->needs_file();
  if (options.io_only && (is_resident || options.n_decode == 0)) {
    return refuse(
        "there are no reads to repeat: decode one token or more with a method that keeps KV on flash "
        "(--kv-method)");
  }
  return Status::Ok();
}

// The configuration alone of a model's first layers.
std::unique_ptr<Model> FirstLayers(const Model& model, uint32_t n_layers) {
  auto part = std::make_unique<Model>();
  part->config = model.config;
  part->config.KeepFirstLayers(n_layers);
  return part;
}

// Layers after which the model's kinds begin again.
uint32_t PeriodOf(const ModelConfig& config) {
  const auto repeats_after = [&config](uint32_t period) {
    for (uint32_t i = period; i < config.n_layers; ++i) {
      if (config.layers[i].kind != config.layers[i - period].kind) return false;
    }
    return true;
  };
  uint32_t period = 1;
  while (!repeats_after(period)) ++period;
  return period;
}

// Of a part of a model: about half of its layers, with the same share of each kind. 0: there are none.
uint32_t LayersToCompare(const Model& model) {
  const uint32_t n_layers = model.config.n_layers;
  const uint32_t period = PeriodOf(model.config);
  if (model.n_layers_whole <= n_layers || n_layers % period != 0) return 0;
  return n_layers / period / 2 * period;
}

std::string NoteOfFewLayers(const Model& model) {
  const uint32_t n_layers = model.config.n_layers;
  if (n_layers > 1) {
    return fmt::format(
        "layers of several kinds take turns, and {} are not twice or more what they take turns in: their "
        "time "
        "is not scaled to all {} layers",
        n_layers, model.n_layers_whole);
  }
  return fmt::format(
      "the time of 1 layer cannot be told from that of the rest of the model, so it is not scaled to all {} "
      "layers: time 2 layers or more",
      model.n_layers_whole);
}

std::string NoteOfBudget(const Model& model) {
  const uint32_t n_layers = model.config.n_layers;
  return fmt::format(
      "the KV budget is for the {} layers that are timed: the time that is scaled to all {} layers is that "
      "of a budget {:.3g} times as large",
      n_layers, model.n_layers_whole, static_cast<double>(model.n_layers_whole) / n_layers);
}

// Of windows, and of KV in memory.
uint32_t ElementBytesOf(const KvPlan& plan) {
  return KvElementBytes(IsPlainResident(plan) ? plan.record.k_type : KvType::kF16);
}

class Benchmark {
 public:
  Benchmark(const Model& model, std::shared_ptr<const DeviceWeights> weights, Device& device,
            const BenchmarkOptions& options, const Progress& progress)
      : model_(model),
        weights_(std::move(weights)),
        device_(device),
        options_(options),
        progress_(progress),
        layer_time_(model, weights_, device),
        random_(1) {
    if (const uint32_t n_few = LayersToCompare(model); n_few > 0) half_ = FirstLayers(model, n_few);
    total_ = TokensToCompute();
  }

  Result<BenchmarkResult> Run(uint32_t depth);

 private:
  struct Pass {
    std::unique_ptr<ForwardPass> forward;
    ResidentForwardPass* resident = nullptr;  // null: the KV is kept in records
    uint32_t n_kv_layers = 0;
    KvPlan plan;
  };

  uint64_t TokensToCompute() const;
  uint32_t ContextAt(uint32_t depth) const;
  Result<Pass> MakePass(uint32_t depth);
  // Of half the layers, with what the plan of all of them gives each.
  Result<Pass> MakeHalf(const KvPlan& plan) const;
  Result<Pass> MakePassOf(const Model& model, OffloadedPassOptions offloaded) const;
  Status NoteProgress(uint64_t tokens);
  // From an empty sequence on.
  Status Prefill(ForwardPass& pass, uint32_t sequence, uint32_t n_tokens);
  Result<double> SecondsOfPrefill(Pass& pass);
  // Of n_decode steps, after one that warms up.
  Result<double> SecondsOfDecode(Pass& pass, uint32_t depth, bool logs_reads);
  void AddNotes(const Pass& pass, BenchmarkResult* result) const;
  double SecondsOfWhole(double half_s, double all_s) const {
    return TimeOfWhole(half_s, half_->config.n_layers, all_s, model_.config.n_layers, model_.n_layers_whole);
  }
  Status MeasurePrefill(uint32_t depth, BenchmarkResult* result);
  Status Fill(Pass& pass, uint32_t depth);
  Status DecodeStep(ForwardPass& pass, uint32_t position);
  Status MeasureDecode(uint32_t depth, BenchmarkResult* result);
  // In the same run, as other programs on the machine read too.
  Result<double> MeasureStream();
  WeightReads WeightReadsOf(std::vector<double> decode_tps, double stream_per_s) const;
  void TellPromptWork(const KvPlan& plan, BenchmarkResult* result) const;
  void TellStepWork(const KvPlan& plan, BenchmarkResult* result) const;
  TokenId RandomId() { return static_cast<TokenId>(random_.Below(model_.config.n_vocab)); }

  const Model& model_;
  std::unique_ptr<Model> half_;  // of the layers, where the model is a part of one; else null
  std::shared_ptr<const DeviceWeights> weights_;
  Device& device_;
  const BenchmarkOptions& options_;
  const Progress& progress_;
  LayerTime layer_time_;
  Random random_;
  uint64_t done_ = 0;  // tokens, for progress
  uint64_t total_ = 0;
  bool is_warm_ = false;  // prefill's pipelines were made
  ForwardStep step_;
  std::vector<uint32_t> outputs_;
  std::vector<float> logits_;
};

// The same sums as are added up in done_.
uint64_t Benchmark::TokensToCompute() const {
  const uint64_t n_runs = options_.n_repetitions;
  const uint64_t n_depths = options_.depths.size();
  const uint64_t n_models = half_ == nullptr ? 1 : 2;
  uint64_t tokens = options_.n_prompt == 0 ? 0 : options_.n_prompt * (n_models * n_runs * n_depths + 1);
  if (options_.n_decode == 0) return tokens;
  for (const uint32_t depth : options_.depths) {
    if (!options_.fill_random) tokens += n_models * options_.n_sequences * depth;
    tokens += n_models * options_.n_sequences * (options_.n_decode + 1) * n_runs;
  }
  return tokens;
}

uint32_t Benchmark::ContextAt(uint32_t depth) const {
  // At depth 0, the step that warms up takes one.
  return std::max({depth + options_.n_decode, options_.n_prompt, 1U});
}

Status Benchmark::NoteProgress(uint64_t tokens) {
  done_ += tokens;
  if (progress_ && progress_(done_, total_)) return {StatusCode::kCancelled, "the benchmark was cancelled"};
  return Status::Ok();
}

Result<Benchmark::Pass> Benchmark::MakePass(uint32_t depth) {
  KVRUN_ASSIGN_OR_RETURN(
      OffloadedPassOptions offloaded,
      PrepareOffloadedPass(model_, options_.kv, ContextAt(depth), options_.n_sequences, &layer_time_));
  if (options_.io_only && !offloaded.plan.method.is_on_flash()) {
    return Status(StatusCode::kInvalidArgument,
                  "there are no reads to repeat, as the KV budget holds all KV: give a smaller one "
                  "(--kv-budget), or --kv-method kvswap");
  }
  return MakePassOf(model_, std::move(offloaded));
}

Result<Benchmark::Pass> Benchmark::MakeHalf(const KvPlan& plan) const {
  KVRUN_ASSIGN_OR_RETURN(OffloadedPassOptions offloaded, PrepareByPlan(*half_, options_.kv, plan));
  return MakePassOf(*half_, std::move(offloaded));
}

Result<Benchmark::Pass> Benchmark::MakePassOf(const Model& model, OffloadedPassOptions offloaded) const {
  Pass pass;
  pass.n_kv_layers = model.config.n_kv_layers();
  pass.plan = offloaded.plan;
  if (IsPlainResident(pass.plan)) {
    KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<ResidentForwardPass> resident,
                           ResidentForwardPass::Create(model, weights_, device_,
                                                       {.n_sequences = options_.n_sequences,
                                                        .n_ctx = pass.plan.n_ctx,
                                                        .kv_type = pass.plan.record.k_type}));
    pass.resident = resident.get();
    pass.forward = std::move(resident);
    return pass;
  }
  KVRUN_ASSIGN_OR_RETURN(pass.forward, CreateOffloadedPass(model, weights_, device_, std::move(offloaded)));
  return pass;
}

void Benchmark::AddNotes(const Pass& pass, BenchmarkResult* result) const {
  result->notes = pass.plan.notes.All();
  if (model_.n_layers_whole == 0) return;
  if (half_ == nullptr) result->part_note = NoteOfFewLayers(model_);
  if (half_ != nullptr && options_.kv.kv.budget_bytes) result->part_note = NoteOfBudget(model_);
}

Status Benchmark::Prefill(ForwardPass& pass, uint32_t sequence, uint32_t n_tokens) {
  const uint64_t before = done_;
  pass.SetProgress(
      [this, before](uint64_t done, uint64_t) { return progress_ && progress_(before + done, total_); });
  for (uint32_t begin = 0; begin < n_tokens;) {
    const uint32_t end = std::min(n_tokens, begin + pass.max_rows());
    step_.Clear();
    for (uint32_t i = begin; i < end; ++i) step_.Add(SpanKind::kPrompt, {RandomId(), i, sequence});
    const bool is_last = end == n_tokens;
    const uint32_t last_row = end - begin - 1;
    logits_.resize(is_last ? pass.n_vocab() : 0);
    KVRUN_RETURN_IF_ERROR(pass.Run(step_, {&last_row, is_last ? 1U : 0U}, logits_));
    KVRUN_RETURN_IF_ERROR(NoteProgress(end - begin));
    begin = end;
  }
  return Status::Ok();
}

Result<double> Benchmark::SecondsOfPrefill(Pass& pass) {
  const Clock::time_point begin = Clock::now();
  KVRUN_RETURN_IF_ERROR(Prefill(*pass.forward, 0, options_.n_prompt));
  return SecondsSince(begin);
}

// Each run begins as a session does, adapters and all.
Status Benchmark::MeasurePrefill(uint32_t depth, BenchmarkResult* result) {
  if (options_.n_prompt == 0) return Status::Ok();
  for (uint32_t run = 0; run < options_.n_repetitions + (is_warm_ ? 0U : 1U); ++run) {
    const bool counts = is_warm_ || run > 0;
    std::optional<Pass> pass;
    KVRUN_ASSIGN_OR_RETURN(pass, MakePass(depth));
    AddNotes(*pass, result);
    KVRUN_ASSIGN_OR_RETURN(const double all_s, SecondsOfPrefill(*pass));
    result->prompt_operations = device_.TakeOperationTimes();
    TellPromptWork(pass->plan, result);
    result->memory = device_.MemoryInUse();
    if (!counts) continue;
    result->prefill_tps.push_back(options_.n_prompt / all_s);
    if (half_ == nullptr) continue;
    const KvPlan plan = pass->plan;
    pass.reset();
    KVRUN_ASSIGN_OR_RETURN(Pass half, MakeHalf(plan));
    KVRUN_ASSIGN_OR_RETURN(const double half_s, SecondsOfPrefill(half));
    device_.TakeOperationTimes();
    result->whole->prefill_tps.push_back(options_.n_prompt / SecondsOfWhole(half_s, all_s));
  }
  is_warm_ = true;
  return Status::Ok();
}

Status Benchmark::Fill(Pass& pass, uint32_t depth) {
  if (!options_.fill_random) {
    for (uint32_t i = 0; i < options_.n_sequences && depth > 0; ++i) {
      KVRUN_RETURN_IF_ERROR(Prefill(*pass.forward, i, depth));
    }
    return Status::Ok();
  }
  if (pass.resident != nullptr) {
    std::vector<Buffer*> layers;
    for (uint32_t i = 0; i < pass.n_kv_layers; ++i) layers.push_back(pass.resident->kv(i));
    return FillRandomly(device_, pass.resident->kv_shape(), layers, depth);
  }
  RecordCache& cache = *pass.forward->record_cache();
  for (uint32_t i = 0; i < options_.n_sequences; ++i) {
    KVRUN_RETURN_IF_ERROR(FillRandomly(cache.prompts(), pass.n_kv_layers, i, depth));
  }
  cache.reports().ReplaySelection(options_.hit_rate);
  return Status::Ok();
}

Status Benchmark::DecodeStep(ForwardPass& pass, uint32_t position) {
  step_.Clear();
  outputs_.clear();
  for (uint32_t i = 0; i < options_.n_sequences; ++i) {
    step_.Add(SpanKind::kDecode, {RandomId(), position, i});
    outputs_.push_back(i);
  }
  logits_.resize(size_t{options_.n_sequences} * pass.n_vocab());
  KVRUN_RETURN_IF_ERROR(pass.Run(step_, outputs_, logits_));
  return NoteProgress(options_.n_sequences);
}

Result<double> Benchmark::SecondsOfDecode(Pass& pass, uint32_t depth, bool logs_reads) {
  ForwardPass& forward = *pass.forward;
  // Forgets what the run before has added, and warms up: pipelines, and groups that stay in memory.
  KVRUN_RETURN_IF_ERROR(DecodeStep(forward, std::max(depth, 1U) - 1));
  forward.ResetKvReport();
  if (logs_reads) forward.record_cache()->reports().BeginReadLog();
  device_.TakeOperationTimes();
  const Clock::time_point begin = Clock::now();
  for (uint32_t i = 0; i < options_.n_decode; ++i) KVRUN_RETURN_IF_ERROR(DecodeStep(forward, depth + i));
  return SecondsSince(begin);
}

// Halves take turns with all layers: other programs slow both alike.
Status Benchmark::MeasureDecode(uint32_t depth, BenchmarkResult* result) {
  if (options_.n_decode == 0) return Status::Ok();
  KVRUN_ASSIGN_OR_RETURN(Pass pass, MakePass(depth));
  AddNotes(pass, result);
  KVRUN_RETURN_IF_ERROR(Fill(pass, depth));
  std::optional<Pass> half;
  const uint64_t n_tokens = uint64_t{options_.n_decode} * options_.n_sequences;
  for (uint32_t run = 0; run < options_.n_repetitions; ++run) {
    const bool logs_reads = options_.io_only && run + 1 == options_.n_repetitions;
    KVRUN_ASSIGN_OR_RETURN(const double all_s, SecondsOfDecode(pass, depth, logs_reads));
    result->decode_tps.push_back(static_cast<double>(n_tokens) / all_s);
    result->operations_of_runs.push_back(device_.TakeOperationTimes());
    if (run == 0) result->memory = device_.MemoryInUse();
    if (half_ == nullptr) continue;
    if (!half) {
      KVRUN_ASSIGN_OR_RETURN(half, MakeHalf(pass.plan));
      KVRUN_RETURN_IF_ERROR(Fill(*half, depth));
    }
    KVRUN_ASSIGN_OR_RETURN(const double half_s, SecondsOfDecode(*half, depth, false));
    device_.TakeOperationTimes();
    result->whole->decode_tps.push_back(static_cast<double>(n_tokens) / SecondsOfWhole(half_s, all_s));
  }
  half.reset();
  result->decode_tokens = n_tokens;
  result->operations = result->operations_of_runs.back();
  result->report = pass.forward->kv_report();
  if (options_.io_only) {
    KVRUN_ASSIGN_OR_RETURN(result->io, pass.forward->record_cache()->reports().RepeatReads());
  }
  TellStepWork(pass.plan, result);
  return Status::Ok();
}

void Benchmark::TellPromptWork(const KvPlan& plan, BenchmarkResult* result) const {
  const std::vector<uint64_t> bytes =
      BytesOfPrompt(model_.config, *weights_, options_.n_prompt, kChunkRows, ElementBytesOf(plan));
  result->prompt_work = TimesByKind(result->prompt_operations, 1, bytes);
}

void Benchmark::TellStepWork(const KvPlan& plan, BenchmarkResult* result) const {
  if (result->operations.empty()) return;
  const std::vector<uint64_t> bytes = BytesOfStep(model_.config, *weights_,
                                                  {.n_sequences = options_.n_sequences,
                                                   .depth = result->depth + options_.n_decode / 2,
                                                   .kv_element_bytes = ElementBytesOf(plan),
                                                   .report = result->report ? &*result->report : nullptr});
  result->step_work = TimesByKind(result->operations, options_.n_decode, bytes);
}

Result<double> Benchmark::MeasureStream() {
  constexpr uint32_t kGroups = 1024;
  constexpr uint64_t kStepBytes = uint64_t{kGroups} * 64 * 16;
  constexpr uint32_t kStepsAtOnce = 8;  // of the kernel
  constexpr int kRuns = 9;
  const uint64_t step_bytes = weights_->StepBytes(model_.config.experts);
  const uint64_t limit = std::min(kMaxStreamBytes, device_.info().max_buffer_bytes);
  const uint64_t n_steps =
      std::clamp(step_bytes, kStepBytes * kStepsAtOnce, limit) / kStepBytes / kStepsAtOnce * kStepsAtOnce;
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<Buffer> stream,
                         device_.CreateBuffer(n_steps * kStepBytes, BufferUse::kDevice, "benchmark"));
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<CommandList> list, device_.CreateCommandList());
  KVRUN_RETURN_IF_ERROR(list->ReadRate(kGroups, static_cast<uint32_t>(n_steps), stream.get()));
  KVRUN_RETURN_IF_ERROR(list->Finish());
  double least_s = std::numeric_limits<double>::infinity();
  for (int run = 0; run < kRuns; ++run) {
    const Clock::time_point begin = Clock::now();
    KVRUN_RETURN_IF_ERROR(device_.Execute(*list));
    least_s = std::min(least_s, SecondsSince(begin));
  }
  device_.TakeOperationTimes();
  return static_cast<double>(n_steps * kStepBytes) / least_s;
}

WeightReads Benchmark::WeightReadsOf(std::vector<double> decode_tps, double stream_per_s) const {
  const uint64_t step_bytes = weights_->StepBytes(model_.config.experts);
  const auto middle = decode_tps.begin() + static_cast<ptrdiff_t>(decode_tps.size() / 2);
  std::nth_element(decode_tps.begin(), middle, decode_tps.end());
  return WeightReads{.step_bytes = step_bytes,
                     .bytes_per_s = static_cast<double>(step_bytes) * *middle / options_.n_sequences,
                     .stream_per_s = stream_per_s};
}

Result<BenchmarkResult> Benchmark::Run(uint32_t depth) {
  BenchmarkResult result;
  result.depth = depth;
  result.n_layers = model_.config.n_layers;
  if (half_ != nullptr) result.whole = WholeModelRates{model_.n_layers_whole, {}, {}};
  KVRUN_RETURN_IF_ERROR(MeasurePrefill(depth, &result));
  KVRUN_RETURN_IF_ERROR(MeasureDecode(depth, &result));
  const bool tells_weights = options_.weight_reads && !result.decode_tps.empty();
  if (!tells_weights && result.operations.empty() && result.prompt_operations.empty()) return result;
  KVRUN_ASSIGN_OR_RETURN(result.stream_per_s, MeasureStream());
  if (tells_weights) result.weights = WeightReadsOf(result.decode_tps, result.stream_per_s);
  return result;
}

}  // namespace

// A layer takes some time, and no more than its part of all that was timed.
double TimeOfWhole(double few, uint32_t n_few, double many, uint32_t n_many, uint32_t n_whole) {
  const double layer = std::clamp((many - few) / (n_many - n_few), 0.0, many / n_many);
  return many + layer * (n_whole - n_many);
}

Result<std::vector<BenchmarkResult>> RunBenchmark(const Model& model,
                                                  std::shared_ptr<const DeviceWeights> weights,
                                                  Device& device, std::mutex* device_mutex,
                                                  const BenchmarkOptions& options, const Progress& progress) {
  KVRUN_RETURN_IF_ERROR(CheckOptions(options));
  const std::lock_guard lock(*device_mutex);
  Benchmark benchmark(model, std::move(weights), device, options, progress);
  std::vector<BenchmarkResult> results;
  for (const uint32_t depth : options.depths) {
    Result<BenchmarkResult> result = benchmark.Run(depth);
    if (!result.ok() && result.status().code() == StatusCode::kCancelled) return result.status();
    if (!result.ok()) return result.status().WithContext(fmt::format("at a depth of {} tokens", depth));
    results.push_back(std::move(result).value());
  }
  return results;
}

}  // namespace kvrun
