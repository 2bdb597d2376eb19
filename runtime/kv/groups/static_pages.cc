#include "runtime/kv/groups/static_pages.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "platform/base/check.h"
#include "runtime/kv/math/cluster_records.h"

namespace kvrun {

StaticPages::StaticPages(const KvPlan& plan, uint32_t n_layers, RecordStore& store, KvIndex& index)
    : plan_(plan), store_(store), index_(index), layouts_(size_t{n_layers} * plan.n_streams) {
  KVRUN_CHECK(index.takes_records());
  reads_.reserve(size_t{plan.n_streams} * std::max(plan.choice.n_chosen, plan.of_groups().statics.n_total));
}

Status StaticPages::Lay(uint32_t layer, uint32_t stream, uint32_t end_group, std::span<const uint32_t> taken,
                        const ReadFn& read) {
  Layout& layout = layouts_[At(layer, stream)];
  const bool is_there = layout.end_group > 0 && layout.end_group <= end_group &&
                        std::equal(taken.begin(), taken.end(), layout.taken.begin(), layout.taken.end());
  if (is_there || end_group <= plan_.choice.n_pinned) return Status::Ok();
  layout.end_group = 0;
  layout.end_of_rows = std::max(layout.end_of_rows, end_group);
  layout.taken.assign(taken.begin(), taken.end());
  const Status laid = LayEntries(layer, stream, end_group, taken, read);
  records_ = {};
  pages_ = {};
  if (laid.ok()) layout.end_group = end_group;
  return laid;
}

Status StaticPages::LayEntries(uint32_t layer, uint32_t stream, uint32_t end_group,
                               std::span<const uint32_t> taken, const ReadFn& read) {
  const uint64_t record_bytes = plan_.record.size_bytes();
  pages_.resize(kGroupsAtOnce * record_bytes);
  uint32_t n_written = 0;  // pages
  uint32_t n = 0;          // entries in pages_
  auto next_taken = taken.begin();
  std::vector<uint32_t> groups;
  for (uint32_t first = plan_.choice.n_pinned; first < end_group; first += kGroupsAtOnce) {
    groups.resize(std::min(kGroupsAtOnce, end_group - first));
    std::iota(groups.begin(), groups.end(), first);
    records_.resize(groups.size() * record_bytes);
    KVRUN_RETURN_IF_ERROR(read(layer, stream, groups, records_));
    for (uint32_t i = 0; i < groups.size() * group_tokens(); ++i) {
      if (next_taken != taken.end() && *next_taken == first * group_tokens() + i) {
        ++next_taken;
        continue;
      }
      const auto from = std::span<const std::byte>(records_).subspan(i / group_tokens() * record_bytes);
      const auto to = std::span(pages_).subspan(n / group_tokens() * record_bytes);
      CopyEntry(plan_.record, from.first(record_bytes), i % group_tokens(), plan_.record,
                to.first(record_bytes), n % group_tokens());
      if (++n < kGroupsAtOnce * group_tokens()) continue;
      KVRUN_RETURN_IF_ERROR(WritePages(layer, stream, plan_.choice.n_pinned + n_written, n));
      n_written += kGroupsAtOnce;
      n = 0;
    }
  }
  KVRUN_RETURN_IF_ERROR(WritePages(layer, stream, plan_.choice.n_pinned + n_written, n));
  n_written += (n + group_tokens() - 1) / group_tokens();
  return EmptyNumbers(layer, stream, plan_.choice.n_pinned + n_written, end_group);
}

// `n` entries of pages_, from page `first` on.
Status StaticPages::WritePages(uint32_t layer, uint32_t stream, uint32_t first, uint32_t n) {
  if (n == 0) return Status::Ok();
  const uint64_t record_bytes = plan_.record.size_bytes();
  const uint32_t n_pages = (n + group_tokens() - 1) / group_tokens();
  const std::span<const std::byte> pages = std::span(pages_).first(n_pages * record_bytes);
  KVRUN_RETURN_IF_ERROR(store_.Append(layer, stream, plan_.n_groups() + first, pages));
  KVRUN_RETURN_IF_ERROR(index_.NoteStored(layer, stream, first, pages));
  if (n % group_tokens() == 0) return Status::Ok();
  std::vector<uint32_t> unfilled(group_tokens() - n % group_tokens());
  std::iota(unfilled.begin(), unfilled.end(), n % group_tokens());
  return index_.TakeOut(layer, stream, first + n_pages - 1, pages.last(record_bytes), unfilled);
}

Status StaticPages::EmptyNumbers(uint32_t layer, uint32_t stream, uint32_t first, uint32_t end_group) {
  std::vector<uint32_t> all(group_tokens());
  std::iota(all.begin(), all.end(), 0U);
  const auto any = std::span<const std::byte>(pages_).first(plan_.record.size_bytes());
  for (uint32_t number = first; number < end_group; ++number) {
    KVRUN_RETURN_IF_ERROR(index_.TakeOut(layer, stream, number, any, all));
  }
  return Status::Ok();
}

void StaticPages::Drop(uint32_t stream) {
  for (size_t at = stream; at < layouts_.size(); at += plan_.n_streams) layouts_[at].end_group = 0;
}

std::vector<uint32_t> StaticPages::GroupsOfRows(uint32_t layer, uint32_t stream, uint32_t end) const {
  const uint32_t end_group = std::min(layouts_[At(layer, stream)].end_of_rows, end / group_tokens());
  std::vector<uint32_t> groups(end_group > plan_.choice.n_pinned ? end_group - plan_.choice.n_pinned : 0);
  std::iota(groups.begin(), groups.end(), plan_.choice.n_pinned);
  return groups;
}

uint32_t StaticPages::CountEntries(uint32_t layer, uint32_t stream, uint32_t number) const {
  const Layout& layout = layouts_[At(layer, stream)];
  const auto n_taken = static_cast<uint32_t>(layout.taken.size());
  const uint32_t n_others = (layout.end_group - plan_.choice.n_pinned) * group_tokens() - n_taken;
  const uint32_t before = (number - plan_.choice.n_pinned) * group_tokens();
  return n_others > before ? std::min(group_tokens(), n_others - before) : 0;
}

void StaticPages::AddPositions(uint32_t layer, uint32_t stream, uint32_t number,
                               std::vector<uint32_t>* positions) const {
  const std::vector<uint32_t>& taken = layouts_[At(layer, stream)].taken;
  uint32_t left = CountEntries(layer, stream, number);
  if (left == 0) return;
  // So many taken ones lie before the page's first entry as have fewer others before them.
  const uint32_t before = (number - plan_.choice.n_pinned) * group_tokens();
  size_t low = 0;
  size_t high = taken.size();
  while (low < high) {
    const size_t middle = (low + high) / 2;
    const bool is_before = taken[middle] - begin() - middle <= before;
    (is_before ? low : high) = is_before ? middle + 1 : middle;
  }
  auto next_taken = taken.begin() + static_cast<std::ptrdiff_t>(low);
  for (uint32_t position = begin() + before + static_cast<uint32_t>(low); left > 0; ++position) {
    if (next_taken != taken.end() && *next_taken == position) {
      ++next_taken;
      continue;
    }
    positions->push_back(position);
    --left;
  }
}

// Pages come after all groups of their stream.
std::span<const GroupFetch> StaticPages::Reads(uint32_t layer, std::span<const GroupFetch> fetches) {
  reads_.clear();
  for (size_t first = 0; first < fetches.size();) {
    const uint32_t stream = fetches[first].stream;
    size_t end = first;
    while (end < fetches.size() && fetches[end].stream == stream) ++end;
    for (const bool of_pages : {false, true}) {
      for (size_t i = first; i < end; ++i) {
        GroupFetch fetch = fetches[i];
        if (Has(layer, stream, fetch.group) != of_pages) continue;
        if (of_pages && CountEntries(layer, stream, fetch.group) == 0) continue;
        if (of_pages) fetch.group += plan_.n_groups();
        reads_.push_back(fetch);
      }
    }
    first = end;
  }
  return reads_;
}

Status StaticPages::VisitState(StateVisitor& visitor) {
  enum Item : uint16_t { kGroups = 300, kEnds, kTaken };
  uint32_t n_groups = plan_.n_groups();
  KVRUN_RETURN_IF_ERROR(visitor.Value({StatePart::kStaticSet, kGroups}, &n_groups));
  std::vector<uint32_t> ends;  // [n_layers, n_streams, 2]
  for (const Layout& layout : layouts_) ends.insert(ends.end(), {layout.end_group, layout.end_of_rows});
  KVRUN_RETURN_IF_ERROR(visitor.Array({StatePart::kStaticSet, kEnds}, std::span(ends)));
  for (uint32_t i = 0; i < layouts_.size(); ++i) {
    Layout& layout = layouts_[i];
    const StateKey key{StatePart::kStaticSet, kTaken, i / plan_.n_streams, i % plan_.n_streams};
    KVRUN_RETURN_IF_ERROR(visitor.Vector(key, &layout.taken, plan_.n_ctx));
    if (!visitor.is_loading()) continue;
    layout.end_group = n_groups == plan_.n_groups() ? ends[2 * size_t{i}] : 0;
    layout.end_of_rows = ends[2 * size_t{i} + 1];
    if (layout.end_group == 0) layout.taken.clear();
    if (layout.end_group <= layout.end_of_rows && layout.end_of_rows <= plan_.n_groups() &&
        AreAscending(layout.taken, layout.end_group * group_tokens()) &&
        (layout.taken.empty() || layout.taken.front() >= begin())) {
      continue;
    }
    return {StatusCode::kCorrupt,
            fmt::format("pages of layer {}, stream {} contradict themselves", key.layer, key.stream)};
  }
  return Status::Ok();
}

}  // namespace kvrun
