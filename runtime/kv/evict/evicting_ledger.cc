#include "runtime/kv/evict/evicting_ledger.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "platform/base/check.h"
#include "runtime/device/record_codec.h"
#include "runtime/kv/memory/host_buffer.h"

namespace kvrun {

Result<std::unique_ptr<EvictingLedger>> EvictingLedger::Create(Device& device, const KvPlan& plan,
                                                               uint32_t n_layers, RecentWindow& window,
                                                               std::unique_ptr<SpillFile> vault) {
  KVRUN_ASSIGN_OR_RETURN(const KeepRule* rule, FindKeepRule(plan.method.keep_rule));
  std::unique_ptr<EvictingLedger> ledger(
      new EvictingLedger(device, plan, n_layers, window, std::move(vault), *rule));
  KVRUN_RETURN_IF_ERROR(ledger->CreateWindowMass());
  return ledger;
}

EvictingLedger::EvictingLedger(Device& device, const KvPlan& plan, uint32_t n_layers, RecentWindow& window,
                               std::unique_ptr<SpillFile> vault, const KeepRule& rule)
    : device_(device),
      plan_(plan),
      n_layers_(n_layers),
      window_(window),
      vault_(plan, n_layers, std::move(vault)),
      rule_(rule),
      n_moments_(StepMoments(rule)),
      sequences_(plan.n_sequences),
      list_entries_(size_t{n_layers} * plan.n_streams, plan.of_kept().n_entries),
      shares_(size_t{n_layers} * plan.n_sequences) {
  KVRUN_CHECK(plan.record.group_tokens == 1 && plan.record.n_heads == 1);
  layers_.reserve(n_layers);
  seen_.reserve(plan.n_sequences);
  if (rule.tracks_recurrence) {
    recurrences_.resize(size_t{n_layers} * plan.n_streams);
    for (auto& list : recurrences_) list.reserve(plan.of_kept().most_entries);
    window_recurrences_.resize(size_t{n_layers} * plan.n_streams * plan.window.n_slots);
  }
  ReserveScratch();
}

// Decoding allocates nothing.
void EvictingLedger::ReserveScratch() {
  const size_t most = size_t{2} * plan_.of_kept().most_entries + 1;  // of both tiers, and one that arrives
  entries_.Reserve(most);
  marks_.reserve(most);
  low_marks_.reserve(most);
}

Status EvictingLedger::CreateWindowMass() {
  const uint64_t bytes = uint64_t{n_moments()} * plan_.n_streams * plan_.window.n_slots * sizeof(float);
  for (uint32_t i = 0; i < n_layers_ && bytes > 0; ++i) {
    KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<Buffer> mass,
                           device_.CreateBuffer(bytes, BufferUse::kShared, "kv"));
    window_mass_.push_back(std::move(mass));
  }
  return Status::Ok();
}

// Nothing asks for what the model's keys are: there is no index.
Status EvictingLedger::Visit(uint32_t /*layer*/, uint32_t /*sequence*/, uint32_t /*begin*/,
                             const KeysFn& /*visit*/) {
  return {StatusCode::kInternal, "keys were asked for that may have been evicted"};
}

// No prompt attends to earlier entries: these are computed row by row.
Status EvictingLedger::ReadGroups(uint32_t /*layer*/, uint32_t /*stream*/, uint32_t /*first_group*/,
                                  uint32_t /*n_groups*/, std::span<std::byte> /*records*/) {
  return {StatusCode::kInternal, "entries were asked for that may have been evicted"};
}

void EvictingLedger::AddSources(uint32_t layer, SlotAttentionArgs* args) const {
  args->mass_form = rule_.step_form;
  layers_[layer].AddSources(args);
}

float& EvictingLedger::WindowMass(uint32_t layer, uint32_t stream, uint32_t position, uint32_t moment) const {
  const size_t slot = position % plan_.window.n_slots;
  return Floats(
      *window_mass_[layer])[(size_t{moment} * plan_.n_streams + stream) * plan_.window.n_slots + slot];
}

