// Stores projected rows as the index rows of the step's entries. One invocation per row and word that it touches.
// Neighbouring entries may share a word, and be stored by the same step: each sets only its own bits.
//
// Macros: INDEX_F16, INDEX_INT8 or INDEX_INT4.
#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "shared/index_params.h"
#include "shared/step_params.h"

layout(local_size_x = 64) in;
#include "include/read_only.glsl"
layout(push_constant) uniform Params { QuantizeIndexParams p; };
READ_ONLY(0, rows)
READ_ONLY(1, scales)
layout(set = 0, binding = 2, std430) buffer Index { uint index[]; };
layout(set = 0, binding = 3, std140) uniform Step { StepParams stepp; };

#if defined(INDEX_F16)
#define BITS 16
#elif defined(INDEX_INT8)
#define BITS 8
#else
#define BITS 4
#endif
#define PER_WORD (32 / BITS)

uint Encode(float value, float scale) {
#if defined(INDEX_F16)
  return packHalf2x16(vec2(value, 0.0));
#else
  const float largest = float((1 << (BITS - 1)) - 1);
  // A column that was zero wherever the scale was made has none.
  const float quotient = scale > 0.0 ? value / scale : 0.0;
  return uint(int(roundEven(clamp(quotient, -largest, largest)))) & ((1u << BITS) - 1);
#endif
}

void main() {
  const uint row = gl_GlobalInvocationID.x / p.row_words;
  const uint word = gl_GlobalInvocationID.x % p.row_words;
  if (row < p.n_tokens) {
    const StepToken token = stepp.tokens[row];
    const uint group = token.position / p.group_tokens;
    const uint begin = token.position % p.group_tokens * p.rank;  // elements of the group
    const uint first = (begin / PER_WORD + word) * PER_WORD;      // of the word
    uint bits = 0;
    uint mask = 0;
    [[unroll]] for (uint i = 0; i < PER_WORD; ++i) {
      const uint column = first + i - begin;  // of earlier entries: huge
      if (column < p.rank) {
        bits |= Encode(rows_float(row * p.rank + column), scales_float(token.sequence * p.rank + column)) << (i * BITS);
        mask |= ((1u << BITS) - 1) << (i * BITS);
      }
    }
    const uint at = (token.sequence * p.n_groups + group) * p.group_words + begin / PER_WORD + word;
    if (group >= p.n_groups) mask = 0;
    if (mask == 0xffffffffu) {
      index[at] = bits;
    } else if (mask != 0) {
      atomicAnd(index[at], ~mask);
      atomicOr(index[at], bits);
    }
  }
}
