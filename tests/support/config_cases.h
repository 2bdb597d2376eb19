// Configs as `kvadapt tune` writes them, for tests.
#pragma once

#include <cstdint>

#include "runtime/engine/config/config_file.h"

namespace kvrun::testing::configs {

inline ConfigSolution Solution(uint32_t batch, uint32_t ctx, uint64_t budget_bytes) {
  ConfigSolution solution;
  solution.batch = batch;
  solution.ctx = ctx;
  solution.budget_bytes = budget_bytes;
  return solution;
}

inline KvConfig Example() {
  KvConfig config;
  config.model = "Some \"model\"\\ of\ttwo\nlines";
  config.model_fingerprint = "0123456789abcdef0123456789abcdef";
  config.device = "Some GPU";
  config.driver = "driver 1.2";
  config.cpu = "Some CPU";
  config.storage = "ext4 on vda";
  config.exact_activations = true;
  config.solutions = {{.batch = 1,
                       .ctx = 8192,
                       .budget_bytes = 14155776,
                       .options = {{"type", "fp8,int4"},
                                   {"group", "4"},
                                   {"select", "400"},
                                   {"reuse", "120"},
                                   {"static", "0.25"},
                                   {"window", "64"},
                                   {"sinks", "0"},
                                   {"rank", "32"},
                                   {"index", "int8"},
                                   {"heads", "per-kv-head"},
                                   {"policy", "lru"},
                                   {"adapter", "adapters/some.gguf"},
                                   {"adapter-kind", "query-centred"}},
                       .predicted_ms = 12.0,
                       .measured_ms = 13.0625,
                       .kl = 1e-5,
                       .bound = "I/O"},
                      Solution(4, 32768, 1)};
  return config;
}

}  // namespace kvrun::testing::configs
