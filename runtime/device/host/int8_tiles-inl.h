// Products of 8-bit numbers by the matrix instructions of x86 (AMX), sixteen tokens by sixteen rows at a
// time: a panel's quants of one block lie as such an instruction wants them (runtime/device/host/matrix.h).
// To be included once per target, after int8_dot-inl.h.

#if defined(KVRUN_INT8_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVRUN_INT8_TILES_INL_H_
#undef KVRUN_INT8_TILES_INL_H_
#else
#define KVRUN_INT8_TILES_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "runtime/device/host/int8_dot-inl.h"

#undef KVRUN_HAS_TILES
#if HWY_TARGET == HWY_AVX3_DL && defined(__linux__) && defined(__x86_64__)
#define KVRUN_HAS_TILES 1
#include <sys/syscall.h>
#include <unistd.h>
#else
#define KVRUN_HAS_TILES 0
#endif

#if KVRUN_HAS_TILES

KVRUN_BEFORE_NAMESPACE();
namespace kvrun::host::HWY_NAMESPACE {

// By assembler, as with AvxVnniDot. Tiles: 0 and 1 sums of 32 bits [16 tokens, 16 rows]; 2 activations [16,
// 32], 3 weights [8 groups, 16 rows, 4].
struct Tiles {
  static constexpr size_t kTokens = 16;

  // Whether the processor has them and the system lets this process use them, which it asks once.
  static bool AreThere() {
    static const bool there = [] {
      constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
      constexpr long kTileData = 18;
      uint32_t a = 7;
      uint32_t b = 0;
      uint32_t c = 0;
      uint32_t d = 0;
      asm volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
      const bool has = (d >> 24 & 3U) == 3;  // tiles, and their products of 8 bits
      return has && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
    }();
    return there;
  }

  // Before and after any of what follows, on each thread.
  static void Begin() {
    struct alignas(64) Config {
      uint8_t palette = 1;
      uint8_t start_row = 0;
      uint8_t reserved[14] = {};
      uint16_t row_bytes[16] = {64, 64, 32, 64};
      uint8_t n_rows[16] = {16, 16, 16, 8};
    };
    static_assert(sizeof(Config) == 64);
    static constexpr Config kConfig;
    asm volatile("ldtilecfg %0" : : "m"(kConfig));
  }
  static void End() { asm volatile("tilerelease"); }

  // Tile kTile = activations, 16 rows of 32 signed bytes that are stride_bytes apart, times weights [8
  // groups, 16 rows, 4 columns], bytes that are unsigned, or signed where kSigned.
  template <int kTile, bool kSigned>
  static HWY_INLINE void Multiply(const int8_t* activations, size_t stride_bytes, const uint8_t* weights) {
    asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
    asm volatile("tileloadd (%0,%1,1), %%tmm2" : : "r"(activations), "r"(stride_bytes) : "memory");
    asm volatile("tileloadd (%0,%1,1), %%tmm3" : : "r"(weights), "r"(kRowBytes) : "memory");
    if constexpr (kSigned)
      asm volatile("tdpbssd %%tmm3, %%tmm2, %%tmm%c0" : : "i"(kTile));
    else
      asm volatile("tdpbsud %%tmm3, %%tmm2, %%tmm%c0" : : "i"(kTile));
  }
  // [16, 16]
  template <int kTile>
  static HWY_INLINE void Store(int32_t* sums) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(sums), "r"(kRowBytes), "i"(kTile) : "memory");
  }

 private:
  static constexpr size_t kRowBytes = 64;
};

}  // namespace kvrun::host::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // KVRUN_HAS_TILES

#endif  // KVRUN_INT8_TILES_INL_H_
