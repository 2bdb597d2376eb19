// The gated delta rule.
#include "runtime/device/instruction_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/device/host/delta_rule.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include "runtime/device/host/delta_rule-inl.h"

#if HWY_ONCE

#include <algorithm>
#include <cmath>

#include "platform/base/check.h"
#include "runtime/device/host/operations.h"
#include "shaders/shared/step_params.h"

namespace kvrun::host {
namespace {

HWY_EXPORT(StepColumns);
HWY_EXPORT(MultiplyKeys);
HWY_EXPORT(AttendChunk);

// Of a row by itself, so many columns of a head's state are a thread's at least.
constexpr size_t kUnitColumns = 64;

// What rows and heads are made of.
class DeltaHeads {
 public:
  explicit DeltaHeads(const DeltaRuleArgs& args)
      : args_(args),
        dims_(args.head_dim),
        qkv_(Data<float>(args.qkv)),
        gates_(Data<float>(args.gates)),
        constants_(Data<float>(args.constants)),
        step_(*Data<StepParams>(args.step)) {}

  const float* Value(size_t row, size_t head) const {
    return Row(row) + (2 * size_t{args_.n_key_heads} + head) * dims_;
  }
  float* Output(size_t row, size_t head) const {
    return Data<float>(args_.output) + (row * args_.n_value_heads + head) * dims_;
  }
  float* State(size_t row, size_t head) const {
    const size_t sequence = step_.tokens[row].sequence;
    return Data<float>(args_.state) + (sequence * args_.n_value_heads + head) * dims_ * dims_;
  }
  bool IsFirst(size_t row) const { return step_.tokens[row].position == 0; }

  // Of unit length; the query times 1 / sqrt(head_dim).
  void Key(size_t row, size_t key_head, float* to) const {
    Normalise(Row(row) + (args_.n_key_heads + key_head) * dims_, 1.0F, to);
  }
  void Query(size_t row, size_t key_head, float* to) const {
    Normalise(Row(row) + key_head * dims_, 1.0F / std::sqrt(static_cast<float>(dims_)), to);
  }
  float Decay(size_t row, size_t head) const {
    const float x = Gates(row)[args_.alpha_offset + head] + constants_[args_.n_value_heads + head];
    const float softplus = std::max(x, 0.0F) + std::log1p(std::exp(-std::abs(x)));
    return std::exp(constants_[head] * softplus);
  }
  float Beta(size_t row, size_t head) const {
    return 1.0F / (1.0F + std::exp(-Gates(row)[args_.beta_offset + head]));
  }

 private:
  const float* Row(size_t row) const {
    return qkv_ + row * (2 * size_t{args_.n_key_heads} + args_.n_value_heads) * dims_;
  }
  const float* Gates(size_t row) const { return gates_ + row * args_.gates_stride; }
  void Normalise(const float* from, float length, float* to) const {
    float sums[4] = {};  // dims_ are a multiple of four
    for (size_t i = 0; i < dims_; i += 4) {
      for (size_t k = 0; k < 4; ++k) sums[k] += from[i + k] * from[i + k];
    }
    const float factor = length / std::sqrt(sums[0] + sums[1] + (sums[2] + sums[3]) + args_.epsilon);
    for (size_t i = 0; i < dims_; ++i) to[i] = from[i] * factor;
  }

  const DeltaRuleArgs& args_;
  size_t dims_;
  const float* qkv_;
  const float* gates_;
  const float* constants_;
  const StepParams& step_;
};

// Each row is of another sequence: units are columns of heads of rows.
void StepRows(ThreadPool& pool, const DeltaRuleArgs& args) {
  const DeltaHeads heads(args);
  const size_t dims = args.head_dim;
  const size_t parts = CeilDiv(dims, kUnitColumns);
  pool.ParallelFor(size_t{args.n_tokens} * args.n_value_heads * parts, 1,
                   [&](size_t begin, size_t end, uint32_t) {
                     DeltaRow row;
                     for (size_t unit = begin; unit < end; ++unit) {
                       const size_t at = unit / parts;
                       const size_t token = at / args.n_value_heads;
                       const size_t head = at % args.n_value_heads;
                       if (unit == begin || unit % parts == 0) {
                         heads.Key(token, head % args.n_key_heads, row.key);
                         heads.Query(token, head % args.n_key_heads, row.query);
                         row.key_query = 0.0F;
                         for (size_t i = 0; i < dims; ++i) row.key_query += row.key[i] * row.query[i];
                         row.decay = heads.Decay(token, head);
                         row.beta = heads.Beta(token, head);
                       }
                       const size_t first = unit % parts * kUnitColumns;
                       const size_t last = std::min(first + kUnitColumns, dims);
                       float* const state = heads.State(token, head);
                       for (size_t i = 0; heads.IsFirst(token) && i < dims; ++i)
                         std::fill(state + i * dims + first, state + i * dims + last, 0.0F);
                       HWY_DYNAMIC_DISPATCH(StepColumns)
                       (row, dims, first, last, heads.Value(token, head), state, heads.Output(token, head));
                     }
                   });
}

// A prompt's rows, chunk after chunk, of one key head and some of the value heads that use it.
class PromptHeads {
 public:
  PromptHeads(const DeltaRuleArgs& args, size_t key_head, std::byte* memory)
      : args_(args), heads_(args), key_head_(key_head), at_(args.head_dim, memory) {}

