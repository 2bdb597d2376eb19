// A ledger of clusters: entries that leave the window settle in the cluster that their key is nearest to.
// A stream's entries lie in one of these places each, oldest first:
//
//   sinks                            the first ones: kept in memory
//   clusters                         on flash, those that are chosen in slots
//   pending entries                  kept in memory until their cluster is there (ClusterMap)
//   the window                       from settled() on: nowhere else
//
// Source: DynaKV, sections 4 and 5; docs/methods/dynakv.md says what is different.
//
// Threads: one at a time; during a step the KV thread alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "platform/base/status.h"
#include "runtime/kv/clusters/cluster_extents.h"
#include "runtime/kv/clusters/cluster_index.h"
#include "runtime/kv/clusters/cluster_prompt.h"
#include "runtime/kv/clusters/cluster_upkeep.h"
#include "runtime/kv/contracts/kv_ledger.h"
#include "runtime/kv/memory/entry_spaces.h"
#include "runtime/kv/memory/kept_entries.h"
#include "runtime/kv/memory/kv_slots.h"
#include "runtime/kv/memory/recent_window.h"
#include "runtime/kv/plan/kv_plan.h"
#include "runtime/store/cluster_files.h"

namespace kvrun {

class ClusterLedger final : public KvLedger, public LayerWriter, public KeptSources, public LayerUpkeep {
 public:
  // All must outlive it.
  static Result<std::unique_ptr<ClusterLedger>> Create(Device& device, const KvPlan& plan, uint32_t n_layers,
                                                       ClusterSet& clusters, ClusterFiles& store,
                                                       RecentWindow& window, KvSlots& slots,
                                                       ClusterIndex& index,
                                                       const EntrySpaces& spaces = EntrySpaces::None());

  // Earlier entries that a prompt attends to: as many as are brought in order at once.
  static uint64_t ImageBytes(const KvPlan& plan);

  uint32_t n_sequences() const override { return static_cast<uint32_t>(lengths_.size()); }
  uint32_t length(uint32_t sequence) const override { return lengths_[sequence]; }
  Status Visit(uint32_t layer, uint32_t sequence, uint32_t begin, const KeysFn& visit) override;

  Status BeginPrefill(uint32_t sequence, uint32_t begin) override;
  Status StoreLayer(uint32_t layer, const KvRange& prompt, PromptEntries& entries) override;
  Status EndPrefill(uint32_t sequence, uint32_t length) override;

  Status BeginStep(const KvStep& step) override;
  Status BeginLayer(uint32_t layer) override;
  Status MaintainLayer(uint32_t layer, const KvSelector& selector) override;
  void AddSources(uint32_t layer, SlotAttentionArgs* args) const override { args->Add(kept_.source(layer)); }
  void AddKeptPositions(uint32_t layer, uint32_t row, uint32_t head,
                        std::vector<uint32_t>* positions) const override;
  void EndStep() override;
  Status VisitState(StateVisitor& visitor) override;

  Status ReadGroups(uint32_t layer, uint32_t stream, uint32_t first_group, uint32_t n_groups,
                    std::span<std::byte> records) override;
  Status StoreRepeated(uint32_t layer, uint32_t sequence, uint32_t length,
                       std::span<const std::byte> records) override;

  ClusterReport clusters() const override;

 private:
  static constexpr uint32_t kNoEntry = UINT32_MAX;

  ClusterLedger(Device& device, const KvPlan& plan, uint32_t n_layers, ClusterSet& clusters,
                ClusterFiles& store, RecentWindow& window, KvSlots& slots, ClusterIndex& index,
                const EntrySpaces& spaces);

  // Forgetting.
  Status UndoPrefill();
  Status Forget(uint32_t sequence, uint32_t length);
  Status ForgetFrom(uint32_t sequence, uint32_t first, uint32_t length);
  Status ForgetStream(const ClusterPlace& at, uint32_t sequence, uint32_t first, uint32_t length);
  void ForgetAll(uint32_t sequence);

  // With the layer's rows of the index at hand, for many changes of a sequence's.
  template <typename Fn>
  Status WithRows(uint32_t layer, uint32_t sequence, const Fn& change) {
    KVRUN_RETURN_IF_ERROR(index_.Open(layer, sequence * heads(), heads()));
    Status status = change();
    const Status closed = index_.Close();
    return status.ok() ? closed : status;
  }

  // States.
  Status CheckLoaded(uint32_t sequence) const;
  Status VisitStream(StateVisitor& visitor, const ClusterPlace& at);
  Status Resume(const ClusterPlace& at, std::span<const Cluster> clusters,
                std::span<const PendingEntry> pending);

