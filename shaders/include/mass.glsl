// How weights of a KV head's query heads become what a row gives to an entry, and how that joins what is there
// (MassForm). Masses are not negative, so that nothing given is 0. The includer declares push constants p with a member
// `form`.

void AddWeight(float weight, inout float given[KVRUN_MAX_MASS_MOMENTS]) {
  float power = weight;
  [[unroll]] for (uint m = 0; m < KVRUN_MAX_MASS_MOMENTS; ++m) {
    given[m] = p.form.heads == KVRUN_MASS_HEADS_MEAN ? given[m] + power : max(given[m], power);
    power *= weight;
  }
}

// Of four entries.
void AddWeights(vec4 weights, inout vec4 given[KVRUN_MAX_SLOT_MASS_MOMENTS]) {
  vec4 power = weights;
  [[unroll]] for (uint m = 0; m < KVRUN_MAX_SLOT_MASS_MOMENTS; ++m) {
    given[m] = p.form.heads == KVRUN_MASS_HEADS_MEAN ? given[m] + power : max(given[m], power);
    power *= weights;
  }
}

// What weights that were added up are multiplied with.
float HeadFactor(uint n_heads) { return p.form.heads == KVRUN_MASS_HEADS_MEAN ? 1.0 / float(n_heads) : 1.0; }

float Joined(float before, float given) {
  if (p.form.rows == KVRUN_MASS_ROWS_ADD) return before + given;
  return p.form.rows == KVRUN_MASS_ROWS_LARGEST ? max(before, given) : given;
}
