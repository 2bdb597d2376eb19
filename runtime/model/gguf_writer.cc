#include "runtime/model/gguf_writer.h"

#include <bit>
#include <concepts>
#include <cstring>

#include "platform/base/check.h"
#include "platform/base/units.h"

namespace kvrun {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF files are little endian");

constexpr uint64_t kAlignment = 32;  // the format's default
constexpr uint32_t kU32 = 4;         // value types of the format
constexpr uint32_t kF32 = 6;
constexpr uint32_t kString = 8;
constexpr uint32_t kArray = 9;
constexpr uint32_t kU64 = 10;

void PutBytes(std::vector<std::byte>& to, std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  // Not insert: GCC 12 takes its growth for an overflow.
  const size_t begin = to.size();
  to.resize(begin + bytes.size());
  std::memcpy(to.data() + begin, bytes.data(), bytes.size());
}

template <std::integral T>
void Put(std::vector<std::byte>& to, T value) {
  PutBytes(to, std::as_bytes(std::span(&value, 1)));
}

void PutString(std::vector<std::byte>& to, std::string_view text) {
  Put(to, uint64_t{text.size()});
  PutBytes(to, std::as_bytes(std::span(text.data(), text.size())));
}

void PadToAlignment(std::vector<std::byte>& bytes) { bytes.resize(RoundUp(bytes.size(), kAlignment)); }

}  // namespace

void GgufWriter::Set(std::string_view key, uint32_t value) {
  ++n_keys_;
  PutString(keys_, key);
  Put(keys_, kU32);
  Put(keys_, value);
}

void GgufWriter::Set(std::string_view key, uint64_t value) {
  ++n_keys_;
  PutString(keys_, key);
  Put(keys_, kU64);
  Put(keys_, value);
}

void GgufWriter::Set(std::string_view key, std::string_view value) {
  ++n_keys_;
  PutString(keys_, key);
  Put(keys_, kString);
  PutString(keys_, value);
}

void GgufWriter::Set(std::string_view key, std::span<const float> values) {
  ++n_keys_;
  PutString(keys_, key);
  Put(keys_, kArray);
  Put(keys_, kF32);
  Put(keys_, uint64_t{values.size()});
  PutBytes(keys_, std::as_bytes(values));
}

void GgufWriter::Set(std::string_view key, std::span<const uint32_t> values) {
  ++n_keys_;
  PutString(keys_, key);
  Put(keys_, kArray);
  Put(keys_, kU32);
  Put(keys_, uint64_t{values.size()});
  PutBytes(keys_, std::as_bytes(values));
}

void GgufWriter::Set(std::string_view key, std::span<const std::string> values) {
  ++n_keys_;
  PutString(keys_, key);
  Put(keys_, kArray);
  Put(keys_, kString);
  Put(keys_, uint64_t{values.size()});
  for (const std::string& value : values) PutString(keys_, value);
}

void GgufWriter::Set(std::string_view key, float value) {
  ++n_keys_;
  PutString(keys_, key);
  Put(keys_, kF32);
  Put(keys_, std::bit_cast<uint32_t>(value));
}

uint64_t GgufWriter::Declare(std::string_view name, TensorType type, std::vector<uint64_t> shape) {
  const TensorTypeInfo& info = GetTensorType(type);
  uint64_t n_bytes = info.block_bytes;
  for (const uint64_t n : shape) n_bytes *= n;
  n_bytes /= info.block_elements;
  const uint64_t offset = RoundUp(data_bytes_, kAlignment);
  tensors_.push_back({std::string(name), type, std::move(shape), offset});
  data_bytes_ = offset + n_bytes;
  return offset;
}

void GgufWriter::AddTensor(std::string_view name, TensorType type, std::vector<uint64_t> shape,
                           std::span<const std::byte> data) {
  data_.resize(Declare(name, type, std::move(shape)));
  PutBytes(data_, data);
  KVRUN_CHECK(data_.size() == data_bytes_);
}

std::vector<std::byte> GgufWriter::Header() const {
  std::vector<std::byte> file;
  PutBytes(file, std::as_bytes(std::span("GGUF", 4)));
  Put(file, uint32_t{3});
  Put(file, uint64_t{tensors_.size()});
  Put(file, n_keys_);
  PutBytes(file, keys_);
  for (const Tensor& tensor : tensors_) {
    PutString(file, tensor.name);
    Put(file, static_cast<uint32_t>(tensor.shape.size()));
    for (const uint64_t n : tensor.shape) Put(file, n);
    Put(file, static_cast<uint32_t>(tensor.type));
    Put(file, tensor.offset);
  }
  PadToAlignment(file);
  return file;
}

std::vector<std::byte> GgufWriter::Finish() const {
  std::vector<std::byte> file = Header();
  PutBytes(file, data_);
  return file;
}

}  // namespace kvrun
