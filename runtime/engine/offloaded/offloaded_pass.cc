#include "runtime/engine/offloaded/offloaded_pass.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "platform/base/check.h"
#include "runtime/device/entry_space.h"
#include "runtime/engine/offloaded/offloaded_prefill.h"
#include "runtime/engine/pass/recent_tokens.h"
#include "runtime/engine/pass/step_commands.h"
#include "runtime/engine/pass/step_parts.h"
#include "runtime/kv/math/selection_pace.h"
#include "runtime/kv/serve/kv_thread.h"
#include "runtime/kv/serve/record_cache.h"
#include "shaders/shared/sample_params.h"

namespace kvrun {
namespace {

// A decode step of so many rows and outputs, in the order of submission: list i ends with the prediction of
// layer i. First those of which there is nothing to compute yet, then each layer with the prediction of a
// later one (KvMethod::lookahead).
struct DecodeLists {
  uint32_t n_rows = 0;
  uint32_t n_outputs = 0;
  bool is_probed = false;
  bool takes_inputs = false;
  std::vector<std::unique_ptr<CommandList>> lists;
};
constexpr size_t kMaxRecordedSteps = 4;

class OffloadedForwardPass : public ForwardPass {
 public:
  OffloadedForwardPass(Device& device, StepCommands commands, std::unique_ptr<RecordCache> cache,
                       std::unique_ptr<SpillFile> spill, std::shared_ptr<StepProbe> probe)
      : device_(device),
        commands_(std::move(commands)),
        cache_(std::move(cache)),
        spill_(std::move(spill)),
        probe_(std::move(probe)),
        parts_(commands_.config().n_vocab) {}

  Status Init();
  Status Import(ResidentForwardPass& from, uint32_t n_entries) {
    return ImportPrompt(device_, commands_, *cache_, 0, n_entries, from);
  }

  uint32_t max_rows() const override { return cache_->plan().n_ctx; }
  uint32_t max_output_rows() const override { return kMaxOutputRows; }
  uint32_t n_vocab() const override { return commands_.config().n_vocab; }
  Status Run(const ForwardStep& step, std::span<const uint32_t> outputs, std::span<float> logits) override;
  Status MoreLogits(std::span<const uint32_t> outputs, std::span<float> logits) override;
  void SetProgress(StepProgress progress) override { progress_ = std::move(progress); }
  std::optional<KvReport> kv_report() const override;
  void ResetKvReport() override;
  RecordCache* record_cache() override { return cache_.get(); }

 private:
  Status RunPart(const StepPart& part, std::span<const uint32_t> outputs, std::span<float> logits);
  Status RunPrompt(std::span<const StepRow> rows, const StepProgress& progress);
  Status CatchUp(std::span<const StepRow> rows);
  Status ChooseStaticsAgain(std::span<const StepRow> rows);
  Status ComputeAgain(uint32_t sequence, uint32_t begin);
  Status RunRowByRow(std::span<const StepRow> rows, std::span<const uint32_t> outputs);
  Status LoadRows(std::span<const uint32_t> outputs);
  Status LoadChunkOf(std::span<const uint32_t> outputs, std::vector<uint32_t>* rows);
  Status RunDecode(std::span<const StepRow> rows, std::span<const uint32_t> outputs, std::span<float> logits);
  Status BeginDecode();
  Status Learn();
  Result<DecodeLists*> ListsFor(uint32_t n_rows, uint32_t n_outputs);
  Status RecordFirst(CommandList& list, uint32_t layer, uint32_t n_rows);
  Status RecordLayer(CommandList& list, uint32_t layer, uint32_t n_rows, uint32_t n_outputs);
  Status RecordNorms(CommandList& list, uint32_t layer, uint32_t n_rows);
  Status RecordPrediction(CommandList& list, uint32_t layer, uint32_t n_rows, const Buffer* normed);
  ScoreArgs Score(uint32_t layer, uint32_t n_rows) const;
  SlotAttentionArgs SlotAttention(uint32_t layer, uint32_t n_rows) const;
  Status WriteRowsToScore();
  Result<uint64_t> SubmitStep(const DecodeLists& step);
  void WriteInputs();
  Status GiveNorms();
  Status ReadProbe(uint32_t position);
  void NoteTokens(std::span<const StepRow> rows);

