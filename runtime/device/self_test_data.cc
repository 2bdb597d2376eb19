#include "runtime/device/self_test_data.h"

#include <cmath>
#include <cstring>

#include "runtime/model/half_float.h"

namespace kvrun {
namespace {

class RandomWords {
 public:
  explicit RandomWords(uint32_t seed) : state_(uint64_t{seed} * 2 + 1) {}
  uint32_t Next() {
    state_ = state_ * 6364136223846793005U + 1442695040888963407U;
    return static_cast<uint32_t>(state_ >> 32);
  }
  float NextFloat() {
    const float value = static_cast<float>(Next() >> 8) / 0x1p23F - 1.0F;
    return std::abs(value) < 0x1p-13F ? 0.25F : value;
  }

 private:
  uint64_t state_;
};

// Where a block's half-precision scales lie: bytes [first, first + 2 * count).
struct ScaleBytes {
  size_t first;
  size_t count;
};

ScaleBytes ScalesOf(TensorType type) {
  switch (type) {
    case TensorType::kQ8_0:
    case TensorType::kQ4_0:
    case TensorType::kQ5_0:
    case TensorType::kIQ4_NL:
    case TensorType::kIQ4_XS: return {0, 1};
    case TensorType::kQ4_1:
    case TensorType::kQ5_1:
    case TensorType::kQ4_K:
    case TensorType::kQ5_K: return {0, 2};
    case TensorType::kQ2_K: return {80, 2};
    case TensorType::kQ3_K: return {108, 1};
    case TensorType::kQ6_K: return {208, 1};
    case TensorType::kF32:
    case TensorType::kF16:
    case TensorType::kBF16:
    case TensorType::kF64: break;
  }
  return {0, 0};
}

template <typename T>
void Store(T value, std::byte* to) {
  std::memcpy(to, &value, sizeof(value));
}

// One element of a float type.
void StoreFloat(TensorType type, float value, std::byte* to) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  if (type == TensorType::kF32) Store(value, to);
  if (type == TensorType::kF16) Store(FloatToHalf(value), to);
  if (type == TensorType::kBF16) Store(static_cast<uint16_t>(bits >> 16), to);
}

}  // namespace

std::vector<float> RandomFloats(size_t count, uint32_t seed) {
  RandomWords random(seed);
  std::vector<float> values(count);
  for (float& value : values) value = random.NextFloat();
  return values;
}

std::vector<float> RoundedToHalf(std::vector<float> values) {
  for (float& value : values) value = HalfToFloat(FloatToHalf(value));
  return values;
}

std::vector<std::byte> RandomTensor(TensorType type, size_t n_elements, uint32_t seed) {
  RandomWords random(seed);
  const TensorTypeInfo& info = GetTensorType(type);
  const size_t n_blocks = n_elements / info.block_elements;
  std::vector<std::byte> bytes(n_blocks * info.block_bytes);
  const ScaleBytes scales = ScalesOf(type);
  for (size_t b = 0; b < n_blocks; ++b) {
    std::byte* block = bytes.data() + b * info.block_bytes;
    if (info.block_elements == 1) {
      StoreFloat(type, random.NextFloat(), block);
      continue;
    }
    for (uint32_t i = 0; i < info.block_bytes; ++i) block[i] = static_cast<std::byte>(random.Next() >> 24);
    for (size_t i = 0; i < scales.count; ++i) {
      const float scale = (random.NextFloat() + 1.5F) / 64.0F;
      Store(FloatToHalf(random.Next() % 2 == 0 ? scale : -scale), block + scales.first + 2 * i);
    }
  }
  return bytes;
}

}  // namespace kvrun
