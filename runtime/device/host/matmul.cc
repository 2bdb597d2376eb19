#include <algorithm>
#include <bit>
#include <cstring>

#include "platform/base/check.h"
#include "platform/base/units.h"
#include "runtime/device/host/matmul_kernels.h"
#include "runtime/device/host/matrix.h"
#include "runtime/device/host/operations.h"

namespace kvrun::host {
namespace {

// Activations that are rounded by the calling thread alone: sooner done than another one wakes up.
constexpr size_t kSerialElements = size_t{16} * 1024;
// Activations in use at a time: they stay in the second-level cache while panels go past.
constexpr size_t kChunkBytes = size_t{512} * 1024;
// A panel is unpacked where so many tokens are multiplied with it, and where it stays in that cache as well.
constexpr size_t kUnpackFromTokens = 16;
constexpr size_t kMaxUnpackedPanelBytes = size_t{128} * 1024;

struct Product {
  explicit Product(const MatMulArgs& args)
      : matrix(static_cast<const HostMatrix&>(*args.weight)),
        x(Data<float>(args.input)),
        out(Data<float>(args.output) + args.output_offset),
        bias(args.bias == nullptr ? nullptr : Data<float>(args.bias) + args.bias_offset),
        n_tokens(args.n_tokens),
        n_rows(args.n_rows != 0 ? args.n_rows : matrix.n_rows()),
        stride(args.output_stride != 0 ? args.output_stride : n_rows),
        accumulate(args.accumulate) {}

  const HostMatrix& matrix;
  const float* x;
  float* out;
  const float* bias;  // null: none
  uint32_t n_tokens;
  uint32_t n_rows;
  size_t stride;
  bool accumulate;
};

void StoreTile(const Product& product, const TileSums& sums, size_t first_token, uint32_t n_tokens,
               size_t first_row) {
  const size_t n_rows = std::min<size_t>(kPanelRows, product.n_rows - first_row);
  const bool is_plain = n_rows == kPanelRows && product.bias == nullptr && !product.accumulate;
  for (uint32_t t = 0; t < n_tokens; ++t) {
    float* out = product.out + (first_token + t) * product.stride + first_row;
    if (is_plain) {
      std::memcpy(out, sums[t], sizeof(sums[t]));
      continue;
    }
    for (size_t r = 0; r < n_rows; ++r) {
      float sum = sums[t][r];
      if (product.bias != nullptr) sum += product.bias[first_row + r];
      out[r] = product.accumulate ? out[r] + sum : sum;
    }
  }
}

// multiply(first_token, n_tokens, sums) for tiles of [begin, end) with as many tokens as the kernels take.
template <typename F>
void ForTiles(const Product& product, uint32_t tile_tokens, size_t begin, size_t end, size_t first_row,
              const F& multiply) {
  alignas(64) TileSums sums;
  for (size_t t = begin; t < end;) {
    const auto n = static_cast<uint32_t>(std::min<size_t>(tile_tokens, std::bit_floor(end - t)));
    multiply(t, n, sums);
    StoreTile(product, sums, t, n, first_row);
    t += n;
  }
}

void MultiplyFloats(ThreadPool& pool, const MatMulKernels& kernels, const Product& product) {
  const PanelLayout& layout = product.matrix.layout();
  const uint32_t n_cols = layout.n_cols;
  const size_t panel_bytes = size_t{n_cols} * kPanelRows * sizeof(float);
  const bool decodes = layout.n_blocks != 0;
  if (decodes) pool.ReserveScratch(panel_bytes);
  pool.ParallelFor(product.n_rows, kPanelRows, [&](size_t begin, size_t end, uint32_t worker) {
    for (size_t row = begin; row < end; row += kPanelRows) {
      const std::byte* panel = product.matrix.panel(row / kPanelRows);
      TensorType type = layout.type;
      if (decodes) {
        std::byte* decoded = pool.Scratch(worker, panel_bytes);
        kernels.decode(layout, panel, reinterpret_cast<float*>(decoded));
        panel = decoded;
        type = TensorType::kF32;
      }
      ForTiles(product, kernels.tile_tokens, 0, product.n_tokens, row,
               [&](size_t t, uint32_t n, TileSums& sums) {
                 kernels.multiply_float(type, panel, n_cols, product.x + t * n_cols, n, sums);
               });
    }
  });
}

// Rounded activations of all tokens, in all workers' scratch together; before them, a panel for each worker.
// The first n_wide tokens are in 16 bits, the others in 8.
struct RoundedActivations {
  RoundedActivations(ThreadPool& pool, size_t n_tokens, size_t wide_tokens, size_t blocks_per_token,
                     size_t unpacked_panel_bytes)
      : n_blocks(blocks_per_token), n_wide(wide_tokens), panel_bytes(unpacked_panel_bytes) {
    const size_t wide_bytes = n_wide * n_blocks * sizeof(WideBlock);
    const size_t n_narrow = (n_tokens - n_wide) * n_blocks;
    const size_t n_masks = CeilDiv<size_t>(n_tokens - n_wide, kMaskTokens) * n_blocks;
    const size_t bytes = wide_bytes + n_narrow * (sizeof(ActivationBlock) + sizeof(FineBlock)) + n_masks;
    panels = pool.Scratch(0, panel_bytes + CeilDiv<size_t>(bytes, pool.size()));
    std::byte* at = panels + panel_bytes * pool.size();
    wide = reinterpret_cast<WideBlock*>(at);
    blocks = reinterpret_cast<ActivationBlock*>(at + wide_bytes);
    fine = reinterpret_cast<FineBlock*>(at + wide_bytes + n_narrow * sizeof(ActivationBlock));
    has_fine = reinterpret_cast<uint8_t*>(at + bytes - n_masks);
  }

