// Chooses groups by score: the pinned ones, and of the others the n_chosen with the largest scores, the lower group
// where scores are equal. One workgroup per list.
//
// The smallest chosen score is found by histograms of the range that it must be in, each 256 times finer than the one
// before, until a bin's edge divides the groups, or one score is left. Then each invocation counts, and writes, the
// chosen ones of a range of consecutive groups.
//
// With MASS the choice may end before n_chosen: with the group at which the scores of the pinned and the chosen ones
// reach a share of all scores' sum, which are none below 0. Histograms then sum scores beside counting them: as whole
// numbers, so that sums do not depend on the order. The smallest chosen score is the largest for which those that reach
// it are enough, in number or in mass.
#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_GOOGLE_include_directive : require
#include "shared/index_params.h"
#include "shared/step_params.h"

#define LOCAL_SIZE 128
#define BINS 256
#define COARSE 16
#define KEPT 4
layout(local_size_x = LOCAL_SIZE) in;
#include "include/read_only.glsl"
layout(push_constant) uniform Params { SelectGroupsParams p; };
READ_ONLY(0, scores)
layout(set = 0, binding = 1, std430) writeonly buffer Chosen { uint chosen[]; };
layout(set = 0, binding = 2, std140) uniform Step { StepParams stepp; };
#include "include/choosable.glsl"
#define CANDIDATE_WORD(i) scores_uint(i)
#include "include/score_stages.glsl"

