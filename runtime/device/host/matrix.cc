#include "runtime/device/host/matrix.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <vector>

#include "platform/base/check.h"
#include "platform/base/units.h"
#include "runtime/device/host/operations.h"
#include "runtime/device/matrix_rows.h"
#include "runtime/model/block_bits.h"
#include "shaders/shared/step_params.h"

namespace kvrun::host {
namespace {

constexpr uint64_t kPlaneAlignment = 64;
constexpr uint64_t kStretchBytes = 16 * kMiB;  // of a file, read and packed by all threads

uint32_t Byte(const std::byte* bytes, size_t index) { return std::to_integer<uint32_t>(bytes[index]); }

uint32_t ReadU32(const std::byte* bytes) {
  return Byte(bytes, 0) | Byte(bytes, 1) << 8 | Byte(bytes, 2) << 16 | Byte(bytes, 3) << 24;
}

float LoadHalf(const std::byte* bytes) {
  uint16_t half = 0;
  std::memcpy(&half, bytes, sizeof(half));
  return HalfToFloat(half);
}

// What one block of a row holds in the file.
struct FileBlock {
  uint8_t quants[kBlockColumns];
  const std::byte* halves[2] = {nullptr, nullptr};  // d and m, of the block or the super-block
  uint8_t scales[2] = {0, 0};                       // within a super-block
};

// In all 4- and 5-bit small blocks byte j holds element j in its low and element j + 16 in its high nibble.
void ReadNibbles(const std::byte* nibbles, uint8_t* quants) {
  for (uint32_t j = 0; j < 16; ++j) {
    quants[j] = static_cast<uint8_t>(Byte(nibbles, j) & 15U);
    quants[j + 16] = static_cast<uint8_t>(Byte(nibbles, j) >> 4);
  }
}

void AddFifthBits(uint32_t high_bits, uint8_t* quants) {
  for (uint32_t j = 0; j < kBlockColumns; ++j) quants[j] |= static_cast<uint8_t>((high_bits >> j & 1U) << 4);
}

// Of Q5_0 and Q5_1: the others are packed as they are (PackRowOfWords).
FileBlock ReadSmallBlock(TensorType type, const std::byte* at) {
  FileBlock out{};
  out.halves[0] = at;
  at += 2;
  if (type == TensorType::kQ5_1) {
    out.halves[1] = at;
    at += 2;
  }
  ReadNibbles(at + 4, out.quants);
  AddFifthBits(ReadU32(at), out.quants);
  return out;
}

// Sub-block `sub` of a Q4_K or Q5_K super-block; runtime/model/tensor_type.cc says where its bits are.
FileBlock ReadScaledBlock(const std::byte* super_block, uint32_t sub, bool has_fifth_bits) {
  FileBlock out{};
  out.halves[0] = super_block;
  out.halves[1] = super_block + 2;
  const std::byte* packed = super_block + 4;
  if (sub < 4) {
    out.scales[0] = static_cast<uint8_t>(Byte(packed, sub) & 63U);
    out.scales[1] = static_cast<uint8_t>(Byte(packed, sub + 4) & 63U);
  } else {
    out.scales[0] = static_cast<uint8_t>((Byte(packed, sub + 4) & 15U) | Byte(packed, sub - 4) >> 6 << 4);
    out.scales[1] = static_cast<uint8_t>(Byte(packed, sub + 4) >> 4 | Byte(packed, sub) >> 6 << 4);
  }
  const std::byte* fifth_bits = super_block + 16;
  const std::byte* nibbles = super_block + (has_fifth_bits ? 48 : 16) + sub / 2 * 32;
  for (uint32_t i = 0; i < kBlockColumns; ++i) {
    uint32_t q = Byte(nibbles, i) >> (sub % 2 * 4) & 15U;
    if (has_fifth_bits) q |= (Byte(fifth_bits, i) >> sub & 1U) << 4;
    out.quants[i] = static_cast<uint8_t>(q);
  }
  return out;
}

FileBlock ReadQ6Block(const std::byte* super_block, uint32_t sub) {
  FileBlock out{};
  const std::byte* low = super_block + sub / 4 * 64 + sub % 2 * 32;
  const std::byte* high = super_block + 128 + sub / 4 * 32;
  const std::byte* scales = super_block + 192;
  out.halves[0] = super_block + 208;
  out.scales[0] = static_cast<uint8_t>(Byte(scales, size_t{2} * sub));
  out.scales[1] = static_cast<uint8_t>(Byte(scales, size_t{2} * sub + 1));
  for (uint32_t i = 0; i < kBlockColumns; ++i) {
    const uint32_t nibble = Byte(low, i) >> (sub % 4 / 2 * 4) & 15U;
    out.quants[i] = static_cast<uint8_t>(nibble | (Byte(high, i) >> (sub % 4 * 2) & 3U) << 4);
  }
  return out;
}

FileBlock ReadQ2Block(const std::byte* super_block, uint32_t sub) {
  FileBlock out{};
  out.halves[0] = super_block + kQ2Halves;
  out.halves[1] = super_block + kQ2Halves + 2;
  for (uint32_t h = 0; h < 2; ++h) out.scales[h] = static_cast<uint8_t>(Byte(super_block, 2 * sub + h));
  for (uint32_t i = 0; i < kBlockColumns; ++i) {
    out.quants[i] = static_cast<uint8_t>(BitPair(super_block + kQ2Quants, kBlockColumns * sub + i));
  }
  return out;
}

FileBlock ReadQ3Block(const std::byte* super_block, uint32_t sub) {
  FileBlock out{};
  out.halves[0] = super_block + kQ3Halves;
  for (uint32_t h = 0; h < 2; ++h)
    out.scales[h] = static_cast<uint8_t>(Q3Scale(super_block, 2 * sub + h) - 32);
  for (uint32_t i = 0; i < kBlockColumns; ++i) {
    out.quants[i] = static_cast<uint8_t>(Q3Quant(super_block, kBlockColumns * sub + i));
  }
  return out;
}

FileBlock ReadIq4Block(const std::byte* super_block, uint32_t sub) {
  FileBlock out{};
  out.halves[0] = super_block;
  out.scales[0] = static_cast<uint8_t>(Iq4Scale(super_block, sub) - 32);
  ReadNibbles(super_block + kIq4Codes + size_t{16} * sub, out.quants);
  return out;
}

FileBlock ReadBlock(const TensorTypeInfo& info, const std::byte* row, uint32_t block) {
  const TensorType type = info.type;
  if (info.block_elements == kBlockColumns)
    return ReadSmallBlock(type, row + size_t{info.block_bytes} * block);
  const std::byte* super_block = row + size_t{info.block_bytes} * (block / kSuperBlocks);
  const uint32_t sub = block % kSuperBlocks;
  switch (type) {
    case TensorType::kQ2_K: return ReadQ2Block(super_block, sub);
    case TensorType::kQ3_K: return ReadQ3Block(super_block, sub);
    case TensorType::kQ6_K: return ReadQ6Block(super_block, sub);
    case TensorType::kIQ4_XS: return ReadIq4Block(super_block, sub);
    default: return ReadScaledBlock(super_block, sub, type == TensorType::kQ5_K);
  }
}

// A group of a block: its four columns, a byte each.
using GroupWords = std::array<uint32_t, kBlockGroups>;

// One row's word of plane `nth`: `n` groups side by side, of which each byte has the bits that `mask` leaves.
void PutGroups(const GroupWords& groups, uint32_t nth, uint32_t n, uint32_t mask, uint32_t r,
               std::byte* plane) {
  uint32_t word = 0;
  for (uint32_t i = 0; i < n; ++i) word |= (groups[nth * n + i] & mask) << (i * kBlockGroups / n);
  std::memcpy(plane + size_t{64} * nth + size_t{4} * r, &word, sizeof(word));
}

// Four columns at a time: the bytes of a word do not meet.
void PackQuants(const PanelLayout& layout, const PlaneBytes& bytes, const FileBlock& block, uint32_t b,
                uint32_t r, std::byte* panel) {
  std::byte* quants = panel + size_t{bytes.quants} * b;
  std::byte* high = panel + layout.high + size_t{bytes.high} * b;
  GroupWords groups;
  std::memcpy(groups.data(), block.quants, sizeof(groups));
  const uint32_t n_planes = bytes.quants / 64;
  if (n_planes == 8) {
    for (uint32_t n = 0; n < 8; ++n) PutGroups(groups, n, 1, 0xFFFFFFFFU, r, quants);
    return;
  }
  if (n_planes == 4) {
    for (uint32_t n = 0; n < 4; ++n) PutGroups(groups, n, 2, 0x0F0F0F0FU, r, quants);
  } else {
    for (uint32_t n = 0; n < 2; ++n) PutGroups(groups, n, 4, 0x03030303U, r, quants);
  }
  if (bytes.high == 0) return;
  for (uint32_t& group : groups) group >>= n_planes;  // as many planes as bits lie in them
  if (bytes.high == 64) PutGroups(groups, 0, 8, 0x01010101U, r, high);
  if (bytes.high == 128) {
    for (uint32_t n = 0; n < 2; ++n) PutGroups(groups, n, 4, 0x03030303U, r, high);
  }
}

// Row r of a panel of small blocks, each with `halves` scales before its quants. put(block's quants, to):
// they are whole words, to be put 64 bytes apart.
template <uint32_t kHalves, uint32_t kFileBytes, uint32_t kPackedBytes, typename Put>
void PackSmallBlocks(const PanelLayout& layout, const std::byte* row, uint32_t r, std::byte* panel,
                     const Put& put) {
  const uint32_t n_blocks = layout.n_blocks;
  std::byte* scales = panel + layout.scales + size_t{2} * r;
  std::byte* quants = panel + size_t{4} * r;
  for (uint32_t b = 0; b < n_blocks; ++b) {
    for (uint32_t i = 0; i < kHalves; ++i) {
      std::memcpy(scales + size_t{2} * kPanelRows * i, row + size_t{2} * i, 2);
    }
    put(row + size_t{2} * kHalves, quants);
    row += 2 * kHalves + kFileBytes;
    scales += size_t{2} * kPanelRows * kHalves;
    quants += kPackedBytes;
  }
}

// A word of the file has four columns in its low nibbles, and those 16 columns later in its high ones. In a
// plane, the high nibbles are of the four columns that follow.
void PutNibbles(const std::byte* nibbles, std::byte* quants) {
  constexpr uint32_t kLow = 0x0F0F0F0FU;
  std::array<uint32_t, 4> words;
  std::memcpy(words.data(), nibbles, sizeof(words));
  for (uint32_t n = 0; n < 2; ++n) {
    const uint32_t even = words[2 * n];
    const uint32_t odd = words[2 * n + 1];
    const uint32_t of_first = (even & kLow) | (odd & kLow) << 4;
    const uint32_t of_second = (even >> 4 & kLow) | (odd & ~kLow);
    std::memcpy(quants + size_t{64} * n, &of_first, sizeof(of_first));
    std::memcpy(quants + size_t{64} * (n + 2), &of_second, sizeof(of_second));
  }
}

void PutBytes(const std::byte* bytes, std::byte* quants) {
  for (uint32_t n = 0; n < kBlockGroups; ++n) std::memcpy(quants + size_t{64} * n, bytes + size_t{4} * n, 4);
}

// Types whose blocks are words already; false: it is none.
bool PackRowOfWords(const PanelLayout& layout, const std::byte* row, uint32_t r, std::byte* panel) {
  switch (layout.type) {
    case TensorType::kQ8_0: PackSmallBlocks<1, 32, 512>(layout, row, r, panel, PutBytes); return true;
    case TensorType::kQ4_0:
    case TensorType::kIQ4_NL: PackSmallBlocks<1, 16, 256>(layout, row, r, panel, PutNibbles); return true;
    case TensorType::kQ4_1: PackSmallBlocks<2, 16, 256>(layout, row, r, panel, PutNibbles); return true;
    default: return false;
  }
}

}  // namespace

PanelLayout MakePanelLayout(TensorType type, uint32_t n_cols) {
  const PlaneBytes bytes = GetPlaneBytes(type);
  PanelLayout layout{.type = type, .n_cols = n_cols};
  if (bytes.values != 0) {
    layout.panel_bytes = RoundUp<uint64_t>(uint64_t{bytes.values} * n_cols, kPlaneAlignment);
    return layout;
  }
  layout.n_blocks = n_cols / kBlockColumns;
  uint64_t at = 0;
  const auto place = [&at](uint64_t plane_bytes) {
    return std::exchange(at, at + RoundUp(plane_bytes, kPlaneAlignment));
  };
  place(uint64_t{bytes.quants} * layout.n_blocks);
  layout.high = place(uint64_t{bytes.high} * layout.n_blocks);
  layout.scales = place(uint64_t{bytes.scales} * layout.n_blocks);
  layout.supers = place(uint64_t{bytes.supers} * (layout.n_blocks / kSuperBlocks));
  layout.panel_bytes = place(0);
  return layout;
}

void PackRow(const PanelLayout& layout, const std::byte* row, uint32_t r, std::byte* panel) {
  if (PackRowOfWords(layout, row, r, panel)) return;
  const PlaneBytes bytes = GetPlaneBytes(layout.type);
  if (bytes.values != 0) {
    const size_t size = bytes.values / kPanelRows;
    for (size_t c = 0; c < layout.n_cols; ++c) {
      std::memcpy(panel + (c * kPanelRows + r) * size, row + c * size, size);
    }
    return;
  }
  const TensorTypeInfo& info = GetTensorType(layout.type);
  for (uint32_t b = 0; b < layout.n_blocks; ++b) {
    const FileBlock block = ReadBlock(info, row, b);
    PackQuants(layout, bytes, block, b, r, panel);
    std::byte* scales = panel + layout.scales + size_t{bytes.scales} * b;
    std::byte* halves = scales;
    if (bytes.supers != 0) {
      scales[r] = std::byte{block.scales[0]};
      if (bytes.scales > kPanelRows) scales[kPanelRows + r] = std::byte{block.scales[1]};
      halves = panel + layout.supers + size_t{bytes.supers} * (b / kSuperBlocks);
    }
    for (uint32_t i = 0; i < 2; ++i) {
      if (block.halves[i] != nullptr) std::memcpy(halves + 2 * (kPanelRows * i + r), block.halves[i], 2);
    }
  }
}

namespace {

// The quant of group g as it lies in the planes of a block.
uint32_t StoredQuant(const PlaneBytes& bytes, const std::byte* quants, const std::byte* high, uint32_t g,
                     uint32_t at) {
  if (bytes.quants == 512) return Byte(quants, 64 * g + at);
  const bool has_pairs = bytes.quants == 128;
  const uint32_t low = has_pairs ? Byte(quants, 64 * (g / 4) + at) >> (g % 4 * 2) & 3U
                                 : Byte(quants, 64 * (g / 2) + at) >> (g % 2 * 4) & 15U;
  uint32_t above = 0;
  if (bytes.high == 64) above = Byte(high, at) >> g & 1U;
  if (bytes.high == 128) above = Byte(high, 64 * (g / 4) + at) >> (g % 4 * 2) & 3U;
  return low | above << (has_pairs ? 2 : 4);
}

// Of a type with super-blocks.
void UnpackSubScales(TensorType type, const std::byte* super, const std::byte* scales, uint32_t r,
                     UnpackedBlock& out) {
  const float d = LoadHalf(super + size_t{2} * r);
  const float m = GetPlaneBytes(type).supers == 64 ? LoadHalf(super + 2 * (kPanelRows + r)) : 0.0F;
  for (uint32_t h = 0; h < 2; ++h) {
    const uint32_t byte = Byte(scales, (HasHalves(type) ? kPanelRows * h : 0) + r);
    if (type == TensorType::kQ2_K) {
      out.scale[h] = d * static_cast<float>(byte & 15U);
      out.minimum[h] = -m * static_cast<float>(byte >> 4);
    } else if (GetPlaneBytes(type).supers == 64) {
      out.scale[h] = d * static_cast<float>(byte);
      out.minimum[h] = -m * static_cast<float>(Byte(scales, kPanelRows + r));
    } else {
      out.scale[h] = d * static_cast<float>(static_cast<int8_t>(byte));
    }
  }
}

}  // namespace

UnpackedBlock UnpackBlock(const PanelLayout& layout, const std::byte* panel, uint32_t r, uint32_t b) {
  const PlaneBytes bytes = GetPlaneBytes(layout.type);
  const std::byte* quants = panel + size_t{bytes.quants} * b;
  const std::byte* high = panel + layout.high + size_t{bytes.high} * b;
  UnpackedBlock out{};
  for (uint32_t i = 0; i < kBlockColumns; ++i) {
    const uint32_t q = StoredQuant(bytes, quants, high, i / 4, 4 * r + i % 4);
    out.quants[i] = HasCodes(layout.type)
                        ? kIq4Values[q]
                        : static_cast<int8_t>(static_cast<int32_t>(q) - QuantOffset(layout.type));
  }
  const std::byte* scales = panel + layout.scales + size_t{bytes.scales} * b;
  if (bytes.supers == 0) {
    out.scale[0] = out.scale[1] = LoadHalf(scales + size_t{2} * r);
    if (bytes.scales == 64) out.minimum[0] = out.minimum[1] = LoadHalf(scales + 2 * (kPanelRows + r));
  } else {
    const std::byte* super = panel + layout.supers + size_t{bytes.supers} * (b / kSuperBlocks);
    UnpackSubScales(layout.type, super, scales, r, out);
  }
  return out;
}

float UnpackValue(const PanelLayout& layout, const std::byte* panel, uint32_t r, uint32_t column) {
  const size_t index = size_t{column} * kPanelRows + r;
  if (layout.type == TensorType::kF32) return std::bit_cast<float>(ReadU32(panel + 4 * index));
  const auto bits = static_cast<uint16_t>(Byte(panel, 2 * index) | Byte(panel, 2 * index + 1) << 8);
  return layout.type == TensorType::kF16 ? HalfToFloat(bits) : BFloat16ToFloat(bits);
}

Result<std::unique_ptr<Matrix>> PackMatrix(std::shared_ptr<MemoryAccount> account, ThreadPool& pool,
                                           TensorType type, uint32_t n_cols,
                                           std::span<const MatrixSource> sources) {
  const TensorTypeInfo& info = GetTensorType(type);
  KVRUN_CHECK(n_cols % info.block_elements == 0);
  const uint64_t row_bytes = uint64_t{n_cols} / info.block_elements * info.block_bytes;
  uint64_t n_rows = 0;
  for (const MatrixSource& source : sources) {
    KVRUN_CHECK(source.data.empty() ? source.read != nullptr || source.n_rows == 0
                                    : source.data.size() >= source.n_rows * row_bytes);
    n_rows += source.n_rows;
  }
  KVRUN_CHECK(n_rows <= std::numeric_limits<uint32_t>::max());
  const PanelLayout layout = MakePanelLayout(type, n_cols);
  KVRUN_ASSIGN_OR_RETURN(
      std::unique_ptr<HostMemory> memory,
      HostMemory::AllocateInArena(std::move(account), "weights",
                                  CeilDiv<uint64_t>(n_rows, kPanelRows) * layout.panel_bytes));
  std::byte* packed = memory->data();
  const auto pack = [&](uint64_t row, std::span<const std::byte> bytes) {
    PackRow(layout, bytes.data(), static_cast<uint32_t>(row % kPanelRows),
            packed + row / kPanelRows * layout.panel_bytes);
  };
  std::vector<std::vector<std::byte>> buffers(pool.size(), RowBuffer(sources, row_bytes));
  std::vector<Status> statuses(pool.size());
  // A stretch of the file after another, each by all threads: far apart they would not be read ahead.
  const uint64_t stretch_rows =
      RoundUp<uint64_t>(std::max<uint64_t>(kStretchBytes / std::max<uint64_t>(row_bytes, 1), 1), kPanelRows);
  for (uint64_t start = 0; start < n_rows; start += stretch_rows) {
    pool.ParallelFor(std::min(stretch_rows, n_rows - start), kPanelRows,
                     [&](size_t begin, size_t end, uint32_t worker) {
                       if (!statuses[worker].ok()) return;
                       statuses[worker] =
                           ForEachRow(sources, row_bytes, start + begin, start + end, buffers[worker], pack);
                     });
    for (const Status& status : statuses) KVRUN_RETURN_IF_ERROR(status);
  }
  return std::unique_ptr<Matrix>(
      std::make_unique<HostMatrix>(layout, static_cast<uint32_t>(n_rows), std::move(memory)));
}

void Embed(ThreadPool& pool, const EmbedArgs& args) {
  const auto& matrix = static_cast<const HostMatrix&>(*args.table);
  const PanelLayout& layout = matrix.layout();
  const auto* params = Data<StepParams>(args.step);
  auto* to = Data<float>(args.out);
  const auto embed = [&](size_t begin, size_t end, uint32_t) {
    for (size_t t = begin; t < end; ++t) {
      const uint32_t id = params->tokens[t].id;
      const std::byte* panel = matrix.panel(id / kPanelRows);
      const uint32_t r = id % kPanelRows;
      float* values = to + t * layout.n_cols;
      if (layout.n_blocks == 0) {
        for (uint32_t c = 0; c < layout.n_cols; ++c)
          values[c] = args.scale * UnpackValue(layout, panel, r, c);
      }
      for (uint32_t b = 0; b < layout.n_blocks; ++b) {
        const UnpackedBlock block = UnpackBlock(layout, panel, r, b);
        for (uint32_t i = 0; i < kBlockColumns; ++i) {
          values[b * kBlockColumns + i] =
              args.scale *
              (static_cast<float>(block.quants[i]) * block.scale[i / 16] + block.minimum[i / 16]);
        }
      }
    }
  };
  // One row is read sooner than another thread wakes up.
  if (args.n_tokens == 1)
    embed(0, 1, 0);
  else
    pool.ParallelFor(args.n_tokens, 1, embed);
}

}  // namespace kvrun::host
