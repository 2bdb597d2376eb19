#include "runtime/device/matmul_parts.h"

#include "platform/base/check.h"

namespace kvrun {

bool IsWhole(const MatMulArgs& args, const MatMulFusion& fusion) {
  return (args.norm.weight == nullptr || fusion.norm) && (args.gate.gate_up == nullptr || fusion.gate);
}

std::vector<Operation> PartsOf(const MatMulArgs& args, const MatMulFusion& fusion) {
  std::vector<Operation> parts;
  MatMulArgs product = args;
  if (args.norm.weight != nullptr && !fusion.norm) {
    if (!args.norm.was_before) {
      parts.emplace_back(RmsNormArgs{.x = args.input,
                                     .weight = args.norm.weight,
                                     .epsilon = args.norm.epsilon,
                                     .n_rows = args.n_tokens,
                                     .n_cols = args.weight->n_cols(),
                                     .out = args.norm.rows});
    }
    product.input = args.norm.rows;
    product.norm = {};
  }
  if (args.gate.gate_up == nullptr || fusion.gate) {
    parts.emplace_back(product);
    return parts;
  }
  KVRUN_CHECK(args.bias == nullptr && !args.accumulate && args.n_rows == 0);
  product.output = args.gate.gate_up;
  product.gate = {};
  parts.emplace_back(product);
  parts.emplace_back(GatedUnitArgs{.gate_up = args.gate.gate_up,
                                   .n_tokens = args.n_tokens,
                                   .n_ff = args.weight->n_rows() / 2,
                                   .out = args.output,
                                   .activation = args.gate.activation});
  return parts;
}

}  // namespace kvrun
