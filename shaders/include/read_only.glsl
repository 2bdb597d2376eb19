// A buffer that a kernel only reads. READ_ONLY(binding, name) declares name_uvec4(i), name_uvec2(i) and name_uint(i):
// its i-th vector of four words, of two, its i-th word; and name_vec4, name_vec2, name_float, the same as floats.
//
// With PATH_TEXEL they are texel buffers, read through what a device has for textures. A kernel then declares all
// that it only reads so, and nothing else (runtime/device/vulkan/command_list.cc binds them by that rule).
#if defined(PATH_TEXEL)
#define READ_ONLY(BINDING, name)                                                                            \
  layout(set = 0, binding = BINDING) uniform usamplerBuffer name##_texels;                                  \
  uvec4 name##_uvec4(uint i) { return texelFetch(name##_texels, int(i)); }                                  \
  uvec2 name##_uvec2(uint i) {                                                                              \
    const uvec4 texel = name##_uvec4(i / 2);                                                                \
    return i % 2 == 0 ? texel.xy : texel.zw;                                                                \
  }                                                                                                         \
  uint name##_uint(uint i) {                                                                                \
    const uvec2 pair = name##_uvec2(i / 2);                                                                 \
    return i % 2 == 0 ? pair.x : pair.y;                                                                    \
  }                                                                                                         \
  READ_ONLY_FLOATS(name)
#else
#define READ_ONLY(BINDING, name)                                                                            \
  layout(set = 0, binding = BINDING, std430) readonly buffer name##Vectors { uvec4 at[]; } name##_vectors;  \
  layout(set = 0, binding = BINDING, std430) readonly buffer name##Pairs { uvec2 at[]; } name##_pairs;      \
  layout(set = 0, binding = BINDING, std430) readonly buffer name##Words { uint at[]; } name##_words;       \
  uvec4 name##_uvec4(uint i) { return name##_vectors.at[i]; }                                               \
  uvec2 name##_uvec2(uint i) { return name##_pairs.at[i]; }                                                 \
  uint name##_uint(uint i) { return name##_words.at[i]; }                                                   \
  READ_ONLY_FLOATS(name)
#endif
#define READ_ONLY_FLOATS(name)                                                                              \
  vec4 name##_vec4(uint i) { return uintBitsToFloat(name##_uvec4(i)); }                                     \
  vec2 name##_vec2(uint i) { return uintBitsToFloat(name##_uvec2(i)); }                                     \
  float name##_float(uint i) { return uintBitsToFloat(name##_uint(i)); }
