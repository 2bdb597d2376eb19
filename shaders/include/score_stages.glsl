// What is scored in which stage (ScoreStages), of push constants `p`. All groups are scored by few rows first: the
// best of them are the candidates, which are then counted through in the place of all groups.
// A list of candidates: how many, and they, ascending. Words of it are read by CANDIDATE_WORD(i).

// How many are scored, where so many groups can be chosen.
uint ScoredGroups(uint stage, uint list, uint n_groups) {
  if (stage != KVRUN_SCORE_CANDIDATES) return n_groups;
  return CANDIDATE_WORD(list);
}

// The group of a sequence that is counted as `group`.
uint GroupAt(uint stage, uint list, uint group) {
  if (stage != KVRUN_SCORE_CANDIDATES) return group;
  return CANDIDATE_WORD(list + 1 + group);
}
