// Groups' scores (read_only.glsl: scores) as words in the same order.

uint SortableBits(float value) {
  const uint bits = floatBitsToUint(value);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

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
