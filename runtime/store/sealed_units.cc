#include "runtime/store/sealed_units.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "platform/base/saturating.h"
#include "platform/base/units.h"
#include "runtime/store/parted_requests.h"

namespace kvrun {
namespace {

constexpr std::string_view kPurpose = "kvrun sealed units";
constexpr uint32_t kCountBits = 48;
constexpr uint64_t kMostCount = (uint64_t{1} << kCountBits) - 1;

enum Item : uint16_t { kOpeningsItem, kPlacesItem, kTagsItem };

constexpr StateKey SealKey(Item item, uint32_t number, uint32_t lane = 0) {
  return {StatePart::kSeals, item, lane, number};
}

uint32_t OpeningOf(uint64_t place) { return static_cast<uint32_t>(place >> kCountBits); }

size_t CipherIndex(Cipher cipher) { return cipher == Cipher::kAes256Gcm ? 0 : 1; }

// Of all lanes.
size_t PlacesOf(const SealedShape& shape, uint32_t n_units) {
  if (shape.lane_units == 0) return n_units;
  return size_t{CeilDiv(n_units, shape.lane_units)} * shape.held_units;
}

}  // namespace

uint32_t SealedShape::n_units() const { return CountUnits(size_bytes, unit_bytes); }

Result<SealedUnits> SealedUnits::Create(const SecretKey& key, const SealedShape& shape, uint32_t number) {
  Salt salt;
  KVRUN_RETURN_IF_ERROR(RandomBytes(salt));
  KVRUN_ASSIGN_OR_RETURN(const SecretKey derived, DeriveKey(key, salt, kPurpose));
  KVRUN_ASSIGN_OR_RETURN(Sealer sealer, Sealer::Create(PreferredCipher(), derived));
  SealedUnits units(key, shape, number, std::move(sealer));
  units.salt_ = salt;
  KVRUN_ASSIGN_OR_RETURN(units.own_opener_, units.MakeOpener());
  KVRUN_RETURN_IF_ERROR(units.Grow(shape.n_units()));
  return units;
}

SealedUnits::SealedUnits(const SecretKey& key, const SealedShape& shape, uint32_t number, Sealer sealer)
    : key_(key.bytes()), shape_(shape), number_(number), sealer_(std::move(sealer)) {}

Status SealedUnits::Grow(uint32_t n_units) {
  if (n_units <= n_units_) return Status::Ok();
  const size_t n_before = n_places();
  const size_t n = PlacesOf(shape_, n_units);
  const bool has_tags = !shape_.has_tags_in_units();
  std::unique_ptr<uint64_t[]> places(new (std::nothrow) uint64_t[n]());
  std::unique_ptr<Tag[]> tags(has_tags ? new (std::nothrow) Tag[n]() : nullptr);
  if (places == nullptr || (has_tags && tags == nullptr)) {
    return {
        StatusCode::kOutOfMemory,
        fmt::format("there is not enough memory for the encryption of the KV cache's file, which needs {}",
                    FormatBytes(n * (sizeof(uint64_t) + (has_tags ? sizeof(Tag) : 0))))};
  }
  std::copy_n(places_.get(), n_before, places.get());
  if (has_tags) std::copy_n(tags_.get(), n_before, tags.get());
  places_ = std::move(places);
  tags_ = std::move(tags);
  n_units_ = n_units;
  return Status::Ok();
}

uint64_t SealedUnits::MemoryBytes(const SealedShape& shape) {
  const uint64_t each = sizeof(uint64_t) + (shape.has_tags_in_units() ? 0 : sizeof(Tag));
  return PlacesOf(shape, shape.n_units()) * each;
}

size_t SealedUnits::n_places() const { return PlacesOf(shape_, n_units_); }

uint32_t SealedUnits::UnitOf(size_t at) const {
  if (shape_.lane_units == 0) return static_cast<uint32_t>(at);
  return static_cast<uint32_t>(at / shape_.held_units * shape_.lane_units + at % shape_.held_units);
}

std::array<std::byte, 12> SealedUnits::AssociatedOf(uint32_t unit) const {
  std::array<std::byte, 12> bytes;
  size_t at = 0;
  for (const uint32_t value : {number_, unit, shape_.unit_bytes}) {
    for (uint32_t shift = 0; shift < 32; shift += 8) bytes[at++] = static_cast<std::byte>(value >> shift);
  }
  return bytes;
}

Status SealedUnits::Seal(uint32_t unit, std::span<const std::byte> plain, std::span<std::byte> sealed) {
  const size_t at = IndexOf(unit);
  if (at == kNowhere) {
    return {StatusCode::kInvalidArgument,
            fmt::format("unit {} of the KV cache's file is not one that may be written", unit)};
  }
  places_[at] = 0;
  if (count_ == kMostCount) {
    return {StatusCode::kUnsupported,
            "the KV cache's file was written too often to be encrypted with its key: it has to be opened "
            "anew"};
  }
  const uint64_t count = ++count_;
  const size_t n = tags_ != nullptr ? plain.size() : plain.size() - kTagBytes;
  const std::span<std::byte, kTagBytes> tag =
      tags_ != nullptr ? std::span<std::byte, kTagBytes>(tags_[at]) : sealed.last<kTagBytes>();
  KVRUN_RETURN_IF_ERROR(
      sealer_.Seal(MakeNonce(number_, count), AssociatedOf(unit), plain.first(n), sealed.first(n), tag));
  places_[at] = uint64_t{opening_} << kCountBits | count;
  return Status::Ok();
}

Status SealedUnits::Open(uint32_t unit, std::span<std::byte> bytes, Opener* opener) const {
  const auto fill = [bytes](Status status) {
    std::fill(bytes.begin(), bytes.end(), std::byte{});
    return status;
  };
  const size_t at = IndexOf(unit);
  if (at == kNowhere || places_[at] == 0) return fill(Status::Ok());
  const uint64_t place = places_[at];
  const Result<Sealer*> sealer = SealerOf(OpeningOf(place), opener);
  if (!sealer.ok()) return fill(sealer.status());
  const Nonce nonce = MakeNonce(number_, place & kMostCount);
  if (tags_ != nullptr) return (*sealer)->Open(nonce, AssociatedOf(unit), bytes, bytes, tags_[at]);
  const std::span<std::byte> plain = bytes.first(bytes.size() - kTagBytes);
  const std::span<std::byte, kTagBytes> tag = bytes.last<kTagBytes>();
  Status status = (*sealer)->Open(nonce, AssociatedOf(unit), plain, plain, tag);
  std::fill(tag.begin(), tag.end(), std::byte{});
  return status;
}

void SealedUnits::Forget(uint32_t first_unit, uint32_t end_unit) {
  for (uint32_t unit = first_unit; unit < end_unit; ++unit) {
    if (const size_t at = IndexOf(unit); at != kNowhere) places_[at] = 0;
  }
}

const SealedUnits::Opening* SealedUnits::Find(uint32_t opening) const {
  const auto found =
      std::lower_bound(before_.begin(), before_.end(), opening,
                       [](const Opening& one, uint32_t wanted) { return one.number < wanted; });
  return found != before_.end() && found->number == opening ? &*found : nullptr;
}

Result<Sealer*> SealedUnits::SealerOf(uint32_t opening, Opener* opener) const {
  if (opening == opening_) return &*opener->own;
  const Opening* const before = Find(opening);
  if (before == nullptr) return Contradicts(fmt::format("there is no opening {}", opening));
  const size_t i = CipherIndex(before->cipher);
  if (opener->earlier_of[i] != opening) {
    opener->earlier_of[i] = UINT32_MAX;  // of none of them, until it has the key
    KVRUN_RETURN_IF_ERROR(opener->earlier[i]->SetKey(before->key));
    opener->earlier_of[i] = opening;
  }
  return &*opener->earlier[i];
}

Result<SealedUnits::Opener> SealedUnits::MakeOpener() const {
  KVRUN_ASSIGN_OR_RETURN(const SecretKey derived, DeriveKey(key_, salt_, kPurpose));
  Opener opener;
  KVRUN_ASSIGN_OR_RETURN(opener.own, Sealer::Create(sealer_.cipher(), derived));
  KVRUN_RETURN_IF_ERROR(Prepare(&opener));
  return opener;
}

Status SealedUnits::Prepare(Opener* opener) const {
  opener->earlier_of.fill(UINT32_MAX);
  for (const Opening& one : before_) {
    std::optional<Sealer>& sealer = opener->earlier[CipherIndex(one.cipher)];
    if (sealer && sealer->cipher() == one.cipher) continue;
    KVRUN_ASSIGN_OR_RETURN(sealer, Sealer::Create(one.cipher, one.key));
  }
  return Status::Ok();
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
  for (uint32_t lane = 0; lane * size_t{lane_places()} < n_places(); ++lane)
    KVRUN_RETURN_IF_ERROR(VisitLane(visitor, lane));
  return Status::Ok();
}

// No unit needs the others any more: they are dropped.
std::vector<SealedUnits::SavedOpening> SealedUnits::OpeningsThatAreNeeded() {
  std::vector<bool> is_needed(kMostOpenings + 1);
  for (size_t at = 0; at < n_places(); ++at) {
    if (places_[at] != 0) is_needed[OpeningOf(places_[at])] = true;
  }
  const auto dropped = std::remove_if(before_.begin(), before_.end(),
                                      [&](const Opening& one) { return !is_needed[one.number]; });
  before_.erase(dropped, before_.end());
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
    KVRUN_ASSIGN_OR_RETURN(SecretKey key, DeriveKey(key_, one.salt, kPurpose));
    before_.push_back({one.number, cipher, one.salt, std::move(key)});
  }
  KVRUN_RETURN_IF_ERROR(Prepare(&own_opener_));
  if (opening_ < kMostOpenings) return Status::Ok();
  return {StatusCode::kCorrupt,
          fmt::format("the KV cache's file {} was opened {} times, as often as it can be: the session has to "
                      "be computed again",
                      number_, kMostOpenings)};
}