  // Prefill and decoding have few kernels in common: under a budget they are not both kept.
  Status DropKernels() {
    return cache_->plan().budget_bytes != UINT64_MAX ? device_.DropUnusedKernels() : Status::Ok();
  }
  // The device chooses, by the scores of an index.
  bool scores() const { return cache_->index() != nullptr; }
  uint32_t lookahead() const { return cache_->plan().method.lookahead; }
  bool is_probed() const { return probe_ != nullptr && probe_->wanted; }
  bool takes_inputs() const { return is_probed() && !probe_->inputs.empty(); }
  uint32_t n_layers() const { return commands_.config().n_layers; }

  Device& device_;
  StepCommands commands_;
  std::unique_ptr<RecordCache> cache_;
  std::unique_ptr<SpillFile> spill_;  // null: prompts need none
  std::optional<KvThread> thread_;
  std::unique_ptr<OffloadedPrefill> prefill_;  // of the last prompt, until the next step
  std::unique_ptr<Buffer> later_normed_;       // float [n_sequences, n_embd], of a prediction ahead
  std::unique_ptr<Buffer> query_;              // float [n_sequences, q_dim]
  std::unique_ptr<Buffer> score_scratch_;
  std::unique_ptr<Buffer> attend_scratch_;
  std::shared_ptr<StepProbe> probe_;              // may be null
  std::vector<std::unique_ptr<Buffer>> queries_;  // of each layer, where probed: kReadback, float [qkv_dim]
  std::vector<std::unique_ptr<Buffer>> inputs_;   // of each layer, where probed: kUpload, float [n_embd]
  std::vector<DecodeLists> steps_;
  StepParts parts_;
  KvStep kv_step_;
  uint32_t last_rows_ = 0;
  uint32_t first_kept_row_ = 0;
  std::vector<float>
      row_hidden_;  // [rows from that one on, n_embd], of a prompt that was computed row by row
  std::vector<RecentTokens> recent_;  // of each sequence, where the static set is chosen while decoding
  std::optional<StaticReport> static_report_;
  std::optional<SelectionPace> pace_;  // where how much is selected follows the reads
  StepProgress progress_;
  GroupStoreStats store_before_;  // when the report began
};

GroupStoreStats Since(const GroupStoreStats& before, const GroupStoreStats& now) {
  return {.reads = now.reads - before.reads,
          .read_bytes = now.read_bytes - before.read_bytes,
          .records_read = now.records_read - before.records_read,
          .records_read_again = now.records_read_again - before.records_read_again,
          .writes = now.writes - before.writes,
          .written_bytes = now.written_bytes - before.written_bytes,
          .read_wait_ms = now.read_wait_ms - before.read_wait_ms};
}

std::optional<KvReport> OffloadedForwardPass::kv_report() const {
  KvReport report{.plan = cache_->plan(), .stats = cache_->stats(), .store = {}, .io = std::nullopt};
  if (cache_->is_on_flash()) {
    report.store = Since(store_before_, cache_->store_stats());
    report.io = *cache_->store_mode();
  }
  report.clusters = cache_->clusters();
  report.kept = cache_->kept();
  report.statics = static_report_;
  if (report.statics) report.statics->repaged_bytes = cache_->repaged_bytes();
  return report;
}

void OffloadedForwardPass::ResetKvReport() {
  if (static_report_) static_report_.emplace();
  cache_->ResetStats();
  store_before_ = cache_->store_stats();
}

Status OffloadedForwardPass::Init() {
  const KvPlan& plan = cache_->plan();
  kv_step_.spans.reserve(plan.n_sequences);
  if (plan.has_statics()) static_report_.emplace();
  if (plan.n_usual > 0) pace_.emplace(plan.n_least(), plan.n_usual, plan.n_chosen, plan.hide);
  if (plan.has_statics() && plan.statics.steps > 0) recent_.resize(plan.n_sequences);
  for (RecentTokens& recent : recent_) recent.ids.reserve(plan.statics.observed_rows + 1);
  if (cache_->is_on_flash()) thread_.emplace(device_, *cache_, n_layers());
  if (cache_->spaces().are_used()) KVRUN_RETURN_IF_ERROR(GiveNorms());
  for (uint32_t i = 0; probe_ != nullptr && i < n_layers(); ++i) {
    KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<Buffer> queries,
                           device_.CreateBuffer(uint64_t{commands_.qkv_dim()} * sizeof(float),
                                                BufferUse::kReadback, "activations"));
    queries_.push_back(std::move(queries));
    KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<Buffer> input,
                           device_.CreateBuffer(uint64_t{commands_.config().n_embd} * sizeof(float),
                                                BufferUse::kUpload, "activations"));
    inputs_.push_back(std::move(input));
  }
  if (!scores()) return Status::Ok();
  KVRUN_CHECK(lookahead() <= 1);  // one later layer's norm is kept
  KVRUN_ASSIGN_OR_RETURN(later_normed_, device_.CreateBuffer(uint64_t{plan.n_sequences} *
                                                                 commands_.config().n_embd * sizeof(float),
                                                             BufferUse::kDevice, "activations"));
  KVRUN_ASSIGN_OR_RETURN(
      query_, device_.CreateBuffer(uint64_t{plan.n_sequences} * commands_.config().q_dim() * sizeof(float),
                                   BufferUse::kDevice, "activations"));
  uint64_t scratch_bytes = 0;  // fewer rows may be divided into more parts
  for (uint32_t n = 1; n <= plan.n_sequences; ++n) {
    ScoreArgs most = Score(0, n);
    most.n_chosen =
        std::max(plan.most_chosen(), plan.statics.n_total);  // where prompts say the static set's share
    scratch_bytes = std::max(scratch_bytes, cache_->index()->ScoreScratchBytes(device_, most));
  }
  KVRUN_ASSIGN_OR_RETURN(score_scratch_, device_.CreateBuffer(scratch_bytes, BufferUse::kDevice, "kv"));
  return Status::Ok();
}

