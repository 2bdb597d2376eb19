// A row of K, V or a query on its way into the space of records, or out of it (runtime/device/entry_space.h): one
// invocation has all of it.
#include "include/entry_space.glsl"

float rotated[KVRUN_MOST_ELEMENTS];

void Hadamard(uint head_dim) {
  const uint block = HadamardBlock(head_dim);
  for (uint length = 1; length < block; length *= 2) {
    for (uint i = 0; i < head_dim / 2; ++i) {
      const uint first = i / length * 2 * length + i % length;
      const float a = rotated[first];
      const float b = rotated[first + length];
      rotated[first] = a + b;
      rotated[first + length] = a - b;
    }
  }
  const float factor = 1.0 / sqrt(float(block));
  for (uint i = 0; i < head_dim; ++i) rotated[i] *= factor;
}

void RotateRow(uint head_dim) {
  for (uint i = 0; i < head_dim; ++i) rotated[i] *= SignOf(i);
  Hadamard(head_dim);
}

void RotateRowBack(uint head_dim) {
  Hadamard(head_dim);
  for (uint i = 0; i < head_dim; ++i) rotated[i] *= SignOf(i);
}
