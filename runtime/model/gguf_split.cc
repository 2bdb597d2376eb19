// Not grouped (cmake/KvrunCompile.cmake): its names are others', too.
#include "runtime/model/gguf_split.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>
#include <vector>

namespace kvrun {
namespace {

// Numbers from 0 on, of 16 bits; in files' names from 1 on.
constexpr std::string_view kNumberKey = "split.no";
constexpr std::string_view kCountKey = "split.count";
constexpr std::string_view kTensorsKey = "split.tensors.count";
constexpr uint32_t kMaxParts = 65535;

struct Place {
  uint32_t number = 0;
  uint32_t count = 1;
  uint32_t n_tensors = 0;  // of the whole model

  friend bool operator==(const Place&, const Place&) = default;
};

std::string EndOfName(uint32_t number, uint32_t count) {
  return fmt::format("-{:05}-of-{:05}.gguf", number + 1, count);
}

Result<Place> PlaceOf(const GgufFile& file) {
  Place place;
  KVRUN_ASSIGN_OR_RETURN(place.count, file.U32Or(kCountKey, 1));
  KVRUN_ASSIGN_OR_RETURN(place.number, file.U32Or(kNumberKey, 0));
  KVRUN_ASSIGN_OR_RETURN(place.n_tensors, file.U32Or(kTensorsKey, 0));
  if (place.count == 0 || place.count > kMaxParts || place.number >= place.count) {
    return Status(StatusCode::kCorrupt,
                  fmt::format("{}: it says that it is part {} of {} of a split model; the file is damaged",
                              file.name(), uint64_t{place.number} + 1, place.count));
  }
  return place;
}

// Parts may repeat what the first one says of the model.
bool Contradicts(const GgufFile& part, const GgufFile& first) {
  for (const std::string_view key : {"general.architecture", "general.name"}) {
    const auto own = part.String(key);
    const auto other = first.String(key);
    if (own.ok() && other.ok() && *own != *other) return true;
  }
  return false;
}

Result<std::unique_ptr<GgufFile>> OpenPart(const std::string& path, const Place& expected, GgufTypes types) {
  auto part = GgufFile::Open(path, types);
  if (part.status().code() == StatusCode::kNotFound) {
    return Status(
        StatusCode::kNotFound,
        fmt::format("{}: the model is split into {} files, and this one is missing: put it beside the "
                    "others",
                    path, expected.count));
  }
  KVRUN_RETURN_IF_ERROR(part.status());
  KVRUN_ASSIGN_OR_RETURN(const Place place, PlaceOf(**part));
  if (place == expected) return part;
  const std::string what =
      place.number != expected.number || place.count != expected.count
          ? fmt::format("part {} of {}", place.number + 1, place.count)
          : fmt::format("part of a model of {} tensors, not of {}", place.n_tensors, expected.n_tensors);
  return Status(
      StatusCode::kCorrupt,
      fmt::format("{}: by its name it is part {} of {}, but by its content it is {}: put the model's "
                  "own part there",
                  path, expected.number + 1, expected.count, what));
}

}  // namespace

Result<std::unique_ptr<GgufFile>> OpenModelFile(const std::string& path, GgufTypes types) {
  KVRUN_ASSIGN_OR_RETURN(std::unique_ptr<GgufFile> named, GgufFile::Open(path, types));
  KVRUN_ASSIGN_OR_RETURN(const Place place, PlaceOf(*named));
  if (place.count == 1) return named;
  const std::string end = EndOfName(place.number, place.count);
  if (!path.ends_with(end)) {
    return Status(
        StatusCode::kInvalidArgument,
        fmt::format("{}: it is part {} of {} of a split model, whose parts are found by their names: "
                    "rename it so that it ends in {}, and the others likewise",
                    path, place.number + 1, place.count, end));
  }
  const std::string name = path.substr(0, path.size() - end.size());
  std::vector<std::unique_ptr<GgufFile>> parts;
  for (Place expected = {0, place.count, place.n_tensors}; expected.number < place.count; ++expected.number) {
    if (expected.number == place.number) {
      parts.push_back(std::move(named));
      continue;
    }
    const std::string part_path = name + EndOfName(expected.number, place.count);
    KVRUN_ASSIGN_OR_RETURN(parts.emplace_back(), OpenPart(part_path, expected, types));
  }
  std::unique_ptr<GgufFile> first = std::move(parts.front());
  parts.erase(parts.begin());
  for (const std::unique_ptr<GgufFile>& part : parts) {
    if (!Contradicts(*part, *first)) continue;
    return Status(
        StatusCode::kCorrupt,
        fmt::format("{}: it is a part of another model than {}: put the part that belongs to it there",
                    part->name(), first->name()));
  }
  KVRUN_RETURN_IF_ERROR(first->Append(std::move(parts)));
  uint64_t n_tensors = first->tensors().size();
  for (const auto& [type, unknown] : first->unknown_tensors()) n_tensors += unknown.n_tensors;
  if (place.n_tensors == 0 || n_tensors == place.n_tensors) return first;
  return Status(
      StatusCode::kCorrupt,
      fmt::format("{}: the {} parts of the model hold {} tensors, and should hold {}: one of them is of "
                  "another model or damaged",
                  first->name(), place.count, n_tensors, place.n_tensors));
}

}  // namespace kvrun
