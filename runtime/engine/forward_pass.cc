#include "runtime/engine/forward_pass.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <list>
#include <tuple>
#include <utility>

#include "platform/base/check.h"
#include "runtime/engine/device_weights.h"
#include "shaders/shared/step_params.h"

namespace kvrun {
namespace {

constexpr uint32_t kChunkRows = 256;
constexpr uint32_t kMaxOutputRows = 32;
constexpr size_t kMaxRecordedLists = 24;

// Which commands a step needs; its positions and tokens are data.
struct StepShape {
  uint32_t n_rows = 0;        // 0: only logits, of the rows of the step before
  bool one_sequence = false;  // consecutive positions of one sequence
  uint32_t n_outputs = 0;

  bool operator==(const StepShape&) const = default;
};

class DeviceForwardPass : public ForwardPass {
 public:
  static Result<std::unique_ptr<ForwardPass>> Create(const Model& model,
                                                     std::shared_ptr<const DeviceWeights> weights,
                                                     Device& device, const ForwardPassOptions& options);

  uint32_t max_rows() const override { return kChunkRows; }
  uint32_t max_output_rows() const override { return kMaxOutputRows; }
  uint32_t n_vocab() const override { return config_.n_vocab; }
  Status Run(std::span<const StepRow> rows, std::span<const uint32_t> outputs,
             std::span<float> logits) override;
  Status MoreLogits(std::span<const uint32_t> outputs, std::span<float> logits) override;

 private:
  DeviceForwardPass(const Model& model, std::shared_ptr<const DeviceWeights> weights, Device& device,
                    ResidentCache cache)
      : config_(model.config), weights_(std::move(weights)), device_(device), cache_(std::move(cache)) {}

  Status CreateBuffers();
  Status CheckRows(std::span<const StepRow> rows) const;
  void WriteStep(std::span<const StepRow> rows, std::span<const uint32_t> outputs);
  void WriteAngles(std::span<const StepRow> rows);
  Status Execute(const StepShape& shape, std::span<float> logits);
  Result<CommandList*> ListFor(const StepShape& shape);
  Status RecordLayer(CommandList& list, const StepShape& shape, uint32_t index);
  Status RecordStack(CommandList& list, const MatrixStack& stack, const Buffer& input, uint32_t n_rows,
                     uint32_t output_stride, const Buffer* bias, bool accumulate, Buffer* output);
  Status RecordHead(CommandList& list, const StepShape& shape);
  AttentionArgs Attention(const StepShape& shape, uint32_t layer) const;

  const ModelConfig& config_;
  std::shared_ptr<const DeviceWeights> weights_;
  Device& device_;
  mutable ResidentCache cache_;
  RopeTable rope_;

  std::unique_ptr<Buffer> step_;         // StepParams
  std::unique_ptr<Buffer> angles_;       // [rows, rotary_dim / 2, 2]
  std::unique_ptr<Buffer> hidden_;       // the residual stream, [rows, n_embd]
  std::unique_ptr<Buffer> normed_;       // [rows, n_embd]
  std::unique_ptr<Buffer> qkv_;          // [rows, q_dim + 2 * kv_dim]
  std::unique_ptr<Buffer> attended_;     // [rows, q_dim]
  std::unique_ptr<Buffer> scratch_;      // of attention
  std::unique_ptr<Buffer> gate_up_;      // [rows, 2 * n_ff]
  std::unique_ptr<Buffer> ffn_;          // [rows, n_ff]
  std::unique_ptr<Buffer> output_rows_;  // [outputs, n_embd]
  std::unique_ptr<Buffer> logits_;       // [outputs, n_vocab]

