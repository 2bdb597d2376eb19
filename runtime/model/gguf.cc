#include "runtime/model/gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "platform/base/check.h"
#include "platform/base/units.h"
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

constexpr uint64_t kFirstHeaderBytes = 2 * kMiB;
// Far above what any model has: tens of MiB.
constexpr uint64_t kMaxHeaderBytes = 256 * kMiB;

bool IsSmallInteger(uint32_t element_type) {
  return element_type <= static_cast<uint32_t>(GgufType::kI32) ||
         element_type == static_cast<uint32_t>(GgufType::kBool);
}

}  // namespace

// How long the header is says the header alone: twice as much is read as long as it does not suffice.
Result<std::unique_ptr<GgufFile>> GgufFile::Open(const std::string& path, GgufTypes types) {
  KVRUN_ASSIGN_OR_RETURN(InputFile input, InputFile::Open(path));
  std::unique_ptr<std::byte[]> header;
  uint64_t n_read = 0;
  for (uint64_t n_bytes = kFirstHeaderBytes;;) {
    n_bytes = std::min(n_bytes, input.size_bytes());
    std::unique_ptr<std::byte[]> longer(new std::byte[n_bytes]);
    if (n_read > 0) std::memcpy(longer.get(), header.get(), n_read);
    KVRUN_RETURN_IF_ERROR(input.Read(n_read, {longer.get() + n_read, n_bytes - n_read}));
    header = std::move(longer);
    n_read = n_bytes;
    auto file = std::make_unique<GgufFile>();
    file->name_ = path;
    GgufParser parser(*file, {header.get(), n_read}, input.size_bytes());
    const Status status = parser.Run();
    if (status.ok()) {
      if (types == GgufTypes::kKnown) KVRUN_RETURN_IF_ERROR(file->CheckTypes());
      file->file_ = std::move(input);
      file->header_ = std::move(header);
      return file;
    }
    if (parser.wanted_bytes() <= n_read) return status.WithContext(path);
    if (parser.wanted_bytes() > kMaxHeaderBytes) {
      return Status(
          StatusCode::kCorrupt,
          fmt::format("{}: its keys and its list of tensors take more than {}, which is not believable; "
                      "the file is damaged",
                      path, FormatBytes(kMaxHeaderBytes)));
    }
    n_bytes = std::max(2 * n_read, parser.wanted_bytes());
  }
}

Result<std::unique_ptr<GgufFile>> GgufFile::Parse(std::span<const std::byte> bytes, std::string name) {
  auto file = std::make_unique<GgufFile>();
  file->name_ = std::move(name);
  file->memory_ = bytes;
  const Status status = GgufParser(*file, bytes, bytes.size()).Run();
  if (!status.ok()) return status.WithContext(file->name_);
  KVRUN_RETURN_IF_ERROR(file->CheckTypes());
  return file;
}

Result<std::unique_ptr<GgufFile>> GgufFile::Make(std::vector<std::byte> header, uint64_t data_bytes,
                                                 MakeBytes make_bytes, std::string name) {
  auto file = std::make_unique<GgufFile>();
  file->name_ = std::move(name);
  file->made_header_ = std::move(header);
  file->made_bytes_ = file->made_header_.size() + data_bytes;
  file->make_bytes_ = std::move(make_bytes);
  const Status status = GgufParser(*file, file->made_header_, file->made_bytes_).Run();
  if (!status.ok()) return status.WithContext(file->name_);
  return file;
}

uint64_t GgufFile::size_bytes() const {
  uint64_t size_bytes = is_on_disk() ? file_.size_bytes() : std::max(memory_.size(), made_bytes_);
  for (const std::unique_ptr<GgufFile>& part : more_parts_) size_bytes += part->size_bytes();
  return size_bytes;
}

const GgufFile& GgufFile::PartOf(const GgufTensor& tensor) const {
  return tensor.part == 0 ? *this : *more_parts_[tensor.part - 1];
}

Status GgufFile::Read(const GgufTensor& tensor, uint64_t offset_bytes, std::span<std::byte> to) const {
  KVRUN_CHECK(offset_bytes <= tensor.size_bytes && to.size() <= tensor.size_bytes - offset_bytes);
  if (to.empty()) return Status::Ok();
  const GgufFile& part = PartOf(tensor);
  if (part.make_bytes_) {
    part.make_bytes_(tensor, offset_bytes, to);
    return Status::Ok();
  }
  const uint64_t begin = tensor.offset_bytes + offset_bytes;
  if (part.memory_.empty()) {
    const Status status = part.file_.Read(begin, to);
    return status.ok() ? status : status.WithContext(fmt::format("tensor {}", QuoteForMessage(tensor.name)));
  }
  std::memcpy(to.data(), part.memory_.data() + begin, to.size());
  return Status::Ok();
}

void GgufFile::WillNeed(const GgufTensor& tensor, uint64_t offset_bytes, uint64_t size_bytes) const {
  const GgufFile& part = PartOf(tensor);
  if (part.is_on_disk()) part.file_.WillNeed(tensor.offset_bytes + offset_bytes, size_bytes);
}

Result<std::vector<std::byte>> GgufFile::ReadAll(const GgufTensor& tensor) const {
  std::vector<std::byte> bytes(tensor.size_bytes);
  KVRUN_RETURN_IF_ERROR(Read(tensor, 0, bytes));
  return bytes;
}

Status GgufFile::CheckUnchanged() const {
  if (is_on_disk()) KVRUN_RETURN_IF_ERROR(file_.CheckUnchanged());
  for (const std::unique_ptr<GgufFile>& part : more_parts_) KVRUN_RETURN_IF_ERROR(part->CheckUnchanged());
  return Status::Ok();
}

std::vector<std::string> GgufFile::paths() const {
  if (!is_on_disk()) return {};
  std::vector<std::string> paths = {name_};
  for (const std::unique_ptr<GgufFile>& part : more_parts_) paths.push_back(part->name_);
  return paths;
}

bool GgufFile::HasName(const std::string& path) const {
  return file_.HasName(path) || std::any_of(more_parts_.begin(), more_parts_.end(),
                                            [&](const auto& part) { return part->HasName(path); });
}

Status GgufFile::Append(std::vector<std::unique_ptr<GgufFile>> parts) {
  for (std::unique_ptr<GgufFile>& part : parts) {
    const auto index = static_cast<uint32_t>(more_parts_.size() + 1);
    for (GgufTensor tensor : part->tensors_) {
      if (!tensor_index_.emplace(tensor.name, tensors_.size()).second) {
        return {StatusCode::kCorrupt,
                fmt::format("{}: tensor {} is in {} too: the files are not of one model", part->name_,
                            QuoteForMessage(tensor.name), PartOf(*FindTensor(tensor.name)).name_)};
      }
      tensor.part = index;
      tensors_.push_back(tensor);
    }
    for (const auto& [type, unknown] : part->unknown_tensors_) {
      unknown_tensors_[type].n_tensors += unknown.n_tensors;
      unknown_tensors_[type].n_elements += unknown.n_elements;
    }
    if (types_status_.ok()) types_status_ = part->types_status_;
    more_parts_.push_back(std::move(part));
  }
  return Status::Ok();
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
