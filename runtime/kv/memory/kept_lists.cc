#include "runtime/kv/memory/kept_lists.h"

#include <algorithm>
#include <numeric>

#include "platform/base/check.h"
#include "platform/base/units.h"
#include "runtime/kv/memory/host_buffer.h"
#include "runtime/store/spill_file.h"

namespace kvrun {

uint64_t VaultListBytes(const KvPlan& plan) {
  return RoundUp(uint64_t{plan.of_kept().most_entries} * plan.record.size_bytes(),
                 SpillFile::kOffsetAlignment);
}

Result<KeptLists> KeptLists::Create(Device& device, const KvPlan& plan, uint32_t n_moments,
                                    std::span<const KeptQuota> quotas) {
  KVRUN_CHECK(quotas.size() == plan.n_streams);
  KeptLists lists(plan, n_moments, quotas);
  for (const KeptTier tier : kKeptTiers) KVRUN_RETURN_IF_ERROR(lists.CreateSource(device, tier));
  return lists;
}

Status KeptLists::CreateSource(Device& device, KeptTier tier) {
  Source& source = at(tier);
  source.positions.resize(plan_->n_streams);
  uint32_t n_places = 0;
  uint32_t most = 0;
  for (uint32_t stream = 0; stream < plan_->n_streams; ++stream) {
    const uint32_t n = quota(stream, tier);
    source.positions[stream].reserve(n);
    n_places += n;
    most = std::max(most, n);
  }
  if (n_places == 0) return Status::Ok();
  source.shape = {.record = tier == KeptTier::kOriginal ? plan_->record : plan_->of_kept().low_record,
                  .n_streams = plan_->n_streams,
                  .n_slots = n_places,
                  .n_window_slots = 0,
                  .table_slots = most,
                  .is_shared = true};
  KVRUN_ASSIGN_OR_RETURN(source.records,
                         device.CreateBuffer(source.shape.size_bytes(), BufferUse::kShared, "kv"));
  KVRUN_ASSIGN_OR_RETURN(source.table,
                         device.CreateBuffer(source.shape.table_bytes(), BufferUse::kShared, "kv"));
  if (n_moments_ > 0) {
    const uint64_t mass_bytes = uint64_t{n_moments_} * n_places * sizeof(float);
    KVRUN_ASSIGN_OR_RETURN(source.mass, device.CreateBuffer(mass_bytes, BufferUse::kShared, "kv"));
  }
  source.free.resize(n_places);
  std::iota(source.free.rbegin(), source.free.rend(), 0U);  // the lowest are taken first
  for (uint32_t stream = 0; stream < plan_->n_streams; ++stream) Table(source, stream)[1] = 1;
  return FlushTables();
}

void KeptLists::AddSources(SlotAttentionArgs* args) const {
  for (const Source& source : sources_) {
    if (source.records == nullptr) continue;
    args->Add({source.records.get(), source.shape, source.table.get(), source.mass.get()});
  }
}

std::span<uint32_t> KeptLists::Table(const Source& source, uint32_t stream) const {
  const size_t words = source.shape.table_words();
  return Words(*source.table).subspan(stream * words, words);
}

std::span<std::byte> KeptLists::Record(uint32_t stream, KeptTier tier, uint32_t i) const {
  const Source& source = at(tier);
  const uint64_t bytes = source.shape.record.size_bytes();
  return source.records->host().subspan(Place(source, stream, i) * bytes, bytes);
}

float& KeptLists::Mass(uint32_t stream, KeptTier tier, uint32_t i, uint32_t moment) const {
  const Source& source = at(tier);
  return Floats(*source.mass)[size_t{moment} * source.shape.n_slots + Place(source, stream, i)];
}

KeptLists::Masses KeptLists::masses(uint32_t stream, KeptTier tier) const {
  const Source& source = at(tier);
  if (source.mass == nullptr) return {};
  return {Table(source, stream).subspan(2, count(stream, tier)), Floats(*source.mass).data(),
          source.shape.n_slots};
}

Status KeptLists::Refresh() {
  for (Source& source : sources_) {
    if (source.mass != nullptr) KVRUN_RETURN_IF_ERROR(source.mass->Invalidate(0, source.mass->size_bytes()));
  }
  return Status::Ok();
}

uint32_t KeptLists::Add(uint32_t stream, KeptTier tier, uint32_t position) {
  Source& source = at(tier);
  KVRUN_CHECK(!is_full(stream, tier) && !source.free.empty());
  const uint32_t i = count(stream, tier);
  const std::span<uint32_t> table = Table(source, stream);
  table[2 + i] = source.free.back();
  table[0] = i + 1;
  source.free.pop_back();
  source.positions[stream].push_back(position);
  return i;
}

void KeptLists::Drop(uint32_t stream, KeptTier tier, const std::vector<bool>& marks) {
  Source& source = at(tier);
  if (source.records == nullptr) return;
  std::vector<uint32_t>& positions = source.positions[stream];
  const std::span<uint32_t> table = Table(source, stream);
  uint32_t n = 0;
  for (uint32_t i = 0; i < positions.size(); ++i) {
    const uint32_t place = table[2 + i];
    if (marks[i]) {
      source.free.push_back(place);
      continue;
    }
    positions[n] = positions[i];
    table[2 + n++] = place;
  }
  positions.resize(n);
  table[0] = n;
}

Status KeptLists::FlushEntry(uint32_t stream, KeptTier tier, uint32_t i) {
  const Source& source = at(tier);
  const uint64_t place = Place(source, stream, i);
  const uint64_t bytes = source.shape.record.size_bytes();
  KVRUN_RETURN_IF_ERROR(source.records->Flush(place * bytes, bytes));
  for (uint64_t moment = 0; moment < n_moments_; ++moment) {
    KVRUN_RETURN_IF_ERROR(
        source.mass->Flush((moment * source.shape.n_slots + place) * sizeof(float), sizeof(float)));
  }
  return Status::Ok();
}

Status KeptLists::FlushAll() {
  for (Source& source : sources_) {
    if (source.records == nullptr) continue;
    KVRUN_RETURN_IF_ERROR(kvrun::FlushAll(*source.records));
    if (source.mass != nullptr) KVRUN_RETURN_IF_ERROR(kvrun::FlushAll(*source.mass));
  }
  return FlushTables();
}

Status KeptLists::FlushTables() {
  for (Source& source : sources_) {
    if (source.table != nullptr) KVRUN_RETURN_IF_ERROR(kvrun::FlushAll(*source.table));
  }
  return Status::Ok();
}

}  // namespace kvrun
