#include "runtime/kv/evict/vault.h"

namespace kvrun {

Result<std::span<const std::byte>> Vault::Read(uint32_t layer, uint32_t stream) {
  const List& of = list(layer, stream);
  records_.resize((of.positions.size() - of.n_low) * plan_.record.size_bytes() +
                  of.n_low * plan_.of_kept().low_record.size_bytes());
  if (!records_.empty()) KVRUN_RETURN_IF_ERROR(file_->Read(Offset(layer, stream), records_));
  return std::span<const std::byte>(records_);
}

}  // namespace kvrun