Status EvictingLedger::ClearWindowMass(uint32_t layer, uint32_t sequence, uint32_t position) {
  for (uint32_t head = 0; head < heads(); ++head) {
    const uint32_t stream = sequence * heads() + head;
    for (uint32_t moment = 0; moment < n_moments(); ++moment)
      WindowMass(layer, stream, position, moment) = 0.0F;
    if (rule_.tracks_recurrence) WindowRecurrence(layer, stream, position) = {position, 0};
  }
  return n_moments() == 0 ? Status::Ok() : FlushAll(*window_mass_[layer]);
}

// What lies in the window is there, and so is what is kept, whatever is kept of it: only what was evicted
// would be missed.
Status EvictingLedger::Forget(uint32_t sequence, uint32_t length) {
  Sequence& state = sequences_[sequence];
  if (length >= state.length) return Status::Ok();
  if (length == 0) {
    Clear(sequence);
    return Status::Ok();
  }
  if (length < state.settled) {
    if (state.n_evicted > 0) {
      return {
          StatusCode::kUnsupported,
          fmt::format("the KV method {} has dropped some of the first {} entries, so that it cannot go back "
                      "to {}: begin anew, or take a method that keeps all of them on flash (kvswap)",
                      plan_.method.name, state.settled, length)};
    }
    for (uint32_t layer = 0; layer < n_layers_; ++layer) {
      for (uint32_t stream = sequence * heads(); stream < (sequence + 1) * heads(); ++stream) {
        for (const KeptTier tier : kKeptTiers) {
          const std::span<const uint32_t> positions = layers_[layer].positions(stream, tier);
          marks_.assign(positions.size(), false);
          for (size_t i = 0; i < positions.size(); ++i) marks_[i] = positions[i] >= length;
          if (tier == KeptTier::kOriginal) DropRecurrences(layer, stream);
          layers_[layer].Drop(stream, tier, marks_);
        }
      }
      KVRUN_RETURN_IF_ERROR(layers_[layer].FlushTables());
    }
    state.settled = length;
  }
  state.length = length;
  state.prompt_end = std::min(state.prompt_end, length);
  return Status::Ok();
}

Status EvictingLedger::BeginStep(const KvStep& step) {
  KVRUN_RETURN_IF_ERROR(UndoPrefill());
  step_ = &step;
  for (const KvSpan& span : step.spans) {
    KVRUN_CHECK(span.first_position <= sequences_[span.sequence].length);
    KVRUN_RETURN_IF_ERROR(Forget(span.sequence, span.first_position));
  }
  for (uint32_t layer = 0; layer < n_layers_; ++layer) {
    KVRUN_RETURN_IF_ERROR(layers_[layer].Refresh());
    if (Buffer* const mass = window_mass(layer); mass != nullptr) {
      KVRUN_RETURN_IF_ERROR(mass->Invalidate(0, mass->size_bytes()));
    }
    if (rule_.tracks_recurrence) NoteRecurrences(layer);
    for (const KvSpan& span : step.spans) {
      const uint32_t end = window_.FirstGroup(span.end());
      for (uint32_t position = sequences_[span.sequence].settled; position < end; ++position) {
        KVRUN_RETURN_IF_ERROR(SettleEntry(layer, span.sequence, position));
      }
      KVRUN_RETURN_IF_ERROR(ClearWindowMass(layer, span.sequence, span.first_position));
    }
    KVRUN_RETURN_IF_ERROR(layers_[layer].FlushTables());
  }
  for (const KvSpan& span : step.spans) {
    Sequence& sequence = sequences_[span.sequence];
    sequence.settled = std::max(sequence.settled, window_.FirstGroup(span.end()));
    window_.NoteFirstGroup(span.sequence, sequence.settled);
  }
  if (rule_.tracks_recurrence) seen_.assign(step.spans.begin(), step.spans.end());
  return Status::Ok();
}

Status EvictingLedger::SettleEntry(uint32_t layer, uint32_t sequence, uint32_t position) {
  for (uint32_t stream = sequence * heads(); stream < (sequence + 1) * heads(); ++stream) {
    KVRUN_RETURN_IF_ERROR(Settle(layer, stream, position));
  }
  return Status::Ok();
}

