// What kernels of attention over slots share, whatever their sources: rows, splits and scores that do not count. `p`
// has n_heads, n_kv_heads, n_splits, keeps_parts and score_cap.
#include "include/score_cap.glsl"

const float kMasked = -1e30;

bool KeepsParts() { return p.keeps_parts != 0; }

// The part [begin, end) of n_entries that a split covers, in whole blocks.
uvec2 SplitRange(uint n_entries, uint split, uint block) {
  const uint blocks = (n_entries + block - 1) / block;
  const uint per_split = (blocks + p.n_splits - 1) / p.n_splits;
  return uvec2(min(split * per_split * block, n_entries), min((split + 1) * per_split * block, n_entries));
}

// The query head of row `row_begin + r` of a KV head; rows past the end are the last one again.
uint HeadOf(uint kv_head, uint row) {
  const uint group = p.n_heads / p.n_kv_heads;
  return kv_head * group + min(row, group - 1);
}
