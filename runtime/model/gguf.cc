#include "runtime/model/gguf.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "runtime/model/gguf_parser.h"

namespace kvrun {
namespace {

std::string_view KindName(const GgufValue& value) {
  constexpr std::array<std::string_view, std::variant_size_v<GgufValue>> kNames = {
      "an unsigned integer", "a signed integer",   "a float", "a bool", "a string",
      "an array of numbers", "an array of strings"};
  return kNames[value.index()];
}

Status Missing(const std::string& file, std::string_view key) {
  return {StatusCode::kNotFound, fmt::format("{}: key {} is missing", file, QuoteForMessage(key))};
}

Status WrongKind(const std::string& file, std::string_view key, const GgufValue& value,
                 std::string_view expected) {
  return {StatusCode::kCorrupt, fmt::format("{}: key {} is {}, expected {}", file, QuoteForMessage(key),
                                            KindName(value), expected)};
}

Status OutOfRange(const std::string& file, std::string_view key, const std::string& value,
                  std::string_view range) {
  return {StatusCode::kCorrupt,
          fmt::format("{}: key {} is {}; it must be {}", file, QuoteForMessage(key), value, range)};
}

// The value of `key` as the alternative T, or why not.
template <typename T>
Result<const T*> FindAs(const GgufFile& file, std::string_view key, std::string_view expected) {
  const GgufValue* value = file.Find(key);
  if (value == nullptr) return Missing(file.name(), key);
  const T* held = std::get_if<T>(value);
  if (held == nullptr) return WrongKind(file.name(), key, *value, expected);
  return held;
}

// Element `index` of an array of 8- to 32-bit integers, widened.
int64_t IntegerElement(const GgufNumberArray& array, uint64_t index) {
  const uint32_t size_bytes = GgufTypeBytes(array.element_type);
  uint64_t bits = 0;
  for (uint32_t i = size_bytes; i-- > 0;) {
    bits = bits << 8 | std::to_integer<uint64_t>(array.bytes[index * size_bytes + i]);
  }
  switch (static_cast<GgufType>(array.element_type)) {
    case GgufType::kI8: return static_cast<int8_t>(bits);
    case GgufType::kI16: return static_cast<int16_t>(bits);
    case GgufType::kI32: return static_cast<int32_t>(bits);
    default: return static_cast<int64_t>(bits);
  }
}

bool IsSmallInteger(uint32_t element_type) { return element_type <= static_cast<uint32_t>(GgufType::kI32); }

}  // namespace

Result<std::unique_ptr<GgufFile>> GgufFile::Open(const std::string& path) {
  KVRUN_ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::Open(path));
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<GgufFile> file, Parse(mapped.bytes(), path));
  file->file_ = std::move(mapped);
  return file;
}

Result<std::unique_ptr<GgufFile>> GgufFile::Parse(std::span<const std::byte> bytes, std::string name) {
  auto file = std::make_unique<GgufFile>();
  file->name_ = std::move(name);
  file->bytes_ = bytes;
  const Status status = GgufParser(*file).Run();
  if (!status.ok()) return status.WithContext(file->name_);
  return file;
}

const GgufTensor* GgufFile::FindTensor(std::string_view name) const {
  const auto found = tensor_index_.find(name);
  return found == tensor_index_.end() ? nullptr : &tensors_[found->second];
}

