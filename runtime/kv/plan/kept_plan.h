// What a plan has of methods that evict.
#pragma once

#include <cstdint>

#include "runtime/device/device.h"
#include "runtime/kv/plan/family_answers.h"
#include "runtime/kv/plan/kept_choices.h"

namespace kvrun {

// What stays of one stream of one layer, beside the window.
struct KeptPlan : FamilyAnswers {
  uint32_t n_entries = 0;     // as KvPlan::record: on average
  uint32_t most_entries = 0;  // of any list, however they are shared out and of whatever types
  KvRecordShape low_record;   // of entries with 8 bits, where the method has such
  KeptShares shares = KeptShares::kEven;
  KeptPrecisions precisions = KeptPrecisions::kBytes;
  AttentionMoments moments = AttentionMoments::kKeys;
  // Of a prompt, at most: those whose attention says what stays. The last ones, or some of all of them.
  uint32_t observed_rows = 0;
  bool samples_rows = false;

  uint32_t most_observed() const { return observed_rows; }
  bool observes_samples() const { return samples_rows; }
  bool needs_queries() const { return observed_rows > 0; }
  KvRecordShape lowered_record() const { return low_record; }
  void AddForm(FamilyForm* form) const;
};

}  // namespace kvrun
