// Signs and blocks of the space of records (runtime/device/entry_space.h).
#include "shared/entry_space.h"

const uint kSignWords[KVRUN_MOST_ELEMENTS / 32] = uint[](KVRUN_SIGN_WORDS);

float SignOf(uint i) { return (kSignWords[i / 32] >> (i % 32) & 1u) != 0 ? -1.0 : 1.0; }

// The largest power of two that divides it.
uint HadamardBlock(uint head_dim) { return head_dim & (~head_dim + 1u); }
