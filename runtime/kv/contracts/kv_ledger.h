// A *ledger* is the book of what there is of each sequence, and where: "1,203 entries; groups 0 to 283 are
// stored; the window holds the last 67". It also stores what leaves the window, forgets, and reads back. Each
// family of methods has its own.
//
// Threads: one at a time; during a step the KV thread alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "platform/base/random.h"
#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/kv/contracts/kv_index.h"
#include "runtime/kv/contracts/kv_selector.h"
#include "runtime/kv/contracts/prompt_entries.h"
#include "runtime/kv/plan/cluster_report.h"
#include "runtime/kv/plan/kept_report.h"
#include "runtime/kv/plan/kv_step.h"

namespace kvrun {

class KvLedger : public StoredKeys {
 public:
  // --- Prefill of one sequence. Entries from `begin` on are forgotten.
  virtual Status BeginPrefill(uint32_t sequence, uint32_t begin) = 0;
  // Whether a layer is stored when all of it is there (StoreLayer), and not group by group (Append).
  virtual bool stores_layers() const { return false; }
  // Records of whole groups, [streams of the sequence, n_groups], of one layer.
  virtual Status Append(uint32_t layer, uint32_t sequence, uint32_t first_group, uint32_t n_groups,
                        std::span<const std::byte> records) = 0;
  virtual Status StoreLayer(uint32_t /*layer*/, const KvRange& /*prompt*/, PromptEntries& /*entries*/) {
    return Status::Ok();
  }
  // Where rows of prompts are observed (KvPlan::observed_rows) and layers are not stored as a whole: a layer
  // of the prompt is stored.
  virtual Status ChooseStatics(uint32_t /*layer*/, const KvRange& /*prompt*/, PromptEntries& /*entries*/) {
    return Status::Ok();
  }
  // For benchmarks, in place of ChooseStatics.
  virtual void ChooseStaticsEvenly(uint32_t /*sequence*/, uint32_t /*length*/) {}
  // StaticSet::measured_share.
  virtual std::optional<double> measured_static_share() const { return std::nullopt; }
  // All layers have `length` entries of the sequence now.
  virtual Status EndPrefill(uint32_t sequence, uint32_t length) = 0;

  // --- Decode.
  // Slots are there, and gone: so is what the ledger keeps for decoding alone.
  virtual Status BeginDecode() { return Status::Ok(); }
  virtual void LeaveDecode() {}
  // Spans of one row each; they stay where they are until the next BeginStep. Entries from there on are
  // forgotten.
  virtual Status BeginStep(const KvStep& step) = 0;
  // Groups that a step before this one completed go to the store: those that this step leaves no room or use
  // for where they are, before any layer is served; and all of them, at any time.
  virtual Status StoreLeavingGroups() { return Status::Ok(); }
  virtual Status StoreCompletedGroups() { return Status::Ok(); }
  // A layer is about to be served; what it attends to beside slots and window is where it has to be.
  virtual Status BeginLayer(uint32_t /*layer*/) { return Status::Ok(); }
  // The step's layers are served, and the device is done with this one: what the step has brought may be
  // stored. `selector` knows what was chosen.
  virtual Status MaintainLayer(uint32_t /*layer*/, const KvSelector& /*selector*/) { return Status::Ok(); }
  // Whether MaintainLayer has anything to do.
  virtual bool maintains() const { return false; }
  // Adds what a layer attends to beside slots and window.
  virtual void AddSources(uint32_t /*layer*/, SlotAttentionArgs* /*args*/) const {}
  // The mass of the layer's window (SlotSource::mass); null: it is of no use.
  virtual Buffer* window_mass(uint32_t /*layer*/) const { return nullptr; }
  // Adds positions of what the row attends to by AddSources. During the step, when the layer has begun.
  virtual void AddKeptPositions(uint32_t /*layer*/, uint32_t /*row*/, uint32_t /*head*/,
                                std::vector<uint32_t>* /*positions*/) const {}
  // Nothing: extents are groups.
  virtual std::optional<ClusterReport> clusters() const { return std::nullopt; }
  // Nothing: no entry is evicted.
  virtual std::optional<KeptReport> kept() const { return std::nullopt; }
  // The step has succeeded: its entries are there.
  virtual void EndStep() = 0;

  // --- The space of records (EntrySpaces), whose means have just been set.
  // Whether it can be changed for entries that are there.
  virtual bool can_shift() const { return false; }
  // All of a layer's entries of the sequence: ShiftRecord by `shifts`, float [n_kv_heads, 2, head_dim]. After
  // an error the sequence has to be computed again.
  virtual Status Shift(uint32_t /*layer*/, uint32_t /*sequence*/, std::span<const float> /*shifts*/) {
    return Status::Ok();
  }
  // Mean keys and values in records, of stored entries all over the sequence: [n_kv_heads, 2, head_dim].
  virtual Result<std::vector<float>> MeansInRecords(uint32_t /*layer*/, uint32_t /*sequence*/) {
    return std::vector<float>();
  }

  // Records of whole groups that are stored: [n_groups], of one stream.
  virtual Status ReadGroups(uint32_t layer, uint32_t stream, uint32_t first_group, uint32_t n_groups,
                            std::span<std::byte> records) = 0;
  // For benchmarks, where stores_layers(): between BeginPrefill and EndPrefill, a layer's entries before
  // those that the window holds of `length`: `records`, over and over.
  virtual Status StoreRepeated(uint32_t /*layer*/, uint32_t /*sequence*/, uint32_t /*length*/,
                               std::span<const std::byte> /*records*/) {
    return Status::Ok();
  }
};

}  // namespace kvrun