  // Prompts.
  Status UndoStreams(uint32_t layer, uint32_t sequence, bool* is_mixed);
  Status StoreStreams(uint32_t layer, const KvRange& prompt, PromptEntries& entries);
  Status RepeatStreams(uint32_t layer, uint32_t sequence, uint32_t length,
                       std::span<const std::byte> records);
  Status KeepSinks(const ClusterPlace& at, uint32_t head, uint32_t begin, uint32_t end,
                   PromptEntries& entries);
  Status AddClusters(const ClusterPlace& at, uint32_t begin, std::span<const uint32_t> order);
  Status AddAll(const ClusterPlace& at, uint32_t begin, std::span<const uint32_t> order);
  Status SettleOneByOne(const ClusterPlace& at, uint32_t head, uint32_t begin, uint32_t end,
                        PromptEntries& entries);
  Status SetScales(const ClusterPlace& at, std::span<const float> centroids);

  // Settling.
  uint32_t FreePlace(const ClusterPlace& at) const;
  Status Arrive(const ClusterPlace& at, uint32_t position);
  Status NameKept(const ClusterPlace& at, uint32_t n_sinks, uint32_t arriving);
  Status Settle(const ClusterPlace& at, uint32_t position, uint32_t place, std::span<const float> key,
                uint32_t nearest);
  Result<uint32_t> FindNearest(const ClusterPlace& at, std::span<const float> key);
  bool is_local() const { return plan_.of_clusters().update == ClusterUpdate::kLocal; }
  Status DivideLocal(const ClusterPlace& at, uint32_t cluster);
  // Clusters that a row's upkeep may have changed when a layer is over: an equal share of each layer, and
  // what those before have left. Where there are more layers than clusters, other layers have one for each
  // token.
  uint32_t Allowed(const KvSpan& span, uint32_t layer) const;
  Status MaintainPending(const ClusterPlace& at, uint32_t row, std::span<const uint32_t> chosen);
  void CountWanted(const ClusterPlace& at, std::span<const uint32_t> chosen);
  Status MaintainRow(uint32_t layer, uint32_t row, const KvSelector& selector);

  uint32_t heads() const { return plan_.heads_per_sequence(); }
  uint32_t settled(uint32_t layer, uint32_t sequence) const {
    return settled_[size_t{layer} * lengths_.size() + sequence];
  }
  uint32_t& settled(uint32_t layer, uint32_t sequence) {
    return settled_[size_t{layer} * lengths_.size() + sequence];
  }
  uint32_t leaving(const KvSpan& span) const {
    return span.first_position >= plan_.window.n_entries ? span.first_position - plan_.window.n_entries
                                                         : kNoEntry;
  }

  Device& device_;
  const KvPlan& plan_;
  uint32_t n_layers_;
  ClusterSet& clusters_;
  ClusterFiles& store_;
  RecentWindow& window_;
  ClusterIndex& index_;
  const EntrySpaces& spaces_;
  KeptEntries kept_;
  ClusterUpkeep upkeep_;
  std::vector<uint32_t> lengths_;    // of each sequence
  std::vector<uint32_t> settled_;    // [n_layers, n_sequences]: entries before it have left the window
  std::vector<Status> broken_;       // of each sequence: why it has to be computed again
  const KvStep* step_ = nullptr;     // the last that began
  std::vector<uint32_t> n_changed_;  // [rows]: clusters that upkeep has changed in this step
  uint64_t n_put_off_ = 0;           // ClusterReport::put_off
  std::vector<uint32_t> places_;     // of a stream's mapping table of kept entries
  std::vector<float> centroid_;      // [head_dim]
  std::vector<float> key_;           // [head_dim]
  WantedRuns wanted_;                // of decode steps
  uint64_t wanted_clusters_ = 0;
  std::vector<bool> has_scales_;  // [n_layers, n_streams]: of a prompt's centroids, and not of one key
  std::vector<uint32_t> settled_before_;  // settled_, when the last prompt began
  // Of a prompt that is computed: which clusters are new, [n_layers, n_streams, n_clusters].
  std::vector<bool> is_new_;
  std::unique_ptr<ClusterPrompt> prompt_;
  // Entries in the order of their positions, for a prompt that attends to earlier ones: of one layer, all
  // streams of a sequence.
  struct Image {
    uint32_t layer = kNoEntry;
    uint32_t sequence = 0;
    uint32_t begin = 0;
    uint32_t end = 0;
    std::vector<std::byte> records;  // [streams of the sequence, end - begin]
  };
  static uint32_t ImageEntries(const KvPlan& plan);
  Status MakeImage(uint32_t layer, uint32_t sequence, uint32_t begin);
  Image image_;
};

}  // namespace kvrun
