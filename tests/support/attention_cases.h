// Cases of attention over KV in memory: shapes, inputs, and by how much a device may be off.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/device/device.h"
#include "runtime/device/self_test_run.h"
#include "shaders/shared/step_params.h"
#include "tests/support/scalar_reference.h"

namespace kvrun::testing {

inline constexpr float kQueryScale = 3.0F;  // so that weights differ

struct AttendShape {
  KvShape kv;
  uint32_t n_heads = 0;
  bool of_prompt = false;
  std::vector<StepToken> tokens;
  uint32_t window_tokens = 0;  // these as in AttentionArgs
  float score_cap = 0.0F;
  float score_scale = 0.0F;  // at most 1 / sqrt(head_dim)

  size_t qkv_count() const { return tokens.size() * (n_heads + 2 * kv.n_kv_heads) * kv.head_dim; }
  AttentionReferenceArgs reference() const {
    return {.tokens = tokens,
            .kv_shape = kv,
            .n_heads = n_heads,
            .angles = {},
            .norms = {},
            .window_tokens = window_tokens,
            .score_cap = score_cap,
            .score_scale = score_scale};
  }
  // But for the buffers.
  AttentionArgs args() const {
    return {.kv_shape = kv,
            .n_heads = n_heads,
            .n_tokens = static_cast<uint32_t>(tokens.size()),
            .window_tokens = window_tokens,
            .score_cap = score_cap,
            .score_scale = score_scale,
            .of_prompt = of_prompt};
  }
};

std::string Describe(const AttendShape& shape);

std::vector<float> Queries(const AttendShape& shape);
// Positions that no token may see hold numbers as well, so that a mask that lets them through shows.
std::vector<float> RandomKv(const KvShape& kv);
// KV entries in the type's own form; `values` become what that stands for.
std::vector<float> Stored(KvType type, std::span<float> values);

// What an output may be off by; where the CPU rounds.
double AttendTolerance(const AttendShape& shape);
double RoundedTolerance(const AttendShape& shape);

// What attention leaves in its output, for KV as stored.
Buffer* Attend(SelfTestRun& run, const AttendShape& shape, const std::vector<float>& qkv,
               const std::vector<float>& stored);
// Against the scalar reference.
void CheckAttendOf(Device& device, const AttendShape& shape, const std::vector<float>& qkv,
                   std::vector<float> kv);
void CheckAttend(Device& device, const AttendShape& shape);

}  // namespace kvrun::testing