  // n tokens, at most kMaskTokens, from a multiple of that on. After n_wide come fewer than that.
  void Round(const MatMulKernels& kernels, TensorType type, const float* x, size_t token, size_t n) const {
    const size_t n_first = token < n_wide ? std::min(n, n_wide - token) : 0;
    if (n_first > 0) {
      kernels.quantize_wide(x + token * n_blocks * kBlockColumns, n_first, n_blocks, wide + token * n_blocks);
    }
    if (n_first == n) return;
    token += n_first;
    const size_t at = (token - n_wide) * n_blocks;
    kernels.quantize(type, x + token * n_blocks * kBlockColumns, n - n_first, n_blocks, blocks + at,
                     fine + at, has_fine + at / kMaskTokens);
  }

  // Of those in 8 bits.
  ActivationTile Tile(size_t token) const {
    token -= n_wide;
    return {.blocks = blocks + token * n_blocks,
            .fine = fine + token * n_blocks,
            .has_fine = has_fine + token / kMaskTokens * n_blocks,
            .first_bit = static_cast<uint32_t>(token % kMaskTokens)};
  }

  // Where a worker unpacks a panel; null: it does not.
  std::byte* Panel(uint32_t worker) const {
    return panel_bytes == 0 ? nullptr : panels + worker * panel_bytes;
  }

  static constexpr size_t kMaskTokens = 8;  // bits of has_fine
  size_t n_blocks;
  size_t n_wide;
  size_t panel_bytes;  // 0: panels are multiplied as they are packed
  std::byte* panels;
  WideBlock* wide;          // [n_wide, n_blocks]
  ActivationBlock* blocks;  // [n_tokens - n_wide, n_blocks]
  FineBlock* fine;          // the same
  uint8_t* has_fine;        // [(n_tokens - n_wide) / 8, n_blocks]
};

void MultiplyInt8(ThreadPool& pool, const MatMulKernels& kernels, const Product& product) {
  const PanelLayout& layout = product.matrix.layout();
  const size_t n_blocks = layout.n_blocks;
  const size_t unpacked_bytes = n_blocks * kMaxUnpackedBytes;
  const bool unpacks = kernels.unpack != nullptr && product.n_tokens >= kUnpackFromTokens &&
                       unpacked_bytes <= kMaxUnpackedPanelBytes;
  const bool takes_wide = kernels.takes_wide != nullptr && kernels.takes_wide(layout.type);
  const size_t n_wide =
      takes_wide ? product.n_tokens / kernels.int8_tile_tokens * kernels.int8_tile_tokens : 0;
  const RoundedActivations activations(pool, product.n_tokens, n_wide, n_blocks,
                                       unpacks ? unpacked_bytes : 0);
  constexpr size_t kRows = RoundedActivations::kMaskTokens;
  const auto quantize = [&](size_t begin, size_t end, uint32_t) {
    for (size_t t = begin; t < end; t += kRows)
      activations.Round(kernels, layout.type, product.x, t, std::min(kRows, end - t));
  };
  if (product.n_tokens * n_blocks * kBlockColumns <= kSerialElements)
    quantize(0, product.n_tokens, 0);
  else
    pool.ParallelFor(product.n_tokens, kRows, quantize);

  const size_t row_bytes = n_blocks * (takes_wide ? sizeof(WideBlock) : sizeof(ActivationBlock));
  const size_t chunk = std::max(kChunkBytes / row_bytes / kTileTokens * kTileTokens, size_t{kTileTokens});
  const bool takes_tiles = kernels.begin_int8 != nullptr && product.n_tokens >= kernels.int8_tile_tokens;
  pool.ParallelFor(product.n_rows, kPanelRows, [&](size_t begin, size_t end, uint32_t worker) {
    if (takes_tiles) kernels.begin_int8();
    for (size_t token = 0; token < product.n_tokens; token += chunk) {
      const size_t last = std::min<size_t>(token + chunk, product.n_tokens);
      for (size_t row = begin; row < end; row += kPanelRows) {
        const std::byte* panel = product.matrix.panel(row / kPanelRows);
        std::byte* unpacked = activations.Panel(worker);
        if (unpacked != nullptr && !kernels.unpack(layout, panel, unpacked)) unpacked = nullptr;
        ForTiles(
            product, kernels.int8_tile_tokens, token, last, row, [&](size_t t, uint32_t n, TileSums& sums) {
              if (t < n_wide)
                return kernels.multiply_wide(layout, panel, unpacked, activations.wide + t * n_blocks, sums);
              ActivationTile tile = activations.Tile(t);
              tile.unpacked = unpacked;
              kernels.multiply_int8(layout, panel, tile, n, sums);
            });
      }
    }
    if (takes_tiles) kernels.end_int8();
  });
}

}  // namespace

void MatMul(ThreadPool& pool, const MatMulArgs& args, bool exact) {
  const Product product(args);
  KVRUN_CHECK(product.n_rows <= product.matrix.n_rows());
  if (product.n_tokens == 0 || product.n_rows == 0) return;
  const MatMulKernels kernels = GetMatMulKernels();
  // Float weights have no steps that would be coarser than those of rounded activations.
  if (exact || product.matrix.layout().n_blocks == 0)
    MultiplyFloats(pool, kernels, product);
  else
    MultiplyInt8(pool, kernels, product);
}

}  // namespace kvrun::host
