#include "runtime/kv/serve/prompt_records.h"

#include <cstring>

namespace kvrun {

Status PromptRecords::BeginPrefill(uint32_t sequence, uint32_t begin) {
  KVRUN_RETURN_IF_ERROR(parts_.ledger->BeginPrefill(sequence, begin));
  if (begin == 0) KVRUN_RETURN_IF_ERROR(parts_.spaces.Forget(sequence));
  if (parts_.family.in_memory != nullptr) return parts_.BeginDecode();  // the slots are where everything is
  parts_.LeaveDecode();
  return Status::Ok();
}

Status PromptRecords::ChooseStatics(uint32_t layer, const KvRange& prompt, PromptEntries& entries) {
  StaticSet* const statics = parts_.family.statics.get();
  return statics != nullptr ? statics->choice().Choose(layer, prompt, entries) : Status::Ok();
}

Status PromptRecords::PutStaticsBack(uint32_t sequence) {
  if (parts_.family.statics == nullptr || parts_.index == nullptr) return Status::Ok();
  return parts_.family.statics->PutBack(sequence, *parts_.index);
}

void PromptRecords::ChooseStaticsEvenly(uint32_t sequence, uint32_t length) {
  StaticSet* const statics = parts_.family.statics.get();
  if (statics == nullptr) return;
  statics->choice().ChooseEvenly(sequence, FirstWindowGroup(length) * plan().record.group_tokens);
}

Status PromptRecords::PutExact(uint32_t layer, uint32_t sequence, uint32_t first_group, uint32_t n_groups,
                               std::span<const std::byte> records, std::span<const std::byte> stored) {
  const uint64_t bytes = plan().window.record.size_bytes();
  const uint64_t stored_bytes = plan().record.size_bytes();
  const uint32_t heads = plan().heads_per_sequence();
  for (uint32_t i = 0; i < heads * n_groups; ++i) {
    KVRUN_RETURN_IF_ERROR(parts_.window.PutExact(
        layer, sequence * heads + i / n_groups, first_group + i % n_groups, records.subspan(i * bytes, bytes),
        stored.subspan(i * stored_bytes, stored_bytes)));
  }
  return Status::Ok();
}

Status PromptRecords::ReadWindow(uint32_t layer, uint32_t stream, uint32_t first_group, uint32_t n_groups,
                                 std::span<std::byte> records) {
  const RecentWindow& window = parts_.window;
  const uint64_t bytes = plan().window.record.size_bytes();
  const uint32_t sequence = stream / plan().heads_per_sequence();
  for (uint32_t i = 0; i < n_groups; ++i) {
    const uint32_t group = first_group + i;
    std::span<const std::byte> record;
    if (group < plan().window.n_exact_groups &&
        !window.Holds(sequence, parts_.ledger->length(sequence), group)) {
      record = window.Exact(layer, stream, group);
    } else {
      KVRUN_ASSIGN_OR_RETURN(record, parts_.window.Read(layer, stream, group));
    }
    std::memcpy(records.data() + i * bytes, record.data(), bytes);
  }
  return Status::Ok();
}

}  // namespace kvrun
