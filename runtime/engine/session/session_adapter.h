// What a session takes of the adapter's file that its user named, while it is planned and prepared. The file
// is read once.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "platform/base/status.h"
#include "runtime/kv/math/adapter.h"
#include "runtime/kv/math/adapter_file.h"
#include "runtime/kv/plan/kv_plan.h"
#include "runtime/kv/planner/kv_options.h"
#include "runtime/model/model.h"

namespace kvrun {

class SessionAdapter {
 public:
  // Both must outlive it. What was read is held as long as this.
  SessionAdapter(const Model& model, const KvSettings& settings);

  // What a plan is made with. Where nobody asks for it, what is wrong with the file is left to Check to say,
  // which knows whether the method has any use for it.
  Result<std::vector<float>> LayerShares();
  // Whether it is one for the model and a plan.
  Status Check(const KvPlan& plan);
  // What a forward pass by the plan takes of it: null where no file was named, or where nothing is selected
  // by it. The end of this.
  Result<std::shared_ptr<const Adapter>> Take(const KvPlan& plan) &&;

 private:
  enum class Use : uint8_t { kNone, kColumns, kThresholds };

  Use UseOf(const KvPlan& plan) const;
  Result<AdapterFit> NeededBy(const KvPlan& plan) const;
  Status CheckThresholds(const std::vector<float>& thresholds) const;

  const Model& model_;
  const KvSettings& settings_;
  std::optional<AdapterFile> file_;  // none: none was named
};

}  // namespace kvrun