// One buffer has a layer's norms and the means of its space.
Status OffloadedForwardPass::GiveNorms() {
  std::vector<float> norms(size_t{2} * commands_.config().head_dim);
  for (uint32_t layer = 0; layer < n_layers(); ++layer) {
    const Buffer* const of_layer = commands_.Attention(layer, 1, /*of_prompt=*/false).norms;
    if (of_layer == nullptr) continue;
    KVRUN_RETURN_IF_ERROR(device_.Download(*of_layer, std::as_writable_bytes(std::span(norms))));
    KVRUN_RETURN_IF_ERROR(cache_->spaces().SetNorms(layer, norms));
  }
  return Status::Ok();
}

ScoreArgs OffloadedForwardPass::Score(uint32_t layer, uint32_t n_rows) const {
  const KvPlan& plan = cache_->plan();
  ScoreArgs args{.query = query_.get(),
                 .attention = commands_.Attention(layer, n_rows, /*of_prompt=*/false),
                 .sides = {},
                 .index_shape = {},
                 .reduction = plan.heads,
                 .window_tokens = plan.window_entries,
                 .n_pinned = plan.n_pinned,
                 .n_chosen = plan.chosen_of(layer),
                 .group_score = plan.group_score,
                 .mass_share = plan.mass_share,
                 .n_sampled = plan.n_sampled,
                 .sample_seed = MixBits(plan.sample_seed) + layer,
                 .n_candidates = plan.candidates.n_groups,
                 .first_columns = plan.candidates.first_columns,
                 .tells_scores = plan.limits_reads(),
                 .scratch = score_scratch_.get(),
                 .chosen = cache_->selector()->chosen(layer)};
  cache_->index()->FillScore(layer, &args);
  return args;
}

SlotAttentionArgs OffloadedForwardPass::SlotAttention(uint32_t layer, uint32_t n_rows) const {
  SlotAttentionArgs args{.attention = commands_.Attention(layer, n_rows, /*of_prompt=*/false)};
  cache_->AddSources(layer, &args);
  args.attention.kv_shape.n_sequences = cache_->plan().n_sequences;
  args.attention.scratch = attend_scratch_.get();
  return args;
}

// Of hidden states as they are now: what begins a layer, and the prediction of a later one.
Status OffloadedForwardPass::RecordNorms(CommandList& list, uint32_t layer, uint32_t n_rows) {
  const uint32_t later = layer + lookahead();
  if (!scores() || later == layer || later >= n_layers()) return commands_.AttentionNorm(list, layer, n_rows);
  return commands_.AttentionNorms(list, layer, later, n_rows, later_normed_.get());
}

