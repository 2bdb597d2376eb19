#include "runtime/engine/session/session_adapter.h"

#include <fmt/format.h>

#include <string>
#include <utility>

namespace kvrun {

SessionAdapter::SessionAdapter(const Model& model, const KvSettings& settings)
    : model_(model), settings_(settings) {
  if (!settings.storage.adapter_path.empty()) file_.emplace(settings.storage.adapter_path);
}

Result<std::vector<float>> SessionAdapter::LayerShares() {
  const std::optional<KeptShares>& shares = settings_.kv.kept_shares;
  if (!file_ || shares == KeptShares::kEven) return std::vector<float>();
  const Result<const Adapter*> adapter = file_->Whole();
  if (adapter.ok()) return (*adapter)->layer_shares;
  if (shares) return adapter.status();
  return std::vector<float>();
}

// Clusters need no columns, which say how to score groups.
SessionAdapter::Use SessionAdapter::UseOf(const KvPlan& plan) const {
  if (!file_ || !plan.method.has_index()) return Use::kNone;
  return plan.method.has_clusters() ? Use::kThresholds : Use::kColumns;
}

Result<AdapterFit> SessionAdapter::NeededBy(const KvPlan& plan) const {
  KVRUN_ASSIGN_OR_RETURN(std::string fingerprint, model_.Fingerprint());
  return AdapterFit{.fingerprint = std::move(fingerprint),
                    .n_layers = model_.config.n_kv_layers(),
                    .key_dim = model_.config.kv_dim(),
                    .rank = UseOf(plan) == Use::kThresholds ? 1 : plan.index.rank};
}

// A factor on the command line takes their place.
Status SessionAdapter::CheckThresholds(const std::vector<float>& thresholds) const {
  const size_t n_needed = size_t{model_.config.n_kv_layers()} * model_.config.n_kv_heads;
  if (settings_.kv.split_factor || thresholds.size() == n_needed) return Status::Ok();
  return {StatusCode::kInvalidArgument,
          fmt::format("{}: the adapter has no thresholds for the clusters of the KV method {}: make it "
                      "again with kvadapt calibrate, or run without it",
                      file_->path(), settings_.kv.method)};
}

Status SessionAdapter::Check(const KvPlan& plan) {
  const Use use = UseOf(plan);
  if (use == Use::kNone) return Status::Ok();
  KVRUN_ASSIGN_OR_RETURN(const AdapterFit needed, NeededBy(plan));
  KVRUN_RETURN_IF_ERROR(file_->Check(needed));
  if (use == Use::kColumns) return Status::Ok();
  KVRUN_ASSIGN_OR_RETURN(const Adapter* const adapter, file_->Whole());
  return CheckThresholds(adapter->cluster_thresholds);
}

Result<std::shared_ptr<const Adapter>> SessionAdapter::Take(const KvPlan& plan) && {
  const Use use = UseOf(plan);
  if (use == Use::kNone) return std::shared_ptr<const Adapter>();
  KVRUN_ASSIGN_OR_RETURN(const AdapterFit needed, NeededBy(plan));
  KVRUN_ASSIGN_OR_RETURN(Adapter adapter, std::move(*file_).Take(needed));
  if (use == Use::kThresholds) {
    KVRUN_RETURN_IF_ERROR(CheckThresholds(adapter.cluster_thresholds));
    if (settings_.kv.split_factor) adapter.cluster_thresholds.clear();
    adapter.layers.clear();
  }
  return std::make_shared<const Adapter>(std::move(adapter));
}

}  // namespace kvrun
