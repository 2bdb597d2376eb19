#include "runtime/engine/pass/device_weights.h"

#include <fmt/format.h>

#include <cstring>
#include <initializer_list>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "runtime/engine/pass/forward_pass.h"

namespace kvrun {
namespace {

class WeightLoader {
 public:
  WeightLoader(const GgufFile& file, const ModelConfig& config, const ModelWeights& source, Device& device,
               const std::function<bool(uint64_t, uint64_t)>& progress)
      : file_(file), config_(config), source_(source), device_(device), progress_(progress) {
    for (const GgufTensor& tensor : file.tensors()) total_bytes_ += tensor.size_bytes;
  }

  Result<std::shared_ptr<const DeviceWeights>> Load() {
    auto weights = std::make_shared<DeviceWeights>();
    KVRUN_ASSIGN_OR_RETURN(weights->token_embedding, LoadMatrix(*source_.token_embedding));
    if (source_.output != source_.token_embedding) {
      KVRUN_ASSIGN_OR_RETURN(weights->untied_output, LoadMatrix(*source_.output));
    }
    KVRUN_ASSIGN_OR_RETURN(weights->output_norm, LoadVectors({source_.output_norm}, {config_.n_embd}));
    for (const LayerWeights& layer : source_.layers) {
      KVRUN_ASSIGN_OR_RETURN(DeviceLayer loaded, LoadLayer(layer));
      weights->layers.push_back(std::move(loaded));
    }
    // What the model does not use as a matrix or vector (RoPE divisors) is not counted while loading.
    if (progress_ && progress_(total_bytes_, total_bytes_)) return Cancelled();
    return std::shared_ptr<const DeviceWeights>(std::move(weights));
  }

 private:
  static Status Cancelled() { return {StatusCode::kCancelled, "loading was cancelled"}; }

  Result<DeviceLayer> LoadLayer(const LayerWeights& source) {
    DeviceLayer layer;
    KVRUN_RETURN_IF_ERROR(LoadAttentionNorm(source, layer));
    if (source.q.is_there()) KVRUN_RETURN_IF_ERROR(LoadAttention(source, layer));
    if (source.delta_qkv != nullptr) KVRUN_RETURN_IF_ERROR(LoadDeltaNet(source, layer));
    if (source.convolution_input != nullptr) KVRUN_RETURN_IF_ERROR(LoadConvolution(source, layer));
    KVRUN_ASSIGN_OR_RETURN(layer.post_attention_norm,
                           LoadVectors({source.post_attention_norm}, {config_.n_embd}));
    KVRUN_ASSIGN_OR_RETURN(layer.ffn_norm, LoadVectors({source.ffn_norm}, {config_.n_embd}));
    KVRUN_RETURN_IF_ERROR(source.router != nullptr ? LoadExperts(source, layer)
                                                   : LoadFeedForward(source, layer));
    KVRUN_ASSIGN_OR_RETURN(layer.post_ffn_norm, LoadVectors({source.post_ffn_norm}, {config_.n_embd}));
    return layer;
  }

  Status LoadAttentionNorm(const LayerWeights& source, DeviceLayer& layer) {
    layer.has_qkv_bias = source.q_bias != nullptr || source.k_bias != nullptr || source.v_bias != nullptr;
    if (!layer.has_qkv_bias) {
      KVRUN_ASSIGN_OR_RETURN(layer.attention_norm, LoadVectors({source.attention_norm}, {config_.n_embd}));
      return Status::Ok();
    }
    KVRUN_ASSIGN_OR_RETURN(
        layer.attention_norm,
        LoadVectors({source.attention_norm, source.q_bias, source.k_bias, source.v_bias},
                    {config_.n_embd, config_.q_dim(), config_.kv_dim(), config_.kv_dim()}));
    return Status::Ok();
  }

  Status LoadAttention(const LayerWeights& source, DeviceLayer& layer) {
    std::vector<Rows> qkv;
    std::vector<Rows> gate;
    if (config_.has_query_gate) {
      // The file has a head's query, then its gate.
      for (uint32_t head = 0; head < config_.n_heads; ++head) {
        const uint32_t first = 2 * head * config_.head_dim;
        qkv.push_back({source.q.tensor, first, config_.head_dim});
        gate.push_back({source.q.tensor, first + config_.head_dim, config_.head_dim});
      }
    } else {
      qkv.push_back(Of(source.q));
    }
    qkv.insert(qkv.end(), {Of(source.k), Of(source.v)});
    KVRUN_ASSIGN_OR_RETURN(layer.qkv, LoadStack(qkv));
    KVRUN_ASSIGN_OR_RETURN(layer.query_gate, LoadStack(gate));
    KVRUN_ASSIGN_OR_RETURN(layer.qk_norms,
                           LoadVectors({source.q_norm, source.k_norm}, {config_.head_dim, config_.head_dim}));
    KVRUN_ASSIGN_OR_RETURN(layer.block_output, LoadStack({Of(source.attention_output)}));
    return Status::Ok();
  }

