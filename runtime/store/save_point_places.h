// Where the units of a SavePointFile lie. Bookkeeping only: it reads and writes no file.
//
// *Places* are as large as a unit, and are numbered through the file: first the homes, unit u's being place
// u, then the shadows. A place is *taken* by the unit that lies there now, and *held* where a save point, or
// one that may be on the disk, has what lies there: nothing is written to it then. What is neither is free.
//
// Threads: one at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "platform/base/status.h"
#include "runtime/store/state_visitor.h"

namespace kvrun {

class SavePointPlaces {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;
  // Places, one after another in the file: from `first` on, before `end`.
  using VisitRun = std::function<void(uint32_t first, uint32_t end)>;

  // None of the units is there, and each has a home.
  explicit SavePointPlaces(uint32_t n_units);
  // Without the tables of shadows: for each, 4 bytes of its unit and one of its own, in pages of kPageSize.
  static uint64_t MemoryBytes(uint32_t n_units);

  uint32_t n_units() const { return static_cast<uint32_t>(homes_.size()); }
  bool IsThere(uint32_t unit) const { return (homes_[unit] & kIsThere) != 0; }
  // Of a unit that was written, also if it was discarded since: where it lies. Else kNone.
  uint32_t PlaceOf(uint32_t unit) const;
  // Where the unit is to be written: it lies there from now on. kNone: there are no more places.
  uint32_t PlaceToWrite(uint32_t unit);
  // The units are not there any more. Their places are free after the next save point; those of them that no
  // save point holds are visited now.
  void Discard(uint32_t first_unit, uint32_t end_unit, const VisitRun& visit);

  // What is there now is held, as a save point that may come to the disk.
  void Show();
  // It has: what it was shown last is held, and nothing else. Visits what has become free.
  void EndSave(const VisitRun& visit);

  // Units that are there, and what else is held.
  uint64_t CountUsed() const;
  uint32_t HighestPlace() const;  // of the units that are there; kNone: none is

  // SavePointFile::VisitState, but for what only the file below knows. Saving shows.
  Status VisitState(StateVisitor& visitor, uint32_t number, uint32_t unit_bytes);

 private:
  enum Flag : uint8_t {
    kIsThere = 1,  // the unit, wherever it lies; those below are of the place
    kTaken = 2,
    kHeld = 4,
    kShown = 8,  // held by the last that was shown
  };
  struct Moved {
    uint32_t unit;
    uint32_t shadow;
  };

  // An array of which there is what was written; zeros else.
  static constexpr uint32_t kPageSize = 1024;
  template <typename T>
  class Pages {
   public:
    T Get(uint32_t i) const {
      const uint32_t page = i / kPageSize;
      return page < pages_.size() && pages_[page] != nullptr ? (*pages_[page])[i % kPageSize] : T{};
    }
    T& At(uint32_t i) {
      const uint32_t page = i / kPageSize;
      if (page >= pages_.size()) pages_.resize(page + 1);
      if (pages_[page] == nullptr) pages_[page] = std::make_unique<Page>();
      return (*pages_[page])[i % kPageSize];
    }
    // visit(index, value)
    template <typename Visit>
    void ForEach(const Visit& visit) const {
      for (uint32_t page = 0; page < pages_.size(); ++page) {
        if (pages_[page] == nullptr) continue;
        for (uint32_t i = 0; i < kPageSize; ++i) visit(page * kPageSize + i, (*pages_[page])[i]);
      }
    }
    void Prepare(uint32_t n) { pages_.resize((size_t{n} + kPageSize - 1) / kPageSize); }

   private:
    using Page = std::array<T, kPageSize>;
    std::vector<std::unique_ptr<Page>> pages_;
  };

  uint8_t& FlagsOf(uint32_t place) {
    return place < n_homes_ ? homes_[place] : shadows_.At(place - n_homes_);
  }
  uint8_t FlagsOf(uint32_t place) const {
    return place < n_homes_ ? homes_[place] : shadows_.Get(place - n_homes_);
  }
  void Take(uint32_t unit, uint32_t place);
  uint32_t FindFreeShadow();
  // visit(place, flags&), ascending.
  template <typename Visit>
  void ForEachPlace(const Visit& visit);
  Status VisitLayout(StateVisitor& visitor, uint32_t number, uint32_t unit_bytes);
  Status VisitThere(StateVisitor& visitor, uint32_t number);
  Status VisitShadows(StateVisitor& visitor, uint32_t number);

  uint32_t n_homes_;  // of the file: at least n_units()
  std::vector<uint8_t> homes_;
  Pages<uint8_t> shadows_;
  Pages<uint32_t> moved_;    // of a unit that lies in a shadow: its place, which is never 0
  uint32_t first_free_ = 0;  // no shadow before it is free
};

}  // namespace kvrun
