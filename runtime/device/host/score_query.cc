// Queries as an index is scored with: rotated, projected by the adapter.
#include "runtime/device/instruction_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/device/host/score_query.cc"
#include <hwy/foreach_target.h>
// What is compiled for each target may use these.
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "platform/base/check.h"
#include "runtime/device/host/operations.h"
#include "runtime/device/host/project-inl.h"
#include "runtime/device/host/score.h"
#include "shaders/shared/step_params.h"

HWY_BEFORE_NAMESPACE();
namespace kvrun::host::HWY_NAMESPACE {
namespace {

template <class Number>
void ProjectHeadsBy(const Number* query_side, const ScoreArgs& args, const float* query, uint32_t kv_head,
                    uint32_t rows_of_head, float* sum, float* z) {
  const size_t head_dim = args.attention.kv_shape.head_dim;
  const size_t rank = args.index_shape.rank;
  const size_t group = args.attention.n_heads / args.attention.kv_shape.n_kv_heads;
  const float* heads = query + kv_head * group * head_dim;
  const Number* const side = query_side + kv_head * head_dim * rank;
  if (rows_of_head == group) {
    AddProjections(heads, head_dim, group, head_dim, side, rank, z);
    return;
  }
  std::copy_n(heads, head_dim, sum);
  for (size_t h = 1; h < group; ++h) {
    for (size_t i = 0; i < head_dim; ++i) sum[i] += heads[h * head_dim + i];
  }
  AddProjections(sum, head_dim, 1, head_dim, side, rank, z);
}

// z of one KV head's rows (with sums: of all heads), added to. `sum` holds heads that are added up.
void ProjectHeads(const ScoreArgs& args, const float* query, uint32_t kv_head, uint32_t rows_of_head,
                  float* sum, float* z) {
  const Buffer* const side = args.sides.query_side;
  if (args.sides.are_halves) {
    ProjectHeadsBy(Data<hwy::float16_t>(side), args, query, kv_head, rows_of_head, sum, z);
  } else {
    ProjectHeadsBy(Data<float>(side), args, query, kv_head, rows_of_head, sum, z);
  }
}

}  // namespace
}  // namespace kvrun::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvrun::host {
namespace {

HWY_EXPORT(ProjectHeads);

// Multiply-adds that are worth a second thread.
constexpr size_t kProjectGrain = 40000;

// Normalises and rotates one head in place.
void Rotate(const AttentionArgs& attention, size_t token, float* head) {
  const size_t head_dim = attention.kv_shape.head_dim;
  if (attention.norms != nullptr) {
    const auto* norms = Data<float>(attention.norms);
    float sum = 0.0F;
    for (size_t i = 0; i < head_dim; ++i) sum += head[i] * head[i];
    const float factor = 1.0F / std::sqrt(sum / static_cast<float>(head_dim) + attention.norm_epsilon);
    for (size_t i = 0; i < head_dim; ++i) head[i] *= factor * norms[i];
  }
  const size_t pairs = attention.rotary_dim / 2;
  if (pairs == 0) return;
  const float* const angles = Data<float>(attention.angles) + token * pairs * 2;
  for (size_t i = 0; i < pairs; ++i) {
    float& first = head[attention.rope_halves ? i : 2 * i];
    float& second = head[attention.rope_halves ? i + pairs : 2 * i + 1];
    const float a = first;
    const float b = second;
    first = a * angles[2 * i] - b * angles[2 * i + 1];
    second = a * angles[2 * i + 1] + b * angles[2 * i];
  }
}

// QueryForm::kSigned: z of one KV head's rows (with sums: of all heads), added to. Heads whose mean is scored
// are added up before their signs are looked at.
void SplitHeads(const ScoreArgs& args, const float* query, uint32_t kv_head, uint32_t rows_of_head,
                float* z) {
  const size_t head_dim = args.attention.kv_shape.head_dim;
  const size_t rank = args.index_shape.rank;
  const size_t group = args.attention.n_heads / args.attention.kv_shape.n_kv_heads;
  const size_t n_added = args.reduction == HeadReduction::kGqa ? group : 1;
  for (size_t first = 0; first < group; first += n_added) {
    const float* const heads = query + (kv_head * group + first) * head_dim;
    float* const above = z + (rows_of_head == group ? first : 0) * rank + kv_head * head_dim;
    float* const below = above + rank / 2;
    for (size_t i = 0; i < head_dim; ++i) {
      float value = 0.0F;
      for (size_t h = 0; h < n_added; ++h) value += heads[h * head_dim + i];
      above[i] += std::max(value, 0.0F);
      below[i] += std::min(value, 0.0F);
    }
  }
}

// Rotates the heads that make rows [row, row + n_rows) of a token's z, and computes those.
void ProjectRows(const ScoreArgs& args, const ScoreLayout& layout, size_t token, uint32_t first_kv_head,
                 uint32_t n_kv_heads, float* sum) {
  const AttentionArgs& attention = args.attention;
  const size_t head_dim = attention.kv_shape.head_dim;
  const size_t rank = args.index_shape.rank;
  const uint32_t group = attention.n_heads / attention.kv_shape.n_kv_heads;
  const uint32_t rows_of_head =
      args.reduction == HeadReduction::kSum ? 0 : layout.n_rows / attention.kv_shape.n_kv_heads;
  float* const query = Data<float>(args.query) + token * attention.n_heads * head_dim;
  float* const z = Data<float>(args.scratch) + (token * layout.n_rows + first_kv_head * rows_of_head) * rank;
  const size_t n_z = std::max(1U, rows_of_head * n_kv_heads) * rank;
  if (args.query_form == QueryForm::kAffine) {
    KVRUN_CHECK(!args.sides.are_halves);
    const size_t n_dims = attention.kv_shape.n_kv_heads * head_dim;
    for (size_t i = 0; i < n_z; i += rank)
      std::copy_n(Data<float>(args.sides.query_side) + n_dims * rank, rank, z + i);
  } else {
    std::fill_n(z, n_z, 0.0F);
  }
  for (uint32_t head = first_kv_head * group; head < (first_kv_head + n_kv_heads) * group; ++head) {
    Rotate(attention, token, query + head * head_dim);
  }
  for (uint32_t head = 0; head < n_kv_heads; ++head) {
    const uint32_t kv_head = first_kv_head + head;
    float* const of_head = z + head * rows_of_head * rank;
    if (args.query_form == QueryForm::kSigned) {
      SplitHeads(args, query, kv_head, rows_of_head, of_head);
    } else {
      HWY_DYNAMIC_DISPATCH(ProjectHeads)(args, query, kv_head, rows_of_head, sum, of_head);
    }
  }
  // Of a row's mean. Softmaxes are computed with powers of 2.
  const double factor = (args.reduction == HeadReduction::kSum ? 1.0 : std::numbers::log2e) /
                        (args.reduction == HeadReduction::kGqa ? group : 1);
  const float own_scale = attention.score_scale;
  const auto scale =
      static_cast<float>(own_scale != 0.0F ? factor * own_scale : factor / std::sqrt(head_dim));
  const uint32_t sequence = Data<StepParams>(attention.step)->tokens[token].sequence;
  const float* const scales = Data<float>(args.sides.scales) + size_t{sequence} * rank;
  for (size_t row = 0; row < n_z; row += rank) {
    for (size_t i = 0; i < rank; ++i) z[row + i] *= scale * scales[i];
  }
}

}  // namespace

