#include "runtime/store/save_point_places.h"

#include <fmt/format.h>

#include <algorithm>

#include "platform/base/check.h"
#include "platform/base/units.h"

namespace kvrun {
namespace {

enum FileItem : uint16_t { kLayoutItem, kThereItem, kShadowsItem };

StateKey FileKey(FileItem item, uint32_t number) { return {StatePart::kFile, item, number}; }

Status FileContradicts(uint32_t number, std::string_view what) {
  return {StatusCode::kCorrupt,
          fmt::format("what is known of the KV cache's file {} contradicts itself: {}: the session has to be "
                      "computed again",
                      number, what)};
}

// Hands on places that follow each other as one run.
class PlaceRuns {
 public:
  explicit PlaceRuns(const SavePointPlaces::VisitRun& visit) : visit_(visit) {}
  void Add(uint32_t place) {
    if (place != end_) {
      End();
      first_ = place;
    }
    end_ = place + 1;
  }
  void End() {
    if (first_ != end_) visit_(first_, end_);
    first_ = end_ = 0;
  }

 private:
  const SavePointPlaces::VisitRun& visit_;
  uint32_t first_ = 0;
  uint32_t end_ = 0;
};

}  // namespace

SavePointPlaces::SavePointPlaces(uint32_t n_units) : n_homes_(n_units), homes_(n_units) {
  moved_.Prepare(n_units);
}

uint64_t SavePointPlaces::MemoryBytes(uint32_t n_units) {
  return sizeof(SavePointPlaces) + n_units + CeilDiv<uint64_t>(n_units, kPageSize) * sizeof(void*);
}

template <typename Visit>
void SavePointPlaces::ForEachPlace(const Visit& visit) {
  for (uint32_t home = 0; home < n_units(); ++home) visit(home, homes_[home]);
  shadows_.ForEach([&](uint32_t shadow, uint8_t flags) {
    if (flags != 0) visit(n_homes_ + shadow, shadows_.At(shadow));
  });
}

uint32_t SavePointPlaces::PlaceOf(uint32_t unit) const {
  if (const uint32_t shadow = moved_.Get(unit); shadow != 0) return shadow;
  return (homes_[unit] & kTaken) != 0 ? unit : kNone;
}

uint32_t SavePointPlaces::PlaceToWrite(uint32_t unit) {
  uint32_t place = PlaceOf(unit);
  if (place == kNone || (FlagsOf(place) & kHeld) != 0) {
    const bool is_home_free = (homes_[unit] & (kTaken | kHeld)) == 0;
    const uint32_t other = is_home_free ? unit : FindFreeShadow();
    if (other == kNone) return kNone;
    if (place != kNone) FlagsOf(place) &= static_cast<uint8_t>(~kTaken);
    Take(unit, other);
    place = other;
  }
  homes_[unit] |= kIsThere;
  return place;
}

void SavePointPlaces::Take(uint32_t unit, uint32_t place) {
  FlagsOf(place) |= kTaken;
  if (place != unit) {
    moved_.At(unit) = place;
  } else if (moved_.Get(unit) != 0) {
    moved_.At(unit) = 0;
  }
}

uint32_t SavePointPlaces::FindFreeShadow() {
  while (shadows_.Get(first_free_) != 0) ++first_free_;
  return first_free_ < kNone - n_homes_ ? n_homes_ + first_free_ : kNone;
}

void SavePointPlaces::Discard(uint32_t first_unit, uint32_t end_unit, const VisitRun& visit) {
  PlaceRuns runs(visit);
  for (uint32_t unit = first_unit; unit < end_unit; ++unit) {
    if (!IsThere(unit)) continue;
    homes_[unit] &= static_cast<uint8_t>(~kIsThere);
    // It stays taken: a write to it may be in flight.
    if (const uint32_t place = PlaceOf(unit); (FlagsOf(place) & kHeld) == 0) runs.Add(place);
  }
  runs.End();
}

void SavePointPlaces::Show() {
  ForEachPlace([](uint32_t, uint8_t& flags) { flags &= static_cast<uint8_t>(~kShown); });
  for (uint32_t unit = 0; unit < n_units(); ++unit) {
    if (IsThere(unit)) FlagsOf(PlaceOf(unit)) |= kHeld | kShown;
  }
}

void SavePointPlaces::EndSave(const VisitRun& visit) {
  for (uint32_t unit = 0; unit < n_units(); ++unit) {
    const uint32_t place = PlaceOf(unit);
    if (IsThere(unit) || place == kNone) continue;
    uint8_t& flags = FlagsOf(place);
    flags = static_cast<uint8_t>((flags & ~kTaken) | kHeld);  // as of a save point before
    if (place != unit) moved_.At(unit) = 0;
  }
  PlaceRuns runs(visit);
  ForEachPlace([&](uint32_t place, uint8_t& flags) {
    if ((flags & kHeld) == 0 || (flags & kShown) != 0) return;
    flags &= static_cast<uint8_t>(~kHeld);
    if ((flags & kTaken) != 0) return;
    runs.Add(place);
    if (place >= n_homes_) first_free_ = std::min(first_free_, place - n_homes_);
  });
  runs.End();
}

uint64_t SavePointPlaces::CountUsed() const {
  uint64_t n_used = 0;
  for (uint32_t unit = 0; unit < n_units(); ++unit) {
    if ((homes_[unit] & kHeld) != 0) ++n_used;
    if (IsThere(unit) && (FlagsOf(PlaceOf(unit)) & kHeld) == 0) ++n_used;
  }
  shadows_.ForEach([&](uint32_t, uint8_t flags) { n_used += (flags & kHeld) != 0 ? 1 : 0; });
  return n_used;
}

uint32_t SavePointPlaces::HighestPlace() const {
  uint32_t highest = kNone;
  for (uint32_t unit = 0; unit < n_units(); ++unit) {
    if (IsThere(unit)) highest = highest == kNone ? PlaceOf(unit) : std::max(highest, PlaceOf(unit));
  }
  return highest;
}

Status SavePointPlaces::VisitState(StateVisitor& visitor, uint32_t number, uint32_t unit_bytes) {
  KVRUN_RETURN_IF_ERROR(VisitLayout(visitor, number, unit_bytes));
  KVRUN_RETURN_IF_ERROR(VisitThere(visitor, number));
  KVRUN_RETURN_IF_ERROR(VisitShadows(visitor, number));
  Show();
  return Status::Ok();
}

Status SavePointPlaces::VisitLayout(StateVisitor& visitor, uint32_t number, uint32_t unit_bytes) {
  std::array<uint32_t, 2> layout = {unit_bytes, n_homes_};
  KVRUN_RETURN_IF_ERROR(visitor.Array(FileKey(kLayoutItem, number), std::span<uint32_t>(layout)));
  const auto [of_file, n_homes] = layout;
  if (of_file != unit_bytes) {
    return {StatusCode::kInvalidArgument,
            fmt::format("the KV cache's file {} has units of {} bytes, not {}", number, of_file, unit_bytes)};
  }
  if (n_homes < n_units()) {
    return {StatusCode::kInvalidArgument,
            fmt::format("the KV cache's file {} has room for {} units, not {}", number, n_homes, n_units())};
  }
  if (n_homes == kNone) return FileContradicts(number, "it has more units than can be");
  n_homes_ = n_homes;
  return Status::Ok();
}

// A bit each, to the last one that is there.
Status SavePointPlaces::VisitThere(StateVisitor& visitor, uint32_t number) {
  std::vector<uint8_t> bits;
  for (uint32_t unit = 0; unit < n_units(); ++unit) {
    if (!IsThere(unit)) continue;
    bits.resize(unit / 8 + 1);
    bits[unit / 8] |= static_cast<uint8_t>(1U << unit % 8);
  }
  const StateKey key = FileKey(kThereItem, number);
  KVRUN_ASSIGN_OR_RETURN(const uint64_t n_bytes,
                         visitor.Size(key, bits.size(), CeilDiv<uint64_t>(n_homes_, 8), 1));
  const auto no_room = [&]() -> Status {
    return {StatusCode::kInvalidArgument,
            fmt::format("the KV cache's file {} holds more than the {} units that there is room for", number,
                        n_units())};
  };
  if (n_bytes > CeilDiv<uint64_t>(n_units(), 8)) return no_room();
  bits.resize(n_bytes);
  KVRUN_RETURN_IF_ERROR(visitor.Bytes(key, std::as_writable_bytes(std::span(bits))));
  if (!visitor.is_loading()) return Status::Ok();
  for (uint64_t unit = 0; unit < 8 * n_bytes; ++unit) {
    if ((bits[unit / 8] >> unit % 8 & 1) == 0) continue;
    if (unit >= n_homes_) return FileContradicts(number, fmt::format("unit {} has no room", unit));
    if (unit >= n_units()) return no_room();
    homes_[unit] |= kIsThere;
  }
  return Status::Ok();
}

// All that are there and have none lie at home.
Status SavePointPlaces::VisitShadows(StateVisitor& visitor, uint32_t number) {
  std::vector<Moved> moved;
  uint64_t n_there = 0;
  for (uint32_t unit = 0; unit < n_units(); ++unit) {
    if (!IsThere(unit)) continue;
    ++n_there;
    if (!visitor.is_loading() && PlaceOf(unit) != unit) moved.push_back({unit, PlaceOf(unit) - n_homes_});
  }
  KVRUN_RETURN_IF_ERROR(visitor.Vector(FileKey(kShadowsItem, number), &moved, n_there));
  if (!visitor.is_loading()) return Status::Ok();
  uint64_t next = 0;
  for (const auto& [unit, shadow] : moved) {
    if (unit < next || unit >= n_units() || !IsThere(unit)) {
      return FileContradicts(number,
                             fmt::format("unit {} has a shadow and is not there, or comes late", unit));
    }
    if (shadow >= kNone - n_homes_ || shadows_.Get(shadow) != 0) {
      return FileContradicts(number, fmt::format("unit {} has shadow {}, as others have", unit, shadow));
    }
    Take(unit, n_homes_ + shadow);
    next = uint64_t{unit} + 1;
  }
  for (uint32_t unit = 0; unit < n_units(); ++unit) {
    if (IsThere(unit) && PlaceOf(unit) == kNone) Take(unit, unit);
  }
  return Status::Ok();
}

}  // namespace kvrun
