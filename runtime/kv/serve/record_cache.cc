#include "runtime/kv/serve/record_cache.h"

#include <utility>

namespace kvrun {

RecordCache::RecordCache(Device& device, const KvPlan& plan, uint32_t n_layers, KvStores stores)
    : parts_(device, plan, n_layers, std::move(stores)),
      attended_(parts_),
      prompts_(parts_),
      steps_(parts_, attended_),
      reports_(parts_, attended_) {}

Result<std::unique_ptr<RecordCache>> RecordCache::Create(Device& device, const KvPlan& plan,
                                                         uint32_t n_layers, KvStores stores,
                                                         const Adapter* adapter) {
  std::unique_ptr<RecordCache> cache(new RecordCache(device, plan, n_layers, std::move(stores)));
  KVRUN_RETURN_IF_ERROR(cache->parts_.Make(device, adapter));
  return cache;
}

}  // namespace kvrun
