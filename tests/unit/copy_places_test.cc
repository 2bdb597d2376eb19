// Where copies of states are kept: of any prompts, answers and cuts.
#include "runtime/engine/forward/copy_places.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <set>
#include <span>
#include <vector>

namespace kvrun::testing {
namespace {

std::vector<uint32_t> PositionsOf(const CopyPlaces& places, uint32_t sequence) {
  std::vector<uint32_t> positions;
  for (const CopyPlaces::Place& place : places.of(sequence)) positions.push_back(place.position);
  return positions;
}

uint32_t WidestGap(const CopyPlaces& places, uint32_t sequence, uint32_t end) {
  uint32_t widest = 0;
  uint32_t before = 0;
  for (const uint32_t position : PositionsOf(places, sequence)) {
    widest = std::max(widest, position - before);
    before = position;
  }
  return std::max(widest, end - before);
}

TEST(CopyPlaces, AllAreKeptWhereThereIsRoom) {
  CopyPlaces places(1, 4);
  for (const uint32_t position : {256U, 512U, 700U, 956U}) EXPECT_TRUE(places.Keep(0, position));
  EXPECT_FALSE(places.Keep(0, 956)) << "there is one";
  EXPECT_EQ(PositionsOf(places, 0), (std::vector<uint32_t>{256, 512, 700, 956}));
  places.Cut(0, 700);
  EXPECT_EQ(PositionsOf(places, 0), (std::vector<uint32_t>{256, 512, 700}));
  EXPECT_TRUE(places.Keep(0, 701));
  EXPECT_TRUE(places.Keep(0, 1000));
  EXPECT_EQ(places.of(0).size(), 4U);
  EXPECT_EQ(places.of(0).back().position, 1000U);
}

TEST(CopyPlaces, WithoutSlotsNothingIsKept) {
  CopyPlaces places(2, 0);
  EXPECT_FALSE(places.Keep(0, 100));
  EXPECT_TRUE(places.of(0).empty());
}

// A text that is read in chunks: gaps are about even, and narrower towards its end.
TEST(CopyPlaces, LongTextsAreSpacedEvenly) {
  for (const uint32_t n : {3U, 4U, 8U, 16U, 50U, 128U}) {
    CopyPlaces places(1, n);
    const uint32_t most_halves = n < 8 ? 7 : 5;  // of the mean
    for (uint32_t end = 256; end <= 131072; end += 256) {
      ASSERT_TRUE(places.Keep(0, end));
      if (places.of(0).size() < n) continue;
      ASSERT_LE(WidestGap(places, 0, end), std::max(256U, most_halves * (end / n) / 2 + 256))
          << n << " at " << end;
    }
    const std::vector<uint32_t> positions = PositionsOf(places, 0);
    EXPECT_EQ(positions.back(), 131072U);
    EXPECT_LE(positions[n - 1] - positions[n - 2], std::max(256U, 131072 / n / 4)) << n;
  }
}

// What holds after any of: a prompt of chunks, an answer, a cut.
class RandomTexts {
 public:
  RandomTexts(uint32_t seed, uint32_t n_sequences, uint32_t n_each)
      : random_(seed), n_each_(n_each), places_(n_sequences, n_sequences * n_each), texts_(n_sequences) {}

  void Run(int n_turns) {
    for (int i = 0; i < n_turns && !::testing::Test::HasFailure(); ++i) {
      const uint32_t sequence = Number(0, static_cast<uint32_t>(texts_.size()) - 1);
      Text& text = texts_[sequence];
      const uint32_t what = Number(0, 9);
      if (what == 0) {
        Cut(sequence, 0);
      } else if (what < 4) {
        Cut(sequence, Number(0, text.length));
        // What goes on from there is computed up to there first.
        if (text.length > 0) KeepAt(sequence, text.length);
      } else {
        const uint32_t end = text.length + Number(1, what < 8 ? 3000 : 30);
        while (text.length < end) KeepAt(sequence, std::min(text.length + 256, end));
      }
      Check();
    }
  }

 private:
  struct Text {
    uint32_t length = 0;
    uint32_t longest = 0;  // since it was empty
  };

