// What is scored in which stage (ScoreArgs::block_groups), of push constants `p`. Blocks of consecutive groups are chosen
// first, as if they were groups: those are the candidates, whose groups are then counted through, one block after another.
// A list of candidates: how many, and they, ascending. Words of it are read by CANDIDATE_WORD(i).

// How many are scored, where so many groups can be chosen.
uint ScoredGroups(uint stage, uint list, uint n_groups) {
  if (stage == KVRUN_SCORE_BLOCKS) return (n_groups + p.block_groups - 1) / p.block_groups;
  if (stage != KVRUN_SCORE_CANDIDATES) return n_groups;
  const uint n = CANDIDATE_WORD(list);
  if (n == 0) return 0;
  return (n - 1) * p.block_groups + min(p.block_groups, n_groups - CANDIDATE_WORD(list + n) * p.block_groups);
}

// The group of a sequence that is counted as `group`.
uint GroupAt(uint stage, uint list, uint group) {
  if (stage != KVRUN_SCORE_CANDIDATES) return group;
  return CANDIDATE_WORD(list + 1 + group / p.block_groups) * p.block_groups + group % p.block_groups;
}
