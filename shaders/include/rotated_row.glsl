// A row of K, V or a query on its way into the space of records, or out of it (runtime/device/entry_space.h).
#include "include/entry_space.glsl"
#include "include/row_lanes.glsl"

ROW_ARRAY float rotated[KVRUN_MOST_ELEMENTS];

void Hadamard(uint head_dim) {
  const uint block = HadamardBlock(head_dim);
  for (uint length = 1; length < block; length *= 2) {
    for (uint i = RowLane(); i < head_dim / 2; i += ROW_LANES) {
      const uint first = i / length * 2 * length + i % length;
      const float a = rotated[first];
      const float b = rotated[first + length];
      rotated[first] = a + b;
      rotated[first + length] = a - b;
    }
    RowSync();
  }
  const float factor = 1.0 / sqrt(float(block));
  for (uint i = RowLane(); i < head_dim; i += ROW_LANES) rotated[i] *= factor;
  RowSync();
}

void RotateRow(uint head_dim) {
  for (uint i = RowLane(); i < head_dim; i += ROW_LANES) rotated[i] *= SignOf(i);
  RowSync();
  Hadamard(head_dim);
}

void RotateRowBack(uint head_dim) {
  Hadamard(head_dim);
  for (uint i = RowLane(); i < head_dim; i += ROW_LANES) rotated[i] *= SignOf(i);
  RowSync();
}
