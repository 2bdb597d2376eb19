// How many entries of a sequence can be chosen: whole groups before the newest window_tokens entries, of those that
// end with `position`.
uint ChoosableEntries(uint position, uint window_tokens, uint group_tokens, uint n_groups) {
  const uint entries = position + 1;
  const uint before = entries > window_tokens ? entries - window_tokens : 0;
  return min(before / group_tokens, n_groups) * group_tokens;
}
