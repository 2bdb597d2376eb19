// Writes GGUF files, version 3: keys and tensors in the order of the calls. What is read back through
// runtime/model/gguf.h. Names and keys are the caller's to keep distinct. Small files are made in memory; of
// large ones only the header is, and the caller puts each tensor's data where Declare said.
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
  void Set(std::string_view key, float value);
  void Set(std::string_view key, std::string_view value);
  void Set(std::string_view key, std::span<const float> values);
  void Set(std::string_view key, std::span<const uint32_t> values);
  void Set(std::string_view key, std::span<const std::string> values);
  // shape[0] is the contiguous dimension, whole blocks of the type. Answers where the data begin, in bytes
  // after the header.
  uint64_t Declare(std::string_view name, TensorType type, std::vector<uint64_t> shape);
  // Everything before the first tensor's data, once all tensors are declared.
  std::vector<std::byte> Header() const;
  // Bytes after the header that the declared tensors take.
  uint64_t data_bytes() const { return data_bytes_; }

  // The same with the data, which are copied: for files that are wholly made so.
  void AddTensor(std::string_view name, TensorType type, std::vector<uint64_t> shape,
                 std::span<const std::byte> data);
  // The whole file of tensors that were added with their data.
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
  std::vector<std::byte> data_;  // of AddTensor
  uint64_t data_bytes_ = 0;
};

}  // namespace kvrun
