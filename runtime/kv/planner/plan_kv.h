// From what a user says and a model's shape to a plan: pure functions over plain data. The budget covers
// everything that grows with the context or exists because of offloading: index and its scales, slots, recent
// window, tables, checksums, score buffers, staging, prefill tiles.
//
// kvswap. What is open is taken from the first row of this table that suits the budget, as a share of the f16
// KV; by measurement (simulated on SmolLM2-135M, 8192 tokens) at 1/13 and 1/34, between and beyond by
// interpolation. Sigma: n_kv_heads * head_dim / rank; ranks are rounded up to a multiple of 4.
//
//   share >=  K     V     sigma  index  window
//   3/4       f16   f16     4    int8     64     fp8 alone costs KL 0.0008, int8 0.0001
//   1/4       int8  int8    4    int8     64
//   1/8       fp8   fp8     4    int4     64
//   1/16      int8  int4    8    int4     64     1/13: KL 0.011
//   1/26      int8  int4   12    int4     48
//   1/48      int4  int4   16    int4     32     1/34: KL 0.095
//   0         int4  int4   32    int4     16
//
// Groups of default_group_tokens, 4 sinks pinned, query-centred adapter (query where sinks are 0: centring
// loses them), softmaxes summed, lru; as many entries selected as fit, and C = M. Bytes must have room for
// 256 entries; a share for 512, of more than 2,048 tokens for 512 * sqrt(2048 / tokens), but for 320 at
// least; both for no more than a third of a short context. Where a row would leave fewer, the next is tried,
// and where all would, bytes are refused, and a share is raised until there are as many
// (docs/measurements/quality.md, "Small contexts"). No more are selected than take an eighth of the
// multiplications that a layer's weights take, or 1,280; slots take the rest of the budget then (C > M), and
// less is read. They also take what decoding has where prefill is what limits M. Where select_entries or
// reuse_groups is given, or there is no budget, the first row of all that fits is taken. Without a budget 400
// entries are selected, as in the paper; with one, and reuse_groups alone, M = C, which DescribePlan says
// (where C has room for pinned groups alone, one more).
//
// C < M: what finds no slot of its layer's own is read into a pool that layers share. Where select_entries is
// given and reuse_groups is not, C = M where a row leaves room for that; of rows whose share the budget
// reaches, the first is taken that has room for the pool, and C is as large as fits beside it (0 at least).
//
// Where neither is given, and it is known how fast flash is read and a layer computed (or `hide` is 0), more
// is selected than has slots: as much as is read while a layer computes (ReadingPlan), never less than with
// C = M. C is then as large as fits. Where even what has slots takes longer to read, reads are limited to
// what does not (KvSlotPlan::reads_per_layer), but to no less than 4 % of M.
//
// Samples (sample_entries) lie in the pool. With them there is no static set unless it is asked for.
//
// The window's records are f16 (f32 where K or V is): of what is recent, all but the last exact_entries() are
// rounded to the types above, so that results do not depend on the group, nor on windows from kExactEntries
// on.
//
// flexgen. Everything lies on flash and is read again for each layer of each step: n_chosen = n_groups, no
// index, no pinned groups, no own slots, and a pool of one part. Groups of 16; types from the same rows.
//
// Where no method is said: without a budget full; with one, full where the budget holds all KV of the
// context, else kvswap. A note says that full was taken, and which options have no use then.
//
// A budget in bytes is never exceeded: one that is too small is refused. A share that is too small for kvswap
// or flexgen is raised to the least with which the method works (or full, where no method is said and full
// needs no more), and a note says so.
//
// full. Nothing lies on flash, and the parts are {"kv"}. In types other than f16 and f32 there are slots for
// all groups and a window, as on flash; its length is an option for these types alone.
#pragma once

#include <cstdint>

#include "platform/base/status.h"
#include "runtime/kv/plan/kv_plan.h"
#include "runtime/kv/plan/kv_plan_input.h"

namespace kvrun {

// True where PlanKv takes the method full whatever the flash is like. False too where it refuses.
bool IsSurelyResident(const KvOptions& options, const KvModelShape& model, uint32_t n_ctx,
                      uint32_t n_sequences);

// `io_alignment_bytes`: a power of two; 1 in buffered mode. A budget that cannot hold is kOutOfMemory, with
// what is needed by part, the smallest budget that could, and how many entries would fit. Options that
// contradict each other or the method are kInvalidArgument.
Result<KvPlan> PlanKv(const KvOptions& options, const KvModelShape& model, uint32_t n_ctx,
                      uint32_t n_sequences, uint32_t io_alignment_bytes);

}  // namespace kvrun
