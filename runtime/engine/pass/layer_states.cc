#include "runtime/engine/pass/layer_states.h"

#include <algorithm>
#include <utility>

#include "platform/base/units.h"
#include "runtime/engine/pass/buffer_items.h"

namespace kvrun {
namespace {

constexpr uint32_t kRingEntries = 32;  // rings are multiples of this

KvShape WindowShape(const ModelConfig& config, KvType kv_type, uint32_t n_sequences, uint32_t n_ctx) {
  // A chunk's first row still sees a whole window when its last one is stored.
  const uint64_t ring = uint64_t{config.sliding_window} + kChunkRows - 1;
  return {.type = kv_type,
          .n_sequences = n_sequences,
          .n_kv_heads = config.n_kv_heads,
          .head_dim = config.head_dim,
          .n_ctx = RoundUp(static_cast<uint32_t>(std::min<uint64_t>(ring, n_ctx)), kRingEntries)};
}

uint64_t ConvolutionBytes(uint32_t n_taps, uint32_t n_channels) {
  return uint64_t{n_taps - 1} * n_channels * sizeof(float);
}

// Of one sequence, of one layer.
struct StateSizes {
  uint64_t first_bytes = 0;
  uint64_t second_bytes = 0;
};

StateSizes SizesOf(const ModelConfig& config, const LayerConfig& layer, const KvShape& window) {
  const DeltaNetConfig& net = config.delta_net;
  switch (layer.kind) {
    case LayerKind::kAttention: break;
    case LayerKind::kWindowedAttention: return {window.size_bytes() / window.n_sequences, 0};
    case LayerKind::kDeltaNet:
      return {ConvolutionBytes(net.n_taps, net.n_channels()),
              uint64_t{net.value_dim()} * net.head_dim * sizeof(float)};
    case LayerKind::kShortConvolution: return {ConvolutionBytes(config.n_convolution_taps, config.n_embd), 0};
  }
  return {};
}

bool Has(const ModelConfig& config, LayerKind kind) {
  return std::any_of(config.layers.begin(), config.layers.end(),
                     [kind](const LayerConfig& layer) { return layer.kind == kind; });
}

}  // namespace

uint64_t LayerStates::SizeBytes(const ModelConfig& config, KvType kv_type, uint32_t n_sequences,
                                uint32_t n_ctx) {
  const KvShape window = WindowShape(config, kv_type, n_sequences, n_ctx);
  uint64_t bytes = 0;
  for (const LayerConfig& layer : config.layers) {
    const StateSizes sizes = SizesOf(config, layer, window);
    bytes += n_sequences * (sizes.first_bytes + sizes.second_bytes);
  }
  return bytes;
}

Result<LayerStates> LayerStates::Create(const ModelConfig& config, Device& device, KvType kv_type,
                                        uint32_t n_sequences, uint32_t n_ctx) {
  LayerStates states;
  states.device_ = &device;
  states.config_ = &config;
  if (config.is_uniform()) return states;
  states.window_shape_ = WindowShape(config, kv_type, n_sequences, n_ctx);
  states.layers_.resize(config.n_layers);
  for (uint32_t i = 0; i < config.n_layers; ++i) {
    KVRUN_RETURN_IF_ERROR(states.MakeLayer(config.layers[i], n_sequences, &states.layers_[i]));
  }
  if (Has(config, LayerKind::kDeltaNet)) {
    KVRUN_ASSIGN_OR_RETURN(
        states.convolved_,
        device.CreateBuffer(uint64_t{kChunkRows} * config.delta_net.n_channels() * sizeof(float),
                            BufferUse::kDevice, "activations"));
  }
  return states;
}

Status LayerStates::MakeLayer(const LayerConfig& layer, uint32_t n_sequences, OfLayer* made) const {
  const StateSizes sizes = SizesOf(*config_, layer, window_shape_);
  const auto make = [&](uint64_t sequence_bytes, State* state) -> Status {
    if (sequence_bytes == 0) return Status::Ok();
    state->sequence_bytes = sequence_bytes;
    KVRUN_ASSIGN_OR_RETURN(state->buffer,
                           device_->CreateBuffer(n_sequences * sequence_bytes, BufferUse::kDevice, "kv"));
    return Status::Ok();
  };
  KVRUN_RETURN_IF_ERROR(make(sizes.first_bytes, &made->first));
  return make(sizes.second_bytes, &made->second);
}

AttentionArgs LayerStates::WindowAttention(const StepCommands& commands, uint32_t layer, uint32_t n_rows,
                                           bool of_prompt, const StepPlace& place) const {
  AttentionArgs args = commands.Attention(layer, n_rows, of_prompt, place);
  args.kv = layers_[layer].first.buffer.get();
  args.kv_shape = window_shape_;
  // Of a context that is shorter than the window all of it is seen.
  args.window_tokens = std::min(config_->sliding_window, window_shape_.n_ctx);
  args.scratch = scratch_.get();
  return args;
}

Status LayerStates::MakeScratch(const StepCommands& commands) {
  const auto windowed =
      std::find_if(config_->layers.begin(), config_->layers.end(),
                   [](const LayerConfig& layer) { return layer.kind == LayerKind::kWindowedAttention; });
  if (layers_.empty() || windowed == config_->layers.end()) return Status::Ok();
  const auto layer = static_cast<uint32_t>(windowed - config_->layers.begin());
  uint64_t bytes = 0;
  for (const bool of_prompt : {false, true}) {
    const uint32_t most = of_prompt ? kChunkRows : window_shape_.n_sequences;
    for (uint32_t n = 1; n <= most; ++n) {
      bytes = std::max(
          bytes, device_->AttendScratchBytes(WindowAttention(commands, layer, n, of_prompt, commands.own())));
    }
  }
  KVRUN_ASSIGN_OR_RETURN(scratch_, device_->CreateBuffer(bytes, BufferUse::kDevice, "activations"));
  return Status::Ok();
}

Status LayerStates::RecordInput(CommandList& list, const StepCommands& commands, uint32_t layer,
                                uint32_t n_rows, const StepPlace& place) {
  const bool is_attention = commands.config().layers[layer].kind == LayerKind::kWindowedAttention;
  return is_attention ? commands.Qkv(list, layer, n_rows, place)
                      : commands.StateInput(list, layer, n_rows, place);
}

Buffer* LayerStates::InputOf(const StepCommands& commands, uint32_t layer, const StepPlace& place) {
  const bool is_attention = commands.config().layers[layer].kind == LayerKind::kWindowedAttention;
  return is_attention ? place.qkv : commands.state_input();
}

LayerStates::Columns LayerStates::ColumnsOf(const ModelConfig& config, uint32_t layer) {
  switch (config.layers[layer].kind) {
    case LayerKind::kAttention:
    case LayerKind::kWindowedAttention: return {config.q_dim() + 2 * config.kv_dim(), config.q_dim()};
    case LayerKind::kDeltaNet: return {StepCommands::StateInputDim(config), config.delta_net.value_dim()};
    case LayerKind::kShortConvolution: return {StepCommands::StateInputDim(config), config.n_embd};
  }
  return {};
}

Status LayerStates::RecordLookBack(CommandList& list, const StepCommands& commands, uint32_t layer,
                                   uint32_t n_rows, bool of_prompt, const StepPlace& place) const {
  switch (config_->layers[layer].kind) {
    case LayerKind::kAttention: break;
    case LayerKind::kWindowedAttention: {
      const AttentionArgs args = WindowAttention(commands, layer, n_rows, of_prompt, place);
      if (!of_prompt) return list.AttendNew(args);
      KVRUN_RETURN_IF_ERROR(list.RopeAndStore(args));
      return list.Attend(args);
    }
    case LayerKind::kDeltaNet: return RecordDeltaNet(list, commands, layer, n_rows, of_prompt, place);
    case LayerKind::kShortConvolution:
      return RecordConvolution(list, commands, layer, n_rows, of_prompt, place);
  }
  return {StatusCode::kInternal, "a layer of full attention has no state"};
}

Status LayerStates::RecordDeltaNet(CommandList& list, const StepCommands& commands, uint32_t layer,
                                   uint32_t n_rows, bool of_prompt, const StepPlace& place) const {
  const DeltaNetConfig& net = config_->delta_net;
  const DeviceLayer& weights = commands.layer(layer);
  const uint32_t stride = StepCommands::StateInputDim(*config_);
  const uint32_t gate_offset = net.n_channels();
  KVRUN_RETURN_IF_ERROR(list.ShortConvolution({.input = commands.state_input(),
                                               .input_stride = stride,
                                               .taps = weights.taps.get(),
                                               .state = layers_[layer].first.buffer.get(),
                                               .step = place.step,
                                               .n_tokens = n_rows,
                                               .n_channels = net.n_channels(),
                                               .n_taps = net.n_taps,
                                               .of_prompt = of_prompt,
                                               .has_silu = true,
                                               .output = convolved_.get()}));
  KVRUN_RETURN_IF_ERROR(list.DeltaRule({.qkv = convolved_.get(),
                                        .gates = commands.state_input(),
                                        .gates_stride = stride,
                                        .alpha_offset = gate_offset + net.value_dim(),
                                        .beta_offset = gate_offset + net.value_dim() + net.n_value_heads,
                                        .constants = weights.delta_constants.get(),
                                        .state = layers_[layer].second.buffer.get(),
                                        .step = place.step,
                                        .n_tokens = n_rows,
                                        .n_key_heads = net.n_key_heads,
                                        .n_value_heads = net.n_value_heads,
                                        .head_dim = net.head_dim,
                                        .epsilon = config_->rms_epsilon,
                                        .of_prompt = of_prompt,
                                        .output = place.attended}));
  return list.GatedNorm({.values = place.attended,
                         .weight = weights.delta_norm.get(),
                         .gate = commands.state_input(),
                         .gate_stride = stride,
                         .gate_offset = gate_offset,
                         .epsilon = config_->rms_epsilon,
                         .n_tokens = n_rows,
                         .n_heads = net.n_value_heads,
                         .head_dim = net.head_dim});
}

Status LayerStates::RecordConvolution(CommandList& list, const StepCommands& commands, uint32_t layer,
                                      uint32_t n_rows, bool of_prompt, const StepPlace& place) const {
  return list.ShortConvolution({.input = commands.state_input(),
                                .input_stride = StepCommands::StateInputDim(*config_),
                                .taps = commands.layer(layer).taps.get(),
                                .state = layers_[layer].first.buffer.get(),
                                .step = place.step,
                                .n_tokens = n_rows,
                                .n_channels = config_->n_embd,
                                .n_taps = config_->n_convolution_taps,
                                .of_prompt = of_prompt,
                                .is_gated = true,
                                .output = place.attended});
}

std::vector<LayerStates::Placed> LayerStates::States() const {
  std::vector<Placed> states;
  for (uint32_t layer = 0; layer < layers_.size(); ++layer) {
    for (const State* state : {&layers_[layer].first, &layers_[layer].second}) {
      if (state->buffer != nullptr) states.push_back({layer, state});
    }
  }
  return states;
}

// Items 0 and 1 of a layer are its states; of a copy, those after them.
Status LayerStates::VisitState(StateVisitor& visitor, std::span<const uint32_t> lengths) const {
  if (are_none()) return Status::Ok();
  BufferItems items(*device_, visitor);
  for (const Placed& placed : States()) {
    const State& state = *placed.state;
    const auto item = static_cast<uint16_t>(&state == &layers_[placed.layer].first ? 0 : 1);
    for (uint32_t sequence = 0; sequence < lengths.size(); ++sequence) {
      if (lengths[sequence] == 0) continue;  // operations begin with nothing there
      const StateKey key{StatePart::kLayerStates, item, placed.layer, sequence};
      KVRUN_RETURN_IF_ERROR(
          items.Visit(key, state.buffer.get(), sequence * state.sequence_bytes, state.sequence_bytes));
    }
  }
  return Status::Ok();
}

Status LayerStates::VisitCopy(StateVisitor& visitor, uint32_t sequence, uint32_t nth,
                              const Copy& copy) const {
  BufferItems items(*device_, visitor);
  const std::vector<Placed> states = States();
  for (size_t i = 0; i < states.size(); ++i) {
    const bool is_first = states[i].state == &layers_[states[i].layer].first;
    const auto item = static_cast<uint16_t>(2 + 2 * nth + (is_first ? 0 : 1));
    const StateKey key{StatePart::kLayerStates, item, states[i].layer, sequence};
    KVRUN_RETURN_IF_ERROR(items.Visit(key, copy.buffers_[i].get(), 0, copy.buffers_[i]->size_bytes()));
  }
  return Status::Ok();
}

uint64_t LayerStates::Copy::size_bytes() const {
  uint64_t bytes = 0;
  for (const std::unique_ptr<Buffer>& buffer : buffers_) bytes += buffer->size_bytes();
  return bytes;
}

Result<LayerStates::Copy> LayerStates::MakeCopy() const {
  Copy copy;
  for (const Placed& placed : States()) {
    KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<Buffer> buffer,
                           device_->CreateBuffer(placed.state->sequence_bytes, BufferUse::kDevice, "kv"));
    copy.buffers_.push_back(std::move(buffer));
  }
  return copy;
}