Status OffloadedForwardPass::RecordPrediction(CommandList& list, uint32_t layer, uint32_t n_rows,
                                              const Buffer* normed) {
  if (!scores() || layer >= n_layers()) return Status::Ok();
  KVRUN_RETURN_IF_ERROR(commands_.Query(list, layer, n_rows, *normed, query_.get()));
  KVRUN_RETURN_IF_ERROR(list.ScoreAndSelect(Score(layer, n_rows)));
  return cache_->index()->RecordSearch(list, layer, n_rows, score_scratch_.get());
}

Status OffloadedForwardPass::RecordFirst(CommandList& list, uint32_t layer, uint32_t n_rows) {
  if (layer > 0) return RecordPrediction(list, layer, n_rows, later_normed_.get());
  KVRUN_RETURN_IF_ERROR(commands_.Embed(list, n_rows));
  KVRUN_RETURN_IF_ERROR(RecordNorms(list, 0, n_rows));
  return RecordPrediction(list, 0, n_rows, commands_.normed());
}

Status OffloadedForwardPass::RecordLayer(CommandList& list, uint32_t layer, uint32_t n_rows,
                                         uint32_t n_outputs) {
  const SlotAttentionArgs attention = SlotAttention(layer, n_rows);
  const ModelConfig& config = commands_.config();
  KVRUN_RETURN_IF_ERROR(commands_.Qkv(list, layer, n_rows));
  KVRUN_RETURN_IF_ERROR(list.AwaitHost());
  KVRUN_RETURN_IF_ERROR(list.RopeAndEncode(attention));
  if (is_probed()) {
    KVRUN_RETURN_IF_ERROR(
        list.GatherRows(*commands_.qkv(), *commands_.step(), 1, commands_.qkv_dim(), queries_[layer].get()));
  }
  KVRUN_RETURN_IF_ERROR(list.AttendSlots(attention));
  KVRUN_RETURN_IF_ERROR(commands_.AfterAttention(list, layer, n_rows));
  if (takes_inputs() && layer + 1 < n_layers()) {
    KVRUN_RETURN_IF_ERROR(
        list.GatherRows(*inputs_[layer + 1], *commands_.step(), 1, config.n_embd, commands_.hidden()));
  }
  if (layer + 1 == n_layers()) return n_outputs > 0 ? commands_.Head(list, n_outputs) : Status::Ok();
  KVRUN_RETURN_IF_ERROR(RecordNorms(list, layer + 1, n_rows));
  return RecordPrediction(list, layer + 1 + lookahead(), n_rows,
                          lookahead() == 0 ? commands_.normed() : later_normed_.get());
}

Result<DecodeLists*> OffloadedForwardPass::ListsFor(uint32_t n_rows, uint32_t n_outputs) {
  for (DecodeLists& step : steps_) {
    if (step.n_rows == n_rows && step.n_outputs == n_outputs && step.is_probed == is_probed() &&
        step.takes_inputs == takes_inputs()) {
      return &step;
    }
  }
  DecodeLists step{n_rows, n_outputs, is_probed(), takes_inputs(), {}};
  const uint32_t n_first = 1 + lookahead();
  for (uint32_t i = 0; i < n_first + n_layers(); ++i) {
    KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<CommandList> list, device_.CreateCommandList());
    KVRUN_RETURN_IF_ERROR(i < n_first ? RecordFirst(*list, i, n_rows)
                                      : RecordLayer(*list, i - n_first, n_rows, n_outputs));
    KVRUN_RETURN_IF_ERROR(list->Finish());
    step.lists.push_back(std::move(list));
  }
  if (steps_.size() >= kMaxRecordedSteps) steps_.erase(steps_.begin());
  steps_.push_back(std::move(step));
  return &steps_.back();
}

