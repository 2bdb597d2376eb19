#include "runtime/kv/groups/sequence_ledger.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "platform/base/check.h"
#include "runtime/device/record_codec.h"

namespace kvrun {
namespace {

constexpr uint32_t kKeysAtOnce = 64;  // but for longer groups

}  // namespace

SequenceLedger::SequenceLedger(const KvPlan& plan, uint32_t n_layers, RecordStore& store,
                               RecentWindow& window, KvSlots& slots, KvIndex* index, StaticSet* statics,
                               const EntrySpaces& spaces)
    : plan_(plan),
      n_layers_(n_layers),
      store_(store),
      window_(window),
      slots_(slots),
      index_(index),
      statics_(statics),
      spaces_(spaces),
      lengths_(plan.n_sequences),
      broken_(plan.n_sequences),
      groups_stored_(plan.n_sequences),
      is_to_take_back_(plan.n_sequences),
      encoded_(plan.record.size_bytes()) {
  if (index != nullptr && index->takes_keys()) keys_.resize(size_t{group_tokens()} * plan.key_dim());
  fetches_.reserve(kKeysAtOnce);
  groups_.reserve(kKeysAtOnce);
}

// The window of a sequence that is to end at `length`: what it has lost comes back as it was stored. Nothing
// is read of a group without entries: a sequence can be computed again from its beginning, whatever has
// become of its groups on flash.
Status SequenceLedger::RestoreWindow(uint32_t sequence, uint32_t length) {
  const uint32_t first = window_.FirstGroup(length);
  const uint32_t end = (length + group_tokens() - 1) / group_tokens();
  std::vector<uint32_t> exact;
  std::vector<uint32_t> lost;
  for (uint32_t group = first; group < std::min(end, groups_stored_[sequence]); ++group) {
    if (window_.Holds(sequence, lengths_[sequence], group)) continue;
    (group < plan_.window.n_exact_groups ? exact : lost).push_back(group);
  }
  std::vector<std::byte> records(lost.size() * record_bytes());
  for (uint32_t i = 0; i < n_layers_ && !(exact.empty() && lost.empty()); ++i) {
    for (uint32_t stream = sequence * heads(); stream < (sequence + 1) * heads(); ++stream) {
      for (const uint32_t group : exact) KVRUN_RETURN_IF_ERROR(window_.RestoreExact(i, stream, group));
      if (!lost.empty()) KVRUN_RETURN_IF_ERROR(ReadSome(i, stream, lost, records));
      for (size_t nth = 0; nth < lost.size(); ++nth) {
        const auto record = std::span(records).subspan(nth * record_bytes(), record_bytes());
        KVRUN_RETURN_IF_ERROR(window_.Restore(i, stream, lost[nth], record));
      }
    }
  }
  window_.NoteFirstGroup(sequence, first);
  return Status::Ok();
}

// What is beyond `length` goes; its incomplete group lies in the window.
Status SequenceLedger::ForgetFrom(uint32_t sequence, uint32_t length) {
  if (length >= lengths_[sequence]) return Status::Ok();
  KVRUN_RETURN_IF_ERROR(StoreCompletedGroups());
  KVRUN_RETURN_IF_ERROR(RestoreWindow(sequence, length));
  const uint32_t group = length / group_tokens();
  for (uint32_t stream = sequence * heads(); stream < (sequence + 1) * heads(); ++stream) {
    KVRUN_RETURN_IF_ERROR(store_.Truncate(stream, group));
    slots_.Truncate(stream, group);
  }
  lengths_[sequence] = length;
  groups_stored_[sequence] = std::min(groups_stored_[sequence], group);
  return TruncateStatics(sequence, length);
}

Status SequenceLedger::TruncateStatics(uint32_t sequence, uint32_t length) {
  ForgetStatics(sequence, length);
  return TakeStaticsBack(sequence);
}

// What lies in the window is attended to there. Slots of groups that have lost such entries lack them, and a
// slot of a page that was laid anew holds entries of any group.
void SequenceLedger::ForgetStatics(uint32_t sequence, uint32_t length) {
  if (statics_ == nullptr) return;
  const uint32_t first = window_.FirstGroup(length);
  const uint32_t end_of_slots = statics_->lays_pages() ? std::min(first, plan_.choice.n_pinned) : first;
  for (uint32_t stream = sequence * heads(); stream < (sequence + 1) * heads(); ++stream) {
    slots_.Truncate(stream, end_of_slots);
  }
  statics_->Truncate(sequence, first * group_tokens());
  is_to_take_back_[sequence] = true;
}

// Until it succeeds, each use of the sequence tries it.
Status SequenceLedger::TakeStaticsBack(uint32_t sequence) {
  if (!is_to_take_back_[sequence]) return Status::Ok();
  KVRUN_RETURN_IF_ERROR(statics_->TakeBack(sequence, lengths_[sequence], GroupReader(), index_));
  is_to_take_back_[sequence] = false;
  return Status::Ok();
}

StaticSet::ReadFn SequenceLedger::GroupReader() {
  return [this](uint32_t layer, uint32_t stream, std::span<const uint32_t> groups,
                std::span<std::byte> records) { return ReadSome(layer, stream, groups, records); };
}

Status SequenceLedger::BeginDecode() {
  KVRUN_RETURN_IF_ERROR(UndoPrefill());  // a prompt that has failed may have chosen what cannot be read
  for (uint32_t sequence = 0; sequence < n_sequences(); ++sequence) {
    KVRUN_RETURN_IF_ERROR(TakeStaticsBack(sequence));  // before rows become those of pages
  }
  first_window_groups_.clear();
  for (const uint32_t length : lengths_) first_window_groups_.push_back(window_.FirstGroup(length));
  return statics_->Load(GroupReader(), first_window_groups_, index_);
}

Status SequenceLedger::ReadSome(uint32_t layer, uint32_t stream, std::span<const uint32_t> groups,
                                std::span<std::byte> records) {
  fetches_.clear();
  for (size_t i = 0; i < groups.size(); ++i) {
    fetches_.push_back({stream, groups[i], records.data() + i * record_bytes()});
  }
  return store_.Fetch(layer, fetches_);
}

void SequenceLedger::LeaveDecode() { statics_->Drop(); }

void SequenceLedger::AddSources(uint32_t layer, SlotAttentionArgs* args) const {
  statics_->AddSources(layer, args);
}

void SequenceLedger::AddKeptPositions(uint32_t layer, uint32_t row, uint32_t head,
                                      std::vector<uint32_t>* positions) const {
  for (const KeptTier tier : kKeptTiers) {
    const auto some = statics_->choice().positions(layer, step_->spans[row].sequence * heads() + head, tier);
    positions->insert(positions->end(), some.begin(), some.end());
  }
}

// After a prefill that has failed: what the sequence had before. The rest of its window comes back when the
// sequence is used again: it may be to begin anew, and nothing has to be read for that.
Status SequenceLedger::UndoPrefill() {
  if (!window_.in_prefill()) return Status::Ok();
  const uint32_t sequence = window_.prefilled_sequence();
  KVRUN_RETURN_IF_ERROR(window_.UndoPrefill());
  // Layers that were computed have chosen among entries that are not there.
  ForgetStatics(sequence, lengths_[sequence]);
  return Status::Ok();
}

// Entries of `sequence` from `length` on are forgotten; those before are there, and the window is whole.
Status SequenceLedger::Prepare(uint32_t sequence, uint32_t length) {
  if (length == 0) broken_[sequence] = Status::Ok();
  KVRUN_RETURN_IF_ERROR(broken_[sequence]);
  KVRUN_RETURN_IF_ERROR(ForgetFrom(sequence, length));
  KVRUN_RETURN_IF_ERROR(TakeStaticsBack(sequence));
  return RestoreWindow(sequence, lengths_[sequence]);
}

Status SequenceLedger::BeginPrefill(uint32_t sequence, uint32_t begin) {
  KVRUN_RETURN_IF_ERROR(UndoPrefill());
  KVRUN_RETURN_IF_ERROR(Prepare(sequence, begin));
  KVRUN_RETURN_IF_ERROR(window_.BeginPrefill(sequence, begin, begin / group_tokens()));
  KVRUN_RETURN_IF_ERROR(StoreCompletedGroups());
  if (statics_ != nullptr) statics_->DropPages(sequence);  // the store forgets them
  // What a prefill that failed has left.
  for (uint32_t stream = sequence * heads(); stream < (sequence + 1) * heads(); ++stream) {
    KVRUN_RETURN_IF_ERROR(store_.Truncate(stream, begin / group_tokens()));
  }
  return Status::Ok();
}

Status SequenceLedger::AppendStream(uint32_t layer, uint32_t stream, uint32_t first_group,
                                    std::span<const std::byte> records) {
  KVRUN_RETURN_IF_ERROR(store_.Append(layer, stream, first_group, records));
  return index_ != nullptr ? index_->NoteStored(layer, stream, first_group, records) : Status::Ok();
}

Status SequenceLedger::Append(uint32_t layer, uint32_t sequence, uint32_t first_group, uint32_t n_groups,
                              std::span<const std::byte> records) {
  const uint64_t stream_bytes = n_groups * record_bytes();
  for (uint32_t head = 0; head < heads(); ++head) {
    KVRUN_RETURN_IF_ERROR(AppendStream(layer, sequence * heads() + head, first_group,
                                       records.subspan(head * stream_bytes, stream_bytes)));
  }
  return Status::Ok();
}

Status SequenceLedger::EndPrefill(uint32_t sequence, uint32_t length) {
  KVRUN_RETURN_IF_ERROR(store_.Flush());
  KVRUN_RETURN_IF_ERROR(window_.EndPrefill(length));
  lengths_[sequence] = length;
  groups_stored_[sequence] = length / group_tokens();
  return Status::Ok();
}

Status SequenceLedger::BeginStep(const KvStep& step) {
  KVRUN_RETURN_IF_ERROR(UndoPrefill());
  step_ = &step;
  for (const KvSpan& span : step.spans) {
    KVRUN_CHECK(span.first_position <= lengths_[span.sequence]);
    KVRUN_RETURN_IF_ERROR(Prepare(span.sequence, span.first_position));
  }
  return Status::Ok();
}

// The row's window does not hold it, its entry takes its place in the ring, or an entry of it becomes one
// that is rounded: what is stored is made of exact ones.
bool SequenceLedger::IsLeaving(const KvSpan& span, uint32_t group) const {
  return group < window_.FirstGroup(span.end()) ||
         span.first_position / group_tokens() - group >= plan_.window.n_slots ||
         span.first_position >= plan_.window.exact_entries() + group * group_tokens();
}

Status SequenceLedger::StoreLeavingGroups() {
  for (const KvSpan& span : step_->spans) {
    uint32_t& stored = groups_stored_[span.sequence];
    for (; stored < lengths_[span.sequence] / group_tokens() && IsLeaving(span, stored); ++stored) {
      KVRUN_RETURN_IF_ERROR(StoreGroup(span.sequence, stored));
    }
  }
  return Status::Ok();
}

Status SequenceLedger::StoreCompletedGroups() {
  for (uint32_t sequence = 0; sequence < lengths_.size(); ++sequence) {
    uint32_t& stored = groups_stored_[sequence];
    for (; stored < lengths_[sequence] / group_tokens(); ++stored) {
      KVRUN_RETURN_IF_ERROR(StoreGroup(sequence, stored));
    }
  }
  return Status::Ok();
}

Status SequenceLedger::StoreGroup(uint32_t sequence, uint32_t group) {
  for (uint32_t i = 0; i < n_layers_; ++i) {
    for (uint32_t stream = sequence * heads(); stream < (sequence + 1) * heads(); ++stream) {
      KVRUN_ASSIGN_OR_RETURN(const std::span<const std::byte> record, window_.Read(i, stream, group));
      TranscodeRecord(plan_.window.record, record, plan_.record, encoded_);
      if (group < plan_.window.n_exact_groups)
        KVRUN_RETURN_IF_ERROR(window_.PutExact(i, stream, group, record, encoded_));
      KVRUN_RETURN_IF_ERROR(AppendStream(i, stream, group, encoded_));
      if (!keys_.empty()) DecodeKeys(i, stream, plan_.window.record, record, 0, keys_);
    }
    if (!keys_.empty()) KVRUN_RETURN_IF_ERROR(index_->NoteKeys(i, sequence, group, keys_));
  }
  return Status::Ok();
}

// Of a stream's record, among all keys of its entries: keys [entries, key_dim], from entry `first` on.
void SequenceLedger::DecodeKeys(uint32_t layer, uint32_t stream, const KvRecordShape& shape,
                                std::span<const std::byte> record, uint32_t first,
                                std::span<float> keys) const {
  const uint32_t key_dim = plan_.key_dim();
  const uint32_t head_columns = plan_.record.n_heads * plan_.record.head_dim;
  spaces_.DecodeKeys(layer, stream, shape, record, key_dim,
                     keys.subspan(size_t{first} * key_dim + stream % heads() * head_columns));
}

void SequenceLedger::EndStep() {
  for (const KvSpan& span : step_->spans) lengths_[span.sequence] = span.end();
}

Status SequenceLedger::ReadGroups(uint32_t layer, uint32_t stream, uint32_t first_group, uint32_t n_groups,
                                  std::span<std::byte> records) {
  groups_.resize(n_groups);
  std::iota(groups_.begin(), groups_.end(), first_group);
  return ReadSome(layer, stream, groups_, records);
}

Status SequenceLedger::ShiftGroups(uint32_t layer, uint32_t sequence, std::span<const float> shifts) {
  const size_t of_stream = shifts.size() / heads();
  const uint32_t at_once = std::max(1U, kKeysAtOnce / group_tokens());
  std::vector<std::byte> records(at_once * record_bytes());
  for (uint32_t head = 0; head < heads(); ++head) {
    const uint32_t stream = sequence * heads() + head;
    for (uint32_t group = 0; group < groups_stored_[sequence];) {
      const uint32_t n = std::min(at_once, groups_stored_[sequence] - group);
      const std::span<std::byte> some = std::span(records).first(n * record_bytes());
      KVRUN_RETURN_IF_ERROR(ReadGroups(layer, stream, group, n, some));
      for (uint32_t i = 0; i < n; ++i) {
        ShiftRecord(plan_.record, shifts.subspan(head * of_stream, of_stream),
                    some.subspan(i * record_bytes(), record_bytes()));
      }
      KVRUN_RETURN_IF_ERROR(AppendStream(layer, stream, group, some));
      group += n;
    }
  }
  return window_.Shift(layer, sequence, shifts);
}

Status SequenceLedger::Shift(uint32_t layer, uint32_t sequence, std::span<const float> shifts) {
  Status shifted = ShiftGroups(layer, sequence, shifts);
  if (!shifted.ok()) {
    broken_[sequence] = Status(
        shifted.code(), fmt::format("entries of the sequence were to be stored less their means, and could "
                                    "not be: compute it again from its tokens ({})",
                                    shifted.message()));
  }
  return shifted;
}

Result<std::vector<float>> SequenceLedger::MeansInRecords(uint32_t layer, uint32_t sequence) {
  const uint32_t first = (EntrySpaces::kLeftOut + group_tokens() - 1) / group_tokens();
  const uint32_t n = groups_stored_[sequence] - std::min(first, groups_stored_[sequence]);
  if (n * group_tokens() < EntrySpaces::kFewestEntries) return std::vector<float>();
  const uint32_t stride = std::max(1U, n * group_tokens() / EntrySpaces::kMostEntries);
  EntryMeans means(plan_.key_dim() / plan_.record.head_dim, plan_.record.head_dim);
  std::vector<std::byte> records(heads() * record_bytes());
  for (uint32_t group = first; group < groups_stored_[sequence]; group += stride) {
    for (uint32_t head = 0; head < heads(); ++head) {
      KVRUN_RETURN_IF_ERROR(ReadGroups(layer, sequence * heads() + head, group, 1,
                                       std::span(records).subspan(head * record_bytes(), record_bytes())));
    }
    means.Add(plan_.record, records);
  }
  return means.Means();
}

// Whole groups are stored, what is beyond them lies in the window.
Status SequenceLedger::Visit(uint32_t layer, uint32_t sequence, uint32_t begin, const KeysFn& visit) {
  const uint32_t length = lengths_[sequence];
  const uint32_t n_stored = groups_stored_[sequence];
  const uint32_t key_dim = plan_.key_dim();
  KVRUN_CHECK(n_stored == length / group_tokens());
  const uint32_t at_once = std::max(1U, kKeysAtOnce / group_tokens());
  std::vector<std::byte> records(at_once * record_bytes());
  std::vector<float> keys(size_t{at_once} * group_tokens() * key_dim);
  for (uint32_t group = begin / group_tokens(); group * group_tokens() < length;) {
    const bool is_stored = group < n_stored;
    const uint32_t n = is_stored ? std::min(at_once, n_stored - group) : 1;
    for (uint32_t head = 0; head < heads(); ++head) {
      const uint32_t stream = sequence * heads() + head;
      if (is_stored) KVRUN_RETURN_IF_ERROR(ReadGroups(layer, stream, group, n, records));
      for (uint32_t i = 0; i < n; ++i) {
        std::span<const std::byte> record = std::span(records).subspan(i * record_bytes(), record_bytes());
        if (!is_stored) {
          KVRUN_ASSIGN_OR_RETURN(record, window_.Read(layer, stream, group));
        }
        DecodeKeys(layer, stream, is_stored ? plan_.record : plan_.window.record, record, i * group_tokens(),
                   keys);
      }
    }
    const uint32_t first = std::max(begin, group * group_tokens());
    const uint32_t end = std::min(length, (group + n) * group_tokens());
    KVRUN_RETURN_IF_ERROR(
        visit(first, std::span(keys).subspan(size_t{first - group * group_tokens()} * key_dim,
                                             size_t{end - first} * key_dim)));
    group += n;
  }
  return Status::Ok();
}

Status SequenceLedger::VisitState(StateVisitor& visitor) {
  enum Item : uint16_t { kLengths, kStored, kIsToTakeBack };
  if (!visitor.is_loading()) KVRUN_RETURN_IF_ERROR(UndoPrefill());
  for (const Status& broken : broken_) KVRUN_RETURN_IF_ERROR(broken);
  KVRUN_RETURN_IF_ERROR(visitor.Array({StatePart::kLedger, kLengths}, std::span(lengths_)));
  KVRUN_RETURN_IF_ERROR(visitor.Array({StatePart::kLedger, kStored}, std::span(groups_stored_)));
  KVRUN_RETURN_IF_ERROR(visitor.Flags({StatePart::kLedger, kIsToTakeBack}, &is_to_take_back_));
  for (uint32_t sequence = 0; sequence < n_sequences(); ++sequence) {
    const bool fits = lengths_[sequence] <= plan_.n_ctx &&
                      groups_stored_[sequence] <= lengths_[sequence] / group_tokens() &&
                      groups_stored_[sequence] >= plan_.FirstWindowGroup(lengths_[sequence]) &&
                      (statics_ != nullptr || !is_to_take_back_[sequence]);
    if (!fits) {
      return {
          StatusCode::kCorrupt,
          fmt::format("{} entries of sequence {}, {} groups of them stored, are not as in a context of {}",
                      lengths_[sequence], sequence, groups_stored_[sequence], plan_.n_ctx)};
    }
  }
  return statics_ != nullptr ? statics_->VisitState(visitor) : Status::Ok();
}

}  // namespace kvrun
