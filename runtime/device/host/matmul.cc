#include <algorithm>
#include <bit>
#include <cstring>

#include "platform/base/check.h"
#include "platform/base/units.h"
#include "runtime/device/host/matmul_kernels.h"
#include "runtime/device/host/matrix.h"
#include "runtime/device/host/operations.h"
#include "runtime/device/host/rounded_rows.h"

namespace kvrun::host {
namespace {

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

void MultiplyInt8(ThreadPool& pool, const MatMulKernels& kernels, const Product& product) {
  const PanelLayout& layout = product.matrix.layout();
  const size_t n_blocks = layout.n_blocks;
  const size_t unpacked_bytes = n_blocks * kMaxUnpackedBytes;
  const bool unpacks = kernels.unpack != nullptr && product.n_tokens >= kUnpackFromRows &&
                       unpacked_bytes <= kMaxUnpackedPanelBytes;
  // In all workers' scratch together; before it, a panel for each of them.
  const size_t panel_bytes = unpacks ? unpacked_bytes : 0;
  const size_t n_wide = RoundedRows::CountWide(kernels, layout.type, product.n_tokens);
  const size_t bytes = RoundedRows::Bytes(product.n_tokens, n_wide, n_blocks);
  std::byte* const panels = pool.Scratch(0, panel_bytes + CeilDiv<size_t>(bytes, pool.size()));
  const RoundedRows rows(panels + panel_bytes * pool.size(), product.n_tokens, n_wide, n_blocks);
  constexpr size_t kRows = RoundedRows::kMaskRows;
  const auto round = [&](size_t begin, size_t end, uint32_t) {
    for (size_t t = begin; t < end; t += kRows)
      rows.Round(kernels, layout.type, product.x + t * n_blocks * kBlockColumns, t, std::min(kRows, end - t));
  };
  if (product.n_tokens * n_blocks * kBlockColumns <= kSerialElements)
    round(0, product.n_tokens, 0);
  else
    pool.ParallelFor(product.n_tokens, kRows, round);

  const size_t chunk = ChunkRows(n_blocks, RoundedRows::CountWide(kernels, layout.type, kTileTokens) > 0);
  const bool takes_tiles = kernels.begin_int8 != nullptr && product.n_tokens >= kernels.int8_tile_tokens;
  pool.ParallelFor(product.n_rows, kPanelRows, [&](size_t begin, size_t end, uint32_t worker) {
    if (takes_tiles) kernels.begin_int8();
    for (size_t token = 0; token < product.n_tokens; token += chunk) {
      const size_t last = std::min<size_t>(token + chunk, product.n_tokens);
      for (size_t row = begin; row < end; row += kPanelRows) {
        const std::byte* panel = product.matrix.panel(row / kPanelRows);
        std::byte* unpacked = unpacks ? panels + worker * panel_bytes : nullptr;
        if (unpacked != nullptr && !kernels.unpack(layout, panel, unpacked)) unpacked = nullptr;
        ForTiles(product, kernels.int8_tile_tokens, token, last, row,
                 [&](size_t t, uint32_t n, TileSums& sums) {
                   rows.Multiply(kernels, layout, panel, unpacked, t, n, sums);
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
