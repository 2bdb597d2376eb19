// Scores that a cap keeps between -score_cap and score_cap. The includer declares push constants p and the constant
// HAS_CAP.
float Capped(float score) {
  if (HAS_CAP == 0) return score;
  // The hyperbolic tangent, which some drivers have no number for where it is almost 1.
  return p.score_cap - 2.0 * p.score_cap / (1.0 + exp(2.0 * score / p.score_cap));
}
