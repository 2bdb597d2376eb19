// What a worker's memory for the delta rule holds.
#pragma once

#include <cstddef>
#include <cstdint>

#include "platform/base/units.h"

namespace kvrun::host {

inline constexpr size_t kDeltaChunk = 64;  // rows
inline constexpr size_t kDeltaTileRows = 4;
inline constexpr size_t kDeltaPad = 16;  // floats: a multiple of every vector
inline constexpr size_t kDeltaMostDims = 256;
// What so little of is left counts as nothing: products of any smaller would not be normal numbers.
inline constexpr float kDeltaNothing = 1e-30F;

// A row by itself.
struct DeltaRow {
  float key[kDeltaMostDims];
  float query[kDeltaMostDims];  // divided by sqrt(head_dim)
  float key_query;              // their product
  float decay;
  float beta;
};

// A head's chunk. Rows are as long as whole vectors, with zeros in the end.
struct DeltaChunk {
  DeltaChunk(size_t n_dims, std::byte* bytes)
      : head_dim(n_dims), dims(RoundUp(n_dims, kDeltaPad)), memory(reinterpret_cast<float*>(bytes)) {}

  // Where the state lies that is worked on, [head_dim, dims]: in its own place, where rows are whole vectors
  // there, else here.
  float* state = nullptr;
  bool needs_copy() const { return head_dim != dims; }
  float* copied_state() const { return memory; }
  float* keys() const { return memory + (needs_copy() ? head_dim * dims : 0); }  // [kDeltaChunk, dims]
  float* queries() const { return keys() + kDeltaChunk * dims; }                 // the same
  float* turned_keys() const { return queries() + kDeltaChunk * dims; }          // [head_dim, kDeltaChunk]
  float* writes() const { return turned_keys() + kDeltaChunk * dims; }           // values, then u
  float* outputs() const { return writes() + kDeltaChunk * dims; }
  // [kDeltaChunk, kDeltaChunk] each.
  float* key_products() const { return outputs() + kDeltaChunk * dims; }
  float* query_products() const { return key_products() + kDeltaChunk * kDeltaChunk; }
  float* system() const { return query_products() + kDeltaChunk * kDeltaChunk; }
  float* weights() const { return system() + kDeltaChunk * kDeltaChunk; }
  // Of each row.
  float* decays() const { return weights() + kDeltaChunk * kDeltaChunk; }
  float* betas() const { return decays() + kDeltaChunk; }
  float* left() const { return betas() + kDeltaChunk; }            // of the state, after the row
  float* decayed() const { return left() + kDeltaChunk; }          // what is left of a row's write
  float* state_scales() const { return decayed() + kDeltaChunk; }  // [head_dim]

  // Of all above. It is asked before there is memory, where no pointer may be counted on.
  size_t bytes() const {
    const size_t of_rows =
        5 * dims + 4 * kDeltaChunk + 4;  // keys to outputs; products to weights; decays to decayed
    return ((needs_copy() ? head_dim * dims : 0) + kDeltaChunk * of_rows + dims) * sizeof(float);
  }

  size_t head_dim;
  size_t dims;
  float* memory;
};

}  // namespace kvrun::host
