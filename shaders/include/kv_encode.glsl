// Writes rows into `records[]`, an array of words. The includer defines float Element(uint source, uint i): element i
// of the row to encode, and includes row_lanes.glsl. All of a row's words are its own, but a word of scales may hold
// those of two rows.

// Others may write the word's other half meanwhile: neither step touches it.
void StoreScale(uint half_index, uint bits) {
  if (RowLane() != 0) return;
  const uint shift = 16 * (half_index % 2);
  atomicAnd(records[half_index / 2], ~(0xffffu << shift));
  atomicOr(records[half_index / 2], bits << shift);
}

float Inverse(float scale) { return scale == 0.0 ? 0.0 : 1.0 / scale; }

void EncodeFloats(uint source, uint row, uint head_dim) {
  for (uint i = RowLane(); i < head_dim; i += ROW_LANES) records[row + i] = floatBitsToUint(Element(source, i));
}

void EncodeHalves(uint source, uint row, uint head_dim) {
  for (uint i = 2 * RowLane(); i < head_dim; i += 2 * ROW_LANES) {
    records[row + i / 2] = HalfBits(Element(source, i)) | HalfBits(Element(source, i + 1)) << 16;
  }
}

// A byte per element, fp8 or int8; zeros beyond the last.
void EncodeBytes(uint type, uint source, uint row, uint scale_at, uint head_dim) {
  float largest = 0.0;
  for (uint i = RowLane(); i < head_dim; i += ROW_LANES) largest = max(largest, abs(Element(source, i)));
  largest = RowMax(largest);
  const uint scale_bits = HalfBits(largest * (type == KVRUN_KV_FP8 ? 1.0 / 448.0 : 1.0 / 127.0));
  const float inverse = Inverse(HalfValue(scale_bits));
  for (uint begin = 4 * RowLane(); begin < head_dim; begin += 4 * ROW_LANES) {
    uint word = 0;
    [[unroll]] for (uint j = 0; j < 4; ++j) {
      const float x = Element(source, min(begin + j, head_dim - 1)) * inverse;
      const uint bits = type == KVRUN_KV_FP8 ? Fp8Bits(x) : uint(int(roundEven(clamp(x, -127.0, 127.0)))) & 0xffu;
      word |= begin + j < head_dim ? bits << (8 * j) : 0;
    }
    records[row + begin / 4] = word;
  }
  StoreScale(scale_at, scale_bits);
}

const float kInt4Factors[KVRUN_N_INT4_FACTORS] = float[](KVRUN_INT4_FACTORS);

float RoundNibble(float x) { return roundEven(clamp(x, -8.0, 7.0)); }

// The squares of what rounding takes from the elements of a block.
float Int4Error(uint source, uint begin, uint end, float scale) {
  const float inverse = Inverse(scale);
  float error = 0.0;
  for (uint i = begin; i < end; ++i) {
    const float x = Element(source, i) * inverse;
    const float lost = RoundNibble(x) - x;
    error += lost * lost;
  }
  return error * scale * scale;
}

// Of the first element of the largest magnitude, with its sign.
float LargestElement(uint source, uint begin, uint end) {
  float largest = 0.0;
  for (uint i = begin; i < end; ++i) {
    const float x = Element(source, i);
    largest = abs(x) > abs(largest) ? x : largest;
  }
  return largest;
}

uint Int4Candidate(float largest, uint f) { return HalfBits(largest * (-0.125 * kInt4Factors[f])); }

#if ROW_LANES > 1
shared float int4_largest[KVRUN_MOST_ELEMENTS / KVRUN_INT4_BLOCK];
shared float int4_errors[KVRUN_MOST_ELEMENTS / KVRUN_INT4_BLOCK * KVRUN_N_INT4_FACTORS];

// A lane for each candidate of each block.
void TryInt4Scales(uint source, uint head_dim) {
  const uint n_blocks = (head_dim + KVRUN_INT4_BLOCK - 1) / KVRUN_INT4_BLOCK;
  for (uint i = RowLane(); i < n_blocks * KVRUN_N_INT4_FACTORS; i += ROW_LANES) {
    const uint block = i / KVRUN_N_INT4_FACTORS;
    const uint begin = block * KVRUN_INT4_BLOCK;
    const uint end = min(begin + KVRUN_INT4_BLOCK, head_dim);
    const float largest = LargestElement(source, begin, end);
    if (i % KVRUN_N_INT4_FACTORS == 0) int4_largest[block] = largest;
    int4_errors[i] = Int4Error(source, begin, end, HalfValue(Int4Candidate(largest, i % KVRUN_N_INT4_FACTORS)));
  }
  RowSync();
}

uint Int4ScaleBits(uint source, uint begin, uint end) {
  const uint block = begin / KVRUN_INT4_BLOCK;
  uint best = 0;
  for (uint f = 1; f < KVRUN_N_INT4_FACTORS; ++f) {
    const uint first = block * KVRUN_N_INT4_FACTORS;
    best = int4_errors[first + f] < int4_errors[first + best] ? f : best;
  }
  return Int4Candidate(int4_largest[block], best);
}
#else
void TryInt4Scales(uint source, uint head_dim) {}

uint Int4ScaleBits(uint source, uint begin, uint end) {
  const float largest = LargestElement(source, begin, end);
  uint best = Int4Candidate(largest, 0);
  float least = Int4Error(source, begin, end, HalfValue(best));
  for (uint f = 1; f < KVRUN_N_INT4_FACTORS; ++f) {
    const uint bits = Int4Candidate(largest, f);
    const float error = Int4Error(source, begin, end, HalfValue(bits));
    best = error < least ? bits : best;
    least = min(least, error);
  }
  return best;
}
#endif

// Four bits per element and a scale per block; zeros beyond the last.
void EncodeNibbles(uint source, uint row, uint scale_at, uint head_dim) {
  TryInt4Scales(source, head_dim);
  for (uint block = 0; block < head_dim; block += KVRUN_INT4_BLOCK) {
    const uint end = min(block + KVRUN_INT4_BLOCK, head_dim);
    const uint scale_bits = Int4ScaleBits(source, block, end);
    const float inverse = Inverse(HalfValue(scale_bits));
    for (uint begin = block + 8 * RowLane(); begin < end; begin += 8 * ROW_LANES) {
      uint word = 0;
      for (uint j = 0; j < 8; ++j) {
        const float x = Element(source, min(begin + j, head_dim - 1)) * inverse;
        const uint bits = uint(int(RoundNibble(x))) & 0xfu;
        word |= begin + j < head_dim ? bits << (4 * j) : 0;
      }
      records[row + begin / 8] = word;
    }
    StoreScale(scale_at + block / KVRUN_INT4_BLOCK, scale_bits);
  }
}

void EncodeRow(uint type, uint source, uint row, uint scale_at, uint head_dim) {
  if (type == KVRUN_KV_F32) {
    EncodeFloats(source, row, head_dim);
  } else if (type == KVRUN_KV_F16) {
    EncodeHalves(source, row, head_dim);
  } else if (type == KVRUN_KV_INT4) {
    EncodeNibbles(source, row, scale_at, head_dim);
  } else {
    EncodeBytes(type, source, row, scale_at, head_dim);
  }
}
