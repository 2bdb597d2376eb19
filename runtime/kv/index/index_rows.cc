#include "runtime/kv/index/index_rows.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "runtime/kv/memory/host_buffer.h"
#include "runtime/model/tensor_type.h"

namespace kvrun {
namespace {

// Where an element lies in a sequence's words.
struct ElementPlace {
  size_t word = 0;
  uint32_t shift = 0;
  uint32_t mask = 0;
};

ElementPlace PlaceOf(const IndexShape& shape, uint32_t row, uint32_t column) {
  const uint32_t bits = KvElementBits(shape.type);
  const uint32_t element = row % shape.rows() * shape.rank + column;
  return {.word = size_t{row / shape.rows()} * shape.group_words() + element * bits / 32,
          .shift = element * bits % 32,
          .mask = (1U << bits) - 1};
}

uint32_t CodeOf(KvType type, float value, float scale) {
  if (type == KvType::kF16) return FloatToHalf(value);
  const uint32_t bits = KvElementBits(type);
  const auto limit = static_cast<float>((1U << (bits - 1)) - 1);
  // No number becomes one.
  const float quantised = std::min(limit, std::max(-limit, std::nearbyint(value / scale)));
  return static_cast<uint32_t>(static_cast<int32_t>(quantised)) & ((1U << bits) - 1);
}

// Its elements from `place` on; other bits of the words stay.
void PackRow(const IndexShape& shape, std::span<const float> row, std::span<const float> scales,
             ElementPlace place, std::span<uint32_t> words) {
  uint32_t code_bits = 0;
  uint32_t mask = 0;
  const auto store = [&] {
    words[place.word] = (words[place.word] & ~mask) | code_bits;
    ++place.word;
    place.shift = code_bits = mask = 0;
  };
  for (size_t c = 0; c < row.size(); ++c) {
    code_bits |= CodeOf(shape.type, row[c], scales[c]) << place.shift;
    mask |= place.mask << place.shift;
    place.shift += KvElementBits(shape.type);
    if (place.shift == 32) store();
  }
  if (mask != 0) store();
}

}  // namespace

void ColumnScales::Add(std::span<const float> projected) {
  const size_t rank = largest_.size();
  for (size_t i = 0; i < projected.size(); ++i) {
    const size_t c = i % rank;
    largest_[c] = std::max(largest_[c], std::abs(projected[i]));
    squares_[c] += double{projected[i]} * projected[i];
  }
  n_ += projected.size() / rank;
}

void ColumnScales::AddMeanSquares(std::span<const double> mean_squares, uint64_t n) {
  for (size_t c = 0; c < squares_.size(); ++c) squares_[c] += mean_squares[c] * static_cast<double>(n);
  n_ += n;
}

std::vector<float> ColumnScales::Scales(KvType type) const {
  std::vector<float> scales(largest_.size(), 1.0F);
  for (size_t c = 0; c < scales.size(); ++c) {
    double scale = 1.0;
    if (type == KvType::kInt8) scale = largest_[c] / 127.0;
    if (type == KvType::kInt4)
      scale = 3.0 * std::sqrt(squares_[c] / static_cast<double>(std::max<uint64_t>(n_, 1))) / 7.0;
    scales[c] = scale > 0.0 ? static_cast<float>(scale) : 1.0F;
  }
  return scales;
}

Result<std::unique_ptr<Buffer>> CreateUnitScales(Device& device, const IndexShape& shape) {
  const uint64_t bytes = uint64_t{shape.n_sequences} * shape.rank * sizeof(float);
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<Buffer> scales,
                         device.CreateBuffer(bytes, BufferUse::kShared, "kv"));
  const std::span<uint32_t> words = Words(*scales);
  std::fill_n(reinterpret_cast<float*>(words.data()), words.size(), 1.0F);
  KVRUN_RETURN_IF_ERROR(FlushAll(*scales));
  return scales;
}

void PackIndexRows(const IndexShape& shape, uint32_t begin, std::span<const float> rows,
                   std::span<const float> scales, std::span<uint32_t> words) {
  for (size_t i = 0; i < rows.size(); i += shape.rank, ++begin) {
    PackRow(shape, rows.subspan(i, shape.rank), scales, PlaceOf(shape, begin, 0), words);
  }
}

void ReadIndexRow(const IndexShape& shape, uint32_t row, std::span<const uint32_t> words,
                  std::span<uint16_t> elements) {
  for (uint32_t c = 0; c < shape.rank; ++c) {
    const ElementPlace place = PlaceOf(shape, row, c);
    elements[c] = static_cast<uint16_t>(words[place.word] >> place.shift & place.mask);
  }
}

void WriteIndexRow(const IndexShape& shape, uint32_t row, std::span<const uint16_t> elements,
                   std::span<uint32_t> words) {
  for (uint32_t c = 0; c < shape.rank; ++c) {
    const ElementPlace place = PlaceOf(shape, row, c);
    words[place.word] = (words[place.word] & ~(place.mask << place.shift)) | uint32_t{elements[c]}
                                                                                 << place.shift;
  }
}

}  // namespace kvrun
