#include "runtime/store/sealed_units.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "platform/base/saturating.h"
#include "platform/base/units.h"

namespace kvrun {
namespace {

constexpr std::string_view kPurpose = "kvrun sealed units";
constexpr uint32_t kCountBits = 48;
constexpr uint64_t kMostCount = (uint64_t{1} << kCountBits) - 1;

enum Item : uint16_t { kOpeningsItem, kUnitsItem };

constexpr StateKey SealKey(Item item, uint32_t number) { return {StatePart::kSeals, item, 0, number}; }

uint32_t OpeningOf(uint64_t place) { return static_cast<uint32_t>(place >> kCountBits); }

}  // namespace

Result<SealedUnits> SealedUnits::Create(const SecretKey& key, uint32_t n_units, uint32_t unit_bytes,
                                        uint32_t number) {
  Salt salt;
  KVRUN_RETURN_IF_ERROR(RandomBytes(salt));
  KVRUN_ASSIGN_OR_RETURN(const SecretKey derived, DeriveKey(key, salt, kPurpose));
  KVRUN_ASSIGN_OR_RETURN(Sealer sealer, Sealer::Create(PreferredCipher(), derived));
  SealedUnits units(key, unit_bytes, number, std::move(sealer));
  units.salt_ = salt;
  KVRUN_RETURN_IF_ERROR(units.Grow(n_units));
  return units;
}

Status SealedUnits::Grow(uint32_t n_units) {
  if (n_units <= n_units_) return Status::Ok();
  std::unique_ptr<Entry[]> table(new (std::nothrow) Entry[n_units]());
  if (table == nullptr) {
    return {
        StatusCode::kOutOfMemory,
        fmt::format("there is not enough memory for the encryption of the KV cache's file, which needs {}",
                    FormatBytes(MemoryBytes(n_units)))};
  }
  std::copy_n(table_.get(), n_units_, table.get());
  table_ = std::move(table);
  n_units_ = n_units;
  return Status::Ok();
}

SealedUnits::SealedUnits(const SecretKey& key, uint32_t unit_bytes, uint32_t number, Sealer sealer)
    : key_(key.bytes()), unit_bytes_(unit_bytes), number_(number), sealer_(std::move(sealer)) {}

uint64_t SealedUnits::MemoryBytes(uint32_t n_units) { return uint64_t{n_units} * sizeof(Entry); }

std::array<std::byte, 12> SealedUnits::AssociatedOf(uint32_t unit) const {
  std::array<std::byte, 12> bytes;
  size_t at = 0;
  for (const uint32_t value : {number_, unit, unit_bytes_}) {
    for (uint32_t shift = 0; shift < 32; shift += 8) bytes[at++] = static_cast<std::byte>(value >> shift);
  }
  return bytes;
}

Status SealedUnits::Seal(uint32_t unit, std::span<const std::byte> plain, std::span<std::byte> sealed) {
  Entry& entry = table_[unit];
  entry.place = 0;
  if (count_ == kMostCount) {
    return {StatusCode::kUnsupported,
            "the KV cache's file was written too often to be encrypted with its key: it has to be opened "
            "anew"};
  }
  const uint64_t count = ++count_;
  KVRUN_RETURN_IF_ERROR(
      sealer_.Seal(MakeNonce(number_, count), AssociatedOf(unit), plain, sealed, entry.tag));
  entry.place = uint64_t{opening_} << kCountBits | count;
  return Status::Ok();
}

Status SealedUnits::Open(uint32_t unit, std::span<std::byte> bytes) {
  const Entry& entry = table_[unit];
  if (entry.place == 0) {
    std::fill(bytes.begin(), bytes.end(), std::byte{});
    return Status::Ok();
  }
  const Result<Sealer*> sealer = SealerOf(OpeningOf(entry.place));
  if (!sealer.ok()) {
    std::fill(bytes.begin(), bytes.end(), std::byte{});
    return sealer.status();
  }
  return (*sealer)->Open(MakeNonce(number_, entry.place & kMostCount), AssociatedOf(unit), bytes, bytes,
                         entry.tag);
}

void SealedUnits::Forget(uint32_t first_unit, uint32_t end_unit) {
  std::fill(table_.get() + first_unit, table_.get() + end_unit, Entry{});
}

const SealedUnits::Opening* SealedUnits::Find(uint32_t opening) const {
  const auto found =
      std::lower_bound(before_.begin(), before_.end(), opening,
                       [](const Opening& one, uint32_t wanted) { return one.number < wanted; });
  return found != before_.end() && found->number == opening ? &*found : nullptr;
}

Result<Sealer*> SealedUnits::SealerOf(uint32_t opening) {
  if (opening == opening_) return &sealer_;
  const Opening* const before = Find(opening);
  if (before == nullptr) return Contradicts(fmt::format("there is no opening {}", opening));
  const size_t i = before->cipher == Cipher::kAes256Gcm ? 0 : 1;
  if (opener_of_[i] != opening) {
    opener_of_[i] = opening_;  // of none of them, until it has the key
    KVRUN_RETURN_IF_ERROR(openers_[i]->SetKey(before->key));
    opener_of_[i] = opening;
  }
  return &*openers_[i];
}

Status SealedUnits::Contradicts(const std::string& why) const {
  return {StatusCode::kCorrupt,
          fmt::format("what is known of the encryption of the KV cache's file {} contradicts itself: {}: the "
                      "session has to be computed again",
                      number_, why)};
}

Status SealedUnits::VisitState(StateVisitor& visitor) {
  std::vector<SavedOpening> saved;
  if (!visitor.is_loading()) saved = OpeningsThatAreNeeded();
  KVRUN_RETURN_IF_ERROR(visitor.Vector(SealKey(kOpeningsItem, number_), &saved, kMostOpenings));
  if (visitor.is_loading()) KVRUN_RETURN_IF_ERROR(TakeOpenings(saved));
  return VisitTable(visitor);
}

// No unit needs the others any more: they are dropped.
std::vector<SealedUnits::SavedOpening> SealedUnits::OpeningsThatAreNeeded() {
  std::vector<bool> is_needed(kMostOpenings + 1);
  for (uint32_t unit = 0; unit < n_units_; ++unit) {
    if (IsThere(unit)) is_needed[OpeningOf(table_[unit].place)] = true;
  }
  const auto dropped = std::remove_if(before_.begin(), before_.end(),
                                      [&](const Opening& one) { return !is_needed[one.number]; });
  before_.erase(dropped, before_.end());
  opener_of_.fill(opening_);
  std::vector<SavedOpening> saved;
  for (const Opening& one : before_)
    saved.push_back({one.number, static_cast<uint32_t>(one.cipher), one.salt});
  if (is_needed[opening_]) {
    const auto next = std::find_if(saved.begin(), saved.end(),
                                   [&](const SavedOpening& one) { return one.number > opening_; });
    saved.insert(next, {opening_, static_cast<uint32_t>(sealer_.cipher()), salt_});
  }
  return saved;
}

// This opening gets the lowest number that none of them has.
Status SealedUnits::TakeOpenings(const std::vector<SavedOpening>& saved) {
  opening_ = 0;
  before_.clear();
  before_.reserve(saved.size());
  for (const SavedOpening& one : saved) {
    if (one.number >= kMostOpenings || (!before_.empty() && one.number <= before_.back().number))
      return Contradicts(fmt::format("opening {} comes late, or cannot be", one.number));
    if (one.number == opening_) ++opening_;
    if (one.cipher > UINT8_MAX) return Contradicts(fmt::format("there is no cipher {}", one.cipher));
    const auto cipher = static_cast<Cipher>(one.cipher);
    const size_t i = cipher == Cipher::kAes256Gcm ? 0 : 1;
    KVRUN_ASSIGN_OR_RETURN(SecretKey key, DeriveKey(key_, one.salt, kPurpose));
    if (!openers_[i] || openers_[i]->cipher() != cipher) {
      KVRUN_ASSIGN_OR_RETURN(openers_[i], Sealer::Create(cipher, key));
    }
    before_.push_back({one.number, cipher, one.salt, std::move(key)});
  }
  opener_of_.fill(opening_);
  if (opening_ < kMostOpenings) return Status::Ok();
  return {StatusCode::kCorrupt,
          fmt::format("the KV cache's file {} was opened {} times, as often as it can be: the session has to "
                      "be computed again",
                      number_, kMostOpenings)};
}

// To the last unit that is there.
Status SealedUnits::VisitTable(StateVisitor& visitor) {
  const StateKey key = SealKey(kUnitsItem, number_);
  uint64_t n = n_units_;
  while (n > 0 && table_[n - 1].place == 0) --n;
  KVRUN_ASSIGN_OR_RETURN(const uint64_t n_bytes,
                         visitor.Size(key, n * sizeof(Entry), SaturatingProduct({UINT32_MAX, sizeof(Entry)}),
                                      static_cast<uint32_t>(sizeof(Entry))));
  n = n_bytes / sizeof(Entry);
  if (n > n_units_) {
    return {StatusCode::kInvalidArgument,
            fmt::format("the KV cache's file {} holds {} units that are encrypted, and there is room for {}",
                        number_, n, n_units_)};
  }
  KVRUN_RETURN_IF_ERROR(visitor.Array(key, std::span(table_.get(), n)));
  return visitor.is_loading() ? CheckTable(n) : Status::Ok();
}

Status SealedUnits::CheckTable(uint64_t n_loaded) const {
  for (uint64_t unit = 0; unit < n_loaded; ++unit) {
    const uint64_t place = table_[unit].place;
    if (place == 0 || ((place & kMostCount) != 0 && Find(OpeningOf(place)) != nullptr)) continue;
    return Contradicts(fmt::format("unit {} is of no opening", unit));
  }
  return Status::Ok();
}

}  // namespace kvrun
