// The shape of a self-made model that is computed at once, for tests of what is around it.
#pragma once

#include "runtime/model/synthetic_model.h"

namespace kvrun::testing {

inline constexpr SyntheticShape kTinyShape{.name = "tiny",
                                           .n_layers = 2,
                                           .n_embd = 64,
                                           .n_ff = 96,
                                           .n_heads = 4,
                                           .n_kv_heads = 2,
                                           .head_dim = 32,
                                           .n_vocab = 300,
                                           .n_ctx_train = 1024,
                                           .rope_base = 10000.0F,
                                           .embedding_type = TensorType::kQ8_0,
                                           .matrix_type = TensorType::kQ4_1,
                                           .has_tied_output = true};

// The same with so many layers.
constexpr SyntheticShape TinyShape(uint32_t n_layers) {
  SyntheticShape shape = kTinyShape;
  shape.n_layers = n_layers;
  return shape;
}

}  // namespace kvrun::testing
