// The sessions that are kept in a folder: what people see of them, and what they do with their files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "platform/base/status.h"
#include "platform/io/secret_key.h"
#include "runtime/engine/session/session_identity.h"
#include "runtime/model/tokenizer.h"
#include "runtime/store/written_days.h"

namespace kvrun {

struct KeptSessionInfo {
  std::string name;  // "thesis"; of a file that has no such ending, the file's
  std::string path;
  SessionIdentity identity;
  std::vector<uint64_t> n_tokens;  // of each sequence
  uint64_t size_bytes = 0;         // that its files take on the disk
  int64_t used_s = 0;              // since 1970: when it was last saved
  WrittenDays written;             // for it, up to its last save
  bool is_encrypted = false;
  bool is_locked = false;  // nothing but name, size and date is known: its key is not at hand
  std::string trouble;     // why it cannot be opened; empty: it can
};

// One session; kNotFound where there is none. What cannot be opened is described by `trouble`. `key`: of one
// that is encrypted; null: no more is said of such.
Result<KeptSessionInfo> DescribeSession(const std::string& path, const SecretKey* key = nullptr);
// With a key that it may have: one that has another is described as without a key.
Result<KeptSessionInfo> DescribeWithLikelyKey(const std::string& path, const SecretKey* key);
// Those of a folder, the last used first. A folder that is not there has none. `likely_key`: may be null.
Result<std::vector<KeptSessionInfo>> ListSessions(const std::string& folder, const SecretKey* likely_key);

// The tokens of its only sequence, or of the first. kCorrupt, kInvalidArgument: as StateFile::Open.
Result<std::vector<TokenId>> ReadSessionTokens(const std::string& path, const SecretKey* key);
// What its files take on the disk; 0 where there are none.
uint64_t SessionSizeBytes(const std::string& path);

// All its files. kInvalidArgument: a process has it. kNotFound.
Status RemoveSession(const std::string& path);
// All its files, with holes; nothing has the new name yet (else kInvalidArgument).
Status CopySession(const std::string& from, const std::string& to);

}  // namespace kvrun