const GgufValue* GgufFile::Find(std::string_view key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

Result<uint32_t> GgufFile::U32(std::string_view key) const {
  constexpr uint64_t kMax = std::numeric_limits<uint32_t>::max();
  const GgufValue* value = Find(key);
  if (value == nullptr) return Missing(name_, key);
  if (const auto* number = std::get_if<uint64_t>(value)) {
    if (*number <= kMax) return static_cast<uint32_t>(*number);
    return OutOfRange(name_, key, fmt::to_string(*number), "below 2^32");
  }
  if (const auto* number = std::get_if<int64_t>(value)) {
    if (*number >= 0 && static_cast<uint64_t>(*number) <= kMax) return static_cast<uint32_t>(*number);
    return OutOfRange(name_, key, fmt::to_string(*number), "from 0 to below 2^32");
  }
  return WrongKind(name_, key, *value, "an integer");
}

Result<float> GgufFile::F32(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return Missing(name_, key);
  double number = 0;
  if (const auto* real = std::get_if<double>(value)) {
    number = *real;
  } else if (const auto* natural = std::get_if<uint64_t>(value)) {
    number = static_cast<double>(*natural);
  } else if (const auto* integer = std::get_if<int64_t>(value)) {
    number = static_cast<double>(*integer);
  } else {
    return WrongKind(name_, key, *value, "a number");
  }
  if (!std::isfinite(number) || std::abs(number) > double{std::numeric_limits<float>::max()}) {
    return OutOfRange(name_, key, fmt::to_string(number), "a finite 32-bit float");
  }
  return static_cast<float>(number);
}

Result<bool> GgufFile::Bool(std::string_view key) const {
  KVRUN_ASSIGN_OR_RETURN(const bool* value, FindAs<bool>(*this, key, "a bool"));
  return *value;
}

Result<std::string_view> GgufFile::String(std::string_view key) const {
  KVRUN_ASSIGN_OR_RETURN(const std::string_view* value, FindAs<std::string_view>(*this, key, "a string"));
  return *value;
}

Result<std::vector<std::string_view>> GgufFile::Strings(std::string_view key) const {
  using Strings = std::vector<std::string_view>;
  const GgufValue* value = Find(key);
  // An empty array may be marked as one of numbers.
  if (value != nullptr) {
    if (const auto* numbers = std::get_if<GgufNumberArray>(value);
        numbers != nullptr && numbers->count == 0) {
      return Strings();
    }
  }
  KVRUN_ASSIGN_OR_RETURN(const Strings* strings, FindAs<Strings>(*this, key, "an array of strings"));
  return *strings;
}

Result<std::vector<float>> GgufFile::Floats(std::string_view key) const {
  constexpr std::string_view kExpected = "an array of 32-bit floats";
  KVRUN_ASSIGN_OR_RETURN(const GgufNumberArray* array, FindAs<GgufNumberArray>(*this, key, kExpected));
  if (array->element_type != static_cast<uint32_t>(GgufType::kF32)) {
    return Status(StatusCode::kCorrupt,
                  fmt::format("{}: key {} has elements of GGUF type {}, expected {}", name_,
                              QuoteForMessage(key), array->element_type, kExpected));
  }
  std::vector<float> values(array->count);
  DecodeTensor(TensorType::kF32, array->bytes, values);
  return values;
}

Result<std::vector<int32_t>> GgufFile::Ints(std::string_view key) const {
  constexpr std::string_view kExpected = "an array of 8- to 32-bit integers";
  KVRUN_ASSIGN_OR_RETURN(const GgufNumberArray* array, FindAs<GgufNumberArray>(*this, key, kExpected));
  if (!IsSmallInteger(array->element_type)) {
    return Status(StatusCode::kCorrupt,
                  fmt::format("{}: key {} has elements of GGUF type {}, expected {}", name_,
                              QuoteForMessage(key), array->element_type, kExpected));
  }
  std::vector<int32_t> values(array->count);
  for (uint64_t i = 0; i < array->count; ++i) {
    const int64_t element = IntegerElement(*array, i);
    if (element > std::numeric_limits<int32_t>::max()) {
      return OutOfRange(name_, fmt::format("{}[{}]", key, i), fmt::to_string(element), "below 2^31");
    }
    values[i] = static_cast<int32_t>(element);
  }
  return values;
}

Result<uint32_t> GgufFile::U32Or(std::string_view key, uint32_t fallback) const {
  return Has(key) ? U32(key) : fallback;
}

Result<float> GgufFile::F32Or(std::string_view key, float fallback) const {
  return Has(key) ? F32(key) : fallback;
}

Result<bool> GgufFile::BoolOr(std::string_view key, bool fallback) const {
  return Has(key) ? Bool(key) : fallback;
}

Result<std::string_view> GgufFile::StringOr(std::string_view key, std::string_view fallback) const {
  return Has(key) ? String(key) : fallback;
}

}  // namespace kvrun
