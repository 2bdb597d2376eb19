#include "runtime/device/vulkan/packed_matrix.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "platform/base/check.h"
#include "platform/base/units.h"
#include "runtime/model/block_bits.h"

namespace kvrun {
namespace {

constexpr uint32_t kRows = KVRUN_ROW_INTERLEAVE;
constexpr uint32_t kColumns = KVRUN_CHUNK_COLUMNS;
constexpr uint32_t kSuperBlock = 256;

// Words of each plane per row and chunk of 64 columns; super-block planes: per 256 columns.
struct PlaneWords {
  uint32_t quants;
  uint32_t high;
  uint32_t scales;
  uint32_t super_scales;
  uint32_t super_extra;
};

PlaneWords GetPlaneWords(TensorType type) {
  switch (type) {
    case TensorType::kF32: return {64, 0, 0, 0, 0};
    case TensorType::kF16:
    case TensorType::kBF16: return {32, 0, 0, 0, 0};
    case TensorType::kQ8_0: return {16, 0, 1, 0, 0};
    case TensorType::kQ4_0:
    case TensorType::kIQ4_NL: return {8, 0, 1, 0, 0};
    case TensorType::kQ4_1: return {8, 0, 2, 0, 0};
    case TensorType::kQ5_0: return {8, 2, 1, 0, 0};
    case TensorType::kQ5_1: return {8, 2, 2, 0, 0};
    case TensorType::kQ2_K: return {4, 0, 0, 4, 1};
    case TensorType::kQ3_K: return {4, 2, 0, 4, 0};
    case TensorType::kQ4_K: return {8, 0, 0, 4, 0};
    case TensorType::kQ5_K: return {8, 2, 0, 4, 0};
    case TensorType::kQ6_K: return {8, 4, 0, 4, 1};
    case TensorType::kIQ4_XS: return {8, 0, 0, 2, 0};
    case TensorType::kF64: break;  // no type of weights
  }
  return {};
}

uint16_t LoadHalf(const std::byte* bytes) {
  uint16_t half = 0;
  std::memcpy(&half, bytes, sizeof(half));
  return half;
}

uint32_t Byte(const std::byte* bytes, size_t index) { return std::to_integer<uint32_t>(bytes[index]); }

// Writes the words of one row into the planes of a matrix.
class RowWriter {
 public:
  RowWriter(const PackedLayout& layout, uint32_t row_index, std::span<uint32_t> packed)
      : layout_(layout), row_(row_index), packed_(packed), words_(GetPlaneWords(layout.type)) {}

  // Word i of the row's quants; words come in vectors of four.
  void Quant(uint32_t i, uint32_t word) {
    Put(0, words_.quants / 4 * layout_.planes.n_chunks, i / 4, 4, i % 4, word);
  }
  void High(uint32_t chunk, uint32_t i, uint32_t word) {
    Put(layout_.planes.high, layout_.planes.n_chunks, chunk, words_.high, i, word);
  }
  void Scale(uint32_t chunk, uint32_t i, uint32_t word) {
    Put(layout_.planes.scales, layout_.planes.n_chunks, chunk, words_.scales, i, word);
  }
  void SuperScale(uint32_t super_block, uint32_t i, uint32_t word) {
    Put(layout_.planes.scales, layout_.planes.n_chunks / 4, super_block, words_.super_scales, i, word);
  }
  void SuperExtra(uint32_t super_block, uint32_t word) {
    Put(layout_.planes.extra, layout_.planes.n_chunks / 4, super_block, words_.super_extra, 0, word);
  }

  // Quants of 32 columns from column 32 * block on: low nibbles or bit pairs, then whatever bits lie above
  // them.
  void Block32(uint32_t block, const uint8_t* quants) {
    const uint32_t low_bits = words_.quants / 2;
    const uint32_t per_word = 32 / low_bits;
    for (uint32_t w = 0; w < low_bits; ++w) {
      uint32_t word = 0;
      for (uint32_t i = 0; i < per_word; ++i) {
        word |= (quants[per_word * w + i] & ((1U << low_bits) - 1)) << (low_bits * i);
      }
      Quant(low_bits * block + w, word);
    }
    if (words_.high == 2) {
      uint32_t word = 0;
      for (uint32_t i = 0; i < 32; ++i) word |= static_cast<uint32_t>(quants[i] >> low_bits) << i;
      High(block / 2, block % 2, word);
    } else if (words_.high == 4) {
      for (uint32_t w = 0; w < 2; ++w) {
        uint32_t word = 0;
        for (uint32_t i = 0; i < 16; ++i) word |= static_cast<uint32_t>(quants[16 * w + i] >> 4) << (2 * i);
        High(block / 2, 2 * (block % 2) + w, word);
      }
    }
  }

