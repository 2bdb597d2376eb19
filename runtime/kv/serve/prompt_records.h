// What a prompt calls of a cache of records: the prefill of one sequence, from BeginPrefill to EndPrefill.
//
// Threads: one at a time, and not while a step is under way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "platform/base/status.h"
#include "runtime/kv/serve/record_parts.h"

namespace kvrun {

class PromptRecords {
 public:
  // The parts must outlive it.
  explicit PromptRecords(RecordParts& parts) : parts_(parts) {}

  const KvPlan& plan() const { return parts_.plan; }
  // Null where the method has none.
  KvIndex* index() const { return parts_.index.get(); }
  const EntrySpaces& spaces() const { return parts_.spaces; }
  StoredKeys& stored_keys() { return *parts_.ledger; }

  // Gives up slots, where there is flash. Entries of `sequence` from `begin` on are forgotten. Then either
  // AppendGroups or, where stores_layers(), StoreLayer.
  Status BeginPrefill(uint32_t sequence, uint32_t begin);
  Status EndPrefill(uint32_t sequence, uint32_t length) {
    return parts_.ledger->EndPrefill(sequence, length);
  }

  // --- What a prompt adds.
  Status AppendGroups(uint32_t layer, uint32_t sequence, uint32_t first_group, uint32_t n_groups,
                      std::span<const std::byte> records) {
    return parts_.family.groups->Append(layer, sequence, first_group, n_groups, records);
  }
  bool stores_layers() const { return parts_.family.layers != nullptr; }
  Status StoreLayer(uint32_t layer, const KvRange& prompt, PromptEntries& entries) {
    return parts_.family.layers->StoreLayer(layer, prompt, entries);
  }
  // Rows of prompts are observed, for StoreLayer or, where layers are not stored as a whole, for
  // ChooseStatics: the layer's groups are stored.
  bool observes() const { return parts_.plan.observed_rows() > 0; }
  Status ChooseStatics(uint32_t layer, const KvRange& prompt, PromptEntries& entries);
  // Groups that the window is to hold, as records of the window: [streams of the sequence, n_groups]. After
  // those of the layer that lie there were read (ReadWindow).
  Status PutWindow(uint32_t layer, uint32_t first_group, uint32_t n_groups,
                   std::span<const std::byte> records) {
    return parts_.window.Put(layer, first_group, n_groups, records);
  }
  // Of the exact groups, which are whole: records of the window, as above, and as they are stored.
  Status PutExact(uint32_t layer, uint32_t sequence, uint32_t first_group, uint32_t n_groups,
                  std::span<const std::byte> records, std::span<const std::byte> stored);
  // RecordParts::SetMeans, and whether they may be set by a prompt that begins at `begin`.
  Status SetMeans(uint32_t layer, uint32_t sequence, std::span<const float> means) {
    return parts_.SetMeans(layer, sequence, means);
  }
  bool wants_means(uint32_t layer, uint32_t sequence, uint32_t begin) const {
    return parts_.spaces.are_used() && !parts_.spaces.has_means(layer, sequence) &&
           (begin == 0 || parts_.family.shifter != nullptr);
  }

  // --- What was there before.
  // The first group that the window holds of the first `length` entries.
  uint32_t FirstWindowGroup(uint32_t length) const { return parts_.window.FirstGroup(length); }
  // Reads records of whole groups that are stored: [n_groups], of one stream.
  Status ReadGroups(uint32_t layer, uint32_t stream, uint32_t first_group, uint32_t n_groups,
                    std::span<std::byte> records) {
    return parts_.ledger->ReadGroups(layer, stream, first_group, n_groups, records);
  }
  // The same of some groups, ascending, in one batch; not where stores_layers().
  Status ReadSome(uint32_t layer, uint32_t stream, std::span<const uint32_t> groups,
                  std::span<std::byte> records) {
    return parts_.family.groups->ReadSome(layer, stream, groups, records);
  }
  // StaticSet::PutBack, so that a choice does not depend on which entries were in the set.
  Status PutStaticsBack(uint32_t sequence);
  // Of groups that the window holds, or of exact ones: records of the window.
  Status ReadWindow(uint32_t layer, uint32_t stream, uint32_t first_group, uint32_t n_groups,
                    std::span<std::byte> records);

  // --- For benchmarks, in place of StoreLayer and of ChooseStatics.
  Status StoreRepeated(uint32_t layer, uint32_t sequence, uint32_t length,
                       std::span<const std::byte> records) {
    return parts_.family.layers->StoreRepeated(layer, sequence, length, records);
  }
  void ChooseStaticsEvenly(uint32_t sequence, uint32_t length);

 private:
  RecordParts& parts_;
};

}  // namespace kvrun
