// Sessions that are kept, as commands list and remove them.
#pragma once

#include <cstdint>
#include <string>

#include "apps/common/api.h"

namespace kvrun::cli {

// Those of the user's folder, the last used first: kvrun_sessions_json.
Json AllSessions();

// Of these, which are ordered so, the last ones go, until no more than so many bytes are left. One that is in
// use stays. quiet: neither is said.
void PruneSessions(const Json& sessions, uint64_t most_bytes, bool quiet);

// "500M", "20G", "20GiB", "1.5T"; K, M, G and T are of 1,024. `source`: who said it, for a UsageError.
uint64_t ParseBytes(const std::string& source, const std::string& text);

}  // namespace kvrun::cli