Status EvictingLedger::Settle(uint32_t layer, uint32_t stream, uint32_t position) {
  KVRUN_ASSIGN_OR_RETURN(const uint32_t i, MakeRoom(layer, stream, position));
  if (i == kNoEntry) return Status::Ok();
  if (rule_.tracks_recurrence) {
    std::vector<Recurrence>& list = recurrences_[ListOf(layer, stream)];
    if (i == list.size()) list.emplace_back();
    list[i] = WindowRecurrence(layer, stream, position);
  }
  return WriteEntry(layer, stream, entry_tier(), i, position);
}

// From the window.
Status EvictingLedger::WriteEntry(uint32_t layer, uint32_t stream, KeptTier tier, uint32_t i,
                                  uint32_t position) {
  KeptLists& lists = layers_[layer];
  KVRUN_ASSIGN_OR_RETURN(const std::span<const std::byte> record, window_.Read(layer, stream, position));
  TranscodeRecord(plan_.window.record, record,
                  tier == KeptTier::kOriginal ? plan_.record : plan_.of_kept().low_record,
                  lists.Record(stream, tier, i));
  for (uint32_t moment = 0; moment < n_moments(); ++moment) {
    lists.Mass(stream, tier, i, moment) = WindowMass(layer, stream, position, moment);
  }
  return lists.FlushEntry(stream, tier, i);
}

Result<uint32_t> EvictingLedger::MakeRoom(uint32_t layer, uint32_t stream, uint32_t position) {
  KeptLists& lists = layers_[layer];
  const KeptTier tier = entry_tier();
  if (!lists.is_full(stream, tier)) return lists.Add(stream, tier, position);
  Sequence& sequence = sequences_[stream / heads()];
  if (rule_.evicts_prompt && rule_.evicted_percent > 0 && lists.quota(stream, tier) > 1) {
    KVRUN_RETURN_IF_ERROR(Tailor(layer, stream));
    return lists.Add(stream, tier, position);
  }
  ++sequence.n_evicted;
  const uint32_t i =
      rule_.evicts_prompt ? WorstEntry(layer, stream, position) : OldestGenerated(layer, stream);
  if (i == kNoEntry) return kNoEntry;
  lists.Replace(stream, tier, i, position);
  return i;
}

// Of what is generated and kept; kNoEntry: the prompt has all places.
uint32_t EvictingLedger::OldestGenerated(uint32_t layer, uint32_t stream) const {
  const std::span<const uint32_t> positions = layers_[layer].positions(stream, entry_tier());
  const uint32_t prompt_end = sequences_[stream / heads()].prompt_end;
  uint32_t oldest = kNoEntry;
  for (uint32_t i = 0; i < positions.size(); ++i) {
    if (positions[i] >= prompt_end && (oldest == kNoEntry || positions[i] < positions[oldest])) oldest = i;
  }
  return oldest;
}

// Rows that gave an entry its mass.
uint32_t EvictingLedger::RowsThatSaw(const Sequence& sequence, uint32_t position) const {
  const uint32_t steps = sequence.length - std::min(sequence.length, std::max(position, sequence.prompt_end));
  if (position >= sequence.prompt_end) return steps;
  const uint32_t of_prompt = sequence.prompt_end - position;
  return steps + (rule_.observes_last_rows ? std::min(of_prompt, plan_.of_kept().observed_rows) : of_prompt);
}

Recurrence EvictingLedger::SeenBy(const Recurrence& entry, const Sequence& sequence) const {
  return {std::min(entry.seen_at, sequence.length), entry.longest_gap};
}

// Entries of both tiers, those that keep their precision first.
void EvictingLedger::Gather(uint32_t layer, uint32_t stream) {
  const Sequence& sequence = sequences_[stream / heads()];
  entries_.Clear();
  for (const KeptTier tier : kKeptTiers) {
    const std::span<const uint32_t> positions = layers_[layer].positions(stream, tier);
    const KeptLists::Masses masses = layers_[layer].masses(stream, tier);
    for (size_t i = 0; i < positions.size(); ++i) {
      const float* const mass = masses.values + masses.places[i];
      const float moments[] = {*mass, n_moments() > 1 ? mass[masses.moment_stride] : 0.0F};
      entries_.Add(positions[i], std::span(moments).first(n_moments() > 1 ? 2 : 1),
                   RowsThatSaw(sequence, positions[i]));
    }
  }
  if (!rule_.tracks_recurrence) return;
  for (const Recurrence& entry : recurrences_[ListOf(layer, stream)]) {
    entries_.AddRecurrence(SeenBy(entry, sequence));
  }
}

