#include "runtime/kv/serve/read_log.h"

namespace kvrun {

Status ReadLog::Fetch(uint32_t layer, std::span<const GroupFetch> fetches) {
  if (!fetches.empty()) {
    batches_.push_back({layer, fetches_.size(), fetches.size()});
    fetches_.insert(fetches_.end(), fetches.begin(), fetches.end());
  }
  return store_.Fetch(layer, fetches);
}

Result<uint64_t> ReadLog::Repeat() {
  for (const Batch& batch : batches_) {
    KVRUN_RETURN_IF_ERROR(store_.Fetch(batch.layer, std::span(fetches_).subspan(batch.begin, batch.count)));
  }
  return uint64_t{batches_.size()};
}

}  // namespace kvrun
