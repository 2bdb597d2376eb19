// Out of the records' space (runtime/device/entry_space.h): D H of a row's elements. The includer declares
// float SPACE_ROW[] and SPACE_HALFWAY[], shared, of a head's elements; SPACE_LANE and SPACE_LANES, who of a workgroup takes
// which; and includes entry_space.glsl.

// Of at most four bits.
float ParitySign(uint bits) { return (0x6996u >> bits & 1u) != 0 ? -1.0 : 1.0; }

// H is a product of two sums, over the low and the high half of a column's bits: signs are by the parity of the bits
// that row and column share.
void MultiplyLow(uint head_dim, uint low) {
  for (uint i = SPACE_LANE; i < head_dim; i += SPACE_LANES) {
    const uint begin = i / low * low;
    float sum = 0.0;
    for (uint j = 0; j < low; ++j) sum += ParitySign(j & (i - begin)) * SPACE_ROW[begin + j];
    SPACE_HALFWAY[i] = sum;
  }
}

float HighElement(uint i, uint low, uint high) {
  const uint row = i / low % high;
  const uint begin = i - row * low;
  float sum = 0.0;
  for (uint j = 0; j < high; ++j) sum += ParitySign(j & row) * SPACE_HALFWAY[begin + j * low];
  return sum;
}
