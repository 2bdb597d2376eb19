// An index of clusters: a row for each cluster of each KV head of each sequence (a *list* each), which scores
// and the search for the cluster that is nearest to a key both go by (centroid_row.h).
//
// What is learned of a prompt, and which clusters there are, is the ledger's business: it sets rows.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "runtime/kv/clusters/cluster_rows.h"
#include "runtime/kv/contracts/kv_index.h"
#include "runtime/kv/plan/kv_plan.h"
#include "runtime/store/row_store.h"

namespace kvrun {

class ClusterIndex final : public KvIndex {
 public:
  // The plan must outlive it, and so must the store, for plans with rows on flash; else null. No cluster is
  // there.
  static Result<std::unique_ptr<ClusterIndex>> Create(Device& device, const KvPlan& plan, uint32_t n_layers,
                                                      RowStore* store);

  // `args` with an attention of one KV head, and a row for each list of the step.
  void FillScore(uint32_t layer, ScoreArgs* args) const override;
  uint64_t ScoreScratchBytes(const Device& device, const ScoreArgs& args) const override;
  // Which cluster the list's key (SetKey) is nearest to.
  Status RecordSearch(CommandList& list, uint32_t layer, uint32_t n_rows, Buffer* scratch) const override;
  Status WriteInputs(const KvStepInputs& inputs) override;

  // --- Rows that lie on flash: in time for the device.
  Status BeginStep(const KvStep& step) { return rows_->BeginStep(step); }
  Status EndLayer(uint32_t layer) override { return rows_->EndLayer(layer); }
  Status PrepareStep() override { return rows_->PrepareStep(); }
  // Without the clusters' records: see SetRecords.
  Status VisitState(StateVisitor& visitor, std::span<const uint32_t> lengths) override;
  // The choice of the layer is known: the rows of what is nearest (which is received) stay at hand.
  void KeepNearest(uint32_t layer, const KvStep& step);

  // --- Keys whose cluster is sought in the next step. `row`: of the step; head: of the row's.
  std::span<float> Key(uint32_t layer, uint32_t row, uint32_t head);  // [head_dim], to be written
  Status FlushKeys(uint32_t layer);
  // What the device has found, once it is complete; kNoCluster: there is none.
  Status ReceiveNearest(uint32_t layer);
  uint32_t Nearest(uint32_t layer, uint32_t row, uint32_t head) const;

  // --- Rows of a stream's list. Not while the device scores the layer.
  // Column scales that suit these centroids, float [n, head_dim]: before any row of the list is set.
  Status SetScales(uint32_t layer, uint32_t stream, std::span<const float> centroids);
  // A cluster of n_entries stored entries, which take n_records slots; without any it is found, not chosen.
  Status Set(uint32_t layer, uint32_t stream, uint32_t cluster, std::span<const float> centroid,
             uint32_t n_entries, uint32_t n_records);
  // The same centroid.
  Status SetSize(uint32_t layer, uint32_t stream, uint32_t cluster, uint32_t n_entries, uint32_t n_records);
  Status Clear(uint32_t layer, uint32_t stream, uint32_t cluster);
  Status ClearAll(uint32_t layer, uint32_t stream);
  // Of a list whose rows are loaded: what its first clusters take, which follows from the clusters.
  Status SetRecords(uint32_t layer, uint32_t stream, std::span<const uint32_t> n_records);
  // As its row has it.
  Status ReadCentroid(uint32_t layer, uint32_t stream, uint32_t cluster, std::span<float> centroid);
  // Before and after many changes of the layer's streams [first, first + n), where rows may lie on flash.
  Status Open(uint32_t layer, uint32_t first, uint32_t n) { return rows_->Open(layer, first, n); }
  Status Close() { return rows_->Close(); }
  // Clusters have ids below this, in all lists.
  void SetEnd(uint32_t end_cluster) { end_cluster_ = end_cluster; }

 private:
  struct Layer {
    std::unique_ptr<Buffer> scales;   // kShared, float [n_streams, rank]
    std::unique_ptr<Buffer> weights;  // kShared, uint32 [n_streams, n_clusters]: slots
    std::unique_ptr<Buffer> keys;     // kShared, float [n_streams, head_dim]
    std::unique_ptr<Buffer> nearest;  // kShared, uint32 [n_streams, 2]: ScoreArgs::chosen of one each
  };

  ClusterIndex(Device& device, const KvPlan& plan, uint32_t n_layers)
      : device_(device), plan_(plan), layers_(n_layers) {}

  Status CreateBuffers();
  ScoreArgs SearchArgs(uint32_t layer, uint32_t n_rows, Buffer* scratch) const;
  std::span<float> Scales(uint32_t layer, uint32_t stream) const;
  Status SetWeight(uint32_t layer, uint32_t stream, uint32_t cluster, uint32_t n_records);

  uint32_t heads() const { return plan_.heads_per_sequence(); }
  uint32_t head_dim() const { return plan_.record.head_dim; }
  uint32_t rank() const { return plan_.index.rank; }

  Device& device_;
  const KvPlan& plan_;
  std::vector<Layer> layers_;
  std::unique_ptr<ClusterRows> rows_;
  std::unique_ptr<Buffer> attention_side_;  // float [head_dim + 1, rank]
  std::unique_ptr<Buffer> nearest_side_;
  std::unique_ptr<Buffer> step_;    // kUpload, StepParams: a row of each list
  std::unique_ptr<Buffer> angles_;  // kUpload, float [n_streams, rotary_dim / 2, 2], as if all were rotated
  uint32_t end_cluster_ = 0;
};

}  // namespace kvrun
