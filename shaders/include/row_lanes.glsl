// Who works on a row: one invocation; or, where the includer defines ROW_LANES, a workgroup of so many, each of which
// takes elements RowLane(), RowLane() + ROW_LANES and so on. All of a workgroup call RowSync, RowSum and RowMax.
#ifdef ROW_LANES
shared float lane_parts[ROW_LANES];

uint RowLane() { return gl_LocalInvocationIndex; }

// What any lane wrote to shared memory before is seen by all after it.
void RowSync() { barrier(); }

float RowSum(float part) {
  lane_parts[RowLane()] = part;
  RowSync();
  for (uint half_lanes = ROW_LANES / 2; half_lanes > 0; half_lanes /= 2) {
    if (RowLane() < half_lanes) lane_parts[RowLane()] += lane_parts[RowLane() + half_lanes];
    RowSync();
  }
  const float sum = lane_parts[0];
  RowSync();
  return sum;
}

float RowMax(float part) {
  lane_parts[RowLane()] = part;
  RowSync();
  for (uint half_lanes = ROW_LANES / 2; half_lanes > 0; half_lanes /= 2) {
    if (RowLane() < half_lanes) {
      lane_parts[RowLane()] = max(lane_parts[RowLane()], lane_parts[RowLane() + half_lanes]);
    }
    RowSync();
  }
  const float largest = lane_parts[0];
  RowSync();
  return largest;
}
#define ROW_ARRAY shared
#else
#define ROW_LANES 1
#define ROW_ARRAY

uint RowLane() { return 0; }
void RowSync() {}
float RowSum(float part) { return part; }
float RowMax(float part) { return part; }
#endif
