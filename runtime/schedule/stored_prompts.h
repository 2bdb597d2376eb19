// The texts that sessions on flash hold, and which of them a new prompt begins like.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "platform/base/status.h"
#include "platform/io/secret_key.h"
#include "runtime/model/tokenizer.h"

namespace kvrun {

struct StoredPromptsOptions {
  std::string folder;                    // that there is; empty: nothing is kept
  std::shared_ptr<const SecretKey> key;  // null: sessions are plain
  // Of those that are made here, and of documents that kvrun run keeps. Fewer are kept where the disk would
  // have no room for another like the largest of them.
  uint64_t keep_bytes = 0;
  std::string model;                          // its fingerprint: others' sessions are left alone
  std::function<uint64_t()> free_bytes = {};  // on the disk; empty: the folder's
};

// One thread.
class StoredPrompts {
 public:
  // Those that are made here begin so; others are a person's, and are only read.
  static constexpr const char* kOwnPrefix = "serve-";
  // Fewer in common are read again sooner than a session is opened.
  static constexpr uint32_t kLeastCommon = 64;
  // So many more in one that is in use are worth waiting for, or reading one that is not saved then.
  static constexpr uint32_t kWorthWaiting = 1024;
  // So many tokens may be cut off at an end, to go on from what is before it.
  static constexpr uint32_t kLittleLost = 512;

  // Reads the tokens of all sessions in the folder. What cannot be read is left out.
  static Result<std::unique_ptr<StoredPrompts>> Open(StoredPromptsOptions options);

  // Where a prompt is to be computed.
  struct Place {
    std::string path;  // empty: nowhere that is kept
    bool is_new = true;
    bool is_read_only = false;
    uint32_t n_common = 0;  // tokens that are there
  };
  // It is in use until PutBack. Nothing: the best one is in use, and worth waiting for.
  std::optional<Place> Take(std::span<const TokenId> ids);
  // While it is, nobody waits for it.
  void SetParked(const Place& place, bool is_parked);
  // `tokens`: that it holds now; none: nothing was saved there, so it holds what it did before, and one of no
  // tokens goes. Makes room for it.
  void PutBack(const Place& place, std::span<const TokenId> tokens);
  // Before one that is new is written: others may have filled the disk. Open and PutBack do it, too. Removes
  // files, which may take long.
  void MakeRoom();
  // In place of PutBack: it cannot be gone on with (another process has it, it is damaged, it was made with
  // other options), and is not tried again. It counts, and goes when it was not used for longest.
  void GiveUp(const Place& place);

  struct Stored {
    std::string name;
    uint64_t n_tokens = 0;
    uint64_t size_bytes = 0;
  };
  std::vector<Stored> all() const;
  // Grows where all() changes: there may be thousands.
  uint64_t n_changes() const { return n_changes_; }
  // Of a text of so many tokens the first ones are gone on from, and the others cut: where little is lost.
  static bool MayCut(uint64_t n_tokens, uint32_t n_common) {
    return n_tokens - n_common <= std::max(kLittleLost, n_common / 2);
  }
  // Of a session that is not there; empty where nothing is kept.
  std::string NewPath() const;

 private:
  struct Entry {
    std::vector<TokenId> tokens;
    uint64_t size_bytes = 0;
    int64_t used_s = 0;
    uint64_t last_use = 0;  // among those of this process
    uint32_t n_users = 0;
    bool is_own = false;
    bool is_shared = false;  // by its users, who only read it
    bool is_parked = false;  // its user has it for nobody
    bool counts = false;     // towards keep_bytes
  };

  explicit StoredPrompts(StoredPromptsOptions options) : options_(std::move(options)) {}
  enum class Use : uint8_t { kNone, kWrite, kRead, kWait };

  Use UseOf(const Entry& entry, uint32_t n_common) const;
  void ReadAgain(const std::string& path);
  uint64_t FreeBytes() const;

  const StoredPromptsOptions options_;
  std::map<std::string, Entry> entries_;  // by path
  uint64_t n_uses_ = 0;
  uint64_t n_changes_ = 0;
  uint64_t largest_bytes_ = 0;  // that one has had
};

}  // namespace kvrun
