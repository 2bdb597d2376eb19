#include "apps/kvrun/kept_documents.h"

#include <fmt/format.h>
#include <system_error>

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "apps/common/failure.h"
#include "apps/common/report.h"
#include "apps/kvrun/session_files.h"

namespace kvrun::cli {
namespace {

constexpr std::string_view kPrefix = "document-";
// Fewer are read again sooner than a person would notice.
constexpr size_t kFewestTokens = 1024;
// That say which document it is.
constexpr size_t kNamingTokens = 256;

// FNV-1a, 64 bits: of names, not of secrets.
class Hash {
 public:
  void Add(std::string_view bytes) {
    for (const char byte : bytes) AddByte(static_cast<uint8_t>(byte));
    AddByte(0);
  }
  void Add(int32_t id) {
    for (int shift = 0; shift < 32; shift += 8)
      AddByte(static_cast<uint8_t>(static_cast<uint32_t>(id) >> shift));
  }
  uint64_t value() const { return value_; }

 private:
  void AddByte(uint8_t byte) { value_ = (value_ ^ byte) * 0x100000001b3U; }

  uint64_t value_ = 0xcbf29ce484222325U;
};

bool IsDocument(const Json& session) { return TextOf(session.value("name", Json(""))).starts_with(kPrefix); }

}  // namespace

std::string DocumentSession(const SharedOptions& shared, std::span<const int32_t> ids) {
  if (ids.size() < kFewestTokens) return "";
  Hash hash;
  std::error_code error;
  hash.Add(std::filesystem::canonical(shared.model, error).string());
  hash.Add(std::to_string(std::filesystem::file_size(shared.model, error)));
  for (const kvrun_option& option : shared.kv.values()) {
    const std::string_view name = option.name;
    hash.Add(name);
    // How much memory there is does not decide what is stored.
    if (name != "budget" && name != "select" && name != "reuse" && name != "later-prompts")
      hash.Add(option.value);
  }
  for (const int32_t id : ids.first(kNamingTokens)) hash.Add(id);
  return fmt::format("{}{:016x}", kPrefix, hash.value());
}

bool PruneDocuments(uint64_t most_bytes, const std::string& name) {
  Json documents = Json::array();
  uint64_t own_bytes = 0;
  for (const Json& session : AllSessions()) {
    if (!IsDocument(session)) continue;
    if (TextOf(session["name"]) == name) {
      own_bytes = session.value("bytes", uint64_t{0});
    } else {
      documents.push_back(session);
    }
  }
  PruneSessions(documents, most_bytes - std::min(most_bytes, own_bytes), /*quiet=*/true);
  return !documents.empty();
}

}  // namespace kvrun::cli
