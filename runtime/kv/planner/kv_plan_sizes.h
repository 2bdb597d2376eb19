// What each part of a KvPlan takes, in bytes. Internal to the planner. All sizes are those of all layers and
// sequences together.
#pragma once

#include <algorithm>
#include <cstdint>

#include "runtime/kv/plan/kv_plan.h"
#include "runtime/kv/plan/kv_plan_input.h"

namespace kvrun {

// Beside the plan itself, what sizes depend on.
struct KvSizeInput {
  KvModelShape model;
  uint32_t io_alignment_bytes = 1;
  bool computes_adapter = false;
  uint64_t max_buffer_bytes = UINT64_MAX;  // KvOptions::max_buffer_bytes
  bool is_sealed = false;                  // files are encrypted
  uint32_t spare_cores = 0;                // KvOptions::spare_cores
  uint32_t overlaid_tokens = 0;            // KvOptions::overlaid_tokens
};

// Of a record on flash.
inline constexpr uint64_t kChecksumBytes = 4;

// Rows of a chunk of prefill, and the grain of prefill tiles.
inline constexpr uint32_t kPrefillChunkTokens = 256;
// A prompt's groups are encoded in turns, in one buffer each: some are stored while others are encoded.
inline constexpr uint32_t kRecordTurns = 2;
// Groups of a turn, of all KV heads.
uint32_t RecordsAtOnce(const KvPlan& plan);

// Keys are projected in turns, too: at least so many rows in each.
inline constexpr uint32_t kLeastProjectedRows = 128;
inline constexpr uint32_t kProjectTurns = 2;
uint32_t ProjectedRows(const KvPlan& plan);

// The ring that holds the newest entries: from the group of the oldest of `window_entries` on to the group
// that is being filled, wherever they begin in their groups, and one more, which may still be on its way to
// flash.
uint32_t WindowSlots(uint32_t window_entries, uint32_t group_tokens, uint32_t n_groups);

// Of EntrySpaces; 0 where records hold entries as they are.
uint64_t MeanBytes(const KvSizeInput& input, const KvPlan& plan);

// Parts that families on flash are made of, in the order in which they are told. A part of no bytes is none.
void AddPart(const char* name, uint64_t bytes, KvPlan& plan, bool in_prefill = true);
// Slots, pool, their tables, window and means.
void AddSlotParts(const KvSizeInput& input, KvPlan& plan);
// What a prompt that fails gives back: so many records of a stream of its sequence.
void AddTails(const KvSizeInput& input, uint32_t n_records, KvPlan& plan);
// The windows' mapping tables, a layer's list of reads, and a list of the family's own.
void AddTables(const KvSizeInput& input, uint64_t list_bytes, KvPlan& plan);
// Sets staging_bytes: for reads of so many bytes. The part has so many more.
void AddStaging(const KvSizeInput& input, uint64_t read_bytes, uint64_t n_reads, KvPlan& plan,
                uint64_t more_bytes = 0);
// What the encryption of a file takes, if files are encrypted, and what is known of one that is written over:
// of so many pieces of one size that are written whole (where the file has room for more than can be there,
// n_of_file), or of pages of which any may be. Sets n_seal_helpers: of such pieces.
void AddSeals(const KvSizeInput& input, uint64_t n_pieces, uint64_t piece_bytes, KvPlan& plan,
              uint64_t n_of_file = 0);
void AddPageSeals(const KvSizeInput& input, uint64_t file_bytes, KvPlan& plan);
// Of an index, the scales of its columns.
uint64_t ScaleBytes(const KvSizeInput& input, const KvPlan& plan);
// Each layer's list of what was chosen.
uint64_t ChoiceListBytes(const KvPlan& plan);
// One layer's scores of so many rows of an index, which all layers share.
uint64_t RowScoreBytes(const KvSizeInput& input, const KvPlan& plan, uint64_t n_rows);

// Sets the only part of full KV in records: its slots and window.
void SizeResident(const KvSizeInput& input, KvPlan& plan);

// Adds the part "prefill": the largest first tile that fits, hidden states in memory where they fit beside a
// tile of the whole context. Where nothing fits, the smallest there is: prefill_bytes() exceeds the budget.
void SizePrefill(const KvSizeInput& input, KvPlan& plan);

}  // namespace kvrun
