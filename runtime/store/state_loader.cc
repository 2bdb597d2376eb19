#include <fmt/format.h>

#include "runtime/store/state_format.h"
#include "runtime/store/state_visitor.h"

namespace kvrun {
namespace {

Status OtherThanExpected(const StateFile& file, const StateKey& key, std::string_view what) {
  return {StatusCode::kCorrupt,
          fmt::format("the session's file {}: {} {}: it is of another session or damaged, and the session "
                      "has to be computed again",
                      file.path(), StateKeyInWords(key), what)};
}

}  // namespace

Status StateLoader::Bytes(const StateKey& key, std::span<std::byte> bytes) {
  const std::optional<uint64_t> size_bytes = file_.SizeOf(key);
  if (!size_bytes) return OtherThanExpected(file_, key, "is missing");
  if (*size_bytes != bytes.size()) {
    return OtherThanExpected(file_, key, fmt::format("has {} bytes, not {}", *size_bytes, bytes.size()));
  }
  return file_.Read(key, 0, bytes);
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
