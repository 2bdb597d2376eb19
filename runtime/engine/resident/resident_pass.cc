#include "runtime/engine/resident/resident_pass.h"

#include <fmt/format.h>

#include <algorithm>

#include "platform/base/check.h"
#include "platform/base/units.h"
#include "runtime/engine/pass/buffer_items.h"

namespace kvrun {
namespace {

constexpr size_t kMaxRecordedLists = 24;
// Of texts that others import. As in the reference simulation: left out of means and covariances, whatever is
// pinned.
constexpr uint32_t kSinkRows = 4;
// Whole groups are imported.
constexpr uint32_t kMostGroupTokens = 256;

KvShape ShapeOf(const ModelConfig& config, const ForwardPassOptions& options) {
  return {.type = options.kv_type,
          .n_sequences = options.n_sequences,
          .n_kv_heads = config.n_kv_heads,
          .head_dim = config.head_dim,
          .n_ctx = options.n_ctx};
}

}  // namespace

Result<std::unique_ptr<ResidentForwardPass>> ResidentForwardPass::Create(
    const Model& model, std::shared_ptr<const DeviceWeights> weights, Device& device,
    const ForwardPassOptions& options, std::optional<uint32_t> sink_rows) {
  const ModelConfig& config = model.config;
  KVRUN_ASSIGN_OR_RETURN(ResidentCache cache,
                         ResidentCache::Create(device, ShapeOf(config, options), config.n_kv_layers()));
  KVRUN_ASSIGN_OR_RETURN(LayerStates states, LayerStates::Create(config, device, options.kv_type,
                                                                 options.n_sequences, options.n_ctx));
  KVRUN_ASSIGN_OR_RETURN(StepCommands commands, StepCommands::Create(config, std::move(weights), device,
                                                                     BufferUse::kDevice, options.n_ctx));
  std::unique_ptr<ResidentForwardPass> pass(
      new ResidentForwardPass(device, std::move(commands), std::move(cache), std::move(states)));
  KVRUN_RETURN_IF_ERROR(pass->CreateScratch());
  pass->sink_rows_ = sink_rows;
  for (uint32_t i = 0; sink_rows && i < config.n_kv_layers(); ++i) {
    KVRUN_ASSIGN_OR_RETURN(LayerSumBuffers sums, LayerSumBuffers::Create(device, config, "activations"));
    pass->sums_.push_back(std::move(sums));
  }
  return pass;
}

// Of each stream, the entries that there are of K and of V, one after another in the buffer.
Status ResidentForwardPass::VisitState(StateVisitor& visitor, std::span<const uint32_t> lengths) {
  const KvShape& shape = cache_.shape();
  const uint64_t entry_bytes = uint64_t{shape.head_dim} * KvElementBytes(shape.type);
  const uint32_t n_lists = 2 * shape.n_kv_heads;  // of a sequence
  BufferItems items(device_, visitor);
  for (uint32_t layer = 0; layer < commands_.config().n_kv_layers(); ++layer) {
    for (uint32_t list = 0; list < shape.n_sequences * n_lists; ++list) {
      const StateKey key{StatePart::kResidentKv, 0, layer, list};
      KVRUN_RETURN_IF_ERROR(items.Visit(key, cache_.layer(layer), uint64_t{list} * shape.n_ctx * entry_bytes,
                                        lengths[list / n_lists] * entry_bytes));
    }
  }
  return Status::Ok();
}

Result<LayerSums> ResidentForwardPass::Sums(uint32_t layer) {
  return sums_[layer].Read(commands_.config(), n_summed_, n_skipped_);
}

Status ResidentForwardPass::ClearSums() {
  for (LayerSumBuffers& sums : sums_) KVRUN_RETURN_IF_ERROR(sums.Clear());
  n_summed_ = n_skipped_ = 0;
  return Status::Ok();
}

Status ResidentForwardPass::CreateScratch() {
  if (commands_.config().n_kv_layers() == 0)
    return states_.MakeScratch(commands_);  // of a model that was cut
  uint64_t scratch_bytes = 0;
  for (uint32_t n = 1; n <= kChunkRows; ++n) {
    scratch_bytes =
        std::max(scratch_bytes, device_.AttendScratchBytes(Attention({.n_rows = n, .of_prompt = true}, 0)));
  }
  for (uint32_t n = 1; n <= cache_.shape().n_sequences; ++n) {
    scratch_bytes = std::max(scratch_bytes, device_.AttendScratchBytes(Attention({.n_rows = n}, 0)));
  }
  KVRUN_ASSIGN_OR_RETURN(scratch_, device_.CreateBuffer(scratch_bytes, BufferUse::kDevice, "activations"));
  return states_.MakeScratch(commands_);
}

AttentionArgs ResidentForwardPass::Attention(const StepShape& shape, uint32_t nth) const {
  AttentionArgs args = commands_.Attention(commands_.config().kv_layers[nth], shape.n_rows, shape.of_prompt);
  args.kv = cache_.layer(nth);
  args.kv_shape = cache_.shape();
  args.scratch = scratch_.get();
  return args;
}

Status ResidentForwardPass::RecordLayer(CommandList& list, const StepShape& shape, uint32_t layer) {
  const std::vector<uint32_t>& kv_layers = commands_.config().kv_layers;
  const auto found = std::lower_bound(kv_layers.begin(), kv_layers.end(), layer);
  const bool has_kv = found != kv_layers.end() && *found == layer;
  KVRUN_RETURN_IF_ERROR(
      has_kv ? RecordAttention(list, shape, static_cast<uint32_t>(found - kv_layers.begin()))
             : states_.RecordLayer(list, commands_, layer, shape.n_rows, shape.of_prompt, commands_.own()));
  return commands_.AfterAttention(list, layer, shape.n_rows, commands_.own());
}

Status ResidentForwardPass::RecordAttention(CommandList& list, const StepShape& shape, uint32_t nth) {
  const uint32_t layer = commands_.config().kv_layers[nth];
  const AttentionArgs attention = Attention(shape, nth);
  if (shape.keeps_inputs) {
    KVRUN_RETURN_IF_ERROR(list.GatherRows(*commands_.hidden(), *commands_.step(), 1,
                                          commands_.config().n_embd, inputs_[nth].get()));
  }
  KVRUN_RETURN_IF_ERROR(commands_.Qkv(list, layer, shape.n_rows, commands_.own()));
  if (!shape.of_prompt) return list.AttendNew(attention);
  KVRUN_RETURN_IF_ERROR(list.RopeAndStore(attention));
  if (!sums_.empty() && shape.of_prompt && shape.n_rows > 1) {
    KVRUN_RETURN_IF_ERROR(sums_[nth].Record(list, commands_, *commands_.qkv(), shape.n_rows,
                                            shape.has_sinks ? std::min(*sink_rows_, shape.n_rows) : 0));
  }
  return list.Attend(attention);
}

Status ResidentForwardPass::SetRows(uint32_t n_rows) {
  if (n_rows == commands_.n_rows()) return Status::Ok();
  lists_.clear();
  ++version_;
  return commands_.SetRows(device_, n_rows);
}

// Its own activations are those of one row then: products are of all members together.
Status ResidentForwardPass::Begin(const StepRow& row) {
  KVRUN_RETURN_IF_ERROR(commands_.CheckStep(ForwardStep(SpanKind::kDecode, row), kChunkRows,
                                            cache_.shape().n_ctx, cache_.shape().n_sequences));
  KVRUN_RETURN_IF_ERROR(SetRows(1));
  commands_.WriteRows(std::span(&row, 1));
  last_rows_ = 1;
  return Status::Ok();
}

Status ResidentForwardPass::RecordAttention(CommandList& list, uint32_t layer, uint32_t n_rows) {
  return list.AttendNew(Attention({.n_rows = n_rows}, layer));
}

Result<CommandList*> ResidentForwardPass::ListFor(const StepShape& shape) {
  const auto found =
      std::find_if(lists_.begin(), lists_.end(), [&](const auto& entry) { return entry.first == shape; });
  if (found != lists_.end()) {
    lists_.splice(lists_.begin(), lists_, found);
    return found->second.get();
  }
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<CommandList> list, device_.CreateCommandList());
  if (shape.n_rows > 0) {
    KVRUN_RETURN_IF_ERROR(commands_.Embed(*list, shape.n_rows, commands_.own()));
    for (uint32_t i = 0; i < commands_.config().n_layers; ++i) {
      KVRUN_RETURN_IF_ERROR(RecordLayer(*list, shape, i));
    }
  }
  if (shape.n_outputs > 0) {
    KVRUN_RETURN_IF_ERROR(commands_.Head(*list, shape.n_rows, shape.n_outputs, commands_.own()));
  }
  KVRUN_RETURN_IF_ERROR(list->Finish());
  if (lists_.size() >= kMaxRecordedLists) lists_.pop_back();
  lists_.emplace_front(shape, std::move(list));
  return lists_.front().second.get();
}

