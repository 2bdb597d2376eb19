// PromptStore: entries of earlier turns, from flash and the window into tiles.
#include <algorithm>
#include <array>
#include <numeric>

#include "platform/base/units.h"
#include "runtime/engine/offloaded/prompt_store.h"

namespace kvrun {

// Entries before the prompt come back into their tile: from the window, or as they were stored.
Status PromptStore::LoadEarlier(uint32_t layer, uint32_t tile, Buffer* to) {
  const uint32_t group_tokens = plan().record.group_tokens;
  const uint32_t first = tiling().begin(tile) / group_tokens;
  const uint32_t end = CeilDiv(std::min(prompt_.begin, tiling().end(tile)), group_tokens);
  std::vector<uint32_t> groups(end - std::min(first, end));
  std::iota(groups.begin(), groups.end(), first);
  return LoadGroups(layer, groups, 0, tiling().shape(tile), to);
}

std::span<const uint32_t> PromptStore::ReadAheadOf(std::span<const uint32_t> selected,
                                                   const Buffer* records) const {
  if (records == nullptr) return {};
  const auto first = std::lower_bound(selected.begin(), selected.end(), n_exact_groups());
  const std::span<const uint32_t> on_flash = selected.subspan(static_cast<size_t>(first - selected.begin()));
  const uint64_t group_bytes = heads() * plan().record.size_bytes();
  return on_flash.first(std::min<size_t>(on_flash.size(), records->size_bytes() / group_bytes));
}

Status PromptStore::ReadAhead(uint32_t layer, std::span<const uint32_t> selected, Buffer* records) {
  const std::span<const uint32_t> groups = ReadAheadOf(selected, records);
  return groups.empty() ? Status::Ok() : ReadRecords(layer, groups, /*of_window=*/false, *records);
}

Status PromptStore::LoadSelected(uint32_t layer, std::span<const uint32_t> selected, const Buffer* records,
                                 Buffer* to) {
  const std::span<const uint32_t> ahead = ReadAheadOf(selected, records);
  const size_t before = ahead.empty() ? selected.size() : static_cast<size_t>(ahead.data() - selected.data());
  std::unique_ptr<CommandList> list;
  uint64_t value = 0;
  if (!ahead.empty()) {
    KVRUN_ASSIGN_OR_RETURN(list, device_.CreateCommandList());
    KVRUN_RETURN_IF_ERROR(
        list->DecodeRecords(*records, plan().record, SpaceOf(layer), static_cast<uint32_t>(ahead.size()),
                            static_cast<uint32_t>(before) * plan().record.group_tokens, tiling().first, to));
    KVRUN_RETURN_IF_ERROR(list->Finish());
    KVRUN_ASSIGN_OR_RETURN(value, device_.Submit(*list));
  }
  const auto load_others = [&]() -> Status {
    KVRUN_RETURN_IF_ERROR(LoadGroups(layer, selected.first(before), 0, tiling().first, to));
    const auto place = static_cast<uint32_t>(before + ahead.size());
    std::vector<uint32_t> groups(selected.begin() + place, selected.end());
    const uint32_t end = CeilDiv(prompt_.begin, plan().record.group_tokens);
    for (uint32_t group = cache_.FirstWindowGroup(prompt_.begin); group < end; ++group)
      groups.push_back(group);
    return LoadGroups(layer, groups, place, tiling().first, to);
  };
  const Status loaded = load_others();
  const Status waited = value > 0 ? device_.Wait(value) : Status::Ok();  // lists must outlive what runs
  KVRUN_RETURN_IF_ERROR(loaded);
  return waited;
}

// Side by side. While the device decodes some, the next ones are read.
Status PromptStore::LoadGroups(uint32_t layer, std::span<const uint32_t> groups, uint32_t first,
                               const KvShape& shape, Buffer* to) {
  const uint32_t window_group = cache_.FirstWindowGroup(prompt_.begin);
  const uint32_t n_exact = n_exact_groups();
  const auto in_window = [=](uint32_t group) { return group >= window_group || group < n_exact; };
  std::array<std::unique_ptr<CommandList>, kRecordTurns> lists;
  std::array<uint64_t, kRecordTurns> values = {};
  const auto load_all = [&]() -> Status {
    uint32_t turn = 0;
    for (size_t i = 0; i < groups.size(); turn = (turn + 1) % kRecordTurns) {
      const bool of_window = in_window(groups[i]);
      size_t n = 1;
      while (i + n < groups.size() && n < RecordsAtOnce(plan()) && in_window(groups[i + n]) == of_window &&
             (!of_window || groups[i + n] == groups[i] + n)) {
        ++n;
      }
      Buffer& buffer = *records_[turn];
      if (values[turn] > 0) KVRUN_RETURN_IF_ERROR(device_.Wait(values[turn]));
      KVRUN_RETURN_IF_ERROR(ReadRecords(layer, groups.subspan(i, n), of_window, buffer));
      const KvRecordShape& record = of_window ? plan().window.record : plan().record;
      KVRUN_ASSIGN_OR_RETURN(lists[turn], device_.CreateCommandList());
      KVRUN_RETURN_IF_ERROR(
          lists[turn]->DecodeRecords(buffer, record, SpaceOf(layer), static_cast<uint32_t>(n),
                                     (first + static_cast<uint32_t>(i)) * record.group_tokens, shape, to));
      KVRUN_RETURN_IF_ERROR(lists[turn]->Finish());
      KVRUN_ASSIGN_OR_RETURN(values[turn], device_.Submit(*lists[turn]));
      i += n;
    }
    return Status::Ok();
  };
  const Status loaded = load_all();
  const uint64_t last = *std::max_element(values.begin(), values.end());
  const Status waited = last > 0 ? device_.Wait(last) : Status::Ok();  // lists must outlive what runs
  KVRUN_RETURN_IF_ERROR(loaded);
  return waited;
}

// Of all heads: [streams of the sequence, groups.size()].
Status PromptStore::ReadRecords(uint32_t layer, std::span<const uint32_t> groups, bool of_window,
                                Buffer& to) {
  const auto n = static_cast<uint32_t>(groups.size());
  const KvRecordShape& record = of_window ? plan().window.record : plan().record;
  const uint64_t stream_bytes = n * record.size_bytes();
  const bool is_run = groups.back() - groups.front() + 1 == n;
  for (uint32_t head = 0; head < heads(); ++head) {
    const uint32_t stream = prompt_.sequence * heads() + head;
    const std::span<std::byte> records = to.host().subspan(head * stream_bytes, stream_bytes);
    if (of_window) {
      KVRUN_RETURN_IF_ERROR(cache_.ReadWindow(layer, stream, groups.front(), n, records));
    } else if (is_run) {
      KVRUN_RETURN_IF_ERROR(cache_.ReadGroups(layer, stream, groups.front(), n, records));
    } else {
      KVRUN_RETURN_IF_ERROR(cache_.ReadSome(layer, stream, groups, records));
    }
  }
  return to.Flush(0, heads() * stream_bytes);
}

}  // namespace kvrun