// Of the list's entries and the one that arrives, that with the least score; of equal ones the oldest.
// kNoEntry: it is the one that arrives.
uint32_t EvictingLedger::WorstEntry(uint32_t layer, uint32_t stream, uint32_t position) {
  const Sequence& sequence = sequences_[stream / heads()];
  Gather(layer, stream);
  const float moments[] = {WindowMass(layer, stream, position, 0),
                           n_moments() > 1 ? WindowMass(layer, stream, position, 1) : 0.0F};
  entries_.Add(position, std::span(moments).first(n_moments() > 1 ? 2 : 1), RowsThatSaw(sequence, position));
  if (rule_.tracks_recurrence) {
    entries_.AddRecurrence(SeenBy(WindowRecurrence(layer, stream, position), sequence));
  }
  entries_.Score(rule_, sequence.length);
  const size_t worst = entries_.Worst();
  return worst + 1 == entries_.size() ? kNoEntry : static_cast<uint32_t>(worst);
}

// Evicts a part of the list, and lowers the precision of what has no room for it any more. At least one entry
// of the tier that new ones go to makes room.
// Source: ARKV, Eq. 10, where there are two tiers.
Status EvictingLedger::Tailor(uint32_t layer, uint32_t stream) {
  KeptLists& lists = layers_[layer];
  Gather(layer, stream);
  entries_.Score(rule_, sequences_[stream / heads()].length);
  const std::span<const uint32_t> ranked = entries_.Best(entries_.size());
  const uint32_t entry_quota = lists.quota(stream, entry_tier());
  const uint32_t all = lists.quota(stream, KeptTier::kOriginal) + lists.quota(stream, KeptTier::kLow);
  const auto share = [this](uint32_t n) {
    return static_cast<uint32_t>(uint64_t{n} * (100 - rule_.evicted_percent) / 100);
  };
  const uint32_t most_original = std::min(share(entry_quota), entry_quota - 1);
  const uint32_t n_stay = has_two_tiers() ? std::max(share(all), most_original) : most_original;
  // By rank: those beyond n_stay go; of the others, originals beyond most_original are lowered.
  const uint32_t n_first = lists.count(stream, KeptTier::kOriginal);
  marks_.assign(ranked.size(), false);
  uint32_t n_original = 0;
  uint32_t n_low = 0;
  for (uint32_t rank = 0; rank < ranked.size(); ++rank) {
    const uint32_t i = ranked[rank];
    const bool is_original = has_two_tiers() && i < n_first;
    const bool stays_original = is_original && n_original < most_original && rank < n_stay;
    if (stays_original) {
      ++n_original;
      continue;
    }
    const bool has_room = !has_two_tiers() || n_low < lists.quota(stream, KeptTier::kLow);
    if (rank >= n_stay || !has_room) {
      marks_[i] = true;
      ++sequences_[stream / heads()].n_evicted;
    } else {
      ++n_low;
    }
  }
  if (has_two_tiers()) return LowerOriginals(layer, stream, most_original);
  if (entry_tier() == KeptTier::kOriginal) DropRecurrences(layer, stream);
  lists.Drop(stream, entry_tier(), marks_);
  return Status::Ok();
}