Status LayerStates::RecordMove(CommandList& list, uint32_t sequence, const Copy& copy, bool saves,
                               std::optional<uint32_t> layer) const {
  const std::vector<Placed> states = States();
  for (size_t i = 0; i < states.size(); ++i) {
    if (layer && states[i].layer != *layer) continue;
    const State& state = *states[i].state;
    Buffer* const kept = copy.buffers_[i].get();
    const uint64_t place = sequence * state.sequence_bytes;
    CopyArgs args{
        .from = saves ? state.buffer.get() : kept, .to = saves ? kept : state.buffer.get(), .pieces = {}};
    args.pieces.push_back({saves ? place : 0, saves ? 0 : place, state.sequence_bytes});
    KVRUN_RETURN_IF_ERROR(list.Copy(args));
  }
  return Status::Ok();
}

Status LayerStates::Move(uint32_t sequence, const Copy& copy, bool saves) const {
  if (are_none()) return Status::Ok();
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<CommandList> list, device_->CreateCommandList());
  KVRUN_RETURN_IF_ERROR(RecordMove(*list, sequence, copy, saves, std::nullopt));
  KVRUN_RETURN_IF_ERROR(list->Finish());
  return device_->Execute(*list);
}

Status LayerStates::Save(uint32_t sequence, const Copy& to) const {
  return Move(sequence, to, /*saves=*/true);
}

Status LayerStates::Restore(uint32_t sequence, const Copy& from) {
  return Move(sequence, from, /*saves=*/false);
}

}  // namespace kvrun