Status OffloadedForwardPass::BeginDecode() {
  prefill_.reset();
  KVRUN_RETURN_IF_ERROR(commands_.MakeGivenUp(device_));  // a prompt that failed has not
  if (cache_->in_decode() && attend_scratch_ != nullptr) return Status::Ok();
  steps_.clear();  // recorded with buffers that are gone
  attend_scratch_.reset();
  KVRUN_RETURN_IF_ERROR(DropKernels());
  KVRUN_RETURN_IF_ERROR(cache_->BeginDecode());
  uint64_t scratch_bytes = 0;
  // Layers differ where slots, or what is kept, are shared out among them.
  const bool layers_differ = cache_->plan().method.evicts() || !cache_->plan().layer_extra.empty();
  for (uint32_t layer = 0; layer < (layers_differ ? n_layers() : 1); ++layer) {
    for (uint32_t n = 1; n <= cache_->plan().n_sequences; ++n) {
      scratch_bytes = std::max(scratch_bytes, device_.AttendSlotsScratchBytes(SlotAttention(layer, n)));
    }
  }
  KVRUN_ASSIGN_OR_RETURN(attend_scratch_,
                         device_.CreateBuffer(scratch_bytes, BufferUse::kDevice, "activations"));
  if (!scores() || cache_->index()->is_ready()) return Status::Ok();
  for (uint32_t i = 0; i < n_layers(); ++i) KVRUN_RETURN_IF_ERROR(cache_->index()->PrepareBlank(i));
  return Status::Ok();
}

// From the longest of the step's sequences.
Status OffloadedForwardPass::Learn() {
  steps_.clear();  // recorded with adapters that will be gone
  const std::span<const KvSpan> spans = kv_step_.spans;
  const auto longest = std::max_element(spans.begin(), spans.end(), [](const KvSpan& a, const KvSpan& b) {
    return a.first_position < b.first_position;
  });
  KVRUN_RETURN_IF_ERROR(cache_->LearnFromStored(longest->sequence));
  return BeginDecode();
}

// Submits all of it ahead; the KV thread serves the layers while the device computes.
Result<uint64_t> OffloadedForwardPass::SubmitStep(const DecodeLists& step) {
  uint64_t first_ready = 0;
  if (thread_) {
    first_ready = device_.ReserveHostValues(n_layers());
    thread_->Begin(first_ready);
  } else {
    KVRUN_RETURN_IF_ERROR(cache_->WriteCompletedGroups());
    for (uint32_t i = 0; i < n_layers(); ++i) KVRUN_RETURN_IF_ERROR(cache_->FetchLayer(i));
  }
  uint64_t value = 0;
  for (uint32_t i = 0; i < step.lists.size(); ++i) {
    const uint64_t wait = thread_ && i > lookahead() ? first_ready + i - 1 - lookahead() : 0;
    Result<uint64_t> submitted = device_.Submit(*step.lists[i], wait);
    if (!submitted.ok()) {
      if (thread_) thread_->Abandon();
      return submitted;
    }
    value = *submitted;
    if (thread_) thread_->Post(i, value);
  }
  return value;
}

// Rows must be there before the device scores them. An index of keys has no use for those of the window;
// others are there already, unless a step has failed or the window is short.
Status OffloadedForwardPass::WriteRowsToScore() {
  if (!scores()) return Status::Ok();
  if (cache_->index()->takes_records()) return cache_->WriteCompletedGroups();
  return cache_->index()->takes_keys() ? cache_->WriteLeavingGroups() : Status::Ok();
}

Status OffloadedForwardPass::RunDecode(std::span<const StepRow> rows, std::span<const uint32_t> outputs,
                                       std::span<float> logits) {
  KVRUN_RETURN_IF_ERROR(BeginDecode());
  kv_step_.spans.clear();
  for (const StepRow& row : rows) kv_step_.spans.push_back({row.sequence, row.position});
  KVRUN_RETURN_IF_ERROR(cache_->BeginStep(kv_step_));
  if (cache_->NeedsLearning()) KVRUN_RETURN_IF_ERROR(Learn());
  KVRUN_RETURN_IF_ERROR(WriteRowsToScore());
  commands_.WriteRows(rows);
  commands_.WriteOutputs(outputs);
  if (pace_) commands_.WriteMostChosen(pace_->count());
  if (scores())
    KVRUN_RETURN_IF_ERROR(cache_->index()->WriteInputs({kv_step_, commands_.angles(rows.size())}));
  if (takes_inputs()) WriteInputs();
  if (is_probed()) cache_->NoteAttended();
  KVRUN_ASSIGN_OR_RETURN(DecodeLists * step,
                         ListsFor(static_cast<uint32_t>(rows.size()), static_cast<uint32_t>(outputs.size())));
  const double io_before_ms = cache_->stats().io_ms;
  const double stall_before_ms = cache_->stats().stall_ms;
  const Result<uint64_t> value = SubmitStep(*step);
  // One after the other: where two threads wait for a timeline, Debian 12's validation layer loses track of
  // it.
  const Status served = thread_ ? thread_->End() : Status::Ok();
  const Status waited = value.ok() ? device_.Wait(*value) : value.status();
  KVRUN_RETURN_IF_ERROR(served);
  KVRUN_RETURN_IF_ERROR(waited);
  if (is_probed()) KVRUN_RETURN_IF_ERROR(ReadProbe(rows[0].position));
  cache_->EndStep();
  if (pace_) pace_->Note(cache_->stats().io_ms - io_before_ms, cache_->stats().stall_ms - stall_before_ms);
  std::copy_n(commands_.logits().begin(), logits.size(), logits.begin());
  return Status::Ok();
}

