#include "runtime/engine/offloaded/offloaded_pass.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "platform/base/check.h"
#include "runtime/engine/offloaded/offloaded_decode.h"
#include "runtime/engine/offloaded/offloaded_prefill.h"
#include "runtime/engine/offloaded/phase_kernels.h"
#include "runtime/engine/offloaded/prompt_rows.h"
#include "runtime/engine/offloaded/static_refresh.h"
#include "runtime/engine/pass/layer_states.h"
#include "runtime/engine/pass/step_commands.h"
#include "runtime/engine/pass/step_member.h"
#include "runtime/engine/pass/step_parts.h"
#include "runtime/kv/serve/record_cache.h"

namespace kvrun {
namespace {

// A prompt cannot attend to what lies before it as its tiles do: some of that was evicted.
bool LeavesGaps(const KvPlan& plan) { return plan.method.evicts(); }

class OffloadedForwardPass final : public ForwardPass, public StepMember {
 public:
  OffloadedForwardPass(Device& device, StepCommands commands, std::unique_ptr<RecordCache> cache,
                       LayerStates states, std::unique_ptr<SpillFile> spill)
      : device_(device),
        commands_(std::move(commands)),
        cache_(std::move(cache)),
        states_(std::move(states)),
        spill_(std::move(spill)),
        prompt_rows_(commands_),
        refresh_(
            *cache_, states_, commands_.config().n_vocab,
            [this](std::span<const StepRow> rows) { return RunPrompt(rows, {}, /*may_select=*/false); },
            [this] { return BeginDecode(); }),
        parts_(commands_.config().n_vocab) {}

