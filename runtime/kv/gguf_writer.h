// Writes small GGUF files, version 3, in memory: keys and tensors in the order of the calls. What is read
// back through runtime/model/gguf.h. Names and keys are the caller's to keep distinct.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/model/tensor_type.h"

namespace kvrun {

class GgufWriter {
 public:
  void Set(std::string_view key, uint32_t value);
  void Set(std::string_view key, std::string_view value);
  void Set(std::string_view key, std::span<const float> values);
  // shape[0] is the contiguous dimension; `data` is copied.
  void AddTensor(std::string_view name, TensorType type, std::vector<uint64_t> shape,
                 std::span<const std::byte> data);
  // The whole file.
  std::vector<std::byte> Finish() const;

 private:
  struct Tensor {
    std::string name;
    TensorType type;
    std::vector<uint64_t> shape;
    uint64_t offset;
  };

  uint64_t n_keys_ = 0;
  std::vector<std::byte> keys_;
  std::vector<Tensor> tensors_;
  std::vector<std::byte> data_;
};

}  // namespace kvrun