void OffloadedForwardPass::WriteInputs() {
  const size_t n_embd = commands_.config().n_embd;
  KVRUN_CHECK(probe_->inputs.size() == n_layers() * n_embd);
  for (size_t i = 0; i < n_layers(); ++i) {
    std::memcpy(inputs_[i]->host().data(), &probe_->inputs[i * n_embd], n_embd * sizeof(float));
  }
}

Status OffloadedForwardPass::ReadProbe(uint32_t position) {
  probe_->position = position;
  probe_->queries.resize(n_layers());
  probe_->chosen.resize(n_layers());
  for (uint32_t i = 0; i < n_layers(); ++i) {
    KVRUN_RETURN_IF_ERROR(queries_[i]->Invalidate(0, queries_[i]->size_bytes()));
    const auto* query = reinterpret_cast<const float*>(queries_[i]->host().data());
    std::vector<float>& queries = probe_->queries[i];
    queries.assign(query, query + commands_.config().q_dim());
    const uint32_t head_dim = commands_.config().head_dim;
    for (size_t at = 0; cache_->spaces().are_used() && at < queries.size(); at += head_dim) {
      RotateRowBack(std::span(queries).subspan(at, head_dim));
    }
    probe_->chosen[i] = cache_->GroupsBeforeWindow(i, 0, position);
  }
  return Status::Ok();
}

Status OffloadedForwardPass::RunPrompt(std::span<const StepRow> rows, const StepProgress& progress) {
  prefill_.reset();
  steps_.clear();
  KVRUN_RETURN_IF_ERROR(commands_.MakeGivenUp(device_));
  KVRUN_RETURN_IF_ERROR(DropKernels());
  KVRUN_RETURN_IF_ERROR(cache_->BeginPrefill(rows[0].sequence, rows[0].position));
  KVRUN_ASSIGN_OR_RETURN(prefill_, OffloadedPrefill::Create(device_, commands_, *cache_, spill_.get()));
  return prefill_->Run(rows, progress);
}

// The sequence's last tokens from `begin` on, as a prompt: their rows say what is in the static set.
Status OffloadedForwardPass::ComputeAgain(uint32_t sequence, uint32_t begin) {
  const RecentTokens& recent = recent_[sequence];
  std::vector<StepRow> rows;
  for (uint32_t position = begin; position < recent.end; ++position) {
    rows.push_back({recent.At(position), position, sequence});
  }
  KVRUN_RETURN_IF_ERROR(RunPrompt(rows, {}));
  recent_[sequence].chosen_at = recent.end;
  return Status::Ok();
}

// What ChooseStaticsAgain has forgotten and then could not compute.
Status OffloadedForwardPass::CatchUp(std::span<const StepRow> rows) {
  for (const StepRow& row : rows) {
    if (recent_.empty() || cache_->length(row.sequence) >= row.position) continue;
    const RecentTokens& recent = recent_[row.sequence];
    const uint32_t length = cache_->length(row.sequence);
    if (row.position > recent.end || length < recent.begin()) continue;
    KVRUN_RETURN_IF_ERROR(ComputeAgain(row.sequence, length));
  }
  return Status::Ok();
}