Status ResidentForwardPass::Execute(const StepShape& shape, std::span<float> logits) {
  KVRUN_ASSIGN_OR_RETURN(CommandList * list, ListFor(shape));
  KVRUN_RETURN_IF_ERROR(device_.Execute(*list));
  KVRUN_CHECK(logits.size() == size_t{shape.n_outputs} * n_vocab());
  commands_.CopyLogits(logits);
  return Status::Ok();
}

Status ResidentForwardPass::Run(const ForwardStep& step, std::span<const uint32_t> outputs,
                                std::span<float> logits) {
  KVRUN_RETURN_IF_ERROR(
      commands_.CheckStep(step, kChunkRows, cache_.shape().n_ctx, cache_.shape().n_sequences));
  KVRUN_CHECK(outputs.size() <= kMaxOutputRows);
  return parts_.Run(
      step, outputs, logits,
      [this](const StepPart& part, std::span<const uint32_t> part_outputs, std::span<float> part_logits) {
        return RunPart(part, part_outputs, part_logits);
      });
}

Status ResidentForwardPass::RunPart(const StepPart& part, std::span<const uint32_t> outputs,
                                    std::span<float> logits) {
  if (commands_.n_rows() < part.rows.size()) KVRUN_RETURN_IF_ERROR(SetRows(kChunkRows));
  commands_.WriteRows(part.rows);
  commands_.WriteOutputs(outputs);
  last_rows_ = static_cast<uint32_t>(part.rows.size());
  const bool has_sinks = !sums_.empty() && part.rows[0].position == 0;
  KVRUN_RETURN_IF_ERROR(Execute({.n_rows = last_rows_,
                                 .of_prompt = part.is_prompt,
                                 .n_outputs = static_cast<uint32_t>(outputs.size()),
                                 .has_sinks = has_sinks,
                                 .keeps_inputs = !inputs_.empty() && last_rows_ == 1},
                                logits));
  if (!sums_.empty() && part.is_prompt && last_rows_ > 1) {
    n_summed_ += last_rows_;
    n_skipped_ += has_sinks ? std::min(*sink_rows_, last_rows_) : 0;
  }
  return Status::Ok();
}