  uint32_t Number(uint32_t least, uint32_t most) {
    return std::uniform_int_distribution<uint32_t>(least, most)(random_);
  }
  void Cut(uint32_t sequence, uint32_t length) {
    const std::vector<uint32_t> before = PositionsOf(places_, sequence);
    places_.Cut(sequence, length);
    texts_[sequence].length = length;
    if (length == 0) texts_[sequence].longest = 0;
    const auto end = std::upper_bound(before.begin(), before.end(), length);
    EXPECT_EQ(PositionsOf(places_, sequence), std::vector<uint32_t>(before.begin(), end));
  }
  void KeepAt(uint32_t sequence, uint32_t position) {
    Text& text = texts_[sequence];
    text.length = position;
    text.longest = std::max(text.longest, position);
    const auto before = places_.of(sequence);
    const bool is_there = !before.empty() && before.back().position == position;
    EXPECT_EQ(places_.Keep(sequence, position), !is_there);
    EXPECT_EQ(places_.of(sequence).back().position, position);
  }
  void Check() const {
    std::set<uint32_t> slots;
    size_t n_kept = 0;
    for (uint32_t s = 0; s < texts_.size(); ++s) {
      const std::vector<uint32_t> positions = PositionsOf(places_, s);
      EXPECT_TRUE(std::is_sorted(positions.begin(), positions.end()));
      EXPECT_EQ(std::adjacent_find(positions.begin(), positions.end()), positions.end());
      EXPECT_TRUE(positions.empty() || positions.back() <= texts_[s].length);
      for (const CopyPlaces::Place& place : places_.of(s)) slots.insert(place.slot);
      n_kept += positions.size();
      if (n_each_ < 3) continue;
      // What a cut anywhere costs.
      EXPECT_LE(WidestGap(places_, s, texts_[s].length),
                std::max(2 * 256U, 7 * texts_[s].longest / n_each_ / 2 + 256))
          << "sequence " << s << " of " << texts_[s].length << ", once " << texts_[s].longest;
    }
    EXPECT_EQ(slots.size(), n_kept) << "two copies in one slot";
    EXPECT_LE(n_kept, texts_.size() * n_each_);
    EXPECT_TRUE(slots.empty() || *slots.rbegin() < texts_.size() * n_each_);
  }

  std::mt19937 random_;
  uint32_t n_each_;
  CopyPlaces places_;
  std::vector<Text> texts_;
};

TEST(CopyPlaces, AnyTextsAndCuts) {
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    for (const uint32_t n_each : {1U, 2U, 3U, 8U, 40U}) {
      for (const uint32_t n_sequences : {1U, 3U}) {
        SCOPED_TRACE(::testing::Message() << "seed " << seed << ", " << n_sequences << " x " << n_each);
        RandomTexts(seed, n_sequences, n_each).Run(60);
        if (HasFailure()) return;
      }
    }
  }
}

// One alone has what all others leave. When they come, it gives up what is theirs, and takes it again when
// they are forgotten.
TEST(CopyPlaces, SequencesShareFairly) {
  CopyPlaces places(4, 12);
  const auto read = [&](uint32_t sequence) {
    for (uint32_t end = 256; end <= 20 * 256; end += 256) EXPECT_TRUE(places.Keep(sequence, end));
  };
  read(0);
  EXPECT_EQ(places.of(0).size(), 12U);
  read(1);
  EXPECT_EQ(places.of(0).size(), 6U);
  EXPECT_EQ(places.of(1).size(), 6U);
  read(2);
  read(3);
  for (uint32_t s = 0; s < 4; ++s) {
    EXPECT_EQ(places.of(s).size(), 3U) << s;
    EXPECT_EQ(places.of(s).back().position, 20 * 256U) << "its end is what it needs most";
  }
  for (uint32_t s = 1; s < 4; ++s) places.Cut(s, 0);
  places.Cut(0, 0);
  read(0);
  EXPECT_EQ(places.of(0).size(), 12U);
}

TEST(CopyPlaces, WithdrawnSlotsAreNotUsed) {
  CopyPlaces places(2, 6);
  for (const uint32_t position : {256U, 512U, 768U}) places.Keep(0, position);
  const uint32_t used = places.of(0)[1].slot;
  places.Withdraw(used);
  EXPECT_EQ(PositionsOf(places, 0), (std::vector<uint32_t>{256, 768}));
  std::set<uint32_t> left = {0, 1, 2, 3, 4, 5};
  left.erase(used);
  for (const uint32_t slot : {3U, 4U}) {
    places.Withdraw(slot);
    left.erase(slot);
  }
  for (uint32_t end = 1024; end < 1024 * 8; end += 256) places.Keep(0, end);
  std::set<uint32_t> slots;
  for (const CopyPlaces::Place& place : places.of(0)) slots.insert(place.slot);
  EXPECT_EQ(slots, left);
}

}  // namespace
}  // namespace kvrun::testing
