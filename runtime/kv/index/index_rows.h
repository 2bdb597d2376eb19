// Rows of the index on the host: quantised as IndexShape says.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "platform/base/status.h"
#include "runtime/device/device.h"

namespace kvrun {

// What the scales of an index are made of: sums over projected keys, sinks left out.
class ColumnScales {
 public:
  explicit ColumnScales(uint32_t rank) : largest_(rank), squares_(rank) {}
  // projected: float [n, rank].
  void Add(std::span<const float> projected);
  // Of n rows that nothing else is known of but [rank] mean squares: for int4 alone.
  void AddMeanSquares(std::span<const double> mean_squares, uint64_t n);
  // int8: the largest magnitude / 127; int4: 3 root mean squares / 7 (beyond is clipped); f16: 1.
  std::vector<float> Scales(KvType type) const;

 private:
  std::vector<float> largest_;
  std::vector<double> squares_;
  uint64_t n_ = 0;
};

// IndexSides::scales of a layer, all of them 1.
Result<std::unique_ptr<Buffer>> CreateUnitScales(Device& device, const IndexShape& shape);

// Stores float [n, rank] as rows `begin` on in one sequence's words of an index; the others stay. Row r is of
// group r / shape.rows(): projected keys of entries, or what stands for whole groups.
void PackIndexRows(const IndexShape& shape, uint32_t begin, std::span<const float> rows,
                   std::span<const float> scales, std::span<uint32_t> words);

// A row of one sequence's words of an index, as its elements are stored, in the low bits: [rank]. Row r as
// above.
void ReadIndexRow(const IndexShape& shape, uint32_t row, std::span<const uint32_t> words,
                  std::span<uint16_t> elements);
void WriteIndexRow(const IndexShape& shape, uint32_t row, std::span<const uint16_t> elements,
                   std::span<uint32_t> words);

}  // namespace kvrun