// With sums all heads share a row; else KV heads are independent of each other.
void ProjectQueries(ThreadPool& pool, const ScoreArgs& args, const ScoreLayout& layout) {
  const uint32_t n_kv_heads = args.attention.kv_shape.n_kv_heads;
  const size_t head_dim = args.attention.kv_shape.head_dim;
  const uint32_t parts = args.reduction == HeadReduction::kSum ? 1 : n_kv_heads;
  const uint32_t heads_of_part = n_kv_heads / parts;
  const size_t work = args.attention.n_heads / parts * head_dim * args.index_shape.rank;
  // A vector more: reads of a row's last columns may go beyond it.
  const size_t sum_bytes = (head_dim + 64) * sizeof(float);
  pool.ReserveScratch(sum_bytes);
  pool.ParallelFor(size_t{args.attention.n_tokens} * parts, kProjectGrain / work + 1,
                   [&](size_t begin, size_t end, uint32_t worker) {
                     auto* sum = reinterpret_cast<float*>(pool.Scratch(worker, sum_bytes));
                     for (size_t i = begin; i < end; ++i) {
                       ProjectRows(args, layout, i / parts, static_cast<uint32_t>(i % parts) * heads_of_part,
                                   heads_of_part, sum);
                     }
                   });
}

}  // namespace kvrun::host
#endif  // HWY_ONCE
