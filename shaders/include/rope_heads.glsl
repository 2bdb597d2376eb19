// Norm and rotation of heads in place. The includer declares float qkv[], vec2 angles ([token, rotary_dim / 2]:
// cosine and sine), float norms and push constants p, and defines HEAD_DIM.

void NormHead(uint head_begin, uint norm_begin) {
  float sum = 0.0;
  for (uint i = 0; i < HEAD_DIM; ++i) sum += qkv[head_begin + i] * qkv[head_begin + i];
  const float factor = 1.0 / sqrt(sum / float(HEAD_DIM) + p.norm_epsilon);
  for (uint i = 0; i < HEAD_DIM; ++i) qkv[head_begin + i] *= factor * norms_float(norm_begin + i);
}

void RotateHead(uint head_begin, uint token) {
  const uint pairs = p.rotary_dim / 2;
  for (uint i = 0; i < pairs; ++i) {
    const uint first = head_begin + (p.rope_halves != 0 ? i : 2 * i);
    const uint second = first + (p.rope_halves != 0 ? pairs : 1);
    const vec2 angle = angles_vec2(token * pairs + i);
    const float a = qkv[first];
    const float b = qkv[second];
    qkv[first] = a * angle.x - b * angle.y;
    qkv[second] = a * angle.y + b * angle.x;
  }
}
