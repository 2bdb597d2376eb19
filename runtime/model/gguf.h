// Reader of GGUF files, versions 2 and 3, little endian.
//
// Every count, length and offset in the file is checked against the size of the file before it is used;
// a hostile file yields a Status that names the file, the place and the reason, and never reads outside of
// it nor allocates more than a small multiple of the file's size. Keys and the list of tensors are read when
// a file is opened, tensors when they are asked for: a file that is cut meanwhile is an error there.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "platform/base/status.h"
#include "platform/io/input_file.h"
#include "runtime/model/tensor_type.h"

namespace kvrun {

// An array of fixed-size numbers or bools, undecoded: elements may be unaligned in the file.
struct GgufNumberArray {
  uint32_t element_type = 0;  // a GGUF value type
  uint64_t count = 0;
  std::span<const std::byte> bytes;
};

// Strings point into what the GgufFile holds.
using GgufValue = std::variant<uint64_t, int64_t, double, bool, std::string_view, GgufNumberArray,
                               std::vector<std::string_view>>;

struct GgufTensor {
  std::string_view name;
  TensorType type = TensorType::kF32;
  uint32_t n_dims = 0;
  std::array<uint64_t, 4> shape = {1, 1, 1, 1};  // shape[0] is the contiguous (column) dimension
  uint64_t offset_bytes = 0;                     // in its file
  uint64_t size_bytes = 0;
  uint32_t part = 0;  // of a split model, which of its files: from 0 on

  uint64_t elements() const { return shape[0] * shape[1] * shape[2] * shape[3]; }
};

// Tensors of a type that kvrun does not know, which are counted, and have no place in tensors().
struct GgufUnknownTensors {
  uint64_t n_tensors = 0;
  uint64_t n_elements = 0;
};

// kKnown: a file with a tensor of an unknown type is refused.
enum class GgufTypes : uint8_t { kKnown, kAny };

// Immutable once opened; safe from several threads.
class GgufFile {
 public:
  // Keeps the file open. Spans and string_views stay valid as long as the GgufFile.
  static Result<std::unique_ptr<GgufFile>> Open(const std::string& path, GgufTypes types = GgufTypes::kKnown);
  // For tests and fuzzing: `bytes` must outlive the GgufFile; `name` appears in messages.
  static Result<std::unique_ptr<GgufFile>> Parse(std::span<const std::byte> bytes, std::string name);
  // Fills all of `to` with the tensor's bytes from `offset_bytes` on: the same whenever it is asked, from any
  // thread.
  using MakeBytes =
      std::function<void(const GgufTensor& tensor, uint64_t offset_bytes, std::span<std::byte> to)>;
  // A file that is nowhere: of a header (GgufWriter::Header) and of `data_bytes` of tensors, which are made
  // when they are read.
  static Result<std::unique_ptr<GgufFile>> Make(std::vector<std::byte> header, uint64_t data_bytes,
                                                MakeBytes make_bytes, std::string name);

  const std::string& name() const { return name_; }
  uint32_t version() const { return version_; }
  uint64_t size_bytes() const;  // of all its parts
  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  const GgufTensor* FindTensor(std::string_view name) const;  // null if absent
  // By the type's number in the file.
  const std::map<uint32_t, GgufUnknownTensors>& unknown_tensors() const { return unknown_tensors_; }
  // Ok where there are none; else what Open with GgufTypes::kKnown says of the first.
  const Status& CheckTypes() const { return types_status_; }

  const GgufValue* Find(std::string_view key) const;  // null if absent
  bool Has(std::string_view key) const { return Find(key) != nullptr; }

  // Typed access. Missing key → kNotFound; another type or a value out of range → kCorrupt; the message
  // names file and key. The *Or forms answer `fallback` only where the key is missing.
  Result<uint32_t> U32(std::string_view key) const;  // from any non-negative integer value
  Result<float> F32(std::string_view key) const;     // from a float or an integer; finite
  Result<bool> Bool(std::string_view key) const;
  Result<std::string_view> String(std::string_view key) const;
  Result<std::vector<std::string_view>> Strings(std::string_view key) const;
  Result<std::vector<float>> Floats(std::string_view key) const;  // float32 array
  Result<std::vector<int32_t>> Ints(std::string_view key) const;  // 8- to 32-bit integer or bool array
  Result<uint32_t> U32Or(std::string_view key, uint32_t fallback) const;
  Result<float> F32Or(std::string_view key, float fallback) const;
  Result<bool> BoolOr(std::string_view key, bool fallback) const;
  Result<std::string_view> StringOr(std::string_view key, std::string_view fallback) const;

  // Fills all of `to` with the tensor's bytes from `offset_bytes` on, which it must have. As InputFile::Read.
  Status Read(const GgufTensor& tensor, uint64_t offset_bytes, std::span<std::byte> to) const;
  Result<std::vector<std::byte>> ReadAll(const GgufTensor& tensor) const;
  // As InputFile::WillNeed, from the tensor's beginning on, and also behind its end.
  void WillNeed(const GgufTensor& tensor, uint64_t offset_bytes, uint64_t size_bytes) const;
  // kCorrupt where one of its files was cut or written to since it was opened.
  Status CheckUnchanged() const;

  // The files that it consists of, as they were opened; none where it was parsed in memory or made.
  std::vector<std::string> paths() const;
  // Whether `path` is a name of one of them.
  bool HasName(const std::string& path) const;

  // Takes over the other files of a split model, in their order. kCorrupt where a tensor is in two of them.
  Status Append(std::vector<std::unique_ptr<GgufFile>> parts);

 private:
  friend class GgufParser;

  bool is_on_disk() const { return memory_.empty() && !make_bytes_; }
  const GgufFile& PartOf(const GgufTensor& tensor) const;

  std::string name_;
  InputFile file_;
  std::span<const std::byte> memory_;    // the whole file, where it was parsed in memory
  MakeBytes make_bytes_;                 // where it was made
  std::vector<std::byte> made_header_;   // then: what keys and tensors point to...
  uint64_t made_bytes_ = 0;              // ...and how much the file would take
  std::unique_ptr<std::byte[]> header_;  // the beginning of file_, with all that keys and tensors point to
  std::vector<std::unique_ptr<GgufFile>> more_parts_;
  uint32_t version_ = 0;
  std::unordered_map<std::string_view, GgufValue> values_;
  std::vector<GgufTensor> tensors_;
  std::unordered_map<std::string_view, size_t> tensor_index_;
  std::map<uint32_t, GgufUnknownTensors> unknown_tensors_;
  Status types_status_;
};

}  // namespace kvrun
