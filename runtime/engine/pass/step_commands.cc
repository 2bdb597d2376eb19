#include "runtime/engine/pass/step_commands.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <utility>

#include "shaders/shared/step_params.h"

namespace kvrun {
namespace {

// A sequence has one span, and what is generated one row.
Status CheckSpans(std::span<const KvSpan> spans) {
  for (size_t i = 0; i < spans.size(); ++i) {
    const bool has_another =
        std::any_of(spans.begin(), spans.begin() + static_cast<ptrdiff_t>(i),
                    [&](const KvSpan& span) { return span.sequence == spans[i].sequence; });
    if (has_another || (spans[i].kind == SpanKind::kDecode && spans[i].n_rows > 1)) {
      return {
          StatusCode::kInternal,
          fmt::format("sequence {} has several spans or generated tokens in one step", spans[i].sequence)};
    }
  }
  return Status::Ok();
}

Activation GateOf(const ModelConfig& config) {
  return config.gate == FeedForwardGate::kGeluTanh ? Activation::kGeluTanh : Activation::kSilu;
}

}  // namespace

Result<StepInputs> StepInputs::Create(const ModelConfig& config, Device& device, std::string_view part) {
  StepInputs inputs;
  KVRUN_ASSIGN_OR_RETURN(inputs.step, device.CreateBuffer(sizeof(StepParams), BufferUse::kUpload, part));
  const uint64_t angles_bytes = uint64_t{kChunkRows} * config.rope.rotary_dim * sizeof(float);
  KVRUN_ASSIGN_OR_RETURN(inputs.angles, device.CreateBuffer(angles_bytes, BufferUse::kUpload, part));
  if (config.windowed_rope.rotary_dim > 0) {
    KVRUN_ASSIGN_OR_RETURN(inputs.windowed_angles,
                           device.CreateBuffer(angles_bytes, BufferUse::kUpload, part));
  }
  return inputs;
}

Result<StepCommands> StepCommands::Create(const ModelConfig& config,
                                          std::shared_ptr<const DeviceWeights> weights, Device& device,
                                          BufferUse hidden_use, uint32_t n_ctx, uint32_t n_rows) {
  StepCommands step;
  step.config_ = &config;
  step.weights_ = std::move(weights);
  step.turns_ = MakeTurns(config.rope, n_ctx);
  step.windowed_turns_ = MakeTurns(config.windowed_rope, n_ctx);
  step.hidden_use_ = hidden_use;
  KVRUN_ASSIGN_OR_RETURN(step.inputs_, StepInputs::Create(config, device, "activations"));
  KVRUN_RETURN_IF_ERROR(step.SetRows(device, n_rows));
  return step;
}

// What there was goes first: both together may be more than there is room for.
Status StepCommands::SetRows(Device& device, uint32_t n_rows) {
  if (n_rows == n_rows_) return Status::Ok();
  for (auto* buffer : {&hidden_, &normed_, &qkv_, &attended_, &query_gate_, &state_input_, &block_result_,
                       &router_, &expert_ids_, &expert_weights_, &output_rows_}) {
    buffer->reset();
  }
  GiveUpFeedForward();
  GiveUpLogits();
  n_rows_ = n_rows;
  const Status created = CreateBuffers(device);
  if (!created.ok()) n_rows_ = 0;
  return created;
}

StepCommands::Turns StepCommands::MakeTurns(const RopeConfig& rope, uint32_t n_ctx) {
  Turns turns{MakeRopeTable(rope, n_ctx), {}};
  for (const float frequency : turns.rope.frequencies) {
    for (uint32_t place = 0; place < kTurnPositions; ++place)
      turns.turns.push_back(std::polar(1.0, static_cast<double>(place) * static_cast<double>(frequency)));
  }
  return turns;
}

uint32_t StepCommands::BlockDim(const ModelConfig& config) {
  uint32_t columns = config.q_dim();
  for (const LayerConfig& layer : config.layers) {
    if (layer.kind == LayerKind::kDeltaNet) columns = std::max(columns, config.delta_net.value_dim());
    if (layer.kind == LayerKind::kShortConvolution) columns = std::max(columns, config.n_embd);
  }
  return columns;
}

uint32_t StepCommands::StateInputDim(const ModelConfig& config) {
  uint32_t columns = 0;
  const DeltaNetConfig& net = config.delta_net;
  for (const LayerConfig& layer : config.layers) {
    if (layer.kind == LayerKind::kDeltaNet)
      columns = std::max(columns, net.n_channels() + net.value_dim() + 2 * net.n_value_heads);
    if (layer.kind == LayerKind::kShortConvolution) columns = std::max(columns, 3 * config.n_embd);
  }
  return columns;
}

Status StepCommands::CreateBuffers(Device& device) {
  const auto make = [&](std::unique_ptr<Buffer>* buffer, uint64_t rows, uint64_t columns,
                        BufferUse use = BufferUse::kDevice) -> Status {
    if (columns == 0) return Status::Ok();
    KVRUN_ASSIGN_OR_RETURN(*buffer, device.CreateBuffer(rows * columns * sizeof(float), use, "activations"));
    return Status::Ok();
  };
  const uint64_t rows = n_rows_;
  KVRUN_RETURN_IF_ERROR(make(&hidden_, rows, config_->n_embd, hidden_use_));
  KVRUN_RETURN_IF_ERROR(make(&normed_, rows, config_->n_embd));
  KVRUN_RETURN_IF_ERROR(make(&qkv_, rows, qkv_dim()));
  KVRUN_RETURN_IF_ERROR(make(&attended_, rows, BlockDim(*config_)));
  KVRUN_RETURN_IF_ERROR(make(&query_gate_, rows, config_->has_query_gate ? config_->q_dim() : 0));
  KVRUN_RETURN_IF_ERROR(make(&state_input_, rows, StateInputDim(*config_)));
  KVRUN_RETURN_IF_ERROR(make(&block_result_, rows, config_->has_post_norms ? config_->n_embd : 0));
  const ExpertConfig& experts = config_->experts;
  KVRUN_RETURN_IF_ERROR(make(&router_, rows, experts.n_experts));
  KVRUN_RETURN_IF_ERROR(make(&expert_ids_, rows, experts.n_used));
  KVRUN_RETURN_IF_ERROR(make(&expert_weights_, rows, experts.n_used));
  KVRUN_RETURN_IF_ERROR(make(&output_rows_, n_logits_rows(), config_->n_embd));
  return MakeGivenUp(device);
}

Status StepCommands::MakeFeedForward(Device& device) {
  if (ffn_ != nullptr) return Status::Ok();
  const uint64_t third = FeedForwardBytes(*config_) / 3 / kChunkRows * n_rows_;
  KVRUN_ASSIGN_OR_RETURN(gate_up_, device.CreateBuffer(2 * third, BufferUse::kDevice, "activations"));
  KVRUN_ASSIGN_OR_RETURN(ffn_, device.CreateBuffer(third, BufferUse::kDevice, "activations"));
  return Status::Ok();
}

// Gate and up; their product.
uint64_t StepCommands::FeedForwardBytes(const ModelConfig& config) {
  const uint64_t columns =
      config.experts.n_experts > 0 ? uint64_t{config.experts.n_used} * config.experts.n_ff : config.n_ff;
  return 3 * kChunkRows * columns * sizeof(float);
}

Status StepCommands::MakeGivenUp(Device& device) {
  KVRUN_RETURN_IF_ERROR(MakeFeedForward(device));
  if (logits_ != nullptr) return Status::Ok();
  const uint64_t bytes = uint64_t{n_logits_rows()} * config_->n_vocab * sizeof(float);
  KVRUN_ASSIGN_OR_RETURN(logits_, device.CreateBuffer(bytes, BufferUse::kReadback, "activations"));
  return Status::Ok();
}

AttentionArgs StepCommands::Attention(uint32_t layer, uint32_t n_rows, bool of_prompt,
                                      const StepPlace& place) const {
  const LayerRope rope = config_->layers[layer].rope;
  const RopeConfig& rotation = rope == LayerRope::kWindowed ? config_->windowed_rope : config_->rope;
  return {.qkv = place.qkv,
          .step = place.step,
          .kv = nullptr,
          .kv_shape = {.n_kv_heads = config_->n_kv_heads, .head_dim = config_->head_dim},
          .n_heads = config_->n_heads,
          .n_tokens = n_rows,
          .angles = place.angles_of(rope),
          .norms = weights_->layers[layer].qk_norms.get(),
          .norm_epsilon = config_->rms_epsilon,
          .rotary_dim = rope == LayerRope::kNone ? 0 : rotation.rotary_dim,
          .rope_halves = rotation.pairing == RopePairing::kHalves,
          .output = place.attended,
          .scratch = nullptr,
          .score_cap = config_->score_cap,
          .score_scale = config_->score_scale,
          .of_prompt = of_prompt};
}

void StepCommands::WriteRows(const StepPlace& place, std::span<const StepRow> rows, uint32_t first_position) {
  auto* step = reinterpret_cast<StepParams*>(place.step->host().data());
  step->n_tokens = static_cast<uint32_t>(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    step->tokens[i].id = static_cast<uint32_t>(rows[i].id);
    step->tokens[i].position = rows[i].position - first_position;
    step->tokens[i].sequence = rows[i].sequence;
  }
  WriteAngles(turns_, rows, place.angles);
  if (place.windowed_angles != nullptr) WriteAngles(windowed_turns_, rows, place.windowed_angles);
}

std::span<const float> StepCommands::angles(size_t n_rows) const {
  return {reinterpret_cast<const float*>(inputs_.angles->host().data()),
          n_rows * turns_.rope.frequencies.size() * 2};
}

// Sines take long: a position's angle is that of the block of positions it is in, turned by its place there.
// So it does not depend on which other rows there are.
void StepCommands::WriteAngles(const Turns& of, std::span<const StepRow> rows, Buffer* buffer) {
  auto* const angles = reinterpret_cast<float*>(buffer->host().data());
  const size_t n_frequencies = of.rope.frequencies.size();
  for (size_t nth = 0; nth < n_frequencies; ++nth) {
    const auto frequency = static_cast<double>(of.rope.frequencies[nth]);
    const std::complex<double>* const turns = of.turns.data() + nth * kTurnPositions;
    std::complex<double> block_turn;
    uint32_t block = UINT32_MAX;
    for (size_t i = 0; i < rows.size(); ++i) {
      if (rows[i].position / kTurnPositions != block) {
        block = rows[i].position / kTurnPositions;
        block_turn = std::polar(1.0, static_cast<double>(block * kTurnPositions) * frequency);
      }
      const std::complex<double>& turn = turns[rows[i].position % kTurnPositions];
      float* to = angles + (i * n_frequencies + nth) * 2;
      const double cosine = block_turn.real() * turn.real() - block_turn.imag() * turn.imag();
      const double sine = block_turn.imag() * turn.real() + block_turn.real() * turn.imag();
      to[0] = static_cast<float>(cosine) * of.rope.magnitude;
      to[1] = static_cast<float>(sine) * of.rope.magnitude;
    }
  }
}

void StepCommands::WriteMostChosen(uint32_t n_groups) {
  reinterpret_cast<StepParams*>(inputs_.step->host().data())->most_chosen = n_groups;
}

void StepCommands::WriteOutputs(const StepPlace& place, std::span<const uint32_t> outputs) {
  auto* step = reinterpret_cast<StepParams*>(place.step->host().data());
  step->n_outputs = static_cast<uint32_t>(outputs.size());
  for (size_t i = 0; i < outputs.size(); ++i) step->tokens[i].output_row = outputs[i];
}

InputNorm StepCommands::Norm(const std::unique_ptr<Buffer>& weight, Buffer* rows) const {
  return {.weight = weight.get(), .epsilon = config_->rms_epsilon, .rows = rows};
}

// One product for each matrix of the stack; their results lie side by side.
Status StepCommands::Product(CommandList& list, const MatrixStack& stack, const MatMulArgs& args) {
  MatMulArgs product = args;
  for (const StackedMatrix& part : stack) {
    product.weight = part.matrix.get();
    product.output_offset = args.output_offset + part.row_begin;
    product.bias_offset = args.bias_offset + part.row_begin;
    KVRUN_RETURN_IF_ERROR(list.MatMul(product));
    product.norm.was_before = true;
  }
  return Status::Ok();
}

Status StepCommands::Embed(CommandList& list, uint32_t n_rows, const StepPlace& place) const {
  return list.Embed({.table = weights_->token_embedding.get(),
                     .step = place.step,
                     .n_tokens = n_rows,
                     .out = place.hidden,
                     .scale = config_->embedding_scale});
}

Status StepCommands::Qkv(CommandList& list, uint32_t layer, uint32_t n_rows, const StepPlace& place) const {
  const DeviceLayer& weights = weights_->layers[layer];
  const InputNorm norm = Norm(weights.attention_norm, normed_.get());
  KVRUN_RETURN_IF_ERROR(Product(list, weights.qkv,
                                {.input = place.hidden,
                                 .output = place.qkv,
                                 .bias = weights.has_qkv_bias ? weights.attention_norm.get() : nullptr,
                                 .n_tokens = n_rows,
                                 .output_stride = qkv_dim(),
                                 .bias_offset = config_->n_embd,
                                 .norm = norm}));
  return GateProduct(list, layer, n_rows, place, /*was_normed=*/true);
}

Status StepCommands::QueryGate(CommandList& list, uint32_t layer, uint32_t n_rows,
                               const StepPlace& place) const {
  return GateProduct(list, layer, n_rows, place, /*was_normed=*/false);
}

Status StepCommands::GateProduct(CommandList& list, uint32_t layer, uint32_t n_rows, const StepPlace& place,
                                 bool was_normed) const {
  const DeviceLayer& weights = weights_->layers[layer];
  InputNorm norm = Norm(weights.attention_norm, normed_.get());
  norm.was_before = was_normed;
  return Product(list, weights.query_gate,
                 {.input = place.hidden,
                  .output = query_gate_.get(),
                  .n_tokens = n_rows,
                  .output_stride = config_->q_dim(),
                  .norm = norm});
}

Status StepCommands::StateInput(CommandList& list, uint32_t layer, uint32_t n_rows,
                                const StepPlace& place) const {
  const DeviceLayer& weights = weights_->layers[layer];
  return Product(list, weights.state_input,
                 {.input = place.hidden,
                  .output = state_input_.get(),
                  .n_tokens = n_rows,
                  .output_stride = StateInputDim(*config_),
                  .norm = Norm(weights.attention_norm, normed_.get())});
}

Status StepCommands::AddNormed(CommandList& list, const Buffer& norm, uint32_t n_rows, Buffer* hidden) const {
  return list.RmsNorm({.x = block_result_.get(),
                       .weight = &norm,
                       .epsilon = config_->rms_epsilon,
                       .n_rows = n_rows,
                       .n_cols = config_->n_embd,
                       .out = hidden,
                       .accumulate = true});
}

Status StepCommands::BlockOutput(CommandList& list, uint32_t layer, uint32_t n_rows,
                                 const StepPlace& place) const {
  const DeviceLayer& weights = weights_->layers[layer];
  if (!weights.query_gate.empty()) {
    KVRUN_RETURN_IF_ERROR(list.SigmoidGate({query_gate_.get(), n_rows, config_->q_dim(), place.attended}));
  }
  const Buffer* const norm = weights.post_attention_norm.get();
  KVRUN_RETURN_IF_ERROR(Product(list, weights.block_output,
                                {.input = place.attended,
                                 .output = norm != nullptr ? block_result_.get() : place.hidden,
                                 .n_tokens = n_rows,
                                 .output_stride = config_->n_embd,
                                 .accumulate = norm == nullptr}));
  return norm != nullptr ? AddNormed(list, *norm, n_rows, place.hidden) : Status::Ok();
}

Status StepCommands::Experts(CommandList& list, uint32_t layer, uint32_t n_rows, Buffer* hidden) const {
  const DeviceLayer& weights = weights_->layers[layer];
  const ExpertConfig& experts = config_->experts;
  KVRUN_RETURN_IF_ERROR(Product(list, weights.router,
                                {.input = normed_.get(),
                                 .output = router_.get(),
                                 .n_tokens = n_rows,
                                 .output_stride = experts.n_experts}));
  KVRUN_RETURN_IF_ERROR(list.ChooseExperts({.logits = router_.get(),
                                            .n_tokens = n_rows,
                                            .n_experts = experts.n_experts,
                                            .n_used = experts.n_used,
                                            .ids = expert_ids_.get(),
                                            .weights = expert_weights_.get()}));
  ExpertMatMulArgs product{.weight = weights.experts_gate_up.get(),
                           .input = normed_.get(),
                           .ids = expert_ids_.get(),
                           .n_tokens = n_rows,
                           .n_used = experts.n_used,
                           .n_rows = 2 * experts.n_ff,
                           .output = gate_up_.get()};
  KVRUN_RETURN_IF_ERROR(list.ExpertMatMul(product));
  KVRUN_RETURN_IF_ERROR(list.GatedUnit({.gate_up = gate_up_.get(),
                                        .n_tokens = n_rows * experts.n_used,
                                        .n_ff = experts.n_ff,
                                        .out = ffn_.get(),
                                        .activation = GateOf(*config_)}));
  product.weight = weights.experts_down.get();
  product.input = ffn_.get();
  product.weights = expert_weights_.get();
  product.n_rows = config_->n_embd;
  product.output = hidden;
  return list.ExpertMatMul(product);
}

Status StepCommands::FeedForward(CommandList& list, uint32_t layer, uint32_t n_rows, Buffer* hidden) const {
  const DeviceLayer& weights = weights_->layers[layer];
  const uint32_t n_embd = config_->n_embd;
  if (weights.experts_down != nullptr) {
    KVRUN_RETURN_IF_ERROR(
        list.RmsNorm(*hidden, *weights.ffn_norm, config_->rms_epsilon, n_rows, n_embd, normed_.get()));
    return Experts(list, layer, n_rows, hidden);
  }
  KVRUN_RETURN_IF_ERROR(GatedProduct(list, layer, n_rows, hidden));
  const Buffer* const norm = weights.post_ffn_norm.get();
  KVRUN_RETURN_IF_ERROR(Product(list, weights.ffn_down,
                                {.input = ffn_.get(),
                                 .output = norm != nullptr ? block_result_.get() : hidden,
                                 .n_tokens = n_rows,
                                 .output_stride = n_embd,
                                 .accumulate = norm == nullptr}));
  return norm != nullptr ? AddNormed(list, *norm, n_rows, hidden) : Status::Ok();
}

Status StepCommands::GatedProduct(CommandList& list, uint32_t layer, uint32_t n_rows,
                                  const Buffer* hidden) const {
  const DeviceLayer& weights = weights_->layers[layer];
  MatMulArgs product{.input = hidden, .n_tokens = n_rows, .norm = Norm(weights.ffn_norm, normed_.get())};
  if (weights.gate_up.size() == 1) {
    product.weight = weights.gate_up.front().matrix.get();
    product.output = ffn_.get();
    product.gate = {.gate_up = gate_up_.get(), .activation = GateOf(*config_)};
    return list.MatMul(product);
  }
  product.output = gate_up_.get();
  product.output_stride = 2 * config_->n_ff;
  KVRUN_RETURN_IF_ERROR(Product(list, weights.gate_up, product));
  return list.GatedUnit({.gate_up = gate_up_.get(),
                         .n_tokens = n_rows,
                         .n_ff = config_->n_ff,
                         .out = ffn_.get(),
                         .activation = GateOf(*config_)});
}

Status StepCommands::AfterAttention(CommandList& list, uint32_t layer, uint32_t n_rows,
                                    const StepPlace& place) const {
  KVRUN_RETURN_IF_ERROR(BlockOutput(list, layer, n_rows, place));
  return FeedForward(list, layer, n_rows, place.hidden);
}

Status StepCommands::Query(CommandList& list, uint32_t layer, uint32_t n_rows,
                           const QueryPlace& place) const {
  const DeviceLayer& weights = weights_->layers[layer];
  MatMulArgs product{.input = place.hidden,
                     .output = place.query,
                     .bias = weights.has_qkv_bias ? weights.attention_norm.get() : nullptr,
                     .n_tokens = n_rows,
                     .output_stride = config_->q_dim(),
                     .norm = Norm(weights.attention_norm, place.normed)};
  for (const StackedMatrix& part : weights.qkv) {
    if (part.row_begin >= config_->q_dim()) break;
    product.weight = part.matrix.get();
    product.n_rows = std::min(part.matrix->n_rows(), config_->q_dim() - part.row_begin);
    product.output_offset = part.row_begin;
    product.bias_offset = config_->n_embd + part.row_begin;
    KVRUN_RETURN_IF_ERROR(list.MatMul(product));
    product.norm.was_before = true;
  }
  return Status::Ok();
}

Status StepCommands::Head(CommandList& list, uint32_t n_rows, uint32_t n_outputs,
                          const StepPlace& place) const {
  const bool is_only_row = n_rows == 1 && n_outputs == 1;
  if (!is_only_row) {
    KVRUN_RETURN_IF_ERROR(
        list.GatherRows(*place.hidden, *place.step, n_outputs, config_->n_embd, output_rows_.get()));
  }
  return list.MatMul({.weight = &weights_->output(),
                      .input = is_only_row ? place.hidden : output_rows_.get(),
                      .output = logits_.get(),
                      .n_tokens = n_outputs,
                      .norm = Norm(weights_->output_norm, output_rows_.get())});
}

std::span<const float> StepCommands::logits() const {
  const std::span<const std::byte> bytes = logits_->host();
  return {reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float)};
}

