// Settings of a search, for tests of offline/.
#pragma once

#include <cstdint>

#include "offline/candidate.h"

namespace kvrun::testing {

inline constexpr KvModelShape kSmolLm2Shape = {
    .n_layers = 30, .n_heads = 9, .n_kv_heads = 3, .head_dim = 64, .n_embd = 576};

// A share (1/divisor) of the f16 KV of all sequences.
inline offline::SearchSetting SettingFor(const KvModelShape& shape, uint32_t n_ctx, uint32_t divisor,
                                         uint32_t batch = 1) {
  const uint64_t full = uint64_t{n_ctx} * batch * shape.n_layers * shape.n_kv_heads * shape.head_dim * 4;
  return {.model = shape,
          .batch = batch,
          .ctx = n_ctx,
          .budget_bytes = full / divisor,
          .io_alignment_bytes = 512,
          .adapter_path = "",
          .max_rank = 0,
          .layer_shares = {},
          .flash_times = {}};
}

inline offline::SearchSetting SmolLm2Setting(uint32_t divisor, uint32_t batch = 1, uint32_t n_ctx = 8192) {
  return SettingFor(kSmolLm2Shape, n_ctx, divisor, batch);
}

}  // namespace kvrun::testing
