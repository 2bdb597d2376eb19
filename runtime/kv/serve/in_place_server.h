// The server of plans whose entries all lie in slots, or beside them: nothing is chosen or read.
//
// Threads: one at a time; during a step the KV thread alone.
#pragma once

#include <algorithm>
#include <numeric>
#include <vector>

#include "runtime/kv/serve/layer_server.h"

namespace kvrun {

class InPlaceServer final : public LayerServer {
 public:
  using LayerServer::LayerServer;

 private:
  Status Bring(uint32_t /*layer*/) override { return Status::Ok(); }
  void DropBrought(uint32_t /*layer*/) override {}
  // Group i lies in slot i.
  Status NameSlots(const StreamStep& step) override {
    const uint32_t n_exact = std::min(plan_.window.n_exact_groups, step.n_groups);
    const SlotBuffers* const own = slots_.own(step.layer);
    if (own != nullptr) own->NameFirst(step.stream, step.n_groups, n_exact);
    return Status::Ok();
  }
  std::vector<uint32_t> LastAttended(const StreamStep& step) const override {
    std::vector<uint32_t> groups(step.n_groups);
    std::iota(groups.begin(), groups.end(), 0U);
    return groups;
  }
  void AddPositionsOf(const StreamStep& /*step*/, std::vector<uint32_t>* /*positions*/) override {}
};

}  // namespace kvrun
