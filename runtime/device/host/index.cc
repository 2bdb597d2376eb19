// Upkeep of the index: keys projected, and stored as index rows.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/device/host/index.cc"
#include <hwy/foreach_target.h>
// What is compiled for each target may use these.
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>

#include "platform/base/check.h"
#include "runtime/device/host/operations.h"
#include "runtime/device/host/project-inl.h"
#include "runtime/device/host/vector_math-inl.h"
#include "shaders/shared/step_params.h"

HWY_BEFORE_NAMESPACE();
namespace kvrun::host::HWY_NAMESPACE {
namespace {

void ProjectRows(const float* rows, size_t row_stride, size_t n_rows, size_t n_dims, const float* side,
                 size_t rank, float* out) {
  AddProjections(rows, row_stride, n_rows, n_dims, side, rank, out);
}

// As ProjectRows, of halves that lie side by side. `floats` holds n_rows * n_dims and a vector more.
void ProjectHalves(const uint16_t* rows, size_t n_rows, size_t n_dims, const float* side, size_t rank,
                   float* floats, float* out) {
  const hn::ScalableTag<float> d;
  const hn::Rebind<hwy::float16_t, decltype(d)> dh;
  const auto* halves = reinterpret_cast<const hwy::float16_t*>(rows);
  // The last vector may read beyond the halves, which a buffer allows.
  for (size_t i = 0; i < n_rows * n_dims; i += hn::Lanes(d)) {
    hn::StoreU(FromHalves(d, hn::LoadU(dh, halves + i)), d, floats + i);
  }
  AddProjections(floats, n_dims, n_rows, n_dims, side, rank, out);
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

uint32_t Encode(KvType type, float value, float scale) {
  if (type == KvType::kF16) return FloatToHalf(value);
  const uint32_t bits = KvElementBits(type);
  const auto largest = static_cast<float>((1U << (bits - 1)) - 1);
  // A column that was zero wherever the scale was made has none.
  const float quotient = scale > 0.0F ? value / scale : 0.0F;
  // No number either, as what is computed of a read that failed, becomes one: the step is given up
  // afterwards.
  const float in_range = std::min(largest, std::max(-largest, quotient));
  const auto code = static_cast<int32_t>(std::nearbyint(in_range));
  return static_cast<uint32_t>(code) & ((1U << bits) - 1);
}

// Neighbouring entries may share a word, and be another worker's: each sets only its own bits.
void SetBits(uint32_t* word, uint32_t mask, uint32_t bits) {
  if (mask == ~0U) {
    *word = bits;
  } else if (mask != 0) {
    // std::atomic_ref in other words: libc++ gets it with version 19.
    __atomic_fetch_and(word, ~mask, __ATOMIC_RELAXED);
    __atomic_fetch_or(word, bits, __ATOMIC_RELAXED);
  }
}

void StoreRow(const IndexShape& shape, const StepToken& token, const float* row, const float* scales,
              uint32_t* index) {
  const uint32_t group = token.position / shape.group_tokens;
  if (group >= shape.n_groups) return;
  const uint32_t element_bits = KvElementBits(shape.type);
  const size_t words_begin = (size_t{token.sequence} * shape.n_groups + group) * shape.group_words();
  const size_t first_bit = size_t{token.position % shape.group_tokens} * shape.rank * element_bits;
  uint32_t* word = index + words_begin + first_bit / 32;
  auto shift = static_cast<uint32_t>(first_bit % 32);
  uint32_t mask = 0;
  uint32_t bits = 0;
  for (uint32_t column = 0; column < shape.rank; ++column) {
    bits |= Encode(shape.type, row[column], scales[column]) << shift;
    mask |= ((1U << element_bits) - 1) << shift;
    shift += element_bits;
    if (shift == 32) {
      SetBits(word++, mask, bits);
      shift = mask = bits = 0;
    }
  }
  SetBits(word, mask, bits);
}

// out [n_rows, rank] = minus the bias.
void StartRows(const float* bias, size_t n_rows, size_t rank, float* out) {
  for (size_t i = 0; i < n_rows * rank; ++i) out[i] = -bias[i % rank];
}

}  // namespace

void AppendIndex(ThreadPool& pool, const Buffer& rows, uint32_t row_stride, uint32_t key_offset,
                 uint32_t n_kv_dim, const Buffer& step, uint32_t n_tokens, const IndexSides& sides,
                 const IndexShape& shape, Buffer* index) {
  KVRUN_CHECK(shape.rows_per_group == 0);
  const size_t rank = shape.rank;
  const size_t bytes = (kRowsAtOnce * rank + kVectorFloats) * sizeof(float);
  pool.ReserveScratch(bytes);
  const auto* params = Data<StepParams>(&step);
  const auto* scales = Data<float>(sides.scales);
  pool.ParallelFor(n_tokens, RowGrain(n_kv_dim, rank), [&](size_t begin, size_t end, uint32_t worker) {
    auto* projected = reinterpret_cast<float*>(pool.Scratch(worker, bytes));
    for (; begin < end; begin += kRowsAtOnce) {
      const size_t n = std::min(kRowsAtOnce, end - begin);
      StartRows(Data<float>(sides.bias), n, rank, projected);
      HWY_DYNAMIC_DISPATCH(ProjectRows)
      (Data<float>(&rows) + begin * row_stride + key_offset, row_stride, n, n_kv_dim,
       Data<float>(sides.key_side), rank, projected);
      for (size_t i = 0; i < n; ++i) {
        const StepToken& token = params->tokens[begin + i];
        StoreRow(shape, token, projected + i * rank, scales + token.sequence * rank, Data<uint32_t>(index));
      }
    }
  });
}

void ProjectKeys(ThreadPool& pool, const Buffer& kv, const KvShape& kv_shape, uint32_t first_token,
                 uint32_t n_tokens, const IndexSides& sides, uint32_t rank, Buffer* out) {
  const size_t head_dim = kv_shape.head_dim;
  const size_t bytes = (kRowsAtOnce * head_dim + kVectorFloats) * sizeof(float);
  pool.ReserveScratch(bytes);
  const size_t grain = RowGrain(head_dim * kv_shape.n_kv_heads, rank);
  pool.ParallelFor(n_tokens, grain, [&](size_t begin, size_t end, uint32_t worker) {
    auto* floats = reinterpret_cast<float*>(pool.Scratch(worker, bytes));
    for (; begin < end; begin += kRowsAtOnce) {
      const size_t n = std::min(kRowsAtOnce, end - begin);
      float* const to = Data<float>(out) + begin * rank;
      StartRows(Data<float>(sides.bias), n, rank, to);
      for (size_t head = 0; head < kv_shape.n_kv_heads; ++head) {
        const size_t at = (head * 2 * kv_shape.n_ctx + first_token + begin) * head_dim;
        const float* const side = Data<float>(sides.key_side) + head * head_dim * rank;
        if (kv_shape.type == KvType::kF16) {
          HWY_DYNAMIC_DISPATCH(ProjectHalves)(Data<uint16_t>(&kv) + at, n, head_dim, side, rank, floats, to);
        } else {
          HWY_DYNAMIC_DISPATCH(ProjectRows)(Data<float>(&kv) + at, head_dim, n, head_dim, side, rank, to);
        }
      }
    }
  });
}

}  // namespace kvrun::host
#endif  // HWY_ONCE
