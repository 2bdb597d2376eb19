// Models of known shapes with random weights, for benchmarks: how fast a model is depends on its shapes and
// types, not on what it was taught.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "platform/base/status.h"
#include "runtime/model/model.h"
#include "runtime/model/tensor_type.h"

namespace kvrun {

struct SyntheticShape {
  std::string_view name;
  std::string_view architecture = "llama";  // or qwen3, whose heads of Q and K have norms
  uint32_t n_layers = 0;
  uint32_t n_embd = 0;
  uint32_t n_ff = 0;
  uint32_t n_heads = 0;
  uint32_t n_kv_heads = 0;
  uint32_t head_dim = 0;
  uint32_t n_vocab = 0;
  uint32_t n_ctx_train = 0;
  float rope_base = 0.0F;
  TensorType embedding_type = TensorType::kQ8_0;  // these two: Q4_0, Q4_1 or Q8_0
  TensorType matrix_type = TensorType::kQ4_0;     // of the output matrix too, where it has one of its own
  bool has_tied_output = true;
};

// The named ones.
std::span<const SyntheticShape> SyntheticShapes();
// An unknown name is answered with the known ones.
Result<SyntheticShape> FindSyntheticShape(std::string_view name);

// Of the weights of so many layers and of what is around them.
uint64_t SyntheticModelBytes(const SyntheticShape& shape, uint32_t n_layers);
// All layers where their weights take at most three quarters of `memory_bytes`; else as many as do, but at
// least 2, which the whole model's rates can be told from.
uint32_t LayersThatFit(const SyntheticShape& shape, uint64_t memory_bytes);

// n_layers 0: all. Of fewer than the shape has, Model::n_layers_whole says so. Weights are made when they are
// read, the same each time: they take neither memory nor a file. There is no tokenizer.
Result<std::unique_ptr<Model>> MakeSyntheticModel(const SyntheticShape& shape, uint32_t n_layers = 0);

}  // namespace kvrun