  Status LoadDeltaNet(const LayerWeights& source, DeviceLayer& layer) {
    const DeltaNetConfig& net = config_.delta_net;
    KVRUN_ASSIGN_OR_RETURN(layer.state_input, LoadStack({Of(source.delta_qkv), Of(source.delta_gate),
                                                         Of(source.delta_alpha), Of(source.delta_beta)}));
    KVRUN_ASSIGN_OR_RETURN(layer.taps, LoadVectors({source.delta_taps}, {net.n_channels() * net.n_taps}));
    KVRUN_ASSIGN_OR_RETURN(layer.delta_constants, LoadVectors({source.delta_a, source.delta_dt_bias},
                                                              {net.n_value_heads, net.n_value_heads}));
    KVRUN_ASSIGN_OR_RETURN(layer.delta_norm, LoadVectors({source.delta_norm}, {net.head_dim}));
    KVRUN_ASSIGN_OR_RETURN(layer.block_output, LoadStack({Of(source.delta_output)}));
    return Status::Ok();
  }

  Status LoadConvolution(const LayerWeights& source, DeviceLayer& layer) {
    KVRUN_ASSIGN_OR_RETURN(layer.state_input, LoadStack({Of(source.convolution_input)}));
    KVRUN_ASSIGN_OR_RETURN(
        layer.taps, LoadVectors({source.convolution_taps}, {config_.n_embd * config_.n_convolution_taps}));
    KVRUN_ASSIGN_OR_RETURN(layer.block_output, LoadStack({Of(source.convolution_output)}));
    return Status::Ok();
  }

  Status LoadFeedForward(const LayerWeights& source, DeviceLayer& layer) {
    KVRUN_ASSIGN_OR_RETURN(layer.gate_up, LoadStack({Of(source.ffn_gate), Of(source.ffn_up)}));
    KVRUN_ASSIGN_OR_RETURN(layer.ffn_down, LoadStack({Of(source.ffn_down)}));
    return Status::Ok();
  }

  Status LoadExperts(const LayerWeights& source, DeviceLayer& layer) {
    if (source.experts_gate->type != source.experts_up->type) {
      return {StatusCode::kUnsupported,
              fmt::format("{} is {}, but {} is {}; kvrun computes experts of which both have one type",
                          source.experts_gate->name, TensorTypeName(source.experts_gate->type),
                          source.experts_up->name, TensorTypeName(source.experts_up->type))};
    }
    const uint32_t n_ff = config_.experts.n_ff;
    std::vector<Rows> gate_up;
    for (uint32_t expert = 0; expert < config_.experts.n_experts; ++expert) {
      gate_up.push_back({source.experts_gate, expert * n_ff, n_ff});
      gate_up.push_back({source.experts_up, expert * n_ff, n_ff});
    }
    KVRUN_ASSIGN_OR_RETURN(layer.router, LoadStack({Of(source.router)}));
    KVRUN_ASSIGN_OR_RETURN(layer.experts_gate_up, LoadOne(gate_up));
    KVRUN_ASSIGN_OR_RETURN(layer.experts_down, LoadOne({Of(source.experts_down)}));
    return Status::Ok();
  }

  // Some rows of a tensor.
  struct Rows {
    const GgufTensor* tensor;
    uint32_t first_row;
    uint32_t n_rows;
  };
  static Rows Of(const WeightMatrix& matrix) { return {matrix.tensor, matrix.first_row, matrix.n_rows}; }
  static Rows Of(const GgufTensor* tensor) {
    return {tensor, 0, static_cast<uint32_t>(tensor->shape[1] * tensor->shape[2])};
  }

  Result<std::unique_ptr<Matrix>> LoadMatrix(const GgufTensor& tensor) { return LoadOne({Of(&tensor)}); }

  // Of one type.
  Result<std::unique_ptr<Matrix>> LoadOne(std::span<const Rows> rows) {
    KVRUN_ASSIGN_OR_RETURN(MatrixStack stack, LoadStack(rows));
    return std::move(stack.front().matrix);
  }
  Result<std::unique_ptr<Matrix>> LoadOne(std::initializer_list<Rows> rows) {
    return LoadOne(std::span(rows.begin(), rows.size()));
  }
  Result<MatrixStack> LoadStack(std::initializer_list<Rows> rows) {
    return LoadStack(std::span(rows.begin(), rows.size()));
  }

