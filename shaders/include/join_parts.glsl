// What the last of a row's splits does with all of them: joins their parts, as combine_splits.comp says them. By a
// subgroup. The includer declares a coherent buffer of uint scratch[], LANES, HEAD_DIM, kMasked, FOLD, ADD and GROUP_SYNC.
shared float shared_factors[64];  // of splits
shared float shared_joined[256];  // the head's elements

// The first part begins at word `begin`. Seen by all of the subgroup.
void JoinParts(uint lane, uint begin, uint n_splits) {
  float maximum = kMasked;
  for (uint s = lane; s < n_splits; s += LANES) {
    maximum = max(maximum, uintBitsToFloat(scratch[begin + s * (HEAD_DIM + 2) + HEAD_DIM]));
  }
  FOLD(maximum, 1, max)
  float weight = 0.0;
  for (uint s = lane; s < n_splits; s += LANES) {
    const uint part = begin + s * (HEAD_DIM + 2) + HEAD_DIM;
    const float factor = exp(uintBitsToFloat(scratch[part]) - maximum);
    shared_factors[s] = factor;
    weight += factor * uintBitsToFloat(scratch[part + 1]);
  }
  FOLD(weight, 1, ADD)
  GROUP_SYNC();
  for (uint i = lane; i < HEAD_DIM; i += LANES) {
    float value = 0.0;
    for (uint s = 0; s < n_splits; ++s) {
      value += shared_factors[s] * uintBitsToFloat(scratch[begin + s * (HEAD_DIM + 2) + i]);
    }
    shared_joined[i] = value / weight;
  }
  GROUP_SYNC();
}