 private:
  void Put(uint32_t plane, uint32_t units_per_row, uint32_t unit, uint32_t unit_words, uint32_t i,
           uint32_t word) {
    const uint64_t index = ((uint64_t{row_} / kRows) * units_per_row + unit) * kRows + row_ % kRows;
    packed_[uint64_t{plane} * 4 + index * unit_words + i] = word;
  }

  const PackedLayout& layout_;
  uint32_t row_;
  std::span<uint32_t> packed_;
  PlaneWords words_;
};

void PackPlain(RowWriter& writer, std::span<const std::byte> row) {
  for (uint32_t i = 0; i < CeilDiv<size_t>(row.size(), 4); ++i) {
    uint32_t word = 0;
    std::memcpy(&word, row.data() + size_t{4} * i, std::min<size_t>(4, row.size() - size_t{4} * i));
    writer.Quant(i, word);
  }
}

void PackQ8(RowWriter& writer, const std::byte* row, uint32_t n_blocks) {
  uint32_t scales = 0;
  for (uint32_t b = 0; b < n_blocks; ++b) {
    const std::byte* block = row + size_t{34} * b;
    for (uint32_t w = 0; w < 8; ++w) {
      uint32_t word = 0;
      std::memcpy(&word, block + 2 + 4 * w, 4);
      writer.Quant(8 * b + w, word);
    }
    scales = b % 2 == 0 ? LoadHalf(block) : scales | uint32_t{LoadHalf(block)} << 16;
    writer.Scale(b / 2, 0, scales);
  }
}

// Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL: [d] or [d, m], then 4 bytes of high bits for the 5-bit ones, then 16 bytes
// of nibbles: columns 0..15 in the low ones, 16..31 in the high ones.
void PackLegacy(RowWriter& writer, const std::byte* row, uint32_t n_blocks, bool has_minimum, bool has_high) {
  const size_t header_bytes = has_minimum ? 4 : 2;
  const size_t block_bytes = header_bytes + (has_high ? 4 : 0) + 16;
  uint32_t scales = 0;
  for (uint32_t b = 0; b < n_blocks; ++b) {
    const std::byte* block = row + block_bytes * b;
    const std::byte* nibbles = block + header_bytes + (has_high ? 4 : 0);
    uint32_t high = 0;
    if (has_high) std::memcpy(&high, block + header_bytes, 4);
    std::array<uint8_t, 32> quants;
    for (uint32_t i = 0; i < 16; ++i) {
      quants[i] = static_cast<uint8_t>((Byte(nibbles, i) & 15U) | ((high >> i) & 1U) << 4);
      quants[i + 16] = static_cast<uint8_t>((Byte(nibbles, i) >> 4) | ((high >> (i + 16)) & 1U) << 4);
    }
    writer.Block32(b, quants.data());
    if (has_minimum) {
      std::memcpy(&scales, block, 4);
      writer.Scale(b / 2, b % 2, scales);
    } else {
      scales = b % 2 == 0 ? LoadHalf(block) : scales | uint32_t{LoadHalf(block)} << 16;
      writer.Scale(b / 2, 0, scales);
    }
  }
}

// A super-block's halves, then 16 numbers of six bits: 96 bits.
void PackSixBits(RowWriter& writer, uint32_t super_block, uint32_t halves,
                 const std::array<uint8_t, 16>& numbers) {
  writer.SuperScale(super_block, 0, halves);
  std::array<uint32_t, 3> words{};
  for (uint32_t j = 0; j < 16; ++j) {
    const uint64_t bits = numbers[j];
    const uint32_t at = 6 * j;
    words[at / 32] |= static_cast<uint32_t>(bits << (at % 32));
    if (at % 32 > 26) words[at / 32 + 1] |= static_cast<uint32_t>(bits >> (32 - at % 32));
  }
  for (uint32_t i = 0; i < 3; ++i) writer.SuperScale(super_block, 1 + i, words[i]);
}

// The scales and minima of a Q4_K or Q5_K super-block, in turn.
void PackSuperScales(RowWriter& writer, uint32_t super_block, const std::byte* block) {
  uint32_t halves = 0;
  std::memcpy(&halves, block, 4);  // d, dmin
  const std::byte* s = block + 4;
  std::array<uint8_t, 16> numbers;
  for (uint32_t j = 0; j < 8; ++j) {
    uint32_t scale = Byte(s, j) & 63U;
    uint32_t minimum = Byte(s, j + 4) & 63U;
    if (j >= 4) {
      scale = (Byte(s, j + 4) & 15U) | (Byte(s, j - 4) >> 6) << 4;
      minimum = (Byte(s, j + 4) >> 4) | (Byte(s, j) >> 6) << 4;
    }
    numbers[2 * j] = static_cast<uint8_t>(scale);
    numbers[2 * j + 1] = static_cast<uint8_t>(minimum);
  }
  PackSixBits(writer, super_block, halves, numbers);
}

void PackQ4K(RowWriter& writer, const std::byte* row, uint32_t n_super_blocks, bool has_high) {
  const size_t block_bytes = has_high ? 176 : 144;
  for (uint32_t b = 0; b < n_super_blocks; ++b) {
    const std::byte* block = row + block_bytes * b;
    PackSuperScales(writer, b, block);
    const std::byte* high = block + 16;
    const std::byte* nibbles = block + (has_high ? 48 : 16);
    std::array<uint8_t, kSuperBlock> quants;
    for (uint32_t i = 0; i < kSuperBlock; ++i) {
      const uint32_t part = i / 32;
      uint32_t q = (Byte(nibbles, part / 2 * 32 + i % 32) >> (part % 2 * 4)) & 15U;
      if (has_high) q |= ((Byte(high, i % 32) >> part) & 1U) << 4;
      quants[i] = static_cast<uint8_t>(q);
    }
    for (uint32_t i = 0; i < 8; ++i) writer.Block32(8 * b + i, quants.data() + size_t{32} * i);
  }
}

void PackQ6K(RowWriter& writer, const std::byte* row, uint32_t n_super_blocks) {
  constexpr size_t kBlockBytes = 210;
  for (uint32_t b = 0; b < n_super_blocks; ++b) {
    const std::byte* low = row + kBlockBytes * b;
    const std::byte* high = low + 128;
    const std::byte* scales = high + 64;
    std::array<uint8_t, kSuperBlock> quants;
    for (uint32_t i = 0; i < kSuperBlock; ++i) {
      const uint32_t half = i / 128;
      const uint32_t part = i % 128 / 32;
      const uint32_t l = i % 32;
      const uint32_t nibble = (Byte(low, half * 64 + part % 2 * 32 + l) >> (part / 2 * 4)) & 15U;
      const uint32_t bits = (Byte(high, half * 32 + l) >> (2 * part)) & 3U;
      quants[i] = static_cast<uint8_t>(nibble | bits << 4);
    }
    for (uint32_t i = 0; i < 8; ++i) writer.Block32(8 * b + i, quants.data() + size_t{32} * i);
    for (uint32_t i = 0; i < 4; ++i) {
      uint32_t word = 0;
      std::memcpy(&word, scales + 4 * i, 4);
      writer.SuperScale(b, i, word);
    }
    writer.SuperExtra(b, LoadHalf(scales + 16));
  }
}

void PackQ2K(RowWriter& writer, const std::byte* row, uint32_t n_super_blocks) {
  constexpr size_t kBlockBytes = 84;
  for (uint32_t b = 0; b < n_super_blocks; ++b) {
    const std::byte* block = row + kBlockBytes * b;
    std::array<uint8_t, kSuperBlock> quants;
    for (uint32_t i = 0; i < kSuperBlock; ++i) {
      quants[i] = static_cast<uint8_t>(BitPair(block + kQ2Quants, i));
    }
    for (uint32_t i = 0; i < 8; ++i) writer.Block32(8 * b + i, quants.data() + size_t{32} * i);
    uint32_t word = 0;
    for (uint32_t i = 0; i < 4; ++i) {
      std::memcpy(&word, block + 4 * i, 4);
      writer.SuperScale(b, i, word);
    }
    std::memcpy(&word, block + kQ2Halves, 4);  // d, dmin
    writer.SuperExtra(b, word);
  }
}

void PackQ3K(RowWriter& writer, const std::byte* row, uint32_t n_super_blocks) {
  constexpr size_t kBlockBytes = 110;
  for (uint32_t b = 0; b < n_super_blocks; ++b) {
    const std::byte* block = row + kBlockBytes * b;
    std::array<uint8_t, kSuperBlock> quants;
    for (uint32_t i = 0; i < kSuperBlock; ++i) quants[i] = static_cast<uint8_t>(Q3Quant(block, i));
    for (uint32_t i = 0; i < 8; ++i) writer.Block32(8 * b + i, quants.data() + size_t{32} * i);
    std::array<uint8_t, 16> scales;
    for (uint32_t i = 0; i < 16; ++i) scales[i] = static_cast<uint8_t>(Q3Scale(block, i));
    PackSixBits(writer, b, LoadHalf(block + kQ3Halves), scales);
  }
}

// The words of scales are the file's eight bytes before the codes.
void PackIq4Xs(RowWriter& writer, const std::byte* row, uint32_t n_super_blocks) {
  constexpr size_t kBlockBytes = 136;
  for (uint32_t b = 0; b < n_super_blocks; ++b) {
    const std::byte* block = row + kBlockBytes * b;
    for (uint32_t i = 0; i < 2; ++i) {
      uint32_t word = 0;
      std::memcpy(&word, block + 4 * i, 4);
      writer.SuperScale(b, i, word);
    }
    for (uint32_t i = 0; i < 8; ++i) {
      const std::byte* codes = block + kIq4Codes + size_t{16} * i;
      std::array<uint8_t, 32> quants;
      for (uint32_t j = 0; j < 16; ++j) {
        quants[j] = static_cast<uint8_t>(Byte(codes, j) & 15U);
        quants[j + 16] = static_cast<uint8_t>(Byte(codes, j) >> 4);
      }
      writer.Block32(8 * b + i, quants.data());
    }
  }
}

}  // namespace

PackedLayout MakePackedLayout(TensorType type, uint32_t n_rows, uint32_t n_cols) {
  const PlaneWords words = GetPlaneWords(type);
  PackedLayout layout{.type = type, .n_rows = n_rows, .n_cols = n_cols};
  const uint64_t rows = RoundUp(n_rows, kRows);
  const uint32_t n_chunks = CeilDiv(n_cols, kColumns);
  const uint64_t units = rows * n_chunks;
  const uint64_t super_units = rows * (n_chunks / 4);
  uint64_t at = units * words.quants;
  const auto place = [&at](uint64_t plane_words) {
    const uint64_t begin = at;
    at += plane_words;
    return static_cast<uint32_t>(begin / 4);
  };
  layout.planes.n_chunks = n_chunks;
  layout.planes.high = place(units * words.high);
  layout.planes.scales = place(units * words.scales + super_units * words.super_scales);
  layout.planes.extra = place(super_units * words.super_extra);
  layout.size_bytes = at * 4;
  return layout;
}

uint32_t PackedRowsThatFit(TensorType type, uint32_t n_cols, uint64_t max_bytes) {
  const uint64_t block_bytes = MakePackedLayout(type, kRows, n_cols).size_bytes;
  return static_cast<uint32_t>(std::min<uint64_t>(max_bytes / block_bytes, UINT32_MAX / kRows / 2) * kRows);
}

void PackRow(const PackedLayout& layout, uint32_t row_index, std::span<const std::byte> row,
             std::span<uint32_t> packed) {
  KVRUN_CHECK(packed.size() * 4 >= layout.size_bytes && row_index < layout.n_rows);
  RowWriter writer(layout, row_index, packed);
  const uint32_t n_blocks = layout.n_cols / 32;
  const uint32_t n_super_blocks = layout.n_cols / kSuperBlock;
  switch (layout.type) {
    case TensorType::kF32:
    case TensorType::kF16:
    case TensorType::kBF16: PackPlain(writer, row); break;
    case TensorType::kQ8_0: PackQ8(writer, row.data(), n_blocks); break;
    case TensorType::kQ4_0:
    case TensorType::kIQ4_NL: PackLegacy(writer, row.data(), n_blocks, false, false); break;
    case TensorType::kQ4_1: PackLegacy(writer, row.data(), n_blocks, true, false); break;
    case TensorType::kQ5_0: PackLegacy(writer, row.data(), n_blocks, false, true); break;
    case TensorType::kQ5_1: PackLegacy(writer, row.data(), n_blocks, true, true); break;
    case TensorType::kQ2_K: PackQ2K(writer, row.data(), n_super_blocks); break;
    case TensorType::kQ3_K: PackQ3K(writer, row.data(), n_super_blocks); break;
    case TensorType::kQ4_K: PackQ4K(writer, row.data(), n_super_blocks, false); break;
    case TensorType::kQ5_K: PackQ4K(writer, row.data(), n_super_blocks, true); break;
    case TensorType::kQ6_K: PackQ6K(writer, row.data(), n_super_blocks); break;
    case TensorType::kIQ4_XS: PackIq4Xs(writer, row.data(), n_super_blocks); break;
    case TensorType::kF64: KVRUN_CHECK(false);
  }
}

}  // namespace kvrun
