// Memory of a device, and weights packed for it.
//
// Threads: a Buffer or Matrix is used by one at a time, but for Flush and Invalidate.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "platform/base/status.h"
#include "runtime/model/tensor_type.h"

namespace kvrun {

enum class BufferUse : uint8_t {
  kDevice,    // only the device reads and writes it
  kUpload,    // the host writes, the device reads
  kReadback,  // the device writes, the host reads
  kShared,    // both read and write it: what either wrote reaches the other by Flush and Invalidate
  // As kDevice: a layer's KV of a shape that FitsKv. Where it is larger than max_buffer_bytes, RopeAndStore,
  // Attend and DecodeRecords alone take it.
  kKv,
};
constexpr bool IsOfDevice(BufferUse use) { return use == BufferUse::kDevice || use == BufferUse::kKv; }

// Zero-filled when made; on the device it reads as zeros for 256 bytes past its end. Freed with the object,
// which must not happen while a submitted list uses it.
class Buffer {
 public:
  virtual ~Buffer() = default;
  uint64_t size_bytes() const { return size_bytes_; }
  // The host's view, valid for the buffer's life; empty for kDevice and kKv.
  virtual std::span<std::byte> host() = 0;
  // kShared: what the host wrote there can be seen by lists that start later (Flush), and what complete lists
  // wrote there by the host (Invalidate). Any thread.
  virtual Status Flush(uint64_t offset_bytes, uint64_t length_bytes) = 0;
  virtual Status Invalidate(uint64_t offset_bytes, uint64_t length_bytes) = 0;

 protected:
  explicit Buffer(uint64_t size_bytes) : size_bytes_(size_bytes) {}
  uint64_t size_bytes_;
};

// A weight matrix [n_rows, n_cols] (y = W x) in the form that the device multiplies with.
class Matrix {
 public:
  virtual ~Matrix() = default;
  uint32_t n_rows() const { return n_rows_; }
  uint32_t n_cols() const { return n_cols_; }
  TensorType type() const { return type_; }
  virtual uint64_t size_bytes() const = 0;  // on the device
  // Of those, what a product of one row reads.
  virtual uint64_t row_product_bytes() const { return size_bytes(); }

 protected:
  Matrix(TensorType type, uint32_t n_rows, uint32_t n_cols) : type_(type), n_rows_(n_rows), n_cols_(n_cols) {}
  TensorType type_;
  uint32_t n_rows_;
  uint32_t n_cols_;
};

// Rows as they lie in a GGUF tensor: n_rows * n_cols elements of `type`, row after row. In memory, or read
// piece by piece: a large tensor is never there twice as a whole.
struct MatrixSource {
  std::span<const std::byte> data;
  uint32_t n_rows = 0;
  // Where `data` is empty: fills `to` with the bytes from `offset_bytes` on. Any thread.
  std::function<Status(uint64_t offset_bytes, std::span<std::byte> to)> read = {};
};

}  // namespace kvrun
