// A causal convolution of each channel by itself (ShortConvolutionArgs). An invocation has a channel, and of a prompt
// KVRUN_CONVOLVED_ROWS rows; that with the first rows alone reads the state, and writes it.
#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "shared/layer_params.h"
#include "shared/step_params.h"

layout(local_size_x = 64) in;
layout(constant_id = 0) const uint TAPS = 4;
layout(constant_id = 1) const uint IS_GATED = 0;
layout(constant_id = 2) const uint HAS_SILU = 0;
#include "include/read_only.glsl"
layout(push_constant) uniform Params { ShortConvolutionParams p; };
READ_ONLY(0, inputs)
READ_ONLY(1, taps)
// [n_sequences, TAPS - 1, n_channels].
layout(set = 0, binding = 2, std430) buffer State { float state[]; };
layout(set = 0, binding = 3, std430) writeonly buffer Output { float result[]; };
layout(set = 0, binding = 4, std140) uniform Step { StepParams stepp; };

const uint KEPT = TAPS - 1;

float Convolved(uint token, uint channel) {
  const uint at = token * p.input_stride + channel;
  const float x = inputs_float(at);
  return IS_GATED != 0 ? x * inputs_float(at + 2 * p.n_channels) : x;
}

void main() {
  const uint channel = gl_GlobalInvocationID.x;
  if (channel >= p.n_channels) return;
  const uint first = gl_WorkGroupID.z * p.span_tokens;  // of the sequence's
  const uint row_begin = gl_WorkGroupID.y * KVRUN_CONVOLVED_ROWS;
  const uint row_end = min(row_begin + KVRUN_CONVOLVED_ROWS, p.span_tokens);
  const uint state_begin = stepp.tokens[first].sequence * KEPT * p.n_channels + channel;
  const bool has_state = stepp.tokens[first].position != 0;

  float kept[KEPT];  // the rows before, oldest first
  float before[KEPT];  // the state
  [[unroll]] for (uint i = 0; i < KEPT; ++i) {
    before[i] = 0.0;
    if (row_begin == 0 && has_state) before[i] = state[state_begin + i * p.n_channels];
    kept[i] = before[i];
    if (row_begin + i >= KEPT) kept[i] = Convolved(first + row_begin + i - KEPT, channel);
  }
  for (uint row = row_begin; row < row_end; ++row) {
    const float now = Convolved(first + row, channel);
    float sum = taps_float(channel * TAPS + KEPT) * now;
    [[unroll]] for (uint i = 0; i < KEPT; ++i) sum += taps_float(channel * TAPS + i) * kept[i];
    [[unroll]] for (uint i = 0; i + 1 < KEPT; ++i) kept[i] = kept[i + 1];
    kept[KEPT - 1] = now;
    if (HAS_SILU != 0) sum = sum / (1.0 + exp(-sum));
    if (IS_GATED != 0) sum *= inputs_float((first + row) * p.input_stride + p.n_channels + channel);
    result[(first + row) * p.n_channels + channel] = sum;
  }
  if (row_begin == 0) {
    [[unroll]] for (uint i = 0; i < KEPT; ++i) {
      // The i-th of the last KEPT rows of state and step together.
      const uint at = p.span_tokens + i;
      float value = 0.0;
      if (at >= KEPT) {
        value = Convolved(first + at - KEPT, channel);
      } else {
        [[unroll]] for (uint j = 0; j < KEPT; ++j) {
          if (j == at) value = before[j];
        }
      }
      state[state_begin + i * p.n_channels] = value;
    }
  }
}
