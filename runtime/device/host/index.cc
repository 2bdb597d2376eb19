// Keys of a prompt, projected.
#include "runtime/device/instruction_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/device/host/index.cc"
#include <hwy/foreach_target.h>
// What is compiled for each target may use these.
#include <hwy/highway.h>

#include <algorithm>

#include "runtime/device/host/operations.h"
#include "runtime/device/host/project-inl.h"
#include "runtime/device/host/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvrun::host::HWY_NAMESPACE {
namespace {

// With the side's rows from `first_dim` on.
void ProjectRows(const float* rows, size_t row_stride, size_t n_rows, size_t n_dims, const IndexSides& sides,
                 size_t first_dim, size_t rank, float* out) {
  const size_t begin = first_dim * rank;
  if (sides.are_halves) {
    const auto* const side = Data<hwy::float16_t>(sides.key_side) + begin;
    AddProjections(rows, row_stride, n_rows, n_dims, side, rank, out);
  } else {
    AddProjections(rows, row_stride, n_rows, n_dims, Data<float>(sides.key_side) + begin, rank, out);
  }
}

// As ProjectRows, of halves that lie side by side. `floats` holds n_rows * n_dims and a vector more.
void ProjectHalves(const uint16_t* rows, size_t n_rows, size_t n_dims, const IndexSides& sides,
                   size_t first_dim, size_t rank, float* floats, float* out) {
  const hn::ScalableTag<float> d;
  const hn::Rebind<hwy::float16_t, decltype(d)> dh;
  const auto* halves = reinterpret_cast<const hwy::float16_t*>(rows);
  // The last vector may read beyond the halves, which a buffer allows.
  for (size_t i = 0; i < n_rows * n_dims; i += hn::Lanes(d)) {
    hn::StoreU(FromHalves(d, hn::LoadU(dh, halves + i)), d, floats + i);
  }
  ProjectRows(floats, n_dims, n_rows, n_dims, sides, first_dim, rank, out);
}

}  // namespace
}  // namespace kvrun::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvrun::host {
namespace {

HWY_EXPORT(ProjectRows);
HWY_EXPORT(ProjectHalves);

constexpr size_t kRowsAtOnce = 16;
constexpr size_t kVectorFloats = 64;  // the largest vector, and so what may be touched beyond
// Multiply-adds that are worth a second thread.
constexpr size_t kProjectGrain = 40000;

size_t RowGrain(size_t n_dims, size_t rank) { return kProjectGrain / (n_dims * rank) + 1; }

// out [n_rows, rank] = minus the bias.
void StartRows(const float* bias, size_t n_rows, size_t rank, float* out) {
  for (size_t i = 0; i < n_rows * rank; ++i) out[i] = -bias[i % rank];
}

}  // namespace

void ProjectKeys(ThreadPool& pool, const ProjectKeysArgs& args) {
  const size_t head_dim = args.kv_shape.head_dim;
  const size_t bytes = (kRowsAtOnce * head_dim + kVectorFloats) * sizeof(float);
  pool.ReserveScratch(bytes);
  const size_t grain = RowGrain(head_dim * args.kv_shape.n_kv_heads, args.rank);
  pool.ParallelFor(args.n_tokens, grain, [&](size_t begin, size_t end, uint32_t worker) {
    auto* floats = reinterpret_cast<float*>(pool.Scratch(worker, bytes));
    for (; begin < end; begin += kRowsAtOnce) {
      const size_t n = std::min(kRowsAtOnce, end - begin);
      float* const to = Data<float>(args.out) + begin * args.rank;
      StartRows(Data<float>(args.sides.bias), n, args.rank, to);
      for (size_t head = 0; head < args.kv_shape.n_kv_heads; ++head) {
        const size_t at = (head * 2 * args.kv_shape.n_ctx + args.first_token + begin) * head_dim;
        if (args.kv_shape.type == KvType::kF16) {
          HWY_DYNAMIC_DISPATCH(ProjectHalves)
          (Data<uint16_t>(args.kv) + at, n, head_dim, args.sides, head * head_dim, args.rank, floats, to);
        } else {
          HWY_DYNAMIC_DISPATCH(ProjectRows)
          (Data<float>(args.kv) + at, head_dim, n, head_dim, args.sides, head * head_dim, args.rank, to);
        }
      }
    }
  });
}

}  // namespace kvrun::host
#endif  // HWY_ONCE
