// The gated delta rule (DeltaRuleArgs), row by row. A workgroup has the state's KVRUN_DELTA_COLUMNS columns of a
// sequence's value head, which it reads and writes once; of each column an invocation holds every KVRUN_DELTA_PARTS-th
// element. As S changes by k d^T, with S k and S q of the decayed state, out = S q + (k . q) d, so that lanes wait for
// each other once a row.
#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "shared/layer_params.h"
#include "shared/step_params.h"

#define COLUMNS KVRUN_DELTA_COLUMNS
#define PARTS KVRUN_DELTA_PARTS
#define LOCAL_SIZE (COLUMNS * PARTS)
#define MAX_HEAD_DIM 256
layout(local_size_x = LOCAL_SIZE) in;
layout(constant_id = 0) const uint HEAD_DIM = 128;
#include "include/read_only.glsl"
layout(push_constant) uniform Params { DeltaRuleParams p; };
READ_ONLY(0, qkv)
READ_ONLY(1, gates)  // delta_gates.comp
// [n_sequences, n_value_heads, HEAD_DIM (keys), HEAD_DIM (values)].
layout(set = 0, binding = 2, std430) buffer State { float state[]; };
layout(set = 0, binding = 3, std430) writeonly buffer Output { float result[]; };
layout(set = 0, binding = 4, std140) uniform Step { StepParams stepp; };

const uint ELEMENTS = (HEAD_DIM + PARTS - 1) / PARTS;

// Of three rows in turn: one is read, one may still be read by others, one is written.
shared float keys[3 * MAX_HEAD_DIM];
shared float queries[3 * MAX_HEAD_DIM];
shared vec2 products[2 * LOCAL_SIZE];

uint RowStride() { return (2 * p.n_key_heads + p.n_value_heads) * HEAD_DIM; }

uint GatesOf(uint token, uint head) { return (token * p.n_value_heads + head) * KVRUN_DELTA_GATES; }

void LoadRow(uint token, uint head, uint turn) {
  const uint query = token * RowStride() + head % p.n_key_heads * HEAD_DIM;
  const uint key = query + p.n_key_heads * HEAD_DIM;
  const vec4 factors = gates_vec4(GatesOf(token, head) / 4);
  for (uint i = gl_LocalInvocationIndex; i < ELEMENTS * PARTS; i += LOCAL_SIZE) {
    const bool is_element = i < HEAD_DIM;
    const uint at = min(i, HEAD_DIM - 1);
    keys[turn * MAX_HEAD_DIM + i] = is_element ? qkv_float(key + at) * factors.z : 0.0;
    queries[turn * MAX_HEAD_DIM + i] = is_element ? qkv_float(query + at) * factors.w : 0.0;
  }
}

void main() {
  const uint column = gl_WorkGroupID.x * COLUMNS + gl_LocalInvocationIndex % COLUMNS;
  const uint part = gl_LocalInvocationIndex / COLUMNS;
  const uint head = gl_WorkGroupID.y;
  const uint first = gl_WorkGroupID.z * p.span_tokens;
  const bool is_column = column < HEAD_DIM;
  const uint state_begin =
      (stepp.tokens[first].sequence * p.n_value_heads + head) * HEAD_DIM * HEAD_DIM + min(column, HEAD_DIM - 1);
  const bool has_state = stepp.tokens[first].position != 0;

  float elements[ELEMENTS];
  [[unroll]] for (uint i = 0; i < ELEMENTS; ++i) {
    const uint key = i * PARTS + part;
    elements[i] = 0.0;
    if (has_state && key < HEAD_DIM) elements[i] = state[state_begin + key * HEAD_DIM];
  }
  LoadRow(first, head, 0);
  barrier();
  for (uint row = 0; row < p.span_tokens; ++row) {
    const uint token = first + row;
    const uint turn = row % 3 * MAX_HEAD_DIM;
    const vec4 factors = gates_vec4(GatesOf(token, head) / 4);
    const float key_query = gates_float(GatesOf(token, head) + 4);
    vec2 sums = vec2(0.0);
    [[unroll]] for (uint i = 0; i < ELEMENTS; ++i) {
      const uint key = turn + i * PARTS + part;
      elements[i] *= factors.x;
      sums += elements[i] * vec2(keys[key], queries[key]);
    }
    products[row % 2 * LOCAL_SIZE + gl_LocalInvocationIndex] = sums;
    if (row + 1 < p.span_tokens) LoadRow(token + 1, head, (row + 1) % 3);
    barrier();
    vec2 found = vec2(0.0);
    [[unroll]] for (uint i = 0; i < PARTS; ++i) {
      found += products[row % 2 * LOCAL_SIZE + i * COLUMNS + gl_LocalInvocationIndex % COLUMNS];
    }
    const uint value = (2 * p.n_key_heads + head) * HEAD_DIM + min(column, HEAD_DIM - 1);
    const float change = factors.y * (qkv_float(token * RowStride() + value) - found.x);
    [[unroll]] for (uint i = 0; i < ELEMENTS; ++i) elements[i] += keys[turn + i * PARTS + part] * change;
    if (is_column && part == 0) {
      result[(token * p.n_value_heads + head) * HEAD_DIM + column] = found.y + key_query * change;
    }
  }
  [[unroll]] for (uint i = 0; i < ELEMENTS; ++i) {
    const uint key = i * PARTS + part;
    if (is_column && key < HEAD_DIM) state[state_begin + key * HEAD_DIM] = elements[i];
  }
}