// Source: PRKV, algorithm 1; the window's queries are made anew, as nothing keeps them.
Status OffloadedForwardPass::ChooseStaticsAgain(std::span<const StepRow> rows) {
  const KvPlan& plan = cache_->plan();
  if (recent_.empty() || plan.n_chosen >= plan.n_groups()) return Status::Ok();
  // Few rows are no prompt to learn from.
  if (scores() && !cache_->index()->is_ready()) return Status::Ok();
  const auto begin = std::chrono::steady_clock::now();
  bool is_chosen = false;
  for (const StepRow& row : rows) {
    RecentTokens& recent = recent_[row.sequence];
    recent.chosen_at = std::min(recent.chosen_at, row.position);
    if (row.position - recent.chosen_at < plan.statics.steps || recent.end != row.position) continue;
    const auto n = std::min<uint32_t>(static_cast<uint32_t>(recent.ids.size()), plan.statics.observed_rows);
    if (n < 2) continue;
    KVRUN_RETURN_IF_ERROR(ComputeAgain(row.sequence, row.position - n));
    ++static_report_->n_chosen_again;
    is_chosen = true;
  }
  if (!is_chosen) return Status::Ok();
  KVRUN_RETURN_IF_ERROR(BeginDecode());  // which reads the set, and may lay pages
  static_report_->milliseconds +=
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  return Status::Ok();
}

Status OffloadedForwardPass::Run(const ForwardStep& step, std::span<const uint32_t> outputs,
                                 std::span<float> logits) {
  const KvPlan& plan = cache_->plan();
  KVRUN_RETURN_IF_ERROR(commands_.CheckStep(step, max_rows(), plan.n_ctx, plan.n_sequences));
  KVRUN_CHECK(outputs.size() <= kMaxOutputRows && logits.size() == outputs.size() * n_vocab());
  return parts_.Run(
      step, outputs, logits,
      [this](const StepPart& part, std::span<const uint32_t> part_outputs, std::span<float> part_logits) {
        return RunPart(part, part_outputs, part_logits);
      });
}

// A row of a prompt alone is computed as a token that was generated: tiles would cost more.
Status OffloadedForwardPass::RunPart(const StepPart& part, std::span<const uint32_t> outputs,
                                     std::span<float> logits) {
  const std::span<const StepRow> rows = part.rows;
  last_rows_ = static_cast<uint32_t>(rows.size());
  row_hidden_.clear();
  const bool is_prompt = part.is_prompt && rows.size() > 1;
  KVRUN_RETURN_IF_ERROR(CatchUp(is_prompt ? rows.first(1) : rows));
  if (!is_prompt) {
    KVRUN_RETURN_IF_ERROR(ChooseStaticsAgain(rows));
    KVRUN_RETURN_IF_ERROR(RunDecode(rows, outputs, logits));
    NoteTokens(rows);
    return Status::Ok();
  }
  // What was evicted leaves gaps that no prompt attends across.
  const bool goes_on = cache_->plan().method.evicts() && rows[0].position > 0;
  KVRUN_RETURN_IF_ERROR(goes_on ? RunRowByRow(rows, outputs) : RunPrompt(rows, progress_));
  NoteTokens(rows);
  if (!recent_.empty()) recent_[rows[0].sequence].chosen_at = rows.back().position + 1;
  return outputs.empty() ? Status::Ok() : MoreLogits(outputs, logits);
}

void OffloadedForwardPass::NoteTokens(std::span<const StepRow> rows) {
  if (recent_.empty()) return;
  for (const StepRow& row : rows) recent_[row.sequence].Add(row, cache_->plan().statics.observed_rows);
}

// Keeps the hidden states of rows from the first on whose logits are wanted: outputs ascend.
Status OffloadedForwardPass::RunRowByRow(std::span<const StepRow> rows, std::span<const uint32_t> outputs) {
  first_kept_row_ = outputs.empty() ? static_cast<uint32_t>(rows.size()) : outputs[0];
  Buffer& hidden = *commands_.hidden();
  const uint64_t n_embd = commands_.config().n_embd;
  for (uint32_t i = 0; i < rows.size(); ++i) {
    if (progress_ && progress_(i, rows.size())) {
      return {StatusCode::kCancelled,
              fmt::format("cancelled after {} of {} tokens of the prompt", i, rows.size())};
    }
    KVRUN_RETURN_IF_ERROR(RunDecode(rows.subspan(i, 1), {}, {}));
    if (i < first_kept_row_) continue;
    KVRUN_RETURN_IF_ERROR(hidden.Invalidate(0, n_embd * sizeof(float)));
    const auto* row = reinterpret_cast<const float*>(hidden.host().data());
    row_hidden_.insert(row_hidden_.end(), row, row + n_embd);
  }
  return Status::Ok();
}

