// The tensor types a GGUF file may hold: one row of a table each.
//
// To add a type: a row here, a decode function in tensor_type.cc, one in shaders/include/, test vectors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "platform/base/status.h"
#include "runtime/model/half_float.h"

namespace kvrun {

// Values are those of the GGUF format.
enum class TensorType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kIQ4_NL = 20,
  kIQ4_XS = 23,
  kF64 = 28,  // of files that kvrun writes (docs/formats/sums.md); no type of weights
  kBF16 = 30,
};

struct TensorTypeInfo {
  TensorType type;
  std::string_view name;    // as the field writes it: "Q4_K"
  uint32_t block_elements;  // elements that share one block; a row is a whole number of blocks
  uint32_t block_bytes;
  void (*decode_block)(const std::byte* block, float* out);  // writes block_elements floats
};

// Null if kvrun cannot read the type.
const TensorTypeInfo* FindTensorType(uint32_t gguf_type);
const TensorTypeInfo& GetTensorType(TensorType type);
std::string_view TensorTypeName(TensorType type);
// "F32, F16, ..., BF16": what a message about an unknown type lists.
std::string KnownTensorTypes();

// Decodes `out.size()` elements, a whole number of blocks. `bytes` holds at least that many blocks.
void DecodeTensor(TensorType type, std::span<const std::byte> bytes, std::span<float> out);

}  // namespace kvrun
