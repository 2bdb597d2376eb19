// What a cache keeps its records in, on flash: groups or clusters, as its method asks for; or what a method
// that evicts puts aside there while a prompt is computed.
#pragma once

#include <cstdint>
#include <memory>

#include "platform/base/status.h"
#include "platform/io/block_file.h"
#include "runtime/kv/plan/kv_plan.h"
#include "runtime/store/cluster_files.h"
#include "runtime/store/group_store.h"
#include "runtime/store/row_store.h"
#include "runtime/store/sealed_units.h"
#include "runtime/store/spill_file.h"

namespace kvrun {

struct KvStores {
  std::unique_ptr<GroupStore> groups;
  std::unique_ptr<ClusterFiles> clusters;
  std::unique_ptr<RowStore> rows;  // of the index of clusters, where those lie on flash
  std::unique_ptr<SpillFile> vault;

  bool is_empty() const { return groups == nullptr && clusters == nullptr; }
};

// The store that the plan's method asks for; reserves its space in the file. `rows_file`: of plans whose
// index lies on flash; else null. `room_tokens`: of files that are kept, the longest context that they have
// places for, no shorter than the plan's; 0: the plan's.
Result<KvStores> MakeKvStores(const KvPlan& plan, uint32_t n_layers, std::unique_ptr<BlockFile> file,
                              std::unique_ptr<BlockFile> rows_file = nullptr, uint32_t room_tokens = 0);

// What a file is for that is kept (SavePointFile) or encrypted (SealedFile): in what units it is written, and
// how many bytes of them there are.
struct KvFileSize {
  SealedShape shape;
  uint32_t n_helpers = 0;  // that open what is encrypted
};
// Whether records lie there while nothing is computed: else what a prompt puts aside is all that does.
bool HasKeptRecords(const KvPlan& plan);
// Of such plans.
KvFileSize RecordsFileSize(const KvPlan& plan, uint32_t n_layers, uint32_t room_tokens, const IoMode& mode);
// Of the rows of their index, where has_rows_file().
KvFileSize RowsFileSize(const KvPlan& plan, uint32_t n_layers, const IoMode& mode);

}  // namespace kvrun