Status ResidentForwardPass::KeepInputs() {
  const uint64_t bytes = uint64_t{commands_.config().n_embd} * sizeof(float);
  while (inputs_.size() < commands_.config().n_kv_layers()) {
    KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<Buffer> input,
                           device_.CreateBuffer(bytes, BufferUse::kReadback, "activations"));
    inputs_.push_back(std::move(input));
  }
  return Status::Ok();
}

void ResidentForwardPass::AppendInputs(std::vector<float>* inputs) const {
  for (const std::unique_ptr<Buffer>& input : inputs_) {
    const auto* values = reinterpret_cast<const float*>(input->host().data());
    inputs->insert(inputs->end(), values, values + commands_.config().n_embd);
  }
}

Status ResidentForwardPass::MoreLogits(std::span<const uint32_t> outputs, std::span<float> logits) {
  KVRUN_CHECK(outputs.size() <= kMaxOutputRows);
  for (const uint32_t row : outputs) KVRUN_CHECK(row < last_rows_);
  commands_.WriteOutputs(outputs);
  return Execute({.n_outputs = static_cast<uint32_t>(outputs.size())}, logits);
}

Result<std::unique_ptr<ResidentForwardPass>> PrefillInMemory(const Model& model,
                                                             std::shared_ptr<const DeviceWeights> weights,
                                                             Device& device, std::span<const TokenId> ids,
                                                             uint32_t n_ctx, const StepProgress& progress) {
  const ForwardPassOptions options{.n_sequences = 1, .n_ctx = RoundUp(n_ctx, kMostGroupTokens)};
  // What takes KV from here binds a layer as a whole.
  const uint64_t layer_bytes = ShapeOf(model.config, options).size_bytes();
  if (layer_bytes > device.info().max_buffer_bytes) {
    return Status(
        StatusCode::kOutOfMemory,
        fmt::format("the KV of one layer takes {} for {} tokens, and {} takes at most {} of what others are "
                    "compared with; use a context of at most {} tokens",
                    FormatBytes(layer_bytes), options.n_ctx, device.info().name,
                    FormatBytes(device.info().max_buffer_bytes),
                    device.info().max_buffer_bytes / (layer_bytes / options.n_ctx) / kMostGroupTokens *
                        kMostGroupTokens));
  }
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<ResidentForwardPass> pass,
                         ResidentForwardPass::Create(model, std::move(weights), device, options, kSinkRows));
  ForwardStep step;
  for (uint32_t begin = 0; begin < ids.size(); begin += static_cast<uint32_t>(step.size())) {
    if (progress && progress(begin, ids.size())) {
      return Status(StatusCode::kCancelled,
                    fmt::format("cancelled after {} of {} tokens of the text", begin, ids.size()));
    }
    step.Clear();
    step.Add(SpanKind::kPrompt, ids.subspan(begin, std::min<size_t>(ids.size() - begin, pass->max_rows())),
             begin, 0);
    KVRUN_RETURN_IF_ERROR(pass->Run(step, {}, {}));
  }
  return pass;
}

}  // namespace kvrun
