// Models of known shapes with random weights, for benchmarks: how fast a model is depends on its shapes and
// types, not on what it was taught.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "platform/base/status.h"
#include "runtime/model/model.h"
#include "runtime/model/tensor_type.h"

namespace kvrun {

// Of the architecture llama.
struct SyntheticShape {
  std::string_view name;
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
  uint32_t n_layers_made = 0;  // unless others are asked for; 0: all
};

// The named ones.
std::span<const SyntheticShape> SyntheticShapes();
// An unknown name is answered with the known ones.
Result<SyntheticShape> FindSyntheticShape(std::string_view name);

// n_layers 0: as many as the shape says. Of fewer than the shape has, Model::n_layers_whole says so. The
// weights lie in a file without a name in `folder`, which is made where it is missing: their size is that of
// the model's file, in memory are a few MiB of them at a time. The same arguments make the same weights.
// There is no tokenizer.
Result<std::unique_ptr<Model>> MakeSyntheticModel(const SyntheticShape& shape, uint32_t n_layers,
                                                  const std::string& folder);

}  // namespace kvrun