// Rows that RunRowByRow has kept, as if they were the first of a chunk.
Status OffloadedForwardPass::LoadRows(std::span<const uint32_t> outputs) {
  Buffer& hidden = *commands_.hidden();
  const uint64_t row_bytes = uint64_t{commands_.config().n_embd} * sizeof(float);
  for (size_t i = 0; i < outputs.size(); ++i) {
    std::memcpy(hidden.host().data() + i * row_bytes,
                row_hidden_.data() + size_t{outputs[i] - first_kept_row_} * commands_.config().n_embd,
                row_bytes);
  }
  return hidden.Flush(0, outputs.size() * row_bytes);
}

// The chunk that holds the first of the outputs, and which of its rows are wanted.
Status OffloadedForwardPass::LoadChunkOf(std::span<const uint32_t> outputs, std::vector<uint32_t>* rows) {
  PrefillTiles::Rows loaded{0, last_rows_};
  if (prefill_ != nullptr) {
    KVRUN_ASSIGN_OR_RETURN(loaded, prefill_->LoadHidden(outputs[0]));
  }
  for (const uint32_t output : outputs) {
    if (output < loaded.first || output >= loaded.first + loaded.count) break;
    rows->push_back(output - loaded.first);
  }
  return Status::Ok();
}

Status OffloadedForwardPass::MoreLogits(std::span<const uint32_t> outputs, std::span<float> logits) {
  std::vector<uint32_t> rows;
  for (size_t done = 0; done < outputs.size(); done += rows.size()) {
    rows.clear();
    if (!row_hidden_.empty()) {
      KVRUN_RETURN_IF_ERROR(LoadRows(outputs));
      rows.resize(outputs.size());
      std::iota(rows.begin(), rows.end(), 0U);
    } else {
      KVRUN_RETURN_IF_ERROR(LoadChunkOf(outputs.subspan(done), &rows));
    }
    KVRUN_CHECK(!rows.empty());
    KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<CommandList> list, device_.CreateCommandList());
    KVRUN_RETURN_IF_ERROR(commands_.Head(*list, static_cast<uint32_t>(rows.size())));
    KVRUN_RETURN_IF_ERROR(list->Finish());
    commands_.WriteOutputs(rows);
    KVRUN_RETURN_IF_ERROR(device_.Execute(*list));
    std::copy_n(commands_.logits().begin(), rows.size() * n_vocab(), logits.begin() + done * n_vocab());
  }
  return Status::Ok();
}

}  // namespace

Result<std::unique_ptr<ForwardPass>> CreateOffloadedPass(const Model& model,
                                                         std::shared_ptr<const DeviceWeights> weights,
                                                         Device& device, OffloadedPassOptions options) {
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<RecordCache> cache,
                         RecordCache::Create(device, options.plan, model.config.n_layers,
                                             std::move(options.stores), options.adapter.get()));
  KVRUN_ASSIGN_OR_RETURN(StepCommands commands,
                         StepCommands::Create(model.config, std::move(weights), device, BufferUse::kShared));
  std::unique_ptr<SpillFile> spill;
  const uint64_t spill_bytes = PrefillSpill::SizeBytes(options.plan, model.config);
  if (spill_bytes > 0) {
    KVRUN_ASSIGN_OR_RETURN(spill, SpillFile::Create(std::move(options.spill), spill_bytes));
  }
  auto pass = std::make_unique<OffloadedForwardPass>(device, std::move(commands), std::move(cache),
                                                     std::move(spill), std::move(options.probe));
  KVRUN_RETURN_IF_ERROR(pass->Init());
  if (options.import != nullptr) KVRUN_RETURN_IF_ERROR(pass->Import(*options.import, options.n_import));
  return std::unique_ptr<ForwardPass>(std::move(pass));
}

}  // namespace kvrun