uint SortableBits(float value) {
  const uint bits = floatBitsToUint(value);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// Back from SortableBits.
uint ScoreBits(uint key) { return (key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key; }

// Of groups 4 * vector ..; from 1 to 0xfffffffe; 0, which none has, for those before `first`, which are pinned, and from
// `end` on, which cannot be chosen.
uvec4 Keys(uint scores_begin, uint vector, uint first, uint end) {
  const vec4 values = scores_vec4(scores_begin + vector);
  const uvec4 keys =
      uvec4(SortableBits(values.x), SortableBits(values.y), SortableBits(values.z), SortableBits(values.w));
  const uvec4 groups = 4 * vector + uvec4(0, 1, 2, 3);
  const bvec4 is_candidate = bvec4(uvec4(greaterThanEqual(groups, uvec4(first))) & uvec4(lessThan(groups, uvec4(end))));
  return mix(uvec4(0), clamp(keys, 1u, 0xfffffffeu), is_candidate);
}

shared uint histogram[BINS];
shared uint coarse[COARSE];
shared uint range_begin;   // the smallest chosen score lies in the range,
shared uint range_end;     // its end included,
shared uint n_wanted;      // and of the scores in it so many are chosen,
shared uint is_divided;    // or all of them, if this is not 0
shared uvec2 counts[LOCAL_SIZE];  // of groups that are surely chosen, and of those whose score is the smallest chosen
shared uvec2 sums[COARSE];
#ifdef MASS
shared uint mass_histogram[BINS];
shared uint coarse_masses[COARSE];
shared uint pinned_mass;
shared uint candidate_mass;
shared uint mass_wanted;  // as n_wanted
#endif

// What an invocation's steps over its groups share.
uint smallest = 0xffffffffu;
uint largest = 0;
uint sure_from;   // keys from here on are chosen,
bool has_sure;    // if there are any,
uint tie;         // and the first of this key
uint ties_wanted;
uvec2 count = uvec2(0);
uint ties;        // of earlier groups
uint at;          // of `chosen`
uint candidates;  // where they are listed
#ifdef MASS
uint own_mass = 0;

uint MassOf(float score) { return uint(score * p.mass_scale + 0.5); }
uint MassOfKey(uint key) { return key == 0 ? 0 : MassOf(uintBitsToFloat(key & 0x7fffffffu)); }
#endif

void FindRange(uvec4 keys) {
  const uvec4 least = keys - 1;  // those that are none become the largest
  largest = max(largest, max(max(keys.x, keys.y), max(keys.z, keys.w)));
  smallest = min(smallest, min(min(least.x, least.y), min(least.z, least.w)));
#ifdef MASS
  [[unroll]] for (uint i = 0; i < 4; ++i) own_mass += MassOfKey(keys[i]);
#endif
}

void CountBins(uvec4 keys, uint low, uint span, uint shift) {
  const uvec4 offsets = keys - low;
  [[unroll]] for (uint i = 0; i < 4; ++i) {
    if (offsets[i] <= span) {
      atomicAdd(histogram[offsets[i] >> shift], 1);
#ifdef MASS
      atomicAdd(mass_histogram[offsets[i] >> shift], MassOfKey(keys[i]));
#endif
    }
  }
}

void CountChosen(uvec4 keys) {
  [[unroll]] for (uint i = 0; i < 4; ++i) {
    if (has_sure && keys[i] >= sure_from) ++count.x;
    else if (keys[i] == tie) ++count.y;
  }
}

void WriteChosen(uint vector, uvec4 keys) {
  [[unroll]] for (uint i = 0; i < 4; ++i) {
    const bool is_sure = has_sure && keys[i] >= sure_from;
    const bool is_tie = !is_sure && keys[i] == tie;
    if (is_sure || (is_tie && ties < ties_wanted)) {
      if (p.tell_at != 0) chosen[at + p.tell_at] = ScoreBits(keys[i]);
      chosen[at++] = GroupAt(p.stage, candidates, 4 * vector + i);
    }
    if (is_tie) ++ties;
  }
}

// How far bins are shifted: the range is at most BINS of them.
uint BinShift() { return uint(max(findMSB(range_end - range_begin) - 7, 0)); }

// The bin of the range that the smallest chosen score is in.
#ifdef MASS
uint FindBin() {
  uint left = n_wanted;
  uint mass_left = mass_wanted;
  uint c = COARSE - 1;
  for (; c > 0 && coarse[c] < left && (coarse[c] == 0 || coarse_masses[c] < mass_left); --c) {
    left -= coarse[c];
    mass_left -= coarse_masses[c];
  }
  uint bin = c * (BINS / COARSE) + BINS / COARSE - 1;
  for (; bin > c * (BINS / COARSE) && histogram[bin] < left &&
         (histogram[bin] == 0 || mass_histogram[bin] < mass_left); --bin) {
    left -= histogram[bin];
    mass_left -= mass_histogram[bin];
  }
  // All of the bin is chosen: one group, or as many as there may be, whose mass is still too small.
  is_divided = histogram[bin] == 1 || (histogram[bin] == left && mass_histogram[bin] < mass_left) ? 1 : 0;
  n_wanted = left;
  mass_wanted = mass_left;
  return bin;
}
#else
uint FindBin() {
  uint left = n_wanted;
  uint c = COARSE - 1;
  while (c > 0 && coarse[c] < left) left -= coarse[c--];
  uint bin = c * (BINS / COARSE) + BINS / COARSE - 1;
  while (bin > c * (BINS / COARSE) && histogram[bin] < left) left -= histogram[bin--];
  is_divided = histogram[bin] == left ? 1 : 0;
  n_wanted = left;
  return bin;
}
#endif

// That bin becomes the range.
void Narrow() {
  const uint bin = FindBin();
  const uint shift = BinShift();
  range_begin += bin << shift;
  range_end = min(range_end, range_begin + ((1u << shift) - 1));
}

void main() {
  const uint lane = gl_LocalInvocationIndex;
  const uint token = gl_WorkGroupID.x / p.n_lists;
  candidates = p.candidates_begin + token * p.candidate_words;
  const uint n_old =
      ChoosableEntries(stepp.tokens[token].position, p.window_tokens, p.group_tokens, p.n_groups) / p.group_tokens;
  const uint n_groups = ScoredGroups(p.stage, candidates, n_old);
  const uint most_chosen = p.stage == KVRUN_SCORE_FIRST ? 0 : stepp.most_chosen;
  const uint n_chosen = min(MostChosen(most_chosen, p.n_chosen), n_groups);
  const uint n_pinned = min(p.n_pinned, n_chosen);
  const uint out_begin = p.chosen_begin + gl_WorkGroupID.x * p.list_words;
  const uint scores_begin = (p.scores_begin + gl_WorkGroupID.x * p.scores_stride) / 4;
  // An invocation's groups: consecutive, in vectors.
  const uint n_vectors = (n_groups + 3) / 4;
  const uint per_lane = (n_vectors + LOCAL_SIZE - 1) / LOCAL_SIZE;
  const uint begin = min(lane * per_lane, n_vectors);
  const uint end = min(begin + per_lane, n_vectors);
#ifdef MASS
  const bool choose = n_pinned < n_chosen;
#else
  const bool choose = n_pinned < n_chosen && n_chosen < n_groups;
#endif

  if (lane == 0) {
    range_begin = 0xffffffffu;
    range_end = choose ? 0 : 0xffffffffu;
    if (!choose && n_chosen > n_pinned) range_begin = 1;  // all
    n_wanted = n_chosen - n_pinned;
    is_divided = choose ? 0 : 1;
#ifdef MASS
    pinned_mass = 0;
    candidate_mass = 0;
#else
    chosen[out_begin] = n_chosen;
#endif
  }
  barrier();
  // The first of an invocation's vectors are kept, as reading them is most of the work on a CPU.
  uvec4 kept[KEPT];
  [[unroll]] for (uint c = 0; c < KEPT; ++c) {
    kept[c] = uvec4(0);
    if (begin + c < end) kept[c] = Keys(scores_begin, begin + c, n_pinned, n_groups);
  }
#define REST(v) uint v = begin + KEPT; v < end; ++v
#define KEYS(v) Keys(scores_begin, v, n_pinned, n_groups)

  [[unroll]] for (uint c = 0; c < KEPT; ++c) FindRange(kept[c]);
  for (REST(v)) FindRange(KEYS(v));
  if (choose && largest != 0) {
    atomicMin(range_begin, smallest + 1);
    atomicMax(range_end, largest);
  }
#ifdef MASS
  atomicAdd(candidate_mass, own_mass);
  own_mass = 0;
  for (uint group = lane; group < n_pinned; group += LOCAL_SIZE) {
    own_mass += MassOf(scores_float(4 * scores_begin + group));
  }
  atomicAdd(pinned_mass, own_mass);
#endif
  barrier();
#ifdef MASS
  if (lane == 0) {
    const uint enough = uint(ceil(p.mass_share * float(pinned_mass + candidate_mass)));
    mass_wanted = enough - min(enough, pinned_mass);
  }
#endif

  // All invocations agree when to stop: `is_divided` was written before the last barrier.
  for (uint pass = 0; pass < 4 && is_divided == 0; ++pass) {
    for (uint bin = lane; bin < BINS; bin += LOCAL_SIZE) {
      histogram[bin] = 0;
#ifdef MASS
      mass_histogram[bin] = 0;
#endif
    }
    barrier();
    const uint low = range_begin;
    const uint span = range_end - low;
    const uint shift = BinShift();
    [[unroll]] for (uint c = 0; c < KEPT; ++c) CountBins(kept[c], low, span, shift);
    for (REST(v)) CountBins(KEYS(v), low, span, shift);
    barrier();
    if (lane < COARSE) {
      uint sum = 0;
      for (uint bin = 0; bin < BINS / COARSE; ++bin) sum += histogram[lane * (BINS / COARSE) + bin];
      coarse[lane] = sum;
#ifdef MASS
      sum = 0;
      for (uint bin = 0; bin < BINS / COARSE; ++bin) sum += mass_histogram[lane * (BINS / COARSE) + bin];
      coarse_masses[lane] = sum;
#endif
    }
    barrier();
    if (lane == 0) Narrow();
    barrier();
  }

  sure_from = is_divided != 0 ? range_begin : range_end + 1;
  has_sure = is_divided != 0 || range_end != 0xffffffffu;
  tie = range_begin;
  ties_wanted = is_divided != 0 ? 0 : n_wanted;
#ifdef MASS
  // Of equal masses as many as are enough, one at least.
  const uint tie_mass = MassOfKey(tie);
  if (ties_wanted != 0 && mass_wanted == 0) {
    ties_wanted = 1;
  } else if (ties_wanted != 0 && tie_mass != 0) {
    ties_wanted = min(ties_wanted, (mass_wanted - 1) / tie_mass + 1);
  }
#endif
  [[unroll]] for (uint c = 0; c < KEPT; ++c) CountChosen(kept[c]);
  for (REST(v)) CountChosen(KEYS(v));
  counts[lane] = count;
  barrier();
  // Sums of all earlier invocations' counts, in two steps.
  if (lane < COARSE) {
    uvec2 sum = uvec2(0);
    for (uint i = lane * (LOCAL_SIZE / COARSE); i < (lane + 1) * (LOCAL_SIZE / COARSE); ++i) {
      const uvec2 own = counts[i];
      counts[i] = sum;
      sum += own;
    }
    sums[lane] = sum;
  }
  barrier();
  if (lane == 0) {
    uvec2 sum = uvec2(0);
    for (uint i = 0; i < COARSE; ++i) {
      const uvec2 own = sums[i];
      sums[i] = sum;
      sum += own;
    }
  }
  barrier();
  const uvec2 earlier = counts[lane] + sums[lane / (LOCAL_SIZE / COARSE)];
  ties = earlier.y;
  at = out_begin + 1 + n_pinned + earlier.x + min(ties, ties_wanted);
#ifdef MASS
  if (lane == LOCAL_SIZE - 1) {
    chosen[out_begin] = n_pinned + earlier.x + count.x + min(earlier.y + count.y, ties_wanted);
  }
#endif
  [[unroll]] for (uint c = 0; c < KEPT; ++c) WriteChosen(begin + c, kept[c]);
  for (REST(v)) WriteChosen(v, KEYS(v));
  for (uint group = lane; group < n_pinned; group += LOCAL_SIZE) {
    chosen[out_begin + 1 + group] = group;
    if (p.tell_at != 0) {
      chosen[out_begin + 1 + group + p.tell_at] = floatBitsToUint(scores_float(4 * scores_begin + group));
    }
  }
}
