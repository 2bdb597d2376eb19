// Where the bits of quantised blocks lie in a GGUF file, for those who decode blocks and those who rearrange
// them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace kvrun {

// What the 16 codes of IQ4_NL and IQ4_XS stand for.
inline constexpr std::array<int8_t, 16> kIq4Values = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                      1,    13,   25,  38,  53,  69,  89,  113};

// Byte offsets within blocks.
inline constexpr size_t kQ2Quants = 16;   // Q2_K: 16 bytes of scales, then these 64 bytes
inline constexpr size_t kQ2Halves = 80;   // scale, minimum
inline constexpr size_t kQ3Quants = 32;   // Q3_K: 32 bytes of third bits, then these 64 bytes
inline constexpr size_t kQ3Scales = 96;   // 12 bytes
inline constexpr size_t kQ3Halves = 108;  // scale
inline constexpr size_t kIq4Codes = 8;    // IQ4_XS: 8 bytes of scales, then these 128 bytes

// Element i of 256 that have two bits each in 64 bytes: each half of 128 elements is four quarters of 32, and
// quarter p is the bit pair p of 32 bytes.
inline uint32_t BitPair(const std::byte* quants, uint32_t i) {
  return std::to_integer<uint32_t>(quants[i / 128 * 32 + i % 32]) >> (i / 32 % 4 * 2) & 3U;
}

// Q3_K: element i as it is in the file, 0 to 7, which stands for -4 to 3.
inline uint32_t Q3Quant(const std::byte* block, uint32_t i) {
  const uint32_t third_bit = std::to_integer<uint32_t>(block[i % 32]) >> (i / 32) & 1U;
  return BitPair(block + kQ3Quants, i) | third_bit << 2;
}

// Q3_K: the scale of elements 16 s to 16 s + 15, 0 to 63, which stands for -32 to 31. Eight bytes hold the
// low nibbles of scales 0 to 7, then of 8 to 15; bit pair s / 4 of four more bytes the upper two bits.
inline uint32_t Q3Scale(const std::byte* block, uint32_t s) {
  const std::byte* packed = block + kQ3Scales;
  const uint32_t low = std::to_integer<uint32_t>(packed[s % 8]) >> (s / 8 * 4) & 15U;
  return low | (std::to_integer<uint32_t>(packed[8 + s % 4]) >> (s / 4 * 2) & 3U) << 4;
}

// IQ4_XS: the scale of elements 32 s to 32 s + 31, 0 to 63, which stands for -32 to 31. After the half are 16
// bits, two for each scale (the upper ones), then 32 bits, four for each.
inline uint32_t Iq4Scale(const std::byte* block, uint32_t s) {
  const uint32_t low = std::to_integer<uint32_t>(block[4 + s / 2]) >> (s % 2 * 4) & 15U;
  return low | (std::to_integer<uint32_t>(block[2 + s / 4]) >> (s % 4 * 2) & 3U) << 4;
}

}  // namespace kvrun
