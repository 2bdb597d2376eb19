// The space in which records may hold entries (runtime/device/entry_space.h). Shared by GLSL and C++.
#ifndef KVRUN_SHADERS_SHARED_ENTRY_SPACE_H_
#define KVRUN_SHADERS_SHARED_ENTRY_SPACE_H_

// The most elements of a row.
#define KVRUN_MOST_ELEMENTS 256
// Drawn at random, once and for all, as what is stored depends on them: bit i % 32 of word i / 32 says that
// element i of a row changes its sign.
#define KVRUN_SIGN_WORDS \
  0xe7d80068u, 0xb9096a04u, 0xafae5a3bu, 0xc963cfe0u, 0xc439f34au, 0xe1454c40u, 0xe794ee14u, 0x26b563b1u

#endif  // KVRUN_SHADERS_SHARED_ENTRY_SPACE_H_
