#include "runtime/engine/device_weights.h"

#include <fmt/format.h>

#include <cstring>
#include <initializer_list>
#include <string>

#include "runtime/engine/forward_pass.h"

namespace kvrun {
namespace {

class WeightLoader {
 public:
  WeightLoader(const Model& model, Device& device, const std::function<bool(uint64_t, uint64_t)>& progress)
      : model_(model), device_(device), progress_(progress) {
    for (const GgufTensor& tensor : model.file->tensors()) total_bytes_ += tensor.data.size();
  }

  Result<std::shared_ptr<const DeviceWeights>> Load() {
    const ModelWeights& source = model_.weights;
    auto weights = std::make_shared<DeviceWeights>();
    KVRUN_ASSIGN_OR_RETURN(weights->token_embedding, LoadMatrix(*source.token_embedding));
    if (source.output != source.token_embedding) {
      KVRUN_ASSIGN_OR_RETURN(weights->untied_output, LoadMatrix(*source.output));
    }
    KVRUN_ASSIGN_OR_RETURN(weights->output_norm, LoadVectors({source.output_norm}, {model_.config.n_embd}));
    for (const LayerWeights& layer : source.layers) {
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
    const ModelConfig& config = model_.config;
    DeviceLayer layer;
    KVRUN_ASSIGN_OR_RETURN(layer.attention_norm, LoadVectors({source.attention_norm}, {config.n_embd}));
    KVRUN_ASSIGN_OR_RETURN(layer.qkv, LoadStack({source.q, source.k, source.v}));
    KVRUN_ASSIGN_OR_RETURN(layer.qkv_bias, LoadVectors({source.q_bias, source.k_bias, source.v_bias},
                                                       {config.q_dim(), config.kv_dim(), config.kv_dim()}));
    KVRUN_ASSIGN_OR_RETURN(layer.qk_norms,
                           LoadVectors({source.q_norm, source.k_norm}, {config.head_dim, config.head_dim}));
    KVRUN_ASSIGN_OR_RETURN(layer.attention_output, LoadStack({source.attention_output}));
    KVRUN_ASSIGN_OR_RETURN(layer.ffn_norm, LoadVectors({source.ffn_norm}, {config.n_embd}));
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
      sources.push_back({tensor.data, static_cast<uint32_t>(tensor.shape[1])});
      const auto next = std::next(it);
      if (next != tensors.end() && (*next)->type == tensor.type) continue;
      StackedMatrix part;
      part.row_begin = row;
      auto matrix = device_.CreateMatrix(tensor.type, static_cast<uint32_t>(tensor.shape[0]), sources);
      if (!matrix.ok()) return matrix.status().WithContext(fmt::format("loading {}", tensor.name));
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
      std::memcpy(values.data() + begin, tensor->data.data(), (values.size() - begin) * sizeof(float));
      KVRUN_RETURN_IF_ERROR(Loaded(*tensor));
    }
    if (!is_there) return std::unique_ptr<Buffer>();
    return device_.CreateConstants(values, "weights");
  }

  Status Loaded(const GgufTensor& tensor) {
    model_.file->DropResidentPages(tensor.data);
    done_bytes_ += tensor.data.size();
    if (progress_ && progress_(done_bytes_, total_bytes_)) return Cancelled();
    return Status::Ok();
  }

  const Model& model_;
  Device& device_;
  const std::function<bool(uint64_t, uint64_t)>& progress_;
  uint64_t done_bytes_ = 0;
  uint64_t total_bytes_ = 0;
};

}  // namespace

Result<std::shared_ptr<const DeviceWeights>> LoadDeviceWeights(
    const Model& model, Device& device, const std::function<bool(uint64_t, uint64_t)>& progress) {
  return WeightLoader(model, device, progress).Load();
}

uint64_t DeviceWeights::StepBytes() const {
  uint64_t bytes = output().size_bytes();
  for (const DeviceLayer& layer : layers) {
    for (const MatrixStack* stack : {&layer.qkv, &layer.attention_output, &layer.gate_up, &layer.ffn_down}) {
      for (const StackedMatrix& part : *stack) bytes += part.matrix->size_bytes();
    }
  }
  return bytes;
}

}  // namespace kvrun