// To the last unit that is there.
Status SealedUnits::VisitLane(StateVisitor& visitor, uint32_t lane) {
  const uint32_t most = lane_places();
  uint64_t* const places = places_.get() + size_t{lane} * most;
  const StateKey key = SealKey(kPlacesItem, number_, lane);
  uint64_t n = most;
  while (n > 0 && places[n - 1] == 0) --n;
  KVRUN_ASSIGN_OR_RETURN(
      const uint64_t n_bytes,
      visitor.Size(key, n * sizeof(uint64_t), SaturatingProduct({UINT32_MAX, sizeof(uint64_t)}),
                   static_cast<uint32_t>(sizeof(uint64_t))));
  n = n_bytes / sizeof(uint64_t);
  if (n > most) {
    return {StatusCode::kInvalidArgument,
            fmt::format("the KV cache's file {} holds {} units that are encrypted, and there is room for {}",
                        number_, n, most)};
  }
  KVRUN_RETURN_IF_ERROR(visitor.Array(key, std::span(places, n)));
  if (tags_ != nullptr) {
    const std::span<Tag> tags(tags_.get() + size_t{lane} * most, n);
    KVRUN_RETURN_IF_ERROR(visitor.Array(SealKey(kTagsItem, number_, lane), tags));
  }
  return visitor.is_loading() ? CheckPlaces(lane, n) : Status::Ok();
}

Status SealedUnits::CheckPlaces(uint32_t lane, uint64_t n_loaded) const {
  const size_t first = size_t{lane} * lane_places();
  for (size_t at = first; at < first + n_loaded; ++at) {
    const uint64_t place = places_[at];
    if (place == 0 || ((place & kMostCount) != 0 && Find(OpeningOf(place)) != nullptr)) continue;
    return Contradicts(fmt::format("unit {} is of no opening", UnitOf(at)));
  }
  return Status::Ok();
}

}  // namespace kvrun