// marks_: of entries_, those that go. What stays beyond the originals' share has its precision lowered, as
// Tailor ranked it.
Status EvictingLedger::LowerOriginals(uint32_t layer, uint32_t stream, uint32_t most_original) {
  KeptLists& lists = layers_[layer];
  const uint32_t n_first = lists.count(stream, KeptTier::kOriginal);
  // Low ones that go make room first.
  low_marks_.assign(marks_.begin() + n_first, marks_.end());
  lists.Drop(stream, KeptTier::kLow, low_marks_);
  uint32_t n_original = 0;
  for (const uint32_t i : entries_.ranked()) {
    if (i >= n_first || marks_[i]) continue;
    if (n_original < most_original) {
      ++n_original;
      continue;
    }
    const uint32_t to = lists.Add(stream, KeptTier::kLow, entries_.position(i));
    TranscodeRecord(plan_.record, lists.Record(stream, KeptTier::kOriginal, i), plan_.of_kept().low_record,
                    lists.Record(stream, KeptTier::kLow, to));
    for (uint32_t moment = 0; moment < n_moments(); ++moment) {
      lists.Mass(stream, KeptTier::kLow, to, moment) = lists.Mass(stream, KeptTier::kOriginal, i, moment);
    }
    KVRUN_RETURN_IF_ERROR(lists.FlushEntry(stream, KeptTier::kLow, to));
    marks_[i] = true;
    ++n_lowered_;
  }
  marks_.resize(n_first);
  lists.Drop(stream, KeptTier::kOriginal, marks_);
  return Status::Ok();
}

// As KeptLists::Drop with marks_.
void EvictingLedger::DropRecurrences(uint32_t layer, uint32_t stream) {
  if (!rule_.tracks_recurrence) return;
  std::vector<Recurrence>& list = recurrences_[ListOf(layer, stream)];
  size_t n = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    if (!marks_[i]) list[n++] = list[i];
  }
  list.resize(n);
}

// What the last step has given, if it has succeeded.
void EvictingLedger::NoteRecurrences(uint32_t layer) {
  for (const KvSpan& span : seen_) {
    const uint32_t now = span.first_position;
    if (now >= sequences_[span.sequence].length) continue;
    const auto note = [now](float mass, Recurrence& entry) {
      if (mass <= kRecurrenceWeight) return;
      // A truncated sequence goes on before what it has seen.
      const uint32_t gap = now - std::min(now, entry.seen_at);
      entry.longest_gap = std::max(entry.longest_gap, gap);
      entry.seen_at = now;
    };
    for (uint32_t stream = span.sequence * heads(); stream < (span.sequence + 1) * heads(); ++stream) {
      std::vector<Recurrence>& list = recurrences_[ListOf(layer, stream)];
      const KeptLists::Masses masses = layers_[layer].masses(stream, KeptTier::kOriginal);
      for (size_t i = 0; i < list.size(); ++i) note(masses.values[masses.places[i]], list[i]);
      for (uint32_t position = sequences_[span.sequence].settled; position <= now; ++position) {
        note(WindowMass(layer, stream, position, 0), WindowRecurrence(layer, stream, position));
      }
    }
  }
}

void EvictingLedger::EndStep() {
  for (const KvSpan& span : step_->spans) sequences_[span.sequence].length = span.end();
}

void EvictingLedger::AddKeptPositions(uint32_t layer, uint32_t row, uint32_t head,
                                      std::vector<uint32_t>* positions) const {
  const uint32_t stream = step_->spans[row].sequence * heads() + head;
  for (const KeptTier tier : kKeptTiers) {
    const std::span<const uint32_t> kept = layers_[layer].positions(stream, tier);
    positions->insert(positions->end(), kept.begin(), kept.end());
  }
}

KeptReport EvictingLedger::kept() const {
  KeptReport report;
  for (const KeptLists& lists : layers_) {
    for (uint32_t stream = 0; stream < plan_.n_streams; ++stream) {
      report.original += lists.count(stream, KeptTier::kOriginal);
      report.low += lists.count(stream, KeptTier::kLow);
    }
  }
  for (const Sequence& sequence : sequences_) report.evicted += sequence.n_evicted;
  report.lowered = n_lowered_;
  if (has_two_tiers() && sequences_[0].prompt_end > 0) {
    for (uint32_t layer = 0; layer < n_layers_; ++layer) {
      report.original_shares.push_back(shares_[size_t{layer} * plan_.n_sequences].original_share);
    }
  }
  return report;
}

}  // namespace kvrun
