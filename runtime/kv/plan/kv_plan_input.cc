#include "runtime/kv/plan/kv_plan_input.h"

namespace kvrun {

bool KeepsRecordsInMemory(const KvOptions& options) {
  const KvType k_type = options.k_type.value_or(options.v_type.value_or(KvType::kF16));
  return k_type != options.v_type.value_or(k_type) || (k_type != KvType::kF16 && k_type != KvType::kF32);
}

}  // namespace kvrun
