#include "runtime/model/gguf_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <utility>

#include "platform/base/units.h"

namespace kvrun {
namespace {

// Far above what any model has; they keep the cost of a hostile file small.
constexpr uint64_t kMaxKeys = 65536;
constexpr uint64_t kMaxTensors = 65536;
// Limits of the format.
constexpr size_t kMaxKeyBytes = 65535;
constexpr size_t kMaxTensorNameBytes = 64;
constexpr uint32_t kMaxDims = 4;
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint64_t kMinAlignment = 8;
constexpr uint64_t kMaxAlignment = 65536;
// Bytes that the shortest possible key or tensor description takes.
constexpr uint64_t kMinKeyBytes = 8 + 1 + 4 + 1;
constexpr uint64_t kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;

constexpr std::string_view kDamaged = "the file is cut short or damaged";

uint64_t LittleEndian(std::span<const std::byte> bytes) {
  uint64_t value = 0;
  for (size_t i = bytes.size(); i-- > 0;) value = value << 8 | std::to_integer<uint64_t>(bytes[i]);
  return value;
}

std::string_view AsText(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

bool MultiplyFits(uint64_t a, uint64_t b, uint64_t& product) {
  if (a != 0 && b > std::numeric_limits<uint64_t>::max() / a) return false;
  product = a * b;
  return true;
}

struct KnownStart {
  std::string_view bytes;
  std::string_view meaning;
};

// Files that people pass by mistake.
constexpr std::array kKnownStarts = {
    KnownStart{"tjgg", "an old GGML (GGJT) file; convert the model to GGUF again"},
    KnownStart{"fmgg", "an old GGML (GGMF) file; convert the model to GGUF again"},
    KnownStart{"lmgg", "an old GGML file; convert the model to GGUF again"},
    KnownStart{"version https://git-lfs",
               "a Git LFS pointer, not the model itself; fetch it with 'git lfs pull'"},
    KnownStart{"<", "a web page or XML, not the model itself; download the model again"},
    KnownStart{"PK\x03\x04", "a zip or PyTorch file; convert the model to GGUF"},
};

Status NotGguf(std::string_view start) {
  for (const KnownStart& known : kKnownStarts) {
    if (start.starts_with(known.bytes)) {
      return {StatusCode::kCorrupt, fmt::format("this is not a GGUF file: it is {}", known.meaning)};
    }
  }
  return {StatusCode::kCorrupt, fmt::format("this is not a GGUF file: it starts with {}, not \"GGUF\"",
                                            QuoteForMessage(start.substr(0, 4)))};
}

Result<GgufValue> NumberValue(GgufType type, std::span<const std::byte> bytes) {
  const uint64_t bits = LittleEndian(bytes);
  switch (type) {
    case GgufType::kI8: return GgufValue(int64_t{static_cast<int8_t>(bits)});
    case GgufType::kI16: return GgufValue(int64_t{static_cast<int16_t>(bits)});
    case GgufType::kI32: return GgufValue(int64_t{static_cast<int32_t>(bits)});
    case GgufType::kI64: return GgufValue(static_cast<int64_t>(bits));
    case GgufType::kF32: return GgufValue(double{std::bit_cast<float>(static_cast<uint32_t>(bits))});
    case GgufType::kF64: return GgufValue(std::bit_cast<double>(bits));
    case GgufType::kBool:
      if (bits > 1) {
        return Status(StatusCode::kCorrupt,
                      fmt::format("a bool is 0 or 1, but {} is stored; {}", bits, kDamaged));
      }
      return GgufValue(bits == 1);
    default: return GgufValue(bits);
  }
}

}  // namespace

uint32_t GgufTypeBytes(uint32_t type) {
  switch (static_cast<GgufType>(type)) {
    case GgufType::kU8:
    case GgufType::kI8:
    case GgufType::kBool: return 1;
    case GgufType::kU16:
    case GgufType::kI16: return 2;
    case GgufType::kU32:
    case GgufType::kI32:
    case GgufType::kF32: return 4;
    case GgufType::kU64:
    case GgufType::kI64:
    case GgufType::kF64: return 8;
    case GgufType::kString:
    case GgufType::kArray: return 0;
  }
  return 0;
}

std::string QuoteForMessage(std::string_view text) {
  constexpr size_t kMaxShown = 80;
  std::string quoted = "\"";
  for (const char c : text.substr(0, kMaxShown)) {
    if (c >= 0x20 && c < 0x7F) {
      quoted += c;
    } else {
      quoted += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  quoted += text.size() > kMaxShown ? "...\"" : "\"";
  return quoted;
}

Status GgufCursor::PastEnd(std::string_view what, uint64_t at) const {
  return {StatusCode::kCorrupt, fmt::format("{} at byte {} runs past the end of the file ({} bytes); {}",
                                            what, at, file_bytes_, kDamaged)};
}

Result<std::span<const std::byte>> GgufCursor::TakeThere(uint64_t count) {
  if (count > remaining_in_memory()) {
    wanted_bytes_ = position_ + count;
    return Status(StatusCode::kInternal, "more of the file is needed");
  }
  const auto taken = bytes_.subspan(position_, count);
  position_ += count;
  return taken;
}

Result<std::span<const std::byte>> GgufCursor::Take(uint64_t count, std::string_view what) {
  if (count > remaining()) return PastEnd(what, position_);
  return TakeThere(count);
}

Result<uint32_t> GgufCursor::U32(std::string_view what) {
  KVRUN_ASSIGN_OR_RETURN(const auto bytes, Take(4, what));
  return static_cast<uint32_t>(LittleEndian(bytes));
}

Result<uint64_t> GgufCursor::U64(std::string_view what) {
  KVRUN_ASSIGN_OR_RETURN(const auto bytes, Take(8, what));
  return LittleEndian(bytes);
}

Result<std::string_view> GgufCursor::String() {
  const uint64_t at = position_;
  KVRUN_ASSIGN_OR_RETURN(const uint64_t length, U64("a string length"));
  if (length > remaining()) return PastEnd(fmt::format("string length {}", length), at);
  KVRUN_ASSIGN_OR_RETURN(const auto bytes, TakeThere(length));
  return AsText(bytes);
}

Result<uint64_t> GgufCursor::Count(std::string_view what, uint64_t min_bytes) {
  const uint64_t at = position_;
  KVRUN_ASSIGN_OR_RETURN(const uint64_t count, U64(what));
  if (count > remaining() / min_bytes) return PastEnd(fmt::format("{} {}", what, count), at);
  return count;
}

Status GgufParser::Run() {
  KVRUN_RETURN_IF_ERROR(CheckMagicAndVersion());
  const uint64_t counts_at = cursor_.position();
  KVRUN_ASSIGN_OR_RETURN(const uint64_t tensor_count, cursor_.Count("tensor count", kMinTensorBytes));
  KVRUN_ASSIGN_OR_RETURN(const uint64_t key_count, cursor_.Count("key count", kMinKeyBytes));
  if (tensor_count > kMaxTensors || key_count > kMaxKeys) {
    return {StatusCode::kCorrupt,
            fmt::format("the header says {} tensors and {} keys (at byte {}): more than {} tensors or {} "
                        "keys are not believable; the file is damaged",
                        tensor_count, key_count, counts_at, kMaxTensors, kMaxKeys)};
  }
  KVRUN_RETURN_IF_ERROR(ReadKeys(key_count));
  return ReadTensors(tensor_count);
}

Status GgufParser::CheckMagicAndVersion() {
  const auto bytes = beginning_;
  if (bytes.empty()) return {StatusCode::kCorrupt, "the file is empty (0 bytes)"};
  const std::string_view start = AsText(bytes.first(std::min<size_t>(bytes.size(), 32)));
  const std::string_view magic = start.substr(0, 4);
  const bool has_reversed_magic = magic == "FUGG";
  if (magic != "GGUF" && !has_reversed_magic) return NotGguf(start);
  KVRUN_RETURN_IF_ERROR(cursor_.Take(4, "the magic").status());
  KVRUN_ASSIGN_OR_RETURN(file_.version_, cursor_.U32("the version"));
  const uint32_t version = file_.version_;
  if (has_reversed_magic || (version != 0 && (version & 0xFFFFU) == 0)) {
    return {StatusCode::kUnsupported,
            "this is a big-endian GGUF file; kvrun reads little-endian ones: convert it, or download the "
            "little-endian one"};
  }
  if (version == 1) {
    return {StatusCode::kUnsupported,
            "this is GGUF version 1, of 2023; kvrun reads versions 2 and 3: convert the model again"};
  }
  if (version != 2 && version != 3) {
    return {StatusCode::kUnsupported,
            fmt::format("GGUF version {} is not known; kvrun reads versions 2 and 3", version)};
  }
  return Status::Ok();
}

Status GgufParser::ReadKeys(uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t at = cursor_.position();
    const auto where = [&] { return fmt::format("key {} of {}", i + 1, count); };
    Result<std::string_view> key = cursor_.String();
    if (!key.ok()) return key.status().WithContext(where());
    if (key->empty() || key->size() > kMaxKeyBytes) {
      return {StatusCode::kCorrupt, fmt::format("{}: its name at byte {} has {} bytes; 1 to {} are allowed",
                                                where(), at, key->size(), kMaxKeyBytes)};
    }
    const auto name = [&] { return fmt::format("key {}", QuoteForMessage(*key)); };
    const Result<uint32_t> type = cursor_.U32("a value type");
    if (!type.ok()) return type.status().WithContext(name());
    Result<GgufValue> value = ReadValue(*type);
    if (!value.ok()) return value.status().WithContext(name());
    if (!file_.values_.emplace(*key, std::move(*value)).second) {
      return {StatusCode::kCorrupt, fmt::format("{} is there twice, again at byte {}", name(), at)};
    }
  }
  return Status::Ok();
}

Result<GgufValue> GgufParser::ReadValue(uint32_t type) {
  if (type == static_cast<uint32_t>(GgufType::kString)) {
    KVRUN_ASSIGN_OR_RETURN(const std::string_view text, cursor_.String());
    return GgufValue(text);
  }
  if (type == static_cast<uint32_t>(GgufType::kArray)) return ReadArray();
  const uint32_t size_bytes = GgufTypeBytes(type);
  if (size_bytes == 0) {
    return Status(StatusCode::kCorrupt,
                  fmt::format("value type {} at byte {} is not one of the format's (0 to 12)", type,
                              cursor_.position() - 4));
  }
  KVRUN_ASSIGN_OR_RETURN(const auto bytes, cursor_.Take(size_bytes, "a value"));
  return NumberValue(static_cast<GgufType>(type), bytes);
}

Result<GgufValue> GgufParser::ReadArray() {
  const uint64_t at = cursor_.position();
  KVRUN_ASSIGN_OR_RETURN(const uint32_t type, cursor_.U32("an array's element type"));
  if (type == static_cast<uint32_t>(GgufType::kArray)) {
    return Status(
        StatusCode::kUnsupported,
        fmt::format("it is an array of arrays (at byte {}); kvrun reads arrays of numbers, bools and strings",
                    at));
  }
  if (type == static_cast<uint32_t>(GgufType::kString)) {
    KVRUN_ASSIGN_OR_RETURN(const uint64_t count, cursor_.Count("array length", sizeof(uint64_t)));
    std::vector<std::string_view> strings;
    // A file may have a length that its disk has not.
    strings.reserve(std::min(count, cursor_.remaining_in_memory() / sizeof(uint64_t)));
    for (uint64_t i = 0; i < count; ++i) {
      KVRUN_ASSIGN_OR_RETURN(strings.emplace_back(), cursor_.String());
    }
    return GgufValue(std::move(strings));
  }
  const uint32_t element_bytes = GgufTypeBytes(type);
  if (element_bytes == 0) {
    return Status(StatusCode::kCorrupt,
                  fmt::format("element type {} at byte {} is not one of the format's (0 to 12)", type, at));
  }
  KVRUN_ASSIGN_OR_RETURN(const uint64_t count, cursor_.Count("array length", element_bytes));
  KVRUN_ASSIGN_OR_RETURN(const auto bytes, cursor_.Take(count * element_bytes, "an array"));
  return GgufValue(GgufNumberArray{type, count, bytes});
}

Result<uint64_t> GgufParser::ReadAlignment() const {
  const GgufValue* value = file_.Find("general.alignment");
  if (value == nullptr) return kDefaultAlignment;
  const uint64_t* alignment = std::get_if<uint64_t>(value);
  if (alignment == nullptr) {
    return Status(StatusCode::kCorrupt, "key \"general.alignment\" is not an unsigned integer");
  }
  if (!std::has_single_bit(*alignment) || *alignment < kMinAlignment || *alignment > kMaxAlignment) {
    return Status(StatusCode::kCorrupt,
                  fmt::format("key \"general.alignment\" is {}; it must be a power of two from {} to {}",
                              *alignment, kMinAlignment, kMaxAlignment));
  }
  return *alignment;
}

Status GgufParser::ReadTensors(uint64_t count) {
  KVRUN_ASSIGN_OR_RETURN(const uint64_t alignment, ReadAlignment());
  std::vector<uint64_t> offsets;
  offsets.reserve(count);
  file_.tensors_.reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t at = cursor_.position();
    const auto where = [&] { return fmt::format("tensor {} of {}", i + 1, count); };
    uint64_t offset = 0;
    uint32_t type = 0;
    Result<GgufTensor> tensor = ReadTensorInfo(offset, type);
    if (!tensor.ok()) return tensor.status().WithContext(where());
    if (FindTensorType(type) == nullptr) {
      CountUnknown(*tensor, type, where());
      continue;
    }
    offsets.push_back(offset);
    if (!file_.tensor_index_.emplace(tensor->name, file_.tensors_.size()).second) {
      return {StatusCode::kCorrupt,
              fmt::format("tensor {} is there twice, again at byte {}", QuoteForMessage(tensor->name), at)};
    }
    file_.tensors_.push_back(*tensor);
  }
  const uint64_t data_start = RoundUp(cursor_.position(), alignment);
  for (size_t i = 0; i < file_.tensors_.size(); ++i) {
    KVRUN_RETURN_IF_ERROR(PlaceTensor(file_.tensors_[i], offsets[i], alignment, data_start));
  }
  return CheckOverlap();
}

void GgufParser::CountUnknown(const GgufTensor& tensor, uint32_t type, std::string_view where) {
  GgufUnknownTensors& unknown = file_.unknown_tensors_[type];
  ++unknown.n_tensors;
  unknown.n_elements += tensor.elements();
  if (!file_.types_status_.ok()) return;
  const Status status = {StatusCode::kUnsupported,
                         fmt::format("tensor type {} is not supported; kvrun reads {}: quantise the model to "
                                     "one of them",
                                     type, KnownTensorTypes())};
  file_.types_status_ =
      status.WithContext(QuoteForMessage(tensor.name)).WithContext(where).WithContext(file_.name_);
}

Result<GgufTensor> GgufParser::ReadTensorInfo(uint64_t& offset, uint32_t& type) {
  GgufTensor tensor;
  const uint64_t at = cursor_.position();
  KVRUN_ASSIGN_OR_RETURN(tensor.name, cursor_.String());
  if (tensor.name.empty() || tensor.name.size() > kMaxTensorNameBytes) {
    return Status(StatusCode::kCorrupt, fmt::format("its name at byte {} has {} bytes; 1 to {} are allowed",
                                                    at, tensor.name.size(), kMaxTensorNameBytes));
  }
  const auto with_name = [&](const Status& status) {
    return status.WithContext(QuoteForMessage(tensor.name));
  };
  if (const Status status = ReadShape(tensor); !status.ok()) return with_name(status);
  const Result<uint32_t> read_type = cursor_.U32("a tensor type");
  if (!read_type.ok()) return with_name(read_type.status());
  type = *read_type;
  if (const TensorTypeInfo* info = FindTensorType(type); info != nullptr) tensor.type = info->type;
  const Result<uint64_t> read_offset = cursor_.U64("a tensor offset");
  if (!read_offset.ok()) return with_name(read_offset.status());
  offset = *read_offset;
  return tensor;
}

Status GgufParser::ReadShape(GgufTensor& tensor) {
  KVRUN_ASSIGN_OR_RETURN(tensor.n_dims, cursor_.U32("a number of dimensions"));
  if (tensor.n_dims < 1 || tensor.n_dims > kMaxDims) {
    return {StatusCode::kCorrupt, fmt::format("it has {} dimensions (at byte {}); 1 to {} are allowed",
                                              tensor.n_dims, cursor_.position() - 4, kMaxDims)};
  }
  uint64_t elements = 1;
  for (uint32_t d = 0; d < tensor.n_dims; ++d) {
    KVRUN_ASSIGN_OR_RETURN(tensor.shape[d], cursor_.U64("a dimension"));
    if (tensor.shape[d] == 0) {
      return {StatusCode::kCorrupt, fmt::format("dimension {} is 0 at byte {}", d, cursor_.position() - 8)};
    }
    if (!MultiplyFits(elements, tensor.shape[d], elements)) {
      return {StatusCode::kCorrupt,
              fmt::format("dimension {} is {} (at byte {}), which makes more elements than 64 bits can count",
                          d, tensor.shape[d], cursor_.position() - 8)};
    }
  }
  return Status::Ok();
}

Status GgufParser::PlaceTensor(GgufTensor& tensor, uint64_t offset, uint64_t alignment,
                               uint64_t data_start) const {
  const TensorTypeInfo& info = GetTensorType(tensor.type);
  const std::string name = fmt::format("tensor {}", QuoteForMessage(tensor.name));
  if (tensor.shape[0] % info.block_elements != 0) {
    return {StatusCode::kCorrupt,
            fmt::format("{}: rows of {} elements are not a whole number of {} blocks of {}", name,
                        tensor.shape[0], info.name, info.block_elements)};
  }
  if (offset % alignment != 0) {
    return {StatusCode::kCorrupt,
            fmt::format("{}: offset {} is not a multiple of the alignment, {}", name, offset, alignment)};
  }
  uint64_t size_bytes = 0;
  const bool size_fits = MultiplyFits(tensor.elements() / info.block_elements, info.block_bytes, size_bytes);
  const uint64_t file_bytes = cursor_.file_bytes();
  const uint64_t data_bytes = file_bytes > data_start ? file_bytes - data_start : 0;
  if (!size_fits || size_bytes > data_bytes || offset > data_bytes - size_bytes) {
    return {StatusCode::kCorrupt,
            fmt::format(
                "{}: its data ({} elements of {}) at offset {} behind byte {} runs past the end of the file "
                "({} bytes); {}",
                name, tensor.elements(), info.name, offset, data_start, file_bytes, kDamaged)};
  }
  tensor.offset_bytes = data_start + offset;
  tensor.size_bytes = size_bytes;
  return Status::Ok();
}

Status GgufParser::CheckOverlap() const {
  std::vector<const GgufTensor*> by_place;
  by_place.reserve(file_.tensors_.size());
  for (const GgufTensor& tensor : file_.tensors_) by_place.push_back(&tensor);
  std::sort(by_place.begin(), by_place.end(),
            [](const GgufTensor* a, const GgufTensor* b) { return a->offset_bytes < b->offset_bytes; });
  for (size_t i = 1; i < by_place.size(); ++i) {
    const GgufTensor& before = *by_place[i - 1];
    if (before.offset_bytes + before.size_bytes > by_place[i]->offset_bytes) {
      return {StatusCode::kCorrupt,
              fmt::format("the data of tensors {} and {} overlap; the file is damaged",
                          QuoteForMessage(before.name), QuoteForMessage(by_place[i]->name))};
    }
  }
  return Status::Ok();
}

}  // namespace kvrun
