// Rows of KV records in int8 and int4 from floats (runtime/device/kv_record.h), with the processor's vectors.
// On any instruction set they are the same, to the bit.
#pragma once

#include <cstdint>
#include <span>

namespace kvrun {

// Elements as int8, four a word, zeros beyond the last; and their scale, a half. words: [ceil(row.size() /
// 4)].
void EncodeInt8Row(std::span<const float> row, uint32_t* words, uint16_t* scale);
// Elements as int4, eight a word, zeros beyond the last; and a scale, a half, for each kInt4BlockElements,
// with the factor of kInt4Factors with which rounding takes least. words: [ceil(row.size() / 8)].
void EncodeInt4Row(std::span<const float> row, uint32_t* words, uint16_t* scales);

}  // namespace kvrun
