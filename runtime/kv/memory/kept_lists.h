// What a method that evicts keeps of one layer, on the device. A *list* is what it keeps of one stream (a KV
// head of a sequence), entry by entry: the entries at 3, 17 and 1,250, say, of 8,000. A *tier* is the entries
// of one precision: 200 exact ones and 400 of 8 bits are two tiers. Each tier is a source of attention with a
// mapping table and the mass that its entries receive. The lists of a layer share its places: how many each
// may have is its quota.
//
// Threads: one at a time, while no step is under way.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "platform/base/status.h"
#include "runtime/device/device.h"
#include "runtime/kv/plan/kv_plan.h"

namespace kvrun {

// Which of a layer's sources: entries as they are stored elsewhere, and those with 8 bits.
enum class KeptTier : uint8_t { kOriginal, kLow };
inline constexpr std::array kKeptTiers = {KeptTier::kOriginal, KeptTier::kLow};

// How many entries of each tier a list may have.
struct KeptQuota {
  std::array<uint32_t, kKeptTiers.size()> n = {};

  uint32_t of(KeptTier tier) const { return n[static_cast<size_t>(tier)]; }
  uint32_t all() const { return n[0] + n[1]; }
};

// Of a list, in the file that prompts put aside what is kept in.
uint64_t VaultListBytes(const KvPlan& plan);

class KeptLists {
 public:
  // quotas: [plan.n_streams]. Without moments entries have no mass. The plan must outlive it.
  static Result<KeptLists> Create(Device& device, const KvPlan& plan, uint32_t n_moments,
                                  std::span<const KeptQuota> quotas);

  void AddSources(SlotAttentionArgs* args) const;

  uint32_t quota(uint32_t stream, KeptTier tier) const { return quotas_[stream].of(tier); }
  // Entries of a list, in no order: their positions.
  std::span<const uint32_t> positions(uint32_t stream, KeptTier tier) const {
    return at(tier).positions[stream];
  }
  uint32_t count(uint32_t stream, KeptTier tier) const {
    return static_cast<uint32_t>(at(tier).positions[stream].size());
  }
  bool is_full(uint32_t stream, KeptTier tier) const { return count(stream, tier) >= quota(stream, tier); }

  // Of the list's i-th entry of a tier: its record, and a moment of its mass. After Refresh.
  std::span<std::byte> Record(uint32_t stream, KeptTier tier, uint32_t i) const;
  float& Mass(uint32_t stream, KeptTier tier, uint32_t i, uint32_t moment) const;
  // All masses of a list's tier: of entry i, moment m is values[m * moment_stride + places[i]].
  struct Masses {
    std::span<const uint32_t> places;
    const float* values = nullptr;
    size_t moment_stride = 0;
  };
  Masses masses(uint32_t stream, KeptTier tier) const;

  // What the device has added to the masses is seen.
  Status Refresh();

  // A further entry, which finds room: its index. Its record and mass are the caller's to fill in.
  uint32_t Add(uint32_t stream, KeptTier tier, uint32_t position);
  // The i-th is another one from now on.
  void Replace(uint32_t stream, KeptTier tier, uint32_t i, uint32_t position) {
    at(tier).positions[stream][i] = position;
  }
  // Entries whose index is marked go; the others keep their order. marks: [count].
  void Drop(uint32_t stream, KeptTier tier, const std::vector<bool>& marks);
  // An entry's record and mass reach the device, or all of the layer's.
  Status FlushEntry(uint32_t stream, KeptTier tier, uint32_t i);
  Status FlushAll();
  // The lists' tables do.
  Status FlushTables();

 private:
  struct Source {
    SlotShape shape;
    std::unique_ptr<Buffer> records;               // kShared, [places]; null: no list has any
    std::unique_ptr<Buffer> table;                 // kShared
    std::unique_ptr<Buffer> mass;                  // kShared, float [n_moments, places]
    std::vector<std::vector<uint32_t>> positions;  // [n_streams]
    std::vector<uint32_t> free;                    // places
  };

  KeptLists(const KvPlan& plan, uint32_t n_moments, std::span<const KeptQuota> quotas)
      : plan_(&plan), n_moments_(n_moments), quotas_(quotas.begin(), quotas.end()) {}

  Status CreateSource(Device& device, KeptTier tier);
  const Source& at(KeptTier tier) const { return sources_[static_cast<size_t>(tier)]; }
  Source& at(KeptTier tier) { return sources_[static_cast<size_t>(tier)]; }
  std::span<uint32_t> Table(const Source& source, uint32_t stream) const;
  uint32_t Place(const Source& source, uint32_t stream, uint32_t i) const {
    return Table(source, stream)[2 + i];
  }

  const KvPlan* plan_;
  uint32_t n_moments_;
  std::vector<KeptQuota> quotas_;
  std::array<Source, kKeptTiers.size()> sources_;
};

}  // namespace kvrun
