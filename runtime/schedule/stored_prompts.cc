#include "runtime/schedule/stored_prompts.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <random>
#include <tuple>
#include <utility>

#include "runtime/engine/session/session_folder.h"
#include "runtime/engine/session/session_list.h"
#include "runtime/schedule/request.h"

namespace kvrun {
namespace {

namespace fs = std::filesystem;

// As kvrun run -f names what it keeps.
constexpr const char* kDocumentPrefix = "document-";

}  // namespace

Result<std::unique_ptr<StoredPrompts>> StoredPrompts::Open(StoredPromptsOptions options) {
  std::unique_ptr<StoredPrompts> prompts(new StoredPrompts(std::move(options)));
  const StoredPromptsOptions& given = prompts->options_;
  if (given.folder.empty()) return prompts;
  KVRUN_ASSIGN_OR_RETURN(const std::vector<KeptSessionInfo> sessions,
                         ListSessions(given.folder, given.key.get()));
  for (const KeptSessionInfo& session : sessions) {
    const bool is_usable = !session.is_locked && session.trouble.empty() &&
                           session.identity.model == given.model && session.n_tokens.size() == 1 &&
                           session.is_encrypted == (given.key != nullptr);
    if (!is_usable) continue;
    Result<std::vector<TokenId>> tokens = ReadSessionTokens(session.path, given.key.get());
    if (!tokens.ok()) continue;
    const bool is_own = session.name.starts_with(kOwnPrefix);
    if (tokens->empty()) {
      // A process was killed before it had read anything. Not where one still does.
      if (is_own) (void)RemoveSession(session.path);
      continue;
    }
    prompts->entries_[session.path] = {.tokens = std::move(tokens).value(),
                                       .size_bytes = session.size_bytes,
                                       .used_s = session.used_s,
                                       .is_own = is_own,
                                       .counts = is_own || session.name.starts_with(kDocumentPrefix)};
  }
  prompts->MakeRoom();
  return prompts;
}

std::string StoredPrompts::NewPath() const {
  if (options_.folder.empty()) return "";
  std::random_device random;
  const uint64_t number = uint64_t{random()} << 32 | random();
  return fmt::format("{}/{}{:016x}{}", options_.folder, kOwnPrefix, number, kSessionEnding);
}

// One that is written is cut where the prompt goes on differently: only where little is lost.
StoredPrompts::Use StoredPrompts::UseOf(const Entry& entry, uint32_t n_common) const {
  if (entry.is_parked) return Use::kNone;
  const bool may_write = entry.is_own && MayCut(entry.tokens.size(), n_common);
  if (may_write && n_common >= kLeastCommon) return entry.n_users == 0 ? Use::kWrite : Use::kWait;
  if (n_common < kWorthWaiting) return Use::kNone;
  return entry.n_users == 0 || entry.is_shared ? Use::kRead : Use::kWait;
}

std::optional<StoredPrompts::Place> StoredPrompts::Take(std::span<const TokenId> ids) {
  if (options_.folder.empty()) return Place{};
  Place place{.path = NewPath()};
  uint32_t n_in_use = 0;
  for (const auto& [path, entry] : entries_) {
    const uint32_t n_common = CommonLength(entry.tokens, ids);
    const Use use = UseOf(entry, n_common);
    if (use == Use::kNone) continue;
    if (use == Use::kWait) {
      n_in_use = std::max(n_in_use, n_common);
    } else if (n_common > place.n_common || (n_common == place.n_common && use == Use::kWrite)) {
      place = {.path = path, .is_new = false, .is_read_only = use == Use::kRead, .n_common = n_common};
    }
  }
  if (n_in_use >= place.n_common + kWorthWaiting) return std::nullopt;
  ++n_changes_;
  Entry& entry = entries_[place.path];
  if (place.is_new) entry.is_own = entry.counts = true;
  // What it is to hold: another prompt that begins so may wait for it.
  if (!place.is_read_only) entry.tokens.assign(ids.begin(), ids.end());
  entry.is_shared = place.is_read_only;
  ++entry.n_users;
  entry.last_use = ++n_uses_;
  return place;
}

void StoredPrompts::SetParked(const Place& place, bool is_parked) {
  const auto found = entries_.find(place.path);
  if (found == entries_.end() || place.is_read_only) return;
  found->second.is_parked = is_parked;
  ++n_changes_;
}

void StoredPrompts::PutBack(const Place& place, std::span<const TokenId> tokens) {
  if (place.path.empty()) return;
  ++n_changes_;
  Entry& entry = entries_[place.path];
  if (entry.n_users > 0) --entry.n_users;
  if (place.is_read_only) return;
  entry.is_own = entry.counts = true;
  entry.is_parked = false;
  entry.tokens.assign(tokens.begin(), tokens.end());
  entry.used_s = std::time(nullptr);
  if (tokens.empty()) {
    ReadAgain(place.path);
  } else {
    entry.size_bytes = SessionSizeBytes(place.path);
  }
  MakeRoom();
}

// A session that was made and has no tokens would be there for good.
void StoredPrompts::ReadAgain(const std::string& path) {
  Result<std::vector<TokenId>> tokens = ReadSessionTokens(path, options_.key.get());
  const bool is_of_no_use = tokens.ok() ? tokens->empty() : tokens.status().code() == StatusCode::kCorrupt;
  const bool is_gone = tokens.status().code() == StatusCode::kNotFound;
  if (is_gone || (is_of_no_use && RemoveSession(path).ok())) {
    entries_.erase(path);
    return;
  }
  Entry& entry = entries_[path];
  entry.size_bytes = SessionSizeBytes(path);
  if (tokens.ok()) entry.tokens = std::move(tokens).value();
}

void StoredPrompts::GiveUp(const Place& place) {
  const auto found = entries_.find(place.path);
  if (found == entries_.end()) return;
  ++n_changes_;
  if (found->second.n_users > 0) --found->second.n_users;
  found->second.tokens.clear();
}

uint64_t StoredPrompts::FreeBytes() const {
  if (options_.free_bytes) return options_.free_bytes();
  std::error_code error;
  const fs::space_info space = fs::space(options_.folder, error);
  return error ? UINT64_MAX : space.available;
}

// The least recently used go first.
void StoredPrompts::MakeRoom() {
  if (options_.folder.empty()) return;

  std::vector<std::map<std::string, Entry>::iterator> counted;
  uint64_t bytes = 0;
  for (auto i = entries_.begin(); i != entries_.end(); ++i) {
    if (!i->second.counts) continue;
    counted.push_back(i);
    bytes += i->second.size_bytes;
    largest_bytes_ = std::max(largest_bytes_, i->second.size_bytes);
  }
  uint64_t most_bytes = options_.keep_bytes;
  if (const uint64_t free_bytes = FreeBytes(); free_bytes < UINT64_MAX - bytes) {
    const uint64_t room_bytes = bytes + free_bytes;
    most_bytes = std::min(most_bytes, room_bytes - std::min(largest_bytes_, room_bytes / 2));
  }
  std::sort(counted.begin(), counted.end(), [](const auto& a, const auto& b) {
    return std::tuple(a->second.last_use, a->second.used_s) <
           std::tuple(b->second.last_use, b->second.used_s);
  });
  for (const auto& entry : counted) {
    if (bytes <= most_bytes) return;
    if (entry->second.n_users > 0) continue;
    const Status removed = RemoveSession(entry->first);
    if (!removed.ok() && removed.code() != StatusCode::kNotFound) continue;
    bytes -= entry->second.size_bytes;
    entries_.erase(entry);
  }
}

std::vector<StoredPrompts::Stored> StoredPrompts::all() const {
  std::vector<Stored> all;
  for (const auto& [path, entry] : entries_) {
    if (entry.size_bytes == 0) continue;  // it is being made
    all.push_back({fs::path(path).stem().string(), entry.tokens.size(), entry.size_bytes});
  }
  return all;
}

}  // namespace kvrun