  uint32_t last_rows_ = 0;
  std::list<std::pair<StepShape, std::unique_ptr<CommandList>>> lists_;  // latest used first
};

Result<std::unique_ptr<ForwardPass>> DeviceForwardPass::Create(const Model& model,
                                                               std::shared_ptr<const DeviceWeights> weights,
                                                               Device& device,
                                                               const ForwardPassOptions& options) {
  const ModelConfig& config = model.config;
  const KvShape shape{.type = options.kv_type,
                      .n_sequences = options.n_sequences,
                      .n_kv_heads = config.n_kv_heads,
                      .head_dim = config.head_dim,
                      .n_ctx = options.n_ctx};
  KVRUN_ASSIGN_OR_RETURN(ResidentCache cache, ResidentCache::Create(device, shape, config.n_layers));
  std::unique_ptr<DeviceForwardPass> pass(
      new DeviceForwardPass(model, std::move(weights), device, std::move(cache)));
  pass->rope_ = MakeRopeTable(config.rope);
  KVRUN_RETURN_IF_ERROR(pass->CreateBuffers());
  return std::unique_ptr<ForwardPass>(std::move(pass));
}

Status DeviceForwardPass::CreateBuffers() {
  const auto make = [&](std::unique_ptr<Buffer>* buffer, uint64_t rows, uint64_t columns,
                        BufferUse use) -> Status {
    KVRUN_ASSIGN_OR_RETURN(*buffer, device_.CreateBuffer(rows * columns * sizeof(float), use, "activations"));
    return Status::Ok();
  };
  const uint64_t rows = kChunkRows;
  const uint64_t qkv_dim = config_.q_dim() + 2 * config_.kv_dim();
  KVRUN_ASSIGN_OR_RETURN(step_, device_.CreateBuffer(sizeof(StepParams), BufferUse::kUpload, "activations"));
  KVRUN_RETURN_IF_ERROR(make(&angles_, rows, config_.rope.rotary_dim, BufferUse::kUpload));
  KVRUN_RETURN_IF_ERROR(make(&hidden_, rows, config_.n_embd, BufferUse::kDevice));
  KVRUN_RETURN_IF_ERROR(make(&normed_, rows, config_.n_embd, BufferUse::kDevice));
  KVRUN_RETURN_IF_ERROR(make(&qkv_, rows, qkv_dim, BufferUse::kDevice));
  KVRUN_RETURN_IF_ERROR(make(&attended_, rows, config_.q_dim(), BufferUse::kDevice));
  KVRUN_RETURN_IF_ERROR(make(&gate_up_, rows, 2 * uint64_t{config_.n_ff}, BufferUse::kDevice));
  KVRUN_RETURN_IF_ERROR(make(&ffn_, rows, config_.n_ff, BufferUse::kDevice));
  KVRUN_RETURN_IF_ERROR(make(&output_rows_, kMaxOutputRows, config_.n_embd, BufferUse::kDevice));
  KVRUN_RETURN_IF_ERROR(make(&logits_, kMaxOutputRows, config_.n_vocab, BufferUse::kReadback));

  uint64_t scratch_bytes = 0;
  for (uint32_t n = 1; n <= kChunkRows; ++n) {
    scratch_bytes = std::max(scratch_bytes, device_.AttendScratchBytes(Attention({n, n > 1, 0}, 0)));
  }
  for (uint32_t n = 1; n <= cache_.shape().n_sequences; ++n) {
    scratch_bytes = std::max(scratch_bytes, device_.AttendScratchBytes(Attention({n, false, 0}, 0)));
  }
  KVRUN_ASSIGN_OR_RETURN(scratch_, device_.CreateBuffer(scratch_bytes, BufferUse::kDevice, "activations"));
  return Status::Ok();
}

AttentionArgs DeviceForwardPass::Attention(const StepShape& shape, uint32_t layer) const {
  return {.qkv = qkv_.get(),
          .step = step_.get(),
          .kv = cache_.layer(layer),
          .kv_shape = cache_.shape(),
          .n_heads = config_.n_heads,
          .n_tokens = shape.n_rows,
          .angles = angles_.get(),
          .norms = weights_->layers[layer].qk_norms.get(),
          .norm_epsilon = config_.rms_epsilon,
          .rotary_dim = config_.rope.rotary_dim,
          .rope_halves = config_.rope.pairing == RopePairing::kHalves,
          .output = attended_.get(),
          .scratch = scratch_.get(),
          .one_sequence = shape.one_sequence};
}

Status DeviceForwardPass::RecordStack(CommandList& list, const MatrixStack& stack, const Buffer& input,
                                      uint32_t n_rows, uint32_t output_stride, const Buffer* bias,
                                      bool accumulate, Buffer* output) {
  for (const StackedMatrix& part : stack) {
    KVRUN_RETURN_IF_ERROR(list.MatMul({.weight = part.matrix.get(),
                                       .input = &input,
                                       .output = output,
                                       .bias = bias,
                                       .n_tokens = n_rows,
                                       .output_stride = output_stride,
                                       .output_offset = part.row_begin,
                                       .bias_offset = part.row_begin,
                                       .accumulate = accumulate}));
  }
  return Status::Ok();
}

Status DeviceForwardPass::RecordLayer(CommandList& list, const StepShape& shape, uint32_t index) {
  const DeviceLayer& layer = weights_->layers[index];
  const uint32_t n = shape.n_rows;
  const uint32_t qkv_dim = config_.q_dim() + 2 * config_.kv_dim();
  const float epsilon = config_.rms_epsilon;
  KVRUN_RETURN_IF_ERROR(
      list.RmsNorm(*hidden_, *layer.attention_norm, epsilon, n, config_.n_embd, normed_.get()));
  KVRUN_RETURN_IF_ERROR(
      RecordStack(list, layer.qkv, *normed_, n, qkv_dim, layer.qkv_bias.get(), false, qkv_.get()));
  const AttentionArgs attention = Attention(shape, index);
  KVRUN_RETURN_IF_ERROR(list.RopeAndStore(attention));
  KVRUN_RETURN_IF_ERROR(list.Attend(attention));
  KVRUN_RETURN_IF_ERROR(
      RecordStack(list, layer.attention_output, *attended_, n, config_.n_embd, nullptr, true, hidden_.get()));
  KVRUN_RETURN_IF_ERROR(list.RmsNorm(*hidden_, *layer.ffn_norm, epsilon, n, config_.n_embd, normed_.get()));
  KVRUN_RETURN_IF_ERROR(
      RecordStack(list, layer.gate_up, *normed_, n, 2 * config_.n_ff, nullptr, false, gate_up_.get()));
  KVRUN_RETURN_IF_ERROR(list.SwiGlu(*gate_up_, n, config_.n_ff, ffn_.get()));
  return RecordStack(list, layer.ffn_down, *ffn_, n, config_.n_embd, nullptr, true, hidden_.get());
}

Status DeviceForwardPass::RecordHead(CommandList& list, const StepShape& shape) {
  const uint32_t n = shape.n_outputs;
  KVRUN_RETURN_IF_ERROR(list.GatherRows(*hidden_, *step_, n, config_.n_embd, output_rows_.get()));
  KVRUN_RETURN_IF_ERROR(list.RmsNorm(*output_rows_, *weights_->output_norm, config_.rms_epsilon, n,
                                     config_.n_embd, output_rows_.get()));
  return list.MatMul(
      {.weight = &weights_->output(), .input = output_rows_.get(), .output = logits_.get(), .n_tokens = n});
}

Result<CommandList*> DeviceForwardPass::ListFor(const StepShape& shape) {
  const auto found =
      std::find_if(lists_.begin(), lists_.end(), [&](const auto& entry) { return entry.first == shape; });
  if (found != lists_.end()) {
    lists_.splice(lists_.begin(), lists_, found);
    return found->second.get();
  }
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<CommandList> list, device_.CreateCommandList());
  if (shape.n_rows > 0) {
    KVRUN_RETURN_IF_ERROR(list->Embed(*weights_->token_embedding, *step_, shape.n_rows, hidden_.get()));
    for (uint32_t i = 0; i < config_.n_layers; ++i) KVRUN_RETURN_IF_ERROR(RecordLayer(*list, shape, i));
  }
  if (shape.n_outputs > 0) KVRUN_RETURN_IF_ERROR(RecordHead(*list, shape));
  KVRUN_RETURN_IF_ERROR(list->Finish());
  if (lists_.size() >= kMaxRecordedLists) lists_.pop_back();
  lists_.emplace_front(shape, std::move(list));
  return lists_.front().second.get();
}

Status DeviceForwardPass::CheckRows(std::span<const StepRow> rows) const {
  if (rows.empty() || rows.size() > kChunkRows) {
    return {StatusCode::kInternal,
            fmt::format("a step of {} rows; 1 to {} can be run", rows.size(), kChunkRows)};
  }
  for (const StepRow& row : rows) {
    if (row.id < 0 || static_cast<uint32_t>(row.id) >= config_.n_vocab) {
      return {StatusCode::kInvalidArgument,
              fmt::format("token {} is not in the vocabulary (0 to {})", row.id, config_.n_vocab - 1)};
    }
    if (row.position >= cache_.shape().n_ctx || row.sequence >= cache_.shape().n_sequences) {
      return {StatusCode::kInternal,
              fmt::format("position {} of sequence {} is outside of the KV cache ({} x {})", row.position,
                          row.sequence, cache_.shape().n_ctx, cache_.shape().n_sequences)};
    }
  }
  return Status::Ok();
}

void DeviceForwardPass::WriteStep(std::span<const StepRow> rows, std::span<const uint32_t> outputs) {
  auto* step = reinterpret_cast<StepParams*>(step_->host().data());
  step->n_tokens = static_cast<uint32_t>(rows.size());
  step->n_outputs = static_cast<uint32_t>(outputs.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    step->tokens[i].id = static_cast<uint32_t>(rows[i].id);
    step->tokens[i].position = rows[i].position;
    step->tokens[i].sequence = rows[i].sequence;
  }
  for (size_t i = 0; i < outputs.size(); ++i) step->tokens[i].output_row = outputs[i];
}

void DeviceForwardPass::WriteAngles(std::span<const StepRow> rows) {
  auto* angles = reinterpret_cast<float*>(angles_->host().data());
  for (const StepRow& row : rows) {
    for (const float frequency : rope_.frequencies) {
      const double angle = static_cast<double>(row.position) * static_cast<double>(frequency);
      *angles++ = static_cast<float>(std::cos(angle)) * rope_.magnitude;
      *angles++ = static_cast<float>(std::sin(angle)) * rope_.magnitude;
    }
  }
}

Status DeviceForwardPass::Execute(const StepShape& shape, std::span<float> logits) {
  KVRUN_ASSIGN_OR_RETURN(CommandList * list, ListFor(shape));
  KVRUN_ASSIGN_OR_RETURN(const uint64_t value, device_.Submit(*list));
  KVRUN_RETURN_IF_ERROR(device_.Wait(value));
  if (shape.n_outputs > 0) {
    KVRUN_CHECK(logits.size() == size_t{shape.n_outputs} * config_.n_vocab);
    std::memcpy(logits.data(), logits_->host().data(), logits.size_bytes());
  }
  return Status::Ok();
}

Status DeviceForwardPass::Run(std::span<const StepRow> rows, std::span<const uint32_t> outputs,
                              std::span<float> logits) {
  KVRUN_RETURN_IF_ERROR(CheckRows(rows));
  KVRUN_CHECK(outputs.size() <= kMaxOutputRows);
  WriteStep(rows, outputs);
  WriteAngles(rows);
  last_rows_ = static_cast<uint32_t>(rows.size());
  const bool one_sequence = rows.size() > 1 && rows[0].sequence == rows[1].sequence;
  return Execute({last_rows_, one_sequence, static_cast<uint32_t>(outputs.size())}, logits);
}

Status DeviceForwardPass::MoreLogits(std::span<const uint32_t> outputs, std::span<float> logits) {
  KVRUN_CHECK(outputs.size() <= kMaxOutputRows);
  for (const uint32_t row : outputs) KVRUN_CHECK(row < last_rows_);
  WriteStep({}, outputs);
  return Execute({0, false, static_cast<uint32_t>(outputs.size())}, logits);
}

}  // namespace

Result<std::unique_ptr<ForwardPass>> CreateForwardPass(const Model& model,
                                                       std::shared_ptr<const DeviceWeights> weights,
                                                       Device& device, const ForwardPassOptions& options) {
  return DeviceForwardPass::Create(model, std::move(weights), device, options);
}

}  // namespace kvrun