  Status Init(std::shared_ptr<StepProbe> probe);
  Status Import(ResidentForwardPass& from, uint32_t n_entries) {
    KVRUN_ASSIGN_OR_RETURN(LayerStates::Copy states, states_.MakeCopy());
    KVRUN_RETURN_IF_ERROR(from.layer_states()->Save(0, states));
    KVRUN_RETURN_IF_ERROR(states_.Restore(0, states));
    return ImportPrompt(device_, commands_, cache_->prompts(), 0, n_entries, from);
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
  LayerStates* layer_states() override { return &states_; }
  StepMember* step_member() override { return cache_->plan().n_sequences == 1 ? this : nullptr; }
  Status VisitState(StateVisitor& visitor, std::span<const uint32_t> lengths) override;

  Device& device() override { return device_; }
  StepCommands& commands() override { return commands_; }
  LookBack& look_back() override { return decode_->look_back(); }
  StepRecords* records() override { return &cache_->steps(); }
  Status Begin(const StepRow& row) override;
  Status End(const StepRow& row) override;

 private:
  Status GiveNorms();
  Status BeforeDecode(std::span<const StepRow> rows);
  Status SetRows(uint32_t n_rows);
  Status RunPart(const StepPart& part, std::span<const uint32_t> outputs, std::span<float> logits);
  Status RunPrompt(std::span<const StepRow> rows, const StepProgress& progress, bool may_select);
  Status RunRowByRow(std::span<const StepRow> rows, std::span<const uint32_t> outputs,
                     const StepProgress& progress);
  Status BeginDecode();
  Status RunDecode(std::span<const StepRow> rows, std::span<const uint32_t> outputs, std::span<float> logits);
  Status LoadHidden(std::span<const uint32_t> outputs, std::vector<uint32_t>* rows);

  Device& device_;
  StepCommands commands_;
  std::unique_ptr<RecordCache> cache_;
  LayerStates states_;
  std::unique_ptr<SpillFile> spill_;  // null: prompts need none
  std::unique_ptr<OffloadedDecode> decode_;
  std::unique_ptr<OffloadedPrefill> prefill_;  // of the last prompt, until the next step
  PromptRows prompt_rows_;
  StaticRefresh refresh_;
  StepParts parts_;
  LaterPromptsReport later_prompts_;
  uint32_t last_rows_ = 0;
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

Status OffloadedForwardPass::Init(std::shared_ptr<StepProbe> probe) {
  KVRUN_RETURN_IF_ERROR(states_.MakeScratch(commands_));
  if (cache_->spaces().are_used()) KVRUN_RETURN_IF_ERROR(GiveNorms());
  KVRUN_ASSIGN_OR_RETURN(decode_,
                         OffloadedDecode::Create(device_, commands_, *cache_, states_, std::move(probe)));
  return Status::Ok();
}

// One buffer has a layer's norms and the means of its space.
Status OffloadedForwardPass::GiveNorms() {
  std::vector<float> norms(size_t{2} * commands_.config().head_dim);
  for (uint32_t layer = 0; layer < commands_.config().n_kv_layers(); ++layer) {
    const Buffer* const of_layer =
        commands_.Attention(commands_.config().kv_layers[layer], 1, /*of_prompt=*/false).norms;
    if (of_layer == nullptr) continue;
    KVRUN_RETURN_IF_ERROR(device_.Download(*of_layer, std::as_writable_bytes(std::span(norms))));
    KVRUN_RETURN_IF_ERROR(cache_->spaces().SetNorms(layer, norms));
  }
  return Status::Ok();
}

std::optional<KvReport> OffloadedForwardPass::kv_report() const {
  const RecordReports& reports = cache_->reports();
  KvReport report{.plan = cache_->plan(), .stats = reports.stats(), .store = {}, .io = std::nullopt};
  if (cache_->has_store()) {
    report.store = Since(store_before_, reports.store_stats());
    report.io = *reports.store_mode();
  }
  report.clusters = reports.clusters();
  report.kept = reports.kept();
  report.statics = refresh_.report();
  report.later_prompts = later_prompts_;
  return report;
}

void OffloadedForwardPass::ResetKvReport() {
  refresh_.ResetReport();
  later_prompts_ = {};
  cache_->reports().ResetStats();
  store_before_ = cache_->reports().store_stats();
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
  if (!part.is_prompt || rows.size() == 1) {
    if (commands_.n_rows() < rows.size()) KVRUN_RETURN_IF_ERROR(SetRows(kChunkRows));
    KVRUN_RETURN_IF_ERROR(BeforeDecode(rows));
    KVRUN_RETURN_IF_ERROR(RunDecode(rows, outputs, logits));
    return refresh_.Note(rows);
  }
  last_rows_ = static_cast<uint32_t>(rows.size());
  prompt_rows_.Forget();
  KVRUN_RETURN_IF_ERROR(SetRows(kChunkRows));
  KVRUN_RETURN_IF_ERROR(refresh_.CatchUp(rows.first(1)));
  const bool goes_on = LeavesGaps(cache_->plan()) && rows[0].position > 0;
  StepProgress of_part;
  if (progress_ && rows.size() < part.n_of_step) {
    of_part = [this, &part](uint64_t done, uint64_t /*total*/) {
      return progress_(part.n_before + done, part.n_of_step);
    };
  }
  const StepProgress& progress = of_part ? of_part : progress_;
  KVRUN_RETURN_IF_ERROR(goes_on ? RunRowByRow(rows, outputs, progress)
                                : RunPrompt(rows, progress, /*may_select=*/true));
  KVRUN_RETURN_IF_ERROR(refresh_.NotePrompt(rows));
  return outputs.empty() ? Status::Ok() : MoreLogits(outputs, logits);
}

Status OffloadedForwardPass::BeforeDecode(std::span<const StepRow> rows) {
  last_rows_ = static_cast<uint32_t>(rows.size());
  prompt_rows_.Forget();
  KVRUN_RETURN_IF_ERROR(refresh_.CatchUp(rows));
  return refresh_.ChooseAgain(rows);
}

Status OffloadedForwardPass::SetRows(uint32_t n_rows) {
  if (n_rows == commands_.n_rows()) return Status::Ok();
  prefill_.reset();
  decode_->DropLists();
  return commands_.SetRows(device_, n_rows);
}

// Its own activations are those of one row then: products are of all members together.
Status OffloadedForwardPass::Begin(const StepRow& row) {
  const KvPlan& plan = cache_->plan();
  KVRUN_RETURN_IF_ERROR(
      commands_.CheckStep(ForwardStep(SpanKind::kDecode, row), max_rows(), plan.n_ctx, plan.n_sequences));
  const std::span rows(&row, 1);
  KVRUN_RETURN_IF_ERROR(BeforeDecode(rows));
  prefill_.reset();
  KVRUN_RETURN_IF_ERROR(SetRows(1));
  return decode_->Prepare(rows, {});
}

Status OffloadedForwardPass::End(const StepRow& row) {
  const std::span rows(&row, 1);
  KVRUN_RETURN_IF_ERROR(decode_->Conclude(rows));
  return refresh_.Note(rows);
}

Status OffloadedForwardPass::VisitState(StateVisitor& visitor, std::span<const uint32_t> lengths) {
  KVRUN_RETURN_IF_ERROR(cache_->VisitState(visitor));
  return refresh_.VisitState(visitor, lengths);
}

Status OffloadedForwardPass::RunPrompt(std::span<const StepRow> rows, const StepProgress& progress,
                                       bool may_select) {
  KVRUN_RETURN_IF_ERROR(SetRows(kChunkRows));
  prefill_.reset();
  decode_->DropLists();
  KVRUN_RETURN_IF_ERROR(commands_.MakeGivenUp(device_));
  KVRUN_RETURN_IF_ERROR(DropKernelsOfOtherPhase(device_, cache_->plan()));
  KVRUN_RETURN_IF_ERROR(cache_->prompts().BeginPrefill(rows[0].sequence, rows[0].position));
  const KvRange prompt{rows[0].sequence, rows[0].position,
                       static_cast<uint32_t>(rows[0].position + rows.size())};
  KVRUN_ASSIGN_OR_RETURN(prefill_, OffloadedPrefill::Create(device_, commands_, cache_->prompts(), states_,
                                                            spill_.get(), prompt, may_select));
  KVRUN_RETURN_IF_ERROR(prefill_->Run(rows, progress));
  if (may_select && prompt.begin > 0) later_prompts_.Note(prefill_->selected_share());
  return Status::Ok();
}

Status OffloadedForwardPass::RunRowByRow(std::span<const StepRow> rows, std::span<const uint32_t> outputs,
                                         const StepProgress& progress) {
  return prompt_rows_.Run(rows, outputs, progress,
                          [this](std::span<const StepRow> row) { return RunDecode(row, {}, {}); });
}

Status OffloadedForwardPass::BeginDecode() {
  prefill_.reset();
  return decode_->Begin();
}

Status OffloadedForwardPass::RunDecode(std::span<const StepRow> rows, std::span<const uint32_t> outputs,
                                       std::span<float> logits) {
  prefill_.reset();
  return decode_->Run(rows, outputs, logits);
}

// As many of the outputs as are there together, from the first on: of which rows of what was loaded they are.
Status OffloadedForwardPass::LoadHidden(std::span<const uint32_t> outputs, std::vector<uint32_t>* rows) {
  if (prompt_rows_.are_kept()) {
    rows->resize(outputs.size());
    std::iota(rows->begin(), rows->end(), 0U);
    return prompt_rows_.Load(outputs);
  }
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
    KVRUN_RETURN_IF_ERROR(LoadHidden(outputs.subspan(done), &rows));
    KVRUN_CHECK(!rows.empty());
    KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<CommandList> list, device_.CreateCommandList());
    KVRUN_RETURN_IF_ERROR(commands_.Head(*list, 0, static_cast<uint32_t>(rows.size()), commands_.own()));
    KVRUN_RETURN_IF_ERROR(list->Finish());
    commands_.WriteOutputs(rows);
    KVRUN_RETURN_IF_ERROR(device_.Execute(*list));
    commands_.CopyLogits(logits.subspan(done * n_vocab(), rows.size() * n_vocab()));
  }
  return Status::Ok();
}

}  // namespace

Result<std::unique_ptr<ForwardPass>> CreateOffloadedPass(const Model& model,
                                                         std::shared_ptr<const DeviceWeights> weights,
                                                         Device& device, OffloadedPassOptions options) {
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<RecordCache> cache,
                         RecordCache::Create(device, options.plan, model.config.n_kv_layers(),
                                             std::move(options.stores), options.adapter.get()));
  KVRUN_ASSIGN_OR_RETURN(StepCommands commands, StepCommands::Create(model.config, std::move(weights), device,
                                                                     BufferUse::kShared, options.plan.n_ctx));
  KVRUN_ASSIGN_OR_RETURN(
      LayerStates states,
      LayerStates::Create(model.config, device, KvType::kF16, options.plan.n_sequences, options.plan.n_ctx));
  std::unique_ptr<SpillFile> spill;
  const uint64_t spill_bytes = PrefillSpill::SizeBytes(options.plan, model.config);
  if (spill_bytes > 0) {
    KVRUN_ASSIGN_OR_RETURN(spill, SpillFile::Create(std::move(options.spill), spill_bytes));
  }
  auto pass = std::make_unique<OffloadedForwardPass>(device, std::move(commands), std::move(cache),
                                                     std::move(states), std::move(spill));
  KVRUN_RETURN_IF_ERROR(pass->Init(std::move(options.probe)));
  if (options.import != nullptr) KVRUN_RETURN_IF_ERROR(pass->Import(*options.import, options.n_import));
  return std::unique_ptr<ForwardPass>(std::move(pass));
}

}  // namespace kvrun
