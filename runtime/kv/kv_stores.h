// What a cache keeps its records in, on flash: one of these, as its method asks for.
#pragma once

#include <cstdint>
#include <memory>

#include "platform/base/status.h"
#include "platform/io/block_file.h"
#include "runtime/kv/kv_plan.h"
#include "runtime/store/cluster_files.h"
#include "runtime/store/group_store.h"

namespace kvrun {

struct KvStores {
  std::unique_ptr<GroupStore> groups;
  std::unique_ptr<ClusterFiles> clusters;

  bool is_empty() const { return groups == nullptr && clusters == nullptr; }
};

// The store that the plan's method asks for; reserves its space in the file.
Result<KvStores> MakeKvStores(const KvPlan& plan, uint32_t n_layers, std::unique_ptr<BlockFile> file);

}  // namespace kvrun
