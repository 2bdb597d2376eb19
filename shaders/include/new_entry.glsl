// A step's newest entry of one KV head, and the queries that share it, rotated by a subgroup into shared memory. The
// includer declares LANES, HEAD_DIM, ROWS, FOLD, ADD and GROUP_SYNC, what is read only (qkv, angles, norms), STORED (an
// element as it is stored), and push constants `entry` (NewEntryParams). What is in shared memory is seen after
// GROUP_SYNC(). A vector has four elements: the head and what of it rotates have whole pairs of them.

#define MOST_VECTORS (KVRUN_MAX_NEW_HEAD_DIM / 4)
#define HEAD_VECTORS (HEAD_DIM / 4)
shared vec4 shared_queries[ROWS * MOST_VECTORS];  // [ROWS, HEAD_VECTORS]
shared vec4 shared_key[MOST_VECTORS];             // as it is stored
shared vec4 shared_value[MOST_VECTORS];

// By which a head is multiplied beside its norm's weights.
float HeadFactor(uint lane, uint head_vector) {
  if (entry.has_qk_norm == 0) return 1.0;
  float squares = 0.0;
  for (uint v = lane; v < HEAD_VECTORS; v += LANES) {
    const vec4 x = qkv_vec4(head_vector + v);
    squares += dot(x, x);
  }
  FOLD(squares, 1, ADD)
  return 1.0 / sqrt(squares / float(HEAD_DIM) + entry.norm_epsilon);
}

vec4 NormedVector(uint head_vector, uint norm_vector, uint v, float factor) {
  const vec4 x = qkv_vec4(head_vector + v);
  return entry.has_qk_norm != 0 ? x * (factor * norms_vec4(norm_vector + v)) : x;
}

// Vector v of the rotated head.
vec4 RotatedVector(uint token, uint head_vector, uint norm_vector, uint v, float factor) {
  const vec4 x = NormedVector(head_vector, norm_vector, v, factor);
  const uint angles_begin = token * (entry.rotary_dim / 4);  // in vectors, of two angles' cosine and sine each
  if (4 * v >= entry.rotary_dim) return x;
  if (entry.rope_halves == 0) {
    const vec4 angle = angles_vec4(angles_begin + v);
    return vec4(x.x * angle.x - x.y * angle.y, x.x * angle.y + x.y * angle.x, x.z * angle.z - x.w * angle.w,
                x.z * angle.w + x.w * angle.z);
  }
  const uint distance = entry.rotary_dim / 8;
  const bool is_first = v < distance;
  const vec4 other = NormedVector(head_vector, norm_vector, is_first ? v + distance : v - distance, factor);
  const uint at = angles_begin + 2 * (is_first ? v : v - distance);
  const vec4 low = angles_vec4(at);
  const vec4 high = angles_vec4(at + 1);
  const vec4 cosine = vec4(low.x, low.z, high.x, high.z);
  const vec4 sine = vec4(low.y, low.w, high.y, high.w);
  return is_first ? x * cosine - other * sine : other * sine + x * cosine;
}

void TakeQuery(uint lane, uint token, uint row, uint head_vector) {
  const float factor = HeadFactor(lane, head_vector);
  for (uint v = lane; v < HEAD_VECTORS; v += LANES) {
    shared_queries[row * HEAD_VECTORS + v] = RotatedVector(token, head_vector, 0, v, factor);
  }
}

void TakeEntry(uint lane, uint token, uint key_vector, uint value_vector) {
  const float factor = HeadFactor(lane, key_vector);
  for (uint v = lane; v < HEAD_VECTORS; v += LANES) {
    shared_key[v] = STORED(RotatedVector(token, key_vector, HEAD_VECTORS, v, factor));
    shared_value[v] = STORED(qkv_vec4(value_vector + v));
  }
}
