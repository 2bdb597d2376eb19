// The inner loops of matrix products, for the best instruction set that the processor has.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/device/host/matrix.h"

namespace kvrun::host {

// 32 activations in 8 bits: x[i] = scale * quants[i], to half a step.
struct ActivationBlock {
  int8_t quants[kBlockColumns];  // never -128
  float scale;       // largest magnitude / 127; not a number where an activation is infinite or none
  float scaled_sum;  // of the activations as stored: what a minimum is multiplied with
  // What the sums of products start with, so that what a type subtracts from its quants is subtracted: minus
  // offset * sum of quants; [0] of all, or of columns 0 to 15 and 16 to 31 where these have their own scales.
  // Q2_K subtracts nothing, but these have their own minima: the sums of their quants, which minima are
  // multiplied with.
  int32_t start[2];
};
static_assert(sizeof(ActivationBlock) == 48);

// Where a block is larger than most of its row, its step would outweigh those of all others. Such a block has
// 8 bits more: x[i] = scale * (quants[i] + quants'[i] / 256), to a step and a half of those.
struct FineBlock {
  int8_t quants[kBlockColumns];  // never -128
  int32_t start[2];
};

// 32 activations in 16 bits, for weights of 8: what an ActivationBlock and its FineBlock say, x[i] = scale *
// quants[i]. Columns of even index, then the others.
struct WideBlock {
  int16_t quants[kBlockColumns];
  float scale;  // as ActivationBlock's; divided by 256 where the block is fine
};

// Tokens of one call at most, and what a kernel writes: sums[token][row of the panel].
inline constexpr uint32_t kTileTokens = 16;
using TileSums = float[kTileTokens][kPanelRows];

// Activations of a tile's tokens, n_blocks blocks each, one token after another.
struct ActivationTile {
  const ActivationBlock* blocks = nullptr;
  const FineBlock* fine = nullptr;  // of the same index; only those that `has_fine` names
  // Bit first_bit + t of has_fine[b]: block b of the tile's token t has a fine block. Of tokens from 8 on,
  // has_fine[n_blocks + b].
  const uint8_t* has_fine = nullptr;
  uint32_t first_bit = 0;
  // The panel that it is multiplied with, as `unpack` left it; null: none.
  const std::byte* unpacked = nullptr;
};

// What `unpack` writes of a panel at most, for each block.
inline constexpr size_t kMaxUnpackedBytes = 2 * kPanelRows * kBlockColumns;

// By what products of 8 bits are added up: what every processor of an instruction set has; an instruction
// that adds four in 32 bits; one for tiles of several rows and tokens (AMX, smmla).
enum class Int8Products : uint8_t { kPlain, kDot, kTiles };

struct MatMulKernels {
  const char* target;  // Highway's name of the instruction set
  Int8Products products;
  uint32_t tile_tokens;       // how many tokens at a time suit the registers: a power of two, at most 8
  uint32_t int8_tile_tokens;  // the same of multiply_int8: at most kTileTokens

  // At most 8 rows of n_blocks blocks of 32 floats, for products with matrices of `type`: blocks and fine are
  // [n_rows, n_blocks], has_fine is [n_blocks], bit r for row r. Rows 2 i and 2 i + 1 are to be in the same
  // tiles, and a last one without a second alone: how both lie is between this and multiply_int8.
  void (*quantize)(TensorType type, const float* x, size_t n_rows, size_t n_blocks, ActivationBlock* blocks,
                   FineBlock* fine, uint8_t* has_fine);
  // Null, or whether full tiles (of int8_tile_tokens) of a type are multiplied in 16 bits: then these replace
  // quantize and multiply_int8 there, and the results are the same bits. `unpacked` as in ActivationTile.
  bool (*takes_wide)(TensorType type);
  void (*quantize_wide)(const float* x, size_t n_rows, size_t n_blocks, WideBlock* blocks);
  void (*multiply_wide)(const PanelLayout& layout, const std::byte* panel, const std::byte* unpacked,
                        const WideBlock* blocks, TileSums& sums);
  // A panel's quants as products of int8_tile_tokens tokens read them soonest: worth it where there are
  // several such tiles. `to` is a multiple of 64 and has kMaxUnpackedBytes for each block. False, or a null
  // function: the type is multiplied as it is packed.
  bool (*unpack)(const PanelLayout& layout, const std::byte* panel, std::byte* to);
  // On each thread around any number of multiply_int8; null: nothing is to be done.
  void (*begin_int8)();
  void (*end_int8)();
  // A panel times n_tokens (1, 2, 4, 8, or 16 if that is int8_tile_tokens) rows of layout.n_blocks blocks. Of
  // a type that takes_wide names: fewer than int8_tile_tokens.
  void (*multiply_int8)(const PanelLayout& layout, const std::byte* panel, const ActivationTile& x,
                        uint32_t n_tokens, TileSums& sums);
  // A panel of a quantised type as floats [n_cols, 16]: a panel of F32.
  void (*decode)(const PanelLayout& layout, const std::byte* panel, float* out);
  // A panel of a float type times n_tokens (1, 2, 4 or 8) rows of n_cols floats.
  void (*multiply_float)(TensorType type, const std::byte* panel, uint32_t n_cols, const float* x,
                         uint32_t n_tokens, TileSums& sums);
};

MatMulKernels GetMatMulKernels();

// From the next call on, nothing better than `most` is used, where the instruction set can do without.
void LimitInt8Products(Int8Products most);

}  // namespace kvrun::host
