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
  std::string_view architecture = "llama";  // a row of runtime/model/architectures.cc, without experts
  // The layers' kinds, again and again, a letter each: (a)ttention, (w)indowed attention, (d)elta net, short
  // (c)onvolution; of these one that the architecture has. Empty: all attend.
  std::string_view kinds = {};
  uint32_t n_layers = 0;
  uint32_t n_embd = 0;
  uint32_t n_ff = 0;
  uint32_t n_heads = 0;
  uint32_t n_kv_heads = 0;
  uint32_t head_dim = 0;
  uint32_t rotary_dim = 0;          // of a head's; 0: all
  uint32_t sliding_window = 0;      // of windowed attention
  DeltaNetConfig delta_net = {};    // of delta nets
  uint32_t n_convolution_taps = 0;  // of short convolutions
  uint32_t n_vocab = 0;
  uint32_t n_ctx_train = 0;
  float rope_base = 0.0F;
  TensorType embedding_type = TensorType::kQ8_0;  // these two: Q4_0, Q4_1 or Q8_0
  TensorType matrix_type = TensorType::kQ4_0;     // of the output matrix too, where it has one of its own
  bool has_tied_output = true;

  // Layers after which kinds begin again.
  uint32_t period() const { return kinds.empty() ? 1 : static_cast<uint32_t>(kinds.size()); }
  LayerKind KindOf(uint32_t layer) const;
};

// The named ones.
std::span<const SyntheticShape> SyntheticShapes();
// An unknown name is answered with the known ones.
Result<SyntheticShape> FindSyntheticShape(std::string_view name);

// Of the weights of so many layers and of what is around them.
uint64_t SyntheticModelBytes(const SyntheticShape& shape, uint32_t n_layers);
// All layers where their weights take at most three quarters of `memory_bytes`; else as many whole periods as
// do, but at least 2, which the whole model's rates can be told from, or all.
uint32_t LayersThatFit(const SyntheticShape& shape, uint64_t memory_bytes);

// n_layers 0: all. Of fewer than the shape has, Model::n_layers_whole says so. Weights are made when they are
// read, the same each time: they take neither memory nor a file. There is no tokenizer.
Result<std::unique_ptr<Model>> MakeSyntheticModel(const SyntheticShape& shape, uint32_t n_layers = 0);

}  // namespace kvrun
