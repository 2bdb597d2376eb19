#include "runtime/kv/evict/vault.h"

namespace kvrun {

Result<std::span<const std::byte>> Vault::Read(uint32_t layer, uint32_t stream) {
  records_.resize(RecordBytes(list(layer, stream)));
  if (!records_.empty()) KVRUN_RETURN_IF_ERROR(file_->Read(Offset(layer, stream), records_));
  return std::span<const std::byte>(records_);
}

}  // namespace kvrun
