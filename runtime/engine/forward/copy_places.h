// Where copies of sequences' states are kept: at which positions, in which of the slots that all sequences
// share. Plain data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvrun {

class CopyPlaces {
 public:
  struct Place {
    uint32_t position = 0;  // the states are those before this token
    uint32_t slot = 0;
  };

  // Each of the sequences may have n_slots / n_sequences copies, and more while others have fewer.
  CopyPlaces(uint32_t n_sequences, uint32_t n_slots);

  // Of a sequence: ascending.
  std::span<const Place> of(uint32_t sequence) const { return kept_[sequence]; }
  // The sequence has so many tokens now: copies after that are given back.
  void Cut(uint32_t sequence, uint32_t length);
  // A copy at `position`, which is after all of the sequence's: the last of its places then. False where
  // there is one already, or no slot for it. Where no slot is free, a place is given up: of a sequence that
  // has more than this one would, if there is any; else of its own.
  bool Keep(uint32_t sequence, uint32_t position);
  // The slot cannot be used. Its place, if it has one, is given up.
  void Withdraw(uint32_t slot);

  // Which place is given up, where the text goes on to `end`; `places` is not empty, and all are before that.
  // The one whose neighbours are closest to each other, for how close copies should be there: evenly spaced
  // over the text, and closer the nearer they are to its end, up to sixteen times. So no two neighbours of
  // eight or more are farther apart than two and a half times the mean; fewer are mostly near the end.
  static size_t LeastNeeded(std::span<const Place> places, uint32_t end);

 private:
  bool FreeSlot(uint32_t sequence, uint32_t end);

  std::vector<std::vector<Place>> kept_;  // of each sequence
  std::vector<uint32_t> free_;            // slots
};

}  // namespace kvrun