  // Value heads take turns with this memory.
  void Run(size_t first_head, size_t n_heads) {
    for (size_t first = 0; first < args_.n_tokens; first += kDeltaChunk) {
      const size_t n = std::min(kDeltaChunk, args_.n_tokens - first);
      const size_t n_rows = RoundUp(n, kDeltaTileRows);
      LoadKeys(first, n, n_rows);
      HWY_DYNAMIC_DISPATCH(MultiplyKeys)(at_, n_rows);
      for (size_t i = 0; i < n_heads; ++i) {
        const size_t head = key_head_ + (first_head + i) * args_.n_key_heads;
        LoadHead(first, n, n_rows, head);
        HWY_DYNAMIC_DISPATCH(AttendChunk)(at_, n_rows);
        StoreHead(first, n, head);
      }
    }
  }

 private:
  // Rows beyond the last one are zeros, and change nothing.
  void LoadKeys(size_t first, size_t n, size_t n_rows) const {
    const size_t dims = at_.dims;
    std::fill_n(at_.keys(), n_rows * dims, 0.0F);
    std::fill_n(at_.queries(), n_rows * dims, 0.0F);
    std::fill_n(at_.turned_keys(), at_.head_dim * kDeltaChunk, 0.0F);
    for (size_t t = 0; t < n; ++t) {
      float* const key = at_.keys() + t * dims;
      heads_.Key(first + t, key_head_, key);
      heads_.Query(first + t, key_head_, at_.queries() + t * dims);
      for (size_t i = 0; i < at_.head_dim; ++i) at_.turned_keys()[i * kDeltaChunk + t] = key[i];
    }
  }

  void LoadHead(size_t first, size_t n, size_t n_rows, size_t head) {
    const size_t head_dim = at_.head_dim;
    float* const state = heads_.State(0, head);
    if (first == 0 && heads_.IsFirst(0)) std::fill_n(state, head_dim * head_dim, 0.0F);
    at_.state = at_.needs_copy() ? at_.copied_state() : state;
    for (size_t i = 0; at_.needs_copy() && i < head_dim; ++i) {
      float* const to = at_.state + i * at_.dims;
      std::copy_n(state + i * head_dim, head_dim, to);
      std::fill(to + head_dim, to + at_.dims, 0.0F);
    }
    std::fill_n(at_.writes(), n_rows * at_.dims, 0.0F);
    float left = 1.0F;
    for (size_t t = 0; t < n_rows; ++t) {
      const bool is_there = t < n;
      const float decay = is_there ? heads_.Decay(first + t, head) : 1.0F;
      left *= decay;
      if (left < kDeltaNothing) left = 0.0F;
      at_.decays()[t] = decay;
      at_.left()[t] = left;
      at_.betas()[t] = is_there ? heads_.Beta(first + t, head) : 0.0F;
      if (is_there) std::copy_n(heads_.Value(first + t, head), head_dim, at_.writes() + t * at_.dims);
    }
  }

  void StoreHead(size_t first, size_t n, size_t head) const {
    const size_t head_dim = at_.head_dim;
    for (size_t i = 0; at_.needs_copy() && i < head_dim; ++i)
      std::copy_n(at_.state + i * at_.dims, head_dim, heads_.State(0, head) + i * head_dim);
    for (size_t t = 0; t < n; ++t)
      std::copy_n(at_.outputs() + t * at_.dims, head_dim, heads_.Output(first + t, head));
  }

  const DeltaRuleArgs& args_;
  DeltaHeads heads_;
  size_t key_head_;
  DeltaChunk at_;
};

void StepPrompt(ThreadPool& pool, const DeltaRuleArgs& args) {
  const size_t bytes = DeltaChunk(args.head_dim, nullptr).bytes();
  pool.ReserveScratch(bytes);
  // All value heads of a key head at once, where that leaves enough for every thread.
  const size_t group = args.n_value_heads / args.n_key_heads;
  const size_t together = args.n_key_heads >= 4 * pool.size() ? group : 1;
  const size_t parts = group / together;
  pool.ParallelFor(size_t{args.n_key_heads} * parts, 1, [&](size_t begin, size_t end, uint32_t worker) {
    for (size_t unit = begin; unit < end; ++unit) {
      PromptHeads heads(args, unit / parts, pool.Scratch(worker, bytes));
      heads.Run(unit % parts * together, together);
    }
  });
}

}  // namespace

void DeltaRule(ThreadPool& pool, const DeltaRuleArgs& args) {
  KVRUN_CHECK(args.head_dim % 4 == 0 && args.head_dim <= kDeltaMostDims);
  KVRUN_CHECK(args.n_value_heads % args.n_key_heads == 0);
  if (args.n_tokens == 0) return;
  if (args.of_prompt)
    StepPrompt(pool, args);
  else
    StepRows(pool, args);
}

}  // namespace kvrun::host
#endif  // HWY_ONCE