  Result<MatrixStack> LoadStack(std::span<const Rows> rows) {
    MatrixStack stack;
    std::vector<MatrixSource> sources;
    uint32_t row = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      const GgufTensor& tensor = *rows[i].tensor;
      const uint64_t row_bytes = tensor.size_bytes / (tensor.shape[1] * tensor.shape[2]);
      sources.push_back({.data = {},
                         .n_rows = rows[i].n_rows,
                         .read = [this, &tensor, begin = rows[i].first_row * row_bytes](
                                     uint64_t offset_bytes, std::span<std::byte> to) {
                           return file_.Read(tensor, begin + offset_bytes, to);
                         }});
      if (i + 1 < rows.size() && rows[i + 1].tensor->type == tensor.type) continue;
      StackedMatrix part;
      part.row_begin = row;
      auto matrix = device_.CreateMatrix(tensor.type, static_cast<uint32_t>(tensor.shape[0]), sources);
      // Who reads says what: the tensor, of several in a stack.
      if (!matrix.ok()) {
        const bool is_reading =
            matrix.status().code() == StatusCode::kCorrupt || matrix.status().code() == StatusCode::kIo;
        return is_reading ? matrix.status()
                          : matrix.status().WithContext(fmt::format("loading {}", tensor.name));
      }
      part.matrix = std::move(matrix).value();
      row += part.matrix->n_rows();
      stack.push_back(std::move(part));
      sources.clear();
    }
    KVRUN_RETURN_IF_ERROR(LoadedAll(rows));
    return stack;
  }

  // Each tensor once.
  Status LoadedAll(std::span<const Rows> rows) {
    for (const Rows& some : rows) {
      if (is_loaded_.insert(some.tensor).second) KVRUN_RETURN_IF_ERROR(Loaded(*some.tensor));
    }
    return Status::Ok();
  }

  // Vectors one after another; null tensors are zeros, and null is answered where all are null.
  Result<std::unique_ptr<Buffer>> LoadVectors(std::initializer_list<const GgufTensor*> tensors,
                                              std::initializer_list<uint32_t> sizes) {
    std::vector<float> values;
    bool is_there = false;
    auto size = sizes.begin();
    for (const GgufTensor* tensor : tensors) {
      const size_t begin = values.size();
      values.resize(begin + *size++);
      if (tensor == nullptr) continue;
      is_there = true;
      KVRUN_RETURN_IF_ERROR(file_.Read(*tensor, 0, std::as_writable_bytes(std::span(values).subspan(begin))));
      KVRUN_RETURN_IF_ERROR(Loaded(*tensor));
    }
    if (!is_there) return std::unique_ptr<Buffer>();
    return device_.CreateConstants(std::as_bytes(std::span(values)), "weights");
  }

  Status Loaded(const GgufTensor& tensor) {
    done_bytes_ += tensor.size_bytes;
    if (progress_ && progress_(done_bytes_, total_bytes_)) return Cancelled();
    return Status::Ok();
  }

  const GgufFile& file_;
  const ModelConfig& config_;
  const ModelWeights& source_;
  Device& device_;
  const std::function<bool(uint64_t, uint64_t)>& progress_;
  std::unordered_set<const GgufTensor*> is_loaded_;
  uint64_t done_bytes_ = 0;
  uint64_t total_bytes_ = 0;
};

}  // namespace

Result<std::shared_ptr<const DeviceWeights>> LoadDeviceWeights(
    const Model& model, Device& device, const std::function<bool(uint64_t, uint64_t)>& progress) {
  return LoadDeviceWeights(*model.file, model.config, model.weights, device, progress);
}

Result<std::shared_ptr<const DeviceWeights>> LoadDeviceWeights(
    const GgufFile& file, const ModelConfig& config, const ModelWeights& weights, Device& device,
    const std::function<bool(uint64_t, uint64_t)>& progress) {
  return WeightLoader(file, config, weights, device, progress).Load();
}

uint64_t DeviceWeights::StepBytes(const ExpertConfig& experts) const {
  uint64_t bytes = output().row_product_bytes();
  for (const DeviceLayer& layer : layers) {
    for (const MatrixStack* stack : {&layer.qkv, &layer.query_gate, &layer.state_input, &layer.block_output,
                                     &layer.gate_up, &layer.ffn_down, &layer.router}) {
      for (const StackedMatrix& part : *stack) bytes += part.matrix->row_product_bytes();
    }
    for (const Matrix* matrix : {layer.experts_gate_up.get(), layer.experts_down.get()}) {
      if (matrix != nullptr) bytes += matrix->row_product_bytes() / experts.n_experts * experts.n_used;
    }
  }
  return bytes;
}

}  // namespace kvrun
