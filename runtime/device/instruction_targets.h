// The instruction sets that kernels of the CPU are not compiled for; before any header of Highway.
//
// SSSE3 alone had Intel's processors of 2006 and 2007: they take the portable code. Vectors of a length that
// is not known when compiling (SVE, RVV) cannot lie in arrays, as kernels here have them; processors with SVE
// have NEON too.
#pragma once

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
