// Rows of KV records in int8 and int4 from floats (runtime/device/kv_record.h), and floats from halves, with
// the processor's vectors. On any instruction set they are the same, to the bit; of what is no number, it
// stays none.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/model/half_float.h"

namespace kvrun {

// A number as a half; beyond the largest: the largest.
inline uint16_t ToFiniteHalf(float value) { return FloatToHalf(std::clamp(value, -65504.0F, 65504.0F)); }

// The same of many, with a zero where whole words, as kernels read them, need one more.
std::vector<uint16_t> ToFiniteHalves(std::span<const float> values);

// What elements are multiplied with to be encoded with this scale.
inline float InverseOf(float scale) { return scale == 0.0F ? 0.0F : 1.0F / scale; }

// Elements as int8, four a word, zeros beyond the last; and their scale, a half. words: [ceil(row.size() /
// 4)].
void EncodeInt8Row(std::span<const float> row, uint32_t* words, uint16_t* scale);
// Elements as int4, eight a word, zeros beyond the last; and a scale, a half, for each kInt4BlockElements,
// with the factor of kInt4Factors with which rounding takes least. words: [ceil(row.size() / 8)].
void EncodeInt4Row(std::span<const float> row, uint32_t* words, uint16_t* scales);
// What the halves at `halves` stand for, as many as there are floats. No alignment is needed.
void LoadHalves(const void* halves, std::span<float> floats);

}  // namespace kvrun