void StepCommands::CopyLogits(std::span<float> to, uint32_t first_row) const {
  std::copy_n(logits().begin() + static_cast<ptrdiff_t>(size_t{first_row} * config_->n_vocab), to.size(),
              to.begin());
  if (config_->logit_cap == 0.0F) return;
  for (float& logit : to) logit = config_->logit_cap * std::tanh(logit / config_->logit_cap);
}

Status StepCommands::CheckStep(const ForwardStep& step, uint32_t max_rows, uint32_t n_ctx,
                               uint32_t n_sequences) const {
  const std::span<const StepRow> rows = step.rows();
  if (rows.empty() || rows.size() > max_rows) {
    return {StatusCode::kInternal,
            fmt::format("a step of {} rows; 1 to {} can be run", rows.size(), max_rows)};
  }
  for (const StepRow& row : rows) {
    if (row.id < 0 || static_cast<uint32_t>(row.id) >= config_->n_vocab) {
      return {StatusCode::kInvalidArgument,
              fmt::format("token {} is not in the vocabulary (0 to {})", row.id, config_->n_vocab - 1)};
    }
    if (row.position >= n_ctx || row.sequence >= n_sequences) {
      return {StatusCode::kInternal,
              fmt::format("position {} of sequence {} is outside of the KV cache ({} x {})", row.position,
                          row.sequence, n_ctx, n_sequences)};
    }
  }
  return CheckSpans(step.kv().spans);
}

}  // namespace kvrun
