// What a plan has of the static set.
#pragma once

#include <cstdint>

#include "runtime/device/device.h"
#include "runtime/kv/plan/kept_choices.h"

namespace kvrun {

// How much of what a step attends to, before its window, is the static set: a share from 0 to 1; or the first
// prompt says it (PRKV's Eq. 4 and 5).
struct StaticShare {
  double share = 0.0;
  bool by_prompt = false;

  bool operator==(const StaticShare&) const = default;
};

// The static set: entries of each stream of a layer that lie in memory one by one all the time, and are left
// out of the groups that they are in. They are those that the last rows of a prompt attend to most.
// Source: PRKV, section 4.1; docs/methods/static-set.md says what is different.
struct StaticPlan {
  uint32_t n_entries = 0;  // of a stream; 0: there is none
  // Of what is attended to before the window: this share is the static set's, groups are the rest.
  StaticShare share;
  uint32_t n_total = 0;  // both together, in groups, pinned ones among them
  // While decoding, the set is chosen anew after so many entries: the last ones are computed again, as a
  // prompt. 0: prompts alone choose it.
  uint32_t steps = 0;
  uint32_t observed_rows = 0;  // of a prompt, at most: the last ones
  // Whenever it is chosen, the other entries are written to flash again, in pages of their own (StaticPages).
  bool lays_pages = false;
  bool has_rows_back = false;  // the index has rows of what is in the set, for when that goes
  // Where precision goes by score: what of the set keeps its precision, as of what ARKV keeps; the others
  // have 8 bits, or 4 where 8 are stored. n_entries is how many there would be in KvPlan::record's types.
  KeptPrecisions precisions = KeptPrecisions::kBytes;
  AttentionMoments moments = AttentionMoments::kKeys;
  KvRecordShape low_record;   // of one entry
  uint32_t most_entries = 0;  // of a stream, however its precisions are shared out
};

}  // namespace kvrun
