#include "runtime/device/host/matmul_kernels.h"

#include <atomic>

#include "platform/base/check.h"
#include "runtime/device/instruction_targets.h"
#define HWY_WANT_AVX3_DL  // it has VNNI
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/device/host/matmul_kernels.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "runtime/device/host/int8_dot-inl.h"
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
#include "runtime/device/host/matmul_scalar-inl.h"
#else
#include "runtime/device/host/matmul_vector-inl.h"
#endif

#if HWY_ONCE
namespace kvrun::host {

HWY_EXPORT(MatMulKernelsOfTarget);

namespace {
std::atomic<Int8Products> most_products{Int8Products::kTiles};
}

MatMulKernels GetMatMulKernels() {
  return HWY_DYNAMIC_DISPATCH(MatMulKernelsOfTarget)(most_products.load(std::memory_order_relaxed));
}

void LimitInt8Products(Int8Products most) { most_products.store(most, std::memory_order_relaxed); }

}  // namespace kvrun::host
#endif
