// A row of K, V or a query on its way into the space of records, or out of it (runtime/device/entry_space.h): one
// invocation has all of it.
#include "shared/entry_space.h"

const uint kSignWords[KVRUN_MOST_ELEMENTS / 32] = uint[](KVRUN_SIGN_WORDS);
float rotated[KVRUN_MOST_ELEMENTS];

float SignOf(uint i) { return (kSignWords[i / 32] >> (i % 32) & 1u) != 0 ? -1.0 : 1.0; }

// The largest power of two that divides it.
uint HadamardBlock(uint head_dim) { return head_dim & (~head_dim + 1u); }

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
