#include "runtime/engine/pass/device_weights.h"

#include <fmt/format.h>

#include <cstring>
#include <initializer_list>
#include <string>

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
    KVRUN_ASSIGN_OR_RETURN(layer.attention_norm, LoadVectors({source.attention_norm}, {config_.n_embd}));
    KVRUN_ASSIGN_OR_RETURN(layer.qkv, LoadStack({source.q, source.k, source.v}));
    KVRUN_ASSIGN_OR_RETURN(layer.qkv_bias,
                           LoadVectors({source.q_bias, source.k_bias, source.v_bias},
                                       {config_.q_dim(), config_.kv_dim(), config_.kv_dim()}));
    KVRUN_ASSIGN_OR_RETURN(layer.qk_norms,
                           LoadVectors({source.q_norm, source.k_norm}, {config_.head_dim, config_.head_dim}));
    KVRUN_ASSIGN_OR_RETURN(layer.attention_output, LoadStack({source.attention_output}));
    KVRUN_ASSIGN_OR_RETURN(layer.ffn_norm, LoadVectors({source.ffn_norm}, {config_.n_embd}));
    KVRUN_ASSIGN_OR_RETURN(layer.gate_up, LoadStack({source.ffn_gate, source.ffn_up}));
    KVRUN_ASSIGN_OR_RETURN(layer.ffn_down, LoadStack({source.ffn_down}));
    return layer;
  }

  Result<std::unique_ptr<Matrix>> LoadMatrix(const GgufTensor& tensor) {
    KVRUN_ASSIGN_OR_RETURN(MatrixStack stack, LoadStack({&tensor}));
    return std::move(stack.front().matrix);
  }

  Result<MatrixStack> LoadStack(std::initializer_list<const GgufTensor*> tensors) {
    MatrixStack stack;
    std::vector<MatrixSource> sources;
    uint32_t row = 0;
    for (auto it = tensors.begin(); it != tensors.end(); ++it) {
      const GgufTensor& tensor = **it;
      sources.push_back({.data = {},
                         .n_rows = static_cast<uint32_t>(tensor.shape[1]),
                         .read = [this, &tensor](uint64_t offset_bytes, std::span<std::byte> to) {
                           return file_.Read(tensor, offset_bytes, to);
                         }});
      const auto next = std::next(it);
      if (next != tensors.end() && (*next)->type == tensor.type) continue;
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
    for (const GgufTensor* tensor : tensors) KVRUN_RETURN_IF_ERROR(Loaded(*tensor));
    return stack;
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

uint64_t DeviceWeights::StepBytes() const {
  uint64_t bytes = output().row_product_bytes();
  for (const DeviceLayer& layer : layers) {
    for (const MatrixStack* stack : {&layer.qkv, &layer.attention_output, &layer.gate_up, &layer.ffn_down}) {
      for (const StackedMatrix& part : *stack) bytes += part.matrix->row_product_bytes();
    }
  }
  return bytes;
}

}  // namespace kvrun
