// A product with a norm before it or a gate after it, as the operations that it stands for: for devices that
// carry these out one by one.
#pragma once

#include <vector>

#include "runtime/device/operation.h"

namespace kvrun {

// What a device computes within the product itself.
struct MatMulFusion {
  bool norm = false;
  bool gate = false;
};

// Whether the product is what the device computes as one.
bool IsWhole(const MatMulArgs& args, const MatMulFusion& fusion);

// In their order; of a whole one, itself. Each is whole.
std::vector<Operation> PartsOf(const MatMulArgs& args, const MatMulFusion& fusion);

}  // namespace kvrun
