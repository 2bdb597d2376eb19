#include "runtime/store/state_visitor.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "platform/base/check.h"
#include "runtime/store/state_format.h"

namespace kvrun {
namespace {

Status OtherThanExpected(const StateFile& file, const StateKey& key, std::string_view what) {
  return {StatusCode::kCorrupt,
          fmt::format("the session's file {}: {} {}: it is of another session or damaged, and the session "
                      "has to be computed again",
                      file.path(), StateKeyInWords(key), what)};
}

// An item of this size is there.
Status CheckSize(const StateFile& file, const StateKey& key, uint64_t size_bytes) {
  const std::optional<uint64_t> of_file = file.SizeOf(key);
  if (!of_file) return OtherThanExpected(file, key, "is missing");
  if (*of_file == size_bytes) return Status::Ok();
  return OtherThanExpected(file, key, fmt::format("has {} bytes, not {}", *of_file, size_bytes));
}

}  // namespace

bool AreAscending(std::span<const uint32_t> values, uint32_t end) {
  return std::adjacent_find(values.begin(), values.end(), std::greater_equal<>()) == values.end() &&
         (values.empty() || values.back() < end);
}

Status StateVisitor::Flags(const StateKey& key, std::vector<bool>* flags) {
  std::vector<uint8_t> bytes(flags->begin(), flags->end());
  KVRUN_RETURN_IF_ERROR(Array(key, std::span(bytes)));
  if (!is_loading()) return Status::Ok();
  if (std::any_of(bytes.begin(), bytes.end(), [](uint8_t byte) { return byte > 1; })) {
    return {StatusCode::kCorrupt, fmt::format("{}: a flag is neither 0 nor 1", StateKeyInWords(key))};
  }
  flags->assign(bytes.begin(), bytes.end());
  return Status::Ok();
}

Status StateSaver::Pieces(const StateKey& key, uint64_t size_bytes, std::span<std::byte> piece,
                          const MoveFn& move) {
  KVRUN_CHECK(piece.size() % kStateChunkBytes == 0);
  if (size_bytes == 0) return file_.Put(key, {});
  for (uint64_t at = 0; at < size_bytes; at += piece.size()) {
    const auto some = piece.first(std::min<uint64_t>(piece.size(), size_bytes - at));
    KVRUN_RETURN_IF_ERROR(move(at, some));
    KVRUN_RETURN_IF_ERROR(file_.Put(key, some, at + some.size() == size_bytes));
  }
  return Status::Ok();
}

Status StateLoader::Bytes(const StateKey& key, std::span<std::byte> bytes) {
  KVRUN_RETURN_IF_ERROR(CheckSize(file_, key, bytes.size()));
  return file_.Read(key, 0, bytes);
}

Status StateLoader::Pieces(const StateKey& key, uint64_t size_bytes, std::span<std::byte> piece,
                           const MoveFn& move) {
  KVRUN_CHECK(piece.size() % kStateChunkBytes == 0);
  KVRUN_RETURN_IF_ERROR(CheckSize(file_, key, size_bytes));
  for (uint64_t at = 0; at < size_bytes; at += piece.size()) {
    const auto some = piece.first(std::min<uint64_t>(piece.size(), size_bytes - at));
    KVRUN_RETURN_IF_ERROR(file_.Read(key, at, some));
    KVRUN_RETURN_IF_ERROR(move(at, some));
  }
  return Status::Ok();
}

Result<uint64_t> StateLoader::Size(const StateKey& key, uint64_t, uint64_t most_bytes, uint32_t unit_bytes) {
  const std::optional<uint64_t> size_bytes = file_.SizeOf(key);
  if (!size_bytes) return OtherThanExpected(file_, key, "is missing");
  if (*size_bytes > most_bytes) {
    return OtherThanExpected(file_, key, fmt::format("has {} bytes, more than {}", *size_bytes, most_bytes));
  }
  if (unit_bytes != 0 && *size_bytes % unit_bytes != 0) {
    return OtherThanExpected(file_, key,
                             fmt::format("has {} bytes, no multiple of {}", *size_bytes, unit_bytes));
  }
  return *size_bytes;
}

}  // namespace kvrun
