// silu(x), or gelu(x) by tanh: x (1 + tanh(y)) / 2 is x sigmoid(2 y).
float Activated(float x, bool is_gelu) {
  const float logit = is_gelu ? 1.5957691216057308 * (x + 0.044715 * x * x * x) : x;
  return x / (1.0 + exp(-logit));
}
