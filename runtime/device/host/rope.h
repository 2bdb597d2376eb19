// Norm and rotation of the heads of Q and K.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/device/device.h"
#include "runtime/device/host/host_device.h"
#include "runtime/device/host/thread_pool.h"

namespace kvrun::host {

struct RopeShape {
  uint32_t head_dim = 0;
  uint32_t rotary_dim = 0;
  bool halves = false;
  float norm_epsilon = 0.0F;
};

// A head in place. angles: [rotary_dim / 2, 2], cosine and sine; norm: [head_dim], null: none.
void RopeHead(const RopeShape& shape, const float* angles, const float* norm, float* head);

// Halves, rounded to the nearest; beyond the largest: the largest.
void FloatsToHalves(const float* from, size_t count, uint16_t* to);

// Heads of Q and K of the step's rows in place, then store(token, kv_head, is_value, row) for those of K and
// V, and finish(row) for those of Q, on any worker.
template <typename Store, typename Finish>
void RopeHeads(ThreadPool& pool, const AttentionArgs& args, const Store& store, const Finish& finish) {
  const uint32_t head_dim = args.kv_shape.head_dim;
  const uint32_t n_kv_heads = args.kv_shape.n_kv_heads;
  const uint32_t n_rotated = args.n_heads + n_kv_heads;
  const uint32_t n_rows = n_rotated + n_kv_heads;
  const RopeShape shape{head_dim, args.rotary_dim, args.rope_halves, args.norm_epsilon};
  auto* qkv = Data<float>(args.qkv);
  const float* norms = args.norms != nullptr ? Data<float>(args.norms) : nullptr;
  const float* angles = args.rotary_dim != 0 ? Data<float>(args.angles) : nullptr;
  // Below the grain, waking others takes longer.
  pool.ParallelFor(size_t{args.n_tokens} * n_rows, 16, [&](size_t begin, size_t end, uint32_t) {
    for (size_t i = begin; i < end; ++i) {
      const auto token = static_cast<uint32_t>(i / n_rows);
      const auto row = static_cast<uint32_t>(i % n_rows);
      float* head = qkv + i * head_dim;
      if (row < n_rotated) {
        const float* norm = norms == nullptr ? nullptr : norms + (row < args.n_heads ? 0 : head_dim);
        RopeHead(shape, angles + size_t{token} * args.rotary_dim, norm, head);
      }
      if (row < args.n_heads)
        finish(head);
      else
        store(token, (row - args.n_heads) % n_kv_heads, row >= n_rotated, head);
    }
  });
}
template <typename Store>
void RopeHeads(ThreadPool& pool, const AttentionArgs& args, const Store& store) {
  RopeHeads(pool, args, store, [](float*) {});
}

}  // namespace kvrun::host
