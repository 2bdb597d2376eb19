// A *ledger* is the book of what there is of each sequence, and where: "1,203 entries; groups 0 to 283 are
// stored; the window holds the last 67". It also stores what leaves the window, forgets, and reads back. Each
// family of methods has its own.
//
// KvLedger is what all of them do. What only some families do has an interface of its own, which the ledgers
// of these are too (LedgerParts).
//
// Threads: one at a time; during a step the KV thread alone.
#pragma once

#include <cstddef>
#include <cstdint>
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
#include "runtime/store/state_visitor.h"

namespace kvrun {

class KvLedger : public StoredKeys {
 public:
  // --- Prefill of one sequence. Entries from `begin` on are forgotten.
  virtual Status BeginPrefill(uint32_t sequence, uint32_t begin) = 0;
  // All layers have `length` entries of the sequence now.
  virtual Status EndPrefill(uint32_t sequence, uint32_t length) = 0;
  // Records of whole groups that are stored: [n_groups], of one stream.
  virtual Status ReadGroups(uint32_t layer, uint32_t stream, uint32_t first_group, uint32_t n_groups,
                            std::span<std::byte> records) = 0;

  // --- Decode.
  // Spans of one row each; they stay where they are until the next BeginStep. Entries from there on are
  // forgotten.
  virtual Status BeginStep(const KvStep& step) = 0;
  // The step has succeeded: its entries are there.
  virtual void EndStep() = 0;

  // --- Saves, loads or counts what the ledger keeps in memory, without its records' checksums, which are the
  // store's. Between steps. Loading is into a ledger whose sequences have no entries, and not in decode; its
  // plan has the same records, window, streams and index; n_ctx may differ, where what is loaded fits. After
  // an error it may only be destroyed.
  virtual Status VisitState(StateVisitor& visitor) = 0;
};

// Stores groups as they become whole. Each ledger is either this or a LayerWriter.
class GroupWriter {
 public:
  virtual ~GroupWriter() = default;
  // Of a prompt: records of whole groups, [streams of the sequence, n_groups], of one layer.
  virtual Status Append(uint32_t layer, uint32_t sequence, uint32_t first_group, uint32_t n_groups,
                        std::span<const std::byte> records) = 0;
  // Groups that a step before this one completed go to the store: those that this step leaves no room or use
  // for where they are, before any layer is served; and all of them, at any time.
  virtual Status StoreLeavingGroups() = 0;
  // Whole groups of a sequence that are stored, from the first on.
  virtual uint32_t n_stored(uint32_t sequence) const = 0;
  // Of these some of a stream, ascending, read in one batch: records [groups.size()].
  virtual Status ReadSome(uint32_t layer, uint32_t stream, std::span<const uint32_t> groups,
                          std::span<std::byte> records) = 0;
  virtual Status StoreCompletedGroups() = 0;
};

// Stores a prompt layer by layer, when all of a layer is there. Between BeginPrefill and EndPrefill.
class LayerWriter {
 public:
  virtual ~LayerWriter() = default;
  virtual Status StoreLayer(uint32_t layer, const KvRange& prompt, PromptEntries& entries) = 0;
  // For benchmarks: a layer's entries before those that the window holds of `length`: `records`, over and
  // over.
  virtual Status StoreRepeated(uint32_t layer, uint32_t sequence, uint32_t length,
                               std::span<const std::byte> records) = 0;
};

// Keeps entries that a layer attends to beside slots and window.
class KeptSources {
 public:
  virtual ~KeptSources() = default;
  // Slots are there, and gone: so is what is kept for decoding alone.
  virtual Status BeginDecode() { return Status::Ok(); }
  virtual void LeaveDecode() {}
  virtual void AddSources(uint32_t layer, SlotAttentionArgs* args) const = 0;
  // Adds positions of what the row attends to by AddSources. During the step, when the layer has begun.
  virtual void AddKeptPositions(uint32_t layer, uint32_t row, uint32_t head,
                                std::vector<uint32_t>* positions) const = 0;
};

// Forgets entries, by the attention that they receive.
class Evictor {
 public:
  virtual ~Evictor() = default;
  // The mass of the layer's window (SlotSource::mass); null: it is of no use.
  virtual Buffer* window_mass(uint32_t layer) const = 0;
  virtual KeptReport kept() const = 0;
};

// Changes what is stored by what a step has brought.
class LayerUpkeep {
 public:
  virtual ~LayerUpkeep() = default;
  // A layer is about to be served; what it attends to beside slots and window is where it has to be.
  virtual Status BeginLayer(uint32_t layer) = 0;
  // The step's layers are served, and the device is done with this one. `selector` knows what was chosen.
  virtual Status MaintainLayer(uint32_t layer, const KvSelector& selector) = 0;
  virtual ClusterReport clusters() const = 0;
};

// Changes the space of records that are there (EntrySpaces), whose means have just been set.
class RecordShifter {
 public:
  virtual ~RecordShifter() = default;
  // All of a layer's entries of the sequence: ShiftRecord by `shifts`, float [n_kv_heads, 2, head_dim]. After
  // an error the sequence has to be computed again.
  virtual Status Shift(uint32_t layer, uint32_t sequence, std::span<const float> shifts) = 0;
  // Mean keys and values in records, of stored entries all over the sequence: [n_kv_heads, 2, head_dim]. None
  // where there are few.
  virtual Result<std::vector<float>> MeansInRecords(uint32_t layer, uint32_t sequence) = 0;
};

}  // namespace kvrun
