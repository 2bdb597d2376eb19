// Elements of a query's heads, of which push constants `q` tell; with ROTATES normalised and rotated where they are read.
// A head is counted through all tokens.
#ifdef ROTATES
shared float norm_factors[KVRUN_MAX_NORMED_HEADS];
uint first_normed_head = 0;

// Of n heads from `first` on, before any is read.
void FindNorms(uint first, uint n) {
  first_normed_head = first;
  for (uint h = gl_LocalInvocationIndex; h < n; h += gl_WorkGroupSize.x) {
    float sum = 0.0;
    for (uint i = 0; i < q.head_dim; ++i) {
      const float value = query_float((first + h) * q.head_dim + i);
      sum += value * value;
    }
    norm_factors[h] = 1.0 / sqrt(sum / float(q.head_dim) + q.norm_epsilon);
  }
  barrier();
}

float NormedElement(uint head, uint i) {
  const float value = query_float(head * q.head_dim + i);
  return HAS_NORM != 0 ? value * (norm_factors[head - first_normed_head] * norms_float(i)) : value;
}

float HeadElement(uint token, uint head, uint i) {
  const float value = NormedElement(head, i);
  if (i >= q.rotary_dim) return value;
  const uint pairs = q.rotary_dim / 2;
  const bool is_first = q.rope_halves != 0 ? i < pairs : i % 2 == 0;
  const uint partner = q.rope_halves != 0 ? (is_first ? i + pairs : i - pairs) : i ^ 1u;
  const vec2 angle = angles_vec2(token * pairs + (q.rope_halves != 0 ? i % pairs : i / 2));
  const float other = NormedElement(head, partner);
  return value * angle.x + (is_first ? -other : other) * angle.y;
}

// Elements i .. i + 3 of a head; i and head_dim are multiples of 4.
vec4 NormedVector(uint head, uint i) {
  const vec4 value = query_vec4((head * q.head_dim + i) / 4);
  if (HAS_NORM == 0) return value;
  return value * (norm_factors[head - first_normed_head] * norms_vec4(i / 4));
}

vec4 HeadVector(uint token, uint head, uint i) {
  const uint pairs = q.rotary_dim / 2;
  if (q.rotary_dim % 8 != 0) {
    return vec4(HeadElement(token, head, i), HeadElement(token, head, i + 1), HeadElement(token, head, i + 2),
                HeadElement(token, head, i + 3));
  }
  const vec4 value = NormedVector(head, i);
  if (i >= q.rotary_dim) return value;
  if (q.rope_halves == 0) {
    const vec4 angle = angles_vec4((token * pairs + i / 2) / 2);
    return vec4(value.x * angle.x - value.y * angle.y, value.x * angle.y + value.y * angle.x,
                value.z * angle.z - value.w * angle.w, value.z * angle.w + value.w * angle.z);
  }
  const bool is_first = i < pairs;
  const vec4 other = NormedVector(head, is_first ? i + pairs : i - pairs);
  const uint at = (token * pairs + (is_first ? i : i - pairs)) / 2;
  const vec4 a = angles_vec4(at);
  const vec4 b = angles_vec4(at + 1);
  return value * vec4(a.xz, b.xz) + (is_first ? -other : other) * vec4(a.yw, b.yw);
}
#else
float HeadElement(uint token, uint head, uint i) { return query_float(head * q.head_dim + i); }
vec4 HeadVector(uint token, uint head, uint i) { return query_vec4((head * q.head_dim + i) / 4); }
#endif
