// Reads words of a buffer named records (read_only.glsl).

// Elements 2i and 2i + 1 of the row that begins at word `row`, before they are scaled.
vec2 LoadPair(uint type, uint row, uint i) {
  if (type == KVRUN_KV_F32) return vec2(uintBitsToFloat(records_uint(row + 2 * i)), uintBitsToFloat(records_uint(row + 2 * i + 1)));
  if (type == KVRUN_KV_F16) {
    const uint word = records_uint(row + i);
    return vec2(HalfValue(word), HalfValue(word >> 16));
  }
  if (type == KVRUN_KV_INT4) {
    const uint byte = records_uint(row + i / 4) >> (8 * (i % 4));
    return vec2(SignedValue(byte, 4), SignedValue(byte >> 4, 4));
  }
  const uint pair = records_uint(row + i / 2) >> (16 * (i % 2));
  if (type == KVRUN_KV_FP8) return vec2(Fp8Value(pair), Fp8Value(pair >> 8));
  return vec2(SignedValue(pair, 8), SignedValue(pair >> 8, 8));
}

// `half_index` in halves from the buffer's begin. 1 where the type has no scales.
float LoadScale(uint type, uint half_index) {
  if (!HasScales(type)) return 1.0;
  return HalfValue(records_uint(half_index / 2) >> (16 * (half_index % 2)));
}
